"""The share of held back images that are answered rightly, which hyper-parameters may be chosen by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import train

DATA = grouped_federation((0, 1, 0, 1), 120)
SETTING = grouped_setting(rounds=2, lr=0.1, window=2, test_phase=None)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "apfl", "pfedfda", "fedproto", "ifca"])
def test_it_is_the_accuracy_on_images_that_are_held_back(name: str, tmp_path: Path) -> None:
    """As if they were the test images: the same training, other images answered."""
    run = train(name, DATA, tmp_path / "run", SETTING)
    other = train(name, replace(DATA, test=DATA.validation), tmp_path / "other", SETTING).predictions.to_pandas()
    other = other[other.view == "plain"]
    right = (other.own == other.label).groupby(other["round"]).mean()
    lines = run.trainer.checkpoint.rounds
    assert [line["validation_accuracy"] for line in lines] == pytest.approx([right[1], right[2]])


def test_nothing_else_changes_where_images_are_held_back(tmp_path: Path) -> None:
    bare = replace(DATA, validation=[torch.zeros(0, dtype=torch.long)] * DATA.clients)
    runs = [train("ditto", data, tmp_path / str(k), SETTING) for k, data in enumerate((DATA, bare))]
    assert runs[0].predictions.equals(runs[1].predictions)
    assert all("validation_accuracy" not in line for line in runs[1].trainer.checkpoint.rounds)


def test_only_evaluated_rounds_have_it_and_answers_without_scores_have_none(tmp_path: Path) -> None:
    lines = train("fedavg", DATA, tmp_path / "last", replace(SETTING, window=1)).trainer.checkpoint.rounds
    assert ["validation_accuracy" in line for line in lines] == [False, True]
    lines = train("fedem", DATA, tmp_path / "fedem", SETTING).trainer.checkpoint.rounds
    assert not any("validation_accuracy" in line for line in lines)
