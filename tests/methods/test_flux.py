"""FLUX and FLUX-soft: when they cluster, whom they put together, and where they lead clients without labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import models
from fedbench.core import message
from fedbench.core.client import Collected
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.simulation import new_client
from fedbench.errors import FedbenchError
from fedbench.methods.flux import clustering
from fedbench.methods.flux_soft import Memory, soft_weights
from fedbench.methods.parts import description, warm_up
from fedbench.methods.parts.description import Describe, Phase, cube, projection
from fedbench.methods.parts.warm_up import warm_up_ends
from fedbench.specs import Setting
from tests.support.groups_lab import answers, drifted, grouped_federation, grouped_setting, moments, network, pixels
from tests.support.lab import Run, method, train, trainer

#: Three groups of clients; two, of whom a few at a time take part; groups that change.
DATA = grouped_federation((0, 1, 2, 0, 1, 2))
TEN = grouped_federation((0, 1) * 5, size=60)
SIDES = grouped_federation((0, 0, 1, 1)), grouped_federation((1, 0, 1, 0))
DRIFTING = drifted(*SIDES, (1, 0, 1, 0), (0, 0, 1, 1))


def coming(cohort: int) -> Setting:
    """Six rounds of so many of the ten clients."""
    return grouped_setting(rounds=6, cohort=cohort, partition=replace(grouped_setting().partition, clients=10))


@pytest.mark.parametrize(
    ("accuracies", "t", "first", "expected"),
    [
        ([0.1, 0.3], 2, 3, False),  # two rounds are no warm-up
        ([0.1, 0.3, 0.35], 3, 3, True),
        ([0.1, 0.3, 0.37], 3, 3, False),
        ([0.1, 0.12, 0.3], 3, 3, False),  # the first slope does not count ...
        ([0.1, 0.12, 0.3], 3, 2, True),  # ... but in the released code
        ([0.1, 0.2, 0.19, 0.4], 4, 3, True),  # one slope so far is enough
        ([0.1 * t for t in range(1, 8)], 7, 3, False),
        ([0.1 * t for t in range(1, 9)], 8, 3, True),  # 80 % of ten rounds
        ([0.1, 0.2, 0.3], 7, 3, False),  # rounds without a cohort count for the 80 % and for no slope
        ([0.1, 0.2, 0.3], 8, 3, True),
        ([0.1, 0.11], 5, 2, False),  # two accuracies are no warm-up
    ],
)
def test_warm_up_ends_by_eq_14(accuracies: list[float], t: int, first: int, expected: bool) -> None:
    assert warm_up_ends(accuracies, t, 10, 0.06, first) is expected


def test_the_round_in_which_it_clusters(tmp_path: Path) -> None:
    """Forced clustering is not missed if nobody took part in the round before."""
    found = train(
        "flux", DATA, tmp_path / "a", grouped_setting(rounds=6, lr=1e-4)
    )  # nothing is learnt, so flat at once
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == 4
    rounds = found.trainer.checkpoint.rounds
    assert [line.get("figure_clustering_round") for line in rounds] == [None, None, None, 4, 4, 4]
    assert [line["figure_clusters"] for line in rounds][:3] == [1, 1, 1]
    s = grouped_setting(rounds=8, participation=0.25, seed=1)
    cohorts = [trainer(method("flux"), DATA, tmp_path / "2" / "plan", s).plan.cohort(t) for t in range(1, 9)]
    empty = next(t for t in range(2, 7) if not cohorts[t - 1] and cohorts[t] and cohorts[t + 1])
    found = train(method("flux", start=empty + 1), DATA, tmp_path / "2" / "run", s)
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == empty + 2


@torch.no_grad()
def described(run: Run, data: Federation, side: str) -> np.ndarray:
    """Every client's scaled descriptor, from theta* and the server's axes."""
    memory, out = run.trainer.server.memory, []
    net = network(data, run.trainer.server.shared)
    for rows in getattr(data, side):
        h = net.latent(pixels(data, rows)).numpy()
        how = projection(memory.bounds, 10)
        z = (h - how.mean.numpy()) @ how.axes.numpy().T
        out.append(moments(z, None if side == "test" else np.eye(10, dtype=bool)[data.labels[rows]]))
    low, high = (np.repeat(side.numpy(), 10)[: len(out[0])] for side in (memory.scaling.low, memory.scaling.high))
    return (np.stack(out) - low) / (high - low)


def test_clusters_the_test_phase_and_the_memory_by_hand(tmp_path: Path) -> None:
    """The memory comes back from a checkpoint as it was."""
    run = train(method("flux", clustering="prior", start=5), DATA, tmp_path, grouped_setting(rounds=7))
    server = run.trainer.server
    known = described(run, DATA, "train")
    assert known.min() == pytest.approx(0, abs=1e-4)
    assert known.max() == pytest.approx(1, abs=1e-4)
    labels, _ = clustering.k_means(known, 3)
    assert [server.assigned[i] for i in range(6)] == labels.tolist()
    centres = np.stack([known[labels == m].mean(0) for m in range(labels.max() + 1)])
    at = 0
    for i, d in enumerate(described(run, DATA, "test")):
        m = int(np.linalg.norm(centres[:, :20] - d, axis=1).argmin())
        for column, chosen in (("test_phase", m), ("own", server.assigned[i])):
            net = network(DATA, server.models[chosen])
            expected = net(pixels(DATA, DATA.test[i])).argmax(1).numpy()
            assert (answers(run, column)[at : at + len(expected)] == expected).all()
        at += len(DATA.test[i])
    memory = run.trainer.server.memory
    again = message.restored(type(memory), message.tensors(memory, "memory"), "memory")
    assert again.phase is Phase.GROUPED
    assert again.accuracies == memory.accuracies
    assert len(again.accuracies) == 4
    assert again.described.round == 5
    for one, other in zip(message.tensors(again, "m").values(), message.tensors(memory, "m").values(), strict=True):
        assert torch.equal(one, other) or bool(one.isnan() & other.isnan())


def test_late_clients_are_led_to_the_nearest_centroid(tmp_path: Path) -> None:
    data, s = TEN, coming(3)
    found = train(method("flux", start=3), data, tmp_path, s)
    server, plan = found.trainer.server, found.trainer.plan
    first, later = set(plan.cohort(3)), {i for t in (4, 5, 6) for i in plan.cohort(t)}
    assert set(server.assigned) == first | later
    assert later - first
    assert len(server.assigned) < 10, "somebody never took part"
    known = described(found, data, "train")
    centres = server.memory.centroids.numpy()
    for i in later - first:
        assert server.assigned[i] == int(np.linalg.norm(centres - known[i], axis=1).argmin())
    for i in set(range(10)) - first - later:  # answers all the same, with the nearest cluster's model
        m = int(np.linalg.norm(centres - known[i], axis=1).argmin())
        expected = network(data, server.models[m])(pixels(data, data.test[i])).argmax(1).numpy()
        at = sum(len(rows) for rows in data.test[:i])
        assert (answers(found, "own")[at : at + len(expected)] == expected).all()
    # In the round after the clustering who is late is sent all models and tells its choice.
    late, line = len(set(plan.cohort(4)) - first), found.trainer.checkpoint.rounds[3]
    assert late
    model, memory = sum(t.numel() * 4 for t in server.shared.values()), server.memory
    bounds, scaling, centroids = 16 * len(memory.bounds.low), 2 * 8 * 22, 8 * memory.centroids.numel()
    assert line["bytes_down"] == 3 * model + late * (len(server.models) * model + bounds + scaling + centroids)
    assert line["bytes_up"] == 3 * model + 8 * late


def test_a_running_mean_holds_all_models_since_the_clustering(tmp_path: Path) -> None:
    """Weighted by images, absent clients' earlier models too; with all clients in every round it is another model than
    the round's mean all the same."""
    data, s = TEN, coming(4)
    how, sent = method("flux", start=3, clustering="prior", average="running"), []
    it = trainer(how, data, tmp_path / "run", s)
    averaging = type(how).aggregate

    def aggregate(self: Any, server: Any, cohort: Any, t: int) -> None:
        averaging(self, server, cohort, t)
        if t >= 3:
            sent.extend((server.assigned[c.index], c.n_train, c.state) for c in cohort)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(how), "aggregate", aggregate)
        it.run()
    assert len(sent) == 16
    for m, model in enumerate(it.server.models):
        mine = [(n, state) for of, n, state in sent if of == m]
        for name, value in model.items():
            expected = sum(n * state[name].double() for n, state in mine) / sum(n for n, _ in mine)
            torch.testing.assert_close(value, expected.float(), rtol=1e-4, atol=1e-6)
    plain = train(method("flux", start=3, clustering="prior"), data, tmp_path / "plain", s).trainer.server
    assert not torch.equal(plain.models[0]["head.weight"], it.server.models[0]["head.weight"])


def test_clients_are_clustered_anew_when_their_data_drift(tmp_path: Path) -> None:
    data = DRIFTING
    assert int(data.stages[1][0][0][0]) >= len(SIDES[0].labels)
    found = train(method("flux", start=3), data, tmp_path, grouped_setting(rounds=7, drifts=(6,)))
    rounds = found.trainer.checkpoint.rounds
    assert [line["images"] > 0 for line in rounds] == [True] * 5 + [False, True], (
        "nobody trains in the round of a drift"
    )
    assert found.trainer.method.round_metrics(found.trainer.server)["clustering_round"] == 6
    known = described(found, replace(data, train=data.stages[1][0]), "train")
    labels, eps = clustering.dynamic(known)
    assert [found.trainer.server.assigned[i] for i in range(4)] == labels.tolist()
    assert found.trainer.server.memory.elbow == pytest.approx(eps, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "stage"),
    [*(("flux", stage) for stage in ("warm-up", "clustering", "late", "test")), ("flux_soft", "clustering")],
)
def test_latents_that_are_not_finite_are_named(
    name: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's network gives NaN when it is first asked at this stage."""
    data, s = TEN, coming(4)
    plan = trainer(method("flux"), data, tmp_path / "plan", s).plan
    victim = {"warm-up": 2, "clustering": 3, "late": 4, "test": 6}[stage]
    network_class = type(models.build("digits_cnn", shape=data.shape, classes=10, seed=0))
    looks, latent = (warm_up, "feedback") if stage == "warm-up" else (description, "describe"), network_class.latent
    asked: list[bool] = []

    def spoilt(real: Any) -> Any:
        def box(client: Any, *given: Any) -> Any:
            at_stage = client.round == victim and ("test" in given) == (stage == "test")
            asked.append(at_stage)
            return (yield from real(client, *given))

        return box

    monkeypatch.setattr(*looks, spoilt(getattr(*looks)))
    nan = float("nan")
    monkeypatch.setattr(
        network_class, "latent", lambda self, x: latent(self, x) * (nan if asked and asked[-1] else 1.0)
    )
    assert stage != "late" or set(plan.cohort(4)) - set(plan.cohort(3))
    with pytest.raises(FedbenchError, match=r"the latents of client \d+ hold NaN"):
        train(method(name, start=3), data, tmp_path / "run", s)


@pytest.mark.parametrize("kind", clustering.KINDS)
def test_every_clustering_gives_each_client_one(kind: str, tmp_path: Path) -> None:
    found = train(method("flux", clustering=kind, start=2), DATA, tmp_path, grouped_setting(rounds=3))
    server = found.trainer.server
    assert sorted(server.assigned) == list(range(6))
    assert set(server.assigned.values()) == set(range(len(server.models)))
    labels, eps = clustering.cluster(kind, server.memory.described.descriptors.numpy(), 1.0, 0.0, 3)
    assert [server.assigned[i] for i in range(6)] == labels.tolist()
    assert ("elbow" in found.trainer.method.round_metrics(server)) == (kind == "density") == (eps == eps)


def test_clustering_in_the_first_round_by_a_given_reach_and_by_some_moments(tmp_path: Path) -> None:
    """The released code's bounds 0 and 2 stand in for latents that nobody has reported."""
    found = train(method("flux", start=1), DATA, tmp_path / "first", grouped_setting(rounds=2))
    server = found.trainer.server
    assert found.trainer.method.round_metrics(server)["clustering_round"] == 1
    for name, value in server.shared.items():
        assert torch.equal(server.initial[name], value), "theta* is where all begin"
    assert (server.memory.bounds.low == 0).all()
    assert (server.memory.bounds.high == 2).all()
    for reach, clusters in ((1e-6, 6), (1e6, 1)):  # it stands for the elbow
        found = train(method("flux", reach=reach, start=2), DATA, tmp_path / str(clusters), grouped_setting(rounds=2))
        figures = found.trainer.method.round_metrics(found.trainer.server)
        assert figures["clusters"] == clusters
        assert "elbow" not in figures
    for blocks, length in (("mu_x", 10), ("mu_x,mu_u", 110)):  # a part of the moments alone
        found = train(method("flux", blocks=blocks, start=2), DATA, tmp_path / blocks, grouped_setting(rounds=2))
        assert found.trainer.server.memory.described.descriptors.shape[1] == length
        assert found.predictions["test_phase"].null_count == 0


def test_random_assignment_is_random_but_repeatable(tmp_path: Path) -> None:
    chosen = {"clustering": "prior", "start": 2, "assignment": "random"}
    a, b = (train(method("flux", **chosen), DATA, tmp_path / n, grouped_setting(rounds=3)) for n in "ab")
    assert (answers(a, "test_phase") == answers(b, "test_phase")).all()
    assert (answers(a, "own") != answers(a, "test_phase")).any()


def test_noise_is_drawn_anew_each_round(tmp_path: Path) -> None:
    kind, it = method("flux", epsilon=0.01), trainer(method("flux"), DATA, tmp_path, grouped_setting())
    rows, labels = torch.rand(30, 10), torch.arange(30) % 10

    def sent(t: int, split: str = "train") -> torch.Tensor:
        client = new_client(0, t, {}, it.context, DATA, it.plan)
        client.inbox = Describe(cube(torch.tensor(2.0), 16), trains=True)
        box = kind.describe(client, split)  # type: ignore[attr-defined]
        next(box)
        with pytest.raises(StopIteration) as stop:
            box.send(Collected(rows, labels))
        d: torch.Tensor = stop.value.value
        return d

    assert torch.equal(sent(4), sent(4))
    assert not torch.equal(sent(4), sent(5))
    assert not torch.equal(sent(4, "test"), sent(4)[:20])


def test_everybody_draws_one_projection_from_the_bounds_that_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    projector = description.projector
    monkeypatch.setattr(description, "projector", lambda *given: drawn.append(1) or projector(*given))
    description._projection.cache_clear()
    found = train(method("flux", start=3), DATA, tmp_path, grouped_setting(rounds=4))
    assert len(drawn) == 1, "six clients that train and six without labels"
    sent = {id(t) for t in projection(found.trainer.server.memory.bounds, 10)}
    assert sent == {id(t) for t in projection(found.trainer.server.memory.bounds, 10)}
    assert len(drawn) == 1
    projection(cube(torch.tensor(3.0), 16), 10)
    assert len(drawn) == 2, "other bounds, another projection"


def test_soft_weights_and_the_test_phase_by_hand(tmp_path: Path) -> None:
    soft = train("flux_soft", DATA, tmp_path, grouped_setting(rounds=7))
    server, memory = soft.trainer.server, soft.trainer.server.memory
    d, kernel = memory.described.descriptors.numpy(), memory.kernel
    gaps = np.linalg.norm(d[:, None] - d, axis=2) + np.diag([np.inf] * len(d))
    assert kernel.width == pytest.approx(np.median(gaps.min(1) ** 2))
    expected = soft_weights(d, d, kernel.sizes.numpy(), kernel.reach, kernel.width)  # by hand in test_description.py
    np.testing.assert_allclose(memory.weights.numpy(), expected, atol=1e-9)
    assert (expected > 0).sum() < expected.size, "not everybody is near everybody"
    assert (np.diag(expected) == expected.max(1)).all(), "all train on as many images"
    given, at = answers(soft, "test_phase"), 0
    for rows, known in zip(DATA.test, described(soft, DATA, "test"), strict=True):
        w = soft_weights(known[None], d[:, :20], kernel.sizes.numpy(), kernel.reach, kernel.width)[0]
        mixed = {n: sum(float(a) * m[n].double() for a, m in zip(w, server.models, strict=True)) for n in server.shared}
        own = network(DATA, {n: t.float() for n, t in mixed.items()})
        assert (
            given[at : at + len(rows)] == own(pixels(DATA, rows)).argmax(1).numpy()
        ).mean() > 0.99  # rounding may turn one
        at += len(rows)


def test_mixing_by_hand() -> None:
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    trained = [{"w": torch.tensor([1.0, 2.0]) * k} for k in (1, 10, 100)]
    memory = Memory(Phase.GROUPED, cube(torch.tensor(2.0), 3), weights=weights)
    server = Server({}, {"w": torch.zeros(2)}, memory=memory, models=list(trained))
    server.assigned = {5: 0, 7: 1, 9: 2}
    here: Any = [SimpleNamespace(index=5), SimpleNamespace(index=9), SimpleNamespace(index=4)]
    method("flux_soft").mix(server, here)  # type: ignore[attr-defined]
    assert server.models[0]["w"].tolist() == [0.75 + 2.5, 1.5 + 5]
    assert server.models[1]["w"].tolist() == [10, 20], "not in the cohort"
    assert server.models[2]["w"].tolist() == [100, 200]
