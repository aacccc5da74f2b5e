"""Tables of what methods measure themselves: any metric that a method declares, by its name."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedbench.errors import FedbenchError
from fedbench.measure import Measure, stored
from fedbench.metrics.read import writing
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.status.index import State
from fedbench.store import Artifact

TABLE = """
title = "What methods measure"
protocol = "feddrm"
statistic = "{statistic}"
metric = "{metric}"
unit = "fraction"
best = "none"
rows = [{{ label = "pFedFDA", method = "pfedfda" }}, {{ label = "FedAvg", method = "fedavg" }}{more}]
[[column]]
label = "IID"
dataset = "cifar10"
partition = {{ scheme = "iid" }}
{client}
"""
BETA = Measure("beta", "weight of the own Gaussian", "fraction", of="client")
MINE = """
from fedbench.measure import Measure
from fedbench.methods.base import Method


class Mine(Method):
    name = "mine"
    measures = (Measure("drift", "how far it went", "distance"),)
"""


def table(folder: Path, metric: str, statistic: str = "clients", more: str = "", client: str = "") -> tables.Table:
    path = folder / "mine.toml"
    path.write_text(TABLE.format(metric=metric, statistic=statistic, more=more, client=client))
    return tables.load(str(path))


def measured(lab: Any, run: Artifact, rows: list[tuple[str, int, int, float]]) -> None:
    """Metrics of a run, in rows of (metric, round, client, value) that are of no view."""
    metric, number, client, value = (list(column) for column in zip(*rows, strict=True))
    columns = {"metric": pa.array(metric).dictionary_encode(), "view": pa.array([""] * len(rows)).dictionary_encode()}
    columns |= {"round": pa.array(number, pa.int32()), "client": pa.array(client, pa.int32()), "value": pa.array(value)}
    with writing(run, lab.store) as writer:
        writer.table("metrics", pa.table(columns))


def pfedfda(lab: Any, wanted: tables.Table) -> list[float]:
    """A run of pfedfda in the table's setting that has betas; those."""
    setting = lab.cells(str(wanted.path)).settings["IID"][0]
    run = lab.run(setting, "pfedfda", measure=False, measures=stored((BETA,)))
    betas = [k / 100 for k in range(setting.partition.clients)]
    mean = statistics.mean(betas)
    measured(lab, run, [("beta", 0, -1, mean), *(("beta", 0, i, b) for i, b in enumerate(betas))])
    return betas


def printed(lab: Any, wanted: tables.Table) -> Grid:
    return build(wanted, "small", lab.store, [])


@pytest.mark.parametrize(
    ("statistic", "client", "expected"),
    [("clients", "", None), ("whole_run", "", None), ("final", "", None), ("final", "client = 3", 0.02)],
)
def test_a_figure_of_clients(lab: Any, tmp_path: Path, statistic: str, client: str, expected: float | None) -> None:
    wanted = table(tmp_path, "beta", statistic, client=client)
    betas = pfedfda(lab, wanted)
    found = printed(lab, wanted).lines[0].entries[0].value
    assert found is not None
    assert found.mean == pytest.approx(statistics.mean(betas) if expected is None else expected)
    if statistic == "clients":
        assert found.std == pytest.approx(statistics.stdev(betas))


@pytest.mark.parametrize(("statistic", "expected"), [("last_rounds", 398), ("final", 400), ("whole_run", 400)])
def test_a_figure_of_rounds(lab: Any, tmp_path: Path, statistic: str, expected: float) -> None:
    wanted = table(tmp_path, "clusters", statistic)
    setting = lab.cells(str(wanted.path)).settings["IID"][0]
    run = lab.run(setting, "fedavg", measure=False, measures=stored((Measure("clusters", "c", "count"),)))
    series = [("clusters", t, -1, float(t)) for t in range(1, setting.rounds + 1)]
    measured(lab, run, [("clusters", 0, -1, float(setting.rounds)), *series])
    found = printed(lab, wanted).lines[1].entries[0].value
    assert (setting.rounds, setting.window) == (400, 5)
    assert found is not None
    assert found.mean == pytest.approx(expected)


def test_a_method_that_does_not_measure_it_has_an_empty_cell_and_the_table_says_why(lab: Any, tmp_path: Path) -> None:
    wanted = table(tmp_path, "beta")
    pfedfda(lab, wanted)
    setting = lab.cells(str(wanted.path)).settings["IID"][0]
    lab.run(setting, "fedavg", title="FedAvg", measures=[])
    grid = printed(lab, wanted)
    entry = grid.lines[1].entries[0]
    assert (entry.state, entry.text, grid.problems) == (State.UNDEFINED, "", ())
    assert "No beta: FedAvg does not measure it." in grid.notes
    assert grid.lines[0].entries[0].state is State.DONE


def test_nothing_is_said_of_extra_rows_that_are_left_out(lab: Any, tmp_path: Path) -> None:
    wanted = table(tmp_path, "beta")
    pfedfda(lab, wanted)
    lab.run(lab.cells(str(wanted.path)).settings["IID"][0], "local", title="Local", measures=[])
    grid = printed(lab, wanted)
    assert [line.label for line in grid.lines] == ["pFedFDA", "FedAvg"]
    assert not any(note.startswith("No beta") for note in grid.notes)


def test_a_run_made_before_methods_declared_is_to_be_made_anew(lab: Any, tmp_path: Path) -> None:
    wanted = table(tmp_path, "beta")
    lab.run(lab.cells(str(wanted.path)).settings["IID"][0], "pfedfda", title="pFedFDA")
    grid = printed(lab, wanted)
    assert grid.lines[0].entries[0].state is State.MISSING
    assert any(note.startswith("No beta: pFedFDA was made before") and "--again" in note for note in grid.notes)


def test_a_mistyped_metric_is_none_of_any_method(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"unknown metric in .*mine.toml, column IID 'betta'; did you mean 'beta'"):
        table(tmp_path, "betta")


def test_a_figure_of_rounds_is_no_clients(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match="elbow is no client's but the federation's"):
        table(tmp_path, "elbow", "final", client="client = 1")


def test_the_metric_of_a_file_that_a_row_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(FedbenchError, match="unknown metric"):
        table(tmp_path, "drift", "whole_run")
    row = ', { label = "Mine", method = "./mine.py:Mine" }'
    assert table(tmp_path, "drift", "whole_run", more=row).rows[2].method == f"{tmp_path / 'mine.py'}:Mine"
    with pytest.raises(FedbenchError, match="did you mean 'drift'"):
        table(tmp_path, "drifd", "whole_run", more=row)
