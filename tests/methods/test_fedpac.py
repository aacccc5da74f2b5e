"""FedPAC: its statistics, its quadratic programme, its update, what it sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbench.core.client import Batch, Client, Collect, Collected, Train, Trained
from fedbench.core.federation import to_input
from fedbench.methods import fedpac
from fedbench.methods.fedpac import COUNT, MEAN, FedPAC
from fedbench.methods.fedpac.combination import LEAST_WEIGHT, combination, statistics
from fedbench.methods.fedpac.simplex import Floats, nearest_to_origin
from fedbench.methods.parts.prototypes import class_means, pooled
from tests.support.lab import drive, federation, same, setting, train, trainer


def solved(b: Floats) -> Floats:
    a = nearest_to_origin(b)
    assert a is not None
    return a


def factor(seed: int, clients: int, rows: int, scale: float = 1.0) -> Floats:
    """A random B [rows, clients]: with fewer rows than clients, B^T B is singular."""
    return scale * np.random.default_rng(seed).normal(0.4, 1.0, (rows, clients))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 12), rows=st.integers(1, 15), power=st.integers(-6, 6))
def test_the_solution_lies_on_the_simplex_and_no_point_of_it_is_lower(
    seed: int, clients: int, rows: int, power: int
) -> None:
    b = factor(seed, clients, rows, 10.0**power)
    a = solved(b)
    assert a.shape == (clients,)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    # f is convex: no point of the simplex lies lower than f(a) by more than this gap between a and the best corner.
    gradient = 2 * b.T @ (b @ a)
    gap = a @ gradient - gradient.min()
    assert gap <= 1e-9 * np.trace(b.T @ b) / clients


def test_independent_variances_are_weighted_by_their_inverses() -> None:
    variances = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(solved(np.diag(np.sqrt(variances))), np.array([4, 2, 1]) / 7, rtol=1e-12)


def test_a_column_of_zeros_takes_all() -> None:
    b = factor(0, 4, 6)
    b[:, 2] = 0
    np.testing.assert_allclose(solved(b), [0, 0, 1, 0], atol=1e-12)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e200])
def test_what_has_no_solution(value: float) -> None:
    b = np.zeros((3, 3))
    b[1, 1] = value
    assert nearest_to_origin(b) is None


def test_a_solver_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", fail)
    assert nearest_to_origin(np.eye(3)) is None


DATA = federation()
D, K = 64, 10
BODY, HEAD = ("backbone.", "projection."), ("head.",)
DONE = Trained(1.0, None, torch.zeros(0), 1, 1)


def features(n: int, classes: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    z = rng.normal(size=(n, D)) + rng.normal(size=(K, D))[y]
    return torch.from_numpy(z.astype(np.float32)), torch.from_numpy(y)


def a_client(how: FedPAC, folder: Path, t: int = 2) -> Client:
    """A client that knows prototypes of the classes 0 to 3."""
    it = trainer(how, DATA, folder)
    client = it.client(1, it.server.view(1), t)
    client.received[MEAN] = torch.randn(K, D, generator=torch.Generator().manual_seed(1))
    client.received[COUNT] = torch.tensor([3.0, 1, 2, 5, 0, 0, 0, 0, 0, 0])
    client.state = dict(client.received)
    return client


# -- formulas -------------------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_the_definition() -> None:
    """V = [sum_k p_k tr E(z z^T | k) - sum_k p_k^2 |mu_k|^2] / n and h_k = p_k mu_k, class by class in numpy."""
    z, y = features(50)
    variance, h = statistics(z, y, K)
    rows, labels = z.double().numpy(), y.numpy()
    expected, total = np.zeros((K, D)), 0.0
    for k in set(labels.tolist()):
        part, p = rows[labels == k], (labels == k).mean()
        mean = part.mean(0)
        expected[k] = p * mean
        total += p * np.trace(part.T @ part / len(part)) - p**2 * (mean @ mean)
    np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-15)
    assert float(variance) == pytest.approx(total / 50, rel=1e-12)


def test_a_single_image_has_no_variance_and_its_client_keeps_its_head() -> None:
    lone = statistics(*features(1), K)
    assert float(lone[0]) == pytest.approx(0, abs=1e-12)
    others = [statistics(*features(60, seed=s), K) for s in (1, 2)]
    v, h = (torch.stack([client[i] for client in (lone, *others)]) for i in (0, 1))
    weights = combination(v, h)
    np.testing.assert_allclose(weights[0], [1, 0, 0], atol=1e-9)


def test_the_combination_solves_the_programme_of_every_client() -> None:
    clients = 6
    told = [statistics(*features(40 + 15 * i, classes=3 + i % 3, seed=i), K) for i in range(clients)]
    v = torch.stack([variance for variance, _ in told])
    h = torch.stack([mean for _, mean in told]) * 0.3  # near enough to one another to share heads
    h[5] = h[0] + 3 * (h[4] - h[0])  # of no use to client 0 beside client 4
    weights = combination(v, h).numpy()
    assert ((weights > LEAST_WEIGHT) | (weights == 0)).all()
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
    assert (weights > 0).sum() > clients, "nobody shares"
    assert weights[0, 5] == 0
    for i in range(clients):
        q = np.diag(v.numpy()).copy()
        for j in range(clients):
            for other in range(clients):
                for k in range(K):
                    q[j, other] += float((h[i, k] - h[j, k]) @ (h[i, k] - h[other, k]))
        q /= np.trace(q)
        found = minimize(
            lambda a, q=q: a @ q @ a,
            np.full(clients, 1 / clients),
            jac=lambda a, q=q: 2 * q @ a,
            bounds=[(0, 1)] * clients,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(clients)},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        assert found.success
        expected = np.where(found.x > LEAST_WEIGHT, found.x, 0)
        np.testing.assert_allclose(weights[i], expected / expected.sum(), atol=1e-3)


def test_small_weights_are_dropped() -> None:
    """Clients with the same features: weights go as 1 / V, here 1 / 1.0005 and less than 1e-3 of it."""
    v, h = torch.tensor([1.0, 2000.0, 1.0]), torch.zeros(3, K, D)
    np.testing.assert_allclose(combination(v, h), [[0.5, 0, 0.5]] * 3, atol=1e-12)


@pytest.mark.parametrize(
    ("v", "shift"), [([0.0, 0.0], 0.0), ([float("nan"), 1.0], 0.0), ([1.0, 1.0], float("nan"))], ids=str
)
def test_without_a_solution_everybody_keeps_the_own_head(v: list[float], shift: float) -> None:
    assert torch.equal(combination(torch.tensor(v), torch.full((2, K, D), shift)), torch.eye(2, dtype=torch.float64))


def test_pooled_means_are_the_means_of_all_rows_together() -> None:
    parts = [features(30, seed=1), features(7, classes=2, seed=2)]
    means = torch.stack([class_means(z, y, K) for z, y in parts])
    counts = torch.stack([torch.bincount(y, minlength=K) for _, y in parts])
    mean, count = pooled(means, counts)
    z, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    for k in range(K):
        expected = z[y == k].double().mean(0) if (y == k).any() else torch.zeros(D)
        torch.testing.assert_close(mean[k], expected, check_dtype=False)
    assert count.tolist() == torch.bincount(y, minlength=K).tolist()


def test_the_loss_and_its_gradient(tmp_path: Path) -> None:
    it = trainer(FedPAC(lambda_=0.7), DATA, tmp_path)
    model: Any = it.executor.worker.load(it.server.initial)  # type: ignore[attr-defined]
    rows = DATA.train[1][:9]
    x, y = to_input(DATA.images[rows]), DATA.labels[rows]
    prototypes = torch.randn(K, D, generator=torch.Generator().manual_seed(3))
    how: Any = it.method
    loss = how.loss(model, Batch(x, y, torch.arange(9), {"prototypes": prototypes}))
    z = model.features(x)
    logits, distance = (z @ model.head.weight.T + model.head.bias), z - torch.stack([prototypes[k] for k in y])
    expected = -torch.stack([(row - row.logsumexp(0))[k] for row, k in zip(logits, y, strict=True)]).mean()
    expected = expected + 0.7 * (distance**2).sum() / (9 * D)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    parameters = [p.requires_grad_() for p in model.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(e, parameters) for e in (loss.total, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


# -- the client update
# --------------------------------------------------------------------------------------------------


def test_the_update_asks_for_statistics_head_body_and_prototypes(tmp_path: Path) -> None:
    client = a_client(FedPAC(), tmp_path)
    before, after = features(40), features(40, seed=9)
    requests = drive(FedPAC().local(client), Collected(*before), DONE, DONE, Collected(*after))
    assert [type(r) for r in requests] == [Collect, Train, Train, Collect]
    _, head, body, _ = requests
    assert (head.trains, head.epochs, head.lr) == (HEAD, 1, 0.1)
    assert (body.trains, body.epochs, body.lr) == (BODY, None, None)
    # Classes 0 to 3 are known; 4 and 5 are this client's alone.
    own = class_means(*before, K).float()
    assert torch.equal(body.extras["prototypes"][:4], client.received[MEAN][:4])
    assert torch.equal(body.extras["prototypes"][4:], own[4:])
    assert own[4:6].abs().sum() > 0
    variance, h = statistics(*before, K)
    torch.testing.assert_close(client.upload.variance, variance.float())
    torch.testing.assert_close(client.upload.h, h.float())
    torch.testing.assert_close(client.state[MEAN], class_means(*after, K).float())
    assert torch.equal(client.state[COUNT], DATA.class_counts[1])
    # There is no distance before there are prototypes.
    client.received[COUNT] = torch.zeros(K)
    _, _, first, _ = drive(FedPAC().local(client), Collected(*before), DONE, DONE)
    assert (first.loss, dict(first.extras)) == (fedpac.cross_entropy, {})


def test_prototypes_and_heads_after_a_round(tmp_path: Path) -> None:
    """Two rounds in which some take part: everything that the server makes of what the clients held."""
    held: dict[int, list[Client]] = {}

    class Spy(FedPAC):
        def aggregate(self, server: Any, cohort: Any, t: int) -> None:
            held[t] = list(cohort)
            super().aggregate(server, cohort, t)

    s = setting(rounds=3, participation=0.6, seed=3)
    run = train(Spy(score="after_aggregate"), DATA, tmp_path, s)
    assert {len(cohort) for cohort in held.values()} != {4}, "everybody always takes part"
    server, cohort = run.trainer.server, held[max(held)]
    model: Any = run.trainer.executor.worker.model  # type: ignore[attr-defined]
    share = np.array([c.n_train for c in cohort]) / sum(c.n_train for c in cohort)
    z, y = [], []
    for c in cohort:
        rows = DATA.train[c.index]
        model.load_state_dict({n: t for n, t in c.state.items() if not n.startswith("prototypes.")})
        with torch.no_grad():
            z.append(model.eval().features(to_input(DATA.images[rows])))
        y.append(DATA.labels[rows])
    rows, labels = torch.cat(z), torch.cat(y)
    for k in range(K):
        expected = rows[labels == k].mean(0) if (labels == k).any() else torch.zeros(D)
        torch.testing.assert_close(server.shared[MEAN][k], expected, rtol=1e-4, atol=1e-5)
    assert server.shared[COUNT].tolist() == torch.bincount(labels, minlength=K).tolist()
    weights = combination(*(torch.stack([getattr(c.upload, key) for c in cohort]) for key in ("variance", "h")))
    for name in ("head.weight", "head.bias"):
        heads = [c.state[name].double() for c in cohort]
        for i, c in enumerate(cohort):
            mixed = sum(float(w) * head for w, head in zip(weights[i], heads, strict=True))
            torch.testing.assert_close(server.memory.of[c.index][name].double(), mixed, rtol=1e-5, atol=1e-6)
        mean = sum(float(p) * head for p, head in zip(share, heads, strict=True))
        torch.testing.assert_close(server.shared[name].double(), mean, rtol=1e-5, atol=1e-6)
    body = sum(float(p) * c.state["backbone.0.weight"].double() for p, c in zip(share, cohort, strict=True))
    torch.testing.assert_close(server.shared["backbone.0.weight"].double(), body, rtol=1e-5, atol=1e-6)


def test_the_statistics_are_those_of_the_received_body(tmp_path: Path) -> None:
    it = trainer(FedPAC(), DATA, tmp_path)
    client = it.client(2, it.server.view(2), 1)
    it.executor.run([client], it.method.local)
    model: Any = it.executor.worker.load(it.server.initial).eval()  # type: ignore[attr-defined]
    with torch.no_grad():
        z = model.features(to_input(DATA.images[DATA.train[2]]))
    variance, h = statistics(z, DATA.labels[DATA.train[2]], K)
    torch.testing.assert_close(client.upload.h, h.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.upload.variance, variance.float(), rtol=1e-4, atol=1e-7)


# -- what it reduces to ---------------------------------------------------------------------------------------


def test_the_last_round_combines_heads_only_if_they_answer(tmp_path: Path) -> None:
    runs = [train(FedPAC(score=s), DATA, tmp_path / s) for s in ("after_local", "after_aggregate")]
    assert same(runs[0].shared, runs[1].shared), "the rounds before combine in both"
    heads = [run.trainer.server.memory.of[1]["head.weight"] for run in runs]
    assert not torch.equal(*heads)


# -- what is sent, and newcomers ------------------------------------------------------------------------------


def test_bytes_sent(tmp_path: Path) -> None:
    it = train(FedPAC(), DATA, tmp_path).trainer
    body = sum(t.numel() for n, t in it.server.initial.items() if n.startswith(BODY))
    common = body + K * (D + 1) + K * D + K  # body, head, prototypes and their counts
    up, down = 4 * (common + K * D + 1), 4 * common  # up: h and V beside
    lines = [(line["bytes_up"], line["bytes_down"]) for line in it.checkpoint.rounds]
    assert lines == [(DATA.clients * up, DATA.clients * down)] * 3


# -- bad input ------------------------------------------------------------------------------------------------
