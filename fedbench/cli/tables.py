"""`fedbench tables`: the tables that there are, how full they are, and the states of one table's cells."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from fedbench import resources
from fedbench.cli import completion, context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import check_known
from fedbench.protocol import budgets_of
from fedbench.words import counted

if TYPE_CHECKING:
    from rich.text import Text

    from fedbench.planner.cells import Cells
    from fedbench.planner.table.spec import Table
    from fedbench.results.frame import Frame

app = App()

#: Length of a bar, in characters.
BAR = 10
#: Marks shipped cells, as in reports; and the explanation of the mark.
SHIPPED = "°"
MARKED = f"{SHIPPED} shipped; --no-shipped leaves them out"
#: Colours of the states of cells; other states are dim.
COLOURS = {
    "done": "green",
    "some seeds": "cyan",
    "stale": "yellow",
    "failed": "red",
    "damaged": "red",
    "running": "cyan",
}


@app.command("tables")
def tables(
    name: Annotated[
        str | None,
        options.argument("A paper (feddrm) or a table (feddrm/1).", completion=completion.tables),
    ] = None,
    budget: options.RunBudget = None,
    precision: options.RunPrecision = None,
    no_shipped: options.NoShipped = False,
    as_json: Annotated[bool, "Print one JSON document; several tables at all budgets.", "--json"] = False,
) -> None:
    """List the tables with numbers, or all tables of a paper, and how many cells are filled; or the cells of
    one table."""
    from fedbench.planner import table as specs

    frame = context.frame(shipped=not no_shipped)
    name = name and resources.named(name)
    families = [family for family in specs.families() if name is None or family[0].startswith(f"{name}/")]
    if families:
        _list(families, frame, budget, precision, as_json, folded=name is None)
    else:
        _one(str(name), frame, budget, precision, as_json)


def _list(
    families: Sequence[Sequence[str]],
    frame: Frame,
    budget: str | None,
    precision: str | None,
    as_json: bool,
    folded: bool,
) -> None:
    from fedbench.planner import table as specs
    from fedbench.planner.counts import count, fullest

    numbers = {table: number for number, (_, table) in specs.headline().items()}
    names = chain(*families)
    known = {one.table: one for one in count(names, frame, context.roots(), precision=precision, exact=as_json)}
    budgets = {b: None for one in known.values() for b in one.budgets if b}
    check_known("budget", budget, budgets)
    if as_json:
        listed = []
        for one in known.values():
            counts = {b: of for b, of in one.budgets.items() if budget in (None, b) or not b}
            listed.append(
                {
                    "table": one.table,
                    "number": numbers.get(one.table),
                    "title": one.title,
                    "precision": {b: of.precision or None for b, of in counts.items()},
                    "states": {b: dict(of.states) for b, of in counts.items()},
                    "shipped": {b: of.shipped for b, of in counts.items()},
                }
            )
        printing.print_json(listed)
        return
    entries: list[_Entry] = []
    bare: dict[str, list[str]] = {}  # paper -> its tables of which nothing is there, folded to a line
    for family in families:
        own = [known[name] for name in family]
        groups = [own] if folded else [[one] for one in own]
        for group in groups:
            at = "" if "" in group[0].budgets else budget or fullest(group)
            filled = [(one, one.budgets[at]) for one in group if at in one.budgets]
            those = [_Entry(one.table, of.states, of.shipped, one.title, at) for one, of in filled]
            if folded and not any(entry.notable for entry in those):
                for one in group:
                    paper, _, number = one.table.partition("/")
                    bare.setdefault(paper, []).append(number)
                continue
            if len(those) > 1:  # one line for all tables of a family
                counts = sum((one.counts for one in those), Counter[str]())
                title = f"{len(those)} tables, such as {those[0].rest}"
                those = [_Entry(those[0].name, counts, sum(one.shipped for one in those), title, at)]
            entries += those
    out = context.out()
    for line in _lines(sorted(entries, key=lambda entry: folded and not entry.done)):
        line.truncate(out.width, overflow="ellipsis")
        out.print(line, soft_wrap=True)
    for paper, numbers_of_paper in bare.items():
        out.print(_folded(paper, numbers_of_paper, out.width), style="dim", soft_wrap=True)
    of = f"budget {budget}" if budget else "each table at its fullest budget"
    of += f" in {precision}" if precision else ""
    marked = f" ({MARKED})" if any(entry.shipped for entry in entries) else ""
    # Runs of the store at other budgets fill none of these cells.
    own = [r for those in frame.records.values() for r in those if r.complete] if budget else []
    runs = Counter(budgets_of(record.spec.setting) for record in own)
    words = ", ".join(f"{n} with --budget {name}" for name, n in sorted(runs.items()) if name != budget)
    others = f" Other runs: {words}." if words else ""
    out.print(f"Done of all cells{marked}, {of}.{others}", style="dim", soft_wrap=True)
    if folded:
        headline = ", ".join(f"{number} is {name}" for name, number in numbers.items())
        out.print(f"Headline tables: {headline}.", style="dim", soft_wrap=True)
        out.print("More: fedbench tables PAPER (each of its tables) or PAPER/NUMBER (the cells of one).", style="dim")


@dataclass(frozen=True)
class _Entry:
    """A line of a list: how full a table, a family of tables, or a row of a table is."""

    name: str
    counts: Counter[str]
    shipped: int  #: number of shipped cells among the done and stale ones
    rest: str  #: further text
    budget: str = ""

    @property
    def every(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        from fedbench.planner.counts import done

        return done(self.counts)

    @property
    def notable(self) -> bool:
        """Whether there is more to say than that its cells are missing."""
        return any(self.counts[state] for state in COLOURS)

    @property
    def filled(self) -> str:
        """The user's and the shipped cells of all cells, such as 1 + 77°/78."""
        own = self.done - self.shipped
        parts = [str(own)] * bool(own or not self.shipped) + [f"{self.shipped}{SHIPPED}"] * bool(self.shipped)
        return f"{' + '.join(parts)}/{self.every}"


def _folded(paper: str, tables: Sequence[str], width: int) -> str:
    """A line of at most this width on a paper's tables without a number."""
    first = f"{paper}: {counted(len(tables), 'table')} without a number: "
    last = f" (fedbench tables {paper})"
    room = max(width - len(first) - len(last), 4)
    return first + textwrap.shorten(", ".join(tables), room, placeholder=" ...", break_on_hyphens=False) + last


def _lines(entries: Sequence[_Entry]) -> Iterator[Text]:
    """A line for each entry, with a bar of the share of its cells that are done."""
    from rich.text import Text

    stub = max((len(entry.name) for entry in entries), default=0)
    width = max((len(entry.filled) for entry in entries), default=0)
    wide = max((len(entry.budget) for entry in entries), default=0)
    for entry in entries:
        notable = [(f"  {entry.counts[s]} {s}", COLOURS[s]) for s in COLOURS if s != "done" and entry.counts[s]]
        rest = f"  {entry.rest}" if entry.rest else ""
        name = (entry.name.ljust(stub), "bold cyan")
        budget = f"  {entry.budget:<{wide}}" if wide else ""
        yield Text.assemble(name, "  ", _bar(entry), f"  {entry.filled:>{width}}", (budget, "dim"), *notable, rest)


def _bar(entry: _Entry) -> Text:
    from rich.text import Text

    full = BAR * entry.done // entry.every if entry.every else 0
    part = 1 if entry.done and not full else 0  # show a thin bar even for a single done cell
    own = full * (entry.done - entry.shipped) // entry.done if entry.done else 0
    return Text.assemble(
        ("█" * own, "green"), ("▓" * (full - own), "green"), ("▏" * part, "green"), ("░" * (BAR - full - part), "dim")
    )


def _one(name: str, frame: Frame, budget: str | None, precision: str | None, as_json: bool) -> None:
    from fedbench.planner import table as specs
    from fedbench.planner.cells import find
    from fedbench.planner.counts import elsewhere, fullest, numbers_of

    table = specs.load(name)
    counts = numbers_of(table, frame, context.roots(), precision)
    budget = budget or fullest([counts])
    cells = find(table, budget, frame, context.roots(), precision=precision)
    if as_json:
        listed = [
            {
                "row": c.row.label,
                "method": c.row.method or None,
                "column": c.column.key,
                "metric": c.column.metric,
                "state": c.state.value,
                "reason": c.reason or None,
                "runs": [r.id for r in c.records if r],
                "shipped": c.shipped,
                "settings": [spec.setting.id for spec in c.specs],
            }
            for c in cells.all
        ]
        document = {
            "table": table.id,
            "title": table.title,
            "budget": cells.budget or None,
            "precision": cells.precision or None,
            "states": _counts(cells),
            "shipped": cells.shipped,
            "no_data": cells.absent,
            "cells": listed,
        }
        printing.print_json(document)
        return
    from fedbench.planner.others import other_texts, others
    from fedbench.reports.layout.notes import command
    from fedbench.results.run import State

    out = context.out()
    out.print(f"{table.title}{f', {cells.scope}' if cells.scope else ''}", style="bold", soft_wrap=True)
    lines = list(_states(table, cells))
    if max(line.cell_len for line in lines) > out.width:
        lines = list(_lines(_rows(table, cells)))
    for line in lines:
        out.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
    out.print(f"\n{_in_words(_counts(cells))}{f' ({cells.shipped}{MARKED})' if cells.shipped else ''}")
    empty = {cell.column.dataset for cell in cells.all if cell.state is State.NO_DATA}
    for dataset, why in ((name, why) for name, why in cells.absent.items() if name in empty):
        out.print(f"no data for {dataset}: {why}", style="dim", soft_wrap=True)
    for cell in cells.all:
        if cell.state is State.FAILED and cell.reason:
            text = f"failed: {cell.row.label}, {cell.column.key}: {cell.reason}"
            out.print(text, style="red", soft_wrap=True)
    if any(cells.counts[state] for state in (State.MISSING, State.PARTIAL, State.FAILED)):
        out.print(f"fill the missing ones: {command(cells)}", soft_wrap=True)
    for line in other_texts(cells, {} if cells.table.counted else others(cells)):
        out.print(line, style="dim", soft_wrap=True)
    for line in elsewhere(table, counts, budget):
        out.print(line, style="dim", soft_wrap=True)


def _rows(table: Table, cells: Cells) -> list[_Entry]:
    """An entry for each row: the number of its cells in each state."""
    entries = []
    for row, line in zip(table.rows, cells.grid, strict=True):
        counts = Counter(cell.state.value for cell in line if not cell.column.of and cell.state.value != "not defined")
        rest = _in_words({state: n for state, n in counts.items() if state not in COLOURS})
        entries.append(_Entry(row.label, counts, sum(cell.shipped for cell in line), rest))
    return entries


def _states(table: Table, cells: Cells) -> Iterator[Text]:
    """A line for each row: the state of every cell in words."""
    from rich.text import Text

    stub = max(len(row.label) for row in table.rows)
    grid = [[cell for cell in line if not cell.column.hidden] for line in cells.grid]
    widths = [
        2 + max(len(c.group), len(c.label), *(len(line[j].state.value) + line[j].shipped for line in grid))
        for j, c in enumerate(table.printed)
    ]
    heads = [[c.group for c in table.printed], [c.label for c in table.printed]]
    for names in heads if any(heads[0]) else heads[1:]:
        yield Text(" " * stub + "".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)), "bold")
    for row, line in zip(table.rows, grid, strict=True):
        text = Text(row.label.ljust(stub))
        for cell, width in zip(line, widths, strict=True):
            text.append(f"{cell.state.value + SHIPPED * cell.shipped:>{width}}", COLOURS.get(cell.state, "dim"))
        yield text


def _counts(cells: Cells) -> dict[str, int]:
    return {state.value: n for state, n in sorted(cells.counts.items(), key=lambda x: x[0].value)}


def _in_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {state}" for state, n in states.items())
