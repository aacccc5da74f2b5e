"""Seconds by phase, and how long a setting would take."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from lab import federation, setting

from fedbench import models
from fedbench.core.clock import Clock
from fedbench.core.estimate import FORWARD, images_per_second, images_to_process
from fedbench.core.plan import Plan


def test_seconds_add_up_by_phase_and_start_again() -> None:
    clock = Clock(torch.device("cpu"))
    for _ in range(2):
        with clock.phase("local"):
            time.sleep(0.02)
    with pytest.raises(ValueError, match="x"), clock.phase("server"):
        raise ValueError("x")
    seconds = clock.reset()
    assert seconds.keys() == {"local", "server"}
    assert 0.04 <= seconds["local"] < 0.5
    assert 0 <= seconds["server"] < 0.02
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
    assert 100 < speed < 1e8
    # Images, not steps, a second: a batch of 16 images takes far less than 16 times as long as one image.
    one = models.build("digits_cnn", shape=(8, 8, 1), classes=10, seed=1)
    assert speed > 2 * images_per_second(one, (8, 8, 1), torch.device("cpu"), 1, "fp32")
