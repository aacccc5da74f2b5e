"""`fedbench sweep` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cli_user import complete, fedbench, good

SMALL = ("sweep", "digits", "--budget", "smoke", "--rounds", "2", "--protocol", "feddrm")


def runs(home: Path) -> int:
    return sum(path.startswith("run/") for path in complete(home))


def test_a_grid_is_made_compared_and_saved(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, "-m", "fedavg", "-m", "ditto", "--lr", "0.05,0.1", "--seeds", "0-1", "--validation", "0.2")
    said = good(*words, "--dry-run")
    assert "8 of 8 runs to make" in said.out
    assert runs(home) == 0
    said = good(*words, "--save", "mine.toml", "--json")
    assert runs(home) == 8
    assert re.search(r"\(1/8\) fedavg lr=0.05 digits Dir-0.3, (seeds 0, 1|seed 0): ", said.err)
    assert "saved: fedbench report --table ./mine.toml" in said.err
    for method in ("fedavg", "ditto"):
        assert f"best by validation accuracy: {method}, lr 0." in said.err
    assert json.loads(said.out)
    assert "0 of 8 runs to make" in good(*words, "--dry-run").out
    table = good("report", "--table", "./mine.toml", "--budget", "smoke")
    assert "4 of 4 cells" in table.out
    assert "FedAvg, lr 0.05" in table.out
    assert "mean of 2 seeds" in table.out
    more = good(*SMALL, "-m", "fedavg", "--lr", "0.05,0.2", "--validation", "0.2", "--seeds", "0")
    assert "1 run to make" in more.err
    assert runs(home) == 9


def test_test_images_choose_nothing(home: Path) -> None:
    said = good(*SMALL, "-m", "local", "--lr", "0.05,0.1")
    assert "best by" not in said.err
    assert "test images must not choose" in said.err


def test_a_run_that_diverges_stops_neither_the_comparison_nor_the_choice(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    words = ("-m", "fedavg", "--lr", "0.05,1e30", "--seeds", "0-1", "--validation", "0.2", "--save", str(file))
    said = fedbench(*SMALL, *words, "--json")
    assert said.code == 1
    assert "2 of 4 runs made" in said.err
    assert said.err.count("training diverged") >= 2
    assert "best by validation accuracy: fedavg, lr 0.05 (" in said.err
    (table,) = json.loads(said.out)
    assert {cell["seeds"] for cell in table["cells"]} == {2}
    assert "1 failed" in good("report", "--table", str(file), "--budget", "smoke").out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-m", "fedavg", "--lrr", "1"), "unknown option of sweep --method fedavg '--lrr'; did you mean '--lr'?"),
        (("-m", "fedavgg"), "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (("-m", "fedavg", "--lr", "0.1,"), "--lr has an empty value in '0.1,'"),
        (("-m", "fedavg", "--lr", "0.001:0.1"), "--lr is a range: what is to look for a value?"),
        (("-m", "fedavg", "--search", "optuna"), "--search needs an option with a range"),
        (("-m", "fedavg", "--search", "grid", "--lr", "0.1:1"), "unknown search 'grid'"),
        (("-m", "fedavg", "--search", "optuna", "--lr", "0.1:1"), "--search needs images to choose by"),
        (("-m", "fedavg", "--seeds", "x"), "--seeds takes seeds such as 0-2 or 0,1,2, not 'x'"),
        (("-m", "fedavg", "--save", "mine.txt"), "--save takes a file that ends in .toml"),
        (("-m", "fedavg", "stray"), "unexpected argument 'stray'"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_made(home: Path, words: tuple[str, ...], text: str) -> None:
    said = fedbench(*SMALL, *words)
    assert said.code == 2
    assert text in said.err
    assert "Traceback" not in said.err
    assert runs(home) == 0


def test_a_trial_that_diverges_does_not_end_the_search(home: Path) -> None:
    pytest.importorskip("optuna")
    words = ("-m", "fedavg", "--lr", "1e-23:1e18", "--validation", "0.2", "--search", "optuna", "--trials", "4")
    said = good(*SMALL, *words)
    assert "failed: (1/1) fedavg" in said.err
    assert ": failed" in said.err
    assert "trial 4/4" in said.err
    assert "best by validation accuracy: fedavg, lr " in said.err


def test_a_search_tries_and_scores_by_validation_images(home: Path) -> None:
    pytest.importorskip("optuna")
    words = ("-m", "fedavg", "--lr", "0.001:0.5", "--validation", "0.2", "--search", "optuna", "--trials", "3")
    said = good(*SMALL, *words)
    assert runs(home) == 3
    assert said.err.count("validation accuracy") == 4  # three trials and the best
    assert good(*SMALL, *words).err.count("trial 3/3") == 1
    assert runs(home) == 3, "the same trials, which are there"
