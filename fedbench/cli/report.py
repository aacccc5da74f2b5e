"""`fedbench report`, `claims`, `compare`, `figure` and `site`: show results as tables, figures and web pages."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench import resources
from fedbench.cli import context
from fedbench.cli.context import App
from fedbench.errors import FedbenchError, check_known
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.reports.claims import Claims
    from fedbench.reports.figures import FigureSpec, Kind
    from fedbench.reports.site.pages import Origin
    from fedbench.results.frame import Run

app = App()

#: Levels of detail of the notes below a table.
NOTES = ("brief", "full")


@app.command("report")
@context.uncollected()
def report(
    table: Annotated[
        list[str] | None, "Number (1), name (feddrm/1) or TOML file; default: the headline tables.", "-t"
    ] = None,
    format: context.Format = None,
    output: context.Output = None,
    compare: Annotated[bool, "Set the paper's numbers below ours."] = False,
    notes: Annotated[str, "Notes below the table: brief, or full (deviations, remarks, claims)."] = "brief",
    only_done: Annotated[bool, "Leave out rows and columns that have no number."] = False,
    mine: context.Mine = False,
    extra: Annotated[bool, "Add rows of your other runs in the table's settings (train --table -m)."] = False,
    budget: context.RunBudget = None,
    precision: context.RunPrecision = None,
    dataset: context.OnDataset = None,
    column: context.Columns = None,
    view: Annotated[
        str | None, "Test images: crop (as in training) or plain; default: the table's.", "--test-augmentation"
    ] = None,
    seed: Annotated[list[int] | None, "Seed of the runs (repeatable); default: the table's."] = None,
    as_json: context.Json = False,
    standalone: Annotated[bool, "LaTeX: a whole document, not a float to \\input; names its packages."] = False,
    appendix: Annotated[
        bool,
        "LaTeX: what a paper's appendix says of the tables, to \\input: settings, hyper-parameters, seeds, "
        "compute, versions, licences, deviations, references.",
    ] = False,
) -> None:
    """Print tables of measured numbers. Never trains; runs that lack metrics are evaluated."""
    from fedbench.reports.layout.tables import grids_of

    chosen = context.form(format or ("latex" if appendix and output is None and not as_json else None), output, as_json)
    check_known("notes", notes, NOTES)
    grids = grids_of(
        table or (), context.store(), context.roots(), budget=budget, precision=precision, dataset=dataset,
        columns=column or (), view=view, seeds=seed or (), compare=compare, only_done=only_done, mine=mine,
        extra=extra, appendix=appendix,
    )  # fmt: skip
    context.put(grids, chosen, output, full=notes == "full", standalone=standalone, appendix=appendix)


# -- claims ----------------------------------------------------------------------------------------------------
# `fedbench claims`: what papers claim about their tables, and whether it holds on the measured numbers.


@app.command("claims")
@context.uncollected()
def claims(
    names: Annotated[
        list[str] | None,
        context.argument("Papers (feddrm) or tables (feddrm/1, 1); default: all.", completion=context.tables),
    ] = None,
    budget: Annotated[str | None, "Budget of the runs (default: the one with most numbers)."] = None,
    mine: context.Mine = False,
    output: Annotated[Path | None, "Write Markdown to this file.", "-o"] = None,
    as_json: context.Json = False,
) -> None:
    """Every claim of the papers' tables: holds, holds so far (numbers are missing), is undecided (within the noise of
    the seeds), fails, or not measured; at which budget, with the numbers that decide. Never trains."""
    from fedbench.files import write_whole
    from fedbench.reports.claims import LOOKS, markdown, summary, title, words
    from fedbench.reports.claims import claims as every

    if output is not None and output.suffix != ".md":
        raise FedbenchError(f"claims are written in Markdown, and {output} does not end so", "-o NAME.md")
    if output is not None and as_json:
        raise FedbenchError("--output does not go with --json", "leave one of the two out")
    tables = list(every(names or (), context.frame(mine), context.roots(), budget))
    if as_json:
        context.print_json([_document(one) for one in tables])
        return
    if output is not None:
        write_whole(output, ("\n".join(markdown(tables)) + "\n").encode())
        context.err().print(f"the claims of {len(tables)} tables written to {output}", soft_wrap=True, markup=False)
        return
    out = context.out()
    for one in (one for one in tables if one.judged):
        out.print(title(one), style="bold", soft_wrap=True, markup=False, highlight=False)
        for stand in one.judged:
            sign, style = LOOKS[stand.verdict.state]
            out.print(f"  {sign} {words(stand)}", style=style, soft_wrap=True, markup=False, highlight=False)
    if not any(one.judged for one in tables):
        context.err().print("no claims are declared of these tables")
    for line in summary(tables):
        out.print(line, soft_wrap=True, markup=False)


def _document(one: Claims) -> dict[str, Any]:
    return {
        "table": one.table.id, "title": one.table.title, "budget": one.budget or None, "shipped": one.shipped,
        "numbers": one.tally.document,
        "claims": [
            {
                "text": stand.verdict.claim.text, "kind": stand.verdict.claim.kind, "state": stand.verdict.state,
                "held": stand.verdict.held, "made": stand.verdict.made, "asked": stand.verdict.total,
                "undecided": stand.verdict.unsure,
                "detail": stand.verdict.detail, "numbers": dict(stand.numbers),
                "reported": stand.reported.state if stand.reported.made else None,
            }
            for stand in one.judged
        ],
    }  # fmt: skip


# -- compare ---------------------------------------------------------------------------------------------------
# `fedbench compare`: any runs side by side.


@app.command("compare")
def compare(
    filter: context.Filters = None,
    metric: Annotated[
        list[str] | None, "Print this metric instead of the usual numbers (repeatable; fedbench metrics)."
    ] = None,
    sort: Annotated[str | None, "Rows by a number, the best first (average_accuracy), or by a key (lr)."] = None,
    test: Annotated[bool, "Test every two rows on the same data, over common seeds or clients."] = False,
    over: Annotated[
        str | None, "With --test: sample, seeds or clients (default: seeds where three are common)."
    ] = None,
    view: Annotated[
        str, "Test images: crop (as in training, where a run has it) or plain.", "--test-augmentation"
    ] = "plain",
    format: context.Format = None,
    output: context.Output = None,
    as_json: context.Json = False,
    mine: context.Mine = False,
) -> None:
    """Set runs side by side: in what they differ, and mean ± standard deviation over seeds. Never trains."""
    from fedbench.planner.runs import select
    from fedbench.reports.compare.layout import side_by_side

    chosen = context.form(format, output, as_json)
    runs = select(context.frame(mine), filter or [], context.roots())
    grids = side_by_side(runs, metric or [], sort=sort, test=test, over=over, view=view)
    context.put(grids, chosen, output)


# -- figure ----------------------------------------------------------------------------------------------------
# `fedbench figure`: draw a paper's figure, or a figure of any runs and partitions, from the data in the store.


@app.command("figure")
def figure(
    name: Annotated[
        str,
        context.argument(
            "The figure: feddrm/3 to 12 or 14, flux/4 to 12, ftw_erm/2 or 3, pfedfda/2 to 4, scale/1, "
            "arena/mnist, cifar10 or both; of runs curves, clients, confusion or ranks; of partitions partition (or "
            "bubbles), images, ratio or spectrum; or FILE.toml:NUMBER, yours."
        ),
    ],
    filters: context.Filters = None,
    output: Annotated[
        Path | None, "The file: .png, .svg, .pdf, .csv or .json (default: PAPER-NUMBER.png or KIND.png).", "-o"
    ] = None,
    as_json: context.Json = False,
    as_csv: Annotated[bool, "Print the numbers as CSV.", "--csv"] = False,
    partition: Annotated[str | None, "Draw it of this partition's clients instead.", "ID"] = None,
    run: Annotated[str | None, "Draw it of this run instead (pfedfda/2, flux/11).", "ID"] = None,
    client: Annotated[
        list[int] | None, "Clients of partitions and of confusion: only these, from 0 (repeatable)."
    ] = None,
    image: Annotated[
        list[int] | None, "Images of the data set, for images: from 0, as all clients see them (repeatable)."
    ] = None,
    metric: Annotated[
        str | None, "Metric of runs that is shown (fedbench metrics lists all); default: accuracy."
    ] = None,
    against: Annotated[
        str | None, "Axis of curves: round (default), bytes (both ways) or seconds (without evaluation)."
    ] = None,
    by: Annotated[
        list[str] | None, "Key of runs: a line for each of its values (method, lr, ...; repeatable).", "KEY"
    ] = None,
    view: Annotated[
        str | None, "Test images: plain or crop (as in training); default: as evaluated.", "--test-augmentation"
    ] = None,
    text: Annotated[bool, "Print it as text only, as a terminal shows it: its rows, of curves a chart."] = False,
    compare: Annotated[bool, "Draw the paper's numbers beside ours (flux/4, 5, 8, 10 and 12)."] = False,
    mine: context.Mine = False,
    budget: context.RunBudget = None,
    ridge: Annotated[float | None, "Penalty that the bound on the ratio is taken for (default: 1).", "λ"] = None,
    seed: Annotated[
        int | None, "Seed of the clients' images that are drawn, or of the runs (default: the figure's)."
    ] = None,
) -> None:
    """Draw a figure. Never trains; partitions that are not there are made.

    With --json, --csv or --text it is printed, and a file is written only where -o names one.
    """
    from fedbench.files import write_whole
    from fedbench.reports import figures
    from fedbench.reports.figures import kinds

    spec = figures.load(name)
    kind = figures.kind_of(spec)
    if as_json + as_csv + text > 1:
        raise FedbenchError("--json, --csv and --text exclude each other", "choose one")
    path = output or (None if as_json or as_csv or text else Path(f"{spec.id.replace('/', '-')}.png"))
    form = path.suffix.removeprefix(".").lower() if path else ""
    if path and not form:
        raise FedbenchError(f"cannot tell the format from the name {path}", "end it in .png, .svg, .pdf, .csv or .json")
    check_known("format of a figure", form if path else None, (*kinds.FORMATS, "csv", "json"))
    chosen: dict[str, Any] = {
        "filters": filters or None, "partition": partition, "run": run, "client": client or None,
        "image": image or None, "budget": budget, "seed": seed, "metric": metric, "against": against, "by": by or None,
        "view": view, "ridge": ridge, "compare": compare or None,
    }  # fmt: skip
    request = figures.Request(context.frame(mine), context.roots(), context.err().print, **chosen)
    kind.check(spec, request)
    content = kind.gather(spec, request)

    texts = {"csv": kinds.as_csv, "json": kinds.as_json}
    if path:
        older = path.exists()
        file = texts[form](spec, content).encode() if form in texts else kinds.render(spec, content, form)
        write_whole(path, file)
        context.err().print(f"{spec.id} written to {path}{' (over an older one)' if older else ''}", soft_wrap=True)
    if as_json or as_csv:
        typer.echo(texts["json" if as_json else "csv"](spec, content), nl=False)
    else:
        _show(spec, kind, content, text)


#: At most so many rows of a figure are printed.
MOST_ROWS = 200


def _show(spec: FigureSpec, kind: Kind[Any], content: Any, text: bool) -> None:
    """Print the figure in words; on a terminal or with `text` also its rows, or the charts that its kind has."""
    from fedbench.reports.figures import kinds

    out = context.out()
    if out.is_terminal or text:
        charts = [*kind.charts(spec, content)]
        for chart in charts:
            out.print(chart)
        if not charts:
            _print_rows(spec, list(kinds.rows(spec, content)))
    for line in kinds.words(spec, content):
        out.print(line, soft_wrap=True)
    for verdict in content.claims:
        detail = f" ({verdict.detail})" if verdict.detail else ""
        out.print(f"{verdict.claim.text}: {verdict.state}{detail}", soft_wrap=True)


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
    context.columns(out, shown, right, spare=("ids", "runs", "error", "seeds"))
    if len(rows) > MOST_ROWS:
        out.print(f"and {len(rows) - MOST_ROWS:,} more rows: --csv prints all", style="dim")


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


# -- site ------------------------------------------------------------------------------------------------------
# `fedbench site`: the benchmark, or a notebook of some runs, as web pages.


@app.command("site")
def site(
    folder: Annotated[Path, context.argument("The folder to write to, as index.html and others.", "OUT")],
    filter: context.Filters = None,
    mine: context.Mine = False,
) -> None:
    """Write the benchmark as web pages: papers beside their reported numbers, methods, the arena, your own runs.

    With papers (flux, ./mine): of these. With filters: a notebook of these runs alone. Pages need no network and no
    server.
    """
    from rich.progress import track

    from fedbench.files import write_whole
    from fedbench.planner.runs import select
    from fedbench.reports.site import benchmark
    from fedbench.reports.site.page import shared
    from fedbench.reports.site.pages import pages

    named = {word: resources.named(word) for word in filter or ()}
    papers = [name for name in named.values() if resources.paper(name)]
    filter = [word for word, name in named.items() if name not in papers]
    if papers and filter:
        raise FedbenchError(f"pages are of papers ({papers[0]}) or of runs ({filter[0]})", "leave one of the two out")
    frame = context.frame(mine)
    try:
        runs = [] if papers else select(frame, filter, context.roots())
    except FedbenchError:
        if filter:
            raise
        runs = []  # the store has no run yet
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedbenchError(f"cannot make the folder {folder} ({error.strerror})", "choose another OUT") from error
    size, console = 0, context.err()
    files = {name: text.encode() for name, text in shared().items()}.items()
    notebook = ((name, text.encode()) for name, text in pages(runs, _origin, *(() if filter else benchmark.NOTEBOOK)))
    of_papers = () if filter else benchmark.pages(frame, context.roots(), len(runs), papers)
    every = itertools.chain(files, of_papers, notebook if runs else ())
    for name, content in track(every, "pages", total=None, console=console, transient=True):
        content = _without_places(content, context.store().home)
        write_whole(folder / name, content)
        size += len(content)
    console.print(
        f"{counted(len(runs), 'run')}, {size / 1e6:.1f} MB: open {folder / 'index.html'}",
        soft_wrap=True, markup=False,
    )  # fmt: skip


def _without_places(content: bytes, home: Path) -> bytes:
    """A page without the paths of the store and of the user's home, which errors name: pages are made to be shared."""
    for place, word in ((home, b"STORE"), (Path(os.path.expanduser("~")), b"~")):
        text = escape(str(place)).encode(errors="replace")
        content = re.sub(re.escape(text) + rb"(?=[/\s:;,)&<]|$)", word, content) if len(text) > 1 else content
    return content


def _origin(run: Run) -> Origin:
    from fedbench.cli.origin import chain, details
    from fedbench.reports.layout.shipped import of_runs

    origin = []
    for n, (what, one) in enumerate(chain(run.store, run.artifact)):
        if run.shipped:
            origin.append((what, [] if n else list(of_runs([run.shipped]))))
        else:
            origin.append((what, details(one, to_share=True)) if one else (f"{what} (not in this store)", []))
    return origin
