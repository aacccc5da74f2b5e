"""Methods that part body from head: FedBABU, FedPer, FedRep, LG-FedAvg; FedDRM: its loss by hand, its routing rules,
and that the router finds the client; FedPAC: its statistics, its quadratic programme, its update, what it sends."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedbench.core.client import MEMBER, UNSEEN, Batch, Client, Collect, Collected, Train, Trained
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.simulation import PERSONALISING
from fedbench.methods import fedpac
from fedbench.methods.base import Method
from fedbench.methods.feddrm import FedDRM
from fedbench.methods.parts.prototypes import class_means, pooled
from tests.support.formula_lab import ByHand, averaged, class_features, close, head, of, sent, size, started, trained
from tests.support.frames import SEEDS, few
from tests.support.lab import digits, drive, federation, method, same, setting, train, trainer

DATA = federation()
TWO = setting(rounds=2, window=1, epochs=2)


def body(name: str) -> bool:
    return not head(name)


Part = Callable[[str], bool]


@pytest.mark.parametrize(
    ("name", "passes", "stays"),
    [
        ("fedper", [(lambda name: True, None)], head),
        ("fedrep", [(head, 5), (body, None)], head),
        ("lg_fedavg", [(lambda name: True, None)], body),
        ("fedbabu", [(body, None)], lambda name: False),
    ],
)
def test_rounds_by_hand(name: str, passes: list[tuple[Part, int | None]], stays: Part, tmp_path: Path) -> None:
    """What is averaged under what stays, after passes over what trains for so many epochs; only the first is sent."""
    chosen = {"finetune_epochs": 0} if name == "fedbabu" else {}
    it, run, models = trained(method(name, **chosen), DATA, TWO, tmp_path), ByHand(DATA, TWO), [started()] * 4
    for t in (1, 2):
        for i in range(DATA.clients):
            for request, (moves, epochs) in enumerate(passes, 1):
                models[i] = run.descended(models[i], run.batches(i, t, request, epochs), moves=moves)
        mean = averaged(models, DATA.n_train)
        models = [{n: own[n] if stays(n) else mean[n] for n in own} for own in models]
    for i, model in enumerate(models):
        close(of(it.server.view(i)), model)
        assert it.server.personal.get(i, {}).keys() == {n for n in model if stays(n)}
    if name == "fedbabu":
        assert all(torch.equal(t, it.server.initial[n]) for n, t in it.server.shared.items() if head(n))
    else:
        assert it.server.shared.keys() == {n for n in started() if not stays(n)}
    shared = DATA.clients * size(it.server, body if name == "fedbabu" else lambda n: not stays(n))
    assert sent(it) == [(shared, shared)] * 2


def test_fedbabu_tunes_its_head_for_the_answers_of_the_last_round(tmp_path: Path) -> None:
    it, run = trained(method("fedbabu"), DATA, TWO, tmp_path), ByHand(DATA, TWO)
    before = it.server.view(2)
    client = it.answering(it.server, 2, MEMBER, TWO.rounds)
    it.executor.run([client], it.method.personalise)
    close(of(client.state), run.descended(before, run.batches(2, 2, PERSONALISING + 1, 5), moves=head))
    assert not torch.equal(client.state["head.bias"], before["head.bias"])


@pytest.mark.parametrize(("name", "epochs"), [("fedbabu", "finetune_epochs"), ("fedpac", "newcomer_epochs")])
@pytest.mark.parametrize(("newcomers", "trains"), [("head", ("head.",)), ("all", ("",))])
def test_what_an_unseen_client_tunes(
    name: str, epochs: str, newcomers: str, trains: tuple[str, ...], tmp_path: Path
) -> None:
    it = trainer(method(name, **{"newcomers": newcomers, epochs: 4}), DATA, tmp_path)
    client = it.answering(it.server, 1, UNSEEN, 3)
    assert all(client.state[n] is t for n, t in it.server.initial.items())
    (request,) = it.method.personalise(client) or ()
    assert isinstance(request, Train)
    assert (request.trains, request.epochs, request.lr) == (trains, 4, None)
    assert list(it.method.personalise(it.answering(it.server, 1, UNSEEN, 2)) or ()) == []


def requests(how: Method, folder: Path) -> list[Train]:
    """What a client asks for in a round of five steps, nothing of it done."""
    it = trainer(how, DATA, folder, setting(steps=5))
    update = how.local(it.client(1, it.server.view(1), 1))
    assert update is not None
    return [request for request in update if isinstance(request, Train)]


def test_local_steps_are_shared_out(tmp_path: Path) -> None:
    rep = [(r.trains, r.steps, r.epochs, r.prox) for r in requests(method("fedrep", head_steps=2, mu=0.3), tmp_path)]
    assert rep == [(("head.",), 2, None, 0.0), (("backbone.", "projection."), 3, None, 0.3)]
    ditto = [(r.steps, r.epochs, r.prox) for r in requests(method("ditto", personal_steps=2), tmp_path)]
    assert ditto == [(3, None, 0.0), (2, None, 1.0)]
    near, free = (
        train(method("fedrep", head_steps=2, mu=mu), DATA, tmp_path / str(mu), setting(rounds=1, window=1, steps=5))
        for mu in (20.0, 0.0)
    )
    start = near.trainer.server.initial
    moved = [sum(np.square(v - start[n].numpy()).sum() for n, v in r.shared.items()) for r in (near, free)]
    assert moved[0] < moved[1], "the proximal term holds the body back"


THREE = federation((90, 40, 60))


#: Short ones, or the branch drifts to its host.
VISITS = setting(rounds=4, window=1, steps=2, lr=0.1, weight_decay=0.0)


def shifted() -> Federation:
    """Three clients of unlike sizes with all classes; each sees the digits in its own way (a covariate shift)."""
    images, labels = digits()
    rows = np.random.default_rng(5).permutation(len(labels))[:420]
    client = np.repeat(np.arange(3), [240, 120, 60])
    is_test = np.concatenate([np.arange(n) >= 0.7 * n for n in (240, 120, 60)])
    x = images[rows].copy()
    x[client == 1] = 255 - x[client == 1]
    x[client == 2] = x[client == 2] // 4 + 96
    return Federation.of(x, labels[rows], client, rows, is_test, 10)


@pytest.mark.parametrize("share", [0.8, 0.3, 1.0])
def test_the_loss_by_hand(share: float, tmp_path: Path) -> None:
    how = FedDRM(lambda_=share)
    it = trainer(how, THREE, tmp_path)
    model: Any = it.executor.worker.load(it.server.initial)  # type: ignore[attr-defined]
    x, y = to_input(THREE.images[:12]), THREE.labels[:12]
    with torch.no_grad():
        loss = how.loss(model, Batch(x, y, torch.arange(len(y)), {"client": torch.tensor(2)}))
        h = model.backbone(x).double().numpy()
        target = h @ model.head.weight.double().numpy().T + model.head.bias.double().numpy()
        branch = model.client_branch.head
        client = h @ branch.weight.double().numpy().T + branch.bias.double().numpy()

    def cross_entropy(logits: np.ndarray, wanted: np.ndarray) -> float:
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(-log_p[np.arange(len(logits)), wanted].mean())

    first, second = cross_entropy(target, y.numpy()), cross_entropy(client, np.full(12, 2))
    assert loss.total.item() == pytest.approx(share * first + (1 - share) * second, rel=1e-5)
    assert loss.logged is not None
    assert loss.logged.item() == pytest.approx(first, rel=1e-5)
    assert loss.collected is None


def test_each_client_names_itself(tmp_path: Path) -> None:
    it = trainer(FedDRM(), THREE, tmp_path)
    for i in range(3):
        update = it.method.local(it.client(i, it.server.view(i), 1))
        assert update is not None
        (request,) = list(update)
        assert isinstance(request, Train)
        assert int(request.extras["client"]) == i
        assert request.trains == ("",)
        assert request.steps is request.epochs is request.lr is None


def test_only_the_last_target_layer_stays_with_its_client_and_routes_are_those_of_single_images(tmp_path: Path) -> None:
    run = train("feddrm", shifted(), tmp_path, VISITS)
    server = run.trainer.server
    assert {name for state in server.personal.values() for name in state} == {"head.weight", "head.bias"}
    assert "client_branch.head.weight" in server.shared
    assert server.shared["client_branch.head.weight"].shape == (3, 64)
    body = sum(t.numel() for t in server.shared.values())
    assert server.initial["head.weight"].numel() == 640
    assert sent(run) == [(3 * 4 * body,) * 2] * 4
    it = run.trainer
    data = it.federation
    model = copy.deepcopy(it.executor.worker.model)  # type: ignore[attr-defined]
    model.load_state_dict(it.server.view(1))
    share = np.log(np.array(data.n_train) / sum(data.n_train))
    table = run.predictions
    rows = torch.cat(list(data.test))
    for k in range(0, len(rows), 7):
        with torch.no_grad():
            logits = model.client_branch(model.backbone(to_input(data.images[rows[k : k + 1]])))[0].double().numpy()
        assert table["route_probability"][k].as_py() == logits.argmax()
        assert table["route_density_ratio"][k].as_py() == (logits - share).argmax()


@pytest.mark.slow
def test_the_router_finds_the_client_of_an_image(tmp_path: Path) -> None:
    """Always naming the largest client would be right for 57 % of the images."""
    table = train("feddrm", shifted(), tmp_path, dataclasses.replace(VISITS, rounds=100)).predictions.to_pandas()
    found = {
        rule: (table[f"route_{rule}"] == table["client"]).groupby(table["client"]).mean()
        for rule in ("probability", "density_ratio")
    }
    assert (table["route_probability"] == table["client"]).mean() > 0.8
    # The shares pull towards the large clients, and the ratio takes them out: the smallest gains by it.
    assert found["density_ratio"].min() > 0.9
    assert found["probability"][2] < found["density_ratio"][2]
    assert found["probability"][0] >= found["density_ratio"][0]
    # The client found answers about as well as the owner, and far better than chance.
    votes = np.array(table["votes"].tolist())
    routed = votes[np.arange(len(votes)), table["route_density_ratio"]]
    assert (routed == table["label"]).mean() > 0.6


def solved(b: fedpac.Floats) -> fedpac.Floats:
    a = fedpac.nearest_to_origin(b)
    assert a is not None
    return a


@few(seed=SEEDS, clients=st.integers(1, 12), rows=st.integers(1, 15), power=st.integers(-6, 6), examples=150)
def test_the_solution_lies_on_the_simplex_and_no_point_of_it_is_lower(
    seed: int, clients: int, rows: int, power: int
) -> None:
    """With fewer rows than clients, B^T B is singular."""
    b = 10.0**power * np.random.default_rng(seed).normal(0.4, 1.0, (rows, clients))
    a = solved(b)
    assert a.shape == (clients,)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    # f is convex: no point of the simplex lies lower than f(a) by more than this gap between a and the best corner.
    gradient = 2 * b.T @ (b @ a)
    gap = a @ gradient - gradient.min()
    assert gap <= 1e-9 * np.trace(b.T @ b) / clients


def test_programmes_by_hand_and_those_without_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    variances = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(solved(np.diag(np.sqrt(variances))), np.array([4, 2, 1]) / 7, rtol=1e-12)
    b = np.random.default_rng(0).normal(0.4, 1.0, (6, 4))
    b[:, 2] = 0
    np.testing.assert_allclose(solved(b), [0, 0, 1, 0], atol=1e-12)
    for value in (0.0, np.nan, np.inf, 1e200):
        b = np.zeros((3, 3))
        b[1, 1] = value
        assert fedpac.nearest_to_origin(b) is None

    def fail(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", fail)
    assert fedpac.nearest_to_origin(np.eye(3)) is None


D, K = 64, 10
BODY, TOP = ("backbone.", "projection."), ("head.",)
DONE = Trained(1.0, None, torch.zeros(0), 1, 1)


def test_the_statistics_are_those_of_the_definition(tmp_path: Path) -> None:
    """V = [sum_k p_k tr E(z z^T | k) - sum_k p_k^2 |mu_k|^2] / n and h_k = p_k mu_k, class by class in numpy. Pooled
    means are those of all rows together. A client's are those of the received body."""
    z, y = class_features(50)
    variance, h = fedpac.statistics(z, y, K)
    rows, labels = z.double().numpy(), y.numpy()
    expected, total = np.zeros((K, D)), 0.0
    for k in set(labels.tolist()):
        part, p = rows[labels == k], (labels == k).mean()
        mean = part.mean(0)
        expected[k] = p * mean
        total += p * np.trace(part.T @ part / len(part)) - p**2 * (mean @ mean)
    np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-15)
    assert float(variance) == pytest.approx(total / 50, rel=1e-12)
    parts = [class_features(30, seed=1), class_features(7, classes=2, seed=2)]
    each = [{fedpac.MEAN: class_means(z, y, K), fedpac.COUNT: torch.bincount(y, minlength=K)} for z, y in parts]
    mean, count = pooled(each).values()
    z, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    for k in range(K):
        expected = z[y == k].double().mean(0) if (y == k).any() else torch.zeros(D)
        torch.testing.assert_close(mean[k], expected, check_dtype=False)
    assert count.tolist() == torch.bincount(y, minlength=K).tolist()
    it = trainer(fedpac.FedPAC(), DATA, tmp_path)
    client = it.client(2, it.server.view(2), 1)
    it.executor.run([client], it.method.local)
    model: Any = it.executor.worker.load(it.server.initial).eval()  # type: ignore[attr-defined]
    with torch.no_grad():
        z = model.features(to_input(DATA.images[DATA.train[2]]))
    variance, h = fedpac.statistics(z, DATA.labels[DATA.train[2]], K)
    torch.testing.assert_close(client.upload.h, h.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.upload.variance, variance.float(), rtol=1e-4, atol=1e-7)


def test_the_combination_solves_the_programme_of_every_client() -> None:
    clients = 6
    told = [fedpac.statistics(*class_features(40 + 15 * i, classes=3 + i % 3, seed=i), K) for i in range(clients)]
    v = torch.stack([variance for variance, _ in told])
    h = torch.stack([mean for _, mean in told]) * 0.3  # near enough to one another to share heads
    h[5] = h[0] + 3 * (h[4] - h[0])  # of no use to client 0 beside client 4
    weights = fedpac.combination(v, h).numpy()
    assert ((weights > fedpac.LEAST_WEIGHT) | (weights == 0)).all()
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
        expected = np.where(found.x > fedpac.LEAST_WEIGHT, found.x, 0)
        np.testing.assert_allclose(weights[i], expected / expected.sum(), atol=1e-3)


def test_small_weights_are_dropped_and_without_a_solution_all_keep_their_heads() -> None:
    """Clients with the same features: weights go as 1 / V, here 1 / 1.0005 and less than 1e-3 of it. A client of a
    single image, which has no variance, keeps its head, and all do where there is no solution."""
    v, h = torch.tensor([1.0, 2000.0, 1.0]), torch.zeros(3, K, D)
    np.testing.assert_allclose(fedpac.combination(v, h), [[0.5, 0, 0.5]] * 3, atol=1e-12)
    lone = fedpac.statistics(*class_features(1), K)
    assert float(lone[0]) == pytest.approx(0, abs=1e-12)
    others = [fedpac.statistics(*class_features(60, seed=s), K) for s in (1, 2)]
    v, h = (torch.stack([client[i] for client in (lone, *others)]) for i in (0, 1))
    weights = fedpac.combination(v, h)
    np.testing.assert_allclose(weights[0], [1, 0, 0], atol=1e-9)
    for variances, shift in (([0.0, 0.0], 0.0), ([np.nan, 1.0], 0.0), ([1.0, 1.0], np.nan)):
        found = fedpac.combination(torch.tensor(variances), torch.full((2, K, D), shift))
        assert torch.equal(found, torch.eye(2, dtype=torch.float64))


def test_the_loss_and_its_gradient(tmp_path: Path) -> None:
    it = trainer(fedpac.FedPAC(lambda_=0.7), DATA, tmp_path)
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


def test_the_update_asks_for_statistics_head_body_and_prototypes(tmp_path: Path) -> None:
    it = trainer(fedpac.FedPAC(), DATA, tmp_path)
    client = it.client(1, it.server.view(1), 2)
    client.received[fedpac.MEAN] = torch.randn(K, D, generator=torch.Generator().manual_seed(1))
    client.received[fedpac.COUNT] = torch.tensor([3.0, 1, 2, 5, 0, 0, 0, 0, 0, 0])
    client.state = dict(client.received)
    before, after = class_features(40), class_features(40, seed=9)
    requests = drive(fedpac.FedPAC().local(client), Collected(*before), DONE, DONE, Collected(*after))
    assert [type(r) for r in requests] == [Collect, Train, Train, Collect]
    _, head, body, _ = requests
    assert (head.trains, head.epochs, head.lr) == (TOP, 1, 0.1)
    assert (body.trains, body.epochs, body.lr) == (BODY, None, None)
    # Classes 0 to 3 are known; 4 and 5 are this client's alone.
    own = class_means(*before, K).float()
    assert torch.equal(body.extras["prototypes"][:4], client.received[fedpac.MEAN][:4])
    assert torch.equal(body.extras["prototypes"][4:], own[4:])
    assert own[4:6].abs().sum() > 0
    variance, h = fedpac.statistics(*before, K)
    torch.testing.assert_close(client.upload.variance, variance.float())
    torch.testing.assert_close(client.upload.h, h.float())
    torch.testing.assert_close(client.state[fedpac.MEAN], class_means(*after, K).float())
    assert torch.equal(client.state[fedpac.COUNT], DATA.class_counts[1])
    # There is no distance before there are prototypes.
    client.received[fedpac.COUNT] = torch.zeros(K)
    _, _, first, _ = drive(fedpac.FedPAC().local(client), Collected(*before), DONE, DONE)
    assert (first.loss, dict(first.extras)) == (fedpac.cross_entropy, {})


def test_prototypes_and_heads_after_a_round(tmp_path: Path) -> None:
    """Two rounds in which some take part: everything that the server makes of what the clients held."""
    held: dict[int, list[Client]] = {}

    class Spy(fedpac.FedPAC):
        def aggregate(self, server: Any, cohort: Any, t: int) -> None:
            held[t] = list(cohort)
            super().aggregate(server, cohort, t)

    run = train(Spy(score="after_aggregate"), DATA, tmp_path, setting(rounds=3, participation=0.6, seed=3))
    assert {len(cohort) for cohort in held.values()} != {4}, "everybody always takes part"
    server, cohort = run.trainer.server, held[max(held)]
    model: Any = run.trainer.executor.worker.model  # type: ignore[attr-defined]
    z, own = [], [{n: t for n, t in c.state.items() if not n.startswith("prototypes.")} for c in cohort]
    for c, state in zip(cohort, own, strict=True):
        model.load_state_dict(state)
        with torch.no_grad():
            z.append(model.eval().features(to_input(DATA.images[DATA.train[c.index]])))
    rows, labels = torch.cat(z), torch.cat([DATA.labels[DATA.train[c.index]] for c in cohort])
    for k in range(K):
        expected = rows[labels == k].mean(0) if (labels == k).any() else torch.zeros(D)
        torch.testing.assert_close(server.shared[fedpac.MEAN][k], expected, rtol=1e-4, atol=1e-5)
    assert server.shared[fedpac.COUNT].tolist() == torch.bincount(labels, minlength=K).tolist()
    weights = fedpac.combination(*(torch.stack([getattr(c.upload, key) for c in cohort]) for key in ("variance", "h")))
    for name in ("head.weight", "head.bias"):
        heads = [c.state[name].double() for c in cohort]
        for i, c in enumerate(cohort):
            mixed = sum(float(w) * head for w, head in zip(weights[i], heads, strict=True))
            torch.testing.assert_close(server.memory.of[c.index][name].double(), mixed, rtol=1e-5, atol=1e-6)
    close(server.shared, averaged(own, [c.n_train for c in cohort]), 1e-5, 1e-6)


def test_the_last_round_combines_heads_only_if_they_answer(tmp_path: Path) -> None:
    runs = [train(fedpac.FedPAC(score=s), DATA, tmp_path / s) for s in ("after_local", "after_aggregate")]
    assert same(runs[0].shared, runs[1].shared), "the rounds before combine in both"
    heads = [run.trainer.server.memory.of[1]["head.weight"] for run in runs]
    assert not torch.equal(*heads)
    initial = runs[0].trainer.server.initial
    common = sum(t.numel() for n, t in initial.items() if n.startswith(BODY)) + K * (D + 1) + K * D + K
    up, down = 4 * (common + K * D + 1), 4 * common  # body, head, prototypes and their counts; up: h and V beside
    assert sent(runs[0]) == [(DATA.clients * up, DATA.clients * down)] * 3
