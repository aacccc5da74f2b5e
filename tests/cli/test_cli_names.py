"""One thing is named one way: a table's name stands as a bare word in every command that takes tables or runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.planner import table as tables
from fedbench.planner.runs import spelt_out
from tests.support.cli_user import DIGITS, SMOKE, bad, good
from tests.support.partitions_lab import current

OWN = """
title = "Mine"
protocol = "plain"
metric = "average_accuracy"
statistic = "last"
unit = "percent"
seeds = [0]

[[rows]]
label = "FedAvg"
method = "fedavg"

[[column]]
label = "Dir"
dataset = "digits"
partition = { dir = 0.5, clients = 2 }
"""


@pytest.mark.parametrize(
    "command",
    [
        ("report", "pfedfda/1", "--no-shipped", *DIGITS, "--json"),
        ("train", "5", *DIGITS, "--dry-run", "--json", "-m", "fedavgft"),
    ],
)
def test_a_bare_name_is_the_option(home: Path, command: tuple[str, ...]) -> None:
    name, table, *rest = command
    assert good(name, table, *rest).out == good(name, "--table", table, *rest).out != ""


@pytest.mark.parametrize(
    ("word", "filter"),
    [
        ("flux/1", "table=flux/1"),
        ("flux", "paper=flux"),
        ("12", "12"),  # the beginning of an id
        ("0c1f", "0c1f"),
        ("lr=0.1", "lr=0.1"),
    ],
)
def test_as_a_filter_it_is_of_the_tables_runs(word: str, filter: str) -> None:
    assert spelt_out([word]) == [filter]


def test_a_table_of_ones_own_too(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN.replace("dir = 0.5", 'scheme = "dirichlet", alpha = 0.5'))
    recipe = tmp_path / "heart.toml"
    recipe.write_text('title = "H"\nlicence = ""\ncitation = ""\nshape = [2]\nclasses = ["a", "b"]\n[[source]]\n')
    mine = str(tmp_path / "mine.toml")
    assert tables.is_table(mine)
    assert not tables.is_table(str(recipe)), "a data set is none"
    assert not tables.is_table("digits")
    (planned,) = json.loads(good("train", mine, *SMOKE, "--dry-run", "--json").out)
    assert (planned["method"], planned["dataset"]) == ("fedavg", "digits")
    assert spelt_out([mine]) == [f"table={mine}"]


def test_a_wrong_name_says_what_it_is_of(home: Path) -> None:
    assert "unknown table 'flux/111'; did you mean 'flux/11'?" in bad("compare", "flux/111")
    assert "unknown table or paper 'fluxx'; did you mean 'flux'?" in bad("report", "fluxx")


def test_a_figure_draws_the_current_partition(home: Path) -> None:
    line = "figure partition shows a partition of yours; make one: fedbench partition, or name it: --partition ID"
    assert line in bad("figure", "partition", "--json")
    good("partition", "digits", "--iid", "--clients", "3")
    (panel,) = json.loads(good("figure", "partition", "--json").out)["panels"]
    assert panel["partition"] == current().id
