"""Printing of results: grids in a format, to the terminal or to a file; lists in columns; JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fedbench.cli.context import err, out
from fedbench.errors import FedbenchError
from fedbench.words import counted, plain

if TYPE_CHECKING:
    from rich.table import Table

    from fedbench.reports.layout.grid import Grid
    from fedbench.reports.long import Taken
    from fedbench.reports.render.style import Style


def print_json(value: Any) -> None:
    """Print a value as one JSON document without colour and wrapping."""
    print(json.dumps(value, indent=1, default=str))


#: The format of all values of the runs, beside those of the printed table.
LONG = "long"


def form(format: str | None, output: Path | None, as_json: bool) -> str:
    """The format that --format, --output and --json select. Raises FedbenchError if they contradict."""
    from fedbench.reports import render

    if not as_json and (format == LONG or (format is None and output is not None and output.suffix == ".parquet")):
        return LONG

    if as_json and format not in (None, "json"):
        raise FedbenchError(f"--json or --format {format}?", "give one of them")
    return render.choose("json" if as_json else format, output)


def put(
    grids: Sequence[Grid],
    format: str,
    output: Path | None,
    notes: str = "brief",
    style: Style | None = None,
    folder: bool = False,
    name: str = "",
) -> None:
    """Print the grids, or write them to the file `output`, or each to a file of its own in this `folder`; `notes` and
    `style` are those of `render.render`. `name`: what compared runs are named after where no file names them."""
    from fedbench.files import write_whole
    from fedbench.reports import render

    if format == "console" and output is None:
        from fedbench.reports.render.console import show

        show(grids, out(), notes, fit=True)
        return
    if format == "csv":  # CSV has no place for problems
        for problem in dict.fromkeys(problem for grid in grids for problem in grid.problems):
            err().print(problem, soft_wrap=True, markup=False)
    style = style or render.PLAIN
    if format in ("latex", "macros") and not (style.appendix or style.all_cells):
        grids = _with_numbers(grids)
    if format in ("latex", "macros") and not folder:
        grids = _named(grids, format, output.stem if output else "", name)
    if output is not None and folder:
        output.mkdir(parents=True, exist_ok=True)
    for part in [[grid] for grid in grids] if folder else [grids]:
        text = render.render(part, format, notes, style)
        for line in dict.fromkeys(line for line in text.splitlines() if line.startswith(_SAID)):
            err().print(line.removeprefix("% "), soft_wrap=True, markup=False)
        if output is None:
            typer.echo(text, nl=False)
            continue
        path = output / render.name_of(part[0], format, style) if folder else output
        write_whole(path, text.encode())
        err().print(f"{', '.join(g.id for g in part)} written to {path}", soft_wrap=True)


#: How comments of LaTeX begin that are said on the terminal, too: characters that it lacks, a table that is too wide.
_SAID = ("% Not in LaTeX's", "% To fit the width")


def _named(grids: Sequence[Grid], format: str, file: str, name: str) -> Sequence[Grid]:
    """The grids with the names that LaTeX has of them: a file's label is that of the file, so that no two tables of a
    paper share one, and runs have no other name. Macros of tables keep the table's."""
    base = file or name

    def called(at: int, grid: Grid) -> str:
        if not base or not (grid.keys or (file and format == "latex")):
            return ""
        return base if at == 0 and (grid.keys or len(grids) == 1) else f"{base}-{grid.id}"

    return [dataclasses.replace(grid, name=called(at, grid)) for at, grid in enumerate(grids)]


def _with_numbers(grids: Sequence[Grid]) -> Sequence[Grid]:
    """The grids with a number, and a line about the others; all if none has one."""
    empty = [grid.id for grid in grids if not grid.numbers]
    if not empty or len(empty) == len(grids):
        return grids
    err().print(f"without a number yet, so left out (--all-cells): {', '.join(empty)}", soft_wrap=True, markup=False)
    return [grid for grid in grids if grid.numbers]


def put_long(taken: Sequence[Taken], output: Path | None) -> None:
    """Print the values of runs in long form, or write them to the file `output`."""
    from fedbench.files import write_whole
    from fedbench.reports import long

    values = long.table(taken)
    content = long.encoded(values, output)
    if output is None:
        typer.echo(content.decode(), nl=False)
    else:
        write_whole(output, content)
        of = counted(len({one.run.id for one in taken}), "run")
        err().print(f"{values.num_rows:,} values of {of} written to {output}", soft_wrap=True, markup=False)


def table(*headings: str, right: Collection[str] = (), whole: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table without borders; columns in `right` are right-aligned, columns in `whole` are never wrapped."""
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        grid.add_column(heading, justify="right" if heading in right else "left", no_wrap=heading in whole)
    return grid


#: Text between two columns.
GAP = "  "


def columns(
    console: Console, rows: Sequence[Mapping[str, str]], right: Collection[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print rows, which map headings to texts, under bold headings; the columns in `right` are right-aligned.

    Columns without any text are left out. If the terminal is too narrow, columns in `spare` are left out in their
    order until the rest fits.
    """
    cells = {heading: [heading, *(plain(row[heading]) for row in rows)] for heading in rows[0]}
    cells = {heading: texts for heading, texts in cells.items() if any(texts[1:])}
    widths = {heading: max(map(cell_len, texts)) for heading, texts in cells.items()}
    for heading in spare if console.is_terminal else ():
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= console.width:
            break
        widths.pop(heading, None)
    padded = []
    for heading, width in widths.items():
        room = [" " * (width - cell_len(text)) for text in cells[heading]]
        pairs = zip(room, cells[heading], strict=True)
        padded.append([space + text if heading in right else text + space for space, text in pairs])
    head, *lines = (GAP.join(line).rstrip() for line in zip(*padded, strict=True))
    console.print(Text(head, "bold"), soft_wrap=True)
    console.print(Text("\n".join(lines)), soft_wrap=True)
