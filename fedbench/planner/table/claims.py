"""A paper's claims about a table, checked on any numbers: measured or reported.

A comparison whose margin is within two standard errors (`noise.SeedNoise`) is undecided. One whose noise is unknown
decides nothing for good: its claim holds, or fails, so far. A claim fails if a comparison fails beyond its noise; else
it fails so far, or is undecided, if a comparison is.

A row's place among the best is compared with the rivals that the paper's own numbers put beside it: while one of these
has no number, only a defeat counts. Times are compared within one kind of machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, NamedTuple

from fedbench.errors import FedbenchError
from fedbench.planner.table.noise import SeedNoise, two_errors
from fedbench.reader import Among, Between

#: (row label, column key) -> value in the printed unit, for cells with a number.
Numbers = Mapping[tuple[str, str], float]

#: (row label, column key) -> noise, for cells whose noise is known. None: the numbers are exact.
Noises = Mapping[tuple[str, str], SeedNoise] | None

#: Whether the numbers of some cells may be compared: times only if they are of one kind of machine.
Comparable = Callable[[Iterable[tuple[str, str]]], bool]

HOLDS, FAILS, UNDECIDED, OPEN = "holds", "fails", "undecided", "not measured"
#: Of some of its numbers, or of numbers whose noise is unknown.
SO_FAR, FAILS_SO_FAR = "holds so far", "fails so far"
#: Most seeds that are worth suggesting.
MOST = 1000


@dataclass(frozen=True)
class Claim:
    """An ordering of a table's cells. Empty `rows` or `columns` mean all of the table's. `KINDS` says which keys a kind
    needs; without one of them, or with one that it does not read, it raises FedbenchError.

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
    k: Annotated[int, Between(1, 10**9)] | None = None
    low: float | None = None
    high: float | None = None
    reported: bool | None = None  #: whether it holds on the paper's numbers, checked by the tests

    def __post_init__(self) -> None:
        kind, given = KINDS[self.kind], {key for key in ("rows", "than", "k", "low", "high") if self._says(key)}
        what = f"a claim of kind {self.kind}"
        if missing := [key for key in kind.needs if key not in given]:
            raise FedbenchError(f"{what} needs {', '.join(kind.needs)}, and lacks {' and '.join(missing)}")
        if unread := sorted(given - {"rows", *kind.needs, *kind.reads}):
            raise FedbenchError(f"{what} does not read {' and '.join(unread)}")
        if "low" in kind.reads and self._says("low") != self._says("high"):
            raise FedbenchError(f"{what} needs both low and high, or neither", "high = inf: no upper limit")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise FedbenchError(f"{what} has low = {self.low:g} above high = {self.high:g}")
        if kind.apart and (both := [row for row in self.rows if row in self.than]):
            raise FedbenchError(f"{what} compares rows with others, and '{both[0]}' is in both rows and than")
        if kind.steps and len(self.columns) == 1:
            raise FedbenchError(f"{what} goes along columns, and names one alone")

    def _says(self, key: str) -> bool:
        return getattr(self, key) not in (None, [])

    @property
    def interval(self) -> tuple[float, float]:
        """`low` and `high`, of a claim that has them."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


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
    numbers missing, or of unknown noise), FAILS_SO_FAR (of unknown noise) and OPEN (no number)."""

    claim: Claim
    state: str
    held: int  #: number of comparisons that hold, beyond the noise if that is known
    made: int  #: number of comparisons with all numbers
    total: int  #: number of comparisons of the claim
    detail: str = ""  #: the smallest margin and its cells
    decides: Margin | None = None  #: the comparison with the smallest margin
    unsure: int = 0  #: number of comparisons within the noise


def of_part(verdict: Verdict) -> Verdict:
    """The verdict on a claim about all columns of a table if only some of them are present."""
    return dataclasses.replace(verdict, state=SO_FAR) if verdict.state == HOLDS else verdict


@dataclass(frozen=True)
class Margin:
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
    reported: Numbers
    comparable: Comparable

    def compares(self, *cells: tuple[str, str]) -> bool:
        """Whether all these cells have numbers that may be compared."""
        return all(cell in self.numbers for cell in cells) and self.comparable(cells)


def judge(
    claim: Claim,
    numbers: Numbers,
    rows: Sequence[str],
    columns: Sequence[str],
    best: Mapping[str, str],
    undefined: Collection[tuple[str, str]] = (),
    noises: Noises = None,
    reported: Numbers = MappingProxyType({}),
    comparable: Comparable = lambda _: True,
) -> Verdict:
    """Check `claim` on `numbers`; `rows` and `columns` are the table's, `best` maps a column to "max" or "min".

    `undefined`: (row label, column key) of cells that never have a number, which comparisons skip. `noises`: noise of
    the numbers; None if they are exact. `reported`: the paper's numbers, which name the rivals of a row.
    """
    kind, given, comparisons = KINDS[claim.kind], Given(numbers, best, noises, reported, comparable), list[Margin]()
    chosen_rows, chosen_columns = claim.rows or list(rows), claim.columns or list(columns)
    than = claim.than or (list(rows) if kind.among else [])
    if kind.steps:
        comparisons += kind.compare(claim, given, chosen_rows, than, chosen_columns)
    else:
        for column in chosen_columns:
            present = ([r for r in names if (r, column) not in undefined] for names in (chosen_rows, than))
            comparisons += kind.compare(claim, given, *present, [column])
    measured = [(comparison.margin, comparison) for comparison in comparisons if comparison.margin is not None]
    unsure = [(margin, comparison) for margin, comparison in measured if comparison.unsure]
    failed = [
        (margin, comparison) for margin, comparison in measured if not comparison.unsure and not _passes(claim, margin)
    ]
    decided = [(margin, comparison) for margin, comparison in failed if comparison.noise is not None]
    if not measured:
        state = OPEN
    elif failed:
        state = FAILS if decided else FAILS_SO_FAR
    elif unsure:
        state = UNDECIDED
    else:
        whole = all(comparison.whole and comparison.noise is not None for comparison in comparisons)
        state = HOLDS if whole else SO_FAR
    detail, decides = "", None
    if measured:
        _, decides = min(decided or failed or unsure or measured, key=lambda comparison: comparison[0])
        if failed or unsure or claim.kind != "between":
            detail = f"{'fails by ' if failed else '' if unsure else 'smallest margin '}{decides}"
    held = len(measured) - len(failed) - len(unsure)
    return Verdict(claim, state, held, len(measured), len(comparisons), detail, decides, len(unsure))


def _passes(claim: Claim, margin: float) -> bool:
    """Whether a margin passes: orderings of two cells are strict; ranks and intervals include equality."""
    return margin > 0 if claim.kind in ("above", "below", "falls", "rises") else margin >= 0


def _doubt(noises: Noises, weights: Mapping[tuple[str, str], float]) -> tuple[float | None, int]:
    """For a weighted sum of cells: two standard errors (None if unknown), and the smallest number of seeds."""
    if noises is None:
        return 0.0, 1
    parts = [(weight, noises.get(place)) for place, weight in weights.items()]
    return two_errors(*parts), min((noise.seeds for _, noise in parts if noise), default=1)


def _ranked(claim: Claim, given: Given, rows: list[str], than: list[str], columns: list[str]) -> Iterator[Margin]:
    """The margin over the k-th best of the other rows. None while fewer than k others have numbers and, unless the
    margin fails already, while one of the k that are the best in the paper has none."""
    k = claim.k or 1
    for column in columns:
        sign = -1.0 if given.best.get(column) == "min" else 1.0
        for row in rows:
            rivals = [r for r in than if r != row]
            others = _ordered(
                given.numbers, [r for r in rivals if given.compares((row, column), (r, column))], column, sign
            )
            where, names = ComparedCells((row,), (column,)), [rival for _, rival in others]
            if len(others) < k:
                yield Margin(where, None, False)
                continue
            value, rival = others[k - 1]
            lead = sign * given.numbers[row, column] - value
            margin = round(lead if claim.low is None else _within(claim, lead), 9)
            named = [r for _, r in _ordered(given.reported, rivals, column, sign)[:k]]
            too_low = lead < (claim.low or 0.0)
            if not too_low and not {*named} <= {*names}:
                yield Margin(where, None, False)
                continue
            doubt = _doubt(given.noises, {(row, column): 1, (rival, column): 1})
            yield Margin(where, margin, len(others) == len(rivals), *doubt)


def _ordered(numbers: Numbers, rows: Iterable[str], column: str, sign: float) -> list[tuple[float, str]]:
    """(Number times `sign`, row) of those of the rows that have a number, the largest first."""
    return sorted(((sign * numbers[row, column], row) for row in rows if (row, column) in numbers), reverse=True)


def _between_rows(rows: list[str], than: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row, other), (column,)) for column in columns for row in rows for other in than)


def _step_by_step(rows: list[str], _: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), pair) for row in rows for pair in pairwise(columns))


def _from_the_first(rows: list[str], _: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), (columns[0], other)) for row in rows for other in columns[1:])


def _each(rows: list[str], _: list[str], columns: list[str]) -> Iterator[ComparedCells]:
    return (ComparedCells((row,), (column,)) for row in rows for column in columns)


def _compared(
    places: Callable[[list[str], list[str], list[str]], Iterator[ComparedCells]],
    margin: Callable[..., float | None],
    weights: Callable[..., tuple[float, ...]] = lambda *numbers: (1.0,) * len(numbers),
) -> Comparison:
    """The comparisons of a kind of claim: `places` gives the cells of each, `margin` its margin, and `weights` the
    derivative of the margin by each number."""

    def compare(claim: Claim, given: Given, rows: list[str], than: list[str], columns: list[str]) -> Iterator[Margin]:
        for where in places(rows, than, columns):
            numbers = [given.numbers[cell] for cell in where.cells if cell in given.numbers]
            found = margin(claim, *numbers) if given.compares(*where.cells) else None
            if found is None:
                yield Margin(where, None, False)
            else:
                doubt = _doubt(given.noises, dict(zip(where.cells, weights(*numbers), strict=True)))
                yield Margin(where, round(found, 9), True, *doubt)

    return compare


def _within(claim: Claim, value: float) -> float:
    """Distance of a value from the nearer end of the claim's interval; negative outside."""
    low, high = claim.interval
    return min(value - low, high - value)


#: The comparisons of a claim on some numbers, between its rows, the rows that they are compared with, and columns.
Comparison = Callable[[Claim, Given, list[str], list[str], list[str]], Iterator[Margin]]


class Kind(NamedTuple):
    """A kind of claim, and the keys that it needs and reads beside `rows` and `columns`."""

    compare: Comparison
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    among: bool = False  #: whether the rows are compared with all others, unless `than` names some
    steps: bool = False  #: whether it goes along columns, from one to another

    @property
    def apart(self) -> bool:
        """Whether the rows are compared with other ones, so that none may be among both."""
        return "than" in self.needs


KINDS: dict[str, Kind] = {
    "best": Kind(_ranked, ("rows",), ("than", "low", "high"), among=True),
    "top": Kind(_ranked, ("rows", "k"), ("than",), among=True),
    "above": Kind(_compared(_between_rows, lambda _, a, b: a - b), ("rows", "than")),
    "below": Kind(_compared(_between_rows, lambda _, a, b: b - a), ("rows", "than")),
    "falls": Kind(_compared(_step_by_step, lambda _, a, b: a - b), steps=True),
    "rises": Kind(_compared(_step_by_step, lambda _, a, b: b - a), steps=True),
    "between": Kind(_compared(_each, _within), ("low", "high")),
    "ratio": Kind(
        _compared(
            _between_rows,
            lambda claim, a, b: _within(claim, a / b) if b else None,  # no ratio to zero
            lambda a, b: (1 / b, a / b**2),
        ),
        ("rows", "than", "low", "high"),
    ),
    "ahead": Kind(_compared(_between_rows, lambda claim, a, b: _within(claim, a - b)), ("rows", "than", "low", "high")),
    "level": Kind(_compared(_from_the_first, lambda claim, a, b: claim.high - abs(a - b)), ("high",), steps=True),
}
