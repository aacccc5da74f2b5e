"""APFL, Ditto, pFedMe, FedRoD, MR-MTL and FLUX's APFL: something of a client's own beside the shared network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import model_in
from fedbench.core.votes import Heads
from fedbench.models.base import FLModel, seeded
from tests.support.formula_lab import ByHand, State, answered, averaged, close, images, of, sent, started, trained
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import Run, federation, finish, method, same, setting, train, trainer

DATA = federation((40, 30, 26), skew=1.0)
NAMES = ("apfl", "ditto", "pfedme", "fedrod")
every = pytest.mark.parametrize("name", NAMES)

# -- a network of two layers in NumPy -------------------------------------------------------------------------

Array = npt.NDArray[np.float64]
#: W [8, 64] and b [8] of the body tanh(W x + b), V [10, 8] and c [10] of the head.
Weights = dict[str, Array]
PLAIN = setting(rounds=2, epochs=2, lr=0.1, momentum=0.5, weight_decay=1e-2, tail="drop", window=1)
PLAN = Plan(PLAIN, DATA.n_train, DATA.shape[:2])
TENSORS = {"W": "backbone.1.weight", "b": "backbone.1.bias", "V": "head.weight", "c": "head.bias"}


class TwoLayers(FLModel):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Identity(), nn.Linear(8, 10), 8)


def two_layers() -> TwoLayers:
    with seeded(4, "model"):
        return TwoLayers()


def pixels(rows: Any) -> Array:
    x: Array = DATA.images[rows].numpy().reshape(len(rows), -1) / 255.0
    return 2 * x - 1


def labels(rows: Any) -> Any:
    return DATA.labels[rows].numpy()


def features(p: Weights, x: Array) -> Array:
    z: Array = np.tanh(x @ p["W"].T + p["b"])
    return z


def logits(p: Weights, x: Array) -> Array:
    return features(p, x) @ p["V"].T + p["c"]


def slope(scores: Array, y: Any) -> Array:
    """Gradient of the mean cross-entropy by the logits."""
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return shares / len(y)


def backward(p: Weights, x: Array, by: Array) -> Weights:
    """Gradients of the parameters from those of the logits."""
    z = features(p, x)
    inner = (by @ p["V"]) * (1 - z**2)
    return {"W": inner.T @ x, "b": inner.sum(0), "V": by.T @ z, "c": by.sum(0)}


class SGD:
    """With momentum and weight decay, of what has a gradient."""

    def __init__(self, lr: float = PLAIN.lr, momentum: float = PLAIN.momentum) -> None:
        self.lr, self.momentum = lr, momentum
        self.speed: Weights = {}

    def step(self, p: Weights, gradient: Weights) -> Weights:
        pull = {n: g + PLAIN.weight_decay * p[n] for n, g in gradient.items()}
        self.speed = {n: self.momentum * self.speed.get(n, 0.0) + g for n, g in pull.items()}
        return {n: v - self.lr * self.speed[n] if n in gradient else v for n, v in p.items()}


def batches(i: int, t: int, phase: int, epochs: int = 2) -> Iterator[tuple[Array, Any]]:
    for position in PLAN.batches(i, t, phase, epochs, None):
        rows = DATA.train[i][position]
        yield pixels(rows), labels(rows)


# The methods by hand: (client, round, received, own) -> (sent, own).


def apfl(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    for_w, for_v = SGD(), SGD()
    for x, y in batches(i, t, 1):
        mixed = 0.3 * logits(v, x) + 0.7 * logits(w, x)
        by_w, by_v = backward(w, x, slope(logits(w, x), y)), backward(v, x, 0.3 * slope(mixed, y))
        w, v = for_w.step(w, by_w), for_v.step(v, by_v)
    return w, v


def ditto(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    sgd, average, p = SGD(), SGD(), w
    for x, y in batches(i, t, 1):
        p = average.step(p, backward(p, x, slope(logits(p, x), y)))
    for x, y in batches(i, t, 2, epochs=3):
        gradient = backward(v, x, slope(logits(v, x), y))
        v = sgd.step(v, {n: g + 0.7 * (v[n] - w[n]) for n, g in gradient.items()})
    return p, v


def pfedme(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    theta, sgd = w, SGD(lr=0.2, momentum=0.0)
    for x, y in batches(i, t, 1):
        for _ in range(3):
            gradient = backward(theta, x, slope(logits(theta, x), y))
            theta = sgd.step(theta, {n: g + 4.0 * (theta[n] - w[n]) for n, g in gradient.items()})
        w = {n: w[n] - PLAIN.lr * 4.0 * (w[n] - theta[n]) for n in w}
    return w, theta


def fedrod(i: int, t: int, w: Weights, head: Weights) -> tuple[Weights, Weights]:
    bias = np.log(np.bincount(labels(DATA.train[i]), minlength=10) + 1e-12)
    shared, personal = SGD(), SGD()
    for x, y in batches(i, t, 1):
        z = features(w, x)
        by_head = slope(logits(w, x) + z @ head["V"].T + head["c"], y)
        by_shared = backward(w, x, slope(logits(w, x) + bias, y))
        w, head = shared.step(w, by_shared), personal.step(head, {"V": by_head.T @ z, "c": by_head.sum(0)})
    return w, head


Step = Callable[[int, int, Weights, Weights], tuple[Weights, Weights]]
#: Name -> (hyper-parameters, the client's round, logits that answer from (w, own, images)).
METHODS: dict[str, tuple[dict[str, Any], Step, Callable[[Weights, Weights, Array], Array]]] = {
    "apfl": ({"alpha": 0.3}, apfl, lambda w, v, x: 0.3 * logits(v, x) + 0.7 * logits(w, x)),
    "ditto": ({"mu": 0.7, "personal_epochs": 3}, ditto, lambda w, v, x: logits(v, x)),
    "pfedme": ({"lambda": 4.0, "inner_steps": 3, "inner_lr": 0.2}, pfedme, lambda w, theta, x: logits(theta, x)),
    "fedrod": (
        {"score": "after_aggregate"},
        fedrod,
        lambda w, head, x: logits(w, x) + features(w, x) @ head["V"].T + head["c"],
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_what_the_equations_give(name: str, tmp_path: Path) -> None:
    chosen, step, answer = METHODS[name]
    it = finish(trainer(method(name, **chosen), DATA, tmp_path, PLAIN, network=two_layers)).trainer
    start = {n: it.server.initial[full].double().numpy() for n, full in TENSORS.items()}
    empty = {n: np.zeros_like(start[n]) for n in ("V", "c")}
    w, own = start, [empty if name == "fedrod" else start] * 3
    for t in (1, 2):
        ends, own = map(list, zip(*(step(i, t, w, own[i]) for i in range(3)), strict=True))  # type: ignore[assignment]
        w = {n: np.average([end[n] for end in ends], axis=0, weights=DATA.n_train) for n in w}  # type: ignore[index]
    for n, full in TENSORS.items():
        assert np.abs(w[n] - start[n]).max() > 5e-3, "nothing to compare"
        np.testing.assert_allclose(it.server.shared[full].numpy(), w[n], atol=2e-6)
        place = full.replace("head", "personal_head") if name == "fedrod" else f"own/{full}"
        for i in (i for i in range(3) if n in own[i]):
            np.testing.assert_allclose(it.server.personal[i][place].numpy(), own[i][n], atol=2e-6)
    last = Run(it, []).predictions.to_pandas()
    for i in range(3):
        scores = answer(w, own[i], pixels(DATA.test[i]))
        np.testing.assert_array_equal(last[last["client"] == i]["own"].to_numpy(), scores.argmax(1))
        others = [answer(w, own[j], pixels(DATA.test[i])) for j in range(3) if j != i]
        assert all(np.abs(o - scores).max() > 1e-2 for o in [logits(w, pixels(DATA.test[i])), *others])


# -- what is sent, what is kept -------------------------------------------------------------------------------


@every
def test_what_is_sent_is_what_fedavg_sends_and_the_own_part_is_kept(name: str, tmp_path: Path) -> None:
    """Who has not trained stands at the common start."""
    s = setting(rounds=1, window=1, seed=3, participation=0.5)
    run, fedavg = (train(one, DATA, tmp_path / one, s) for one in (name, "fedavg"))
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


def test_pfedme_mixes_the_mean_into_the_shared_model(tmp_path: Path) -> None:
    once = setting(rounds=1, window=1)
    whole, some = (train(method("pfedme", beta=b), DATA, tmp_path / str(b), once) for b in (1.0, 0.25))
    for name, mean in whole.shared.items():
        start = some.trainer.server.initial[name].numpy()
        np.testing.assert_allclose(some.shared[name], 0.75 * start + 0.25 * mean, rtol=1e-5, atol=1e-7)


def test_fedrods_answering_heads_are_on_a_body_in_common(tmp_path: Path) -> None:
    how = method("fedrod", score="after_aggregate")
    it = train(how, DATA, tmp_path, setting(rounds=1, window=1)).trainer
    clients = [it.client(i, it.server.view(i), 3) for i in range(DATA.clients)]
    for client in clients:
        assert how.personalise(client) is None
        for n in ("weight", "bias"):
            parts = client.received[f"head.{n}"] + client.received[f"personal_head.{n}"]
            assert torch.equal(client.state[f"head.{n}"], parts)
    assert Heads.of(clients, it.executor.model)


@pytest.mark.parametrize("name", ["apfl", "ditto", "pfedme"])
def test_running_statistics_are_those_of_the_model_that_saw_the_images(name: str, tmp_path: Path) -> None:
    s = setting(rounds=2)
    run, average = (trained(method(one), DATA, s, tmp_path / one).server for one in (name, "fedavg"))
    for n in ("backbone.norm.running_mean", "backbone.norm.running_var"):
        mine = [model_in(run.view(i), "own")[n] for i in range(DATA.clients)]
        assert not torch.equal(mine[0], mine[1])
        mean = averaged([{n: t} for t in mine], DATA.n_train)[n]
        assert torch.equal(run.shared[n], average.shared[n]) is (name != "pfedme")
        assert torch.allclose(run.shared[n], mean, rtol=1e-5) is (name == "pfedme")


# -- MR-MTL, and APFL as FLUX has it --------------------------------------------------------------------------

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


@pytest.mark.parametrize(("alpha", "variant"), [(0.0, "flux"), (0.3, "flux"), (0.3, "fedrc")])
def test_rounds_of_fluxs_apfl(alpha: float, variant: str, tmp_path: Path) -> None:
    """Shares exchanged, mixing once a round, a copy that is mixed too, or answers by one model would differ. In FedRC's
    code a round is two passes of two epochs of either model; half of the loss is half of the learning rate."""
    chosen = {} if variant == "flux" else {"variant": variant}
    it, run = trained(method("apfl_flux", alpha=alpha, **chosen), GROUPED, SHORT, tmp_path), ByHand(GROUPED, SHORT)
    own, length, lr = [started()] * 4, 1 if variant == "flux" else 2, SHORT.lr / (1 if variant == "flux" else 2)

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
    table, alone = it.checkpoint.read_predictions().to_pandas(), 0
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


def test_a_step_budget_is_one_epoch_of_fluxs_apfl(tmp_path: Path) -> None:
    s = setting(rounds=1, steps=2, votes=False)
    run = train("apfl_flux", GROUPED, tmp_path, s)
    assert run.trainer.checkpoint.rounds[0]["images"] == GROUPED.clients * 2 * 2 * s.batch_size


def test_a_learned_share_is_what_the_formula_gives(tmp_path: Path) -> None:
    """One step at the end of the round down the derivative of the mixture's loss by alpha, by autograd here."""
    s = grouped_setting(rounds=1, epochs=1)
    it = trained(method("apfl_flux", adaptive=True, alpha=0.3), GROUPED, s, tmp_path / "learned")
    fixed = trained(method("apfl_flux", alpha=0.3), GROUPED, s, tmp_path / "fixed").server
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
