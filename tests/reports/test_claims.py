"""Claims: what holds, what fails, and what cannot be told yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.reports.table.claims import FAILS, HOLDS, OPEN, SO_FAR, UNDECIDED, Claim, Verdict, judge
from fedbench.reports.table.noise import Noise, ranks

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


#: Two standard errors of a difference in column x are 2 sqrt(0.25 + 0.25) = 1.41, of one of its numbers 1.
NOISY = {(row, "x"): Noise(1.0, 4) for row in ROWS}


@pytest.mark.parametrize(
    ("claim", "state", "detail"),
    [
        (Claim("", "best", ["a"], columns=["x"]), UNDECIDED, "1 ahead at a, x"),
        (Claim("", "best", ["b"], columns=["x"]), UNDECIDED, "1 short at b, x"),
        (Claim("", "best", ["c"], columns=["x"]), FAILS, "fails by 2 at c, x"),
        (Claim("", "top", ["a"], columns=["x"], k=2), HOLDS, "smallest margin 2 at a, x"),
        (Claim("", "above", ["a"], ["b", "c"], ["x"]), UNDECIDED, "1 ahead at a and b, x"),
        (Claim("", "above", ["a"], ["c"], ["x"]), HOLDS, "smallest margin 2 at a and c, x"),
        (Claim("", "below", ["a"], ["b", "c"], ["x"]), FAILS, "fails by 2 at a and c, x"),
        (Claim("", "between", ["b"], columns=["x"], low=1.5, high=9), UNDECIDED, "0.5 ahead at b, x"),
        (Claim("", "between", ["b"], columns=["x"], low=3.5, high=9), FAILS, "fails by 1.5 at b, x"),
        # The error of 3 / 2 is twice the root of (0.5 / 2)² + (0.5 * 3 / 4)².
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=0.7, high=9), UNDECIDED, "0.8 ahead at a and b, x"),
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=0.5, high=9), HOLDS, "smallest margin 1 at a and b, x"),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=2, high=9), UNDECIDED, "1 short at a and b, x"),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=3, high=9), FAILS, "fails by 2 at a and b, x"),
        # Nothing is known of column y.
        (Claim("", "falls", ["a"]), HOLDS, "smallest margin 1 at a, x to y (one seed: noise unknown)"),
        (Claim("", "best", ["a"]), FAILS, "fails by 2 at a, y (one seed: noise unknown)"),
    ],
)
def test_what_lies_within_the_noise_of_the_seeds_is_undecided(claim: Claim, state: str, detail: str) -> None:
    verdict = judge(claim, FULL, ROWS, COLUMNS, {}, noises=NOISY)
    assert (verdict.state, verdict.detail[: len(detail)]) == (state, detail)


@pytest.mark.parametrize(("seeds", "words"), [(4, "4 seeds (two standard errors: 1.4); about 8 seeds"),
                                              (1, "one seed (two standard errors: 2.8); about 8 seeds")])  # fmt: skip
def test_what_would_decide_is_told(seeds: int, words: str) -> None:
    noises = {(row, "x"): Noise(1.0, seeds) for row in ROWS}
    verdict = judge(Claim("", "above", ["a"], ["b"], ["x"]), FULL, ROWS, COLUMNS, {}, noises=noises)
    assert verdict.detail == f"1 ahead at a and b, x, within the noise of {words} would decide it"
    assert (verdict.held, verdict.unsure, verdict.made) == (0, 1, 1)


@pytest.mark.parametrize(
    ("numbers", "stds", "marks"),
    [
        ([3, 2, 1], [None, None, None], [1, 2, 0]),  # of one seed each: as printed
        ([3, 3, 1], [None, None, None], [1, 1, 2]),
        ([3, 3], [None, None], [0, 0]),
        # Two standard errors of a difference of means of four seeds: 2 sqrt(2 * std² / 4).
        ([3, 2, 1], [1, 1, 1], [1, 1, 2]),
        ([3, 2, 1], [2, 2, 2], [0, 0, 0]),
        ([9, 3, 2, 1], [1, 1, 1, 0.1], [1, 0, 0, 0]),  # the second shares nothing, and has no mark of its own
        ([9, 3, 3, 1], [0.1, 0.1, 0.1, 0.1], [1, 2, 2, 0]),
        ([3, 2, 1], [0.1, 0.1, 0.1], [1, 2, 0]),
        ([9, 8, 7.5], [0.1, 0.1, 2], [1, 2, 1]),  # the third is not known to be worse than the first
        ([3, 2, 1], [1, None, 1], [1, 1, 2]),  # one seed is twice as far off as four
    ],
)
def test_marks_of_the_best_go_by_seeds(numbers: list[float], stds: list[float | None], marks: list[int]) -> None:
    assert ranks(numbers, [None if std is None else Noise(std, 4) for std in stds], 2) == marks


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 2))
def test_top_is_the_rank_by_counting_the_strictly_better(values: list[int], k: int) -> None:
    numbers = {(row, "x"): float(v) for row, v in zip(ROWS, values, strict=True)}
    rank = 1 + sum(v > values[0] for v in values[1:])
    verdict = check(Claim("", "top", ["a"], columns=["x"], k=k), numbers)
    assert verdict.state == (HOLDS if rank <= k else FAILS)
