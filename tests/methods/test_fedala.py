"""FedALA: FedAvg where nothing is learned; whole rounds against plain loops; the mixture is worth learning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.who import MEMBER
from fedbench.errors import FedbenchError
from fedbench.methods.fedavg import FedAvg
from fedbench.specs import Setting
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import State, averaged, descended, images, of, started, trained

DATA = federation()
RATE, SHARE = 20.0, 0.6
HEAD = ["head.weight", "head.bias"]
HIDDEN = ["backbone.hidden.weight", "backbone.hidden.bias"]


@dataclass(frozen=True)
class Unaveraged(FedAvg):
    """FedAvg whose clients answer with what they have trained."""

    name = "unaveraged"
    answers_after_local = True


def a_pass(shared: State, own: State, weights: State, batches: list[np.ndarray], i: int) -> float:
    """One pass that learns the weights in place, by the gradient of the mixture; its mean loss."""
    model = small(norm=True).train()
    total = count = 0.0
    model.load_state_dict(shared)
    parameters = dict(model.named_parameters())
    for position in batches:
        rows = DATA.train[i][torch.from_numpy(position)]
        with torch.no_grad():
            for n in own:
                parameters[n].copy_(own[n] + (shared[n] - own[n]) * weights[n])
        loss = F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows])
        for n, g in zip(own, torch.autograd.grad(loss, [parameters[n] for n in own]), strict=True):
            weights[n] = torch.clamp(weights[n] - RATE * g * (shared[n] - own[n]), 0.0, 1.0)
        total, count = total + loss.item() * len(rows), count + len(rows)
    return total / count


class Oracle:
    """The algorithm by loops over clients that all take part."""

    def __init__(self, s: Setting, top: list[str]) -> None:
        self.s, self.plan, self.shared = s, Plan(s, DATA.n_train, DATA.shape[:2]), started()
        self.own = [{n: self.shared[n] for n in top} for _ in range(DATA.clients)]
        self.weights = [{n: torch.ones_like(self.shared[n]) for n in top} for _ in range(DATA.clients)]
        self.passes: list[int] = []  #: of each client in each round

    def start(self, i: int, t: int) -> State:
        """What client i begins round t with."""
        own, weights = self.own[i], self.weights[i]
        losses: list[float] = []
        steps = max(1, int(SHARE * self.plan.n_train[i]) // 16)
        while t > 1:
            batches = list(self.plan.batches(i, t, len(losses) + 1, None, steps))
            losses.append(a_pass(self.shared, own, weights, batches, i))
            if t > 2 or (len(losses) > 10 and np.std(losses[-10:]) < 0.1):
                break
        self.passes.append(len(losses))
        return {**self.shared, **{n: own[n] + (self.shared[n] - own[n]) * weights[n] for n in own}}

    def round(self, t: int) -> None:
        models = []
        for i in range(DATA.clients):
            begun = self.start(i, t)
            batches = list(self.plan.batches(i, t, self.passes[-1] + 1, 1, None))
            models.append(descended(begun, DATA, DATA.train[i], [batches], self.s))
            self.own[i] = {name: models[i][name] for name in self.own[i]}
        self.shared = averaged(models, self.plan.n_train)


@pytest.mark.parametrize("top", [HEAD, [*HIDDEN, *HEAD]], ids=["head", "two_layers"])
def test_rounds_are_those_of_the_algorithm(top: list[str], tmp_path: Path) -> None:
    s = setting(rounds=3, window=1, weight_decay=0.01)
    it = trained(method("fedala", rate=RATE, share=SHARE, top=len(top)), DATA, s, tmp_path)
    oracle = Oracle(s, top)
    for t in (1, 2, 3):
        oracle.round(t)
    assert oracle.passes[:4] == [0] * 4
    assert min(oracle.passes[4:8]) > 10
    assert oracle.passes[8:] == [1] * 4
    for name, expected in oracle.shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=2e-3, atol=2e-4)
    for i in range(DATA.clients):
        keeps = it.server.personal[i]
        assert keeps.keys() == {f"{model}/{n}" for model in ("own", "weights") for n in top}
        for n in top:
            torch.testing.assert_close(keeps[f"own/{n}"], oracle.own[i][n], rtol=2e-3, atol=2e-4)
            torch.testing.assert_close(keeps[f"weights/{n}"], oracle.weights[i][n], rtol=2e-3, atol=2e-3)
    learned = torch.cat([w.flatten() for weights in oracle.weights for w in weights.values()])
    assert ((learned > 0.05) & (learned < 0.95)).float().mean() > 0.1
    assert (learned == 1).any()
    assert (learned == 0).any()


def test_a_weight_stays_within_its_bounds_whatever_the_rate(tmp_path: Path) -> None:
    run = train(method("fedala", rate=1e4), DATA, tmp_path)
    weights = [w for name, w in run.tensors.items() if "/weights/" in name]
    assert len(weights) == 2 * DATA.clients
    assert all(((w >= 0) & (w <= 1)).all() for w in weights)
    assert any((w == 0).any() for w in weights)


def test_a_client_answers_with_the_mixture_of_the_new_shared_model(tmp_path: Path) -> None:
    """Before it trains, and below the top with the shared model; learning it again changes nothing that is kept."""
    run = train(method("fedala", rate=RATE), DATA, tmp_path)
    it = run.trainer
    before = {name: t.clone() for name, t in it.server.tensors().items()}
    client = it.answering(it.server, 1, MEMBER, 3)
    it.executor.run([client], it.method.personalise)
    shared, own = it.server.shared, client.received
    for name, t in client.model().items():
        if name in HEAD:
            weights = client.state[f"weights/{name}"]
            expected = own[f"own/{name}"] + (shared[name] - own[f"own/{name}"]) * weights
            torch.testing.assert_close(t, expected, rtol=1e-5, atol=1e-6)
            assert not torch.equal(t, shared[name])
        else:
            assert t is shared[name]
    assert all(torch.equal(t, it.server.tensors()[name]) for name, t in before.items())


# -- what it reduces to ---------------------------------------------------------------------------------------


def test_with_weights_that_stay_at_ones_it_is_fedavg(tmp_path: Path) -> None:
    ours, plain = train(method("fedala", rate=0), DATA, tmp_path / "ours"), train("fedavg", DATA, tmp_path / "plain")
    assert same(ours.shared, plain.shared)
    assert ours.predictions.equals(plain.predictions)
    assert not same(train("fedala", DATA, tmp_path / "learns").shared, plain.shared)


def test_as_feddrm_ran_it_it_is_fedavg_of_half_the_steps_before_averaging(tmp_path: Path) -> None:
    how = method("fedala", weight_steps=5, rate=0, score="after_local")
    ours = train(how, DATA, tmp_path / "ours", setting(steps=10))
    plain = train(Unaveraged(), DATA, tmp_path / "plain", setting(steps=5))
    assert same(ours.shared, plain.shared)
    assert ours.predictions.equals(plain.predictions)
    assert how.relative_compute(setting(steps=10)) == 0.5
    averages = train("fedavg", DATA, tmp_path / "average", setting(steps=5))
    assert not ours.predictions.equals(averages.predictions)


def test_within_a_budget_the_weights_have_their_share_of_the_steps(tmp_path: Path) -> None:
    run = train(method("fedala", weight_steps=2), DATA, tmp_path, setting(steps=5, batch_size=8))
    images_a_round = [line["images"] for line in run.trainer.checkpoint.rounds]
    assert images_a_round == [3 * 8 * DATA.clients, 5 * 8 * DATA.clients, 5 * 8 * DATA.clients]
    assert any((w < 1).any() for name, w in run.tensors.items() if "/weights/" in name)


# -- what it is for -------------------------------------------------------------------------------------------


def test_where_clients_differ_it_answers_better_than_fedavg(tmp_path: Path) -> None:
    skewed = federation((90, 60, 75, 50), skew=0.5)
    s = setting(rounds=8, window=1, epochs=2)
    ours, plain = (train(name, skewed, tmp_path / name, s).accuracy for name in ("fedala", "fedavg"))
    assert ours > plain + 0.1


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("top", 0, "--top of fedala must be at least 1"),
        ("rate", -1.0, "--rate of fedala must be at least 0"),
        ("share", 0.0, "--share of fedala must be above 0 and at most 1"),
        ("share", 1.5, "--share of fedala must be above 0 and at most 1"),
        ("weight_steps", -1, "--weight-steps of fedala must be at least 0"),
        ("score", "before", "--score"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(FedbenchError, match=wanted):
        method("fedala", **{option: value})


def test_steps_of_the_weights_are_some_of_the_settings() -> None:
    for s in (setting(), setting(steps=5)):
        with pytest.raises(FedbenchError, match="--weight-steps of fedala"):
            method("fedala", weight_steps=5).check_setting(s)
