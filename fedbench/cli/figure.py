"""`fedbench figure`: draw a figure of a paper, or of any runs and partitions, from what the store has of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    from fedbench.reports.figures import FigureSpec, Kind


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="The figure: feddrm/3 to 12 or 14, flux/4, 5, 8 or 10 to 12, ftw_erm/2 or 3, pfedfda/2 to 4, scale/1, "
            "arena/mnist, cifar10 or both; of runs curves, clients, confusion or ranks; of partitions partition (or "
            "bubbles), images, ratio or spectrum; or FILE.toml:NUMBER, yours."
        ),
    ],
    filters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILTER",
            help="Which runs (or whose partitions): ids or their beginnings, KEY=VALUE,VALUE or KEY!=VALUE, * is any "
            "text (method=fedavg,ditto lr=0.1 dataset=mnist).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file: .png, .svg, .pdf, .csv or .json (default: PAPER-NUMBER.png or KIND.png)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON document.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the numbers as CSV.")] = False,
    partition: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw it of this partition's clients instead.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw it of this run instead (pfedfda/2, flux/11).")
    ] = None,
    client: Annotated[
        list[int] | None, typer.Option(help="Of partitions and of confusion: only these clients, from 0 (repeat it).")
    ] = None,
    image: Annotated[
        list[int] | None, typer.Option(help="Of images: these of the data set, from 0, through all clients' eyes.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Of runs: what is shown (fedbench metrics lists all); default: accuracy.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Of curves: round (default), bytes (both ways) or seconds (without evaluation).")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Of runs: a line for each value of it (method, lr, ...; repeatable)."),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option("--test-augmentation", help="Of runs: plain or crop (as in training); default: as evaluated."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print it as text only, as a terminal shows it.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Draw the paper's numbers beside ours (flux/4, 5, 8, 10 and 12).")
    ] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
    budget: Annotated[str | None, typer.Option(help="Which runs count: small (default), paper, ...")] = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Penalty that the bound on the ratio is taken for (default: 1).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the draw of the clients' images, or of the runs (default: the figure's).")
    ] = None,
) -> None:
    """Draw a figure. Never trains; partitions that are not there are made.

    With --json, --csv or --text it is printed, and a file is written only where -o names one.
    """
    from fedbench.files import write_whole
    from fedbench.reports import figures
    from fedbench.reports.figures import data, draw

    wanted = figures.load(name)
    kind = figures.kind_of(wanted)
    if as_json + as_csv + text > 1:
        raise FedbenchError("--json, --csv and --text exclude each other", "choose one")
    path = output or (None if as_json or as_csv or text else Path(f"{wanted.id.replace('/', '-')}.png"))
    form = path.suffix.removeprefix(".").lower() if path else ""
    if path and not form:
        raise FedbenchError(f"cannot tell the format from the name {path}", "end it in .png, .svg, .pdf, .csv or .json")
    if path and form not in (*draw.FORMATS, "csv", "json"):
        raise unknown("format of a figure", form, (*draw.FORMATS, "csv", "json"))
    chosen: dict[str, Any] = {
        "filters": filters or None,
        "partition": partition,
        "run": run,
        "client": client or None,
        "image": image or None,
        "budget": budget,
        "seed": seed,
    }
    chosen |= {"metric": metric, "against": against, "by": by or None, "view": view}
    chosen |= {"ridge": ridge, "compare": compare or None, "mine": mine}
    ask = figures.Ask(context.store(), context.roots(), context.err().print, **chosen)
    kind.check(wanted, ask)
    content = kind.gather(wanted, ask)

    texts = {"csv": data.as_csv, "json": data.as_json}
    if path:
        older = path.exists()
        file = texts[form](wanted, content).encode() if form in texts else draw.render(wanted, content, form)
        write_whole(path, file)
        context.err().print(f"{wanted.id} written to {path}{' (over an older one)' if older else ''}", soft_wrap=True)
    if as_json or as_csv:
        typer.echo(texts["json" if as_json else "csv"](wanted, content), nl=False)
    else:
        _show(wanted, kind, content, text)


def _show(wanted: FigureSpec, kind: Kind[Any], content: Any, text: bool) -> None:
    """What the figure says, in words; more of it on a terminal, and as `text`."""
    out = context.out()
    if out.is_terminal or text:
        for part in kind.details(wanted, content):
            out.print(part)
    for line in kind.words(wanted, content):
        out.print(line, soft_wrap=True)
    for verdict in content.claims:
        detail = f" ({verdict.detail})" if verdict.detail else ""
        out.print(f"{verdict.claim.text}: {verdict.state}{detail}", soft_wrap=True)
