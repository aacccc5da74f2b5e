"""FedALA, FedAS and ConFREE: how a client's model is brought to the shared one, and updates to one another."""

from __future__ import annotations

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

from fedbench.core.client import MEMBER
from fedbench.core.state import state_of
from fedbench.methods.base import HEAD
from fedbench.methods.confree.conflicts import guidance, orders, pairs, worst
from fedbench.methods.fedala.entrywise import CALM, LAST, MOST_PASSES, Projected, mixture, settled
from fedbench.methods.fedas import Information
from fedbench.rng import stream
from fedbench.specs import Setting
from tests.support.formula_lab import PARAMETERS, ByHand, State, averaged, close, images, network, of, started, trained
from tests.support.lab import federation, method, setting, train

DATA = federation()
N = DATA.n_train


def head(name: str) -> bool:
    return name.startswith(HEAD)


def joined(body: State, top: State) -> State:
    return {n: (top if head(n) else body)[n] for n in body}


# -- FedALA ---------------------------------------------------------------------------------------------------

RATE, SHARE = 20.0, 0.6
TOP = ["head.weight", "head.bias"]
TWO_LAYERS = ["backbone.hidden.weight", "backbone.hidden.bias", *TOP]


def test_weights_go_from_the_clients_own_model_to_the_shared_one() -> None:
    own, shared = {"w": torch.tensor([1.0, 2.0, 3.0])}, {"w": torch.tensor([5.0, 6.0, 7.0]), "below": torch.ones(2)}
    mixed = mixture(own, shared, {"w": torch.tensor([0.0, 0.25, 1.0])})
    assert {n: t.tolist() for n, t in mixed.items()} == {"w": [1.0, 3.0, 7.0]}


def test_a_plain_step_of_rate_one_along_the_direction_is_the_projected_step() -> None:
    """Weight decay, which the optimiser adds, included."""
    w, g, decay = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([1.0, 0.05, -1.0]), 0.1
    direction = Projected(2.0, decay).direction({"w": w}, {"w": g}, {})["w"]
    torch.testing.assert_close(w - (direction + decay * w), torch.tensor([0.0, 0.4, 1.0]))


def test_learning_ends_when_the_last_losses_lie_close_together_and_in_any_case() -> None:
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
    """Before it trains, and below the top with the shared model; learning it again changes nothing that is kept."""
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


def test_within_a_budget_the_weights_have_their_share_of_the_steps(tmp_path: Path) -> None:
    run = train(method("fedala", weight_steps=2), DATA, tmp_path, setting(rounds=2, steps=5, batch_size=8))
    assert [line["images"] for line in run.trainer.checkpoint.rounds] == [3 * 8 * DATA.clients, 5 * 8 * DATA.clients]
    assert any((w < 1).any() for name, w in run.tensors.items() if "/weights/" in name)
    assert method("fedala", weight_steps=5, rate=0).relative_compute(setting(steps=10)) == 0.5


# -- FedAS ----------------------------------------------------------------------------------------------------

AS_RUN: dict[str, Any] = {"align_steps": 2, "weigh_by": "size", "score": "after_aggregate"}


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
    it, run = trained(method("fedas", **AS_RUN), DATA, s, tmp_path), ByHand(DATA, s)
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


def test_what_answers_for_a_client_of_fedas_also_when_it_was_away(tmp_path: Path) -> None:
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


def test_clients_of_fedas_count_by_their_information(tmp_path: Path) -> None:
    it = train("fedas", DATA, tmp_path, setting(rounds=1, window=1)).trainer
    cohort = [it.client(i, dict(it.server.initial), 3) for i in range(3)]
    by_size = (N[1] + 2 * N[2]) / sum(N[:3])  # where there is nothing to go by
    for traces, mean in (((1.0, 0.0, 3.0), 1.5), ((0.0, 0.0, 0.0), by_size)):
        for k, c in enumerate(cohort):
            c.state = {n: torch.full_like(t, float(k)) for n, t in c.state.items()}
            c.upload = Information(traces[k])
        it.method.aggregate(it.server, cohort, 3)
        for t in it.server.shared.values():
            torch.testing.assert_close(t, torch.full_like(t, mean))


# -- ConFREE's combinations, by loops over whole updates ------------------------------------------------------

Vectors = npt.NDArray[np.float64]
ALPHA, SIZES = 0.4, [30, 10, 25, 35, 20]


def updates(seed: int = 0) -> Vectors:
    """Updates [5, 12] of which many conflict."""
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
    constraints: Any = [
        {
            "type": "ineq",
            "fun": lambda v: gains @ (centre + v[1:]) - v[0],
            "jac": lambda v: np.hstack([-np.ones((len(u), 1)), gains]),
        },
        {"type": "ineq", "fun": lambda v: alpha**2 - v[1:] @ v[1:], "jac": lambda v: np.append(0, -2 * v[1:])},
    ]
    best: Any = minimize(  # type: ignore[call-overload]
        lambda v: -float(v[0]),  # v: the worst gain, and the way from c, in units of |c|
        np.zeros(1 + len(centre)),
        jac=lambda v: np.append(-1.0, 0 * v[1:]),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 2000},
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


def test_of_two_in_conflict_neither_keeps_what_is_against_the_other() -> None:
    u = np.array([[1.0, 0.0], [-1.0, 2.0]])
    first, second = (pairs(u @ u.T, sizes) @ u for sizes in ([1, 0], [0, 1]))
    np.testing.assert_allclose([first @ u[1], second @ u[0]], 0, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_the_step_is_the_best_for_the_worst_client_near_the_guidance_vector(seed: int, scale: float) -> None:
    u, order = scale * updates(seed), orders(np.random.default_rng(seed), 5)
    ours, expected = worst(u @ u.T, order, ALPHA) @ u, step(u, order)
    np.testing.assert_allclose(ours, expected, atol=2e-3 * float(np.abs(expected).max()))
    centre = guide(u, order) / (1 + ALPHA**2)
    assert (u @ ours).min() > (u @ centre).min()
    assert np.linalg.norm(ours - centre) == pytest.approx(ALPHA * np.linalg.norm(centre), rel=1e-3)


def test_one_client_and_clients_that_have_not_moved() -> None:
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
