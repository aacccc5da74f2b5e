"""`fedbench tables`: which tables there are, and how it stands with their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import context

if TYPE_CHECKING:
    from rich.text import Text

    from fedbench.report.cells import Cells
    from fedbench.report.spec import Table


def tables(
    name: Annotated[str | None, typer.Argument(help="One table: its cells and their states.")] = None,
    budget: Annotated[str | None, typer.Option(help="Only this budget (one table: default small).")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the runs: fp32 (default), tf32 or bf16.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the tables, or one table's cells with their states."""
    from fedbench.report.cells import DEFAULT_PRECISION

    precision = precision or DEFAULT_PRECISION
    if name is None:
        _all(budget, precision, as_json)
    else:
        _one(name, budget, precision, as_json)


def _all(budget: str | None, precision: str, as_json: bool) -> None:
    from rich.text import Text

    from fedbench import protocol
    from fedbench.errors import unknown
    from fedbench.report import table as specs
    from fedbench.report.cells import find, scope
    from fedbench.report.index import Index

    store, roots = context.store(), context.roots()
    index, numbers = Index(store), {table: number for number, (_, table) in specs.headline().items()}
    listed: list[list[dict[str, Any]]] = []
    budgets: set[str] = set()
    for family in specs.families():
        listed.append([])
        for name in family:
            table = specs.load(name)
            known = list(protocol.load(table.protocol).budgets) if table.protocol else []
            budgets.update(known)
            states = {
                b: _counts(find(table, b, store, roots, precision=precision, index=index))
                for b in (known if not table.counted else [""])
                if budget in (None, b) or table.counted
            }
            said = {"table": name, "number": numbers.get(name), "title": table.title}
            listed[-1].append({**said, "precision": None if table.counted else precision, "states": states})
    if budget is not None and budget not in budgets:
        raise unknown("budget", budget, budgets)
    if as_json:
        context.print_json([entry for family in listed for entry in family])
        return
    out = context.out()
    for entries in listed:
        for entry in entries:
            number = f" (headline table {entry['number']})" if entry["number"] else ""
            out.print(
                Text.assemble((f"{entry['table']:<17} ", "bold cyan"), entry["title"], (number, "dim")), soft_wrap=True
            )
        for b in entries[0]["states"]:
            counted: Counter[str] = Counter()
            for entry in entries:
                counted.update(entry["states"][b])
            about = scope(b, precision).removeprefix("budget ") or "no runs"
            together = f" in these {len(entries)}" if len(entries) > 1 else ""
            out.print(Text.assemble("  ", (f"{about + '  ':<9}", "dim"), _in_words(counted), together), soft_wrap=True)


def _one(name: str, budget: str | None, precision: str, as_json: bool) -> None:
    from fedbench.report import table as specs
    from fedbench.report.cells import DEFAULT_BUDGET, find

    table = specs.load(name)
    cells = find(table, budget or DEFAULT_BUDGET, context.store(), context.roots(), precision=precision)
    if as_json:
        context.print_json(_as_json(table, cells))
        return
    from fedbench.report.index import State
    from fedbench.report.notes import command, elsewhere

    out = context.out()
    for line in _states(table, cells):
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
    if hint := elsewhere(cells, context.roots()):
        out.print(hint, style="dim", soft_wrap=True)


def _states(table: Table, cells: Cells) -> list[Text]:
    """Row by row, the state of every cell in words."""
    from rich.text import Text

    from fedbench.report.index import State

    colours = {
        State.DONE: "green",
        State.OLDER: "yellow",
        State.FAILED: "red",
        State.DAMAGED: "red",
        State.RUNNING: "cyan",
    }
    stub = max(len(row.label) for row in table.rows)
    grid = [[cell for cell in line if not cell.column.hidden] for line in cells.grid]
    widths = [
        2 + max(len(c.group), len(c.label), *(len(line[j].state.value) for line in grid))
        for j, c in enumerate(table.printed)
    ]
    heads = [[c.group for c in table.printed], [c.label for c in table.printed]]
    lines = [Text(f"{table.title}{f', {cells.scope}' if cells.scope else ''}", "bold")]
    for names in heads if any(heads[0]) else heads[1:]:
        lines.append(Text(" " * stub + "".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)), "bold"))
    for row, line in zip(table.rows, grid, strict=True):
        text = Text(row.label.ljust(stub))
        for cell, width in zip(line, widths, strict=True):
            text.append(f"{cell.state.value:>{width}}", colours.get(cell.state, "dim"))
        lines.append(text)
    return lines


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
