"""A leaderboard: a heat map of a table's rows, by their average rank over the columns of its metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.methods import declarations
from fedbench.planner.table.spec import Table
from fedbench.reports.compare.significance import neighbours, ranks_of
from fedbench.reports.layout.grid import Grid, Line
from fedbench.reports.layout.references import YOURS, family
from fedbench.reports.site.methods import linked
from fedbench.reports.site.page import card, e, folded, listing, scrolled, sort_head
from fedbench.words import counted

#: Number of shades of a heat map, from the best rank to the worst.
SHADES = 8


@dataclass(frozen=True)
class Standing:
    """A row of a leaderboard."""

    line: Line
    family: str
    ranks: Sequence[float]  #: in each ranked column, within the row's class
    of: int  #: number of rows in its class
    cost: float | None  #: MB sent and received; None if unknown

    @property
    def mean(self) -> float:
        return float(np.mean(self.ranks))


@dataclass(frozen=True)
class Leaderboard:
    """The rows of a table by average rank over the columns of its metric. Methods that send a gradient at every step
    are a separate class, because they send ten times as much as others."""

    table: Table
    grid: Grid
    ranked: Sequence[int]  #: the columns that rank
    first: Sequence[Standing]  #: best first
    last: Sequence[Standing]  #: of methods that send a gradient at every step
    lacking: Sequence[Line]  #: rows without a number in every ranked column

    @classmethod
    def of(cls, table: Table, grid: Grid) -> Leaderboard:
        ranked = [k for k, c in enumerate(table.printed) if c.metric == table.metric and not c.of]
        rows = [line for line in grid.lines if line.in_table]
        whole = [line for line in rows if all(line.entries[k].value for k in ranked)]
        every_step = [line for line in whole if _sends_every_step(line)]
        first = _standings(table, [line for line in whole if line not in every_step], ranked)
        last = _standings(table, every_step, ranked)
        return cls(table, grid, ranked, first, last, [line for line in rows if line not in whole])


def top(board: Leaderboard, count: int) -> str:
    """A table of the best `count` rows: place, method, mean rank, and the numbers that rank."""
    heads = ("place", "method", "family", "mean rank", *(board.grid.heads[k].label for k in board.ranked))
    rows = []
    for n, one in enumerate(board.first[:count], 1):
        numbers = (e(one.line.entries[k].text) for k in board.ranked)
        rows.append((str(n), linked(one.line, e), e(one.family), f"<b>{one.mean:.1f}</b>", *numbers))
    return listing(heads, rows, texts=3, look="top")


def leaderboard(board: Leaderboard) -> str:
    """A heat map of all rows, which can be sorted, and filtered by family and traffic."""
    table, grid, ranked, first, last = board.table, board.grid, board.ranked, board.first, board.last
    rest = [k for k in range(len(table.printed)) if k not in ranked]
    median = float(np.median([one.cost for one in first if one.cost] or [1.0]))
    heads = [sort_head("method", "key"), sort_head("family", "key"), sort_head("mean rank")]
    heads += [sort_head(grid.heads[k].label, group=grid.heads[k].group) for k in [*ranked, *rest]]
    rows = [_standing_row(one, ranked, rest, median) for one in first]
    if last:
        head = f'<th colspan="{len(heads)}" class="key">methods that send a gradient after every step</th>'
        rows.append(f'<tr class="class">{head}</tr>')
        rows += [_standing_row(one, ranked, rest, median) for one in last]
    families = "".join(f"<option>{e(name)}</option>" for name in sorted({one.family for one in (*first, *last)}))
    tools = (
        f'<label>Family <select data-filter="family"><option value="">all</option>{families}</select></label> '
        '<label>Traffic <select data-filter="cost"><option value="">any</option><option value="1.01">at most the '
        'median</option><option value="2">at most twice the median</option></select></label> <output></output>'
    )
    lacking = ", ".join(line.label for line in board.lacking)
    heat = f'<table class="heat"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    said = f"<p>{e(told(board))} Green is best, brown is worst; beside each number is its rank.</p>"
    said += f'<div class="tools">{tools}</div>{scrolled(heat, "tall")}'
    left = folded("Rows without a number in every column", [lacking] if lacking else [])
    return card(grid.title, said + left, wide=True)


def _family(line: Line) -> str:
    known = declarations.built_in().get(line.method)
    return family(known) if known else YOURS


def _sends_every_step(line: Line) -> bool:
    known = declarations.built_in().get(line.method)
    return known is not None and known.one_step


def _standings(table: Table, lines: Sequence[Line], ranked: Sequence[int]) -> list[Standing]:
    """The standings of rows of one class, best first."""
    if not lines:
        return []
    values_of = np.array([[_value(line, k) for line in lines] for k in ranked])
    ranks = ranks_of(values_of, table.best)
    sizes = [k for k, c in enumerate(table.printed) if c.unit == "megabytes"]
    standings = []
    for line, of_line in zip(lines, ranks.T.tolist(), strict=True):
        sent = [value.mean for k in sizes if (value := line.entries[k].value)]
        cost = sum(sent) if len(sent) == len(sizes) else None
        standings.append(Standing(line, _family(line), of_line, len(lines), cost))
    return sorted(standings, key=lambda one: one.mean)


def _value(line: Line, k: int) -> float:
    value = line.entries[k].value
    assert value is not None
    return value.mean


def _standing_row(one: Standing, ranked: Sequence[int], rest: Sequence[int], median: float) -> str:
    line = one.line
    relative = f' data-cost="{one.cost / median:.3g}"' if one.cost else ""
    cells = [
        f'<th scope="row" class="key">{linked(line, e)}</th>',
        f'<td class="key">{e(one.family)}</td><td data-value="{one.mean:.4g}"><b>{one.mean:.1f}</b></td>',
    ]
    for k, rank in zip(ranked, one.ranks, strict=True):
        shade = min(SHADES - 1, int((rank - 1) / max(one.of - 1, 1) * SHADES))
        cells.append(
            f'<td class="s{shade}" data-value="{_value(line, k):.6g}" title="rank {rank:g} of {one.of}">'
            f'{e(line.entries[k].text)}<small class="rank">{rank:g}</small></td>'
        )
    cells += [f"<td>{e(line.entries[k].text or line.entries[k].symbol)}</td>" for k in rest]
    return f'<tr data-family="{e(one.family)}"{relative}>{"".join(cells)}</tr>'


def told(board: Leaderboard) -> str:
    """A sentence on the ranks, and on the differences between neighbours that are significant."""
    numbers = np.array([[_value(one.line, k) for one in board.first] for k in board.ranked])
    ranks = f"{counted(len(board.first), 'method')} by their mean rank over {counted(len(board.ranked), 'column')}."
    tested = neighbours(numbers, range(len(board.first)))
    return f"{ranks} {tested[0].upper()}{tested[1:]}."
