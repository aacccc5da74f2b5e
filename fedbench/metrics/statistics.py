"""Means and standard deviations as the papers compute them; undefined ones are NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of `count` values; one value has no standard deviation."""

    mean: float
    std: float
    count: int


def _summary(values: Iterable[float], ddof: int) -> Summary:
    array = np.fromiter(values, np.float64)
    if not len(array):
        return Summary(math.nan, math.nan, 0)
    std = float(array.std(ddof=ddof)) if len(array) > 1 else math.nan
    return Summary(float(array.mean()), std, len(array))


def worst_tenth(values: np.ndarray) -> float:
    """Mean of the worst tenth of the clients, at least one (Li et al., Fair Resource Allocation in Federated Learning,
    ICLR 2020, Table 1)."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())


def last_rounds(values_by_round: Mapping[int, float], window: int) -> Summary:
    """Over the last `window` rounds of one run, population standard deviation (FedDRM, Tables 1 to 4).

    The window is counted in rounds back from the last evaluated one: sparse evaluations before it do not count,
    and a `count` below `window` says that rounds in it were not evaluated. Round 0 (the whole run) never counts.
    """
    last = max(values_by_round, default=0)
    return _summary((v for t, v in sorted(values_by_round.items()) if t > max(0, last - window)), ddof=0)


def best_round(values_by_round: Mapping[int, float]) -> int | None:
    """The evaluated round with the largest value, the earliest of ties; round 0 (the whole run) never counts.

    Test data choose the round (FTW-ERM, Table 7), so its value is optimistic. None without rounds.
    """
    rounds = sorted(t for t in values_by_round if t > 0)
    return max(rounds, key=values_by_round.__getitem__, default=None)


def warm_rounds(values_by_round: Mapping[int, float]) -> Summary:
    """Over all rounds of one run except the first, sample standard deviation (pFedFDA, Table 9).

    The first round includes allocations and compilation. With fewer than three rounds it counts, too. Round 0 (the
    whole run) never counts.
    """
    rounds = sorted(t for t in values_by_round if t > 0)
    return _summary((values_by_round[t] for t in rounds[1 if len(rounds) > 2 else 0 :]), ddof=1)


def across_clients(values: Iterable[float]) -> Summary:
    """Across clients, unweighted, sample standard deviation (pFedFDA, Tables 1 and 2)."""
    return _summary(values, ddof=1)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Weighted mean of the clients' values; weights: numbers of test images (pFedFDA, official code)."""
    return float(np.average(values, weights=weights))


def across_seeds(values: Iterable[float], ddof: int = 1) -> Summary:
    """Across runs that differ only in the seed: sample standard deviation, or with ddof 0 that of a population.

    FLUX calls its seeds folds and uses ddof 0 (its published code).
    """
    return _summary(values, ddof)


#: Rule -> function from means and their ± to the ± of the overall mean (FLUX: Tables 1, 8, 63 and 65).
SPREADS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "rms": lambda means, stds: math.sqrt(math.fsum(s * s for s in stds) / len(stds)),
    "mean": lambda means, stds: math.fsum(stds) / len(stds),
    "propagated": lambda means, stds: math.sqrt(math.fsum(s * s for s in stds)) / len(stds),
    "sample": lambda means, stds: _summary(means, ddof=1).std,
}


def spread_of_mean(how: str, means: Sequence[float], stds: Sequence[float | None]) -> float | None:
    """The ± of the mean over parts with these means and ±, by the rule `how` of `SPREADS`.

    None if undefined: a part lacks a needed ±, or rule "sample" has only one part.
    """
    spreads = [s for s in stds if s is not None]
    if how != "sample" and len(spreads) < len(stds):
        return None
    spread = SPREADS[how](means, spreads)
    return None if math.isnan(spread) else spread
