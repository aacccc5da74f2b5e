"""FLUX's Tables 4 and 7 in print: xi over the pairs of all seeds' runs, and the costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench import declared, methods
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.status.cells import find
from fedbench.reports.table import cost
from fedbench.specs import Setting
from fedbench.theory.wasserstein import deviations

LENGTH, GAUSSIAN = 7, 6


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(methods, "names", lambda: ["fedavg", "descriptor_bounds"])
    lab.dataset("mnist")
    return lab


def rows(seed: int, n: int = 6) -> np.ndarray:
    """Snapshots of one run."""
    numbers = np.random.default_rng(seed).standard_normal((n, LENGTH + GAUSSIAN))
    return np.concatenate([np.full((n, 1), LENGTH), numbers], axis=1).astype(np.float32)


def pairs(row: np.ndarray) -> np.ndarray:
    return deviations(row[:, 1 : 1 + LENGTH], row[:, 1 + LENGTH :])


def keep(here: Any, setting: Setting, told: np.ndarray | None, method: str = "descriptor_bounds") -> None:
    """The artifact of a run, with a table of snapshots."""
    params = declared.of(method).defaults
    with here.store.writing(declared.of(method).run(setting, {})) as writer:
        writer.table("rounds", pa.table({"round": [1]}))
        if told is not None:
            flat = pa.FixedSizeListArray.from_arrays(pa.array(told.reshape(-1)), told.shape[1])
            writer.table("descriptors", pa.table({"client": np.zeros(len(told), np.int32), "descriptor": flat}))
        writer.provenance = {"overrides": {}, "defaults": params, "train_seconds": 1.0, "device": "cpu"}


def column(grid: Grid, place: int = 0) -> dict[str, Any]:
    return {line.label: line.entries[place] for line in grid.lines}


def test_pairs_of_each_run_together(here: Any) -> None:
    asked = find(tables.load("flux/4"), "paper", here.store, [])
    (setting,) = asked.settings["MNIST/Level 7"]
    assert (setting.seed, setting.partition.seed, setting.rounds, setting.drifts) == (42, 42, 20, (4, 8, 12, 16))
    part = setting.partition
    assert (part.shift, part.phases, part.clients, dict(part.options)) == ("pyx", 5, 20, {"level": 3, "copies": 3})
    settings = find(tables.load("flux/4"), "paper", here.store, [], seeds=(42, 43)).settings["MNIST/Level 7"]
    told = [rows(seed, n) for seed, n in ((0, 6), (1, 4))]
    keep(here, settings[0], told[0])
    keep(here, settings[0], None, "fedavg")  # as other tables train it
    partial = column(build(tables.load("flux/4"), "paper", here.store, [], seeds=(42, 43)), 2)
    assert set(partial) == {"Maximum", "Minimum", "Mean"}
    assert partial["Mean"].value.mean == pytest.approx(pairs(told[0]).mean())
    assert partial["Mean"].mark == "‡"
    keep(here, settings[1], told[1])
    grid = build(tables.load("flux/4"), "paper", here.store, [], seeds=(42, 43), compare=True)
    whole, entries = np.concatenate([pairs(one) for one in told]), column(grid, 2)
    assert len(whole) == 15 + 6 == entries["Mean"].value.count
    assert entries["Mean"].text == f"{whole.mean():.3f}"
    assert entries["Mean"].spread == f"{whole.std():.3f}"
    assert (entries["Maximum"].text, entries["Minimum"].text) == (f"{whole.max():.3f}", f"{whole.min():.3f}")
    assert entries["Maximum"].spread == entries["Mean"].mark == ""
    assert entries["Maximum"].reported == (1.016, None)
    assert entries["Mean"].reported == (0.458, 0.108)
    assert not grid.problems
    assert any("Over all pairs of a run's" in line and line.endswith("seeds 42, 43.") for line in grid.about)
    assert column(grid)["Mean"].text == ""


def test_the_papers_slips_are_no_target() -> None:
    table = tables.load("flux/4")
    slips = [place for place in table.reported if table.doubts(*place)]
    assert sorted(slips) == [("Maximum", "CIFAR-10/Level 7"), ("Mean", "CIFAR-10/Level 7")]
    assert table.reported["Maximum", "CIFAR-10/Level 7"] == (3.429, None)


def test_runs_that_cannot_be_paired_are_told_of(here: Any) -> None:
    settings = find(tables.load("flux/4"), "paper", here.store, []).settings
    keep(here, settings["MNIST/Level 3"][0], None)
    keep(here, settings["MNIST/Level 5"][0], rows(1)[:, : 1 + LENGTH])
    keep(here, settings["MNIST/Level 7"][0], rows(3)[:1])
    grid = build(tables.load("flux/4"), "paper", here.store, [])
    assert [column(grid, k)["Mean"].symbol for k in range(3)] == ["!"] * 3
    told = "\n".join(grid.problems)
    assert "kept no snapshots of its clients" in told
    assert "have no Gaussians" in told
    assert "a pair needs two snapshots, and there are 1" in told


def test_pairs_are_a_whole_tables_statistic(tmp_path: Any) -> None:
    text = tables.load("flux/4").path.read_text()
    path = tmp_path / "mine.toml"
    for given, instead, line in (
        ('statistic = "pairs"', 'statistic = "folds"', "unknown metric in .* 'xi_mean'"),
        ('metric = "xi_mean"', 'metric = "xi_men"', "unknown metric in .* 'xi_men'; did you mean 'xi_mean'"),
        ("[[column]]", '[[column]]\nstatistic = "folds"', "statistic pairs is all of a table's columns' or none's"),
        ("[[column]]", "[[column]]\nclient = 1", "a client goes with statistic"),
    ):
        path.write_text(text.replace(given, instead))
        with pytest.raises(FedbenchError, match=line):
            tables.load(str(path))


def test_table_7_in_print(here: Any) -> None:
    table = tables.load("flux/7")
    assert {r.method for r in table.rows} == set(cost.METHODS)
    grid = build(table, "small", here.store, [], compare=True)
    heads = [(h.group.partition(",")[0], h.label) for h in grid.heads]
    at = {line.label: dict(zip(heads, line.entries, strict=True)) for line in grid.lines}
    assert at["FedAvg"]["MNIST", "Sent, printed"].text == at["FedAvg"]["MNIST", "Up"].text == "248.0"
    assert at["FLUX"]["MNIST", "Sent, printed"].text == "248.9"
    assert at["FLUX"]["CIFAR-100", "Sent, printed"].text == "27,108.6"
    assert at["IFCA"]["CIFAR-100", "Down"].ratio == "5.00×"
    assert at["CFL"]["MNIST", "Server, printed"].ratio == "10.00×"
    assert at["FedAvg"]["MNIST", "Client, printed"].text == "9.38"
    assert grid.about == ("Counted from layer shapes: needs no run, and no budget applies.",)
    assert any("has the concept shifts exchanged" in note for note in grid.notes)
    assert [ours.state for ours, _ in grid.verdicts] == ["holds"]
