"""FedSAM and MoFedSAM: whole rounds against steps written out in torch; FedAvg and FedAvgFT with nothing to climb."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.specs import Setting
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import State, averaged, descended, images, of, started, trained

DATA = federation()
RHO = 0.3


def climbed(
    state: Mapping[str, Tensor], client: int, batches: list[np.ndarray], s: Setting, momentum: float, own: float = 1.0,
    others: Mapping[str, Tensor] | None = None,
) -> State:  # fmt: skip
    """The network after these batches: down `own` times the gradient from RHO uphill, and what is left of one times
    that of the others."""
    model = small(norm=True).train()
    model.load_state_dict(dict(state))
    speed: State = {}
    for position in batches:
        rows = DATA.train[client][torch.from_numpy(position)]
        x, y = images(DATA, rows), DATA.labels[rows]
        weights = dict(model.named_parameters())
        here = dict(
            zip(weights, torch.autograd.grad(F.cross_entropy(model(x), y), list(weights.values())), strict=True)
        )
        length = torch.cat([g.reshape(-1) for g in here.values()]).norm()
        base = {n: w.detach().clone() for n, w in weights.items()}
        with torch.no_grad():
            for n, w in weights.items():
                w.add_(RHO * here[n] / length)
        there = dict(
            zip(weights, torch.autograd.grad(F.cross_entropy(model(x), y), list(weights.values())), strict=True)
        )
        with torch.no_grad():
            for n, w in weights.items():
                step = own * (there[n] + s.weight_decay * base[n])
                if others is not None:
                    step = step + (1 - own) * others[n]
                speed[n] = momentum * speed.get(n, torch.zeros_like(w)) + step
                w.copy_(base[n] - s.lr * speed[n])
    return state_of(model)


def test_rounds_are_those_of_the_algorithm(tmp_path: Path) -> None:
    """Two rounds and one of fine-tuning by plain SGD: FedDRM's FedSAMFT."""
    s = setting(rounds=3, window=1, epochs=2)
    it = trained(method("fedsam", rho=RHO, finetune_rounds=1), DATA, s, tmp_path)
    plan, shared = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    batches = {t: [list(plan.batches(i, t, 1, 2, None)) for i in range(DATA.clients)] for t in (1, 2, 3)}
    for t in (1, 2):
        ends = [climbed(shared, i, batches[t][i], s, s.momentum) for i in range(DATA.clients)]
        shared = averaged(ends, DATA.n_train)
    for name, expected in shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    for i in range(DATA.clients):
        own = descended(shared, DATA, DATA.train[i], [batches[3][i]], s)
        for name, expected in own.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=1e-3, atol=2e-5)


def test_rounds_with_momentum_are_those_of_mofedsam(tmp_path: Path) -> None:
    """Whatever the setting's own momentum."""
    s, beta = setting(rounds=3, window=1, epochs=2), 0.4
    it = trained(method("fedsam", rho=RHO, beta=beta), DATA, s, tmp_path)
    plan, x = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    direction: State = {n: torch.zeros_like(x[n]) for n, _ in small(norm=True).named_parameters()}
    for t in (1, 2, 3):
        batches = [list(plan.batches(i, t, 1, 2, None)) for i in range(DATA.clients)]
        ends = [climbed(x, i, batches[i], s, 0.0, beta, direction) for i in range(DATA.clients)]
        steps = [
            {n: (x[n] - end[n]) / (len(b) * s.lr) for n in direction} for b, end in zip(batches, ends, strict=True)
        ]
        x, direction = averaged(ends, DATA.n_train), averaged(steps, DATA.n_train)
    for name, expected in x.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    for name, expected in direction.items():
        torch.testing.assert_close(it.server.shared[f"direction/{name}"], expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("rounds", "other"), [(0, "fedavg"), (2, "fedavgft")])
def test_without_a_way_to_climb_it_is_fedavg_or_fedavgft(rounds: int, other: str, tmp_path: Path) -> None:
    """To the bit where, as here, no batch norm sees images twice."""
    s, length = setting(rounds=4), {"finetune_rounds": rounds} if rounds else {}
    ours = train(method("fedsam", rho=0.0, **length), DATA, tmp_path / "ours", s)
    theirs = train(method(other, **length), DATA, tmp_path / other, s)
    some = train(method("fedsam", **length), DATA, tmp_path / "some", s)
    assert same(ours.tensors, theirs.tensors)
    assert ours.predictions.equals(theirs.predictions)
    assert not same(some.tensors, theirs.tensors)


@pytest.mark.slow
def test_it_ends_where_the_loss_is_flatter_than_at_fedavgs_end(tmp_path: Path) -> None:
    """How much the training loss of the shared model rises by a step uphill of the length that it looks ahead."""
    data, length = federation((120, 120, 120), skew=float("inf")), 0.1

    def rise(how: Method) -> float:
        it = train(how, data, tmp_path / how.name, setting(rounds=40, window=1, epochs=3, lr=0.02)).trainer
        model, rows = it.executor.model, torch.cat(list(data.train))
        model.load_state_dict(it.server.shared)
        weights, x = list(model.parameters()), images(data, rows)
        before = F.cross_entropy(model(x), data.labels[rows])
        gradient = torch.autograd.grad(before, weights)
        norm = torch.cat([g.reshape(-1) for g in gradient]).norm()
        with torch.no_grad():
            for w, g in zip(weights, gradient, strict=True):
                w.add_(length * g / norm)
            return (F.cross_entropy(model(x), data.labels[rows]) - before).item()

    assert 0 < rise(method("fedsam", rho=length)) < rise(method("fedavg")) / 2


def test_effort_is_two_passes_a_step_but_in_the_last_rounds() -> None:
    assert method("fedsam").relative_compute(setting(rounds=800)) == 2
    assert method("fedsam", finetune_rounds=100).relative_compute(setting(rounds=800)) == 1.875


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({"rho": -0.1}, "--rho of fedsam must be at least 0"),
        ({"beta": 0.0}, "--beta of fedsam must be above 0 and at most 1"),
        ({"beta": 1.1}, "--beta of fedsam must be above 0 and at most 1"),
        ({"finetune_rounds": -1}, "--finetune-rounds of fedsam must be at least 0"),
        ({"finetune_rounds": 3}, "--finetune-rounds of fedsam must be below the number of rounds, 3"),
        ({"beta": 0.1}, "fedsam takes its steps by a rule of its own, not by adamw"),
    ],
)
def test_what_it_cannot_work_with_is_refused(chosen: dict[str, Any], wanted: str) -> None:
    with pytest.raises(FedbenchError, match=wanted):
        method("fedsam", **chosen).check_setting(setting(optimizer="adamw", momentum=0.0))


def test_without_momentum_of_the_federation_any_optimiser_will_do() -> None:
    method("fedsam").check_setting(setting(optimizer="adamw", momentum=0.0))
