"""HACCS: histograms and their distances by hand, the clusters found in them, and its reductions."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.methods import haccs
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, federation, method, setting, train, trainer


def brightness(groups: tuple[int, ...] = (0, 1, 0, 1, 0, 1)) -> Federation:
    """Clients of whom those of group 1 see their digits half as bright."""
    data = grouped_federation((0,) * len(groups), size=150)
    dark = torch.from_numpy(np.array(groups)[data.client].astype(bool))
    images = data.images.clone()
    images[dark] //= 2
    return dataclasses.replace(data, images=images, groups=list(groups))


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def of_first(data: Federation) -> tuple[torch.Tensor, torch.Tensor]:
    """Training images and labels of the first client, as it has them."""
    s = setting()
    first = client(data, Plan(s, data.n_train, data.shape[:2]), 0, {})
    return first.images(), first.labels()


def test_histograms_count_every_pixel_of_the_training_images() -> None:
    data = federation(color=True)
    found = haccs.histograms(*of_first(data), 10, 16)
    expected = np.zeros((10, 16))
    for row in data.train[0].tolist():
        for value in data.images[row].flatten().tolist():
            expected[data.labels[row], value // 16] += 1
    assert np.array_equal(found, expected)
    assert np.array_equal(haccs.histograms(*of_first(data), 10, 1)[:, 0], expected.sum(1))
    shared = dataclasses.replace(data, images=data.images.flip(0), image=torch.arange(len(data.labels)).flip(0))
    assert np.array_equal(haccs.histograms(*of_first(shared), 10, 16), expected)


def test_many_images_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = federation()
    whole = haccs.histograms(*of_first(data), 10, 16)
    monkeypatch.setattr(haccs, "CHUNK", 7)
    assert np.array_equal(haccs.histograms(*of_first(data), 10, 16), whole)


def test_hellinger_by_hand() -> None:
    counts = np.array([[1, 0], [0, 5], [3, 3], [0, 0], [2, 2]], float)
    half = np.sqrt((np.square(1 - np.sqrt(0.5)) + 0.5) / 2)
    none = np.sqrt(0.5)
    expected = [
        [0, 1, half, none, half],
        [1, 0, half, none, half],
        [half, half, 0, none, 0],
        [none, none, none, 0, none],
        [half, half, 0, none, 0],
    ]
    np.testing.assert_allclose(haccs.hellinger(counts), expected, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_distances_by_brute_force(clients: int, classes: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, (clients, classes)).astype(float)
    pixels = rng.integers(0, 9, (clients, classes, bins)) * (labels > 0)[..., None].astype(float)

    def far(p: np.ndarray, q: np.ndarray) -> float:
        p, q = (x / x.sum() if x.sum() else x for x in (p, q))
        return float(np.sqrt(sum((np.sqrt(a) - np.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)) / 2))

    found = haccs.distances(labels, pixels)
    for i in range(clients):
        for j in range(clients):
            by_class = [far(pixels[i, c], pixels[j, c]) for c in range(classes)]
            assert found[i, j] == pytest.approx(far(labels[i], labels[j]) + sum(by_class) / classes, abs=1e-12)


def blocks(*groups: int) -> np.ndarray:
    """Distances that are small, but not equal, within a group and large across."""
    rng = np.random.default_rng(1)
    at = np.array(groups) + rng.random(len(groups)) * 0.05
    return np.abs(at[:, None] - at[None])


def test_clusters_and_noise() -> None:
    found = haccs.optics(blocks(0, 1, 0, 1, 0, 1))
    assert found.tolist() == [found[0], found[1]] * 3
    assert found[0] != found[1]


@pytest.mark.parametrize("seed", [3, 5, 7, 11])
def test_noise_makes_clusters_of_one(seed: int) -> None:
    """The clusters are scikit-learn's; who is in none of them is alone."""
    from sklearn.cluster import OPTICS

    rng = np.random.default_rng(seed)
    centres = (rng.normal(0, 0.05, (3, 2)), rng.normal(3, 0.05, (3, 2)), rng.uniform(-20, 20, (3, 2)))
    points = np.concatenate(centres)
    far = np.linalg.norm(points[:, None] - points[None], axis=-1)
    raw, found = OPTICS(min_samples=2, metric="precomputed").fit_predict(far), haccs.optics(far)
    assert set(found.tolist()) == set(range(found.max() + 1))
    assert (raw < 0).any()
    together = (raw[:, None] == raw[None]) & (raw >= 0)[:, None]
    assert np.array_equal(found[:, None] == found[None], together | np.eye(9, dtype=bool))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_alike_or_alone_are_one_cluster(count: int) -> None:
    assert haccs.optics(np.zeros((count, count))).tolist() == [0] * count


def test_twins_of_two_kinds_are_two_clusters() -> None:
    kinds = np.array([0, 1, 0, 1, 0, 1])
    found = haccs.optics((kinds[:, None] != kinds[None]).astype(float))
    assert found.tolist() in ([0, 1] * 3, [1, 0] * 3)


def test_fewer_clients_than_a_cluster_takes() -> None:
    assert haccs.optics(blocks(0, 1), min_samples=3).tolist() == [0, 0]


def test_clients_of_other_brightness_learn_apart(tmp_path: Path) -> None:
    data = brightness()
    run = train("haccs", data, tmp_path, grouped_setting(rounds=8))
    server = run.trainer.server
    assert [server.assigned[i] for i in range(6)] in ([0, 1] * 3, [1, 0] * 3)
    assert run.accuracy > 0.65
    last = run.predictions.to_pandas().query("round == 8")
    assert (last["test_phase"] == last["label"]).mean() > 0.5


def test_each_cluster_is_a_federation_of_its_own(tmp_path: Path) -> None:
    """What the other cluster holds changes nothing."""
    data = brightness()
    labels = data.labels.clone()
    for rows in data.train[1::2]:
        labels[rows] = 3
    other = dataclasses.replace(data, labels=labels, class_counts=torch.eye(10)[[3]].repeat(6, 1) * 80)
    a, b = (train("haccs", d, tmp_path / str(k), grouped_setting(rounds=2)) for k, d in enumerate((data, other)))
    assert [b.trainer.server.assigned[i] for i in range(6)] in ([0, 1] * 3, [1, 0] * 3)
    mine = [run.trainer.server.model(0) for run in (a, b)]
    assert all(torch.equal(mine[0][name], mine[1][name]) for name in mine[0])
    assert not torch.equal(a.trainer.server.model(1)["head.bias"], b.trainer.server.model(1)["head.bias"])


def test_a_histogram_is_sent_once(tmp_path: Path) -> None:
    data, s = federation(), setting()
    lines = train("haccs", data, tmp_path / "haccs", s).trainer.checkpoint.rounds
    plain = train("fedavg", data, tmp_path / "fedavg", s).trainer.checkpoint.rounds
    more = [a["bytes_up"] - b["bytes_up"] for a, b in zip(lines, plain, strict=True)]
    assert more == [data.clients * 10 * 17 * 4, 0, 0]
    assert [a["bytes_down"] for a in lines] == [b["bytes_down"] for b in plain]


def test_absent_clients_have_a_cluster_before_the_first_round(tmp_path: Path) -> None:
    it = trainer(method("haccs"), federation(), tmp_path)
    it.resume()
    assert it.server.assigned.keys() == {0, 1, 2, 3}
    assert set(it.server.assigned.values()) == set(range(len(it.server.models)))
