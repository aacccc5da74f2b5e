"""FedProx: FedAvg without its proximal term, and with it torch's SGD on the whole local objective."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.core.plan import Plan
from fedbench.errors import FedbenchError
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import averaged, descended, of, started, trained

DATA = federation()


def test_without_the_proximal_term_it_is_fedavg(tmp_path: Path) -> None:
    none, plain, some = (
        train(how, DATA, tmp_path / str(i))
        for i, how in enumerate((method("fedprox", mu=0), method("fedavg"), method("fedprox", mu=0.5)))
    )
    assert same(none.tensors, plain.tensors)
    assert none.predictions.equals(plain.predictions)
    assert not same(some.tensors, plain.tensors)


def test_rounds_are_sgd_on_the_loss_and_the_squared_distance(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, epochs=2)
    it = trained(method("fedprox", mu=0.7), DATA, s, tmp_path)
    plan, shared = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    for t in (1, 2):
        local = [
            descended(shared, DATA, DATA.train[i], [list(plan.batches(i, t, 1, 2, None))], s, 0.7, shared)
            for i in range(DATA.clients)
        ]
        shared = averaged(local, DATA.n_train)
    for name, expected in shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)


def test_the_pull_keeps_clients_nearer_to_what_they_received(tmp_path: Path) -> None:
    def distance(mu: float) -> float:
        it = train(method("fedprox", mu=mu), DATA, tmp_path / str(mu), setting(rounds=1, window=1)).trainer
        return sum(float((t - it.server.initial[n]).square().sum()) for n, t in it.server.shared.items())

    assert distance(1.0) < distance(0.1) < distance(0.0)


def test_the_last_rounds_neither_communicate_nor_pull(tmp_path: Path) -> None:
    """FedDRM's FedProxFT, against torch's SGD: each client goes on from its own copy."""
    s, mu = setting(rounds=3, window=1), 0.7
    it = trained(method("fedprox", mu=mu, finetune_rounds=2), DATA, s, tmp_path)
    plan, models, shared = Plan(s, DATA.n_train, DATA.shape[:2]), [started()] * DATA.clients, started()
    for t in (1, 2, 3):
        models = [
            descended(models[i], DATA, DATA.train[i], [list(plan.batches(i, t, 1, 1, None))], s, mu * (t == 1), shared)
            for i in range(DATA.clients)
        ]
        if t == 1:
            shared = averaged(models, DATA.n_train)
            models = [shared] * DATA.clients
    for name, expected in shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    for i, model in enumerate(models):
        for name, expected in model.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=1e-3, atol=1e-5)
    assert [line["bytes_up"] > 0 for line in it.checkpoint.rounds] == [True, False, False]


def test_fine_tuned_without_the_proximal_term_it_is_fedavgft(tmp_path: Path) -> None:
    names: dict[str, dict[str, float]] = {"fedprox": {"mu": 0.0}, "fedavgft": {}}
    none, plain = (
        train(method(name, finetune_rounds=2, **chosen), DATA, tmp_path / name) for name, chosen in names.items()
    )
    assert same(none.tensors, plain.tensors)
    assert none.predictions.equals(plain.predictions)


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(FedbenchError, match="--mu of fedprox must be at least 0, not -1"):
        method("fedprox", mu=-1)
    with pytest.raises(FedbenchError, match="--finetune-rounds of fedprox must be at least 0, not -1"):
        method("fedprox", finetune_rounds=-1)
    with pytest.raises(
        FedbenchError, match="--finetune-rounds of fedprox must be below the number of rounds, 3, not 3"
    ):
        method("fedprox", finetune_rounds=3).check_setting(setting())
