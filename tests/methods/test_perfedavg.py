"""Per-FedAvg: whole runs against torch's autograd, with the Hessian itself; SGD where nothing is adapted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.conformance.lab import finish, trainer
from fedbench.conformance.small import small
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from tests.support.formula_lab import PARAMETERS, State, averaged, close, images, of, started
from tests.support.lab import federation, method, setting, train

DATA = federation()
ALPHA, STEPS = 0.2, 2
variants = pytest.mark.parametrize("variant", ["fo", "hf"])


def smooth() -> Any:
    """The small network with a Hessian everywhere."""
    net = small(norm=True)
    for name, layer in (("pool", nn.AvgPool2d(2)), ("act", nn.Tanh()), ("last", nn.Tanh())):
        setattr(net.backbone, name, layer)
    return net


class Oracle:
    """Algorithm 1 for one client in float64, by autograd on a module."""

    def __init__(self, state: State, client: int, t: int, plan: Plan) -> None:
        self.net = smooth()
        self.net.load_state_dict(state)
        self.net = self.net.double().train()
        self.weights = list(self.net.parameters())
        self.client, self.t, self.plan, self.draws = client, t, plan, 0

    def loss(self) -> Tensor:
        """On the next batch of the plan, which is independent of those before."""
        self.draws += 1
        (position,) = self.plan.batches(self.client, self.t, self.draws, None, 1)
        rows = DATA.train[self.client][torch.from_numpy(position)]
        return F.cross_entropy(self.net(images(DATA, rows).double()), DATA.labels[rows])

    def move(self, direction: Any, by: float) -> None:
        with torch.no_grad():
            for w, d in zip(self.weights, direction, strict=True):
                w -= by * d

    def step(self, lr: float, hessian: bool) -> None:
        home = [w.detach().clone() for w in self.weights]
        self.move(torch.autograd.grad(self.loss(), self.weights), ALPHA)
        v = torch.autograd.grad(self.loss(), self.weights)
        self.return_to(home)
        product = v if not hessian else self.product(v)
        self.move([g - ALPHA * h for g, h in zip(v, product, strict=True)] if hessian else v, lr)

    def product(self, v: Any) -> Any:
        """The Hessian times v by differentiating twice; running statistics do not hear of it."""
        statistics = {n: t.clone() for n, t in self.net.named_buffers()}
        gradient = torch.autograd.grad(self.loss(), self.weights, create_graph=True)
        product = torch.autograd.grad(gradient, self.weights, grad_outputs=v)
        self.net.load_state_dict(statistics, strict=False)
        return product

    def return_to(self, home: list[Tensor]) -> None:
        with torch.no_grad():
            for w, h in zip(self.weights, home, strict=True):
                w.copy_(h)


def rounds(hessian: bool, rounds: int, plan: Plan, lr: float) -> State:
    """The shared model after these rounds."""
    shared = started()
    for t in range(1, rounds + 1):
        states = []
        for i in range(DATA.clients):
            oracle = Oracle(shared, i, t, plan)
            for _ in range(STEPS):
                oracle.step(lr, hessian)
            states.append(state_of(oracle.net.float()))
        shared = averaged(states, DATA.n_train)
    return shared


def distance(a: State, b: State) -> float:
    """Between the parameters, as one vector."""
    return float(torch.stack([(a[n].double() - b[n].double()).square().sum() for n in PARAMETERS]).sum().sqrt())


@variants
def test_rounds_are_those_of_the_algorithm(variant: str, tmp_path: Path) -> None:
    """Two rounds of a network with a batch norm; hf's differences are compared with the Hessian itself."""
    s = setting(rounds=2, window=1, steps=STEPS, lr=0.1)
    how = method("perfedavg", variant=variant, alpha=ALPHA, delta=1e-3)
    it = finish(trainer(how, DATA, tmp_path, s, network=smooth)).trainer
    ours, plan = of(it.server.shared), Plan(s, DATA.n_train, DATA.shape[:2])
    exact, other = (rounds(hessian, 2, plan, 0.1) for hessian in (variant == "hf", variant != "hf"))
    assert distance(ours, exact) < 1e-3 * distance(exact, other)
    close(ours, exact, atol=1e-4)


@pytest.mark.parametrize(("variant", "batches"), [("fo", 2), ("hf", 3)])
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 2}])
def test_a_step_for_each_of_fedavgs_batches(variant: str, batches: int, length: dict[str, int], tmp_path: Path) -> None:
    s = setting(rounds=1, window=1, **length)
    it = train(method("perfedavg", variant=variant), DATA, tmp_path, s).trainer
    steps = [2 if "steps" in length else 2 * -(-n // 16) for n in DATA.n_train]
    assert it.checkpoint.rounds[0]["images"] == sum(16 * batches * k for k in steps)
    client = it.client(1, it.server.view(1), 1)
    it.executor.run([client], it.method.local)
    assert client.state.keys() == client.received.keys(), "the models of the differences are dropped"


@pytest.mark.parametrize("kind", [MEMBER, UNSEEN, UNLABELLED])
def test_who_has_labels_adapts_by_steps_of_gradient_descent(kind: str, tmp_path: Path) -> None:
    """Two steps on batches of its own, by torch on a module; without labels it answers as served."""
    s, how = setting(rounds=1, window=1, lr=0.3), method("perfedavg", alpha=0.15, adapt_steps=2)
    it = finish(trainer(how, DATA, tmp_path, s, network=smooth)).trainer
    client = it.answering(it.server, 2, kind, 1)
    net, first = smooth().train(), client.work.phase
    net.load_state_dict(it.server.shared)
    it.executor.run([client], how.personalise)
    for phase in (first + 1, first + 2) if kind != UNLABELLED else ():
        (position,) = it.plan.batches(2, 1, phase, None, 1)
        rows = DATA.train[2][torch.from_numpy(position)]
        optimiser = torch.optim.SGD(net.parameters(), 0.15)
        optimiser.zero_grad()
        F.cross_entropy(net(images(DATA, rows)), DATA.labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    close(client.state, net.state_dict(), 1e-4, 1e-6)
    assert (client.state["head.weight"] is it.server.shared["head.weight"]) == (kind == UNLABELLED)
