"""How long commands take over a store of many runs.

pytest -s tests/bench/test_many_runs.py        (filling the store takes minutes)
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.many_runs import fill

#: Runs of the stores.
MANY, SOME = 2000, 500


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    homes = {number: tmp_path_factory.mktemp("many") / str(number) for number in (MANY, SOME)}
    for number, home in homes.items():
        fill(Store(home), number)
    return homes


@pytest.mark.parametrize(
    ("number", "command", "seconds"),
    [
        (MANY, ("list",), 3.0),
        (MANY, ("list", "method=fedavg"), 3.0),
        (SOME, ("list", "run"), 2.0),
        (SOME, ("report", "--table", "1"), 2.0),
        (SOME, ("status",), 2.0),
    ],
)
def test_in_seconds(stores: dict[int, Path], number: int, command: tuple[str, ...], seconds: float) -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fedbench", "--home", stores[number], *command], check=True, capture_output=True
        )
        times.append(time.perf_counter() - began)
    print(f"\n{' '.join(command)} over {number} runs: {min(times):.2f} s")
    assert min(times) < seconds
