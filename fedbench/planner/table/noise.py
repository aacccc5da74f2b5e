"""The variation of a number between seeds. A claim, or the mark of the best, needs a larger difference.

Two numbers differ if their difference exceeds its two standard errors, 2 sqrt(s²/n + t²/m), where s and t are their
standard deviations (ddof 1) over n and m seeds. A number of one seed, n = 1, takes its s from elsewhere:
for claims as `reports.layout.verdicts` says, for marks from the other numbers of its column (if all of these have one
seed, the printed values decide).

With many seeds, 5 % of equal pairs differ by more than two standard errors; with three seeds each, more (Student's t
needs 2.8). So a smaller difference decides nothing, and a larger one is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class SeedNoise(NamedTuple):
    """A number's standard deviation (ddof 1) over seeds, in its unit, and the number of seeds in its mean."""

    std: float
    seeds: int


def two_errors(*parts: tuple[float, SeedNoise | None]) -> float | None:
    """Two standard errors of a weighted sum; `parts`: (weight, noise) of each number. None if a noise is unknown."""
    variances = [weight**2 * noise.std**2 / noise.seeds for weight, noise in parts if noise is not None]
    return 2 * math.sqrt(math.fsum(variances)) if len(variances) == len(parts) else None


def pooled(column: Iterable[SeedNoise | None]) -> list[SeedNoise | None]:
    """The noises of a column's numbers; an unknown one becomes the root mean square of the known ones, if any."""
    column = list(column)
    known = [noise.std**2 for noise in column if noise is not None]
    usual = SeedNoise(math.sqrt(math.fsum(known) / len(known)), 1) if known else None
    return [noise or usual for noise in column]


def ranks(numbers: Sequence[float], noises: Iterable[SeedNoise | None], decimals: int) -> list[int]:
    """Ranks of a column's numbers: 1 for the largest and all within two standard errors of it, 2 for the second unless
    others are within its noise, 0 for the rest; all 0 if none differs. Equal printed numbers have equal ranks."""
    noises, found, unranked = pooled(noises), [0] * len(numbers), [*range(len(numbers))]
    for rank in (1, 2):
        best = max(unranked, key=lambda i: numbers[i], default=None)
        if best is None:
            break
        printed = [i for i in unranked if round(numbers[i], decimals) == round(numbers[best], decimals)]
        near = [
            i for i in unranked if numbers[best] - numbers[i] <= (two_errors((1, noises[best]), (1, noises[i])) or 0)
        ]
        marked = {*printed, *near}
        if len(marked) == len(numbers):
            break
        if rank == 1 or len(marked) == len(printed):
            for i in marked:
                found[i] = rank
        unranked = [i for i in unranked if i not in marked]
    return found
