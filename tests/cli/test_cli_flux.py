"""FLUX's way through the command line, on digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_user import fedbench, good


def test_a_run_says_its_test_phase_and_its_clusters(home: Path) -> None:
    said = good("partition", "digits", "--protocol", "flux", "--shift", "px", "--level", "1", "--clients", "6").out
    assert "group" in said
    (run,) = json.loads(good("train", "--method", "flux", "--budget", "smoke", "--rounds", "5", "--json").out)
    clusters = run["clusters"]
    assert clusters["true_clusters"] == 2
    assert clusters["clusters"] >= 1
    assert -1 <= clusters["adjusted_rand_index"] <= 1
    assert run["method_metrics"]["clustering_round"] == 2, "the smoke budget clusters as soon as it can"
    (view,) = run["headline"].values()
    assert 0 <= view["test_phase_accuracy_mean"] <= 1
    for heading in ("test phase", "clusters", "adj. Rand"):
        assert heading in good("evaluate").out


def test_nothing_is_said_of_labels_that_cannot_be_known(home: Path) -> None:
    """Under P(Y|X) the test phase has no meaning."""
    good("partition", "digits", "--protocol", "flux", "--shift", "pyx", "--level", "5")
    (run,) = json.loads(good("train", "--method", "fedavg", "--budget", "smoke", "--json").out)
    (view,) = run["headline"].values()
    assert view["client_accuracy_mean"] > 0
    assert "test_phase_accuracy_mean" not in view
    assert "test phase" not in good("evaluate").out


def test_an_extra_row_without_a_test_phase_is_no_problem(home: Path) -> None:
    good("partition", "digits", "--protocol", "flux", "--shift", "px", "--level", "5")
    good("train", "--method", "mr_mtl", "--pull", "0.5", "--budget", "smoke")
    printed = good("report", "--table", "flux/13", "--extra", "--dataset", "digits", "--budget", "smoke").out
    (row,) = (line for line in printed.splitlines() if line.startswith("MR-MTL (pull = 0.5"))
    assert len(row.split()) == 5, "the label and one accuracy; nothing stands under the test phase"
    assert "✗" not in printed
    assert "lack test_phase" not in printed


@pytest.mark.parametrize(
    ("stages", "chosen", "says"),
    [
        ("2", ("--rounds", "4", "--drifts", "2,3"), "drift at the beginning of 1 of the rounds 2 to 4"),
        ("3", ("--rounds", "2"), "drift at the beginning of 2 of the rounds 2 to 2"),
        ("3", ("--drifts", "five"), "--drifts takes rounds, such as 5,8, not 'five'"),
    ],
)
def test_drifts_that_do_not_fit(home: Path, stages: str, chosen: tuple[str, ...], says: str) -> None:
    good(
        "partition",
        "digits",
        "--protocol",
        "flux",
        "--shift",
        "px",
        "--level",
        "1",
        "--clients",
        "4",
        "--phases",
        stages,
    )
    said = fedbench("train", "--method", "fedavg", "--budget", "smoke", *chosen)
    assert said.code == 2
    assert says in said.line


def test_data_that_drift(home: Path) -> None:
    good(
        "partition", "digits", "--protocol", "flux", "--shift", "px", "--level", "1", "--clients", "4", "--phases", "3"
    )
    (run,) = json.loads(good("train", "--method", "fedavg", "--budget", "smoke", "--json").out)
    assert run["budget"] == "smoke", "the budget knows when data in three stages drift"
