"""The notes below a printed table: `brief` ones, which are always printed, and all others."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench import protocol, resources
from fedbench.groups import by_key
from fedbench.partitions import schemes
from fedbench.planner.cells import Cells
from fedbench.planner.counts import done as numbered
from fedbench.planner.others import Hits, other_texts, records
from fedbench.planner.settings import sketch
from fedbench.planner.table import statistic
from fedbench.planner.table.spec import Column, Row, Table
from fedbench.protocol import Remark
from fedbench.reports.layout import sentences, times
from fedbench.reports.layout.shipped import of_runs
from fedbench.results.run import State, by_other_code, leaking
from fedbench.specs import Setting


class Notes:
    """The notes below a table.

    `extra`: its extra rows; `counts`: state -> number of cells; `views`: (view, whether evaluated once) of its numbers
    (without numbers: derived from `view`); `rows`: labels of rows with a number, to which notes are limited (empty: all
    rows); `timed`: its columns of times, with the provenance of each run; `incomparable`: columns with times of more
    than one processor; `spread`: whether a number has a ±; `columns`: those of runs with a number (empty:
    all).
    """

    def __init__(
        self,
        cells: Cells,
        extra: Mapping[str, Hits],
        counts: Mapping[str, int],
        views: Collection[tuple[str, bool]],
        view: str,
        rows: Collection[str],
        timed: times.Times,
        incomparable: Sequence[Column],
        spread: bool,
        columns: Sequence[Column],
    ) -> None:
        self.cells, self.table, self.extra, self.counts = cells, cells.table, extra, counts
        self.timed, self.incomparable, self.spread = timed, incomparable, spread
        self.columns = columns or self.table.measured
        self.views = views if views or self.table.counted else sentences.expected(cells, view)
        self.rows = [row for row in self.table.rows if row.label in rows] or self.table.rows

    def basis(self, elsewhere: Sequence[str] = ()) -> str:
        """The line below the title: the budget, the seeds, whether all runs are shipped, and the budgets `elsewhere`
        that have numbers, too."""
        if self.table.counted:
            what = statistic.find(self.table.statistic).words.format(preset=self.table.preset)
            return f"{what}: needs no run, and no budget applies."
        complete = [record for record in records(self.cells, self.extra) if record.complete]
        shipped = "; all shipped" if complete and all(record.shipped for record in complete) else ""
        return " ".join([f"{sentences.the_budget(self.cells).removesuffix('.')}{shipped}.", *elsewhere])

    def brief(self) -> list[str]:
        """The lines that are printed unless the user wants none: meaning of ±, and what is missing."""
        if self.table.counted:
            return []
        missing = self.counts.keys() - {State.DONE.value, State.STALE.value}
        return [
            *self.table.about,
            *self._spreads_in_brief(),
            *(self.completeness()[:1] if missing else []),
        ]

    def _statistics(self) -> list[str]:
        return sentences.statistics(self.cells, self.extra, self.views, self.spread)

    def _spreads_in_brief(self) -> list[str]:
        """What the numbers are; of numbers of several kinds, what their ± is."""
        every = self._statistics()
        return every if len(every) == 1 else [" ".join(text for text in every if "±" in text)][: self.spread]

    def full(self, compare: bool) -> list[str]:
        """All other lines, without the methods' deviations and the claims."""
        return [*([] if self.table.counted else self._of_runs(compare)), *self.remarks()]

    def _of_runs(self, compare: bool) -> list[str]:
        table, executors = self.table, times.executors(self.timed)
        done, *absent = self.completeness()
        return [
            *sentences.the_papers(self.cells),
            *(text for text in self._statistics() if text not in self._spreads_in_brief()),
            *sentences.of_own(self.cells),
            *sentences.sources(self.cells),
            *sentences.own_budgets(self.cells, self.rows),
            *sentences.hyper_parameters(self.cells, self.rows),
            *sentences.tuned_in_brief(self.cells),
            *sentences.tuned_by_row(self.cells, self.rows),
            *sentences.spreads(table),
            *self.augmentation(),
            *([times.by_column(self.timed)] if len(executors) > 1 else []),
            *([f"Times are those of executor {executors[0]}."] if len(executors) == 1 else []),
            *times.processors(provenance for _, provenance in self.timed),
            *times.unranked(self.incomparable),
            *([] if done in self.brief() else [done]),
            *absent,
            *by_other_code(records(self.cells, self.extra)),
            *leaking(records(self.cells, self.extra)),
            *of_runs(record.shipped for record in records(self.cells, {}) if record.shipped),
            *other_texts(self.cells, self.extra),
            *(sentences.cost(records(self.cells, self.extra)) if compare else []),
            *(sentences.tolerances(table) if compare else []),
        ]

    def cautions(self) -> list[str]:
        """What among the other lines no reader should miss, in a few words each."""
        if self.table.counted:
            return []
        runs = records(self.cells, self.extra)
        said = {
            "runs of other code": any(True for _ in by_other_code(runs)),
            "test images that train other clients": leaking(runs),
            "another text of a method's file": other_texts(self.cells, self.extra),
            "times of several processors": times.processors(provenance for _, provenance in self.timed),
            "images from copies or subsets": sentences.sources(self.cells),
            "test images in another view than the table's": self._other_view,
            "images not available": self.completeness()[1:],
        }
        return [words for words, holds in said.items() if holds]

    def for_reader(self) -> list[str]:
        """What the reader of a paper needs below the table."""
        return sentences.for_reader(self.cells, self.extra, self.views, self.spread, self.columns)

    def remarks(self) -> list[str]:
        """The notes of the table, its protocol and its rows."""
        table, budget, precision = self.table, self.cells.budget, self.cells.precision
        return [
            *table.notes,
            *holding(table.remark, table, budget, self.rows, precision),
            *table.reported_notes,
            *departures(table, budget, self.rows, precision),
            *(f"{row.label}: {row.note}" for row in self.rows if row.note),
        ]

    def deviations(self) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """(Row label -> letter, [(letters, text)]): how methods deviate from their papers, according to their runs.
        Rows with the same deviations share a letter."""
        texts: dict[str, dict[str, None]] = {}  # row -> an ordered set
        places = [(cell.row.label, record) for cell in self.cells.all for record in cell.records]
        places += [(label, record) for label, hits in self.extra.items() for _, record in hits]
        shown = {*(row.label for row in self.rows), *self.extra}
        for label, record in places:
            if record and record.complete and label in shown:
                texts.setdefault(label, {}).update(dict.fromkeys(record.provenance.get("deviations", [])))
        letters: dict[tuple[str, ...], str] = {}
        marks = {
            label: letters.setdefault(tuple(deviations), _letter(len(letters)))
            for label, deviations in texts.items()
            if deviations
        }
        methods = by_key((text, letter) for deviations, letter in letters.items() for text in deviations)
        return marks, [(",".join(of), text) for text, of in methods.items()]

    @property
    def _other_view(self) -> bool:
        """Whether the views of the test images differ from the table's."""
        usual = sentences.expected(self.cells, self.table.view)
        return {view for view, _ in self.views} != {view for view, _ in usual}

    def augmentation(self) -> list[str]:
        views = sorted({view for view, _ in self.views if view in sentences.VIEWS})
        return [f"Test augmentation: {' and '.join(sentences.VIEWS[view] for view in views)}."] if views else []

    def completeness(self) -> list[str]:
        counts, absent = self.counts, self.cells.absent
        done, partial = numbered(counts), counts.get(State.PARTIAL.value, 0)
        some = [f"{partial} of them without all seeds"] * bool(partial)
        open_states = [s.value for s in State if s not in (State.DONE, State.STALE, State.PARTIAL)]
        rest = some + [f"{counts[state]} {state}" for state in open_states if counts.get(state)]
        stale = [f"{counts[State.STALE.value]} stale"] if counts.get(State.STALE.value) else []
        lines = [f"{'; '.join([f'{done} of {sum(counts.values())} cells', *rest, *stale])}."]
        empty = {cell.column.dataset for cell in self.cells.all if cell.state is State.NO_DATA}
        absent = {name: why for name, why in absent.items() if name in empty}
        if absent and counts.get(State.NO_DATA.value):
            why = (
                "; ".join(absent.values())
                if self.table.part
                else f"'fedbench tables {_name(self.table)}' has the reason"
            )
            lines.append(f"The images of {', '.join(absent)} are not available ({why}).")
        return lines


def holding(
    remarks: Iterable[Remark], table: Table, budget: str, rows: Sequence[Row] = (), precision: str = ""
) -> list[str]:
    """The texts of remarks that hold for a cell of the table at a budget and a precision (default: the budget's).
    `rows`: only their cells; empty means all."""
    remarks = list(remarks)
    cells = list(facts(table, budget, rows)) if any(r.where for r in remarks) else []
    cells = [{**cell, "precision": precision} for cell in cells] if precision else cells
    return [r.text for r in remarks if r.holds(cells)]


def departures(table: Table, budget: str, rows: Sequence[Row] = (), precision: str = "") -> list[str]:
    """Lines about differences from the paper that affect all methods, at the budget and precision."""
    # Pairs of snapshots compare no methods, and a user's table has no paper.
    if table.counted or table.statistic == "pairs" or not table.of_paper:
        return []
    remarks = protocol.load(table.protocol).deviates
    return [f"{text[0].upper()}{text[1:]}." for text in holding(remarks, table, budget, rows, precision)]


def facts(table: Table, budget: str, rows: Sequence[Row] = ()) -> Iterator[dict[str, Any]]:
    """The facts of each cell with runs (of these rows; empty: all), as far as they are known without the images."""
    if table.counted:
        return
    for column in table.measured:
        shared = None
        for row in (r for r in rows or table.rows if not table.undefines(r.label, column.key)):
            overriding = row if row.overrides(budget) else None
            if overriding or shared is None:
                setting = sketch(table, column, budget, overriding)
                shared = shared if overriding else setting
            else:
                setting = shared
            read = row.reads(column)
            yield {
                **schemes.facts(setting.partition),
                **{f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting)},
                "budget": budget,
                "dataset": column.dataset,
                "method": row.method,
                "metric": read.metric,
                "statistic": read.statistic,
            }


def _name(table: Table) -> str:
    """The table's name on the command line."""
    if "/" in table.id:
        return resources.place(table.id)
    return f"{table.path.as_posix()}:{table.number}" if table.number else table.path.as_posix()


def command(cells: Cells, seeds: tuple[int, ...] = ()) -> str:
    """The command that fills the table's missing cells."""
    table = cells.table
    replaced = f" --dataset {table.columns[0].dataset}" if table.replaced else ""
    usual = protocol.load(table.protocol).precision(cells.budget)
    precise = f" --precision {cells.precision}" if cells.precision != usual else ""
    columns = "".join(f" --column {_quoted(key)}" for key in table.chosen)
    return (
        f"fedbench train --table {shlex.quote(_name(table))} --budget {cells.budget}{precise}{replaced}{columns}"
        + "".join(f" --seed {s}" for s in seeds)
    )


def _quoted(key: str) -> str:
    """A column's key, quoted for a shell."""
    return shlex.quote(key) if set(key) & set('"$`\\!') else f'"{key}"'


def _letter(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa."""
    return ("" if number < 26 else _letter(number // 26 - 1)) + chr(ord("a") + number % 26)
