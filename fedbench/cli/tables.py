"""`fedbench tables`: which tables there are, and how it stands with their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context

if TYPE_CHECKING:
    from rich.text import Text

    from fedbench.reports.status.cells import Cells
    from fedbench.reports.status.index import Index
    from fedbench.reports.table.spec import Table

#: Letters that a bar is long.
BAR = 10
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
    precision: Annotated[str | None, typer.Option(help="Of the runs: fp32 (default), tf32 or bf16.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts; of several tables at all budgets.")] = False,
) -> None:
    """List the tables, a paper's or all, and how full they are; or one table's cells and their states."""
    from fedbench.reports import table as specs
    from fedbench.reports.status.cells import DEFAULT_PRECISION

    precision = precision or DEFAULT_PRECISION
    families = [family for family in specs.families() if name is None or family[0].startswith(f"{name}/")]
    if families:
        _several(families, budget, precision, as_json, folded=name is None)
    else:
        _one(str(name), budget, precision, as_json)


def _several(
    families: Sequence[Sequence[str]], budget: str | None, precision: str, as_json: bool, folded: bool
) -> None:
    from fedbench import protocol
    from fedbench.errors import unknown
    from fedbench.reports import table as specs
    from fedbench.reports.status.cells import DEFAULT_BUDGET, find, scope
    from fedbench.reports.status.index import Index

    store, roots = context.store(), context.roots()
    index, numbers = Index(store), {table: number for number, (_, table) in specs.headline().items()}
    loaded = [[specs.load(name) for name in family] for family in families]
    budgets = {t.id: list(protocol.load(t.protocol).budgets) if t.protocol else [] for own in loaded for t in own}
    if budget is not None and not any(budget in own for own in budgets.values()):
        raise unknown("budget", budget, {b for own in budgets.values() for b in own})

    def states(table: Table, at: str) -> dict[str, int]:
        return _counts(find(table, at, store, roots, precision=precision, index=index))

    if as_json:
        listed = []
        for table in (t for own in loaded for t in own):
            known = [""] if table.counted else [b for b in budgets[table.id] if budget in (None, b)]
            said = {"table": table.id, "number": numbers.get(table.id), "title": table.title}
            of = {"precision": None if table.counted else precision, "states": {b: states(table, b) for b in known}}
            listed.append({**said, **of})
        context.print_json(listed)
        return
    at = budget or DEFAULT_BUDGET
    lines: list[tuple[str, str, Counter[str]]] = []
    for own in loaded:
        entries = [(t.id, t.title, Counter(states(t, at))) for t in own if t.counted or at in budgets[t.id]]
        if folded and len(entries) > 1:
            together = sum((counts for *_, counts in entries), Counter[str]())
            entries = [(entries[0][0], f"{len(entries)} tables, such as {entries[0][1]}", together)]
        lines += entries
    out = context.out()
    stub = max((len(name) for name, *_ in lines), default=0)
    for name, title, counts in lines:
        line = _line(name.ljust(stub), counts, f"  {title}")
        line.truncate(out.width, overflow="ellipsis")
        out.print(line, soft_wrap=True)
    out.print(f"Done of all cells, {scope(at, precision)}.{_elsewhere(index, at)}", style="dim", soft_wrap=True)
    if folded:
        headline = ", ".join(f"{number} is {name}" for name, number in numbers.items())
        out.print(f"Headline tables: {headline}.", style="dim", soft_wrap=True)
        out.print("More: fedbench tables PAPER (each of its tables) or PAPER/NUMBER (the cells of one).", style="dim")


def _elsewhere(index: Index, budget: str) -> str:
    """How many runs the store has at other budgets, which count for none of these cells."""
    runs = Counter(r.spec.setting.budget for of in index.records.values() for r in of if r.artifact)
    words = ", ".join(f"{n} with --budget {name}" for name, n in sorted(runs.items()) if name != budget)
    return f" Other runs: {words}." if words else ""


def _line(name: str, counts: Mapping[str, int], rest: str) -> Text:
    """A name, a bar of how many of its cells are done, and what else is to know of the others."""
    from rich.text import Text

    every, done = sum(counts.values()), counts.get("done", 0) + counts.get("stale", 0)
    full = BAR * done // every if every else 0
    part = 1 if done and not full else 0  # something is there, however little
    notable = [
        (f"  {counts[state]} {state}", COLOURS[state]) for state in COLOURS if state != "done" and counts.get(state)
    ]
    return Text.assemble(
        (name, "bold cyan"), "  ", ("█" * full + "▏" * part, "green"), ("░" * (BAR - full - part), "dim"),
        f" {f'{done}/{every}':>9}", *notable, rest,
    )  # fmt: skip


def _one(name: str, budget: str | None, precision: str, as_json: bool) -> None:
    from fedbench.reports import table as specs
    from fedbench.reports.status.cells import DEFAULT_BUDGET, find

    table = specs.load(name)
    cells = find(table, budget or DEFAULT_BUDGET, context.store(), context.roots(), precision=precision)
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
        lines = list(_rows(table, cells))
    for line in lines:
        out.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
    out.print(f"\n{_in_words(_counts(cells))}")
    for dataset, why in cells.absent.items():
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


def _rows(table: Table, cells: Cells) -> Iterator[Text]:
    """Row by row, how many of its cells are in which state."""
    stub = max(len(row.label) for row in table.rows)
    for row, line in zip(table.rows, cells.grid, strict=True):
        counts = Counter(cell.state.value for cell in line if not cell.column.of and cell.state.value != "not defined")
        rest = _in_words({state: n for state, n in counts.items() if state not in COLOURS})
        yield _line(row.label.ljust(stub), counts, f"  {rest}" if rest else "")


def _states(table: Table, cells: Cells) -> Iterator[Text]:
    """Row by row, the state of every cell in words."""
    from rich.text import Text

    stub = max(len(row.label) for row in table.rows)
    grid = [[cell for cell in line if not cell.column.hidden] for line in cells.grid]
    widths = [
        2 + max(len(c.group), len(c.label), *(len(line[j].state.value) for line in grid))
        for j, c in enumerate(table.printed)
    ]
    heads = [[c.group for c in table.printed], [c.label for c in table.printed]]
    for names in heads if any(heads[0]) else heads[1:]:
        yield Text(" " * stub + "".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)), "bold")
    for row, line in zip(table.rows, grid, strict=True):
        text = Text(row.label.ljust(stub))
        for cell, width in zip(line, widths, strict=True):
            text.append(f"{cell.state.value:>{width}}", COLOURS.get(cell.state, "dim"))
        yield text


def _as_json(table: Table, cells: Cells) -> dict[str, Any]:
    return {
        "table": table.id, "title": table.title, "budget": cells.budget or None,
        "precision": cells.precision or None, "states": _counts(cells),
        "no_data": cells.absent,
        "cells": [
            {
                "row": c.row.label, "method": c.row.method or None, "column": c.column.key, "metric": c.column.metric,
                "state": c.state.value, "reason": c.reason or None, "runs": [r.id for r in c.records if r],
                "settings": [spec.setting.id for spec in c.specs],
            }
            for c in cells.all
        ],
    }  # fmt: skip


def _counts(cells: Cells) -> dict[str, int]:
    return {state.value: n for state, n in sorted(cells.counts.items(), key=lambda x: x[0].value)}


def _in_words(states: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {state}" for state, n in states.items())
