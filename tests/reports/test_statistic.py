"""A statistic is one entry: the Gini coefficient in a table, its claims and a comparison; and a user's own function."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.planner.runs import select
from fedbench.planner.table.claims import HOLDS
from fedbench.planner.table.spec import Table
from fedbench.planner.table.statistic import gini
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.render import render
from fedbench.results.frame import Frame
from tests.reports.conftest import Lab, written

TABLE = """
title = "How equal the clients are"
protocol = "pfedfda"
metric = "client_accuracy"
statistic = "gini"
decimals = 4
best = "min"
seeds = [3, 5]
rows = [{ label = "FedAvg", method = "fedavg" }, { label = "Local", method = "local" }]
column = [{ label = "IID", dataset = "cifar10", partition = { scheme = "iid" } }]
claim = [{ text = "Local is the most equal", kind = "best", rows = ["Local"] }]
"""
#: Method -> the accuracies of its clients by seed.
ACCURACIES = {"fedavg": {3: (0.2, 0.6, 0.4), 5: (0.1, 0.9, 0.5)}, "local": {3: (0.5, 0.5, 0.5), 5: (0.5, 0.4, 0.5)}}


def by_pairs(values: tuple[float, ...]) -> float:
    """The definition: the mean absolute difference over all pairs, over twice the mean."""
    pairs = [abs(a - b) for a, b in itertools.product(values, values)]
    return float(np.mean(pairs) / (2 * np.mean(values)))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_the_gini_coefficient_is_that_of_all_pairs(hundredths: list[int]) -> None:
    values = tuple(k / 100 for k in hundredths)
    expected = by_pairs(values) if any(values) else 0.0
    assert gini(np.array(values)) == pytest.approx(expected)


def trained(lab: Lab, table: Table) -> None:
    for method, by_seed in ACCURACIES.items():
        for seed, accuracies in by_seed.items():
            setting = lab.cells(table, seeds=[seed]).settings["IID"][0]
            lab.run(setting, method, clients=dict(enumerate(accuracies)), views=("plain",), rules="pfedfda")


def expected(method: str) -> list[float]:
    return [by_pairs(accuracies) for accuracies in ACCURACIES[method].values()]


def test_one_entry_is_a_statistic_of_tables_and_claims_and_a_number_of_compare(lab: Lab, tmp_path: Path) -> None:
    trained(lab, table := written(tmp_path, TABLE))
    grid = lab.grid(table, compare=True)
    for line, method in zip(grid.lines, ("fedavg", "local"), strict=True):
        (entry,) = line.entries
        assert entry.value.mean == pytest.approx(np.mean(expected(method)))
        assert entry.value.std == pytest.approx(np.std(expected(method), ddof=1))
    assert [line.entries[0].rank for line in grid.lines] == [2, 1], "less is better"
    assert [ours.state for ours, _ in grid.verdicts] == [HOLDS]
    assert any(line.startswith("Gini coefficient of the clients' values after the last round") for line in grid.about)
    (side,) = side_by_side(select(Frame(lab.store)), ["client_accuracy_gini"])
    by_method = {line.method: line.entries[0] for line in side.lines}
    assert by_method["fedavg"].value.mean == pytest.approx(np.mean(expected("fedavg")))
    assert [by_method[name].rank for name in ("fedavg", "local")] == [2, 1]
    assert any("accuracy_gini: Gini coefficient of the clients' values" in line for line in side.notes)


OWN = '''
"""Statistics of mine."""
from helper import ptp


def gap(values):
    """Best minus worst client."""
    return ptp(values)


def wrong(values):
    return values[len(values)]


def nothing(values):
    return float("nan")
'''


def test_a_users_function_is_a_statistic_with_the_digest_of_its_source(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("def ptp(values):\n    return max(values) - min(values)\n")
    table = written(tmp_path, TABLE.replace('"gini"', '"./mine.py:gap"'))
    trained(lab, table)
    grid = lab.grid(table)
    (entry,) = grid.lines[0].entries
    assert entry.value.mean == pytest.approx(0.6)
    assert entry.value.std == pytest.approx(np.std([0.4, 0.8], ddof=1))
    name = table.statistic
    assert re.fullmatch(r"gap@[0-9a-f]{12}", name)
    assert any(line.startswith(f"Best minus worst client ({name}, after the last round)") for line in grid.about)
    assert json.loads(render([grid], "json"))
    (tmp_path / "helper.py").write_text("def ptp(values):\n    return 1 + max(values) - min(values)\n")
    other = written(tmp_path, TABLE.replace('"gini"', '"./mine.py:gap"') + "# other\n")
    assert other.statistic != name, "what it imports from its folder is part of its source"
    assert lab.grid(other).lines[0].entries[0].value.mean == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("statistic", "says"),
    [
        ("./mine.py:gapp", "unknown statistic function in .*mine.py:gapp 'gapp'; did you mean 'gap'"),
        ("./mine.py", r"does not say which of its functions is the statistic; such as mine.py:gap or mine.py:nothing"),
        ("./other.py:gap", "no file .*other.py to take the statistic from"),
        ("./mine.py:wrong", r"cannot compute statistic wrong@\w+: .*mine.py, line 12, in wrong: IndexError"),
        ("./mine.py:nothing", r"statistic nothing@\w+ gives nan, which is no number"),
    ],
)
def test_what_is_wrong_with_a_users_function_is_one_line(lab: Lab, tmp_path: Path, statistic: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("ptp = None\n")
    try:
        trained(lab, table := written(tmp_path, TABLE.replace('"gini"', f'"{statistic}"')))
        (said, *_) = lab.grid(table).problems
    except FedbenchError as error:  # of the file itself
        said = str(error)
    assert re.search(says, said)


def test_a_users_function_is_of_the_clients(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def gap(values):\n    return 0\n")
    text = TABLE.replace('"gini"', '"./mine.py:gap"').replace('"client_accuracy"', '"average_accuracy"')
    with pytest.raises(FedbenchError, match=r"statistic gap@\w+ does not go with average_accuracy"):
        written(tmp_path, text)
