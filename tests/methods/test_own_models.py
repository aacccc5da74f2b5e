"""APFL, Ditto, pFedMe, FedRoD, MR-MTL and FLUX's APFL have something of a client's own beside the shared network;
FedALA, FedAS and ConFREE bring a client's model to the shared one, and updates to one another; ATP learns rates, by
autograd on every tensor, running statistics too, and its answers know no label."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.subject import small
from fedbench.core.client import MEMBER
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.core.trainer import Trainer
from fedbench.methods import atp as norm_statistics
from fedbench.methods.atp import Rates, stepped
from fedbench.methods.confree import guidance, orders, pairs, worst
from fedbench.methods.fedala import CALM, LAST, MOST_PASSES, settled
from fedbench.methods.fedas import Information
from fedbench.rng import stream
from fedbench.specs import Setting
from tests.support.formula_lab import (
    PARAMETERS,
    ByHand,
    State,
    answered,
    averaged,
    close,
    head,
    images,
    joined,
    network,
    of,
    sent,
    started,
    trained,
)
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, federation, method, same, setting, staged, train

THREE = federation((40, 30, 26), skew=1.0)
every = pytest.mark.parametrize("name", ["apfl", "ditto", "pfedme", "fedrod"])


DROPPED = setting(rounds=2, epochs=2, lr=0.1, momentum=0.5, weight_decay=1e-2, tail="drop", window=1)


def sgd(*parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, DROPPED.lr, DROPPED.momentum, weight_decay=DROPPED.weight_decay)


def apfl(run: ByHand, i: int, t: int, w: State, v: State) -> tuple[State, State]:
    shared, own = network(w), network(v)
    steps = sgd(*shared.parameters(), *own.parameters())
    for rows in run.batches(i, t):
        x, y = images(THREE, rows), THREE.labels[rows]
        scores = shared(x)
        loss = F.cross_entropy(scores, y) + F.cross_entropy(0.3 * own(x) + 0.7 * scores.detach(), y)
        steps.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
    return state_of(shared), state_of(own)


def ditto(run: ByHand, i: int, t: int, w: State, v: State) -> tuple[State, State]:
    return run.descended(w, run.batches(i, t)), run.descended(v, run.batches(i, t, 2, 3), pull=0.7, anchor=w)


def pfedme(run: ByHand, i: int, t: int, w: State, v: State) -> tuple[State, State]:
    theta = w
    for rows in run.batches(i, t):
        theta = run.descended(theta, [rows] * 3, pull=4.0, anchor=w, lr=0.2, momentum=0.0)
        w = {**theta, **{n: w[n] - DROPPED.lr * 4.0 * (w[n] - theta[n]) for n in PARAMETERS}}
    return w, theta


def fedrod(run: ByHand, i: int, t: int, w: State, head: State) -> tuple[State, State]:
    model, own = network(w), {n: p.clone().requires_grad_() for n, p in head.items()}
    bias = (torch.bincount(THREE.labels[THREE.train[i]], minlength=10).double() + 1e-12).log().float()
    steps = sgd(*model.parameters(), *own.values())
    for rows in run.batches(i, t):
        z, y = model.features(images(THREE, rows)), THREE.labels[rows]
        generic = model.head(z)
        both = generic.detach() + F.linear(z.detach(), own["weight"], own["bias"])
        steps.zero_grad()
        (F.cross_entropy(generic + bias, y) + F.cross_entropy(both, y)).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return state_of(model), {n: p.detach() for n, p in own.items()}


def scores(state: State, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(state).eval()(x)
    return found


def with_head(w: State, head: State) -> State:
    return {**w, **{f"head.{n}": w[f"head.{n}"] + t for n, t in head.items()}}


#: Name -> (hyper-parameters, the client's round, logits that answer from (w, own, images)).
METHODS: dict[str, tuple[dict[str, Any], Any, Callable[[State, State, torch.Tensor], torch.Tensor]]] = {
    "apfl": ({"alpha": 0.3}, apfl, lambda w, v, x: 0.3 * scores(v, x) + 0.7 * scores(w, x)),
    "ditto": ({"mu": 0.7, "personal_epochs": 3}, ditto, lambda w, v, x: scores(v, x)),
    "pfedme": ({"lambda": 4.0, "inner_steps": 3, "inner_lr": 0.2}, pfedme, lambda w, theta, x: scores(theta, x)),
    "fedrod": ({"score": "after_aggregate"}, fedrod, lambda w, head, x: scores(with_head(w, head), x)),
}


@every
def test_rounds_and_answers_by_hand(name: str, tmp_path: Path) -> None:
    """Running statistics are those of the model that saw the images."""
    chosen, step, answer = METHODS[name]
    it, run = trained(method(name, **chosen), THREE, DROPPED, tmp_path), ByHand(THREE, DROPPED)
    start = started()
    head = {n: torch.zeros_like(start[f"head.{n}"]) for n in ("weight", "bias")}
    own, prefix = [head if name == "fedrod" else start] * 3, "personal_head." if name == "fedrod" else "own/"

    def local(i: int, t: int, w: State) -> State:
        sent, own[i] = step(run, i, t, w, own[i])
        return sent

    w = run.rounds(local)
    close(of(it.server.shared), w, 1e-3, 2e-5)
    last = it.checkpoint.read("predictions").to_pandas()
    for i in range(3):
        close({n: it.server.personal[i][prefix + n] for n in own[i]}, own[i], 1e-3, 2e-5)
        x = images(THREE, THREE.test[i])
        ours = answer(w, own[i], x)
        assert last[last["client"] == i]["own"].tolist() == ours.argmax(1).tolist()
        others = [scores(w, x), *(answer(w, own[j], x) for j in range(3) if j != i)]
        assert all((one - ours).abs().max() > 1e-2 for one in others)


@every
def test_what_is_sent_is_what_fedavg_sends_and_the_own_part_is_kept(name: str, tmp_path: Path) -> None:
    """Who has not trained stands at the common start."""
    s = setting(rounds=1, window=1, seed=3, participation=0.5)
    run, fedavg = (train(one, THREE, tmp_path / one, s) for one in (name, "fedavg"))
    assert run.shared.keys() == fedavg.shared.keys()
    assert sent(run) == sent(fedavg)
    server, took_part = run.trainer.server, set(run.trainer.plan.cohort(1))
    assert 0 < len(took_part) < 3
    assert server.personal.keys() == took_part
    rod = name == "fedrod"
    own = {f"personal_head.{n}" for n in ("weight", "bias")} if rod else {f"own/{n}" for n in run.shared}
    assert all(state.keys() == own for state in server.personal.values())
    for n in own:
        start = torch.zeros_like(server.initial[n]) if rod else server.initial[n.removeprefix("own/")]
        assert torch.equal(server.initial[n], start)


def test_pfedmes_mean_is_mixed_into_the_shared_model(tmp_path: Path) -> None:
    once = setting(rounds=1, window=1)
    whole, some = (train(method("pfedme", beta=b), THREE, tmp_path / str(b), once) for b in (1.0, 0.25))
    for name, mean in whole.shared.items():
        start = some.trainer.server.initial[name].numpy()
        np.testing.assert_allclose(some.shared[name], 0.75 * start + 0.25 * mean, rtol=1e-5, atol=1e-7)


GROUPED = grouped_federation((0, 1, 0, 1), 60)
SHORT = grouped_setting(rounds=2)


@pytest.mark.parametrize("restarts", [True, False])
def test_rounds_of_mr_mtl(restarts: bool, tmp_path: Path) -> None:
    s = grouped_setting(rounds=2, momentum_restarts=restarts, weight_decay=1e-3)
    it, run = trained(method("mr_mtl", pull=0.5), GROUPED, s, tmp_path), ByHand(GROUPED, s)
    average, models = started(), [started()] * 4
    for t in (1, 2):
        for i in range(4):
            rows, a_pass = run.batches(i, t), run.plan.batches_a_pass(i)
            for epoch in (rows[:a_pass], rows[a_pass:]) if restarts else (rows,):
                models[i] = run.descended(models[i], epoch, pull=0.5, anchor=average)
        average = averaged(models, GROUPED.n_train)
    close(of(it.server.shared), average, 1e-4, 2e-5)
    for i in range(4):
        close(of(it.server.view(i), "own/"), models[i], 1e-4, 2e-5)


@pytest.mark.parametrize(
    ("alpha", "variant", "separate"),
    [(0.0, "flux", False), (0.3, "flux", False), (0.3, "fedrc", False), (0.3, "flux", True), (0.3, "fedrc", True)],
)
def test_rounds_of_fluxs_apfl(alpha: float, variant: str, separate: bool, tmp_path: Path) -> None:
    """Shares exchanged, mixing once a round, a copy that is mixed too, or answers by one model would differ. In FedRC's
    code a round is two passes of two epochs of either model; half of the loss is half of the learning rate. Where the
    models are separate, the own one begins with the next seed's weights, and no share counts."""
    chosen = {} if variant == "flux" else {"variant": variant}
    how = method("apfl_flux", alpha=alpha, **chosen, **({"separate": True} if separate else {}))
    it, run = trained(how, GROUPED, SHORT, tmp_path), ByHand(GROUPED, SHORT)
    begin, alpha = (it.context.fresh(1), 0.0) if separate else (started(), alpha)
    assert any(not torch.equal(t, begin[n]) for n, t in started().items()) == separate
    own, length, lr = [begin] * 4, 1 if variant == "flux" else 2, SHORT.lr / (1 if variant == "flux" else 2)

    def passes(state: State, rows: list[torch.Tensor]) -> State:
        each = len(rows) // length
        for k in range(length):  # momentum restarts
            state = run.descended(state, rows[k * each : (k + 1) * each], lr=lr)
        return state

    def local(i: int, t: int, copy: State) -> State:
        for k in range(2):
            drawn = [run.batches(i, t, 2 * k + request, length) for request in (1, 2)]
            copy, mine = passes(copy, drawn[0]), passes(own[i], drawn[1])
            own[i] = {n: (1 - alpha) * p + alpha * copy[n] if p.is_floating_point() else p for n, p in mine.items()}
        return copy

    shared = run.rounds(local)
    close(of(it.server.shared), shared, 1e-4, 2e-5)
    table, alone = it.checkpoint.read("predictions").to_pandas(), 0
    for i in range(4):
        close(of(it.server.view(i), "own/"), own[i], 1e-4, 2e-5)
        x = images(GROUPED, GROUPED.test[i])
        of_own, of_shared = answered(own[i], x), answered(shared, x)
        ours, both = table[table["client"] == i], (of_own + of_shared).argmax(1)
        np.testing.assert_array_equal(ours["own"], both)
        np.testing.assert_array_equal(ours["test_phase"], of_shared.argmax(1))
        alone += int((of_own.argmax(1) != both).sum() + (of_shared.argmax(1) != both).sum())
    assert alone > 0, "one model alone answers the same"
    assert it.checkpoint.rounds[0]["images"] == 2 * 2 * length * sum(GROUPED.n_train)
    assert it.method.relative_compute(SHORT) == 2.0 * length


def test_a_step_budget_and_a_learned_share_of_fluxs_apfl(tmp_path: Path) -> None:
    """A budget is one epoch. The share takes one step at the end of the round, by autograd here."""
    s = setting(rounds=1, steps=2, votes=False)
    run = train("apfl_flux", GROUPED, tmp_path, s)
    assert run.trainer.checkpoint.rounds[0]["images"] == GROUPED.clients * 2 * 2 * s.batch_size
    s = grouped_setting(rounds=1, epochs=1)
    it = trained(method("apfl_flux", adaptive=True, alpha=0.3), GROUPED, s, tmp_path / "2" / "learned")
    fixed = trained(method("apfl_flux", alpha=0.3), GROUPED, s, tmp_path / "2" / "fixed").server
    assert same(it.server.shared, fixed.shared), "the share's batch is one more"
    run, found = ByHand(GROUPED, s), []
    for i in range(4):
        copy, own = run.descended(started(), run.batches(i, 1)), of(fixed.view(i), "own/")
        alpha = torch.tensor(0.3, requires_grad=True)
        mixture = {n: (1 - alpha) * p + alpha * copy[n] if p.is_floating_point() else p for n, p in own.items()}
        mixture |= {n: p.detach() for n, p in mixture.items() if "running" in n}
        (rows,) = run.batches(i, 1, 3, steps=1)
        scores = torch.func.functional_call(small(norm=True).train(), mixture, images(GROUPED, rows))
        (way,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, GROUPED.labels[rows]), alpha)
        found.append(float(it.server.personal[i]["alpha"]))
        assert found[-1] == pytest.approx(0.3 - s.lr * float(way), rel=1e-4)
        assert found[-1] != pytest.approx(0.3, rel=1e-4), "no step at all"
    assert [it.checkpoint.notes[str(i)]["alpha"] for i in range(4)] == found


DATA = federation()
N = DATA.n_train


RATE, SHARE = 20.0, 0.6
TOP = ["head.weight", "head.bias"]
TWO_LAYERS = ["backbone.hidden.weight", "backbone.hidden.bias", *TOP]


def test_fedalas_weights_are_learned_until_losses_lie_close() -> None:
    apart, swinging = [k * 10 * CALM for k in range(LAST)], [10 * CALM * (k % 2) for k in range(MOST_PASSES)]
    for losses, ends in (
        ([1.0] * LAST, False),  # one more than those it looks at
        ([1.0] * (LAST + 1), True),
        ([1.0] * LAST + apart, False),
        (apart + [1.0] * LAST, True),
        (swinging[:-1], False),
        (swinging, True),
    ):
        assert settled(losses) is ends


def a_pass(shared: State, own: State, weights: State, batches: list[Tensor]) -> float:
    """One pass that learns the weights in place, by the gradient of the mixture; its mean loss."""
    model = network(shared)
    total, count, parameters = 0.0, 0, dict(model.named_parameters())
    for rows in batches:
        with torch.no_grad():
            for n in own:
                parameters[n].copy_(own[n] + (shared[n] - own[n]) * weights[n])
        loss = F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows])
        for n, g in zip(own, torch.autograd.grad(loss, [parameters[n] for n in own]), strict=True):
            weights[n] = torch.clamp(weights[n] - RATE * g * (shared[n] - own[n]), 0.0, 1.0)
        total, count = total + loss.item() * len(rows), count + len(rows)
    return total / count


@pytest.mark.parametrize("top", [TOP, TWO_LAYERS], ids=["head", "two_layers"])
def test_rounds_of_fedala(top: list[str], tmp_path: Path) -> None:
    s = setting(rounds=3, window=1, weight_decay=0.01)
    it, run = trained(method("fedala", rate=RATE, share=SHARE, top=len(top)), DATA, s, tmp_path), ByHand(DATA, s)
    first, passes = started(), dict[int, list[int]]()
    own = [{n: first[n] for n in top} for _ in N]
    weights = [{n: torch.ones_like(first[n]) for n in top} for _ in N]

    def local(i: int, t: int, shared: State) -> State:
        losses: list[float] = []
        while t > 1:  # in round 2 until the losses lie close together, then once
            steps = max(1, int(SHARE * N[i]) // 16)
            losses.append(a_pass(shared, own[i], weights[i], run.batches(i, t, len(losses) + 1, steps=steps)))
            if t > 2 or (len(losses) > 10 and np.std(losses[-10:]) < 0.1):
                break
        passes.setdefault(t, []).append(len(losses))
        begun = {n: own[i][n] + (shared[n] - own[i][n]) * weights[i][n] for n in top}
        end = run.descended({**shared, **begun}, run.batches(i, t, len(losses) + 1))
        own[i] = {n: end[n] for n in top}
        return end

    close(of(it.server.shared), run.rounds(local), 2e-3, 2e-4)
    assert passes[1] == [0] * 4
    assert min(passes[2]) > 10
    assert passes[3] == [1] * 4
    for i in range(DATA.clients):
        keeps = it.server.personal[i]
        assert keeps.keys() == {f"{model}/{n}" for model in ("own", "weights") for n in top}
        close({n: keeps[f"own/{n}"] for n in top}, own[i], 2e-3, 2e-4)
        close({n: keeps[f"weights/{n}"] for n in top}, weights[i], 2e-3, 2e-3)
    learned = torch.cat([w.flatten() for each in weights for w in each.values()])
    assert ((learned > 0.05) & (learned < 0.95)).float().mean() > 0.1
    assert (learned == 1).any()
    assert (learned == 0).any()


def test_a_client_of_fedala_answers_with_the_mixture_of_the_new_shared_model(tmp_path: Path) -> None:
    """Before it trains, and below the top with the shared model; learning it again changes nothing that is kept. Within
    a budget the weights have their share of the steps."""
    it = train(method("fedala", rate=RATE), DATA, tmp_path, setting(rounds=2)).trainer
    before = {name: t.clone() for name, t in it.server.tensors().items()}
    client = it.answering(it.server, 1, MEMBER, 2)
    it.executor.run([client], it.method.personalise)
    shared, own = it.server.shared, client.received
    for name, t in client.model().items():
        if name in TOP:
            mixed = own[f"own/{name}"] + (shared[name] - own[f"own/{name}"]) * client.state[f"weights/{name}"]
            torch.testing.assert_close(t, mixed, rtol=1e-5, atol=1e-6)
            assert not torch.equal(t, shared[name])
        else:
            assert t is shared[name]
    assert all(torch.equal(t, it.server.tensors()[name]) for name, t in before.items())
    run = train(method("fedala", weight_steps=2), DATA, tmp_path / "2", setting(rounds=2, steps=5, batch_size=8))
    assert [line["images"] for line in run.trainer.checkpoint.rounds] == [3 * 8 * DATA.clients, 5 * 8 * DATA.clients]
    assert any((w < 1).any() for name, w in run.tensors.items() if "/weights/" in name)
    assert method("fedala", weight_steps=5, rate=0).relative_compute(setting(steps=10)) == 0.5


def to_means(shared: State, own: State, i: int, batches: Iterable[Any], s: Setting) -> State:
    """The shared body after plain steps towards the client's own class means, a class and an image at a time."""
    x, y, model = images(DATA, DATA.train[i]), DATA.labels[DATA.train[i]], network(shared)
    with torch.no_grad():
        z = network(own).eval().features(x)
    means = {k: z[y == k].mean(0) for k in y.tolist()}
    body = [p for n, p in model.named_parameters() if not head(n)]
    for position in batches:
        f = model.features(x[position])
        total = torch.zeros(())
        for k in sorted(set(y[position].tolist())):
            squares = [(f[b] - means[k]).square().mean() for b in range(len(f)) if y[position][b] == k]
            total = total + sum(squares) / len(squares)
        for p, g in zip(body, torch.autograd.grad(total, body), strict=True):
            p.data -= 0.03 * (g + s.weight_decay * p.data)
    return state_of(model)


def information(state: State, i: int, size: int) -> float:
    """The squared norms of the gradients of consecutive batches, summed."""
    model, total = network(state), 0.0
    for rows in DATA.train[i].split(size):
        model.zero_grad()
        F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows]).backward()  # type: ignore[no-untyped-call]
        total += sum(float((p.grad**2).sum()) for p in model.parameters())
    return total


def test_rounds_of_fedas(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, weight_decay=0.01)
    it, run = trained(method("fedas", align_lr=0.03), DATA, s, tmp_path), ByHand(DATA, s)
    shared, own = started(), [started()] * DATA.clients
    for t in (1, 2):
        for i in range(DATA.clients):
            aligned = to_means(joined(shared, own[i]), own[i], i, run.plan.batches(i, t, 1, 1, None), s)
            own[i] = run.descended(aligned, run.batches(i, t, 2))
        weights = [information(own[i], i, s.batch_size) for i in range(DATA.clients)]
        shared = averaged(own, weights)
    assert max(weights) > 1.5 * min(weights)
    close(it.server.shared, {n: t for n, t in shared.items() if not head(n)}, 2e-3, 2e-4)
    for i in range(DATA.clients):
        close(of(it.server.personal[i], "previous/"), own[i], 2e-3, 2e-4)


def test_rounds_of_fedas_as_feddrm_ran_it(tmp_path: Path) -> None:
    """The backbone's features are brought to those of the previous model; in round 1 both are one."""
    s = setting(rounds=3, window=1, steps=5, weight_decay=0.01)
    how, run = method("fedas", align_steps=2, weigh_by="size", score="after_aggregate"), ByHand(DATA, s)
    it = trained(how, DATA, s, tmp_path)
    models = previous = [started()] * DATA.clients
    for t in (1, 2, 3):
        for i in range(DATA.clients):
            old = network(previous[i])

            def gap(model: Any, x: Tensor, y: Tensor, old: Any = old) -> Tensor:
                with torch.no_grad():
                    target = old.backbone(x)
                return F.mse_loss(model.backbone(x), target)

            rows = run.batches(i, t, 1, steps=2)
            aligned = run.descended(models[i], rows, gap, moves=lambda n: n.startswith("backbone"))
            previous = [*previous[:i], run.descended(aligned, run.batches(i, t, 2, steps=3)), *previous[i + 1 :]]
        mean = averaged(previous, N)
        models = [joined(mean, own) for own in previous]
    for i in range(DATA.clients):
        close(of(it.server.view(i)), models[i], 2e-3, 2e-4)
    assert it.method.relative_compute(setting(steps=10)) == pytest.approx((2 * 4 / 3 + 8) / 10)


def test_what_answers_for_a_client_of_fedas_and_how_it_counts(tmp_path: Path) -> None:
    """Also when it was away; by its information."""
    it = train("fedas", DATA, tmp_path, setting(participation=0.6, seed=3)).trainer
    (away, *_) = set(range(DATA.clients)) - set(it.plan.cohort(3))
    assert any(away in it.plan.cohort(t) for t in (1, 2)), "it has never trained"
    for score, own in (("after_local", True), ("after_aggregate", False)):
        client = it.answering(it.server, away, MEMBER, 3)
        method("fedas", score=score).personalise(client)
        body = client.state["backbone.0.weight"]
        assert torch.equal(body, it.server.personal[away]["previous/backbone.0.weight"]) == own
        assert torch.equal(body, it.server.shared["backbone.0.weight"]) != own
        assert torch.equal(client.state["head.weight"], it.server.personal[away]["head.weight"])
    it = train("fedas", DATA, tmp_path / "2", setting(rounds=1, window=1)).trainer
    cohort = [it.client(i, dict(it.server.initial), 3) for i in range(3)]
    by_size = (N[1] + 2 * N[2]) / sum(N[:3])  # where there is nothing to go by
    for traces, mean in (((1.0, 0.0, 3.0), 1.5), ((0.0, 0.0, 0.0), by_size)):
        for k, c in enumerate(cohort):
            c.state = {n: torch.full_like(t, float(k)) for n, t in c.state.items()}
            c.upload = Information(traces[k])
        it.method.aggregate(it.server, cohort, 3)
        for t in it.server.shared.values():
            torch.testing.assert_close(t, torch.full_like(t, mean))


Vectors = npt.NDArray[np.float64]
ALPHA, SIZES = 0.4, [30, 10, 25, 35, 20]


def updates(seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(5, 12)) * np.geomspace(0.01, 0.05, 5)[:, None]


def projected_pairs(u: Vectors, sizes: list[int]) -> Vectors:
    """FedDRM's rule [d], pair by pair: both lose their projection on the other as it came."""
    adjusted = u.copy()
    for i in range(len(u)):
        for j in range(i + 1, len(u)):
            dot = u[i] @ u[j]
            if dot < 0:
                adjusted[i] -= dot / (u[j] @ u[j] + 1e-8) * u[j]
                adjusted[j] -= dot / (u[i] @ u[i] + 1e-8) * u[i]
    mean: Vectors = np.array(sizes) @ adjusted / sum(sizes)
    return mean


def guide(u: Vectors, order: npt.NDArray[np.int64]) -> Vectors:
    """The guidance vector [d], vector by vector."""
    total = np.zeros(u.shape[1])
    for i in range(len(u)):
        g = u[i].copy()
        for j in order[i]:
            g -= min(0.0, g @ u[j]) / (u[j] @ u[j]) * u[j]
        total += g
    mean: Vectors = total / len(u)
    return mean


def step(u: Vectors, order: npt.NDArray[np.int64], alpha: float = ALPHA) -> Vectors:
    """The paper's step [d], by what it is the dual of: the most that the worst client can gain, <g, u_i>, of all g
    within alpha |c| of the guidance vector c; over (1 + alpha^2)."""
    c = guide(u, order)
    size = float(np.linalg.norm(c))
    basis = np.linalg.qr(u.T)[0]  # of what lies outside of it no client gains
    gains, centre = u @ basis / size, basis.T @ c / size
    slopes = np.hstack([-np.ones((len(u), 1)), gains])  # by v: the worst gain, and the way from c, in units of |c|
    constraints: Any = [
        {"type": "ineq", "fun": lambda v: gains @ centre + slopes @ v, "jac": lambda v: slopes},
        {"type": "ineq", "fun": lambda v: alpha**2 - v[1:] @ v[1:], "jac": lambda v: np.append(0, -2 * v[1:])},
    ]
    worst_gain, options = np.append(-1.0, 0 * centre), {"ftol": 1e-12, "maxiter": 2000}
    best: Any = minimize(
        lambda v: worst_gain @ v,
        0 * worst_gain,
        jac=lambda v: worst_gain,
        constraints=constraints,
        method="SLSQP",
        options=options,
    )
    assert np.linalg.norm(best.x[1:]) < alpha + 1e-6
    moved: Vectors = (c + size * basis @ best.x[1:]) / (1 + alpha**2)
    return moved


@pytest.mark.parametrize("seed", range(3))
def test_combinations_by_inner_products_are_the_projections(seed: int) -> None:
    u, order = updates(seed), orders(np.random.default_rng(seed), 5)
    weights = pairs(u @ u.T, SIZES)
    np.testing.assert_allclose(weights @ u, projected_pairs(u, SIZES), rtol=1e-9, atol=1e-15)
    assert (weights >= np.array(SIZES) / sum(SIZES)).all()
    assert weights.sum() > 1.01, "nothing conflicts"
    np.testing.assert_allclose(guidance(u @ u.T, order) @ u, guide(u, order), rtol=1e-9, atol=1e-15)
    assert [sorted([i, *row]) for i, row in enumerate(order.tolist())] == [list(range(5))] * 5
    assert len({tuple(row) for row in order.tolist()}) == 5
    assert not np.allclose(guidance(u @ u.T, order), guidance(u @ u.T, order[:, ::-1])), "the order does not matter"
    for scale in (1e-4, 1.0):  # the best for the worst client near the guidance vector
        v = scale * u
        ours, expected, centre = worst(v @ v.T, order, ALPHA) @ v, step(v, order), guide(v, order) / (1 + ALPHA**2)
        np.testing.assert_allclose(ours, expected, atol=2e-3 * float(np.abs(expected).max()))
        assert (v @ ours).min() > (v @ centre).min()
        assert np.linalg.norm(ours - centre) == pytest.approx(ALPHA * np.linalg.norm(centre), rel=1e-3)


def test_two_in_conflict_one_client_and_clients_that_have_not_moved() -> None:
    u = np.array([[1.0, 0.0], [-1.0, 2.0]])
    first, second = (pairs(u @ u.T, sizes) @ u for sizes in ([1, 0], [0, 1]))
    np.testing.assert_allclose([first @ u[1], second @ u[0]], 0, atol=1e-7)
    alone = orders(np.random.default_rng(0), 1)
    assert worst(np.array([[4.0]]), alone, 0.0).tolist() == [1.0]
    assert worst(np.array([[4.0]]), alone, 0.5) == pytest.approx([1.5 / 1.25])
    assert worst(np.zeros((3, 3)), orders(np.random.default_rng(0), 3), 0.5) == pytest.approx([1 / 3] * 3)
    still = np.diag([1.0, 0.0])  # one has not moved
    assert np.isfinite(worst(still, orders(np.random.default_rng(0), 2), 0.5)).all()


BODY = sorted(n for n in PARAMETERS if not head(n))


def moves(before: State, models: list[State], names: list[str]) -> Vectors:
    return np.stack([np.concatenate([(m[n] - before[n]).double().numpy().ravel() for n in names]) for m in models])


def moved(before: State, names: list[str], way: Vectors) -> State:
    """These tensors of the body after a step along `way`."""
    ends = np.cumsum([before[n].numel() for n in names])[:-1]
    parts = zip(names, np.split(way, ends), strict=True)
    return {n: (before[n].double() + torch.from_numpy(part).view(before[n].shape)).float() for n, part in parts}


@pytest.mark.parametrize("rule", ["worst", "pairs"])
def test_rounds_of_confree(rule: str, tmp_path: Path) -> None:
    """FedRep whose server combines bodies: the paper's rule, tensor by tensor, or FedDRM's, of five of ten steps."""
    steps = {"steps": 10} if rule == "pairs" else {}
    chosen: dict[str, Any] = {"rule": "pairs", "head_steps": 5} if steps else {"alpha": ALPHA}
    s = setting(rounds=2, window=1, weight_decay=0.01, **steps)
    it, run, models = trained(method("confree", **chosen), DATA, s, tmp_path), ByHand(DATA, s), [started()] * 4
    length: dict[str, int] = {"steps": 5} if steps else {"epochs": 1}
    conflicts: list[bool] = []

    def by_pairs(before: State, t: int) -> State:
        u = moves(before, models, BODY)
        conflicts.append(bool((u @ u.T < 0).any()))
        return moved(before, BODY, projected_pairs(u, list(N)))

    def by_worst(before: State, t: int) -> State:
        rng, after = stream(s.seed, "order of projections", t), {}
        for name in BODY:  # each by itself, in this order
            order = np.array([rng.permutation([j for j in range(4) if j != i]) for i in range(4)])
            after.update(moved(before, [name], step(moves(before, models, [name]), order)))
        return after

    combine: Callable[[State, int], State] = by_pairs if steps else by_worst
    for t in (1, 2):
        before = models[0]
        for i in range(4):
            for request, part in ((1, head), (2, lambda n: not head(n))):
                models[i] = run.descended(models[i], run.batches(i, t, request, **length), moves=part)
        body = {**averaged(models, N), **combine(before, t)}
        models = [joined(body, own) for own in models]
    for i, model in enumerate(models):
        close(of(it.server.view(i)), model, 2e-3, 3e-4)
    assert any(conflicts) is (rule == "pairs")


def test_confrees_logged_loss_is_the_mean_of_both_phases(tmp_path: Path) -> None:
    it = train("confree", DATA, tmp_path, setting(rounds=1, window=1)).trainer
    client = it.client(1, it.server.view(1), 2)
    it.executor.run([client], it.method.local)
    (first, _), (second, _) = client.work.losses
    assert first != second
    assert client.loss == pytest.approx((first + second) / 2)


TURNED = grouped_federation((0, 1, 2), 70)
BRIEF = grouped_setting(rounds=2, batch_size=8, init_seed=1)
NETWORK = [name for name, t in started().items() if t.is_floating_point()]


def forward(p: State, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, what the norm reads) of the small network in evaluation mode, differentiable by all of p."""
    h = F.conv2d(x, p["backbone.conv.weight"], p["backbone.conv.bias"], padding=1)

    def column(name: str) -> Tensor:
        return p[f"backbone.norm.{name}"].view(1, -1, 1, 1)

    z = (h - column("running_mean")) / (column("running_var") + 1e-5).sqrt() * column("weight") + column("bias")
    z = F.relu(F.max_pool2d(z, 2)).flatten(1)
    z = F.relu(F.linear(z, p["backbone.hidden.weight"], p["backbone.hidden.bias"]))
    return F.linear(z, p["head.weight"], p["head.bias"]), h.detach()


def adapted_once(theta: State, rates: State, x: Tensor) -> tuple[State, State]:
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
                adapted, ways = adapted_once(theta, mine, x)
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
            told += forward(adapted_once(theta, rates, x)[0], x)[0].argmax(1).tolist()
    return told


def learned(it: Trainer) -> State:
    return dict(zip(NETWORK, it.server.memory.rates, strict=True))


@pytest.mark.parametrize("rounds", [1, 2])
def test_rates_and_answers_are_those_of_autograd(rounds: int, tmp_path: Path) -> None:
    """Catches any mistake in the gradient by running statistics, a step that goes on from the last batch's, a missing
    root, rates not averaged between rounds, and answers by theta. By default rates are learned in as many rounds as the
    model, which are two."""
    chosen = {"rate_rounds": 1} if rounds == 1 else {}
    it = trained(method("atp", eta=10.0, **chosen), TURNED, BRIEF, tmp_path)
    theta = {n: t for n, t in of(it.server.shared).items() if n in NETWORK}
    expected = rates_by_hand(theta, TURNED, 10.0, rounds, 8)
    found = learned(it)
    close(found, expected, 2e-3)
    for name in ("norm.running_mean", "norm.running_var", "norm.weight", "conv.weight"):
        assert abs(float(found[f"backbone.{name}"])) > 5e-4, "nothing to compare"
    told = it.checkpoint.read("predictions").to_pandas()
    by_hand = answers_by_hand(theta, found, TURNED, 8)
    assert told["own"].tolist() == told["test_phase"].tolist() == by_hand
    unadapted = [k for rows in TURNED.test for k in forward(theta, images(TURNED, rows))[0].argmax(1).tolist()]
    assert unadapted != by_hand
    assert answers_by_hand(theta, found, TURNED, 16) != by_hand, "the batch of an image does not matter"


def test_rates_come_from_validation_images_or_else_from_training_images(tmp_path: Path) -> None:
    """Labels of validation images change them alone."""
    without = staged(TURNED, (TURNED.train, [rows[:0] for rows in TURNED.validation]))
    for data, split in ((TURNED, "validation"), (without, "train")):
        someone = client(data, Plan(BRIEF, data.n_train, data.shape[:2]), 0, started(), t=2)
        someone.inbox = Rates(torch.zeros(len(NETWORK)))
        assert next(method("atp").reply(someone)).split == split  # type: ignore[arg-type]
    labels = TURNED.labels.clone()
    for rows in TURNED.validation:
        labels[rows] = (labels[rows] + 3) % 10
    how = method("atp", eta=1.0)
    plain, other = (
        trained(how, data, BRIEF, tmp_path / str(k)).server
        for k, data in enumerate((TURNED, dataclasses.replace(TURNED, labels=labels)))
    )
    assert not torch.equal(plain.memory.rates, other.memory.rates)
    assert all(torch.equal(plain.shared[n], other.shared[n]) for n in NETWORK)


def test_a_variance_stays_at_least_zero_and_without_batch_norms_nothing_is_asked() -> None:
    state = started()
    ways = {n: torch.full_like(state[n], 2.0) for n in NETWORK}
    moved = stepped(state, torch.ones(len(NETWORK)), ways)
    assert not moved["backbone.norm.running_var"].any()
    assert torch.equal(moved["backbone.norm.running_mean"], state["backbone.norm.running_mean"] - 2)
    assert torch.equal(moved["backbone.norm.num_batches_tracked"], state["backbone.norm.num_batches_tracked"])
    state = {"head.weight": torch.ones(10, 16)}
    someone = client(TURNED, Plan(BRIEF, TURNED.n_train, TURNED.shape[:2]), 0, state)
    with pytest.raises(StopIteration) as end:
        next(norm_statistics.ways(someone, "test", (0, 8)))
    assert end.value.value == {}
    assert norm_statistics.gradients(state, {"head.weight": torch.ones(10, 16)}) == {}
