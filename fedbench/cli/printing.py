"""Grids to where the user wants them: the terminal, standard output in a format, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from fedbench.reports.layout.grid import Grid


def form(format: str | None, output: Path | None, as_json: bool) -> str:
    """The format that --format, --output and --json name together. Raises FedbenchError if they contradict."""
    from fedbench.reports import render

    if as_json and format not in (None, "json"):
        raise FedbenchError(f"--json or --format {format}?", "give one of them")
    return render.choose("json" if as_json else format, output)


def put(
    grids: Sequence[Grid], format: str, output: Path | None, *, full: bool = False, standalone: bool = False
) -> None:
    """Print the grids, or write them to the file `output`; `full` and `standalone` as `render.render` has them."""
    from fedbench.files import write_whole
    from fedbench.reports import render

    if format == "console" and output is None:
        from fedbench.reports.render.console import show

        show(grids, context.out(), full, fit=True)
        return
    if format == "csv":  # has no place for them
        for problem in dict.fromkeys(problem for grid in grids for problem in grid.problems):
            context.err().print(problem, soft_wrap=True, markup=False)
    text = render.render(grids, format, full=full, standalone=standalone)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text.encode())
        context.err().print(f"{', '.join(g.id for g in grids)} written to {output}", soft_wrap=True)
