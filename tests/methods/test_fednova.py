"""FedNova: whole rounds against torch's SGD and the paper's formulas; FedAvg and FedProx for equally many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.core.augment import to_input
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.errors import FedbenchError
from fedbench.methods.fednova import normaliser
from tests.support.lab import Run, federation, method, setting, train
from tests.support.sgd_oracle import averaged, descended, of, started, trained

DATA = federation()
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def of_momentum(steps: int, rho: float) -> float:
    """||a||_1 as the paper has it for local momentum."""
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def of_proximal(steps: int, pull: float) -> float:
    """||a||_1 as the paper has it for FedProx's local steps; pull = lr mu."""
    return (1 - (1 - pull) ** steps) / pull


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_normalisers_are_those_of_the_paper(steps: int) -> None:
    assert normaliser(steps, 0.0, 0.0, steps) == steps
    for rho in (0.3, 0.9):
        assert normaliser(steps, rho, 0.0, steps) == pytest.approx(of_momentum(steps, rho))
    for pull in (1e-4, 0.05, 1.0):
        assert normaliser(steps, 0.0, pull, steps) == pytest.approx(of_proximal(steps, pull))


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.1), (0.9, 0.0), (0.9, 0.02)])
@pytest.mark.parametrize("restarts", [3, 10])
def test_normalisers_are_the_way_that_torch_goes_on_gradients_of_one(
    momentum: float, pull: float, restarts: int
) -> None:
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for k in range(10):
        if k % restarts == 0:
            optimiser = torch.optim.SGD([x], 1.0, momentum)
        optimiser.zero_grad()
        (x + pull / 2 * x.square()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert normaliser(10, momentum, pull, restarts) == pytest.approx(-x.item())


@pytest.mark.parametrize(
    ("mu", "changes"), [(0.0, {}), (0.7, {"momentum": 0.0}), (0.0, {"momentum_restarts": True})], ids=str
)
def test_rounds_are_those_of_the_algorithm(mu: float, changes: dict[str, Any], tmp_path: Path) -> None:
    """Two rounds of clients with three or four batches a pass, of a network with a batch norm."""
    s = setting(rounds=2, window=1, epochs=2, **changes)
    it = trained(method("fednova", mu=mu), DATA, s, tmp_path)
    plan, x, n = Plan(s, DATA.n_train, DATA.shape[:2]), started(), DATA.n_train
    for t in (1, 2):
        ends, a = [], []
        for i in range(DATA.clients):
            batches = list(plan.batches(i, t, 1, 2, None))
            half = len(batches) // 2
            passes = [batches[:half], batches[half:]] if s.momentum_restarts else [batches]
            ends.append(descended(x, DATA, DATA.train[i], passes, s, mu, x))
            each = [of_proximal(len(p), s.lr * mu) if mu else of_momentum(len(p), s.momentum) for p in passes]
            a.append(sum(each))
        assert len(set(a)) == 2
        p = [size / sum(n) for size in n]
        tau = sum(share * norm for share, norm in zip(p, a, strict=True))
        mean = averaged(ends, n)
        x = {
            name: mean[name]
            if name.endswith(STATISTICS)
            else before - tau * sum(p[i] * (before - ends[i][name]) / a[i] for i in range(DATA.clients))
            for name, before in x.items()
        }
    for name, expected in x.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("mu", "other"), [(0.0, "fedavg"), (0.3, "fedprox")])
def test_with_equally_many_steps_it_is_fedavg_or_fedprox(mu: float, other: str, tmp_path: Path) -> None:
    s = setting(steps=4)
    ours = train(method("fednova", mu=mu), DATA, tmp_path / "ours", s)
    theirs = train(method(other, **({"mu": mu} if mu else {})), DATA, tmp_path / other, s)
    for name, expected in theirs.shared.items():
        np.testing.assert_allclose(ours.shared[name], expected, rtol=1e-4, atol=1e-6)


def loss_gradient(run: Run, data: Federation) -> torch.Tensor:
    """[P]: of the mean loss on all training images, at the start."""
    model = run.trainer.executor.model
    model.load_state_dict(run.trainer.server.initial)
    rows = torch.cat(list(data.train))
    model.zero_grad()
    F.cross_entropy(model(to_input(data.images[rows])), data.labels[rows]).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def test_the_server_goes_down_the_loss_of_all_images_however_many_steps_each_takes(tmp_path: Path) -> None:
    """Clients of one, two and eight batches and of other classes: FedAvg goes down another loss."""
    data, s = federation((23, 46, 183), skew=0.5), setting(rounds=1, window=1, momentum=0.0, weight_decay=0.0, lr=1e-3)
    assert list(data.n_train) == [16, 32, 128]
    angles = {}
    for name in ("fednova", "fedavg"):
        run = train(name, data, tmp_path / name, s)
        server, names = run.trainer.server, [n for n, _ in run.trainer.executor.model.named_parameters()]
        way = torch.cat([(server.initial[n] - server.shared[n]).reshape(-1) for n in names])
        angles[name] = float(F.cosine_similarity(way, loss_gradient(run, data), dim=0))
    assert angles["fednova"] > 0.999
    assert angles["fedavg"] < 0.99


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(FedbenchError, match="--mu of fednova must be at least 0"):
        method("fednova", mu=-1)
    with pytest.raises(FedbenchError, match="--mu of fednova must be at most 1/lr, 20 at a learning rate"):
        method("fednova", mu=21).check_setting(setting())
    with pytest.raises(FedbenchError, match="fednova takes its steps by a rule of its own"):
        method("fednova").check_setting(setting(optimizer="adamw", momentum=0.0))
