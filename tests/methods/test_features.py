"""MOON and FedProto: losses on features, whole rounds against torch's SGD."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.client import Batch, Client
from fedbench.core.federation import Federation
from fedbench.core.state import size_in_bytes
from fedbench.specs import Setting
from tests.support.formula_lab import ByHand, State, close, images, network, of, sent, started, trained
from tests.support.lab import Run, federation, method, setting, train, trainer

DATA = federation()
MU, TAU = 2.0, 0.4

# -- MOON -----------------------------------------------------------------------------------------------------


def test_moons_first_round_is_fedavgs(tmp_path: Path) -> None:
    """The previous model is the received one: no feature is nearer to one than to the other."""
    s = setting(rounds=1, window=1)
    moon, average = (train(name, DATA, tmp_path / name, s) for name in ("moon", "fedavg"))
    close(moon.shared, average.shared, 1e-4, 1e-6)
    assert moon.reports[0].loss == pytest.approx(average.reports[0].loss + math.log(2), rel=1e-5)


def contrast(z: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Eq. 3, image by image, as it is written."""
    each = []
    for a, b, c in zip(z, near, far, strict=True):
        toward, away = (torch.exp(a @ other / (a.norm() * other.norm()) / TAU) for other in (b, c))
        each.append(-torch.log(toward / (toward + away)))
    return torch.stack(each).mean()


def test_rounds_of_moon(tmp_path: Path) -> None:
    """Algorithm 1, lines 10-20, beside two networks that are frozen in evaluation mode; clients come late and again."""
    s = setting(rounds=3, window=1, epochs=2, participation=0.6, seed=3)
    it, run = trained(method("moon", mu=MU, temperature=TAU), DATA, s, tmp_path), ByHand(DATA, s)
    first, second, third = (set(run.plan.cohort(t)) for t in (1, 2, 3))
    assert first & second
    assert (second | third) - first
    previous: dict[int, State] = {}

    def local(i: int, t: int, received: State) -> State:
        frozen = [network(state).eval() for state in (received, previous.get(i, received))]

        def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            with torch.no_grad():
                others = [one.features(x) for one in frozen]
            return F.cross_entropy(net.head(z), y) + MU * contrast(z, *others)

        previous[i] = run.descended(received, run.batches(i, t), loss)
        return previous[i]

    close(of(it.server.shared), run.rounds(local), atol=2e-5)
    for i, state in previous.items():
        close(of(it.server.view(i), "previous/"), state, atol=2e-5)


def test_moons_loss_moves_the_network_alone() -> None:
    how: Any = method("moon", mu=MU, temperature=TAU)
    nets = [small(norm=True, seed=seed) for seed in range(3)]
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    rows = DATA.train[0][:9]
    how.loss(nets, Batch(images(DATA, rows), DATA.labels[rows], torch.arange(9), {})).total.backward()
    assert all(p.grad is not None for p in nets[0].parameters())
    for net, state in zip(nets[1:], before[1:], strict=True):
        assert all(p.grad is None for p in net.parameters())
        assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items()), "running statistics moved"


def test_moons_received_model_is_neither_kept_nor_sent(tmp_path: Path) -> None:
    uploads: list[set[str]] = []

    class Spy(type(method("moon"))):  # type: ignore[misc]
        def aggregate(self, server: Any, cohort: Sequence[Client], t: int) -> None:
            uploads.extend(set(c.state) for c in cohort)
            super().aggregate(server, cohort, t)

    run: Run = train(Spy(), DATA, tmp_path, setting(rounds=2))
    names = {*run.shared, "previous/known", *(f"previous/{n}" for n in run.shared)}
    assert uploads
    assert all(names == upload for upload in uploads)
    server = run.trainer.server
    assert {name.split("/")[0] for state in server.personal.values() for name in state} == {"previous"}
    assert sent(run) == [(DATA.clients * size_in_bytes(server.shared),) * 2] * 2


# -- FedProto -------------------------------------------------------------------------------------------------

K, D, LAMBDA = 10, 16, 3.0
MEAN, COUNT = "prototypes.mean", "prototypes.count"
Prototypes = dict[int, Tensor]


def nines_are_eights(data: Federation) -> Federation:
    """The federation with a class, the last one, that nobody has."""
    labels = data.labels.clamp(max=K - 2)
    counts = torch.stack([torch.bincount(labels[rows], minlength=K).float() for rows in data.train])
    return dataclasses.replace(data, labels=labels, class_counts=counts)


#: Clients of a few classes each.
FEW = nines_are_eights(federation((70, 40, 55, 30), skew=2.0))


def features(state: State, rows: Tensor) -> Tensor:
    """[n, D] of these images, by the network in evaluation mode."""
    with torch.no_grad():
        z: Tensor = network(state).eval().features(images(FEW, rows))
    return z


def by_the_algorithm(s: Setting) -> tuple[dict[int, State], Prototypes]:
    """Everybody's network and the prototypes, class by class, after a whole run."""
    run, known, networks = ByHand(FEW, s), Prototypes(), dict[int, State]()

    def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        total = F.cross_entropy(net.head(z), y)
        for one, label in zip(z, y.tolist(), strict=True):
            if label in known:
                total = total + LAMBDA * (one - known[label]).square().sum() / (len(x) * D)
        return total

    for t in range(1, s.rounds + 1):
        cohort = run.plan.cohort(t)
        for i in cohort:
            networks[i] = run.descended(networks.get(i, started()), run.batches(i, t), loss)
        z = torch.cat([features(networks[i], FEW.train[i]) for i in cohort])
        y = torch.cat([FEW.labels[FEW.train[i]] for i in cohort])
        known.update({k: z[y == k].mean(0) for k in set(y.tolist())})
    return networks, known


def test_rounds_of_fedproto(tmp_path: Path) -> None:
    """Classes come and go with the clients that have them; class means and counts alone are sent."""
    s = setting(rounds=3, window=1, epochs=2, participation=0.5, seed=15)
    it = trained(method("fedproto", **{"lambda": LAMBDA}), FEW, s, tmp_path)
    networks, known = by_the_algorithm(s)
    plan = ByHand(FEW, s).plan
    first, last = ({*torch.cat([FEW.labels[FEW.train[i]] for i in plan.cohort(t)]).tolist()} for t in (1, 3))
    assert first - last, "no prototype is kept"
    assert last - first, "no prototype comes late"
    assert {k for k in range(K) if it.server.shared[COUNT][k] > 0} == set(known) == set(range(K - 1))
    close(dict(enumerate(it.server.shared[MEAN])), known, atol=1e-4)  # type: ignore[arg-type]
    for i, state in networks.items():
        close(of(it.server.view(i)), state, atol=2e-5)
    assert {n: tuple(t.shape) for n, t in it.server.shared.items()} == {MEAN: (K, D), COUNT: (K,)}
    assert sent(it) == [(len(plan.cohort(t)) * 4 * (K * D + K),) * 2 for t in (1, 2, 3)]


@pytest.mark.parametrize("by", ["prototypes", "head"])
def test_clients_answer_by_the_nearest_prototype_or_by_their_heads(by: str, tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, epochs=2, votes=False)
    it = trained(method("fedproto", answers=by), FEW, s, tmp_path)
    table = it.checkpoint.read_predictions()
    own, client = (np.array(table[column].to_pylist()) for column in ("own", "client"))
    mean, count = it.server.shared[MEAN], it.server.shared[COUNT]
    for i in range(FEW.clients):
        state = of(it.server.view(i))
        expected = [
            min((float((a - mean[k]).norm()), k) for k in range(K) if count[k] > 0)[1]
            if by == "prototypes"
            else int((state["head.weight"] @ a + state["head.bias"]).argmax())
            for a in features(state, FEW.test[i])
        ]
        assert own[client == i].tolist() == expected


def test_before_there_are_prototypes_heads_answer(tmp_path: Path) -> None:
    it = trainer(method("fedproto"), FEW, tmp_path)
    one = it.client(0, it.server.view(0), 1)
    assert it.method.personalise(one) is None
    assert one.answers_by is None
    one.state = {**one.state, COUNT: torch.eye(K)[3]}
    it.method.personalise(one)
    assert one.answers_by is not None
