"""`fedbench figure`: draw a paper's figure, or a figure of any runs and partitions, from the data in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError, check_known

if TYPE_CHECKING:
    from fedbench.reports.figures import FigureSpec, Kind, Row

app = App()


@app.command("figure")
def figure(
    name: Annotated[
        str,
        options.argument(
            "The figure: feddrm/3 to 12 or 14, flux/4 to 12, ftw_erm/2 or 3, pfedfda/2 to 4, scale/1, "
            "arena/mnist, cifar10 or both; of runs curves, clients, confusion or ranks; of partitions partition (or "
            "bubbles), images, ratio or spectrum; or yours: FILE.toml:NUMBER, FILE.py:Class."
        ),
    ],
    filters: options.Filters = None,
    output: Annotated[
        Path | None, "The file: .png, .svg, .pdf, .csv or .json (default: PAPER-NUMBER.png or KIND.png).", "-o"
    ] = None,
    as_json: options.Json = False,
    as_csv: Annotated[bool, "Print the numbers as CSV.", "--csv"] = False,
    partition: Annotated[
        str | None,
        "Draw the clients of this partition (default of partition, images, ...: the current one).",
        "ID",
    ] = None,
    run: Annotated[str | None, "Draw this run (pfedfda/2, flux/11).", "ID"] = None,
    client: Annotated[list[int] | None, "Only these clients, from 0 (partitions and confusion; repeatable)."] = None,
    image: Annotated[
        list[int] | None, "Rows of the data set, from 0: these images as all clients see them (images; repeatable)."
    ] = None,
    metric: Annotated[str | None, "Metric of the runs (fedbench metrics); default: accuracy."] = None,
    against: Annotated[
        str | None, "Axis of curves: round (default), bytes (sent and received) or seconds (without evaluation)."
    ] = None,
    by: Annotated[
        list[str] | None, "One line per value of this key of runs (method, lr, ...; repeatable).", "KEY"
    ] = None,
    view: Annotated[
        str | None, "Test images: plain or crop (as in training); default: as evaluated.", "--test-augmentation"
    ] = None,
    text: Annotated[bool, "Print it as text: its rows, or a chart of curves."] = False,
    width: Annotated[
        str, "Width of a picture: column (3.15 in), page (5.5 in) or inches; default: by panels.", "WIDTH"
    ] = "",
    title: Annotated[bool, "Write the title also into a PDF or SVG."] = False,
    style: Annotated[Path | None, "A style file of matplotlib, which overrides our style.", "FILE.mplstyle"] = None,
    compare: Annotated[bool, "Draw the paper's numbers beside ours (flux/4, 5, 8, 10 and 12)."] = False,
    no_shipped: options.NoShipped = False,
    budget: options.RunBudget = None,
    ridge: Annotated[float | None, "Penalty in the bound on the ratio (default: 1).", "λ"] = None,
    seed: Annotated[int | None, "Seed of the drawn images, or of the runs (default: the figure's)."] = None,
) -> None:
    """Draw a figure. Nothing is trained; missing partitions are made.

    --json, --csv and --text print it, and write a file only with -o. A picture is ready for a paper (text of 8
    points, embedded fonts); a text file beside it has the facts for its caption.
    """
    from fedbench.files import write_whole
    from fedbench.plugins import reported
    from fedbench.reports import figures
    from fedbench.reports.figures.style import settings_of
    from fedbench.reports.widths import inches

    kind = figures.kind_of(figures.load(name))
    if as_json + as_csv + text > 1:
        raise FedbenchError("--json, --csv and --text exclude each other", "choose one")
    path = output or (None if as_json or as_csv or text else Path(f"{kind.spec.id.replace('/', '-')}.png"))
    form = path.suffix.removeprefix(".").lower() if path else ""
    if path and not form:
        raise FedbenchError(f"cannot tell the format from the name {path}", "end it in .png, .svg, .pdf, .csv or .json")
    if (width or title or style) and form not in figures.FORMATS:
        raise FedbenchError("--width, --title and --style need a picture", f"-o FILE.{figures.FORMATS[0]} draws one")
    check_known("format of a figure", form if path else None, (*figures.FORMATS, "csv", "json"))
    if "partition" in kind.options and not (partition or filters or kind.spec.shows):
        partition = context.store().current.get("partition")
    chosen: dict[str, Any] = {
        "filters": filters or None,
        "partition": partition,
        "run": run,
        "client": client or None,
        "image": image or None,
        "budget": budget,
        "seed": seed,
        "metric": metric,
        "against": against,
        "by": by or None,
        "view": view,
        "ridge": ridge,
        "compare": compare or None,
    }
    remarks: list[str] = []

    def notify(text: str) -> None:
        remarks.append(text)
        context.err().print(text)

    request = figures.Request(context.frame(shipped=not no_shipped), context.roots(), notify, **chosen)
    figures.check(kind, request)
    with reported():
        rows = kind.rows(request)
    if not rows:
        raise FedbenchError(f"{kind.spec.id} has no rows", "choose runs that it shows")

    texts = {"csv": figures.as_csv, "json": figures.as_json}
    if path:
        older, beside = path.exists(), ""
        if form in texts:
            write_whole(path, texts[form](kind, rows).encode())
        else:
            shown = title or form == "png"
            look = figures.Look(inches(width) if width else 0.0, shown, settings_of(style) if style else {})
            with reported():
                picture, facts = figures.picture(kind, rows, form, look, request.said, remarks)
            write_whole(path, picture)
            write_whole(path.with_name(f"{path.name}.txt"), facts.encode())
            beside = f", what it shows to {path.name}.txt"
        over = " (over an older one)" if older else ""
        context.err().print(f"{kind.spec.id} written to {path}{over}{beside}", soft_wrap=True)
    if as_json or as_csv:
        typer.echo(texts["json" if as_json else "csv"](kind, rows), nl=False)
    else:
        _show(kind, rows, request.said, text)


#: At most so many rows of a figure are printed.
MOST_ROWS = 200


def _show(kind: Kind, rows: list[Row], said: Sequence[str], text: bool) -> None:
    """Print the figure in words; on a terminal or with `text` also its rows, or the charts that its kind has."""
    from fedbench.reports.figures.output import claim_in_words, sparse, table

    out = context.out()
    if out.is_terminal or text:
        charts = [*kind.charts(rows)]
        for chart in charts:
            out.print(chart)
        if not charts:
            _print_rows(kind.spec, [*table(kind, rows)])
    for line in filter(None, (*said, sparse(rows))):
        out.print(line, soft_wrap=True)
    for claim in rows[0].get("claims", ()):
        out.print(claim_in_words(claim), soft_wrap=True)


def _print_rows(figure: FigureSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of a figure's CSV as a table; a text that all rows have stands above it."""
    from rich.text import Text

    texts = {name: value for name, value in rows[0].items() if isinstance(value, str)}
    common = {name: value for name, value in texts.items() if all(row[name] == value for row in rows)}
    names = [name for name in rows[0] if name not in common]
    facts = [f"{name} {value}" for name, value in common.items() if value]
    out = context.out()
    out.print(Text.assemble((figure.id, "bold"), f"  {'; '.join([figure.title, *facts])}"), soft_wrap=True)
    right = [name for name in names if all(isinstance(row[name], int | float | None) for row in rows)]
    shown = [{name: _text(row[name]) for name in names} for row in rows[:MOST_ROWS]]
    printing.columns(out, shown, right, spare=("ids", "runs", "error", "seeds"))
    if len(rows) > MOST_ROWS:
        out.print(f"and {len(rows) - MOST_ROWS:,} more rows: --csv prints all", style="dim")


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
