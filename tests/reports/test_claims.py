"""Claims: what holds, fails and cannot be told yet; the pages of claims and of what packs measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.reports import measured
from fedbench.reports import table as tables
from fedbench.reports.claims import Claims, Tally, claims
from fedbench.reports.claims_in_words import summary
from fedbench.reports.measured import PAGE, SENTENCES, page
from fedbench.reports.status.index import Index
from fedbench.reports.table.claims import FAILS, HOLDS, OPEN, SO_FAR, UNDECIDED, Claim, Verdict, judge
from fedbench.reports.table.noise import Noise, ranks
from fedbench.results.making import row_of
from fedbench.results.pack import write
from fedbench.results.shelf import with_fedbench
from fedbench.store import Store
from tests.reports.conftest import DIR, SPC, Lab
from tests.support.cli_user import fedbench, good

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


@pytest.mark.parametrize(
    ("claim", "left_out", "best", "state"),
    [
        (Claim("", "best", ["c"], columns=["x"]), "", "min", HOLDS),
        (Claim("", "best", ["a"], columns=["x"]), "", "min", FAILS),
        (Claim("", "best", ["a"], columns=["x"]), "b", "max", SO_FAR),
        (Claim("", "best", ["a"]), "b", "max", FAILS),  # a defeat is final
        (Claim("", "best", ["a"]), "bcy", "max", OPEN),
        (Claim("", "falls"), "y", "max", OPEN),
        (Claim("", "falls", ["a", "b"]), "bc", "max", SO_FAR),
    ],
)
def test_where_less_is_better_and_where_numbers_are_missing(claim: Claim, left_out: str, best: str, state: str) -> None:
    assert check(claim, {place: v for place, v in FULL.items() if not {*place} & {*left_out}}, best).state == state


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


def claimed(store: Store, *names: str, budget: str | None = None) -> list[Claims]:
    return list(claims(names, store, [], Index(store), budget))


def test_the_numbers_that_decide_are_told(lab: Lab) -> None:
    for column, values in {DIR: (0.5, 0.25), SPC: (0.25, 0.5)}.items():
        setting = lab.setting("feddrm/1", column)
        lab.run(setting, "feddrm", value=values[0])
        lab.run(setting, "fedavgft", value=values[1])
        lab.run(setting, "fedavg", value=0.9)  # a row that the paper does not have
    (one,) = claimed(lab.store, "feddrm/1")
    assert (one.budget, one.scope, one.shipped) == ("small", "budget small", False)
    best, easier, *rest = one.stands
    assert (best.verdict.claim.text, best.verdict.state) == ("FedDRM is best in every column", "fails")
    assert best.numbers == {"FedDRM": "25.00", "FedAvgFT": "50.00"}
    by_column = {f"FedAvgFT at {DIR}": "25.00", f"FedAvgFT at {SPC}": "50.00"}
    assert (easier.verdict.state, easier.numbers) == ("fails", by_column)
    assert {stand.verdict.state for stand in rest} == {"not measured"}
    assert best.reported.state == "holds"


@pytest.mark.parametrize(("others", "state"), [((), "fails"), ((0.70, 0.60), "undecided"), ((0.651, 0.649), "fails")])
def test_seeds_that_are_elsewhere_say_what_one_seed_is_worth(lab: Lab, others: tuple[float, ...], state: str) -> None:
    """Here of another row of its column, in runs that no cell of the table reads."""
    setting = lab.setting("feddrm/4", "System accuracy/α = 0.3")
    lab.run(setting, "feddrm", value=0.64)
    lab.run(setting, "fedavgft", value=0.65)
    for n, value in enumerate(others):
        lab.run(replace(setting, seed=setting.seed + 1 + n), "fedavgft", value=value)
    (one,) = claimed(lab.store, "feddrm/4")
    best = next(stand for stand in one.stands if stand.verdict.claim.kind == "best")
    assert best.verdict.state == state
    assert ("noise unknown" in best.verdict.detail) == (not others)
    assert best.numbers == {"FedDRM": "64.00", "FedAvgFT": "65.00"}


def test_each_budget_with_a_number_stands_by_itself_and_smoke_is_no_total(lab: Lab) -> None:
    """Totals count a claim once: the levels of MNIST are declared as a whole and in halves."""
    lab.run(lab.setting("feddrm/1", DIR, "smoke"), "feddrm")
    assert [one.budget for one in claimed(lab.store, "feddrm/1")] == [""]
    assert [one.budget for one in claimed(lab.store, "feddrm/1", budget="smoke")] == ["smoke"]
    for budget in ("small", "paper"):
        lab.run(lab.setting("feddrm/1", DIR, budget), "feddrm")
        lab.run(lab.setting("feddrm/1", DIR, budget), "fedavgft", value=0.25)
    assert [one.budget for one in claimed(lab.store, "feddrm/1")] == ["paper", "small"]
    assert [one.budget for one in claimed(lab.store, "feddrm/1", budget="paper")] == ["paper"]
    (none,) = claimed(lab.store, "pfedfda/1", budget="smoke")
    assert (none.budget, {stand.verdict.state for stand in none.stands}) == ("", {"not measured"})
    assert [line.partition(";")[0] for line in summary(claimed(lab.store, "feddrm/1"))] == [
        "feddrm: 4 claims.",
        "feddrm, budget paper: 1 holds so far, 3 not measured",
        "feddrm, budget small: 1 holds so far, 3 not measured",
    ]
    (line,) = summary(claimed(lab.store, "flux/10", "flux/11", "flux/levels_mnist"))
    assert line == "flux: 2 claims; none is measured."


def test_every_declared_claim_is_there(lab: Lab) -> None:
    declared = [c.text for name in tables.names() if name.startswith("feddrm/") for c in tables.load(name).claim]
    assert [stand.verdict.claim.text for one in claimed(lab.store, "feddrm") for stand in one.stands] == declared
    for look, message in (
        (lambda: claimed(lab.store, "fedrm"), "did you mean 'feddrm'"),
        (lambda: claimed(lab.store, "feddrm", budget="smal"), "budget"),
        (lambda: page("fedrm"), "did you mean 'feddrm'"),
    ):
        with pytest.raises(FedbenchError, match=message):
            look()


def test_the_command(tmp_path: Path) -> None:
    said = good("claims", "pfedfda/6", "feddrm/1", "--home", tmp_path)
    assert "feddrm: 4 claims; none is measured." in said.out
    (first, _) = json.loads(good("claims", "pfedfda/6", "feddrm/1", "--json", "--home", tmp_path).out)
    assert (first["table"], first["budget"], bool(first["claims"])) == ("pfedfda/6", None, True)
    good("claims", "feddrm/1", "-o", tmp_path / "claims.md", "--home", tmp_path)
    assert "- · FedDRM is best in every column: not measured" in (tmp_path / "claims.md").read_text()
    for name in ("claims.docx", "claims.csv"):
        said = fedbench("claims", "feddrm/1", "-o", tmp_path / name, "--home", tmp_path)
        assert (said.code, "does not end so; -o NAME.md" in said.line) == (2, True)
        assert not (tmp_path / name).exists()


PAPERS = sorted({path.parent.parent.name for path in with_fedbench()})


@pytest.mark.slow
@pytest.mark.shipped
@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_is_that_of_the_packs(paper: str) -> None:
    file = resources.TABLES / paper / PAGE
    assert file.exists()
    assert file.read_text() == page(paper), f"fedbench results page {paper} -o tables/{paper}/{PAGE}"


def test_a_page_has_the_numbers_of_packs_alone(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here FedDRM's folder of tables has a pack of one run."""
    monkeypatch.setattr("fedbench.results.checksum.predictions", lambda _: "0" * 64)
    told = {"started": "2026-01-02T03:04:05Z", "platform": "Linux-x86_64"}
    run = lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.5, **told)
    pack = tmp_path / "feddrm" / "results" / "some.parquet"
    write(pack, [row_of(run, lab.store, "Ada")])
    notes = [measured.Note("Above."), measured.Note("Below.", "feddrm/1")]
    monkeypatch.setattr(measured, "with_fedbench", lambda: [pack])
    monkeypatch.setattr(measured, "_sentences", lambda *_: notes)
    text = page("feddrm")
    within = "1 of 66 reported numbers measured, 0 (0%) within the tolerance."
    assert all(words in text for words in ("- 1 run by Ada, 2026-01-02", "50.00", "*63.85*", within))
    assert "| FedRep " not in text
    above, table, below = (text.index(word) for word in ("Above.", "## feddrm/1", "Below."))
    assert above < table < below < text.index("## feddrm/2")
    assert page("feddrm") == text
    about = {"runs": 1029, "by": ["Ada"], "machines": ["Linux"], "first": "2026-01-02", "last": "2026-01-02"}
    assert measured._pack({**about, "seconds": 9}) == "1,029 runs by Ada, 2026-01-02, 9 s of training on Linux."


def test_the_share_of_numbers_within_the_tolerance(lab: Lab) -> None:
    for row, value in (("feddrm", 0.6385), ("fedavgft", 0.9)):
        lab.run(lab.setting("feddrm/1", DIR), row, value=value)
    (one,) = claimed(lab.store, "feddrm/1")
    assert one.tally == Tally(reported=66, measured=2, within=1)
    budget = "feddrm, budget small: 1 fails, 3 not measured; "
    share = "2 of 66 reported numbers measured, 1 (50%) within the tolerance."
    assert list(summary([one])) == ["feddrm: 4 claims.", budget + share]
    (none,) = claimed(lab.store, "feddrm/2", budget="smoke")
    assert none.tally == Tally(66)


@pytest.mark.parametrize(
    ("sentences", "says"),
    [
        ('[[note]]\ntable = "feddrm/9"\ntext = "x"\n', "unknown table with numbers"),
        ("[[note]]\n", "text"),
    ],
)
def test_sentences_belong_to_tables_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: str, says: str
) -> None:
    (tmp_path / "feddrm").mkdir()
    (tmp_path / "feddrm" / SENTENCES).write_text(sentences)
    monkeypatch.setattr(measured.resources, "TABLES", tmp_path)
    with pytest.raises(FedbenchError, match=says):
        measured._sentences("feddrm", {"feddrm/1"})
