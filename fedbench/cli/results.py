"""`fedbench results`: list, export, import and verify result packs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbench.cli import context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.words import counted, duration, path_of, size

app = App(name="results", no_args_is_help=True, help="Result packs: files of finished runs, to share and verify.")

Filters = Annotated[
    list[str] | None,
    options.argument(
        "Filters of runs: ids, a table (feddrm/1), KEY=VALUE,VALUE or KEY!=VALUE, * is any text.", "FILTER"
    ),
]


@app.callback()
def _about() -> None:
    """Result packs: finished runs that travel without their predictions, and fill tables where the store has none."""


@app.command("list")
def list_(json: options.Json = False) -> None:
    """List the packs, fedbench's first, with who made their runs, when, and on which machine."""
    from fedbench.results.packs import imported, summary

    packs_at_hand = context.frame().packs
    theirs = imported(context.store())
    packs = [summary(pack) for pack in sorted(packs_at_hand.checked(), key=lambda pack: pack.path in theirs)]
    if json:
        printing.print_json(packs)
        return
    if not packs:
        context.out().print("there are no result packs; 'fedbench results import PACK' adds one")
        return
    rows = [
        {
            "pack": one["name"],
            "runs": str(one["runs"]),
            "data sets": ", ".join(one["datasets"]),
            "by": ", ".join(one["by"]),
            "made": " to ".join(dict.fromkeys((one["first"][:10], one["last"][:10]))),
            "on": ", ".join(one["machines"]),
            "trained": duration(one["seconds"]),
            "size": size(one["bytes"]),
        }
        for one in packs
    ]
    printing.columns(context.out(), rows, right=("runs", "trained", "size"), spare=("on", "size", "trained"))
    runs, bytes = len(packs_at_hand.places), sum(one["bytes"] for one in packs)
    context.out().print(
        f"{counted(runs, 'run')} in {size(bytes)}: tables use them where the store has no run.", style="dim"
    )


@app.command("export")
def export(
    filters: Filters = None,
    output: Annotated[Path, "Pack (.parquet); runs are added to an existing pack.", "-o"] = Path("results.parquet"),
    table: Annotated[list[str] | None, "Only the runs of this table or paper (feddrm; repeatable).", "-t"] = None,
    by: Annotated[str, "Name of who made the runs, for notes below tables."] = "",
    other_code: Annotated[bool, "Also runs made by other code than today's."] = False,
    json: options.Json = False,
) -> None:
    """Put finished runs of the store into a pack: their specs, metrics, origin, and the checksum of their
    predictions. Runs that diverged are included, because tuned tables need them; other failed runs are not. The
    same runs give the same bytes. Runs of your own code are refused, unless the pack is in the folder of a
    paper that has the files (PAPER/results/NAME.parquet). Runs made by other code than today's need
    --other-code.
    """
    from rich.progress import track

    from fedbench.planner.cells import of_tables
    from fedbench.planner.runs import select, spelt_out
    from fedbench.results.frame import Frame
    from fedbench.results.importing import refuse_faulty
    from fedbench.results.making import diverged, refuse_other_code, row_of
    from fedbench.results.own_code import beside, parts
    from fedbench.results.pack import add
    from fedbench.words import one_line

    output = _pack_path(output)
    store, console, by = context.store(), context.err(), one_line(by, "--by")
    words = spelt_out(filters or ())
    table = [*(table or ()), *(word.partition("=")[2] for word in words if word.startswith(("table=", "paper=")))]
    runs = select(Frame(store), words, context.roots())
    ids = of_tables(table, context.frame(), context.roots()) if table else None
    if ids is not None:
        runs = [run for run in runs if run.id in ids]
    if not runs:
        raise FedbenchError(f"the store has no such run that {' or '.join(table or ())} reads", "fedbench list run")
    if not other_code:
        refuse_other_code([run.artifact for run in runs])
    steps, code = track(runs, "runs", console=console, transient=True), beside(output)
    rows = [row_of(run.artifact, store, by, code) for run in steps]
    refuse_faulty(rows)
    failures = diverged(store, ids, code) if table or not filters else []
    total, bytes = add(output, rows, failures), output.stat().st_size
    if json:
        printing.print_json(
            {"pack": str(output), "exported": len(rows), "diverged": len(failures), "runs": total, "bytes": bytes}
        )
        return
    failed = f", and {counted(len(failures), 'run')} that diverged" if failures else ""
    said = f"{counted(len(rows), 'run')}{_of(total, len(rows))}{failed} in {output}, {size(bytes)}"
    console.print(said, soft_wrap=True, markup=False)
    if own := sum(any(True for _ in parts(run.spec)) for run in runs):
        folders = " and ".join(str(folder) for folder in code.folders)
        console.print(f"{own:,} of them need code of yours: share {folders}.", soft_wrap=True, markup=False)
    if not by:
        console.print("Without --by, 'fedbench results import' asks for the name of who made the runs.", soft_wrap=True)


def _pack_path(path: Path) -> Path:
    """The path of a pack to write. Raises FedbenchError if it does not end in .parquet."""
    path = path_of(str(path), "--output")
    if path.suffix != ".parquet":
        raise FedbenchError(
            f"the name of a result pack ends in .parquet, and {path} does not end so", "--output NAME.parquet"
        )
    return path


def _of(total: int, new: int) -> str:
    return f" ({total:,} in all)" if total > new else ""


@app.command("import")
def import_(
    source: Annotated[
        str,
        options.argument("A pack: a file, its address, or a folder of packs.", "PACK"),
    ],
    by: Annotated[str, "Name of who made the runs (default: as in the pack)."] = "",
    prefer: Annotated[
        str | None, "If you or another pack have other numbers for a run, use: new (these) or old."
    ] = None,
) -> None:
    """Import a pack of somebody else: tables use its runs if your store does not have them, and name who made
    them. A pack is a file, an address https://HOST/NAME.parquet, or a folder of packs. If a pack of the same
    name was imported before, its other runs stay.
    """
    from fedbench.cli.data import bars
    from fedbench.results.importing import brought, take_in
    from fedbench.words import one_line

    store, by, refused = context.store(), one_line(by, "--by"), []
    with bars() as progress, brought(source, progress) as packs:
        for pack in packs:
            try:
                place, rows, left, total = take_in(pack, store, by, prefer)
            except FedbenchError as error:
                if len(packs) == 1:
                    raise
                refused.append(error)
                continue
            makers = ", ".join(dict.fromkeys(row.by for row in rows))
            said = f"{counted(len(rows), 'run')} by {makers}{_of(total, len(rows))}, in {place}"
            said = said if rows else f"nothing taken in of {pack.name}"
            said += f"; {counted(left, 'run')} left out that were there with other numbers" if left else ""
            context.err().print(said, soft_wrap=True, markup=False)
    if refused:
        others = "; ".join([*map(str, refused[:3]), *(["..."] if refused[3:] else [])])
        raise FedbenchError(f"{len(refused)} of {counted(len(packs), 'pack')} not imported: {others}")


@app.command("merge")
def merge(
    packs: Annotated[list[Path], options.argument("Packs, for example of several machines.", "PACK")],
    output: Annotated[Path, "Pack (.parquet); runs are added to an existing pack.", "-o"],
    prefer: Annotated[
        str | None, "If two packs have other numbers for a run, use: new (the later pack) or old."
    ] = None,
) -> None:
    """Put the runs of several packs into one pack. Each pack is checked as by import."""
    from fedbench.results.importing import merge as merged

    output = _pack_path(output)
    added, skipped, total = merged([path_of(str(pack), "PACK") for pack in packs], output, prefer)
    said = f"{counted(added, 'run')}{_of(total, added)} in {output}, {size(output.stat().st_size)}"
    said += f"; {counted(skipped, 'run')} left out that an earlier pack has with other numbers" if skipped else ""
    context.err().print(said, soft_wrap=True, markup=False)


@app.command("page")
def page(
    paper: Annotated[str, options.argument("Paper, such as feddrm, or arena.", "PAPER")],
    output: Annotated[Path | None, "Write to this file: tables/PAPER/measured.md.", "-o"] = None,
) -> None:
    """Print a paper's page measured.md: measured numbers, claims and comments."""
    from fedbench.files import write_whole
    from fedbench.reports.measured_page import page as made

    text = made(paper)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text.encode())
        context.err().print(f"{paper} written to {output}")


@app.command("verify")
def verify(
    filters: Filters = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of runs, drawn at random (default: 3).")] = 3,
    seed: Annotated[int, "Seed of the draw."] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Only runs that took at most this many minutes where they were made.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference of accuracies (points) if bits may differ.")
    ] = 1.0,
    again: Annotated[bool, "Also train runs that the store has, or that were verified before."] = False,
    json: options.Json = False,
) -> None:
    """Train some shipped runs again and compare: predictions must have the same bits on the same kind of
    machine, otherwise accuracies must be within a tolerance. If the store has a run, it is compared without
    training. New runs are stored in the folder verified/, which no table reads and which may be deleted. The
    exit code is 1 if a run differs.
    """
    from fedbench.cli.verify import Verified, show, verified
    from fedbench.engine.verify import sample as drawn
    from fedbench.planner.runs import shipped

    frame, store = context.frame(), context.store()
    runs = [run.shipped for run in shipped(frame, filters or [], context.roots()) if run.shipped]
    if runs and minutes is not None:
        least = duration(min(run.origin.seconds for run in runs))
        runs = [run for run in runs if run.origin.seconds <= 60 * minutes]
        if not runs:
            raise FedbenchError(f"no shipped run took {minutes:g} minutes or less", f"the shortest one took {least}")
    chosen = drawn(runs, sample, seed, store, context.roots())
    took = duration(sum(run.origin.seconds for run in chosen))
    context.err().print(f"{len(chosen):,} of {len(runs):,} shipped runs, {took} of training where they were made")
    results: list[Verified] = []
    try:
        results.extend(verified(chosen, frame.packs, tolerance / 100, again))
    finally:  # also print the results found before an interrupt
        if results:
            show(results, json)
    if not all(one.checked.verdict.good for one in results):
        sys.exit(1)
