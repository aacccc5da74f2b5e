"""ATP: rates learned by autograd on every tensor, running statistics too, and answers that know no label."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import Batch, Collected, Differentiated, Gradient
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.trainer import Trainer
from fedbench.methods.atp import Rates, entropy, norm_statistics, settled_cross_entropy, stepped
from tests.support.formula_lab import State, close, images, of, started, trained
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, drive, method

DATA = grouped_federation((0, 1, 2), 70)
SHORT = grouped_setting(rounds=2, batch_size=8, init_seed=1)
NETWORK = [name for name, t in started().items() if t.is_floating_point()]

# -- once more, with autograd on every tensor ---------------------------------------------------------------------


def forward(p: State, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, what the norm reads) of the small network in evaluation mode, differentiable by all of p."""
    h = F.conv2d(x, p["backbone.conv.weight"], p["backbone.conv.bias"], padding=1)

    def column(name: str) -> Tensor:
        return p[f"backbone.norm.{name}"].view(1, -1, 1, 1)

    z = (h - column("running_mean")) / (column("running_var") + 1e-5).sqrt() * column("weight") + column("bias")
    z = F.relu(F.max_pool2d(z, 2)).flatten(1)
    z = F.relu(F.linear(z, p["backbone.hidden.weight"], p["backbone.hidden.bias"]))
    return F.linear(z, p["head.weight"], p["head.bias"]), h.detach()


def one_step(theta: State, rates: State, x: Tensor) -> tuple[State, State]:
    """(the adapted network, whose tensors are leaves, and the ways that it went)."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in theta.items()}
    scores, read = forward(leaves, x)
    shares = scores.softmax(1)
    (-(shares * shares.log()).sum() / len(x)).backward()  # type: ignore[no-untyped-call]
    ways = {n: t.grad.clone() for n, t in leaves.items()}  # type: ignore[union-attr]
    by_channel = read.transpose(0, 1).flatten(1)
    ways["backbone.norm.running_mean"] = theta["backbone.norm.running_mean"] - by_channel.mean(1)
    ways["backbone.norm.running_var"] = theta["backbone.norm.running_var"] - by_channel.var(1)
    return {n: (t - rates[n] * ways[n]).detach().requires_grad_() for n, t in theta.items()}, ways


def rates_by_hand(theta: State, data: Federation, eta: float, rounds: int, size: int) -> State:
    rates = {n: torch.zeros(()) for n in theta}
    for _ in range(rounds):
        found = []
        for rows in data.validation:
            mine = dict(rates)
            for chosen in rows.split(size):
                x = images(data, chosen)
                adapted, ways = one_step(theta, mine, x)
                F.cross_entropy(forward(adapted, x)[0], data.labels[chosen]).backward()  # type: ignore[no-untyped-call]
                for n, t in adapted.items():
                    mine[n] = mine[n] + eta * (t.grad * ways[n]).sum() / np.sqrt(t.numel())
            found.append(mine)
        rates = {n: torch.stack([f[n] for f in found]).mean(0) for n in rates}
    return rates


def answers_by_hand(theta: State, rates: State, data: Federation, size: int) -> list[int]:
    told: list[int] = []
    for rows in data.test:
        for chosen in rows.split(size):
            x = images(data, chosen)
            told += forward(one_step(theta, rates, x)[0], x)[0].argmax(1).tolist()
    return told


def learned(it: Trainer) -> State:
    return dict(zip(NETWORK, it.server.memory.rates, strict=True))


@pytest.mark.parametrize("rounds", [1, 2])
def test_rates_and_answers_are_those_of_autograd(rounds: int, tmp_path: Path) -> None:
    """Catches any mistake in the gradient by running statistics, a step that goes on from the last batch's, a missing
    root, rates not averaged between rounds, and answers by theta. By default rates are learned in as many rounds as the
    model, which are two."""
    chosen = {"rate_rounds": 1} if rounds == 1 else {}
    it = trained(method("atp", eta=10.0, **chosen), DATA, SHORT, tmp_path)
    theta = {n: t for n, t in of(it.server.shared).items() if n in NETWORK}
    expected = rates_by_hand(theta, DATA, 10.0, rounds, 8)
    found = learned(it)
    close(found, expected, 2e-3)
    for name in ("norm.running_mean", "norm.running_var", "norm.weight", "conv.weight"):
        assert abs(float(found[f"backbone.{name}"])) > 5e-4, "nothing to compare"
    told = it.checkpoint.read_predictions().to_pandas()
    by_hand = answers_by_hand(theta, found, DATA, 8)
    assert told["own"].tolist() == told["test_phase"].tolist() == by_hand
    unadapted = [k for rows in DATA.test for k in forward(theta, images(DATA, rows))[0].argmax(1).tolist()]
    assert unadapted != by_hand
    assert answers_by_hand(theta, found, DATA, 16) != by_hand, "the batch of an image does not matter"


# -- reductions -------------------------------------------------------------------------------------------------


# -- what it may see --------------------------------------------------------------------------------------------


def test_labels_of_validation_images_change_the_rates_alone(tmp_path: Path) -> None:
    labels = DATA.labels.clone()
    for rows in DATA.validation:
        labels[rows] = (labels[rows] + 3) % 10
    how = method("atp", eta=1.0)
    plain, other = (
        trained(how, data, SHORT, tmp_path / str(k)).server
        for k, data in enumerate((DATA, dataclasses.replace(DATA, labels=labels)))
    )
    assert not torch.equal(plain.memory.rates, other.memory.rates)
    assert all(torch.equal(plain.shared[n], other.shared[n]) for n in NETWORK)


def test_the_update_that_answers_asks_for_nothing_but_test_images(tmp_path: Path) -> None:
    state = started()
    plan = Plan(SHORT, DATA.n_train, DATA.shape[:2])
    someone = client(DATA, plan, 0, state, t=2)
    someone.inbox = Rates(torch.zeros(len(NETWORK)))
    gradient = Differentiated(0.0, {n: torch.ones_like(state[n]) for n in NETWORK if "running" not in n}, 8)
    rows, told = Collected(torch.zeros(8, 3, 6), torch.zeros(8)), Collected(torch.eye(10)[:8], torch.zeros(8))
    requests = drive(method("atp").personalise(someone), *(gradient, rows, told) * 3)
    assert [r.part for r in requests] == [part for part in ((0, 8), (8, 16), (16, 21)) for _ in range(3)]
    assert {r.split for r in requests} == {"test"}
    assert {r.loss for r in requests if isinstance(r, Gradient)} == {entropy}


def without_validation() -> Federation:
    return dataclasses.replace(DATA, validation=[rows[:0] for rows in DATA.validation])


def test_rates_come_from_validation_images_or_else_from_training_images(tmp_path: Path) -> None:
    for data, split in ((DATA, "validation"), (without_validation(), "train")):
        someone = client(data, Plan(SHORT, data.n_train, data.shape[:2]), 0, started(), t=2)
        someone.inbox = Rates(torch.zeros(len(NETWORK)))
        assert next(method("atp").reply(someone)).split == split  # type: ignore[arg-type]


def test_entropy_asks_for_no_labels() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))

    model = Fixed().train()
    loss = entropy(model, Batch(torch.zeros(2), torch.tensor([-1, -1]), torch.arange(2), {}))
    assert float(loss.total) == pytest.approx((1.5 * np.log(2) + np.log(3)) / 2)
    assert not model.training
    settled = settled_cross_entropy(Fixed().train(), Batch(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2), {}))
    assert float(settled.total) == pytest.approx((np.log(2) + np.log(3)) / 2)


# -- the rest ---------------------------------------------------------------------------------------------------


def test_a_variance_stays_at_least_zero() -> None:
    state = started()
    ways = {n: torch.full_like(state[n], 2.0) for n in NETWORK}
    moved = stepped(state, torch.ones(len(NETWORK)), ways)
    assert not moved["backbone.norm.running_var"].any()
    assert torch.equal(moved["backbone.norm.running_mean"], state["backbone.norm.running_mean"] - 2)
    assert torch.equal(moved["backbone.norm.num_batches_tracked"], state["backbone.norm.num_batches_tracked"])


def test_a_network_without_batch_norms_asks_for_no_statistics() -> None:
    state = {"head.weight": torch.ones(10, 16)}
    someone = client(DATA, Plan(SHORT, DATA.n_train, DATA.shape[:2]), 0, state)
    assert drive_to_end(norm_statistics.ways(someone, "test", (0, 8))) == {}
    assert norm_statistics.gradients(state, {"head.weight": torch.ones(10, 16)}) == {}


def drive_to_end(update: Any) -> Any:
    try:
        next(update)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asked")
