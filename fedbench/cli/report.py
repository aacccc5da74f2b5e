"""`fedbench report`, `claims` and `compare`: print results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedbench.cli import completion, context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.reports.claims import Claims, Line

app = App()


@app.command("report")
@context.uncollected()
def report(
    names: Annotated[
        list[str] | None,
        options.argument(
            "Tables: number (1), name (feddrm/1) or TOML file; default: the headline tables.",
            "[TABLE]...",
            completion.tables,
        ),
    ] = None,
    table: Annotated[list[str] | None, "The same as an option (repeatable).", "-t"] = None,
    format: options.Format = None,
    output: Annotated[
        str | None, "Write to this file; its suffix selects the format. DIR/: one file per table (LaTeX, or -f).", "-o"
    ] = None,
    compare: Annotated[bool, "Print the paper's numbers below ours."] = False,
    notes: options.Notes = "brief",
    only_done: Annotated[bool, "Leave out rows and columns without numbers (LaTeX: always)."] = False,
    all_cells: Annotated[bool, "LaTeX: also rows and columns without numbers."] = False,
    no_shipped: options.NoShipped = False,
    no_yours: Annotated[bool, "Leave out the additional rows of your own runs."] = False,
    budget: options.RunBudget = None,
    precision: options.RunPrecision = None,
    dataset: options.OnDataset = None,
    column: options.Columns = None,
    view: Annotated[
        str | None, "Test images: crop (as in training) or plain; default: the table's.", "--test-augmentation"
    ] = None,
    seed: Annotated[list[int] | None, "Seed of the runs (repeatable); default: the table's."] = None,
    as_json: options.Json = False,
    width: options.Width = "",
    spread: options.Spread = "",
    cite: options.Cite = False,
    standalone: Annotated[bool, "LaTeX: a complete document instead of a float to \\input."] = False,
    appendix: Annotated[
        bool,
        "LaTeX: an appendix about the tables, to \\input: settings, hyper-parameters, seeds, "
        "compute, versions, licences, deviations, references.",
    ] = False,
) -> None:
    """Print tables of measured numbers. Nothing is trained."""
    from fedbench.reports.layout.tables import grids_of
    from fedbench.reports.long import of_grids
    from fedbench.reports.render.style import Style

    style = Style(standalone, appendix, all_cells, width, cite, spread)
    path = path_of(output, "--output") if output else None
    folder = path is not None and (str(output).endswith("/") or path.is_dir())
    usual = "latex" if (folder or (appendix and path is None)) and not as_json else None
    chosen = printing.form(format or usual, path, as_json)
    grids = grids_of(
        [*(names or ()), *(table or ())],
        context.store(),
        context.roots(),
        budget=budget,
        precision=precision,
        dataset=dataset,
        columns=column or (),
        view=view,
        seeds=seed or (),
        compare=compare,
        only_done=only_done,
        shipped=not no_shipped,
        yours=not no_yours,
        appendix=appendix,
    )
    if chosen == printing.LONG:
        printing.put_long(of_grids(grids, context.frame(shipped=not no_shipped)), path)
        return
    printing.put(grids, chosen, path, notes, style, folder)


@app.command("claims")
@context.uncollected()
def claims(
    names: Annotated[
        list[str] | None,
        options.argument("Papers (feddrm) or tables (feddrm/1, 1); default: all.", completion=completion.tables),
    ] = None,
    budget: Annotated[str | None, "Budget of the runs (default: the one with most numbers)."] = None,
    no_shipped: options.NoShipped = False,
    output: Annotated[Path | None, "Write Markdown to this file.", "-o"] = None,
    as_json: options.Json = False,
) -> None:
    """List the claims of the papers and whether they hold.

    A claim holds, fails, is undecided (within two standard errors over seeds), holds or fails so far (numbers or
    their standard error are missing), or is not measured. For a table, the numbers that decide are printed, too.
    """
    from fedbench.files import write_whole
    from fedbench.planner import table as specs
    from fedbench.reports.claims import at_a_glance, lines, markdown, summary
    from fedbench.reports.claims import claims as every

    if output is not None and output.suffix != ".md":
        raise FedbenchError(f"claims are written to a file .md, and {output} does not end so", "-o NAME.md")
    if output is not None and as_json:
        raise FedbenchError("--output does not go with --json", "leave one of the two out")
    tables = list(every(names or (), context.frame(shipped=not no_shipped), context.roots(), budget))
    if as_json:
        printing.print_json([_document(one) for one in tables])
        return
    if output is not None:
        write_whole(output, ("\n".join(markdown(tables)) + "\n").encode())
        context.err().print(f"the claims of {len(tables)} tables written to {output}", soft_wrap=True, markup=False)
        return
    out = context.out()
    for line in summary(tables) if names else at_a_glance(tables):
        out.print(line, soft_wrap=True, markup=False)
    if not any(one.judged for one in tables):
        context.err().print("no claims are declared of these tables")
    elif any("/" in name or name in specs.headline() for name in names or ()):
        _details(tables)
    else:
        _one_line_each(lines(tables), folded=not names)


def _details(tables: Sequence[Claims]) -> None:
    """Print each claim with the numbers that decide, below its table."""
    from fedbench.reports.claims import LOOKS, title, words

    out = context.out()
    for one in (one for one in tables if one.judged):
        out.print(f"\n{title(one)}", style="bold", soft_wrap=True, markup=False, highlight=False)
        for stand in one.judged:
            sign, style = LOOKS[stand.verdict.state]
            out.print(f"  {sign} {words(stand)}", style=style, soft_wrap=True, markup=False, highlight=False)


def _one_line_each(claims: Sequence[Line], folded: bool) -> None:
    """Print a line for each claim; `folded`: for those that are measured, and the number of the others."""
    from rich.text import Text

    from fedbench.reports.claims import HEADS, LOOKS, OPEN, cells_of

    out, table = context.out(), printing.table(*HEADS, right=("margin",), whole=HEADS)
    rows = [cells_of(line) for line in claims if line.state != OPEN or not folded]
    others = sum(
        2 + max(map(len, texts)) for texts in zip(*([*row[:1], *row[2:]] for row in (HEADS, *rows)), strict=True)
    )
    for verdict, claim, *rest in rows:
        text = Text(claim)
        text.truncate(max(20, out.width - others), overflow="ellipsis")
        table.add_row(Text(verdict, LOOKS[verdict[2:]][1]), text, *map(Text, rest))
    out.print()
    out.print(table)
    unmeasured = sum(line.state == OPEN for line in claims)
    more = f"{unmeasured} more are not measured: fedbench claims PAPER lists them. " if folded and unmeasured else ""
    out.print(f"{more}fedbench claims PAPER/NUMBER: the numbers that decide.", style="dim", soft_wrap=True)


def _document(one: Claims) -> dict[str, Any]:
    return {
        "table": one.table.id,
        "title": one.table.title,
        "budget": one.budget or None,
        "shipped": one.shipped,
        "numbers": one.tally.document,
        "claims": [
            {
                "text": stand.verdict.claim.text,
                "kind": stand.verdict.claim.kind,
                "state": stand.verdict.state,
                "held": stand.verdict.held,
                "made": stand.verdict.made,
                "asked": stand.verdict.total,
                "undecided": stand.verdict.unsure,
                "detail": stand.verdict.detail,
                "margin": stand.verdict.decides and stand.verdict.decides.margin,
                "noise": stand.verdict.decides and stand.verdict.decides.noise,
                "seeds": stand.verdict.decides and stand.verdict.decides.seeds,
                "numbers": dict(stand.numbers),
                "reported": stand.reported.state if stand.reported.made else None,
            }
            for stand in one.judged
        ],
    }


@app.command("compare")
def compare(
    filter: options.Filters = None,
    metric: Annotated[
        list[str] | None, "Print this metric instead of the default numbers (repeatable; fedbench metrics)."
    ] = None,
    sort: Annotated[str | None, "Sort rows by a metric, the best first (average_accuracy), or by a key (lr)."] = None,
    test: Annotated[bool, "Test the difference of every two rows on the same data, over seeds or clients."] = False,
    over: Annotated[
        str | None, "With --test: pairs are seeds or clients (default: seeds, if three are common)."
    ] = None,
    view: Annotated[
        str, "Test images: crop (as in training, if a run has it) or plain.", "--test-augmentation"
    ] = "plain",
    round: options.Rounds = "last",
    format: options.Format = None,
    output: options.Output = None,
    as_json: options.Json = False,
    no_shipped: options.NoShipped = False,
    notes: options.Notes = "brief",
    width: options.Width = "",
    spread: options.Spread = "",
    cite: options.Cite = False,
) -> None:
    """Compare runs: in what they differ, and mean ± standard deviation over seeds. Nothing is trained.

    Rows have the order of the filters (method=fedavg,ditto), or else of the table, of 'fedbench methods' and of values;
    --sort changes it.
    """
    from fedbench.planner.runs import named_values, select, spelt_out
    from fedbench.reports.compare.layout import side_by_side
    from fedbench.reports.long import Taken
    from fedbench.reports.render.style import Style

    chosen = printing.form(format, output, as_json)
    runs = select(context.frame(shipped=not no_shipped), filter or [], context.roots())
    if chosen == printing.LONG:
        if sort or test or over or round != "last":
            raise FedbenchError(
                "the long form has all rounds and seeds", "leave out --sort, --test, --over and --round"
            )
        printing.put_long([Taken(run, metric or ()) for run in runs], output)
        return
    named = named_values(spelt_out(filter or []))
    grids = side_by_side(runs, metric or [], sort=sort, test=test, over=over, view=view, round=round, named=named)
    style = Style(width=width, spread=spread, cite=cite)
    printing.put(grids, chosen, output, notes, style, name=" ".join(filter or []))
