"""FedProto: Local without its distance; whole runs against torch's SGD at the clients and class means by loops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.errors import FedbenchError
from fedbench.specs import Setting
from tests.support.lab import federation, method, same, setting, train, trainer
from tests.support.sgd_oracle import State, images, of, started, trained

K, D, LAMBDA = 10, 16, 3.0


def nines_are_eights(data: Federation) -> Federation:
    """The federation with a class, the last one, that nobody has."""
    labels = data.labels.clamp(max=K - 2)
    counts = torch.stack([torch.bincount(labels[rows], minlength=K).float() for rows in data.train])
    return dataclasses.replace(data, labels=labels, class_counts=counts)


#: Clients of a few classes each.
DATA = nines_are_eights(federation((70, 40, 55, 30), skew=2.0))
MEAN, COUNT = "prototypes.mean", "prototypes.count"
Prototypes = dict[int, Tensor]


def test_without_the_distance_the_networks_are_those_of_local(tmp_path: Path) -> None:
    none, alone, some = (
        train(how, DATA, tmp_path / str(i))
        for i, how in enumerate(
            (method("fedproto", **{"lambda": 0, "answers": "head"}), method("local"), method("fedproto"))
        )
    )
    own = {n: t for n, t in none.tensors.items() if n.startswith("personal/")}
    assert same(own, {n: t for n, t in alone.tensors.items() if n.startswith("personal/")})
    assert none.predictions.equals(alone.predictions)
    assert not same(own, {n: t for n, t in some.tensors.items() if n.startswith("personal/")})


def descended(state: State, i: int, t: int, known: Prototypes, plan: Plan, s: Setting) -> State:
    """LocalUpdate by torch.optim on a module."""
    net = small(norm=True).train()
    net.load_state_dict(state)
    optimiser = torch.optim.SGD(net.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
    for position in plan.batches(i, t, 1, s.epochs, s.steps):
        rows = DATA.train[i][torch.from_numpy(position)]
        z, y = net.features(images(DATA, rows)), DATA.labels[rows]
        loss = F.cross_entropy(net.head(z), y)
        for features, label in zip(z, y.tolist(), strict=True):
            if label in known:
                loss = loss + LAMBDA * (features - known[label]).square().sum() / (len(rows) * D)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return state_of(net)


def features(state: State, rows: Tensor) -> Tensor:
    """[n, D] of these images, by the network in evaluation mode."""
    net = small(norm=True).eval()
    net.load_state_dict(state)
    with torch.no_grad():
        z: Tensor = net.features(images(DATA, rows))
    return z


def by_the_algorithm(s: Setting) -> tuple[dict[int, State], Prototypes]:
    """Everybody's network and the prototypes, class by class, after a whole run."""
    plan, known = Plan(s, DATA.n_train, DATA.shape[:2]), Prototypes()
    networks: dict[int, State] = {}
    for t in range(1, s.rounds + 1):
        cohort = plan.cohort(t)
        for i in cohort:
            networks[i] = descended(networks.get(i, started()), i, t, known, plan, s)
        z = torch.cat([features(networks[i], DATA.train[i]) for i in cohort])
        y = torch.cat([DATA.labels[DATA.train[i]] for i in cohort])
        known = {**known, **{k: z[y == k].mean(0) for k in set(y.tolist())}}
    return networks, known


def test_rounds_are_those_of_the_algorithm(tmp_path: Path) -> None:
    """Three rounds of networks with batch norms, in which classes come and go with the clients that have them."""
    s = setting(rounds=3, window=1, epochs=2, participation=0.5, seed=15)
    it = trained(method("fedproto", **{"lambda": LAMBDA}), DATA, s, tmp_path)
    networks, known = by_the_algorithm(s)
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    classes = [{*torch.cat([DATA.labels[DATA.train[i]] for i in plan.cohort(t)]).tolist()} for t in (1, 2, 3)]
    assert classes[0] - classes[2], "no prototype is kept"
    assert classes[2] - classes[0], "no prototype comes late"
    assert set(known) == set(range(K - 1))
    assert {k for k in range(K) if it.server.shared[COUNT][k] > 0} == set(known)
    for k, expected in known.items():
        torch.testing.assert_close(it.server.shared[MEAN][k], expected, rtol=1e-3, atol=1e-4)
    for i, state in networks.items():
        for name, expected in state.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("answers", ["prototypes", "head"])
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_clients_answer_by_the_nearest_prototype_or_by_their_heads(answers: str, executor: str, tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, epochs=2, votes=False)
    it = trained(method("fedproto", answers=answers), DATA, s, tmp_path, executor)
    table = it.checkpoint.read_predictions()
    last = table.slice(len(table) - sum(DATA.n_test))
    own, client = (np.array(last[column].to_pylist()) for column in ("own", "client"))
    mean, count = it.server.shared[MEAN], it.server.shared[COUNT]
    for i in range(DATA.clients):
        state = of(it.server.view(i))
        z = features(state, DATA.test[i])
        expected = [
            min((float((a - mean[k]).norm()), k) for k in range(K) if count[k] > 0)[1]
            if answers == "prototypes"
            else int((state["head.weight"] @ a + state["head.bias"]).argmax())
            for a in z
        ]
        assert own[client == i].tolist() == expected


def test_before_there_are_prototypes_heads_answer(tmp_path: Path) -> None:
    it = trainer(method("fedproto"), DATA, tmp_path)
    one = it.client(0, it.server.view(0), 1)
    assert it.method.personalise(one) is None
    assert one.answers_by is None
    one.state = {**one.state, COUNT: torch.eye(K)[3]}
    it.method.personalise(one)
    assert one.answers_by is not None


def test_only_class_means_and_counts_are_sent(tmp_path: Path) -> None:
    it = trained(method("fedproto"), DATA, setting(), tmp_path)
    assert {n: tuple(t.shape) for n, t in it.server.shared.items()} == {MEAN: (K, D), COUNT: (K,)}
    size = 4 * (K * D + K)
    for line in it.checkpoint.rounds:
        assert line["bytes_up"] == line["bytes_down"] == line["participants"] * size


def test_the_distance_draws_clients_features_together(tmp_path: Path) -> None:
    """What the method is for: after it, clients that have a class agree better on what it looks like."""

    def spread(weight: float) -> float:
        """Of clients' class means around the prototypes, as a share of the spread of the prototypes."""
        data = federation((60, 60, 60), skew=float("inf"))
        s = setting(rounds=8, window=1, epochs=3)
        run = train(method("fedproto", **{"lambda": weight}), data, tmp_path / str(weight), s)
        it: Any = run.trainer
        mean = it.server.shared[MEAN]
        far = []
        for i in range(data.clients):
            net = it.executor.worker.load(it.server.view(i)).eval()
            with torch.no_grad():
                z = net.features(images(data, data.train[i]))
            y = data.labels[data.train[i]]
            far += [(z[y == k].mean(0) - mean[k]).square().sum() for k in set(y.tolist())]
        return float(torch.stack(far).mean() / mean.var(0).sum())

    assert spread(5.0) < spread(0.0)


def test_hyper_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(FedbenchError, match="--lambda of fedproto must be at least 0, not -1"):
        method("fedproto", **{"lambda": -1})
    with pytest.raises(FedbenchError, match="unknown value of --answers 'heads'"):
        method("fedproto", answers="heads")
