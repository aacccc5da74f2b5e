"""A grid of runs from Python is that of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedbench as fb
from fedbench.methods.ditto import Ditto

SMALL = {"budget": "smoke", "protocol": "feddrm", "rounds": 2, "progress": False}


@pytest.fixture
def store(tmp_path: Path) -> fb.Store:
    return fb.Store(tmp_path / "store")


def test_a_grid_its_means_and_its_best(store: fb.Store) -> None:
    grid = fb.sweep(
        "digits", ["local", Ditto(mu=0.5)], lr=[0.05, 0.1], seeds=[0, 1], validation=0.2, store=store, **SMALL
    )
    assert not grid.failures
    values = [(run.spec.method, run.spec.setting.lr, run.spec.setting.seed) for run in grid.runs]
    assert values == [(m, lr, s) for lr in (0.05, 0.1) for m in ("local", "ditto") for s in (0, 1)]
    assert {run.spec.params.get("mu") for run in grid.runs} == {None, 0.5}
    assert [one["method"] for one in grid.best] == ["local", "ditto"]
    assert "Ditto" in repr(grid)
    assert "<table" in grid._repr_html_()
    again = fb.sweep("digits", "local", lr=0.05, seeds=[0], validation=0.2, store=store, **SMALL)
    assert [run.id for run in again.runs] == [grid.runs[0].id], "it is there"


def test_what_cannot_be_run_is_an_error_before_anything_is(store: fb.Store) -> None:
    with pytest.raises(fb.FedbenchError, match="unknown option of sweep --method local '--lrr'"):
        fb.sweep("digits", "local", lrr=0.1, store=store)
    assert not (store.home / "run").exists()


def test_a_run_that_fails_is_told_and_stops_no_other(store: fb.Store) -> None:
    grid = fb.sweep("digits", ["fedavg"], lr=[0.05, 1e6], seeds=[0], store=store, **SMALL)
    assert len(grid.runs) == 1
    assert len(grid.failures) == 1
    assert "diverged" in str(next(iter(grid.failures.values())))
