"""Claims: what holds, what fails, and what cannot be told yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.reports.table.claims import FAILS, HOLDS, OPEN, SO_FAR, Claim, Verdict, judge

ROWS, COLUMNS = ["a", "b", "c"], ["x", "y"]
FULL = {("a", "x"): 3.0, ("b", "x"): 2.0, ("c", "x"): 1.0, ("a", "y"): 2.0, ("b", "y"): 2.0, ("c", "y"): 4.0}


def check(claim: Claim, numbers: dict[tuple[str, str], float], best: str = "max") -> Verdict:
    return judge(claim, numbers, ROWS, COLUMNS, dict.fromkeys(COLUMNS, best))


@pytest.mark.parametrize(
    ("claim", "state", "held", "asked"),
    [
        (Claim("", "best", ["a"]), FAILS, 1, 2),
        (Claim("", "best", ["a"], columns=["x"]), HOLDS, 1, 1),
        (Claim("", "top", ["a"], k=2), HOLDS, 2, 2),
        (Claim("", "top", ["b"], k=2), HOLDS, 2, 2),  # b and a share the second rank in y
        (Claim("", "top", ["c"], k=2), FAILS, 1, 2),
        (Claim("", "above", ["a"], ["b"]), FAILS, 1, 2),  # equal is not above
        (Claim("", "above", ["a"], ["b", "c"], ["x"]), HOLDS, 2, 2),
        (Claim("", "below", ["c"], ["a", "b"], ["x"]), HOLDS, 2, 2),
        (Claim("", "falls", ["a"]), HOLDS, 1, 1),
        (Claim("", "falls"), FAILS, 1, 3),
        (Claim("", "rises", ["c"]), HOLDS, 1, 1),
        (Claim("", "between", ["b"], low=2, high=2), HOLDS, 2, 2),
        (Claim("", "between", ["a"], low=0, high=2.9), FAILS, 1, 2),
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=1, high=1.5), HOLDS, 1, 1),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=0.5, high=1.5), HOLDS, 1, 1),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=1.5, high=2), FAILS, 0, 1),
        (Claim("", "ratio", ["a"], ["b", "c"], ["x"], low=1, high=1.5), FAILS, 1, 2),
        (Claim("", "ratio", ["b"], ["a"], low=0.7, high=1), FAILS, 1, 2),
        (Claim("", "level", ["a", "b"], columns=["x", "y"], high=1), HOLDS, 2, 2),
        (Claim("", "level", columns=["x", "y"], high=1), FAILS, 2, 3),
    ],
)
def test_complete_numbers(claim: Claim, state: str, held: int, asked: int) -> None:
    verdict = check(claim, FULL)
    assert (verdict.state, verdict.held, verdict.made, verdict.asked) == (state, held, asked, asked)


def test_less_is_better_where_the_column_says_so() -> None:
    assert check(Claim("", "best", ["c"], columns=["x"]), FULL, "min").state == HOLDS
    assert check(Claim("", "best", ["a"], columns=["x"]), FULL, "min").state == FAILS


def test_a_missing_rival_leaves_it_open_but_a_defeat_is_final() -> None:
    part = {place: v for place, v in FULL.items() if place[0] != "b"}
    assert check(Claim("", "best", ["a"], columns=["x"]), part).state == SO_FAR
    assert check(Claim("", "best", ["a"]), part).state == FAILS
    assert check(Claim("", "best", ["a"]), {("a", "x"): 1.0}).state == OPEN
    assert check(Claim("", "falls"), {place: v for place, v in FULL.items() if place[1] == "x"}).state == OPEN
    assert check(Claim("", "falls", ["a", "b"]), {p: v for p, v in FULL.items() if p[0] == "a"}).state == SO_FAR


def test_details_name_the_narrowest_and_the_worst() -> None:
    assert check(Claim("", "above", ["a"], ["b", "c"], ["x"]), FULL).detail == "smallest margin 1 at a and b, x"
    assert check(Claim("", "best", ["a"]), FULL).detail == "fails by 2 at a, y"


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 2))
def test_top_is_the_rank_by_counting_the_strictly_better(values: list[int], k: int) -> None:
    numbers = {(row, "x"): float(v) for row, v in zip(ROWS, values, strict=True)}
    rank = 1 + sum(v > values[0] for v in values[1:])
    verdict = check(Claim("", "top", ["a"], columns=["x"], k=k), numbers)
    assert verdict.state == (HOLDS if rank <= k else FAILS)
