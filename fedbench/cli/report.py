"""`fedbench report`: print tables, or write them to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbench.cli import complete, context, printing

#: How much is said below a table.
NOTES = ("brief", "full")


@context.uncollected()
def report(
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            help="Number (1), name (feddrm/1) or TOML file; default: the headline tables.",
            autocompletion=complete.tables,
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", "-f", help="console, latex, markdown, csv, html or json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; its suffix tells the format.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Set the paper's numbers below ours.")] = False,
    notes: Annotated[
        str, typer.Option(help="Below the table: brief, or full (deviations, remarks, claims).")
    ] = "brief",
    only_done: Annotated[
        bool, typer.Option("--only-done", help="Leave out rows and columns that have no number.")
    ] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
    extra: Annotated[
        bool, typer.Option("--extra", help="Add rows of your other runs in the table's settings (train --table -m).")
    ] = False,
    budget: Annotated[str | None, typer.Option(help="Of the runs: small (default), paper, ...")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the runs: fp32, tf32, bf16 (the budget's).")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Show the table's columns on this data set instead.", autocompletion=complete.datasets),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP/LABEL", help="Only this column, * is any text (repeatable)."),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option("--test-augmentation", help="crop (as in training) or plain (none); default: the table's."),
    ] = None,
    client_mean: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN", help="Over clients: weighted (by test images) or unweighted; default: the table's."
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Of the runs (repeatable); default: the table's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="LaTeX: a whole document, not a float to \\input; names its packages.")
    ] = False,
) -> None:
    """Print tables of measured numbers. Never trains; runs that lack metrics are evaluated."""
    from fedbench.errors import unknown
    from fedbench.reports.layout.tables import laid_out

    chosen = printing.form(format, output, as_json)
    if notes not in NOTES:
        raise unknown("notes", notes, NOTES)
    grids = laid_out(
        table or (), context.store(), context.roots(), budget=budget, precision=precision, dataset=dataset,
        columns=column or (), view=view, client_mean=client_mean, seeds=seed or (), compare=compare,
        only_done=only_done, mine=mine, extra=extra,
    )  # fmt: skip
    printing.put(grids, chosen, output, full=notes == "full", standalone=standalone)
