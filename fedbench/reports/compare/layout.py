"""A comparison as a grid that every format can print."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from fedbench.errors import FedbenchError, check_known
from fedbench.groups import by_key
from fedbench.metrics.read import VIEW
from fedbench.planner.rounds import AFTER_LAST, LAST, Rounds
from fedbench.planner.runs import text
from fedbench.planner.table.spec import VIEWS, Column
from fedbench.reports.compare.comparison import Comparison, Group, compare
from fedbench.reports.compare.numbers import Quantity, clients, scale, why_not
from fedbench.reports.compare.pairs import OVER, in_pairs, pairs_grid
from fedbench.reports.layout import times
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line, filled, grid_of_runs, never, ranked
from fedbench.reports.layout.references import with_references
from fedbench.reports.layout.shipped import of_runs
from fedbench.reports.numbers.measured import Value
from fedbench.results.run import Run, State, by_other_code, leaking, other_code
from fedbench.words import counted, plain


def side_by_side(
    runs: Sequence[Run],
    metrics: Sequence[str] = (),
    *,
    sort: str | None = None,
    test: bool = False,
    over: str | None = None,
    view: str = VIEW,
    round: str = LAST,
    named: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Grid]:
    """The grid of a comparison of the runs, and with `test` the grid of its pairs, tested `over` one of `OVER`; `named`
    orders the rows.

    Raises FedbenchError as `compare` and `in_pairs` do, and for invalid options.
    """
    check_known("test augmentation", view, VIEWS)
    if over is not None and not test:
        raise FedbenchError("--over goes with --test only", "add it, or leave --over out")
    check_known("pairing", over, OVER)
    side = compare(runs, metrics, sort=sort, view=view, rounds=Rounds.of(round), named=named)
    if not side.runs_at:
        raise FedbenchError(f"no run has metrics: {side.problems[0]}")
    return [grid(side), *([pairs_grid(side, in_pairs(side, over))] if test else [])]


def grid(side: Comparison) -> Grid:
    """A grid with one row per group: distinguishing values, then numbers, the best two of each data set marked."""
    columns = [_column(side, number) for number in side.numbers]
    if len({len(group) for group in side.groups}) > 1:
        columns.append((Heading("", "Seeds", "seeds", ""), [_count(group) for group in side.groups]))
    keys = tuple(side.keys) or ("method",)
    cells = zip(*(entries for _, entries in columns), strict=True) if columns else [()] * len(side.groups)
    heads = [head for head, _ in columns]
    lines = [_line(side, group, keys, entries) for group, entries in zip(side.groups, cells, strict=True)]
    about, remarks, reader = list(_brief(side)), list(_remarks(side)), list(_for_reader(side))
    made = grid_of_runs("compare", _title(side), keys, heads, lines, about, side.problems, reader)
    said = dict.fromkeys(short for short, _ in remarks if short)
    notes, (of, on) = tuple(line for _, line in remarks), _shared(side)
    topic = f"{of or 'Results'}{on and f' on {on}'}"
    made = dataclasses.replace(made, topic=topic, notes=notes, cautions=tuple(said))
    return with_references(made, {run.spec.setting.partition.dataset.name for run in side.runs})


def _line(side: Comparison, group: Group, keys: Sequence[str], entries: tuple[Entry, ...]) -> Line:
    spec, texts = group[0].spec, tuple(_print(side, group[0], key) for key in keys)
    return Line(side.label(group), "run", entries, method=spec.method, source=spec.source or "", keys=texts)


def _count(group: Group) -> Entry:
    return Entry(State.DONE, str(len(group)), value=Value(len(group)), runs=tuple(run.id for run in group))


def _print(side: Comparison, run: Run, key: str) -> str:
    if key == "method":
        return side.names_of_methods[run.id]
    return "" if run.values.get(key) is None else text(run.values[key])


def _title(side: Comparison) -> str:
    """The number of runs, and their method, data set and partition, as far as all share them."""
    of, on = _shared(side)
    return f"{counted(len(side.runs), 'run')}{of and f' of {of}'}{on and f' on {on}'}"


def _shared(side: Comparison) -> tuple[str, str]:
    """(The method of all runs, their data set and partition), "" for what they do not share."""
    common = {key: {_print(side, run, key) for run in side.runs} for key in ("method", "dataset", "split")}
    of, *on = (next(iter(values)) if len(values) == 1 else "" for values in common.values())
    return of, ", ".join(filter(None, on))


def _column(side: Comparison, number: Quantity) -> tuple[Heading, list[Entry]]:
    values = [side.value(group, number) for group in side.groups]
    factor, unit, decimals = scale(number.unit, [value.mean for value in values if value])
    form = Column(number.label, decimals=decimals, std_decimals=max(decimals, 1))
    entries = [
        _entry(side, group, number, value, factor, form) for group, value in zip(side.groups, values, strict=True)
    ]
    head = Heading(number.group, number.label, number.name, unit)
    apart = number.unit == "seconds" and times.of_many_processors(run.artifact.provenance for run in side.runs)
    return head, entries if number.best == "none" or apart else _ranked(side, entries, number.best, decimals)


def _entry(side: Comparison, group: Group, number: Quantity, value: Value | None, factor: float, form: Column) -> Entry:
    if missed := side.never(group, number):
        return never(missed, len(group), tuple(run.id for run in group))
    unread = any(run.id not in side.runs_at for run in group)
    if value is None:
        return Entry(State.DAMAGED if unread else State.UNDEFINED)
    state = State.STALE if any(r.stale for r in group) else State.DONE
    if value.count < len(group):
        state = State.DAMAGED if unread else State.MISSING
    # A count that is equal in all runs, such as rounds or bytes, has no ±.
    alike = value.std == 0 and number.unit in ("count", "bytes")
    std = None if value.std is None or alike else value.std * factor
    seeds = {seed: one * factor for seed, one in value.per_seed.items()}
    printed = dataclasses.replace(value, mean=value.mean * factor, std=std, seed_std=std, per_seed=seeds)
    entry = filled(state, printed, form, tuple(run.id for run in group))
    return dataclasses.replace(entry, shipped=any(run.shipped for run in group))


def _ranked(side: Comparison, entries: Sequence[Entry], best: str, decimals: int) -> list[Entry]:
    """The entries, with the best and the second best of each data set, partition and number of rounds marked."""
    by_run = {group[0].id: entry for group, entry in zip(side.groups, entries, strict=True)}
    for groups in side.contests:
        ids = [group[0].id for group in groups]
        by_run |= zip(ids, ranked([by_run[id] for id in ids], best, decimals), strict=True)
    return [by_run[group[0].id] for group in side.groups]


def _brief(side: Comparison) -> Iterable[str]:
    """Lines on the meaning of ± and of best, and on the round and the test images that count."""
    single = all(len(group) == 1 for group in side.groups)
    more = ["'fedbench sweep --seeds 0-2' trains several seeds."] if single else []
    yield " ".join([over_seeds(side.groups), *more, *_contests(side)])
    yield _rounds(side)


def _for_reader(side: Comparison) -> Iterable[str]:
    """What the reader of a paper needs: the runs behind a number and, unless it is the last one, the round."""
    yield " ".join([re.sub(r" \(ddof \d\)", "", over_seeds(side.groups)), *_contests(side)])
    if side.rounds != AFTER_LAST:
        yield _rounds(side)


def _contests(side: Comparison) -> Iterable[str]:
    """A sentence on the rows among which a best one is marked, if these are not all."""
    of = (
        "data set, partition and number of rounds"
        if len(side.contests) > len(side.places)
        else "data set and partition"
    )
    if len(side.contests) > 1:
        yield f"Best and second best are marked within each {of}."


def _rounds(side: Comparison) -> str:
    images = (
        "test images without augmentation"
        if side.view == "plain"
        else f"test images in view {side.view}, where a run has it"
    )
    return f"{side.rounds.words(run.spec.setting for run in side.runs)}, on {images}."


def _remarks(side: Comparison) -> Iterable[tuple[str, str]]:
    """(What a reader should not miss of it, in a few words, or ""; the line) on the definitions of the numbers, what
    differs beside the columns, the origin of the runs, and missing numbers."""
    what = "; ".join(number.what for number in side.numbers if number.what)
    if what:
        yield "", f"{what[:1].upper()}{what[1:]}."
    if side.others:
        names = ", ".join(key.replace("_", " ") for key in side.others)
        differ = f"Data sets or partitions also differ in: {names}."
        yield "data sets or partitions differ in more than the columns", differ
    yield from (("", line) for line in _worst(side))
    yield from (("times cannot be compared", line) for line in _machines(side))
    old = {run.id for run in side.runs if other_code(run.provenance)}
    yield from ((f"{counted(len(old), 'run')} of other code", line) for line in by_other_code(side.runs))
    yield from (("test images that train other clients", line) for line in leaking(side.runs))
    shipped = [run.shipped for run in side.runs if run.shipped]
    yield from ((f"{counted(len(shipped), 'shipped run')}", line) for line in of_runs(shipped))
    absent = (
        ((number.label, why_not(number, side.runs_at[run.id])), side.names_of_methods[run.id])
        for number in side.numbers
        for run in side.runs
        if run.id in side.runs_at and side.values[run.id, number.name] is None
    )
    for (name, why), titles in by_key(absent, once=True).items():
        yield "why numbers are missing", f"No {name}: {', '.join(titles)} ({why})."


#: Of at most so many rows the worst client is named.
_ROWS = 12


def _worst(side: Comparison) -> Iterable[str]:
    """A line on which natural group, such as a hospital, is the worst client of each row."""
    worst: list[str] = []
    for group in side.groups:
        there = [run for run in group if run.id in side.runs_at]
        of_runs = ((run.client_names, clients(side.runs_at[run.id])) for run in there)
        named = {names[int(np.nanargmin(values))] for names, values in of_runs if names and np.isfinite(values).any()}
        worst += [f"{' or '.join(sorted(named))} ({side.label(group)})"] if named else []
    if worst and len(side.groups) <= _ROWS and any(number.name == "client_accuracy_min" for number in side.numbers):
        yield f"The worst client: {plain(', '.join(worst))}."


def over_seeds(groups: Sequence[Group]) -> str:
    """A sentence on the runs that the mean and ± of groups are over."""
    counts = sorted({len(group) for group in groups})
    if counts == [1]:
        return "One run per row, so no ±."
    drawn = [len({run.values["partition"] for run in group}) for group in groups]
    many = all(parts == len(group) for parts, group in zip(drawn, groups, strict=True))
    of = (
        "each with its own draw of the partition"
        if many
        else "on one draw of the partition"
        if set(drawn) == {1}
        else "on some draws of the partition"
    )
    n = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    fewer = " (column Seeds)" if len(counts) > 1 else ""
    return f"Mean ± standard deviation (ddof 1) over {n} seeds{fewer}, {of}."


def _machines(side: Comparison) -> Iterable[str]:
    """Lines on times of different executors or processors."""
    if not any(number.unit == "seconds" for number in side.numbers):
        return
    provenances = [run.artifact.provenance for run in side.runs]
    where = {times.executor(provenance) for provenance in provenances}
    if len(where) > 1:
        yield f"Times of different executors cannot be compared: {', '.join(sorted(map(plain, where)))}."
    yield from map(plain, times.processors(provenances))
