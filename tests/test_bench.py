"""The benches (tests/bench, which is not collected) run."""

from __future__ import annotations

import pytest

from tests.bench.engines import seconds

pytestmark = pytest.mark.slow


def test_of_engines() -> None:
    assert set(seconds("digits", runs=2, rounds=1, repeats=1, ways=("here", "jobs 2"))) == {"here", "jobs 2"}
