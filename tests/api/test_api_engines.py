"""Grids from Python with several runs at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedbench as fb
from fedbench.errors import FedbenchError
from fedbench.store import Store

SMALL = {"dir": 0.3, "clients": 4, "rounds": 2, "executor": "cores", "progress": False}


@pytest.mark.slow
def test_a_sweep_in_two_processes(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    one = fb.sweep("digits", ["fedavg", "local"], store=here, **SMALL)
    two = fb.sweep("digits", ["fedavg", "local"], store=there, jobs=2, **SMALL)
    assert not two.failures
    assert [run.id for run in two.runs] == [run.id for run in one.runs]
    for a, b in zip(one.runs, two.runs, strict=True):
        assert a.predictions.equals(b.predictions)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match="--jobs does not go with --engine ray"):
        fb.sweep("digits", "local", store=Store(tmp_path), jobs=2, engine="ray", **SMALL)
