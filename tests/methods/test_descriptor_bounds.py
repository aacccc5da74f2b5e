"""Snapshots of clients: FedAvg as long as it trains, then one model for all, whose moments are those of the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import models
from fedbench.core.augment import to_input
from fedbench.core.context import Context
from fedbench.methods.descriptor_bounds import snapshot
from fedbench.methods.parts.description import first_bounds
from fedbench.methods.parts.descriptor import descriptor, projector, synthetic
from fedbench.rng import stream
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, same, train

DATA = grouped_federation(size=60)
SETTING = grouped_setting(rounds=4, participation=0.7, lr=0.05)
PIXELS, CLASSES = 64, 10


def test_the_model_is_fedavgs_after_warm_up_and_describes_halves_of_the_images(tmp_path: Path) -> None:
    watched = train(method("descriptor_bounds", components=3, warm_up=0.5, samples=3), DATA, tmp_path / "a", SETTING)
    plain = train("fedavg", DATA, tmp_path / "b", grouped_setting(rounds=2, participation=0.7, lr=0.05))
    assert same(watched.shared, plain.shared)
    clients, rows = watched.trainer.method.described(watched.trainer.server) or (torch.zeros(0), torch.zeros(0))
    cohorts = [watched.trainer.plan.cohort(t) for t in (3, 4)]
    assert clients.tolist() == [i for cohort in cohorts for i in cohort]
    length = 2 * (CLASSES + 1) * 3
    assert rows.shape == (len(clients), 1 + length + 2 * (PIXELS + CLASSES))
    # The last round's, by hand.
    network = models.build("digits_cnn", shape=DATA.shape, classes=CLASSES, seed=SETTING.seed).eval()
    network.load_state_dict({n: torch.from_numpy(t) for n, t in plain.shared.items()})
    z = network.latent(torch.zeros(1, 1, 8, 8)).numel()
    how = projector(2 * torch.from_numpy(np.random.RandomState(1).random_sample((200, z))), 3)
    for row, i in zip(rows.numpy()[-len(cohorts[-1]) :], cohorts[-1], strict=True):
        own = DATA.validation[i] if DATA.validation is not None and len(DATA.validation[i]) else DATA.train[i]
        rng = stream(SETTING.seed, "halves", 4, i)
        some = np.concatenate([np.asarray(own)[rng.permutation(len(own))[: len(own) // 2]] for _ in range(3)])
        images, labels = DATA.images[some], DATA.labels[some]
        with torch.no_grad():
            reduced = how(network.latent(to_input(images)))
        joint = np.concatenate([np.asarray(images).reshape(len(some), -1) / 255, np.eye(CLASSES)[labels]], 1)
        assert row[0] == length
        assert row[1 : 1 + length] == pytest.approx(descriptor(reduced, labels, CLASSES).numpy(), abs=1e-3)
        assert row[1 + length :] == pytest.approx(np.concatenate([joint.mean(0), joint.std(0)]), abs=1e-5)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_snapshot_is_its_descriptor_and_its_gaussian(seed: int, many: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((40, 6)))
    labels = torch.from_numpy(rng.integers(0, 3, 40))
    marks = torch.nn.functional.one_hot(labels, 4)
    row = snapshot(rows, marks if many else labels, 2, 4)
    assert row[0] == 2 * 5 * 2
    assert torch.allclose(row[1:21], descriptor(rows[:, :2], labels, 4).float())
    joint = np.concatenate([rows[:, 2:].numpy(), marks.numpy()], 1)
    assert row[21:].numpy() == pytest.approx(np.concatenate([joint.mean(0), joint.std(0)]), abs=1e-5)


@pytest.mark.parametrize(("share", "rounds", "last"), [(0.25, 20, 5), (0.5, 5, 2), (0.25, 3, 1)])
def test_the_rounds_of_warm_up(share: float, rounds: int, last: int) -> None:
    assert method("descriptor_bounds", warm_up=share).trains_until(rounds) == last


def test_the_projection_is_that_of_the_released_codes_first_bounds() -> None:
    network = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=4).train()
    bounds = first_bounds(network, Context.of(DATA, SETTING))
    assert network.training
    assert (float(bounds.low.max()), float(bounds.high.min())) == (0.0, 2.0)
    wider = type(bounds)(bounds.low, 7 * bounds.high)
    assert torch.allclose(projector(synthetic(bounds), 3).axes, projector(synthetic(wider), 3).axes, atol=1e-9)
