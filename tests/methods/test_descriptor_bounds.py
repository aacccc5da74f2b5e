"""Snapshots of clients: FedAvg is not disturbed, the moments are those of the descriptor, one projection for all."""

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
from fedbench.theory.wasserstein import Snapshots
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, same, train

DATA = grouped_federation(size=60)
SETTING = grouped_setting(rounds=3, participation=0.7, lr=0.05)


def test_training_is_fedavgs_to_the_bit_and_the_last_snapshots_are_of_its_model(tmp_path: Path) -> None:
    watched = train(method("descriptor_bounds", components=3), DATA, tmp_path / "a", SETTING)
    plain = train("fedavg", DATA, tmp_path / "b", SETTING)
    assert same(watched.shared, plain.shared)
    assert watched.predictions.equals(plain.predictions)
    sent = [[line["bytes_up"] for line in run.trainer.checkpoint.rounds] for run in (watched, plain)]
    snapshots = [len(watched.trainer.plan.cohort(t)) * 4 * 11 * (1 + 3 + 9) for t in (1, 2, 3)]
    assert [a - b for a, b in zip(*sent, strict=True)] == snapshots
    clients, rows = watched.trainer.method.described(watched.trainer.server) or (torch.zeros(0), torch.zeros(0))
    cohorts = [watched.trainer.plan.cohort(t) for t in (1, 2, 3)]
    assert clients.tolist() == [i for cohort in cohorts for i in cohort]
    assert len({len(c) for c in cohorts}) > 1
    # The last round's, by hand.
    network = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=SETTING.seed).eval()
    network.load_state_dict({n: torch.from_numpy(t) for n, t in plain.shared.items()})
    z = network.latent(torch.zeros(1, 1, 8, 8)).numel()
    how = projector(2 * torch.from_numpy(np.random.default_rng(1).random((200, z))), 3)
    found = Snapshots.of(rows.numpy(), 3)
    for k, i in enumerate(cohorts[-1], len(rows) - len(cohorts[-1])):
        with torch.no_grad():
            reduced = how(network.latent(to_input(DATA.images[DATA.train[i]]))).numpy()
        assert found.mean[k, 0] == pytest.approx(reduced.mean(0), abs=1e-4)
        assert found.covariance[k, 0] == pytest.approx(np.cov(reduced.T, ddof=0), abs=1e-4)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_means_and_deviations_are_the_descriptors(seed: int, many: bool) -> None:
    """Class 3 has no image, class 2 one: both are missing in either form."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((40, 4)) * 3)
    labels = torch.from_numpy(np.concatenate([rng.integers(0, 2, 39), [2]]))
    if many:
        labels = torch.nn.functional.one_hot(labels, 4)
    told = Snapshots.of(snapshot(rows, labels, 4)[None].numpy(), 4)
    mu_x, sigma_x, mu_u, sigma_u = np.split(descriptor(rows, labels, 4).numpy(), [4, 8, 24])
    assert told.descriptors()[0] == pytest.approx(np.concatenate([mu_x, mu_u, sigma_x, sigma_u]), abs=1e-4)
    assert told.there.tolist() == [[True, True, True, False, False]]
    assert told.count[0].sum() == 80
    first = rows[(labels[:, 0] == 1) if many else (labels == 0)].numpy()
    assert told.covariance[0, 1] == pytest.approx(np.cov(first.T, ddof=0), abs=1e-4)


def test_the_projection_is_that_of_the_released_codes_first_bounds() -> None:
    network = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=4).train()
    bounds = first_bounds(network, Context.of(DATA, SETTING))
    assert network.training
    assert (float(bounds.low.max()), float(bounds.high.min())) == (0.0, 2.0)
    wider = type(bounds)(bounds.low, 7 * bounds.high)
    assert torch.allclose(projector(synthetic(bounds), 3).axes, projector(synthetic(wider), 3).axes, atol=1e-9)
