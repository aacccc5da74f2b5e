"""q-FedAvg: its formula by hand, and what it is with q = 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.errors import FedbenchError
from fedbench.methods.qfedavg import Before
from tests.support.lab import client, federation, method, setting, train, trainer

DATA = federation((60, 60, 60))
SETTING = setting(rounds=2, window=1, momentum=0.0)


def test_without_q_it_is_fedavg_on_clients_of_one_size(tmp_path: Path) -> None:
    ours = train(method("qfedavg", q=0.0), DATA, tmp_path / "ours", SETTING)
    fedavg = train("fedavg", DATA, tmp_path / "fedavg", SETTING)
    for name, value in fedavg.shared.items():
        np.testing.assert_allclose(ours.shared[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q", [0.1, 1.0, 2.0])
def test_the_servers_step_by_hand(q: float, tmp_path: Path) -> None:
    """Algorithm 2, line 7 and 8, in NumPy; each client has trained to weights of our choice."""
    how = method("qfedavg", q=q)
    it = trainer(how, DATA, tmp_path, SETTING)
    before = {n: t.double().numpy() for n, t in it.server.shared.items()}
    rng, lr, losses = np.random.default_rng(0), [0.05, 0.05, 0.1], [0.5, 1.5, 2.5]
    cohort, trained = [], []
    for i in range(3):
        one = client(DATA, it.plan, i, it.server.view(i))
        trained.append({n: v + rng.normal(size=v.shape) for n, v in before.items()})
        one.state = {n: torch.from_numpy(v) for n, v in trained[i].items()}
        one.lr, one.upload = lr[i], Before(losses[i])
        cohort.append(one)
    how.aggregate(it.server, cohort, 1)
    flat = np.concatenate([v.ravel() for v in before.values()])
    deltas, h = [], []
    for i in range(3):
        change = (flat - np.concatenate([v.ravel() for v in trained[i].values()])) / lr[i]
        deltas.append(losses[i] ** q * change)
        h.append(q * losses[i] ** (q - 1) * (change @ change) + losses[i] ** q / lr[i])
    expected = flat - sum(deltas) / sum(h)
    ours = np.concatenate([it.server.shared[n].double().numpy().ravel() for n in before])
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_the_model_as_sent(tmp_path: Path) -> None:
    """On all training images, before a step is taken."""
    it = trainer(method("qfedavg"), DATA, tmp_path, SETTING)
    one = it.client(0, it.server.view(0), 1)
    it.executor.run([one], it.method.local)
    with torch.no_grad():
        model = it.executor.worker.load(it.server.view(0)).eval()  # type: ignore[attr-defined]
        rows = DATA.train[0]
        x = DATA.images[rows].permute(0, 3, 1, 2).float() / 255
        by_hand = torch.nn.functional.cross_entropy(model((x - 0.5) / 0.5), DATA.labels[rows])
    assert one.upload.loss == pytest.approx(float(by_hand), rel=1e-4)


def test_bad_q() -> None:
    with pytest.raises(FedbenchError, match="--q of qfedavg must be at least 0"):
        method("qfedavg", q=-1.0)


def test_a_number_is_sent_beside_the_model(tmp_path: Path) -> None:
    """The loss; the rate is the round's, which the server knows."""
    it = train("qfedavg", DATA, tmp_path, SETTING).trainer
    model = 3 * sum(4 * t.numel() for t in it.server.shared.values())
    assert [(line["bytes_up"], line["bytes_down"]) for line in it.checkpoint.rounds] == [(model + 3 * 8, model)] * 2
