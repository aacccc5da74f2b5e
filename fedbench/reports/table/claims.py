"""Claims that a paper draws from a table, checked on any set of numbers: ours or the paper's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from fedbench.reader import Between

#: (row label, column key) -> value in the printed unit; cells without a number are left out.
Numbers = Mapping[tuple[str, str], float]

HOLDS, FAILS, SO_FAR, OPEN = "holds", "fails", "holds so far", "not measured"


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
class Verdict:
    """Whether a claim holds: `state` is one of HOLDS, FAILS, SO_FAR (some numbers missing) and OPEN (none)."""

    claim: Claim
    state: str
    held: int  #: comparisons that hold
    made: int  #: comparisons whose numbers are there
    asked: int  #: comparisons of the claim
    detail: str = ""  #: where it fails, or where it holds most narrowly
    where: str = ""  #: that place


def of_part(verdict: Verdict) -> Verdict:
    """The verdict on a claim about all of a table's columns where only some of them are there."""
    return dataclasses.replace(verdict, state=SO_FAR) if verdict.state == HOLDS else verdict


#: One comparison: where it is made, its margin (negative: it fails; None: too few numbers), and whether all the
#: numbers are there (else a margin says only how things stand so far).
Comparison = tuple[str, float | None, bool]


def judge(
    claim: Claim,
    numbers: Numbers,
    rows: Sequence[str],
    columns: Sequence[str],
    best: Mapping[str, str],
    undefined: Collection[tuple[str, str]] = (),
) -> Verdict:
    """Check `claim` on `numbers`; `rows` and `columns` are the table's, `best` maps a column to "max" or "min".

    `undefined` are (row label, column key) of cells that have no number: nothing is compared with them.
    """
    chosen_rows, chosen_columns = claim.rows or list(rows), claim.columns or list(columns)
    asked: list[Comparison] = []
    if undefined and claim.kind in _BY_COLUMN:
        for column in chosen_columns:
            there = [r for r in rows if (r, column) not in undefined]
            own, than = ([r for r in names if r in there] for names in (chosen_rows, claim.than))
            narrowed = dataclasses.replace(claim, than=than)
            asked += KINDS[claim.kind](narrowed, numbers, own, [column], there, best)
    else:
        asked += KINDS[claim.kind](claim, numbers, chosen_rows, chosen_columns, list(rows), best)
    made = [(where, margin) for where, margin, _ in asked if margin is not None]
    failed = [(where, margin) for where, margin in made if not _passes(claim, margin)]
    detail = where = ""
    if failed:
        where, margin = min(failed, key=lambda x: x[1])
        detail = f"fails by {abs(margin):.4g} at {where}"
    elif made and claim.kind != "between":
        where, margin = min(made, key=lambda x: x[1])
        detail = f"smallest margin {margin:.4g} at {where}"
    complete = all(whole for *_, whole in asked)
    state = FAILS if failed else OPEN if not made else HOLDS if complete else SO_FAR
    return Verdict(claim, state, len(made) - len(failed), len(made), len(asked), detail, where)


def _passes(claim: Claim, margin: float) -> bool:
    """Orderings between two cells are strict; a rank and an interval include their ends."""
    return margin > 0 if claim.kind in ("above", "below", "falls", "rises") else margin >= 0


def _ranked(
    claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str]
) -> Iterator[Comparison]:
    """Margin over the k-th best of the other rows (nothing to compare with while fewer than k others are there)."""
    k = claim.k if claim.kind == "top" else 1
    for column in columns:
        sign = -1.0 if best.get(column) == "min" else 1.0
        for row in rows:
            own = numbers.get((row, column))
            others = sorted(
                (sign * numbers[r, column] for r in every if r != row and (r, column) in numbers), reverse=True
            )
            margin = round(sign * own - others[k - 1], 9) if own is not None and len(others) >= k else None
            yield f"{row}, {column}", margin, margin is not None and len(others) == len(every) - 1


def _compared(margin: Callable[[Claim, float, float], float | None]) -> Callable[..., Iterator[Comparison]]:
    def compare(
        claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str]
    ) -> Iterator[Comparison]:
        for column in columns:
            for row in rows:
                for other in claim.than:
                    a, b = numbers.get((row, column)), numbers.get((other, column))
                    found = None if a is None or b is None else margin(claim, a, b)
                    yield f"{row} and {other}, {column}", None if found is None else round(found, 9), found is not None

    return compare


def _times(claim: Claim, a: float, b: float) -> float | None:
    """How far a / b lies inside the claim's interval; None where there is no such ratio."""
    return min(a / b - claim.low, claim.high - a / b) if b else None


def _ahead(claim: Claim, a: float, b: float) -> float:
    """How far a - b lies inside the claim's interval."""
    return min(a - b - claim.low, claim.high - (a - b))


def _ordered(sign: float) -> Callable[..., Iterator[Comparison]]:
    def compare(
        claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str]
    ) -> Iterator[Comparison]:
        for row in rows:
            for first, second in pairwise(columns):
                a, b = numbers.get((row, first)), numbers.get((row, second))
                margin = None if a is None or b is None else round(sign * (b - a), 9)
                yield f"{row}, {first} to {second}", margin, margin is not None

    return compare


def _bounded(
    claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str]
) -> Iterator[Comparison]:
    for row in rows:
        for column in columns:
            value = numbers.get((row, column))
            margin = None if value is None else min(value - claim.low, claim.high - value)
            yield f"{row}, {column}", margin, margin is not None


def _steady(
    claim: Claim, numbers: Numbers, rows: list[str], columns: list[str], every: list[str], best: Mapping[str, str]
) -> Iterator[Comparison]:
    for row in rows:
        for column in columns[1:]:
            a, b = numbers.get((row, columns[0])), numbers.get((row, column))
            margin = None if a is None or b is None else round(claim.high - abs(a - b), 9)
            yield f"{row}, {columns[0]} to {column}", margin, margin is not None


KINDS: dict[str, Callable[..., Iterator[Comparison]]] = {
    "best": _ranked,
    "top": _ranked,
    "above": _compared(lambda _, a, b: a - b),
    "below": _compared(lambda _, a, b: b - a),
    "falls": _ordered(-1.0),
    "rises": _ordered(1.0),
    "between": _bounded,
    "ratio": _compared(_times),
    "ahead": _compared(_ahead),
    "level": _steady,
}

#: Kinds that compare within one column.
_BY_COLUMN = ("best", "top", "above", "below", "between", "ratio", "ahead")
