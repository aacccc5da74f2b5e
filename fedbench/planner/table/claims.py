"""Claims that a paper draws from a table, checked on any set of numbers: ours or the paper's own.

A comparison whose margin lies within two standard errors (`noise`) is undecided. A claim fails where one comparison
fails beyond its noise; else it is undecided if one is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, NamedTuple

from fedbench.reader import Between

# -- noise -----------------------------------------------------------------------------------------------------
# What seeds alone may make of a number, which a claim or the mark of the best must go beyond.
#
# Two numbers differ if they lie further apart than two standard errors of their difference, 2 sqrt(s²/n + t²/m), where
# s
# and t are their standard deviations (ddof 1) over n and m seeds. A number of one seed takes s from runs that differ
# from
# its own in seeds alone, wherever they are (in another table, a pack, the store), with n = 1; else the root mean
# square
# of its column's other s. Where there is none, the noise is unknown, and numbers are compared as they are. (Marks take
# no
# s from elsewhere: a column in which no number is of several seeds is marked as it prints.)
#
# Two standard errors leave out 5 % of equal pairs where seeds are many; of three seeds each, more (Student's t asks
# for
# 2.8). So what lies within is not decided, and what lies beyond is no proof.


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


# -- claims ----------------------------------------------------------------------------------------------------


#: (row label, column key) -> value in the printed unit; cells without a number are left out.
Numbers = Mapping[tuple[str, str], float]

#: (row label, column key) -> what its seeds say; without those whose noise is unknown. None: the numbers are exact.
Noises = Mapping[tuple[str, str], Noise] | None

HOLDS, FAILS, UNDECIDED, SO_FAR, OPEN = "holds", "fails", "undecided", "holds so far", "not measured"
#: More seeds than this decide nothing that is worth deciding.
MOST = 1000


@dataclass(frozen=True)
class Claim:
    """An ordering of a table's cells. Rows or columns that are not given are all of the table's.

    best     each row is the best of its column (ties allowed)
    top      each row is among the `k` best of its column (equal values share a rank)
    above    each row is above each row of `than`, in every column;   below: the reverse
    falls    along `columns` in their order, for each row;            rises: the reverse
    between  each cell lies in [low, high]
    ratio    each row is `low` to `high` times each row of `than`, in every column
    ahead    each row is `low` to `high` above each row of `than`, in every column
    level    along `columns`, each row stays within `high` of its value in the first
    """

    text: str
    kind: str
    rows: list[str] = field(default_factory=list)
    than: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    k: Annotated[int, Between(1, 10**9)] = 1
    low: float = 0.0
    high: float = 0.0
    reported: bool | None = None  #: whether it holds on the paper's own numbers, checked by the tests


@dataclass(frozen=True)
class Where:
    """The cells that a comparison is between."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' and '.join(self.rows)}, {' to '.join(self.columns)}"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: `state` is one of HOLDS, FAILS, UNDECIDED (within the noise of the seeds), SO_FAR (some
    numbers missing) and OPEN (none)."""

    claim: Claim
    state: str
    held: int  #: comparisons that hold, beyond the noise where that is known
    made: int  #: comparisons whose numbers are there
    asked: int  #: comparisons of the claim
    detail: str = ""  #: where it fails, or where it holds most narrowly
    where: Where | None = None  #: that place
    unsure: int = 0  #: comparisons within the noise


def of_part(verdict: Verdict) -> Verdict:
    """The verdict on a claim about all of a table's columns where only some of them are there."""
    return dataclasses.replace(verdict, state=SO_FAR) if verdict.state == HOLDS else verdict


class Comparison(NamedTuple):
    """One comparison of a claim."""

    where: Where
    margin: float | None  #: negative: it fails; None: too few numbers
    whole: bool  #: whether all the numbers are there (else the margin says only how things stand so far)
    noise: float | None = 0.0  #: two standard errors of the margin; None: unknown
    seeds: int = 1  #: the fewest that one of its numbers is of

    @property
    def unsure(self) -> bool:
        """Whether the margin lies within the noise. (What is equal to the last digit is the same.)"""
        return bool(self.margin and self.noise and abs(self.margin) <= self.noise)

    def __str__(self) -> str:
        """How far, and of how many seeds, if that leaves it undecided; and what would decide it."""
        assert self.margin is not None
        if not self.unsure:
            return f"{abs(self.margin):.4g} at {self.where}" + (
                " (one seed: noise unknown)" if self.noise is None else ""
            )
        assert self.noise is not None
        needed = max(self.seeds + 1, round(self.seeds * (self.noise / self.margin) ** 2))
        more = f"about {needed} seeds" if needed <= MOST else f"not even {MOST:,} seeds"
        of = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        off = f"{abs(self.margin):.4g} {'ahead' if self.margin > 0 else 'short'} at {self.where}"
        return f"{off}, within the noise of {of} (two standard errors: {self.noise:.2g}); {more} would decide it"


def judge(
    claim: Claim,
    numbers: Numbers,
    rows: Sequence[str],
    columns: Sequence[str],
    best: Mapping[str, str],
    undefined: Collection[tuple[str, str]] = (),
    noises: Noises = None,
) -> Verdict:
    """Check `claim` on `numbers`; `rows` and `columns` are the table's, `best` maps a column to "max" or "min".

    `undefined` are (row label, column key) of cells that have no number: nothing is compared with them.
    `noises` are what seeds say of the numbers; None of exact ones.
    """
    chosen_rows, chosen_columns = claim.rows or list(rows), claim.columns or list(columns)
    asked: list[Comparison] = []
    if undefined and claim.kind in _BY_COLUMN:
        for column in chosen_columns:
            there = [r for r in rows if (r, column) not in undefined]
            own, than = ([r for r in names if r in there] for names in (chosen_rows, claim.than))
            narrowed = dataclasses.replace(claim, than=than)
            asked += KINDS[claim.kind](narrowed, numbers, own, [column], there, best, noises)
    else:
        asked += KINDS[claim.kind](claim, numbers, chosen_rows, chosen_columns, list(rows), best, noises)
    made = [(one.margin, one) for one in asked if one.margin is not None]
    unsure = [(margin, one) for margin, one in made if one.unsure]
    failed = [(margin, one) for margin, one in made if not one.unsure and not _passes(claim, margin)]
    state = FAILS if failed else UNDECIDED if unsure else OPEN if not made else SO_FAR
    if state == SO_FAR and all(one.whole for one in asked):
        state = HOLDS
    detail, where = "", None
    if made and (failed or unsure or claim.kind != "between"):
        _, narrowest = min(failed or unsure or made, key=lambda one: one[0])
        before = "fails by " if failed else "" if unsure else "smallest margin "
        detail, where = f"{before}{narrowest}", narrowest.where
    held = len(made) - len(failed) - len(unsure)
    return Verdict(claim, state, held, len(made), len(asked), detail, where, len(unsure))


def _passes(claim: Claim, margin: float) -> bool:
    """Orderings between two cells are strict; a rank and an interval include their ends."""
    return margin > 0 if claim.kind in ("above", "below", "falls", "rises") else margin >= 0


def _doubt(noises: Noises, *parts: tuple[tuple[str, str], float]) -> tuple[float | None, int]:
    """Of a sum of cells, each (row and column, weight): two standard errors, None if unknown, and its fewest seeds."""
    if noises is None:
        return 0.0, 1
    own = [(weight, noises.get(place)) for place, weight in parts]
    return two_errors(*own), min((noise.seeds for _, noise in own if noise), default=1)


def _ranked(
    claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str],
    noises: Noises,
) -> Iterator[Comparison]:  # fmt: skip
    """Margin over the k-th best of the other rows (nothing to compare with while fewer than k others are there)."""
    k = claim.k if claim.kind == "top" else 1
    for column in columns:
        sign = -1.0 if best.get(column) == "min" else 1.0
        for row in rows:
            own, where = numbers.get((row, column)), Where((row,), (column,))
            others = sorted(
                ((sign * numbers[r, column], r) for r in every if r != row and (r, column) in numbers), reverse=True
            )
            if own is None or len(others) < k:
                yield Comparison(where, None, False)
                continue
            value, rival = others[k - 1]
            doubt = _doubt(noises, ((row, column), 1), ((rival, column), 1))
            margin = round(sign * own - value, 9)
            yield Comparison(where, margin, len(others) == len(every) - 1, *doubt)


def _compared(
    margin: Callable[[Claim, float, float], float | None],
    weights: Callable[[float, float], tuple[float, float]] = lambda a, b: (1.0, 1.0),
) -> Callable[..., Iterator[Comparison]]:
    """`weights`: how much a margin changes with each of its two numbers."""

    def compare(
        claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str],
        noises: Noises,
    ) -> Iterator[Comparison]:  # fmt: skip
        for column in columns:
            for row in rows:
                for other in claim.than:
                    a, b = numbers.get((row, column)), numbers.get((other, column))
                    found = None if a is None or b is None else margin(claim, a, b)
                    where = Where((row, other), (column,))
                    if found is None or a is None or b is None:
                        yield Comparison(where, None, False)
                        continue
                    of_a, of_b = weights(a, b)
                    doubt = _doubt(noises, ((row, column), of_a), ((other, column), of_b))
                    yield Comparison(where, round(found, 9), True, *doubt)

    return compare


def _times(claim: Claim, a: float, b: float) -> float | None:
    """How far a / b lies inside the claim's interval; None where there is no such ratio."""
    return min(a / b - claim.low, claim.high - a / b) if b else None


def _ahead(claim: Claim, a: float, b: float) -> float:
    """How far a - b lies inside the claim's interval."""
    return min(a - b - claim.low, claim.high - (a - b))


def _along(margin: Callable[[Claim, float, float], float], steps: bool) -> Callable[..., Iterator[Comparison]]:
    """From column to column (`steps`), or from the first one to each of the others."""

    def compare(
        claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str],
        noises: Noises,
    ) -> Iterator[Comparison]:  # fmt: skip
        for row in rows:
            for first, second in pairwise(columns) if steps else ((columns[0], other) for other in columns[1:]):
                a, b = numbers.get((row, first)), numbers.get((row, second))
                found = None if a is None or b is None else round(margin(claim, a, b), 9)
                doubt = _doubt(noises, ((row, first), 1), ((row, second), 1))
                yield Comparison(Where((row,), (first, second)), found, found is not None, *doubt)

    return compare


def _bounded(
    claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str],
    noises: Noises,
) -> Iterator[Comparison]:  # fmt: skip
    for row in rows:
        for column in columns:
            value = numbers.get((row, column))
            margin = None if value is None else min(value - claim.low, claim.high - value)
            doubt = _doubt(noises, ((row, column), 1))
            yield Comparison(Where((row,), (column,)), margin, margin is not None, *doubt)


KINDS: dict[str, Callable[..., Iterator[Comparison]]] = {
    "best": _ranked,
    "top": _ranked,
    "above": _compared(lambda _, a, b: a - b),
    "below": _compared(lambda _, a, b: b - a),
    "falls": _along(lambda _, a, b: a - b, steps=True),
    "rises": _along(lambda _, a, b: b - a, steps=True),
    "between": _bounded,
    "ratio": _compared(_times, lambda a, b: (1 / b, a / b**2)),
    "ahead": _compared(_ahead),
    "level": _along(lambda claim, a, b: claim.high - abs(a - b), steps=False),
}

#: Kinds that compare within one column.
_BY_COLUMN = ("best", "top", "above", "below", "between", "ratio", "ahead")
