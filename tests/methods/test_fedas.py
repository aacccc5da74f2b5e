"""FedAS: FedPer without its two parts; both of its alignments and its weights against plain loops."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedbench.conformance import agreement
from fedbench.conformance.lab import Recorder
from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.core.who import MEMBER
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD
from fedbench.methods.fedas import Information
from fedbench.specs import Setting
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import State, averaged, descended, images, of, started, trained

DATA = federation()
AS_RUN: dict[str, Any] = {"align_steps": 2, "weigh_by": "size", "score": "after_aggregate"}


def network(state: State) -> Any:
    model: Any = small(norm=True)
    model.load_state_dict(state)
    return model


def to_means(shared: State, own: State, i: int, batches: Iterable[Any], s: Setting) -> State:
    """The shared body after plain steps towards the client's own class means, a class and an image at a time."""
    x, y, model = images(DATA, DATA.train[i]), DATA.labels[DATA.train[i]], network(shared).train()
    with torch.no_grad():
        z = network(own).eval().features(x)
    means = {k: z[y == k].mean(0) for k in y.tolist()}
    body = [p for n, p in model.named_parameters() if not n.startswith(HEAD)]
    for position in batches:
        f = model.features(x[position])
        total = torch.zeros(())
        for k in sorted(set(y[position].tolist())):
            squares = [(f[b] - means[k]).square().mean() for b in range(len(f)) if y[position][b] == k]
            total = total + sum(squares) / len(squares)
        for p, g in zip(body, torch.autograd.grad(total, body), strict=True):
            p.data -= 0.03 * (g + s.weight_decay * p.data)
    return state_of(model)


def to_previous(received: State, previous: State, i: int, batches: Iterable[Any], s: Setting) -> State:
    """What the client holds after steps that bring its backbone's features to those of its previous model."""
    x, model, old = images(DATA, DATA.train[i]), network(received).train(), network(previous).train()
    optimiser = torch.optim.SGD(model.backbone.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
    for position in batches:
        with torch.no_grad():
            target = old.backbone(x[position])
        optimiser.zero_grad()
        ((model.backbone(x[position]) - target) ** 2).mean().backward()
        optimiser.step()
    return state_of(model)


def information(state: State, i: int, size: int) -> float:
    """The squared norms of the gradients of consecutive batches, summed."""
    model = network(state).train()
    total = 0.0
    for rows in DATA.train[i].split(size):
        model.zero_grad()
        F.cross_entropy(model(images(DATA, rows)), DATA.labels[rows]).backward()  # type: ignore[no-untyped-call]
        total += sum(float((p.grad**2).sum()) for p in model.parameters())
    return total


def joined(body: State, head: State) -> State:
    return {n: (head if n.startswith(HEAD) else body)[n] for n in body}


def test_rounds_are_those_of_the_paper(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, weight_decay=0.01)
    it = trained(method("fedas", align_lr=0.03), DATA, s, tmp_path)
    plan, shared, own = Plan(s, DATA.n_train, DATA.shape[:2]), started(), [started()] * DATA.clients
    for t in (1, 2):
        for i in range(DATA.clients):
            aligned = to_means(joined(shared, own[i]), own[i], i, plan.batches(i, t, 1, 1, None), s)
            own[i] = descended(aligned, DATA, DATA.train[i], [list(plan.batches(i, t, 2, 1, None))], s)
        weights = [information(own[i], i, s.batch_size) for i in range(DATA.clients)]
        shared = averaged(own, weights)  # type: ignore[arg-type]
    assert max(weights) > 1.5 * min(weights)
    for name, expected in shared.items():
        if not name.startswith(HEAD):
            torch.testing.assert_close(it.server.shared[name], expected, rtol=2e-3, atol=2e-4)
    for i in range(DATA.clients):
        for name, expected in own[i].items():
            torch.testing.assert_close(it.server.personal[i][f"previous/{name}"], expected, rtol=2e-3, atol=2e-4)


def test_rounds_are_those_of_feddrms_comparison(tmp_path: Path) -> None:
    s = setting(rounds=3, window=1, steps=5, weight_decay=0.01)
    it = trained(method("fedas", **AS_RUN), DATA, s, tmp_path)
    plan, models = Plan(s, DATA.n_train, DATA.shape[:2]), [started()] * DATA.clients
    previous = list(models)
    for t in (1, 2, 3):
        for i in range(DATA.clients):
            aligned = to_previous(models[i], previous[i], i, plan.batches(i, t, 1, None, 2), s)
            assert all(torch.equal(aligned[n], models[i][n]) for n in models[i] if n.startswith(HEAD))
            previous[i] = descended(aligned, DATA, DATA.train[i], [list(plan.batches(i, t, 2, None, 3))], s)
        mean = averaged(previous, DATA.n_train)
        models = [joined(mean, own) for own in previous]
    for i in range(DATA.clients):
        for name, expected in models[i].items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("way", ["cores", "stacked", "graphed"])
def test_feddrms_alignment_is_the_same_by_all_executors(way: str, tmp_path: Path) -> None:
    """Steps are not in the common comparison of executors, so two models in one loss are not."""
    s = setting(steps=5, augment="crop")
    ours, reference = (
        train(method("fedas", **AS_RUN), DATA, tmp_path / w, s, executor=w, plan=Recorder) for w in (way, "sequential")
    )
    agreement.compare(ours, reference, f"by {way}", exact=way == "cores")


def test_in_the_first_round_the_alignment_has_nothing_to_do(tmp_path: Path) -> None:
    """Previous and shared model are one: without weight decay the backbone stays where it is, to the bit."""
    s = setting(rounds=1, window=1, steps=5, weight_decay=0.0)
    it = train(method("fedas", **AS_RUN), DATA, tmp_path, s).trainer
    client = it.client(1, dict(it.server.initial), 1)
    update = method("fedas", **AS_RUN).local(client)
    it.executor.run([client], lambda c: (next(update) for _ in range(1)))
    assert client.work.losses == [(0.0, 2 * s.batch_size)]
    assert all(torch.equal(t, it.server.initial[n]) for n, t in client.state.items())


# -- what answers, and what counts ------------------------------------------------------------------------------


def test_what_answers_for_a_client_is_its_own_model_also_when_it_was_away(tmp_path: Path) -> None:
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


def test_clients_count_by_their_information(tmp_path: Path) -> None:
    it = train("fedas", DATA, tmp_path).trainer
    cohort = [it.client(i, dict(it.server.initial), 3) for i in range(3)]
    for k, c in enumerate(cohort):
        c.state = {n: torch.full_like(t, float(k)) for n, t in c.state.items()}
    for c, trace in zip(cohort, (1.0, 0.0, 3.0), strict=True):
        c.upload = Information(trace)
    it.method.aggregate(it.server, cohort, 3)
    assert all((t == 1.5).all() for t in it.server.shared.values() if t.is_floating_point())
    for c in cohort:
        c.upload = Information(0.0)  # nothing to go by
    it.method.aggregate(it.server, cohort, 3)
    mean = (DATA.n_train[1] + 2 * DATA.n_train[2]) / sum(DATA.n_train[:3])
    assert it.server.shared["backbone.0.bias"].tolist() == pytest.approx(
        [mean] * len(it.server.shared["backbone.0.bias"])
    )


@pytest.mark.parametrize("score", ["after_local", "after_aggregate"])
def test_without_alignment_and_by_sizes_it_is_fedper(score: str, tmp_path: Path) -> None:
    hyperparameters: dict[str, Any] = {"align_epochs": 0, "weigh_by": "size", "score": score}
    ours = train(method("fedas", **hyperparameters), DATA, tmp_path / "ours")
    plain = train(method("fedper", score=score), DATA, tmp_path / "plain")
    assert same(ours.shared, plain.shared)
    assert ours.predictions.equals(plain.predictions)
    for change in ({"align_epochs": 1}, {"weigh_by": "fisher"}):
        other = train(method("fedas", **{**hyperparameters, **change}), DATA, tmp_path / str(change))
        assert not same(other.shared, plain.shared)


def test_with_labels_apart_it_answers_better_than_a_shared_head(tmp_path: Path) -> None:
    skewed = federation((90, 60, 75, 50), skew=0.5)
    s = setting(rounds=8, window=1, epochs=2)
    ours, plain = (train(name, skewed, tmp_path / name, s).accuracy for name in ("fedas", "fedavg"))
    assert ours > plain + 0.1


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("align_epochs", -1, "--align-epochs of fedas must be at least 0"),
        ("align_lr", 0.0, "--align-lr of fedas must be above 0"),
        ("align_steps", -1, "--align-steps of fedas must be at least 0"),
        ("weigh_by", "loss", "--weigh-by"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(FedbenchError, match=wanted):
        method("fedas", **{option: value})


def test_steps_of_the_alignment_are_some_of_the_settings() -> None:
    for s in (setting(), setting(steps=2)):
        with pytest.raises(FedbenchError, match="--align-steps of fedas"):
            method("fedas", **AS_RUN).check_setting(s)
    assert method("fedas", **AS_RUN).relative_compute(setting(steps=10)) == pytest.approx((2 * 4 / 3 + 8) / 10)
