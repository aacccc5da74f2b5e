"""Methods against client drift, rules of the server, losses on features (MOON, FedProto) and Per-FedAvg: whole rounds
against torch's SGD and autograd, with the Hessian itself, and the papers' formulas."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.conformance.subject import small
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch
from fedbench.core.state import size_in_bytes, state_of
from fedbench.errors import DivergedError
from fedbench.methods.fednova import normaliser
from tests.support.formula_lab import (
    PARAMETERS,
    ByHand,
    State,
    averaged,
    close,
    images,
    network,
    of,
    sent,
    started,
    trained,
    zeros,
)
from tests.support.lab import LabRun, federation, finish, method, setting, train, trainer

DATA = federation()
N = DATA.n_train
#: Two rounds of clients with unequally many batches; three rounds in which not all take part, and some again.
TWO = setting(rounds=2, window=1, epochs=2)
COME_AND_GO = setting(rounds=3, window=1, epochs=2, participation=0.6, seed=3)


def test_in_these_rounds_clients_come_and_go() -> None:
    plan = ByHand(DATA, COME_AND_GO).plan
    cohorts = [set(plan.cohort(t)) for t in (1, 2, 3)]
    assert 0 < min(map(len, cohorts)) < DATA.clients
    assert cohorts[0] & cohorts[1]
    assert (cohorts[1] | cohorts[2]) - cohorts[0]


def test_rounds_of_fedprox(tmp_path: Path) -> None:
    """The squared distance is added to the loss. FedDRM's FedProxFT: at last each goes on from its own copy."""
    it, run = trained(method("fedprox", mu=0.7), DATA, TWO, tmp_path), ByHand(DATA, TWO)
    expected = run.rounds(lambda i, t, x: run.descended(x, run.batches(i, t), pull=0.7, anchor=x))
    close(of(it.server.shared), expected)
    s = setting(rounds=3, window=1)
    it, run = trained(method("fedprox", mu=0.7, finetune_rounds=2), DATA, s, tmp_path / "2"), ByHand(DATA, s)
    x = started()
    shared = averaged([run.descended(x, run.batches(i, 1), pull=0.7, anchor=x) for i in range(4)], N)
    close(of(it.server.shared), shared)
    for i in range(DATA.clients):
        own = run.descended(run.descended(shared, run.batches(i, 2)), run.batches(i, 3))
        close(of(it.server.view(i)), own)
    assert [line["bytes_up"] > 0 for line in it.checkpoint.rounds] == [True, False, False]


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_rounds_of_scaffold(server_lr: float, tmp_path: Path) -> None:
    """The setting's momentum has no say."""
    s = COME_AND_GO
    it, run = trained(method("scaffold", server_lr=server_lr), DATA, s, tmp_path), ByHand(DATA, s)
    c, own, changes = zeros(), [zeros() for _ in N], dict[int, State]()

    def local(i: int, t: int, x: State) -> State:
        batches = run.batches(i, t)
        y = run.descended(x, batches, linear={n: c[n] - own[i][n] for n in c}, momentum=0.0)
        new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (len(batches) * s.lr) for n in c}
        changes[i] = {n: new[n] - own[i][n] for n in c}
        own[i] = new
        return y

    def step(x: State, mean: State, cohort: list[int]) -> State:
        sizes = [N[i] for i in cohort]
        change = averaged([changes[i] for i in cohort], sizes)
        c.update({n: c[n] + sum(sizes) / sum(N) * change[n] for n in c})
        return {n: x[n] + server_lr * (mean[n] - x[n]) if n in c else mean[n] for n in x}

    close(of(it.server.shared), run.rounds(local, step))
    close({n: it.server.shared[f"control/{n}"] for n in c}, c, 1e-2, 1e-4)
    for i in run.seen:
        close({n: it.server.personal[i][f"own_control/{n}"] for n in c}, own[i], 1e-2, 1e-4)


def test_rounds_of_feddyn(tmp_path: Path) -> None:
    alpha, s = 0.2, COME_AND_GO
    it, run = trained(method("feddyn", alpha=alpha), DATA, s, tmp_path), ByHand(DATA, s)
    h, gradients = zeros(), [zeros() for _ in N]

    def local(i: int, t: int, x: State) -> State:
        end = run.descended(x, run.batches(i, t), pull=alpha, anchor=x, linear={n: -g for n, g in gradients[i].items()})
        gradients[i] = {n: g - alpha * (end[n] - x[n]) for n, g in gradients[i].items()}
        h.update({n: h[n] - alpha * N[i] / sum(N) * (end[n] - x[n]) for n in h})
        return end

    expected = run.rounds(local, lambda x, mean, _: {n: mean[n] - h[n] / alpha if n in h else mean[n] for n in x})
    close(of(it.server.shared), expected)
    close(it.server.memory.h, h)
    for i in run.seen:
        close({n: it.server.personal[i][f"own_gradient/{n}"] for n in h}, gradients[i])


@pytest.mark.parametrize("correction", [1.0, 0.0])
def test_rounds_of_feddc(correction: float, tmp_path: Path) -> None:
    """The setting's momentum has no say."""
    alpha, s = 0.2, COME_AND_GO
    it, run = trained(method("feddc", alpha=alpha, correction=correction), DATA, s, tmp_path), ByHand(DATA, s)
    h, g = [zeros() for _ in N], [zeros() for _ in N]
    before: list[list[State]] = [[] for _ in range(s.rounds + 1)]

    def local(i: int, t: int, w: State) -> State:
        before[t] = before[t] or list(g)  # as it was when the round began
        mean = averaged(before[t], N)
        linear = {n: correction * (g[i][n] - mean[n]) for n in PARAMETERS}
        anchor = {n: w[n] - h[i][n] for n in PARAMETERS}
        batches = run.batches(i, t)
        theta = run.descended(w, batches, pull=alpha, anchor=anchor, linear=linear, momentum=0.0)
        h[i] = {n: h[i][n] + theta[n] - w[n] for n in PARAMETERS}
        g[i] = {n: (theta[n] - w[n]) / (s.lr * len(batches)) for n in PARAMETERS}
        return {n: theta[n] + h[i][n] if n in h[i] else theta[n] for n in theta}

    close(of(it.server.shared), run.rounds(local))
    close({n: it.server.shared[f"change/{n}"] for n in PARAMETERS}, averaged(g, N), 1e-2, 1e-4)
    for i in run.seen:
        close({n: it.server.personal[i][f"drift/{n}"] for n in PARAMETERS}, h[i])
        close({n: it.server.personal[i][f"own_change/{n}"] for n in PARAMETERS}, g[i], 1e-2, 1e-4)


def by_the_paper(steps: int, rho: float, pull: float) -> float:
    """||a||_1 for local momentum rho, or for FedProx's local steps; pull = lr mu."""
    if pull:
        return (1 - (1 - pull) ** steps) / pull
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.1), (0.0, 1.0), (0.9, 0.0), (0.9, 0.02)])
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
def test_rounds_of_fednova(mu: float, changes: dict[str, Any], tmp_path: Path) -> None:
    """Clients have three or four batches a pass."""
    s = setting(rounds=2, window=1, epochs=2, **changes)
    it, run = trained(method("fednova", mu=mu), DATA, s, tmp_path), ByHand(DATA, s)
    ends, a = dict[int, State](), dict[int, float]()

    def local(i: int, t: int, x: State) -> State:
        batches, end = run.batches(i, t), x
        half = len(batches) // 2
        passes = [batches[:half], batches[half:]] if s.momentum_restarts else [batches]
        for one in passes:
            end = run.descended(end, one, pull=mu, anchor=x)
        a[i] = sum(by_the_paper(len(one), s.momentum, s.lr * mu) for one in passes)
        ends[i] = end
        return end

    def step(x: State, mean: State, cohort: list[int]) -> State:
        p = [N[i] / sum(N) for i in cohort]
        tau = sum(share * a[i] for share, i in zip(p, cohort, strict=True))
        way = {n: sum(p[i] * (x[n] - ends[i][n]) / a[i] for i in cohort) for n in PARAMETERS}
        return {n: x[n] - tau * way[n] if n in way else mean[n] for n in x}

    close(of(it.server.shared), run.rounds(local, step))
    assert len(set(a.values())) == 2


Array = npt.NDArray[np.float64]
ETA, BETA1, BETA2, TAU = 0.05, 0.8, 0.9, 0.02
FEDOPT: dict[str, Any] = {"server_lr": ETA, "beta1": BETA1, "beta2": BETA2, "tau": TAU}


def moved(server: str, x: Array, changes: list[Array]) -> Array:
    """A parameter after these mean changes, by the formulas of FedOpt's papers."""
    m, v = np.zeros_like(x), np.full_like(x, TAU**2)
    for d in changes:
        if server == "avgm":
            m = BETA1 * m + d
            x = x + ETA * m
            continue
        m = BETA1 * m + (1 - BETA1) * d
        if server == "adagrad":
            v = v + d**2
        elif server == "adam":
            v = BETA2 * v + (1 - BETA2) * d**2
        else:  # Yogi: v moves towards d^2 by the size of d^2, not by the distance
            v = np.where(v > d**2, v - (1 - BETA2) * d**2, v + (1 - BETA2) * d**2)
        x = x + ETA * m / (np.sqrt(v) + TAU)
    return x


@pytest.mark.parametrize("server", ["avgm", "adagrad", "adam", "yogi"])
def test_rounds_of_fedopt(server: str, tmp_path: Path) -> None:
    """Running statistics are FedAvg's means; the moments are two vectors of all parameters."""
    it, run = trained(method("fedopt", server=server, **FEDOPT), DATA, TWO, tmp_path), ByHand(DATA, TWO)
    first, changes = started(), list[State]()

    def step(x: State, mean: State, _: list[int]) -> State:
        changes.append({n: mean[n].double() - x[n].double() for n in PARAMETERS})
        new = {n: moved(server, first[n].double().numpy(), [c[n].numpy() for c in changes]) for n in PARAMETERS}
        return {**mean, **{n: torch.from_numpy(value).float() for n, value in new.items()}}

    expected = run.rounds(lambda i, t, x: run.descended(x, run.batches(i, t)), step)
    close(of(it.server.shared), expected, atol=2e-5)
    length = (sum(first[n].numel() for n in PARAMETERS),)
    shapes = {n: tuple(x.shape) for n, x in vars(it.server.memory).items() if x is not None}
    assert shapes == dict.fromkeys("m" if server == "avgm" else "mv", length)


@pytest.mark.parametrize("q", [0.1, 1.0, 2.0])
def test_rounds_of_qfedavg(q: float, tmp_path: Path) -> None:
    """Algorithm 2, line 7 and 8; the losses are those of the model as sent, on all training images."""
    s = setting(rounds=2, window=1, epochs=2, momentum=0.0)
    it, run = trained(method("qfedavg", q=q), DATA, s, tmp_path), ByHand(DATA, s)
    losses, ends = dict[int, float](), dict[int, State]()

    def local(i: int, t: int, x: State) -> State:
        with torch.no_grad():
            scores = network(x).eval()(images(DATA, DATA.train[i]))
        losses[i] = float(F.cross_entropy(scores, DATA.labels[DATA.train[i]]))
        ends[i] = run.descended(x, run.batches(i, t))
        return ends[i]

    def step(x: State, _: State, cohort: list[int]) -> State:
        change = {i: {n: (x[n] - ends[i][n]).double() / s.lr for n in PARAMETERS} for i in cohort}
        squares = {i: sum(float(d.square().sum()) for d in change[i].values()) for i in cohort}
        h = sum(q * losses[i] ** (q - 1) * squares[i] + losses[i] ** q / s.lr for i in cohort)
        moved = {n: x[n] - sum(losses[i] ** q * change[i][n] for i in cohort) / h for n in PARAMETERS}
        return {**averaged([ends[i] for i in cohort], [1] * len(cohort)), **{n: t.float() for n, t in moved.items()}}

    close(of(it.server.shared), run.rounds(local, step))
    perfect: Any = SimpleNamespace(state=it.server.shared, lr=s.lr, upload=SimpleNamespace(loss=0.0))
    method("qfedavg", q=q).aggregate(it.server, [perfect], 3)
    perfect = SimpleNamespace(**{**vars(perfect), "index": 5, "upload": SimpleNamespace(loss=2.0)})
    with pytest.raises(DivergedError, match=r"the loss of client 5, 2, to the power of q = 1e\+308 is too large"):
        method("qfedavg", q=1e308).aggregate(it.server, [perfect], 3)


RHO = 0.3


def climbed(
    x: State, batches: list[Tensor], momentum: float, own: float = 1.0, others: Mapping[str, Tensor] | None = None
) -> State:
    """The network after these batches: `own` times the gradient from RHO uphill, and 1 - own times the others'."""
    model, s, speed = network(x), TWO, zeros()
    weights = dict(model.named_parameters())

    def gradient(rows: Tensor) -> State:
        loss = F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows])
        return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    for rows in batches:
        base, here = {n: w.detach().clone() for n, w in weights.items()}, gradient(rows)
        length = torch.cat([g.reshape(-1) for g in here.values()]).norm()
        with torch.no_grad():
            for n, w in weights.items():
                w.add_(RHO * here[n] / length)
        there = gradient(rows)
        with torch.no_grad():
            for n, w in weights.items():
                step = own * (there[n] + s.weight_decay * base[n]) + ((1 - own) * others[n] if others else 0.0)
                speed[n] = momentum * speed[n] + step
                w.copy_(base[n] - s.lr * speed[n])
    return state_of(model)


def test_rounds_of_fedsam(tmp_path: Path) -> None:
    """A round, and one of fine-tuning by plain SGD: FedDRM's FedSAMFT."""
    it, run, s = trained(method("fedsam", rho=RHO, finetune_rounds=1), DATA, TWO, tmp_path), ByHand(DATA, TWO), TWO
    shared = averaged([climbed(started(), run.batches(i, 1), s.momentum) for i in range(4)], N)
    close(of(it.server.shared), shared)
    for i in range(DATA.clients):
        close(of(it.server.view(i)), run.descended(shared, run.batches(i, 2)), atol=2e-5)
    assert method("fedsam").relative_compute(setting(rounds=800)) == 2
    assert method("fedsam", finetune_rounds=100).relative_compute(setting(rounds=800)) == 1.875


def test_rounds_with_momentum_are_those_of_mofedsam(tmp_path: Path) -> None:
    """Whatever the setting's own momentum."""
    beta, s = 0.4, TWO
    it, run = trained(method("fedsam", rho=RHO, beta=beta), DATA, s, tmp_path), ByHand(DATA, s)
    direction, steps = zeros(), dict[int, State]()

    def local(i: int, t: int, x: State) -> State:
        batches = run.batches(i, t)
        end = climbed(x, batches, 0.0, beta, direction)
        steps[i] = {n: (x[n] - end[n]) / (len(batches) * s.lr) for n in direction}
        return end

    def step(x: State, mean: State, cohort: list[int]) -> State:
        direction.update(averaged([steps[i] for i in cohort], N))
        return mean

    close(of(it.server.shared), run.rounds(local, step))
    close({n: it.server.shared[f"direction/{n}"] for n in direction}, direction, 1e-2, 1e-4)


MU, TEMPERATURE = 2.0, 0.4


def test_what_moon_moves_keeps_and_sends(tmp_path: Path) -> None:
    """The network alone; its first round is FedAvg's: the previous model is the received one, not kept, not sent."""
    s = setting(rounds=1, window=1)
    moon, average = (train(name, DATA, tmp_path / name, s) for name in ("moon", "fedavg"))
    close(moon.shared, average.shared, 1e-4, 1e-6)
    assert moon.reports[0].loss == pytest.approx(average.reports[0].loss + math.log(2), rel=1e-5)
    how: Any = method("moon", mu=MU, temperature=TEMPERATURE)
    nets = [small(norm=True, seed=seed) for seed in range(3)]
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    rows = DATA.train[0][:9]
    how.loss(nets, Batch(images(DATA, rows), DATA.labels[rows], torch.arange(9), {})).total.backward()
    assert all(p.grad is not None for p in nets[0].parameters())
    for net, state in zip(nets[1:], before[1:], strict=True):
        assert all(p.grad is None for p in net.parameters())
        assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items()), "running statistics moved"
    run: LabRun = train("moon", DATA, tmp_path / "2", setting(rounds=2))
    server = run.trainer.server
    assert {name.split("/")[0] for state in server.personal.values() for name in state} == {"previous"}
    assert sent(run) == [(DATA.clients * size_in_bytes(server.shared),) * 2] * 2


def test_rounds_of_moon(tmp_path: Path) -> None:
    """Algorithm 1, lines 10-20, beside two networks that are frozen in evaluation mode; clients come late and again."""
    how, run = method("moon", mu=MU, temperature=TEMPERATURE), ByHand(DATA, COME_AND_GO)
    it = trained(how, DATA, COME_AND_GO, tmp_path)
    previous: dict[int, State] = {}

    def local(i: int, t: int, received: State) -> State:
        frozen = [network(state).eval() for state in (received, previous.get(i, received))]

        def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            with torch.no_grad():
                others = [one.features(x) for one in frozen]
            each = []
            for a, near, far in zip(z, *others, strict=True):  # Eq. 3, image by image, as it is written
                toward, away = (torch.exp(a @ b / (a.norm() * b.norm()) / TEMPERATURE) for b in (near, far))
                each.append(-torch.log(toward / (toward + away)))
            return F.cross_entropy(net.head(z), y) + MU * torch.stack(each).mean()

        previous[i] = run.descended(received, run.batches(i, t), loss)
        return previous[i]

    close(of(it.server.shared), run.rounds(local), atol=2e-5)
    for i, state in previous.items():
        close(of(it.server.view(i), "previous/"), state, atol=2e-5)


K, D, LAMBDA = 10, 16, 3.0
MEAN, COUNT = "prototypes.mean", "prototypes.count"
#: Clients of a few classes each, of which nobody has the last.
UNEVEN = federation((70, 40, 55, 30), skew=2.0)
FEW = dataclasses.replace(UNEVEN, labels=UNEVEN.labels.clamp(max=K - 2))
FEW.class_counts[:, K - 2] += FEW.class_counts[:, K - 1]
FEW.class_counts[:, K - 1] = 0


def features(state: State, rows: Tensor) -> Tensor:
    """[n, D] of these images, by the network in evaluation mode."""
    with torch.no_grad():
        z: Tensor = network(state).eval().features(images(FEW, rows))
    return z


def test_rounds_of_fedproto(tmp_path: Path) -> None:
    """Class by class. Classes come and go with the clients that have them; class means and counts alone are sent."""
    s = setting(rounds=3, window=1, epochs=2, participation=0.5, seed=15)
    it = trained(method("fedproto", **{"lambda": LAMBDA}), FEW, s, tmp_path)
    run, known, networks = ByHand(FEW, s), dict[int, Tensor](), dict[int, State]()

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
    cohorts = [run.plan.cohort(t) for t in (1, 2, 3)]
    first, last = ({*torch.cat([FEW.labels[FEW.train[i]] for i in cohorts[t]]).tolist()} for t in (0, 2))
    assert first - last, "no prototype is kept"
    assert last - first, "no prototype comes late"
    assert {k for k in range(K) if it.server.shared[COUNT][k] > 0} == set(known) == set(range(K - 1))
    close(dict(enumerate(it.server.shared[MEAN])), known, atol=1e-4)  # type: ignore[arg-type]
    for i, state in networks.items():
        close(of(it.server.view(i)), state, atol=2e-5)
    assert {n: tuple(t.shape) for n, t in it.server.shared.items()} == {MEAN: (K, D), COUNT: (K,)}
    assert sent(it) == [(len(cohort) * 4 * (K * D + K),) * 2 for cohort in cohorts]


@pytest.mark.parametrize("by", ["prototypes", "head"])
def test_clients_answer_by_the_nearest_prototype_or_by_their_heads(by: str, tmp_path: Path) -> None:
    it = trained(method("fedproto", answers=by), FEW, setting(rounds=2, window=1, epochs=2, votes=False), tmp_path)
    table = it.checkpoint.read("predictions")
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
    one = it.client(0, it.server.initial, 1)  # before there are prototypes heads answer
    assert it.method.personalise(one) is None
    assert one.answers_by is None
    if by == "prototypes":
        one.state = {**one.state, COUNT: torch.eye(K)[3]}
        it.method.personalise(one)
        assert one.answers_by is not None


ALPHA, STEPS = 0.2, 2


def smooth() -> Any:
    """The small network with a Hessian everywhere."""
    net = small(norm=True)
    for name, layer in (("pool", nn.AvgPool2d(2)), ("act", nn.Tanh()), ("last", nn.Tanh())):
        setattr(net.backbone, name, layer)
    return net


class Oracle:
    """Algorithm 1 for one client in float64, by autograd on a module."""

    def __init__(self, run: ByHand, client: int, t: int, state: State) -> None:
        self.net = smooth()
        self.net.load_state_dict(state)
        self.net = self.net.double().train()
        self.weights = list(self.net.parameters())
        self.run, self.client, self.t, self.draws = run, client, t, 0

    def loss(self) -> Tensor:
        """On the next batch of the plan, which is independent of those before."""
        self.draws += 1
        (rows,) = self.run.batches(self.client, self.t, self.draws, steps=1)
        return F.cross_entropy(self.net(images(DATA, rows).double()), DATA.labels[rows])

    def move(self, direction: Any, by: float) -> None:
        with torch.no_grad():
            for w, d in zip(self.weights, direction, strict=True):
                w -= by * d

    def step(self, lr: float, hessian: bool) -> None:
        first = torch.autograd.grad(self.loss(), self.weights)
        self.move(first, ALPHA)
        v = torch.autograd.grad(self.loss(), self.weights)
        self.move(first, -ALPHA)
        product = v if not hessian else self.product(v)
        self.move([g - ALPHA * h for g, h in zip(v, product, strict=True)] if hessian else v, lr)

    def product(self, v: Any) -> Any:
        """The Hessian times v by differentiating twice; running statistics do not hear of it."""
        statistics = {n: t.clone() for n, t in self.net.named_buffers()}
        gradient = torch.autograd.grad(self.loss(), self.weights, create_graph=True)
        product = torch.autograd.grad(gradient, self.weights, grad_outputs=v)
        self.net.load_state_dict(statistics, strict=False)
        return product


def distance(a: State, b: State) -> float:
    """Between the parameters, as one vector."""
    return float(torch.stack([(a[n].double() - b[n].double()).square().sum() for n in PARAMETERS]).sum().sqrt())


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_rounds_are_those_of_the_algorithm(variant: str, tmp_path: Path) -> None:
    """Two rounds of a network with a batch norm; hf's differences are compared with the Hessian itself."""
    s = setting(rounds=2, window=1, steps=STEPS, lr=0.1)
    how = method("perfedavg", variant=variant, alpha=ALPHA, delta=1e-3)
    it = finish(trainer(how, DATA, tmp_path, s, network=smooth)).trainer
    ours, run = of(it.server.shared), ByHand(DATA, s)

    def local(i: int, t: int, x: State, hessian: bool) -> State:
        oracle = Oracle(run, i, t, x)
        for _ in range(STEPS):
            oracle.step(0.1, hessian)
        return state_of(oracle.net.float())

    exact, other = (run.rounds(partial(local, hessian=how)) for how in (variant == "hf", variant != "hf"))
    assert distance(ours, exact) < 1e-3 * distance(exact, other)
    close(ours, exact, atol=1e-4)


@pytest.mark.parametrize(("variant", "batches"), [("fo", 2), ("hf", 3)])
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 2}])
def test_a_step_for_each_of_fedavgs_batches(variant: str, batches: int, length: dict[str, int], tmp_path: Path) -> None:
    it = train(method("perfedavg", variant=variant), DATA, tmp_path, setting(rounds=1, window=1, **length)).trainer
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
        (rows,) = ByHand(DATA, s).batches(2, 1, phase, steps=1)
        optimiser = torch.optim.SGD(net.parameters(), 0.15)
        optimiser.zero_grad()
        F.cross_entropy(net(images(DATA, rows)), DATA.labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    close(client.state, net.state_dict(), 1e-4, 1e-6)
    assert (client.state["head.weight"] is it.server.shared["head.weight"]) == (kind == UNLABELLED)
