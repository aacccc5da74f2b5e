"""Verdicts on the claims of a table: its numbers with their noise between seeds, and with the machines behind times.

The noise of a number of one seed is taken from the nearest place that tells it:

1. runs that differ from its run in seeds alone, in any table, pack or the store;
2. the other numbers of its column, then those of the same metric in its table (root mean square);
3. runs of its method with more seeds, at the same budget of the same protocol (root mean square);
4. the paper's own ± if that is over seeds: of the cell, then of its column and its table (root mean square).

A mean over columns has the noise of its parts, as far as these are known. Without any of them it stays unknown.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from statistics import fmean, variance

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.planner.cells import Cells
from fedbench.planner.table.claims import Comparable, Noises, Numbers, Verdict, judge, of_part
from fedbench.planner.table.noise import SeedNoise, pooled
from fedbench.planner.table.spec import Table
from fedbench.reports.layout import times
from fedbench.reports.layout.entries import Rows
from fedbench.reports.numbers.agreement import noise_in_paper
from fedbench.reports.numbers.measured import measure
from fedbench.results.run import Run

#: Row label and column key of a cell.
Place = tuple[str, str]


def of_table(cells: Cells, rows: Rows, view: str) -> Iterator[tuple[Verdict, Verdict]]:
    """The verdicts on each claim of a table on the numbers of its `rows`, and on the paper's."""
    table = cells.table
    ours = {
        (row.label, column.key): value.mean
        for row in table.rows
        for column in table.columns
        if (value := rows[row.label][column.key].value)
    }
    noises = _Noises(cells, rows, view).found() if table.claim and not table.counted else None
    return verdicts(table, ours, noises, times.comparable(cells))


def verdicts(
    table: Table, ours: Numbers, noises: Noises = None, comparable: Comparable = lambda _: True
) -> Iterator[tuple[Verdict, Verdict]]:
    """The verdicts on each claim of a table: on our numbers (with their noises), and on the paper's."""
    best = {c.key: str(c.best) for c in table.columns}
    theirs = {place: value for place, (value, _) in table.trusted.items()}
    fixed = [r.label for r in table.rows if not r.added], [c.key for c in table.printed], best, table.no_numbers
    for claim in table.claim:
        both = judge(claim, ours, *fixed, noises, theirs, comparable), judge(claim, theirs, *fixed)
        yield (of_part(both[0]), of_part(both[1])) if table.part and not claim.columns else both


class _Noises:
    """Finds the noises of a table's numbers, step by step."""

    def __init__(self, cells: Cells, rows: Rows, view: str) -> None:
        self.cells, self.view = cells, view
        self.columns = {column.key: column for column in cells.table.columns}
        self.of_place = {(cell.row.label, cell.column.key): cell for cell in cells.all}
        values = {place: rows[place[0]][place[1]].value for place in self.of_place}
        self.noises = {place: value.noise for place, value in values.items() if value}

    def found(self) -> dict[Place, SeedNoise]:
        """(row label, column key) -> noise, of the numbers whose noise is known."""
        self._fill(self._of_other_seeds)
        self._pool()
        self._fill(self._of_method)
        self._fill(self._of_paper)
        self._pool()
        return {place: noise for place, noise in self.noises.items() if noise}

    def _fill(self, find: Callable[[Place], SeedNoise | None]) -> None:
        """Look up the unknown noises; then those of means, from their parts."""
        self.noises = {place: noise or find(place) for place, noise in self.noises.items()}
        self.noises = {place: noise or self._of_parts(place) for place, noise in self.noises.items()}

    def _pool(self) -> None:
        """Give an unknown noise the usual one of its column, else of the columns of its metric."""
        for key in (lambda place: place[1], self._metric):
            for places in by_key((key(place), place) for place in self.noises).values():
                self.noises |= zip(places, pooled(self.noises[place] for place in places), strict=True)
            self._fill(lambda _: None)

    def _metric(self, place: Place) -> Hashable:
        """What the numbers of a table have in common whose noises may stand for each other."""
        column = self.of_place[place].row.reads(self.columns[place[1]])
        return column.metric, column.unit, column.statistic, column.client is None, len(column.of), column.relation

    def _of_parts(self, place: Place) -> SeedNoise | None:
        """The noise of a mean over columns, whose parts are independent."""
        row, column = place[0], self.columns[place[1]]
        parts = [self.noises.get((row, key)) for key in column.of] if not column.relative_to else []
        known = [noise.std**2 / noise.seeds for noise in parts if noise]
        return SeedNoise(math.sqrt(math.fsum(known)) / len(parts), 1) if known and len(known) == len(parts) else None

    def _of_other_seeds(self, place: Place) -> SeedNoise | None:
        """From runs that differ from the cell's one run only in seeds."""
        run = self._alone(place)
        return run and self._over(place, [self.cells.frame.but_for_seeds(run.spec)])

    def _of_method(self, place: Place) -> SeedNoise | None:
        """From other runs of the method with more than one seed, at this budget of the table's protocol."""
        run, cells = self._alone(place), self.cells
        if run is None:
            return None
        rules = protocol.load(cells.table.protocol)
        groups = cells.frame.repeated(run.spec.method)
        return self._over(place, [runs for runs in groups if rules.asks_for(runs[0].spec.setting, cells.budget)])

    def _alone(self, place: Place) -> Run | None:
        """The run of a cell that has one, of which metrics tell the number."""
        records = [run for run in self.of_place[place].records if run and run.complete]
        return records[0] if len(records) == 1 and self.columns[place[1]].statistic != "pairs" else None

    def _over(self, place: Place, groups: Iterable[Iterable[Run]]) -> SeedNoise | None:
        """The noise of the cell's number over groups of runs that differ only in seeds."""
        column = self.of_place[place].row.reads(self.columns[place[1]])
        variances = []
        for runs in groups:
            values = []
            for run in runs:
                with contextlib.suppress(FedbenchError):  # it lacks the number
                    values.append(measure(run.metrics, run.spec.setting, column, self.view)[0].mean)
            variances += [variance(values)] if len(values) > 1 else []
        return SeedNoise(math.sqrt(fmean(variances)), 1) if variances else None

    def _of_paper(self, place: Place) -> SeedNoise | None:
        """From the paper's ± of the cell."""
        table = self.cells.table
        _, std = table.trusted.get(place, (0.0, None))
        noise = noise_in_paper(table, self.columns[place[1]], std)
        return SeedNoise(noise.std, 1) if noise else None
