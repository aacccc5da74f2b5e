"""Seconds by phase, and how long a setting would take."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.core.clock import Clock
from fedbench.core.executors import available_cores
from fedbench.core.plan import Plan
from fedbench.engine.cost import images_per_second, images_to_process
from fedbench.methods.base import FORWARD
from tests.support.lab import federation, setting


def test_seconds_add_up_by_phase_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock(torch.device("cpu"))
    for seconds in (2.0, 3.0):
        now[0] += 50  # between phases
        with clock.phase("local"):
            now[0] += seconds
    with contextlib.suppress(ValueError), clock.phase("server"):
        now[0] += 1
        raise ValueError("a phase that fails counts too")
    assert clock.reset() == {"local": 5.0, "server": 1.0}
    assert clock.reset() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 3}, {"steps": 10}, {"epochs": 2, "tail": "drop"}, {"steps": 1, "batch_size": 500},
        {"epochs": 1, "batch_size": 500}, {"epochs": 1, "votes": False, "every": 2},
    ],
)  # fmt: skip
def test_images_to_process_counts_the_plans_batches(changes: dict[str, Any]) -> None:
    s = setting(**{"rounds": 7, "window": 3, **changes})
    data = federation((64, 96, 160))  # whole batches, so that steps never meet a short one
    n_train = [48, 64, 112]
    plan = Plan(s, n_train, (8, 8))
    training = sum(
        len(batch) for t in range(1, 8) for i in range(3) for batch in plan.batches(i, t, 1, s.epochs, s.steps)
    )
    n_test = sum(data.n_test)
    answers = n_test * (3 if s.votes else 1) * len(s.evaluated_rounds())
    assert images_to_process(s, n_train, n_test) == pytest.approx(training + answers * FORWARD)


def test_participation_scales_the_training_part() -> None:
    n = [50, 70]
    everybody, half = (images_to_process(setting(rounds=10, participation=q), n, 0) for q in (1.0, 0.5))
    assert half == pytest.approx(everybody / 2)


def test_the_probe_gives_a_speed_and_keeps_the_threads() -> None:
    before = torch.get_num_threads()
    model = models.build("digits_cnn", shape=(8, 8, 1), classes=10, seed=1)
    speed = images_per_second(model, (8, 8, 1), torch.device("cpu"), 16, "fp32")
    assert torch.get_num_threads() == before
    assert 0 < speed < 1e8


def test_the_probe_does_not_count_waiting() -> None:
    """As where other processes have the cores: every step waits a twentieth of a second."""

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return super().forward(x.flatten(1))

    speed = images_per_second(Waiting(4, 2), (2, 2, 1), torch.device("cpu"), 16, "fp32")
    assert speed > 2 * available_cores() * 16 / 0.05
