"""APFL, Ditto, pFedMe and FedRoD against whole runs recomputed with NumPy: gradients, steps, means and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.plan import Plan
from fedbench.core.start import initialise
from fedbench.core.trainer import Trainer
from fedbench.models.base import FLModel, seeded
from tests.support.lab import Run, federation, method, setting

Array = npt.NDArray[np.float64]
#: W [8, 64] and b [8] of the body tanh(W x + b), V [10, 8] and c [10] of the head.
Weights = dict[str, Array]

DATA = federation((40, 30, 26), skew=1.0)
PLAIN = setting(rounds=3, epochs=2, lr=0.1, momentum=0.5, weight_decay=1e-2, tail="drop", window=3)
PLAN = Plan(PLAIN, DATA.n_train, DATA.shape[:2])
NAMES = {"W": "backbone.1.weight", "b": "backbone.1.bias", "V": "head.weight", "c": "head.bias"}


class TwoLayers(FLModel):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Identity(), nn.Linear(8, 10), 8)


def two_layers() -> TwoLayers:
    with seeded(4, "model"):
        return TwoLayers()


# -- the network by hand --------------------------------------------------------------------------------------


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


def backward(p: Weights, x: Array, by_logits: Array) -> Weights:
    z = features(p, x)
    inner = (by_logits @ p["V"]) * (1 - z**2)
    return {"W": inner.T @ x, "b": inner.sum(0), "V": by_logits.T @ z, "c": by_logits.sum(0)}


class SGD:
    """Steps with momentum and weight decay, from rest."""

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


# -- the methods by hand: (client, round, received, own) -> (sent, own) ---------------------------------------------


def descended(p: Weights, i: int, t: int) -> Weights:
    """What FedAvg's client sends."""
    sgd = SGD()
    for x, y in batches(i, t, 1):
        p = sgd.step(p, backward(p, x, slope(logits(p, x), y)))
    return p


def apfl(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    for_w, for_v = SGD(), SGD()
    for x, y in batches(i, t, 1):
        mixed = 0.3 * logits(v, x) + 0.7 * logits(w, x)
        by_w, by_v = backward(w, x, slope(logits(w, x), y)), backward(v, x, 0.3 * slope(mixed, y))
        w, v = for_w.step(w, by_w), for_v.step(v, by_v)
    return w, v


def ditto(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    sgd = SGD()
    for x, y in batches(i, t, 2, epochs=3):
        gradient = backward(v, x, slope(logits(v, x), y))
        v = sgd.step(v, {n: g + 0.7 * (v[n] - w[n]) for n, g in gradient.items()})
    return descended(w, i, t), v


def pfedme(i: int, t: int, w: Weights, v: Weights) -> tuple[Weights, Weights]:
    theta, sgd = w, SGD(lr=0.2, momentum=0.0)
    for x, y in batches(i, t, 1):
        for _ in range(3):
            gradient = backward(theta, x, slope(logits(theta, x), y))
            theta = sgd.step(theta, {n: g + 4.0 * (theta[n] - w[n]) for n, g in gradient.items()})
        w = {n: w[n] - PLAIN.lr * 4.0 * (w[n] - theta[n]) for n in w}
    return w, theta


def fedrod(i: int, t: int, w: Weights, head: Weights) -> tuple[Weights, Weights]:
    counts = np.bincount(labels(DATA.train[i]), minlength=10)
    bias = np.log(counts + 1e-12)
    shared, personal = SGD(), SGD()
    for x, y in batches(i, t, 1):
        z = features(w, x)
        both = logits(w, x) + z @ head["V"].T + head["c"]
        by_head = slope(both, y)
        by_shared = backward(w, x, slope(logits(w, x) + bias, y))
        w, head = shared.step(w, by_shared), personal.step(head, {"V": by_head.T @ z, "c": by_head.sum(0)})
    return w, head


Step = Callable[[int, int, Weights, Weights], tuple[Weights, Weights]]
#: Name -> (hyper-parameters, the client's round, logits that answer from (w, own, images)).
METHODS: dict[str, tuple[dict[str, Any], Step, Callable[[Weights, Weights, Array], Array]]] = {
    "apfl": ({"alpha": 0.3}, apfl, lambda w, v, x: 0.3 * logits(v, x) + 0.7 * logits(w, x)),
    "ditto": ({"mu": 0.7, "personal_epochs": 3}, ditto, lambda w, v, x: logits(v, x)),
    "pfedme": (
        {"lambda": 4.0, "inner_steps": 3, "inner_lr": 0.2},
        pfedme,
        lambda w, theta, x: logits(theta, x),
    ),
    "fedrod": (
        {"score": "after_aggregate"},
        fedrod,
        lambda w, head, x: logits(w, x) + features(w, x) @ head["V"].T + head["c"],
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_three_rounds_is_what_the_equations_give(name: str, tmp_path: Path) -> None:
    chosen, step, answer = METHODS[name]
    how = method(name, **chosen)
    model, initial = initialise(how, two_layers, DATA, PLAIN)
    executor = executors.make("sequential", model, DATA, PLAIN)
    it = Trainer(PLAIN, how, DATA, model, initial, executor, PLAN, Checkpoint(tmp_path))
    it.run()
    executor.close()

    start = {n: initial[full].double().numpy() for n, full in NAMES.items()}
    empty = {n: np.zeros_like(start[n]) for n in ("V", "c")}
    w, own = start, [empty if name == "fedrod" else start] * 3
    sent: list[Weights] = []
    for t in (1, 2, 3):
        sent, own = map(list, zip(*(step(i, t, w, own[i]) for i in range(3)), strict=True))  # type: ignore[assignment]
        w = {n: np.average([s[n] for s in sent], axis=0, weights=DATA.n_train) for n in w}

    for n, full in NAMES.items():
        assert np.abs(w[n] - start[n]).max() > 5e-3, "nothing to compare"
        np.testing.assert_allclose(it.server.shared[full].numpy(), w[n], atol=2e-6)
        for i in range(3):
            if n in own[i]:
                held = it.server.personal[i][
                    full.replace("head", "personal_head") if name == "fedrod" else f"own/{full}"
                ]
                np.testing.assert_allclose(held.numpy(), own[i][n], atol=2e-6)
    last = Run(it, []).predictions.to_pandas().query("round == 3")
    for i in range(3):
        ours = last[last["client"] == i]["own"].to_numpy()
        scores = answer(w, own[i], pixels(DATA.test[i]))
        np.testing.assert_array_equal(ours, scores.argmax(1))
        others = [logits(w, pixels(DATA.test[i]))] + [
            answer(w, own[j], pixels(DATA.test[i])) for j in range(3) if j != i
        ]
        assert all(np.abs(o - scores).max() > 1e-2 for o in others), "no other model answers alike"
