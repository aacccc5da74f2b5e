"""The targets of the trainer core on a CPU.

pytest -s tests/bench        (or speed.py, which prints the whole table and runs on a GPU too)
"""

from __future__ import annotations

import printed
import pytest
from measure import Bench
from workloads import TARGETS


@pytest.mark.parametrize("workload", TARGETS["cpu"])
def test_our_best_way_beats_the_usual_way(workload: str, capsys) -> None:
    bench = Bench([workload], "cpu")
    bench.run()
    with capsys.disabled():
        print("\n" + printed.plain(bench))
    assert [row.met for row in bench.rows if row.met is not None] == [True]
    assert all(row.parity < 1e-4 for row in bench.rows if row.best)
