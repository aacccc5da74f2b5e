"""A comparison, and tests of its groups in pairs, as grids that every format can print."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedbench.errors import FedbenchError, check_known
from fedbench.groups import by_key
from fedbench.metrics.read import VIEW
from fedbench.planner.runs import SEEDS, text
from fedbench.planner.table.spec import VIEWS, Column
from fedbench.reports.compare.comparison import Comparison, Group, Number, clients, compare, scale, why_not
from fedbench.reports.compare.ranks import LEVEL, Signed, holm, least_p, wilcoxon
from fedbench.reports.layout import times
from fedbench.reports.layout.grid import Entry, Grid, Head, Line, filled, ranked
from fedbench.reports.layout.shipped import of_runs
from fedbench.reports.numbers.agreement import signed
from fedbench.reports.numbers.measured import Value
from fedbench.results.frame import Run, State, by_other_code
from fedbench.words import counted, plain

# -- pairs -----------------------------------------------------------------------------------------------------
# Tests between each two groups of runs on the same data, paired over the seeds or the clients that both have.


#: What the values of a test can be paired over.
OVER = ("seeds", "clients")
#: By default, tests with at least this many common seeds are paired over seeds, others over clients.
SEEDS_ENOUGH = 3
#: Maximal number of pairs in a table.
MOST = 300


@dataclass(frozen=True, eq=False)
class Pair:
    """Two groups on the same data, compared by the comparison's first number."""

    place: str  #: data set and partition
    first: Group
    second: Group
    over: str  #: one of OVER
    differences: np.ndarray  #: [n], first - second, in the stored unit
    test: Signed | None  #: None if n = 0
    adjusted: float = 1.0  #: p after Holm's correction for all pairs


def in_pairs(side: Comparison, over: str | None = None) -> list[Pair]:
    """All pairs of groups on the same data, tested over common seeds if there are `SEEDS_ENOUGH`, else over clients of
    common partitions; `over` (one of `OVER`) overrides this.

    Raises FedbenchError if no two groups have the same data, if there are more than `MOST` pairs, and if `over` is
    "clients" but the number has no per-client values.
    """
    number = side.numbers[0]
    couples = [(at, a, b) for at, groups in side.places.items() for a, b in combinations(groups, 2)]
    if not couples:
        raise FedbenchError("no two rows are on the same data, so there is nothing to test", "choose others by filters")
    if len(couples) > MOST:
        raise FedbenchError(
            f"{len(couples)} pairs of rows are too many to test (at most {MOST})", "choose fewer rows by filters"
        )
    if over == "clients" and not number.each:
        raise FedbenchError(f"single clients have no {number.name}", "test it over seeds: --over seeds")
    pairs = [_pair(side, number, at, a, b, over) for at, a, b in couples]
    adjusted = iter(holm([pair.test.p for pair in pairs if pair.test]))
    return [dataclasses.replace(pair, adjusted=next(adjusted)) if pair.test else pair for pair in pairs]


def _pair(side: Comparison, number: Number, at: str, first: Group, second: Group, over: str | None) -> Pair:
    seeds = _difference(_over_seeds(side, number, first), _over_seeds(side, number, second))
    if over != "seeds" and number.each and (over == "clients" or len(seeds) < SEEDS_ENOUGH):
        over = "clients"
        differences = _difference(_over_clients(side, number, first), _over_clients(side, number, second))
    else:
        over, differences = "seeds", seeds
    return Pair(at, first, second, over, differences, wilcoxon(differences) if len(differences) else None)


def _over_seeds(side: Comparison, number: Number, group: Group) -> dict[tuple[object, ...], float]:
    """(*seeds, partition) -> the number."""
    values = {
        (*(run.values.get(seed) for seed in SEEDS), run.values["partition"]): side.values.get((run.id, number.name))
        for run in group
    }
    return {seeds: value for seeds, value in values.items() if value is not None}


def _over_clients(side: Comparison, number: Number, group: Group) -> dict[tuple[object, ...], float]:
    """(Partition, client) -> the mean over the runs on that partition."""
    measured = ((run, side.metrics[run.id]) for run in group if run.id in side.metrics)
    values = ((run, clients(run, metrics, side.view, number.each)) for run, metrics in measured)
    by_client = by_key(
        ((run.values["partition"], client), value)
        for run, of_clients in values
        for client, value in enumerate(of_clients.tolist())
        if not np.isnan(value)
    )
    return {client: float(np.mean(of_runs)) for client, of_runs in by_client.items()}


def _difference(first: dict[tuple[object, ...], float], second: dict[tuple[object, ...], float]) -> np.ndarray:
    return np.array([value - second[key] for key, value in first.items() if key in second])


def pairs_grid(side: Comparison, pairs: Sequence[Pair]) -> Grid:
    """A grid with one row per pair: the mean difference, p, Holm's p and the effect size."""
    number = side.numbers[0]
    factor, unit, decimals = scale(number.unit, [float(p.differences.mean()) for p in pairs if p.test])
    places = len({pair.place for pair in pairs}) > 1
    keys = ("data",) * places + ("first", "second", "paired over")
    heads = (
        Head("", "Difference", f"{number.name} (first - second)", "points" if unit == "%" else unit),
        Head("", "p", "p", ""),
        Head("", "p (Holm)", "p (Holm)", ""),
        Head("", "Effect", "rank-biserial correlation", ""),
    )
    lines = []
    for pair in pairs:
        first, second = side.label_there(pair.first), side.label_there(pair.second)
        data = (pair.place,) if places else ()
        texts = (*data, first, second, counted(len(pair.differences), pair.over.removesuffix("s")))
        line = ": ".join([*data, f"{first} against {second}"])
        lines.append(Line(line, "run", tuple(_cells(pair, factor, decimals)), keys=texts))
    return _of_runs("test", f"{number.label} in pairs", keys, heads, lines, _notes_on_pairs(pairs))


def _cells(pair: Pair, factor: float, decimals: int) -> Iterable[Entry]:
    runs = tuple(run.id for run in (*pair.first, *pair.second))
    if pair.test is None:
        yield from [Entry(State.UNDEFINED, runs=runs)] * 4
        return
    n, mean = len(pair.differences), float(pair.differences.mean()) * factor
    numbers: list[tuple[float, str]] = [
        (mean, signed(mean, decimals)),
        (pair.test.p, _p(pair.test.p)),
        (pair.adjusted, _p(pair.adjusted)),
        (pair.test.effect, signed(pair.test.effect, 2)),
    ]
    for value, printed in numbers:
        yield Entry(State.DONE, printed, value=Value(value, count=n), runs=runs)


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _notes_on_pairs(pairs: Sequence[Pair]) -> Iterable[str]:
    words = {
        "seeds": "over common seeds on the same partitions",
        "clients": "over the clients of common partitions, each one's mean over the runs there: it says nothing of "
        "what another seed would give",
    }
    pairings = [words[over] for over in OVER if any(pair.over == over for pair in pairs)]
    several = f" Holm: p corrected for {len(pairs)} pairs." if len(pairs) > 1 else ""
    yield (
        f"Wilcoxon's signed-rank test, two-sided, paired {'; or '.join(pairings)}.{several} Effect: rank-biserial "
        "correlation, from −1 to +1 (first better on every pair, where more is better)."
    )
    whole = [pair for pair in pairs if pair.test]
    ns = [len(pair.differences) for pair in whole]
    few = {(n, pair.over) for n, least, pair in zip(ns, holm([*map(least_p, ns)]), whole, strict=True) if least > LEVEL}
    for n, over in sorted(few):
        more = "train more seeds, or take --over clients" if over == "seeds" else "more clients or partitions can"
        corrected = f" in {len(whole)} pairs" if len(whole) > 1 and least_p(n) <= LEVEL else ""
        pairs_ = counted(n, over.removesuffix("s"))
        yield f"{pairs_}{corrected}: no test can reach {LEVEL} (p is {least_p(n):.2g} at the least); {more}."
    if lone := len(pairs) - len(whole):
        yield f"{counted(lone, 'pair')} with nothing in common to pair: no seed and no partition."


# -- layout ----------------------------------------------------------------------------------------------------


def side_by_side(
    runs: Sequence[Run],
    metrics: Sequence[str] = (),
    *,
    sort: str | None = None,
    test: bool = False,
    over: str | None = None,
    view: str = VIEW,
) -> list[Grid]:
    """The grid of a comparison of the runs, and with `test` the grid of its pairs, tested `over` one of `OVER`.

    Raises FedbenchError as `compare` and `in_pairs` do, and for invalid options.
    """
    check_known("test augmentation", view, VIEWS)
    if over is not None and not test:
        raise FedbenchError("--over goes with --test only", "add it, or leave --over out")
    check_known("pairing", over, OVER)
    side = compare(runs, metrics, sort=sort, view=view)
    if not side.metrics:
        raise FedbenchError(f"no run has metrics: {side.problems[0]}")
    return [grid(side), *([pairs_grid(side, in_pairs(side, over))] if test else [])]


def grid(side: Comparison) -> Grid:
    """A grid with one row per group: distinguishing values, then numbers, the best two of each data set marked."""
    columns = [_column(side, number) for number in side.numbers]
    if len({len(group) for group in side.groups}) > 1:
        columns.append((Head("", "Seeds", "seeds", ""), [_count(group) for group in side.groups]))
    keys = tuple(side.keys) or ("method",)
    cells = zip(*(entries for _, entries in columns), strict=True) if columns else [()] * len(side.groups)
    heads = [head for head, _ in columns]
    lines = [_line(side, group, keys, entries) for group, entries in zip(side.groups, cells, strict=True)]
    return _of_runs("compare", _title(side), keys, heads, lines, _notes(side), side.problems)


def _of_runs(
    id: str, title: str, keys: Sequence[str], heads: Iterable[Head], lines: Iterable[Line], about: Iterable[str],
    problems: Sequence[str] = (),
) -> Grid:  # fmt: skip
    """A grid that belongs to no paper and has no budget."""
    return Grid(
        id=id, title=title, stub="", keys=tuple(keys), budget="", precision="", scope="", heads=tuple(heads),
        lines=tuple(lines), about=tuple(about), problems=tuple(problems), of_paper=False,
    )  # fmt: skip


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
    common = {key: {_print(side, run, key) for run in side.runs} for key in ("method", "dataset", "split")}
    of, *on = (next(iter(values)) if len(values) == 1 else "" for values in common.values())
    runs = counted(len(side.runs), "run")
    return f"{runs}{of and f' of {of}'}" + (f" on {', '.join(filter(None, on))}" if any(on) else "")


def _column(side: Comparison, number: Number) -> tuple[Head, list[Entry]]:
    values = [side.value(group, number) for group in side.groups]
    factor, unit, decimals = scale(number.unit, [value.mean for value in values if value])
    form = Column(number.label, decimals=decimals, std_decimals=max(decimals, 1))
    entries = [_entry(side, group, value, factor, form) for group, value in zip(side.groups, values, strict=True)]
    head = Head(number.group, number.label, number.name, unit)
    apart = number.unit == "seconds" and times.of_many_processors(run.artifact.provenance for run in side.runs)
    return head, entries if number.best == "none" or apart else _ranked(side, entries, number.best, decimals)


def _entry(side: Comparison, group: Group, value: Value | None, factor: float, form: Column) -> Entry:
    unread = any(run.id not in side.metrics for run in group)
    if value is None:
        return Entry(State.DAMAGED if unread else State.UNDEFINED)
    state = State.STALE if any(r.stale for r in group) else State.DONE
    if value.count < len(group):
        state = State.DAMAGED if unread else State.MISSING
    # A count that is equal in all runs, such as rounds, has no ±.
    std = None if value.std is None or value.std == form.decimals == 0 else value.std * factor
    seeds = {seed: one * factor for seed, one in value.per_seed.items()}
    printed = dataclasses.replace(value, mean=value.mean * factor, std=std, seed_std=std, per_seed=seeds)
    entry = filled(state, printed, form, tuple(run.id for run in group))
    return dataclasses.replace(entry, shipped=any(run.shipped for run in group))


def _ranked(side: Comparison, entries: Sequence[Entry], best: str, decimals: int) -> list[Entry]:
    """The entries, with the best and the second best of each data set and partition marked."""
    by_run = {group[0].id: entry for group, entry in zip(side.groups, entries, strict=True)}
    for groups in side.places.values():
        ids = [group[0].id for group in groups]
        by_run |= zip(ids, ranked([by_run[id] for id in ids], best, decimals), strict=True)
    return [by_run[group[0].id] for group in side.groups]


def _notes(side: Comparison) -> Iterable[str]:
    """Lines on the meaning of ±, the definitions of the numbers, the origin of the runs, and missing numbers."""
    best = " Best and second best are those of each data set and partition." if len(side.places) > 1 else ""
    yield over_seeds(side.groups) + best
    if side.others:
        names = ", ".join(key.replace("_", " ") for key in side.others)
        yield f"From one data set or partition to another differ also: {names}."
    images = (
        "test images as they are" if side.view == "plain" else f"test images in view {side.view}, where a run has it"
    )
    what = "; ".join(number.what for number in side.numbers if number.what)
    yield f"After the last round, on {images}. {what[:1].upper()}{what[1:]}."
    yield from _machines(side)
    yield from by_other_code(side.runs)
    yield from of_runs(run.shipped for run in side.runs if run.shipped)
    absent = (
        ((number.label, why_not(number, run, side.metrics[run.id])), side.names_of_methods[run.id])
        for number in side.numbers
        for run in side.runs
        if run.id in side.metrics and side.values[run.id, number.name] is None
    )
    for (name, why), titles in by_key(absent, once=True).items():
        yield f"No {name}: {', '.join(titles)} ({why})."


def over_seeds(groups: Sequence[Group]) -> str:
    """A sentence on the runs that the mean and ± of groups are over."""
    counts = sorted({len(group) for group in groups})
    if counts == [1]:
        return "One run a row, so no ±: 'fedbench sweep --seeds 0-2' makes more."
    drawn = [len({run.values["partition"] for run in group}) for group in groups]
    many = all(parts == len(group) for parts, group in zip(drawn, groups, strict=True))
    of = (
        "each with a draw of the partition of its own"
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
        yield f"Times are those of different executors, so not to be compared: {', '.join(sorted(map(plain, where)))}."
    yield from map(plain, times.processors(provenances))
