"""A paper's claims about a table, checked on any numbers: measured or reported.

A comparison whose margin is within two standard errors (`Noise`) is undecided. A claim fails if a comparison fails
beyond its noise; else it is undecided if a comparison is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, NamedTuple

from fedbench.planner.table.noise import SeedNoise, two_errors
from fedbench.reader import Among, Between

#: (row label, column key) -> value in the printed unit, for cells with a number.
Numbers = Mapping[tuple[str, str], float]

#: (row label, column key) -> noise, for cells whose noise is known. None: the numbers are exact.
Noises = Mapping[tuple[str, str], SeedNoise] | None

HOLDS, FAILS, UNDECIDED, SO_FAR, OPEN = "holds", "fails", "undecided", "holds so far", "not measured"
#: Most seeds that are worth suggesting.
MOST = 1000


@dataclass(frozen=True)
class Claim:
    """An ordering of a table's cells. Empty `rows` or `columns` mean all of the table's.

    best     each row is the best of its column (ties allowed), and leads the best other by `low` to `high`, if given
    top      each row is among the `k` best of its column (equal values share a rank)
             (both: of `than` and itself, if given)
    above    each row is above each row of `than`, in every column;   below: the reverse
    falls    along `columns` in their order, for each row;            rises: the reverse
    between  each cell lies in [low, high]
    ratio    each row is `low` to `high` times each row of `than`, in every column
    ahead    each row is `low` to `high` above each row of `than`, in every column
    level    along `columns`, each row stays within `high` of its value in the first
    """

    text: str
    kind: Annotated[str, Among("claim kind", tuple(KINDS))]
    rows: list[str] = field(default_factory=list)
    than: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    k: Annotated[int, Between(1, 10**9)] = 1
    low: float = 0.0
    high: float = 0.0
    reported: bool | None = None  #: whether it holds on the paper's numbers, checked by the tests


@dataclass(frozen=True)
class ComparedCells:
    """The cells of a comparison."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def cells(self) -> list[tuple[str, str]]:
        return [(row, column) for row in self.rows for column in self.columns]

    def __str__(self) -> str:
        return f"{' and '.join(self.rows)}, {' to '.join(self.columns)}"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: `state` is one of HOLDS, FAILS, UNDECIDED (within the noise of the seeds), SO_FAR (some
    numbers missing) and OPEN (none)."""

    claim: Claim
    state: str
    held: int  #: number of comparisons that hold, beyond the noise if that is known
    made: int  #: number of comparisons with all numbers
    total: int  #: number of comparisons of the claim
    detail: str = ""  #: the smallest margin and its cells
    where: ComparedCells | None = None  #: the cells with the smallest margin
    unsure: int = 0  #: number of comparisons within the noise


def of_part(verdict: Verdict) -> Verdict:
    """The verdict on a claim about all columns of a table if only some of them are present."""
    return dataclasses.replace(verdict, state=SO_FAR) if verdict.state == HOLDS else verdict


class Margin(NamedTuple):
    """One comparison of a claim."""

    where: ComparedCells
    margin: float | None  #: negative: it fails; None: too few numbers
    whole: bool  #: whether no number is missing (else the margin is preliminary)
    noise: float | None = 0.0  #: two standard errors of the margin; None: unknown
    seeds: int = 1  #: smallest number of seeds of its numbers

    @property
    def unsure(self) -> bool:
        """Whether the margin is within the noise. (A margin of zero is not: the numbers are equal.)"""
        return bool(self.margin and self.noise and abs(self.margin) <= self.noise)

    def __str__(self) -> str:
        """The margin and its cells; if undecided, also the noise and the number of seeds that would decide it."""
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


class Given(NamedTuple):
    """The numbers for claims; see `judge`."""

    numbers: Numbers
    best: Mapping[str, str]
    noises: Noises


Kind = Callable[[Claim, Given, list[str], list[str], list[str]], Iterator[Margin]]


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

    `undefined`: (row label, column key) of cells that never have a number, which comparisons skip. `noises`: noise of
    the numbers; None if they are exact.
    """
    chosen_rows, chosen_columns = claim.rows or list(rows), claim.columns or list(columns)
    given, comparisons = Given(numbers, best, noises), list[Margin]()
    if undefined and claim.kind in _BY_COLUMN:
        for column in chosen_columns:
            present = [r for r in rows if (r, column) not in undefined]
            chosen, than = ([r for r in names if r in present] for names in (chosen_rows, claim.than))
            narrowed = dataclasses.replace(claim, than=than)
            comparisons += KINDS[claim.kind](narrowed, given, chosen, [column], present)
    else:
        comparisons += KINDS[claim.kind](claim, given, chosen_rows, chosen_columns, list(rows))
    measured = [(comparison.margin, comparison) for comparison in comparisons if comparison.margin is not None]
    unsure = [(margin, comparison) for margin, comparison in measured if comparison.unsure]
    failed = [
        (margin, comparison) for margin, comparison in measured if not comparison.unsure and not _passes(claim, margin)
    ]
    state = FAILS if failed else UNDECIDED if unsure else OPEN if not measured else SO_FAR
    if state == SO_FAR and all(comparison.whole for comparison in comparisons):
        state = HOLDS
    detail, where = "", None
    if measured and (failed or unsure or claim.kind != "between"):
        _, narrowest = min(failed or unsure or measured, key=lambda comparison: comparison[0])
        before = "fails by " if failed else "" if unsure else "smallest margin "
        detail, where = f"{before}{narrowest}", narrowest.where
    held = len(measured) - len(failed) - len(unsure)
    return Verdict(claim, state, held, len(measured), len(comparisons), detail, where, len(unsure))


def _passes(claim: Claim, margin: float) -> bool:
    """Whether a margin passes: orderings of two cells are strict; ranks and intervals include equality."""
    return margin > 0 if claim.kind in ("above", "below", "falls", "rises") else margin >= 0


def _doubt(noises: Noises, weights: Mapping[tuple[str, str], float]) -> tuple[float | None, int]:
    """For a weighted sum of cells: two standard errors (None if unknown), and the smallest number of seeds."""
    if noises is None:
        return 0.0, 1
    parts = [(weight, noises.get(place)) for place, weight in weights.items()]
    return two_errors(*parts), min((noise.seeds for _, noise in parts if noise), default=1)


def _ranked(claim: Claim, given: Given, rows: list[str], columns: list[str], every: list[str]) -> Iterator[Margin]:
    """The margin over the k-th best of the other rows (None while fewer than k others have numbers)."""
    k, numbers = claim.k if claim.kind == "top" else 1, given.numbers
    rivals, bounded = claim.than or every, claim.kind == "best" and (claim.low or claim.high)
    for column in columns:
        sign = -1.0 if given.best.get(column) == "min" else 1.0
        for row in rows:
            number, where = numbers.get((row, column)), ComparedCells((row,), (column,))
            others = sorted(
                ((sign * numbers[r, column], r) for r in rivals if r != row and (r, column) in numbers), reverse=True
            )
            if number is None or len(others) < k:
                yield Margin(where, None, False)
                continue
            value, rival = others[k - 1]
            doubt = _doubt(given.noises, {(row, column): 1, (rival, column): 1})
            lead = sign * number - value
            whole = len(others) == sum(r != row for r in rivals)
            yield Margin(where, round(_within(claim, lead) if bounded else lead, 9), whole, *doubt)


def _between_rows(claim: Claim, rows: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row, other), (column,)) for column in columns for row in rows for other in claim.than)


def _step_by_step(_: Claim, rows: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), pair) for row in rows for pair in pairwise(columns))


def _from_the_first(_: Claim, rows: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), (columns[0], other)) for row in rows for other in columns[1:])


def _each(_: Claim, rows: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), (column,)) for row in rows for column in columns)


def _compared(
    places: Callable[[Claim, list[str], list[str]], Iterator[ComparedCells]],
    margin: Callable[..., float | None],
    weights: Callable[..., tuple[float, ...]] = lambda *numbers: (1.0,) * len(numbers),
) -> Kind:
    """A kind of claim: `places` gives the cells of each comparison, `margin` its margin, and `weights` the derivative
    of the margin by each number."""

    def compare(claim: Claim, given: Given, rows: list[str], columns: list[str], every: list[str]) -> Iterator[Margin]:
        for where in places(claim, rows, columns):
            numbers = [given.numbers[cell] for cell in where.cells if cell in given.numbers]
            found = margin(claim, *numbers) if len(numbers) == len(where.cells) else None
            if found is None:
                yield Margin(where, None, False)
            else:
                doubt = _doubt(given.noises, dict(zip(where.cells, weights(*numbers), strict=True)))
                yield Margin(where, round(found, 9), True, *doubt)

    return compare


def _within(claim: Claim, value: float) -> float:
    """Distance of a value from the nearer end of the claim's interval; negative outside."""
    return min(value - claim.low, claim.high - value)


KINDS: dict[str, Kind] = {
    "best": _ranked,
    "top": _ranked,
    "above": _compared(_between_rows, lambda _, a, b: a - b),
    "below": _compared(_between_rows, lambda _, a, b: b - a),
    "falls": _compared(_step_by_step, lambda _, a, b: a - b),
    "rises": _compared(_step_by_step, lambda _, a, b: b - a),
    "between": _compared(_each, _within),
    #: None for a ratio to zero.
    "ratio": _compared(
        _between_rows, lambda claim, a, b: _within(claim, a / b) if b else None, lambda a, b: (1 / b, a / b**2)
    ),
    "ahead": _compared(_between_rows, lambda claim, a, b: _within(claim, a - b)),
    "level": _compared(_from_the_first, lambda claim, a, b: claim.high - abs(a - b)),
}

#: Kinds that compare within one column.
_BY_COLUMN = ("best", "top", "above", "below", "between", "ratio", "ahead")
