"""ConFREE: rounds of both rules against loops over whole vectors; FedRep where nothing conflicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD
from fedbench.rng import stream
from fedbench.specs import Setting
from tests.support.conflicts_lab import ALPHA, Vectors, projected_pairs, step
from tests.support.lab import federation, method, setting, train
from tests.support.sgd_oracle import State, averaged, images, of, started, trained

DATA = federation()


def phase(state: State, i: int, head: bool, batches: Any, s: Setting) -> State:
    """What the client holds after steps of its head or its body."""
    model = small(norm=True).train()
    model.load_state_dict(state)
    moving = [p for n, p in model.named_parameters() if n.startswith(HEAD) == head]
    optimiser = torch.optim.SGD(moving, s.lr, s.momentum, weight_decay=s.weight_decay)
    for position in batches:
        rows = DATA.train[i][torch.from_numpy(position)]
        optimiser.zero_grad()
        F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return state_of(model)


def rounds(s: Setting, head: int, combined: Callable[[State, list[State], int], State]) -> list[State]:
    """Two rounds of FedRep (`head`: steps of ten or epochs of the head) whose server combines bodies so."""
    plan, models = Plan(s, DATA.n_train, DATA.shape[:2]), [started()] * DATA.clients
    for t in (1, 2):
        before = models[0]
        for i in range(DATA.clients):
            first, rest = ((None, head), (None, 10 - head)) if s.steps else ((head, None), (s.epochs, None))
            models[i] = phase(models[i], i, True, plan.batches(i, t, 1, *first), s)
            models[i] = phase(models[i], i, False, plan.batches(i, t, 2, *rest), s)
        body = {**averaged(models, DATA.n_train), **combined(before, models, t)}
        models = [{n: own[n] if n.startswith(HEAD) else body[n] for n in body} for own in models]
    return models


BODY = sorted(n for n, _ in small(norm=True).named_parameters() if not n.startswith(HEAD))


def moves(before: State, models: list[State], names: list[str]) -> Vectors:
    return np.stack([np.concatenate([(m[n] - before[n]).double().numpy().ravel() for n in names]) for m in models])


def moved(before: State, names: list[str], way: Vectors) -> State:
    """These tensors of the body after a step along `way`."""
    ends = np.cumsum([before[n].numel() for n in names])[:-1]
    parts = zip(names, np.split(way, ends), strict=True)
    return {n: (before[n].double() + torch.from_numpy(part).view(before[n].shape)).float() for n, part in parts}


def test_rounds_of_the_paper(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, weight_decay=0.01)
    it = trained(method("confree", alpha=ALPHA), DATA, s, tmp_path)

    def combined(before: State, models: list[State], t: int) -> State:
        rng, after = stream(s.seed, "order of projections", t), {}
        for name in BODY:  # each by itself, in this order
            order = np.array([rng.permutation([j for j in range(4) if j != i]) for i in range(4)])
            after.update(moved(before, [name], step(moves(before, models, [name]), order)))
        return after

    for i, model in enumerate(rounds(s, 1, combined)):
        for name, expected in model.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=2e-3, atol=3e-4)


def test_rounds_of_feddrms_comparison(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, steps=10, weight_decay=0.01)
    it = trained(method("confree", rule="pairs", head_steps=5), DATA, s, tmp_path)
    conflicts = []

    def combined(before: State, models: list[State], t: int) -> State:
        u = moves(before, models, BODY)
        conflicts.append(int((u @ u.T < 0).sum()))
        return moved(before, BODY, projected_pairs(u, list(DATA.n_train)))

    for i, model in enumerate(rounds(s, 5, combined)):
        for name, expected in model.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=2e-3, atol=2e-4)
    assert max(conflicts) > 0


# -- what it reduces to, and what it is for -------------------------------------------------------------------


@pytest.mark.parametrize("hyperparameters", [{"alpha": 0.0}, {"rule": "pairs"}], ids=str)
def test_a_client_alone_has_no_conflicts_and_it_is_fedrep(hyperparameters: dict[str, Any], tmp_path: Path) -> None:
    alone = federation((120,))
    ours = train(method("confree", **hyperparameters), alone, tmp_path / "ours")
    rep = train(method("fedrep", head_epochs=1, score="after_aggregate"), alone, tmp_path / "rep")
    for name, expected in rep.shared.items():
        np.testing.assert_allclose(ours.shared[name], expected, rtol=1e-4, atol=1e-6)
    assert ours.predictions["own"].equals(rep.predictions["own"])


def test_without_conflicts_pairs_are_averaged_as_in_fedrep(tmp_path: Path) -> None:
    """Clients of one distribution, one round."""
    alike, s = federation((90, 60, 75, 50), skew=float("inf")), setting(rounds=1, window=1, epochs=2)
    ours = train(method("confree", rule="pairs"), alike, tmp_path / "ours", s)
    rep = train(method("fedrep", head_epochs=1, score="after_aggregate"), alike, tmp_path / "rep", s)
    for name, expected in rep.shared.items():
        np.testing.assert_allclose(ours.shared[name], expected, rtol=1e-4, atol=1e-6)
    skewed = train(method("confree", rule="pairs"), DATA, tmp_path / "skewed", s).shared
    apart = train(method("fedrep", head_epochs=1), DATA, tmp_path / "apart", s).shared
    assert any(not np.allclose(skewed[n], apart[n], rtol=1e-3, atol=1e-5) for n in apart), "conflicts change nothing"


@pytest.mark.parametrize("rule", ["worst", "pairs"])
def test_with_labels_apart_it_answers_better_than_a_shared_head(rule: str, tmp_path: Path) -> None:
    skewed = federation((90, 60, 75, 50), skew=0.5)
    s = setting(rounds=8, window=1, epochs=2)
    ours = train(method("confree", rule=rule), skewed, tmp_path / "ours", s).accuracy
    assert ours > train("fedavg", skewed, tmp_path / "plain", s).accuracy + 0.1


def test_the_logged_loss_is_the_mean_of_both_phases(tmp_path: Path) -> None:
    it = train("confree", DATA, tmp_path).trainer
    client = it.client(1, it.server.view(1), 3)
    it.executor.run([client], it.method.local)
    (head, _), (body, _) = client.work.losses
    assert head != body
    assert client.loss == pytest.approx((head + body) / 2)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("rule", "best", "--rule"),
        ("alpha", -0.1, "--alpha of confree must be at least 0"),
        ("head_epochs", -1, "--head-epochs of confree must be at least 0"),
        ("head_steps", -1, "--head-steps of confree must be at least 0"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(FedbenchError, match=wanted):
        method("confree", **{option: value})


def test_steps_of_the_head_are_some_of_the_settings() -> None:
    for s in (setting(), setting(steps=5)):
        with pytest.raises(FedbenchError, match="--head-steps of confree"):
            method("confree", head_steps=5).check_setting(s)
