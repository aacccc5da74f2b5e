"""A paper's page of what was measured is that of its packs, and says how many of the paper's numbers come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.reports import measured
from fedbench.reports.claims import Tally, claims
from fedbench.reports.claims_in_words import summary
from fedbench.reports.measured import PAGE, SENTENCES, page
from fedbench.reports.status.index import Index
from fedbench.results.making import row_of
from fedbench.results.pack import write
from fedbench.results.shelf import with_fedbench

PAPERS = sorted({path.parent.parent.name for path in with_fedbench()})


@pytest.mark.shipped
@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_is_that_of_the_packs(paper: str) -> None:
    file = resources.TABLES / paper / PAGE
    assert file.exists()
    assert file.read_text() == page(paper), f"fedbench results page {paper} -o tables/{paper}/{PAGE}"


@pytest.fixture
def shipped(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes FedDRM's folder of tables one with a pack of these runs."""

    def of(*runs: Any) -> Path:
        path = tmp_path / "feddrm" / "results" / "some.parquet"
        write(path, [row_of(run, lab.store, "Ada") for run in runs])
        monkeypatch.setattr(measured, "with_fedbench", lambda: [path])
        return path

    return of


def a_run(lab: Any, value: float) -> Any:
    told = {"started": "2026-01-02T03:04:05Z", "platform": "Linux-x86_64"}
    return lab.run(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), "feddrm", value=value, **told)


def test_runs_are_counted_as_everywhere() -> None:
    pack = {"runs": 1029, "by": ["Ada"], "machines": ["Linux"], "first": "2026-01-02", "last": "2026-01-02"}
    assert measured._pack({**pack, "seconds": 9}) == "1,029 runs by Ada, 2026-01-02, 9 s of training on Linux."


def test_a_page_has_the_numbers_of_packs_alone(lab: Any, shipped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.results.checksum.predictions", lambda _: "0" * 64)
    shipped(a_run(lab, 0.5))
    monkeypatch.setattr(
        measured, "_sentences", lambda *_: [measured.Note("Above."), measured.Note("Below.", "feddrm/1")]
    )
    text = page("feddrm")
    assert "- 1 run by Ada, 2026-01-02" in text
    assert "50.00" in text
    assert "*63.85*" in text
    assert "| FedRep " not in text
    assert "1 of 66 reported numbers measured, 0 (0%) within the tolerance." in text
    above, table, below = (text.index(word) for word in ("Above.", "## feddrm/1", "Below."))
    assert above < table < below < text.index("## feddrm/2")
    assert page("feddrm") == text


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


def test_an_unknown_paper_is_one_line() -> None:
    with pytest.raises(FedbenchError, match="did you mean 'feddrm'"):
        page("fedrm")


def test_the_share_of_numbers_within_the_tolerance(lab: Any) -> None:
    for row, value in (("feddrm", 0.6385), ("fedavgft", 0.9)):
        lab.run(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), row, value=value)
    (one,) = claims(["feddrm/1"], lab.store, [], Index(lab.store))
    assert one.tally == Tally(reported=66, measured=2, within=1)
    assert list(summary([one])) == [
        "feddrm: 4 claims.",
        "feddrm, budget small: 1 fails, 3 not measured; "
        "2 of 66 reported numbers measured, 1 (50%) within the tolerance.",
    ]
    (none,) = claims(["feddrm/2"], lab.store, [], Index(lab.store), "smoke")
    assert none.tally == Tally(66)
