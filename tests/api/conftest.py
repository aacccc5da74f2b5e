"""A store with a partition and two runs of it, made from Python."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import fedbench as fb


class Session(NamedTuple):
    """What a user has at hand."""

    home: Path
    part: fb.api.Part  # type: ignore[name-defined]
    runs: list[fb.api.Run]  # type: ignore[name-defined]


QUICK = {"rounds": 2, "steps": 2, "executor": "sequential", "progress": False}


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    home = tmp_path_factory.mktemp("python") / "home"
    part = fb.partition("digits", dir=0.3, clients=3, store=home)
    return Session(home, part, [fb.train(part, "fedavg", seed=seed, **QUICK) for seed in (0, 1)])
