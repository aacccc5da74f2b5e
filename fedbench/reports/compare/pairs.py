"""Tests between each two groups of runs on the same data, paired over the seeds or the clients that both have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.planner.runs import SEEDS
from fedbench.reports.compare.comparison import Comparison, Group
from fedbench.reports.compare.numbers import Quantity, clients, scale
from fedbench.reports.compare.significance import LEVEL, Signed, holm, least_p, wilcoxon
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line, grid_of_runs
from fedbench.reports.numbers.agreement import signed
from fedbench.reports.numbers.measured import Value
from fedbench.results.run import State
from fedbench.words import counted

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
    adjusted: float = 1.0  #: p after Holm's correction for all pairs that are paired over the same


def in_pairs(side: Comparison, over: str | None = None) -> list[Pair]:
    """All pairs of groups on the same data, tested over common seeds if there are `SEEDS_ENOUGH`, else over clients of
    common partitions; `over` (one of `OVER`) overrides this.

    Raises FedbenchError if no two groups have the same data, if there are more than `MOST` pairs, and if `over` is
    "clients" but the number has no per-client values.
    """
    number = side.numbers[0]
    if number.beside or any(side.never(group, number) for group in side.groups):
        says = "compares two runs itself" if number.beside else "is not reached in every run"
        raise FedbenchError(f"{number.name} {says}, so there is nothing to test", "test another metric")
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
    families = by_key((pair.over, pair.test.p) for pair in pairs if pair.test)
    adjusted = {name: iter(holm(ps)) for name, ps in families.items()}
    return [dataclasses.replace(pair, adjusted=next(adjusted[pair.over])) if pair.test else pair for pair in pairs]


def _pair(side: Comparison, number: Quantity, at: str, first: Group, second: Group, over: str | None) -> Pair:
    seeds = _difference(_over_seeds(side, number, first), _over_seeds(side, number, second))
    if over != "seeds" and number.each and (over == "clients" or len(seeds) < SEEDS_ENOUGH):
        over = "clients"
        differences = _difference(_over_clients(side, number, first), _over_clients(side, number, second))
    else:
        over, differences = "seeds", seeds
    return Pair(at, first, second, over, differences, wilcoxon(differences) if len(differences) else None)


def _over_seeds(side: Comparison, number: Quantity, group: Group) -> dict[tuple[object, ...], float]:
    """(*seeds, partition) -> the number."""
    values = {
        (*(run.values.get(seed) for seed in SEEDS), run.values["partition"]): side.values.get((run.id, number.name))
        for run in group
    }
    return {seeds: value for seeds, value in values.items() if value is not None}


def _over_clients(side: Comparison, number: Quantity, group: Group) -> dict[tuple[object, ...], float]:
    """(Partition, client) -> the mean over the runs on that partition."""
    values = ((run, clients(side.runs_at[run.id], number.each)) for run in group if run.id in side.runs_at)
    by_client = by_key(
        ((run.values["partition"], client), value)
        for run, of_clients in values
        for client, value in enumerate(of_clients.tolist())
        if not np.isnan(value)
    )
    return {client: float(np.mean(of_runs)) for client, of_runs in by_client.items()}


def _difference(first: dict[tuple[object, ...], float], second: dict[tuple[object, ...], float]) -> np.ndarray:
    return np.array([value - second[key] for key, value in first.items() if key in second])


def too_few(n: int, pairs: int, over: str) -> str:
    """A sentence, without a full stop, that n seeds or clients are too few for any of so many pairs; "" if they are
    enough."""
    if min(1.0, pairs * least_p(n)) <= LEVEL:
        return ""
    corrected = f" in {pairs} pairs" if pairs > 1 and least_p(n) <= LEVEL else ""
    return (
        f"{counted(n, over.removesuffix('s'))}{corrected}: no test can reach {LEVEL} "
        f"(p is {least_p(n):.2g} at the least)"
    )


def enough(pairs: int) -> int:
    """The smallest number of seeds with which the test of a pair among so many can reach LEVEL."""
    return next(n for n in range(1, 100) if pairs * least_p(n) <= LEVEL)


def pairs_grid(side: Comparison, pairs: Sequence[Pair]) -> Grid:
    """A grid with one row per pair: the mean difference, p, Holm's p and the effect size."""
    number = side.numbers[0]
    factor, unit, decimals = scale(number.unit, [float(p.differences.mean()) for p in pairs if p.test])
    places = len({pair.place for pair in pairs}) > 1
    keys = ("data",) * places + ("first", "second", "paired over")
    heads = (
        Heading("", "Difference", f"{number.name} (first - second)", "points" if unit == "%" else unit),
        Heading("", "p", "p", ""),
        Heading("", "p (Holm)", "p (Holm)", ""),
        Heading("", "Effect", "rank-biserial correlation", ""),
    )
    lines = []
    for pair in pairs:
        first, second = side.label_there(pair.first), side.label_there(pair.second)
        data = (pair.place,) if places else ()
        texts = (*data, first, second, counted(len(pair.differences), pair.over.removesuffix("s")))
        line = ": ".join([*data, f"{first} against {second}"])
        lines.append(Line(line, "run", tuple(_cells(pair, factor, decimals)), keys=texts))
    return grid_of_runs("test", f"{number.label} in pairs", keys, heads, lines, _notes_on_pairs(pairs))


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
        "clients": "over the clients of common partitions, which count alike, each one's mean over the runs there: "
        "it says nothing of what another seed would give",
    }
    pairings = [words[over] for over in OVER if any(pair.over == over for pair in pairs)]
    families = {over: [pair for pair in pairs if pair.over == over] for over in OVER}
    sizes = [f"{len(family)} pairs over {over}" for over, family in families.items() if len(family) > 1]
    several = f" Holm: p corrected for {', and apart for '.join(sizes)}." if sizes else ""
    yield (
        f"Wilcoxon's signed-rank test, two-sided, paired {'; or '.join(pairings)}.{several} Effect: rank-biserial "
        "correlation, from −1 to +1 (first better on every pair, where more is better)."
    )
    for over, family in families.items():
        more = "train more seeds, or take --over clients" if over == "seeds" else "more clients or partitions can"
        ns = [len(pair.differences) for pair in family if pair.test]
        few = {n for n, least in zip(ns, holm([*map(least_p, ns)]), strict=True) if least > LEVEL}
        yield from (f"{too_few(n, len(ns), over)}; {more}." for n in sorted(few))
    if lone := sum(pair.test is None for pair in pairs):
        yield f"{counted(lone, 'pair')} with nothing in common to pair: no seed and no partition."
