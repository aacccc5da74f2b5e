"""SGD and AdamW against torch's own classes: one client, a stack of clients, and a step that can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core.client import Train
from fedbench.core.optimizer import SGD, AdamW, Optimizer, optimizer
from fedbench.errors import FedbenchError
from fedbench.methods.base import cross_entropy
from tests.support.lab import method, setting

ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.01}
CLIENTS, LR, DECAY = 3, 0.02, 0.1
SHAPES = {"conv": (4, 2, 3, 3), "bias": (5,), "scale": ()}

#: Ours -> torch's own.
RULES: dict[str, tuple[Optimizer, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (SGD(DECAY, 0.0), lambda p: torch.optim.SGD(p, LR, weight_decay=DECAY)),
    "momentum": (SGD(DECAY, 0.8), lambda p: torch.optim.SGD(p, LR, 0.8, weight_decay=DECAY)),
    "adamw": (AdamW(DECAY, in_step=True), lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY)),
    "adamw, each for itself": (AdamW(DECAY, in_step=False), lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY)),
}
rules = pytest.mark.parametrize("rule", RULES)


def draws(*lead: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn((*lead, *shape), generator=generator) for name, shape in SHAPES.items()}


def after(rule: str, client: int | None, steps: int, first: int = 0) -> dict[str, Tensor]:
    """Torch's own result of these steps from the same start, with the gradients from step `first` on."""
    lead = () if client is None else (CLIENTS,)
    own = ... if client is None else client
    p = {n: t[own].clone().requires_grad_() for n, t in draws(*lead, seed=0).items()}
    theirs = RULES[rule][1](p.values())
    for t in range(first, first + steps):
        for name, g in draws(*lead, seed=t + 1).items():
            p[name].grad = g[own].clone()
        theirs.step()
    return {n: t.detach() for n, t in p.items()}


def give(parameters: Mapping[str, Tensor], t: int, *lead: int) -> None:
    """Let the parameters hold the gradients of step t."""
    for name, g in draws(*lead, seed=t + 1).items():
        parameters[name].grad = g


@rules
def test_one_clients_steps_are_torchs(rule: str) -> None:
    ours = RULES[rule][0]
    p = {n: t.requires_grad_() for n, t in draws(seed=0).items()}
    p["idle"] = torch.ones(3, requires_grad=True)  # the loss does not touch it
    memory = ours.memory(p, stacked=False)
    for t in range(5):
        give(p, t)
        ours.descend(p, memory, LR)
        assert all(x.grad is None for x in p.values())
    for name, value in after(rule, None, 5).items():
        torch.testing.assert_close(p[name].detach(), value, rtol=1e-6, atol=1e-7)
    assert p["idle"].tolist() == [1, 1, 1]


@rules
def test_a_stacks_steps_are_each_clients(rule: str) -> None:
    ours = RULES[rule][0]
    p = {n: t.requires_grad_() for n, t in draws(CLIENTS, seed=0).items()}
    memory = ours.memory(p, stacked=True)
    for t in range(5):
        give(p, t, CLIENTS)
        ours.descend(p, memory, LR)
    for i in range(CLIENTS):
        for name, value in after(rule, i, 5).items():
            torch.testing.assert_close(p[name].detach()[i], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", ["momentum", "adamw, each for itself"])
def test_one_of_a_stack_begins_anew(rule: str) -> None:
    """Where its memory is zeroed, whatever the others have behind them."""
    ours = RULES[rule][0]
    p = {n: t.requires_grad_() for n, t in draws(CLIENTS, seed=0).items()}
    memory, start = ours.memory(p, stacked=True), draws(CLIENTS, seed=0)
    for t in range(5):
        if t == 2:
            for remembered in memory.values():
                remembered[1] = 0.0
            with torch.no_grad():
                for name, value in start.items():
                    p[name][1] = value[1]
        give(p, t, CLIENTS)
        ours.descend(p, memory, LR)
    for i, (steps, first) in enumerate(((5, 0), (3, 2), (5, 0))):
        for name, value in after(rule, i, steps, first).items():
            torch.testing.assert_close(p[name].detach()[i], value, rtol=1e-6, atol=1e-7)


@rules
def test_the_arithmetic_of_a_captured_step_is_torchs(rule: str) -> None:
    ours, lr = RULES[rule][0], torch.tensor(LR)
    p = {n: t.requires_grad_() for n, t in draws(CLIENTS, seed=0).items()}
    memory = ours.memory(p, stacked=True)
    for t in range(5):
        give(p, t, CLIENTS)
        with torch.no_grad():
            for name, parameter in p.items():
                moved, remembered = ours.moved(name, parameter, memory, lr)
                parameter.copy_(moved)
                assert remembered.keys() <= memory.keys()
                memory |= remembered
    for i in range(CLIENTS):
        for name, value in after(rule, i, 5).items():
            torch.testing.assert_close(p[name].detach()[i], value, rtol=1e-5, atol=1e-6)


def test_a_momentum_of_a_requests_own_is_sgd_in_every_setting() -> None:
    s = setting(**ADAMW)
    assert optimizer(s) == AdamW(0.1, in_step=True)
    assert optimizer(s, 0.0) == SGD(0.1, 0.0)
    assert optimizer(s, 0.5) == SGD(0.1, 0.5)
    assert optimizer(replace(s, momentum_restarts=True)) == AdamW(0.1, in_step=False)
    assert optimizer(setting(momentum=0.9, weight_decay=0.2)) == SGD(0.2, 0.9)
    assert Train(cross_entropy).momentum is None


@pytest.mark.parametrize(
    ("name", "changes"),
    [("pfedme", {}), *((name, {"steps": 1, "momentum": 0.0}) for name in ("fedsgd", "fedbn", "ftw_erm"))],
)
def test_methods_with_a_step_rule_of_their_own_refuse_another(name: str, changes: dict[str, Any]) -> None:
    how = method(name)
    how.check_setting(setting(**changes))
    with pytest.raises(FedbenchError, match=f"{name} takes its steps by a rule of its own, not by adamw"):
        how.check_setting(setting(**{**changes, **ADAMW}))
