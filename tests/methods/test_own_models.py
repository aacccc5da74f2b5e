"""APFL, Ditto, pFedMe, FedRoD, MR-MTL and FLUX's APFL: something of a client's own beside the shared network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.answers import Heads
from fedbench.core.state import state_of
from tests.support.formula_lab import (
    PARAMETERS,
    ByHand,
    State,
    answered,
    averaged,
    close,
    images,
    network,
    of,
    sent,
    started,
    trained,
)
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import federation, method, same, setting, train

DATA = federation((40, 30, 26), skew=1.0)
NAMES = ("apfl", "ditto", "pfedme", "fedrod")
every = pytest.mark.parametrize("name", NAMES)

# -- rounds by hand: (run, client, round, received, own) -> (sent, own) ---------------------------------------

DROPPED = setting(rounds=2, epochs=2, lr=0.1, momentum=0.5, weight_decay=1e-2, tail="drop", window=1)


def sgd(*parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, DROPPED.lr, DROPPED.momentum, weight_decay=DROPPED.weight_decay)


def apfl(run: ByHand, i: int, t: int, w: State, v: State) -> tuple[State, State]:
    shared, own = network(w), network(v)
    steps = sgd(*shared.parameters(), *own.parameters())
    for rows in run.batches(i, t):
        x, y = images(DATA, rows), DATA.labels[rows]
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
    bias = (torch.bincount(DATA.labels[DATA.train[i]], minlength=10).double() + 1e-12).log().float()
    steps = sgd(*model.parameters(), *own.values())
    for rows in run.batches(i, t):
        z, y = model.features(images(DATA, rows)), DATA.labels[rows]
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
    it, run = trained(method(name, **chosen), DATA, DROPPED, tmp_path), ByHand(DATA, DROPPED)
    start = started()
    head = {n: torch.zeros_like(start[f"head.{n}"]) for n in ("weight", "bias")}
    own, prefix = [head if name == "fedrod" else start] * 3, "personal_head." if name == "fedrod" else "own/"

    def local(i: int, t: int, w: State) -> State:
        sent, own[i] = step(run, i, t, w, own[i])
        return sent

    w = run.rounds(local)
    close(of(it.server.shared), w, 1e-3, 2e-5)
    last = it.checkpoint.read_predictions().to_pandas()
    for i in range(3):
        close({n: it.server.personal[i][prefix + n] for n in own[i]}, own[i], 1e-3, 2e-5)
        x = images(DATA, DATA.test[i])
        ours = answer(w, own[i], x)
        assert last[last["client"] == i]["own"].tolist() == ours.argmax(1).tolist()
        others = [scores(w, x), *(answer(w, own[j], x) for j in range(3) if j != i)]
        assert all((one - ours).abs().max() > 1e-2 for one in others)


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
