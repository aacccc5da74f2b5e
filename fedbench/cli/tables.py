"""`fedbench tables`: which tables there are, and how it stands with their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context

if TYPE_CHECKING:
    from rich.text import Text

    from fedbench.reports.status.cells import Cell, Cells
    from fedbench.reports.status.index import Index
    from fedbench.reports.table.spec import Table

#: Letters that a bar is long.
BAR = 10
#: Marks shipped cells, as it does in reports; and what is said of that.
SHIPPED = "°"
MARKED = f"{SHIPPED} shipped; --mine leaves them out"
#: How a cell's state is coloured; others are dim.
COLOURS = {"done": "green", "stale": "yellow", "failed": "red", "damaged": "red", "running": "cyan"}


def tables(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A paper (feddrm): its tables. A table (feddrm/1): its cells.", autocompletion=complete.tables
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Of the runs: small (default), paper, ...")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the runs: fp32, tf32, bf16 (the budget's).")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts; of several tables at all budgets.")] = False,
) -> None:
    """List the tables, a paper's or all, and how full they are; or one table's cells and their states."""
    from fedbench.reports import table as specs
    from fedbench.reports.status.index import Index

    index = Index(context.store(), None if mine else context.shelf())
    families = [family for family in specs.families() if name is None or family[0].startswith(f"{name}/")]
    if families:
        _several(families, index, budget, precision, as_json, folded=name is None)
    else:
        _one(str(name), index, budget, precision, as_json)


def _several(
    families: Sequence[Sequence[str]],
    index: Index,
    budget: str | None,
    precision: str | None,
    as_json: bool,
    folded: bool,
) -> None:
    from fedbench import protocol
    from fedbench.errors import unknown
    from fedbench.reports import table as specs
    from fedbench.reports.status.cells import DEFAULT_BUDGET, find

    numbers = {table: number for number, (_, table) in specs.headline().items()}
    loaded = [[specs.load(name) for name in family] for family in families]
    budgets = {t.id: list(protocol.load(t.protocol).budgets) if t.protocol else [] for own in loaded for t in own}
    if budget is not None and not any(budget in own for own in budgets.values()):
        raise unknown("budget", budget, {b for own in budgets.values() for b in own})

    def cells(table: Table, at: str) -> Cells:
        return find(table, at, index.store, context.roots(), precision=precision, index=index)

    if as_json:
        listed = []
        for table in (t for own in loaded for t in own):
            known = [""] if table.counted else [b for b in budgets[table.id] if budget in (None, b)]
            said = {"table": table.id, "number": numbers.get(table.id), "title": table.title}
            filled = {b: cells(table, b) for b in known}
            of = {
                "precision": {b: one.precision or None for b, one in filled.items()},
                "states": {b: _counts(one) for b, one in filled.items()},
                "shipped": {b: one.shipped for b, one in filled.items()},
            }
            listed.append({**said, **of})
        context.print_json(listed)
        return
    at = budget or DEFAULT_BUDGET
    entries: list[_Entry] = []
    for own in loaded:
        filled = [cells(t, at) for t in own if t.counted or at in budgets[t.id]]
        those = [_Entry(one.table.id, Counter(_counts(one)), one.shipped, one.table.title) for one in filled]
        entries += [_together(those)] if folded and len(those) > 1 else those
    out = context.out()
    for line in _lines(entries):
        line.truncate(out.width, overflow="ellipsis")
        out.print(line, soft_wrap=True)
    of = f"budget {at}" + (f" in {precision}" if precision else "")
    marked = f" ({MARKED})" if any(entry.shipped for entry in entries) else ""
    out.print(f"Done of all cells{marked}, {of}.{_elsewhere(index, at)}", style="dim", soft_wrap=True)
    if folded:
        headline = ", ".join(f"{number} is {name}" for name, number in numbers.items())
        out.print(f"Headline tables: {headline}.", style="dim", soft_wrap=True)
        out.print("More: fedbench tables PAPER (each of its tables) or PAPER/NUMBER (the cells of one).", style="dim")


def _elsewhere(index: Index, budget: str) -> str:
    """How many runs the store has at other budgets, which count for none of these cells."""
    runs = Counter(r.spec.setting.budget for of in index.records.values() for r in of if r.artifact)
    words = ", ".join(f"{n} with --budget {name}" for name, n in sorted(runs.items()) if name != budget)
    return f" Other runs: {words}." if words else ""


@dataclass(frozen=True)
class _Entry:
    """A line of a list: how full a table, several, or a row of one are."""

    name: str
    counts: Counter[str]
    shipped: int  #: of the done and stale cells
    rest: str  #: what else is to know

    @property
    def every(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return self.counts["done"] + self.counts["stale"]

    @property
    def filled(self) -> str:
        """Own and shipped cells of all, such as 1 + 77°/78."""
        own = self.done - self.shipped
        parts = [str(own)] * bool(own or not self.shipped) + [f"{self.shipped}{SHIPPED}"] * bool(self.shipped)
        return f"{' + '.join(parts)}/{self.every}"


def _together(entries: Sequence[_Entry]) -> _Entry:
    """One line for tables of a family."""
    counts = sum((entry.counts for entry in entries), Counter[str]())
    title = f"{len(entries)} tables, such as {entries[0].rest}"
    return _Entry(entries[0].name, counts, sum(entry.shipped for entry in entries), title)


def _lines(entries: Sequence[_Entry]) -> Iterator[Text]:
    """Each with a bar of how many of its cells are done."""
    from rich.text import Text

    stub = max((len(entry.name) for entry in entries), default=0)
    width = max((len(entry.filled) for entry in entries), default=0)
    for entry in entries:
        notable = [(f"  {entry.counts[s]} {s}", COLOURS[s]) for s in COLOURS if s != "done" and entry.counts[s]]
        rest = f"  {entry.rest}" if entry.rest else ""
        name = (entry.name.ljust(stub), "bold cyan")
        yield Text.assemble(name, "  ", _bar(entry), f"  {entry.filled:>{width}}", *notable, rest)


def _bar(entry: _Entry) -> Text:
    from rich.text import Text

    full = BAR * entry.done // entry.every if entry.every else 0
    part = 1 if entry.done and not full else 0  # something is there, however little
    own = full * (entry.done - entry.shipped) // entry.done if entry.done else 0
    return Text.assemble(
        ("█" * own, "green"), ("▓" * (full - own), "green"), ("▏" * part, "green"), ("░" * (BAR - full - part), "dim")
    )


def _one(name: str, index: Index, budget: str | None, precision: str | None, as_json: bool) -> None:
    from fedbench.reports import table as specs
    from fedbench.reports.status.cells import DEFAULT_BUDGET, find

    table = specs.load(name)
    cells = find(table, budget or DEFAULT_BUDGET, index.store, context.roots(), precision=precision, index=index)
    if as_json:
        context.print_json(_as_json(table, cells))
        return
    from fedbench.reports.layout.notes import command, elsewhere
    from fedbench.reports.status.index import State
    from fedbench.reports.status.others import other_texts, others

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
    if cells.counts[State.MISSING] or cells.counts[State.FAILED]:
        out.print(f"fill the missing ones: {command(cells)}", soft_wrap=True)
    for line in other_texts(cells, {} if cells.table.counted else others(cells)):
        out.print(line, style="dim", soft_wrap=True)
    if hint := elsewhere(cells, context.roots()):
        out.print(hint, style="dim", soft_wrap=True)


def _rows(table: Table, cells: Cells) -> list[_Entry]:
    """Row by row, how many of its cells are in which state."""
    entries = []
    for row, line in zip(table.rows, cells.grid, strict=True):
        counts = Counter(cell.state.value for cell in line if not cell.column.of and cell.state.value != "not defined")
        rest = _in_words({state: n for state, n in counts.items() if state not in COLOURS})
        entries.append(_Entry(row.label, counts, sum(cell.shipped for cell in line), rest))
    return entries


def _states(table: Table, cells: Cells) -> Iterator[Text]:
    """Row by row, the state of every cell in words."""
    from rich.text import Text

    stub = max(len(row.label) for row in table.rows)
    grid = [[cell for cell in line if not cell.column.hidden] for line in cells.grid]
    widths = [
        2 + max(len(c.group), len(c.label), *(len(_word(line[j])) for line in grid))
        for j, c in enumerate(table.printed)
    ]
    heads = [[c.group for c in table.printed], [c.label for c in table.printed]]
    for names in heads if any(heads[0]) else heads[1:]:
        yield Text(" " * stub + "".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)), "bold")
    for row, line in zip(table.rows, grid, strict=True):
        text = Text(row.label.ljust(stub))
        for cell, width in zip(line, widths, strict=True):
            text.append(f"{_word(cell):>{width}}", COLOURS.get(cell.state, "dim"))
        yield text


def _word(cell: Cell) -> str:
    return cell.state.value + SHIPPED * cell.shipped


def _as_json(table: Table, cells: Cells) -> dict[str, Any]:
    return {
        "table": table.id, "title": table.title, "budget": cells.budget or None,
        "precision": cells.precision or None, "states": _counts(cells), "shipped": cells.shipped,
        "no_data": cells.absent,
        "cells": [
            {
                "row": c.row.label, "method": c.row.method or None, "column": c.column.key, "metric": c.column.metric,
                "state": c.state.value, "reason": c.reason or None, "runs": [r.id for r in c.records if r],
                "shipped": c.shipped, "settings": [spec.setting.id for spec in c.specs],
            }
            for c in cells.all
        ],
    }  # fmt: skip


def _counts(cells: Cells) -> dict[str, int]:
    return {state.value: n for state, n in sorted(cells.counts.items(), key=lambda x: x[0].value)}


def _in_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {state}" for state, n in states.items())
