"""`fedbench compare`: any runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbench.cli import context, printing


def compare(
    filter: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which runs: ids, or KEY=VALUE,VALUE (also KEY!=VALUE) with * for any text, such as "
            "method=fedavg,ditto dataset=mnist lr=0.1; table=feddrm/1, paper= and protocol= (those that its tables "
            "read) and shipped=yes name shipped runs, too; default: all of one's own.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Print this metric instead of the usual numbers (repeatable; fedbench metrics)."),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="Rows by a number, the best first (average_accuracy), or by a key (lr).")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Test every two rows on the same data, over common seeds or clients.")
    ] = False,
    over: Annotated[
        str | None, typer.Option(help="With --test: seeds or clients (default: seeds where three are common).")
    ] = None,
    view: Annotated[
        str, typer.Option("--test-augmentation", help="crop (as in training, where a run has it) or plain (none).")
    ] = "plain",
    format: Annotated[
        str | None, typer.Option("--format", "-f", help="console, latex, markdown, csv, html or json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; its suffix tells the format.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
) -> None:
    """Set runs side by side: in what they differ, and mean ± standard deviation over seeds. Never trains."""
    from fedbench.reports.compare.layout import side_by_side
    from fedbench.reports.runs import select

    chosen, store = printing.form(format, output, as_json), context.store()
    runs = select(store, filter or [], None if mine else context.shelf(), context.roots())
    grids = side_by_side(runs, metric or [], sort=sort, test=test, over=over, view=view)
    printing.put(grids, chosen, output)
