"""Rules that change the gradient of local steps, against plain torch loops written here."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.client import Client, Train
from fedbench.core.plan import Plan
from fedbench.core.rules import Add, Ascend, Rule, norm
from fedbench.core.stacked import StackedWorker
from fedbench.core.state import State, state_of
from fedbench.core.worker import Worker
from fedbench.methods.base import cross_entropy
from tests.support.lab import client, federation, setting

DATA = federation((40, 30, 24))
SETTING = setting(epochs=2, momentum=0.9, weight_decay=1e-3, batch_size=8)
PLAN = Plan(SETTING, DATA.n_train, DATA.shape[:2])

#: What a loop does to the gradients of a batch, before the optimiser's step: (model, its loss on the batch).
Change = Callable[[nn.Module, Callable[[], Tensor]], None]


def loop(index: int, change: Change, norm: bool = False) -> State:
    """A client's tensors after SGD of torch.optim on the plan's batches, gradients changed by `change`."""
    model = small(norm=norm).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=SETTING.lr, momentum=0.9, weight_decay=1e-3)
    for positions in PLAN.batches(index, 1, 1, 2, None):
        rows = DATA.train[index][torch.from_numpy(positions)]
        x = (DATA.images[rows].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5

        def loss(x: Tensor = x, y: Tensor = DATA.labels[rows]) -> Tensor:
            return F.cross_entropy(model(x), y)

        optimiser.zero_grad()
        loss().backward()
        change(model, loss)
        optimiser.step()
    return state_of(model)


def trained(kind: type[Worker], rules: Sequence[Rule], norm: bool = False, beside: Any = None) -> list[Client]:
    """All clients after training by a request with these rules; `beside` puts further models into their states."""
    model = small(norm=norm)
    who = [client(DATA, PLAN, i, state_of(model)) for i in range(DATA.clients)]
    for one in who:
        one.work.phase = 1
        if beside:
            one.put(beside(one), "control")
    worker, request = kind(model, DATA, SETTING, threading.Event()), Train(cross_entropy, rules=tuple(rules))
    if isinstance(worker, StackedWorker):
        worker.train_stack(who, [request] * len(who))
    else:
        for one in who:
            worker.train(one, request)
    return who


def control(one: Client) -> State:
    """Of each client's own, as large as the parameters."""
    generator = torch.Generator().manual_seed(one.index)
    return {n: 0.05 * torch.randn(t.shape, generator=generator) for n, t in one.model().items()}


def adding(values: Mapping[str, Tensor], times: float) -> Change:
    def change(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        for name, p in model.named_parameters():
            assert p.grad is not None
            p.grad = p.grad + times * values[name]

    return change


def ascending(rho: float) -> Change:
    """Sharpness-aware minimisation as its official code does it: climb, differentiate, come back."""

    def change(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        home = copy.deepcopy({n: p.detach() for n, p in model.named_parameters()})
        length = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(p.grad) for p in model.parameters() if p.grad is not None])
        )
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.add_(p.grad, alpha=rho / (float(length) + 1e-12))
        model.zero_grad()
        loss().backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(home[name])

    return change


def both(first: Change, second: Change) -> Change:
    def change(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        first(model, loss)
        second(model, loss)

    return change


def near(ours: State, expected: State, start: State) -> None:
    """The network's tensors are the loop's, which has gone some way."""
    moved = [float((t - start[n]).abs().max()) for n, t in expected.items() if t.is_floating_point()]
    assert max(moved) > 0.01
    for name, t in expected.items():
        torch.testing.assert_close(ours[name], t, rtol=1e-4, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}")


workers = pytest.mark.parametrize("kind", [Worker, StackedWorker])


@workers
@pytest.mark.parametrize("times", [1.0, -0.5])
def test_what_is_added_is_part_of_every_step(kind: type[Worker], times: float) -> None:
    start = state_of(small())
    for one in trained(kind, [Add("control", times)], beside=control):
        near(one.model(), loop(one.index, adding(control(one), times)), start)
        assert all(torch.equal(one.state[f"control/{n}"], t) for n, t in control(one).items()), "it is only read"
        plain = loop(one.index, lambda model, loss: None)
        assert any(float((one.state[n] - t).abs().max()) > 1e-3 for n, t in plain.items()), "the rule matters"


@workers
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_sharpness_aware_steps_are_those_of_a_plain_loop(kind: type[Worker], norm: bool, rho: float) -> None:
    """With a batch norm, whose running statistics see each batch twice."""
    start = state_of(small(norm=norm))
    for one in trained(kind, [Ascend(rho)], norm):
        expected = loop(one.index, ascending(rho), norm)
        near(one.model(), expected, start)
        if norm:
            steps = len(list(PLAN.batches(one.index, 1, 1, 2, None)))
            assert int(one.state["backbone.norm.num_batches_tracked"]) == 2 * steps
        plain = loop(one.index, lambda model, loss: None, norm)
        assert any(float((one.state[n] - t).abs().max()) > 1e-3 for n, t in plain.items()), "the rule matters"


@workers
def test_rules_apply_in_their_order(kind: type[Worker]) -> None:
    """What is added first makes the ascent's direction and is lost in its second pass; what is added after it stays."""
    start, rho = state_of(small()), 0.3
    first = trained(kind, [Add("control"), Ascend(rho)], beside=control)
    last = trained(kind, [Ascend(rho), Add("control")], beside=control)
    for a, b in zip(first, last, strict=True):
        add, ascend = adding(control(a), 1.0), ascending(rho)
        near(a.model(), loop(a.index, both(add, ascend)), start)
        near(b.model(), loop(b.index, both(ascend, add)), start)
        assert any(float((a.state[n] - b.state[n]).abs().max()) > 1e-3 for n in start)


@dataclass(frozen=True)
class Clip(Rule):
    """A rule of a test's own: no longer than `most`."""

    most: float

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        scale = torch.clamp(self.most / norm(gradient), max=1.0)
        return {name: scale * g for name, g in gradient.items()}


@workers
def test_a_rule_of_ones_own(kind: type[Worker]) -> None:
    """Each client's gradient is clipped by its own length, in a stack too."""

    def clip(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    start = state_of(small())
    for one in trained(kind, [Clip(0.5)]):
        near(one.model(), loop(one.index, clip), start)


@dataclass(frozen=True)
class Turned(Rule):
    """The gradient as it is, in another order in memory."""

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        return {n: g.T.clone(memory_format=torch.contiguous_format).T if g.dim() == 2 else g.contiguous()
                for n, g in gradient.items()}  # fmt: skip


@workers
def test_what_order_a_gradient_has_in_memory_is_no_matter(kind: type[Worker]) -> None:
    for one in trained(kind, [Turned()]):
        near(one.model(), loop(one.index, lambda model, loss: None), state_of(small()))


def test_rules_are_values() -> None:
    """By which requests are stacked: equal ones are one."""
    assert Add("control") == Add("control", 1.0) != Add("other")
    assert Train(cross_entropy, rules=(Ascend(0.1),)) == Train(cross_entropy, rules=(Ascend(0.1),))
    assert Train(cross_entropy, rules=(Ascend(0.1),)) != Train(cross_entropy, rules=(Ascend(0.2),))
    assert float(norm({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])})) == 5.0
