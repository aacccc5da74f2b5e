"""FLUX beyond its warm-up: every executor, and a resumed run, gives the same clusters, models and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core.federation import Federation
from fedbench.core.trainer import Interrupted, Progress
from fedbench.specs import Setting
from tests.support.groups_lab import drifted, grouped_federation, grouped_setting
from tests.support.lab import Run, method, train

SIX = replace(grouped_setting().partition, clients=6)
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("flux", {"start": 3}),
    ("flux", {"start": 3, "average": "running"}),
    ("flux", {"start": 3, "clustering": "prior", "assignment": "random"}),
    ("flux_soft", {"start": 3}),
]
methods = pytest.mark.parametrize(("name", "chosen"), METHODS, ids=lambda v: v if isinstance(v, str) else "-".join(v))


def drifting() -> tuple[Federation, Setting]:
    """Four clients whose data change in round 5, with a test phase."""
    before, after = grouped_federation((0, 0, 1, 1), 60), grouped_federation((1, 0, 1, 0), 60)
    return drifted(before, after, (1, 0, 1, 0), (0, 0, 1, 1)), grouped_setting(rounds=6, drifts=(5,))


def coming_and_going() -> tuple[Federation, Setting]:
    """Six clients of which three take part in a round, with a test phase."""
    return grouped_federation((0, 1, 2, 0, 1, 2), 60), grouped_setting(rounds=6, cohort=3, partition=SIX)


def agree(a: Run, b: Run, within: float) -> None:
    assert a.tensors.keys() == b.tensors.keys()
    for name, value in a.tensors.items():
        np.testing.assert_allclose(b.tensors[name], value, rtol=within, atol=within, err_msg=name)
    ours, theirs = (run.predictions.to_pandas() for run in (a, b))
    for column in ("own", "test_phase"):
        assert (ours[column] == theirs[column]).mean() >= (1 if within == 0 else 0.99)


@methods
@pytest.mark.parametrize("scenario", [drifting, coming_and_going], ids=lambda f: f.__name__)
def test_executors_and_a_resumed_run_agree(name: str, chosen: dict[str, Any], scenario: Any, tmp_path: Path) -> None:
    data, s = scenario()
    run = train(method(name, **chosen), data, tmp_path / "sequential", s)
    assert run.trainer.checkpoint.rounds[-1]["figure_clustering_round"] >= 3
    for executor, within in (("cores", 0.0), ("stacked", 1e-4)):
        agree(run, train(method(name, **chosen), data, tmp_path / executor, s, executor=executor), within)

    def stop(progress: Progress) -> None:
        if progress.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(method(name, **chosen), data, tmp_path / "resumed", s, observe=stop)
    agree(run, train(method(name, **chosen), data, tmp_path / "resumed", s), 0.0)
