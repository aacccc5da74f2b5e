"""FLUX's Tables 4 and 7 in print: xi over the pairs of all seeds' runs, and the costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.report import table as tables
from fedbench.report.layout.build import build
from fedbench.report.layout.grid import Grid
from fedbench.report.status.cells import find
from fedbench.report.table import cost
from fedbench.specs import RunSpec, Setting
from fedbench.theory.wasserstein import Snapshots, deviations

WIDTH, BLOCKS = 10, 3


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(methods, "names", lambda: ["fedavg", "descriptor_bounds"])
    lab.dataset("mnist")
    return lab


def rows(seed: int, n: int = 6) -> np.ndarray:
    """Snapshots of one run."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, BLOCKS, 30, WIDTH)) * rng.uniform(0.2, 2, WIDTH)
    mean, centred = x.mean(2), x - x.mean(2, keepdims=True)
    covariance = np.swapaxes(centred, 2, 3) @ centred / 30
    flat = covariance.reshape(n, BLOCKS, -1)
    return np.concatenate([np.full((n, BLOCKS, 1), 30.0), mean, flat], axis=2).reshape(n, -1).astype(np.float32)


def keep(here: Any, setting: Setting, told: np.ndarray | None, method: str = "descriptor_bounds") -> None:
    """The artifact of a run, with a table of snapshots."""
    params = {"components": WIDTH} if method == "descriptor_bounds" else {}
    with here.store.writing(RunSpec(setting, method, params, 1)) as writer:
        writer.table("rounds", pa.table({"round": [1]}))
        if told is not None:
            flat = pa.FixedSizeListArray.from_arrays(pa.array(told.reshape(-1)), told.shape[1])
            writer.table("descriptors", pa.table({"client": np.zeros(len(told), np.int32), "descriptor": flat}))
        writer.provenance = {"overrides": {}, "defaults": params, "train_seconds": 1.0, "device": "cpu"}


def column(grid: Grid, place: int = 0) -> dict[str, Any]:
    return {line.label: line.entries[place] for line in grid.lines}


def test_pairs_of_all_seeds_together(here: Any) -> None:
    settings = find(tables.load("flux/4"), "paper", here.store, []).settings["MNIST/Level 3"]
    assert [s.seed for s in settings] == [s.partition.seed for s in settings] == [42, 43, 44]
    assert (settings[0].partition.shift, settings[0].partition.options.get("level"), settings[0].rounds) == (
        "pyx",
        3,
        10,
    )
    told = [rows(seed) for seed in range(3)]
    for setting, one in zip(settings[:2], told[:2], strict=True):
        keep(here, setting, one)
    keep(here, settings[0], None, "fedavg")  # as other tables train it
    partial = column(build(tables.load("flux/4"), "paper", here.store, []))
    assert set(partial) == {"Maximum", "Minimum", "Mean"}
    expected = deviations(Snapshots.of(np.concatenate(told[:2]), WIDTH))
    assert partial["Mean"].value.mean == pytest.approx(expected.mean())
    assert partial["Mean"].mark == "‡"
    keep(here, settings[2], told[2])
    grid = build(tables.load("flux/4"), "paper", here.store, [], compare=True)
    whole, found = deviations(Snapshots.of(np.concatenate(told), WIDTH)), column(grid)
    assert len(whole) == 18 * 17 // 2 == found["Mean"].value.count
    assert found["Mean"].text == f"{whole.mean():.3f}"
    assert found["Mean"].spread == f"{whole.std():.3f}"
    assert (found["Maximum"].text, found["Minimum"].text) == (f"{whole.max():.3f}", f"{whole.min():.3f}")
    assert found["Maximum"].spread == found["Mean"].mark == ""
    assert found["Maximum"].reported == (1.060, None)
    assert found["Mean"].reported == (0.526, 0.106)
    assert not grid.problems
    assert any("Over all pairs" in line and line.endswith("seeds 42, 43, 44.") for line in grid.about)
    assert column(grid, 1)["Mean"].text == ""


def test_runs_that_cannot_be_paired_are_told_of(here: Any) -> None:
    settings = find(tables.load("flux/4"), "paper", here.store, []).settings
    keep(here, settings["MNIST/Level 3"][0], None)
    keep(here, settings["MNIST/Level 5"][0], rows(1)[:, :-111])
    keep(here, settings["MNIST/Level 5"][1], rows(2))
    keep(here, settings["MNIST/Level 7"][0], rows(3)[:1])
    grid = build(tables.load("flux/4"), "paper", here.store, [])
    assert [column(grid, k)["Mean"].symbol for k in range(3)] == ["!"] * 3
    told = "\n".join(grid.problems)
    assert "kept no snapshots of its clients" in told
    assert "differ in length" in told
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
