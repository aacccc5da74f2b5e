"""Methods against client drift, and rules of the server: whole rounds against torch's SGD and the papers' formulas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.federation import to_input
from fedbench.core.state import state_of, weighted_mean
from fedbench.methods.fednova import normaliser
from fedbench.methods.qfedavg import Before
from tests.support.formula_lab import (
    PARAMETERS,
    ByHand,
    State,
    averaged,
    close,
    images,
    network,
    of,
    started,
    trained,
    zeros,
)
from tests.support.lab import client, federation, method, setting, trainer

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


def test_fedprox_is_sgd_on_the_loss_and_the_squared_distance(tmp_path: Path) -> None:
    it, run = trained(method("fedprox", mu=0.7), DATA, TWO, tmp_path), ByHand(DATA, TWO)
    expected = run.rounds(lambda i, t, x: run.descended(x, run.batches(i, t), pull=0.7, anchor=x))
    close(of(it.server.shared), expected)


def test_fedproxs_last_rounds_neither_communicate_nor_pull(tmp_path: Path) -> None:
    """FedDRM's FedProxFT: each client goes on from its own copy."""
    s = setting(rounds=3, window=1)
    it, run = trained(method("fedprox", mu=0.7, finetune_rounds=2), DATA, s, tmp_path), ByHand(DATA, s)
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


# -- FedNova --------------------------------------------------------------------------------------------------


def by_the_paper(steps: int, rho: float, pull: float) -> float:
    """||a||_1 for local momentum rho, or for FedProx's local steps; pull = lr mu."""
    if pull:
        return (1 - (1 - pull) ** steps) / pull
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize(("rho", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.05), (0.0, 1.0)])
def test_normalisers_are_those_of_the_paper(steps: int, rho: float, pull: float) -> None:
    assert normaliser(steps, rho, pull, steps) == pytest.approx(by_the_paper(steps, rho, pull))


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


# -- rules of the server --------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("server", ["avgm", "yogi"])
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


@pytest.mark.parametrize("server", ["avgm", "adagrad", "adam", "yogi"])
def test_steps_of_fedopts_server_are_those_of_the_formulas(server: str, tmp_path: Path) -> None:
    """Changes by hand, some greater than tau and some smaller, over four rounds: to float rounding."""
    how = method("fedopt", server=server, **FEDOPT)
    it = trainer(how, DATA, tmp_path, setting())
    start, rng = {n: t.double().numpy() for n, t in it.server.shared.items()}, np.random.default_rng(2)
    changes: list[dict[str, Array]] = []
    for t in range(1, 5):
        held = dict(it.server.shared)
        cohort = [it.client(i, it.server.view(i), t) for i in (0, 2, 3)]
        for c in cohort:
            steps = {n: TAU * rng.standard_normal(x.shape).astype(np.float32) for n, x in held.items()}
            c.state = {n: x + torch.from_numpy(steps[n]) for n, x in held.items()}
        mean = weighted_mean([c.state for c in cohort], [c.n_train for c in cohort], held)
        changes.append({n: (mean[n].double() - held[n].double()).numpy() for n in held})
        how.aggregate(it.server, cohort, t)
    for name, x in start.items():
        expected = moved(server, x, [c[name] for c in changes])
        np.testing.assert_allclose(it.server.shared[name].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q", [0.1, 1.0, 2.0])
def test_the_step_of_qfedavgs_server_by_hand(q: float, tmp_path: Path) -> None:
    """Algorithm 2, line 7 and 8, in NumPy; each client has trained to weights of our choice."""
    how, data = method("qfedavg", q=q), federation((60, 60, 60))
    it = trainer(how, data, tmp_path, setting(momentum=0.0))
    before = {n: t.double().numpy() for n, t in it.server.shared.items()}
    rng, lr, losses = np.random.default_rng(0), [0.05, 0.05, 0.1], [0.5, 1.5, 2.5]
    cohort, flat, deltas, h = [], np.concatenate([v.ravel() for v in before.values()]), [], []
    for i in range(3):
        one = client(data, it.plan, i, it.server.view(i))
        after = {n: v + rng.normal(size=v.shape) for n, v in before.items()}
        one.state, one.lr, one.upload = {n: torch.from_numpy(v) for n, v in after.items()}, lr[i], Before(losses[i])
        cohort.append(one)
        change = (flat - np.concatenate([v.ravel() for v in after.values()])) / lr[i]
        deltas.append(losses[i] ** q * change)
        h.append(q * losses[i] ** (q - 1) * (change @ change) + losses[i] ** q / lr[i])
    how.aggregate(it.server, cohort, 1)
    ours = np.concatenate([it.server.shared[n].double().numpy().ravel() for n in before])
    np.testing.assert_allclose(ours, flat - sum(deltas) / sum(h), rtol=1e-5, atol=1e-6)


def test_qfedavgs_loss_is_that_of_the_model_as_sent(tmp_path: Path) -> None:
    """On all training images, before a step is taken."""
    it = trainer(method("qfedavg"), DATA, tmp_path, setting(momentum=0.0))
    one = it.client(0, it.server.view(0), 1)
    it.executor.run([one], it.method.local)
    rows = DATA.train[0]
    with torch.no_grad():
        model = it.executor.worker.load(it.server.view(0)).eval()  # type: ignore[attr-defined]
        by_hand = F.cross_entropy(model(to_input(DATA.images[rows])), DATA.labels[rows])
    assert one.upload.loss == pytest.approx(float(by_hand), rel=1e-4)


# -- FedSAM and MoFedSAM --------------------------------------------------------------------------------------

RHO = 0.3


def climbed(
    x: State, batches: list[Tensor], momentum: float, own: float = 1.0, others: Mapping[str, Tensor] | None = None
) -> State:
    """The network after these batches: down `own` times the gradient from RHO uphill, and what is left of one times
    that of the others."""
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


def test_effort_of_fedsam_is_two_passes_a_step_but_in_the_last_rounds() -> None:
    assert method("fedsam").relative_compute(setting(rounds=800)) == 2
    assert method("fedsam", finetune_rounds=100).relative_compute(setting(rounds=800)) == 1.875
