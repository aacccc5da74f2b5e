"""What Ray costs over worker processes of our own (on a quiet machine; `python tests/bench/engines.py` prints it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.engines import seconds


def test_ray_takes_at_most_15_percent_more_than_two_processes(data_root: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")
    medians = seconds("mnist", runs=20, rounds=10, repeats=3, ways=("jobs 2", "ray"))
    assert medians["ray"] < 1.15 * medians["jobs 2"], medians
