"""What seeds alone may make of a number, which a claim or the mark of the best must go beyond.

Two numbers differ if they lie further apart than two standard errors of their difference, 2 sqrt(s²/n + t²/m), where s
and t are their standard deviations (ddof 1) over n and m seeds. A number of one seed takes s from runs that differ from
its own in seeds alone, wherever they are (in another table, a pack, the store), with n = 1; else the root mean square
of its column's other s. Where there is none, the noise is unknown, and numbers are compared as they are. (Marks take no
s from elsewhere: a column in which no number is of several seeds is marked as it prints.)

Two standard errors leave out 5 % of equal pairs where seeds are many; of three seeds each, more (Student's t asks for
2.8). So what lies within is not decided, and what lies beyond is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Noise(NamedTuple):
    """Of one number: the standard deviation (ddof 1) over seeds, in its unit, and the seeds that it is the mean of."""

    std: float
    seeds: int


def two_errors(*parts: tuple[float, Noise | None]) -> float | None:
    """Two standard errors of a sum of numbers, each (weight, noise); None if the noise of one is unknown."""
    variances = [weight**2 * noise.std**2 / noise.seeds for weight, noise in parts if noise is not None]
    return 2 * math.sqrt(math.fsum(variances)) if len(variances) == len(parts) else None


def pooled(column: Iterable[Noise | None]) -> list[Noise | None]:
    """The noises of a column's numbers; of those of one seed it is that of the others, if any is known."""
    column = list(column)
    known = [noise.std**2 for noise in column if noise is not None]
    usual = Noise(math.sqrt(math.fsum(known) / len(known)), 1) if known else None
    return [noise or usual for noise in column]


def ranks(numbers: Sequence[float], noises: Iterable[Noise | None], decimals: int) -> list[int]:
    """Of a column's numbers: 1 for the best (the greatest) and all within two standard errors of it, 2 for the second
    unless others are as near to it, 0 for the rest; only zeros where nothing differs. What prints alike is alike."""
    noises, found, left = pooled(noises), [0] * len(numbers), [*range(len(numbers))]
    for rank in (1, 2):
        best = max(left, key=lambda i: numbers[i], default=None)
        if best is None:
            break
        printed = [i for i in left if round(numbers[i], decimals) == round(numbers[best], decimals)]
        alike = [i for i in left if numbers[best] - numbers[i] <= (two_errors((1, noises[best]), (1, noises[i])) or 0)]
        marked = {*printed, *alike}
        if len(marked) == len(numbers):
            break
        if rank == 1 or len(marked) == len(printed):
            for i in marked:
                found[i] = rank
        left = [i for i in left if i not in marked]
    return found
