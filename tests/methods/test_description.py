"""FLUX's descriptors, their clusterings, and snapshots of clients: against NumPy, class by class and pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import silhouette_score
from torch import Tensor

from fedbench import models
from fedbench.core.client import Context
from fedbench.core.images import to_input
from fedbench.engine.job import Job
from fedbench.methods.flux import LaplaceNoise, clustering
from fedbench.methods.flux_soft import bandwidth, soft_weights
from fedbench.methods.parts.description import first_bounds, scaled
from fedbench.methods.parts.descriptor import (
    Bounds,
    Scaling,
    common_bounds,
    cube,
    descriptor,
    entries,
    extent,
    label_free,
    projector,
    synthetic,
)
from fedbench.methods.parts.linkage import _elbow_of, distances, elbow, nearest_other
from fedbench.rng import stream
from tests.support.frames import SEEDS, few, refused
from tests.support.groups_lab import grouped_federation, grouped_setting, moments, network
from tests.support.lab import method, same, setting, train

pytestmark = pytest.mark.filterwarnings("error")
DATA = grouped_federation(size=60)
SETTING = grouped_setting(rounds=4, participation=0.7, lr=0.05)
PIXELS, CLASSES = 64, 10


def rows(n: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(3.0, 2.0, (n, width))).float()


def test_bounds_and_the_projection() -> None:
    """A dead network has a projector all the same; before any bounds are known the released code's stand in."""
    a, b = extent(torch.tensor([[0.5, 2.0], [1.0, 3.0]])), extent(torch.tensor([[0.25, 4.0]]))
    assert (a.low.tolist(), a.high.tolist()) == ([0.5, 2.0], [1.0, 3.0])
    paper, released = common_bounds([a, b]), cube(torch.tensor(1.02) * 4.0, 2)
    assert (paper.low.tolist(), paper.high.tolist()) == ([0.25, 2.0], [1.0, 4.0])
    assert released.low.tolist() == [0.0, 0.0]
    assert released.high.tolist() == pytest.approx([1.02 * 4.0, 1.02 * 4.0])
    points = synthetic(common_bounds([extent(torch.zeros(3, 6))]))
    assert not projector(points, 2)(torch.zeros(3, 6)).any()
    net = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=4).train()
    bounds = first_bounds(net, Context.of(DATA, SETTING))
    assert net.training
    assert (float(bounds.low.max()), float(bounds.high.min())) == (0.0, 2.0)
    wider = type(bounds)(bounds.low, 7 * bounds.high)
    assert torch.allclose(projector(synthetic(bounds), 3).axes, projector(synthetic(wider), 3).axes, atol=1e-9)


def test_synthetic_points_are_the_released_codes() -> None:
    """Uniform numbers of NumPy's global generator, seeded with 1 by every client."""
    low, high = torch.tensor([0.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    points = synthetic(Bounds(low, high))
    assert points.dtype == torch.float64
    np.random.seed(1)
    released = np.random.uniform(low.numpy(), high.numpy(), size=(200, 3))
    np.testing.assert_allclose(points.numpy(), released, rtol=1e-15)
    # Points between other bounds are the same ones, stretched.
    torch.testing.assert_close(synthetic(Bounds(low * 0, high * 0 + 2)), 2 * synthetic(Bounds(low * 0, high * 0 + 1)))


@pytest.mark.parametrize(("z", "width"), [(12, 5), (400, 10)])
def test_the_projector_is_scikit_learns_pca(z: int, width: int) -> None:
    from sklearn.decomposition import PCA

    points = synthetic(Bounds(torch.zeros(z), torch.rand(z, generator=torch.Generator().manual_seed(1)) + 0.5))
    pca = PCA(width, svd_solver="full").fit(points.numpy())
    latents = torch.rand(7, z, generator=torch.Generator().manual_seed(2))
    found, ours = projector(points, width), projector(points, width)(latents)
    theirs = pca.transform(latents.double().numpy())
    sign = np.sign((ours.numpy() * theirs).sum(0))  # which is another convention in other versions of it
    np.testing.assert_allclose(ours.numpy(), theirs * sign, atol=1e-9)
    assert ours.dtype == torch.float64
    assert (found.axes.gather(1, found.axes.abs().argmax(1, keepdim=True)) > 0).all()


@few(SEEDS, st.integers(1, 30), st.integers(1, 4), st.sampled_from([0.0, 1000.0]), st.booleans(), examples=80)
def test_moments_are_numpys(seed: int, n: int, width: int, shift: float, many: bool) -> None:
    """Images of many labels count in each."""
    rng, x = np.random.default_rng(seed), rows(n, width, seed) + shift
    members = rng.random((n, 5)) < 0.4 if many else np.eye(5, dtype=bool)[rng.integers(0, 5, n)]
    labels = torch.from_numpy(members) if many else torch.from_numpy(members.argmax(1))
    expected = moments(x.double().numpy(), members)
    for given_labels in (labels, labels.float()) if many else (labels,):
        found = descriptor(x, given_labels, 5)
        assert (found.shape, found.dtype) == ((2 * (5 + 1) * width,), torch.float64)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-6)
        assert torch.equal(found[: 2 * width], label_free(x))


def test_scaling_and_entries_by_hand() -> None:
    # One minimum and one maximum a block; a block of equal values becomes 0, whatever it is applied to.
    scaling = Scaling.fit(np.array([[0.0, 4.0, 7.0, 7.0, -1.0, -1.0], [2.0, 1.0, 7.0, 7.0, 3.0, 1.0]]), 2)
    assert scaling.apply(np.array([[2.0, 1.0, 7.0, 9.0, -1.0, 1.0]]), 2).tolist() == [[0.5, 0.25, 0, 0, 0, 0.5]]
    assert scaling.apply(np.array([-2.0, 8.0, 3.0, 7.0]), 2).tolist() == [-0.5, 2.0, 0, 0]
    # Told by a descriptor whose moments are known by their values.
    x = torch.tensor([[10.0, 20.0], [12.0, 26.0]]).repeat(2, 1) + torch.tensor([0.0, 0.0, 100.0, 100.0])[:, None]
    d = descriptor(x, torch.tensor([0, 0, 1, 1]), 2).numpy()
    assert d[entries(["mu_x"], 2, 2)].tolist() == [61, 73]
    assert d[entries(["mu_u"], 2, 2)].tolist() == [11, 23, 111, 123]
    np.testing.assert_allclose(d[entries(["sigma_u"], 2, 2)], [1, 3, 1, 3])
    np.testing.assert_array_equal(entries(["sigma_x", "mu_x"], 2, 2), np.arange(4))
    np.testing.assert_array_equal(entries(("mu_x", "sigma_x", "mu_u", "sigma_u"), 2, 2), np.arange(12))


def test_noise() -> None:
    """The range of its coordinate over n epsilon; the released one is the same for all and spares the test phase."""
    x = torch.tensor([[0.0, 5.0], [1.0, 45.0], [0.5, 7.0], [0.25, 9.0]])  # ranges 1 and 40
    d = torch.zeros(12, dtype=torch.float64)
    points, rng = torch.full((3, 2), 1e6), np.random.default_rng(3)
    found = np.mean([(LaplaceNoise(2.0).on(d, x, points, rng) - d).abs().numpy() for _ in range(4000)], 0)
    np.testing.assert_allclose(found.reshape(6, 2), np.tile([1 / 8, 40 / 8], (6, 1)), rtol=0.1)
    one, other = (LaplaceNoise(2.0).on(d, x, x, np.random.default_rng(s)) for s in (1, 2))
    assert not torch.equal(one, other)
    assert LaplaceNoise(2.0).on(d[:4], x, x, np.random.default_rng(1), test_phase=True).any()
    x, points = torch.tensor([[0.0, 5.0], [1.0, 45.0]]), torch.tensor([[-3.0, 2.0]])
    d, noise = torch.arange(12.0, dtype=torch.float64), LaplaceNoise(0.5, released=True)
    one, other = (noise.on(d, x, points, np.random.default_rng(s)) - d for s in (1, 2))
    assert torch.equal(one, other)
    twice = noise.on(d, torch.cat([x, x]), points, np.random.default_rng(1)) - d
    torch.testing.assert_close(one, 2 * twice)
    without = noise.on(d, x, x, np.random.default_rng(1)) - d
    torch.testing.assert_close(one / 48, without / 45)  # the points' -3 is in the range
    assert torch.equal(noise.on(d[:4], x, points, np.random.default_rng(1), test_phase=True), d[:4])
    many = LaplaceNoise(0.5, released=True).on(
        torch.zeros(20_000, dtype=torch.float64), x, points, np.random.default_rng(1)
    )
    assert many.abs().mean() == pytest.approx(48 / (2 * 0.5), rel=0.05)


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (lambda: cubic(5, 6), "200 synthetic points of 5 values have 5 principal axes; take 1 to 5"),
        (lambda: cubic(300, 200), "have 199 principal axes"),
        (lambda: extent(rows(0, 3), "client 3"), "client 3 has no images"),
        (lambda: cubic(5, 0), "project latents to 0 values"),
        (
            lambda: scaled(Scaling(torch.zeros(1), torch.ones(1)), np.array([[1.0, 2.0], [np.nan, 2.0]]), 2, 0),
            r"descriptors \[1\] hold NaN",
        ),
    ],
)
def test_what_cannot_be_described(act: Callable[[], object], line: str) -> None:
    refused(line, act)


def cubic(z: int, width: int) -> object:
    return projector(synthetic(cube(torch.tensor(1.0), z)), width)


def test_the_model_is_fedavgs_after_warm_up_and_describes_halves_of_the_images(tmp_path: Path) -> None:
    for share, rounds, last in ((0.25, 20, 5), (0.5, 5, 2), (0.25, 3, 1)):
        assert method("descriptor_bounds", warm_up=share).trains_until(rounds) == last
    watched = train(method("descriptor_bounds", components=3, warm_up=0.5, samples=3), DATA, tmp_path / "a", SETTING)
    plain = train("fedavg", DATA, tmp_path / "b", grouped_setting(rounds=2, participation=0.7, lr=0.05))
    assert same(watched.shared, plain.shared)
    clients, rows = watched.trainer.method.described(watched.trainer.server) or (torch.zeros(0), torch.zeros(0))
    cohorts = [watched.trainer.plan.cohort(t) for t in (3, 4)]
    assert clients.tolist() == [i for cohort in cohorts for i in cohort]
    length = 2 * (CLASSES + 1) * 3
    assert rows.shape == (len(clients), 1 + length + 2 * (PIXELS + CLASSES))
    # The last round's, by hand.
    net = network(DATA, plain.trainer.server.shared)
    z = net.latent(torch.zeros(1, 1, 8, 8)).numel()
    how = projector(2 * torch.from_numpy(np.random.RandomState(1).random_sample((200, z))), 3)
    for row, i in zip(rows.numpy()[-len(cohorts[-1]) :], cohorts[-1], strict=True):
        own = DATA.validation[i] if DATA.validation is not None and len(DATA.validation[i]) else DATA.train[i]
        rng = stream(SETTING.seed, "halves", 4, i)
        some = np.concatenate([np.asarray(own)[rng.permutation(len(own))[: len(own) // 2]] for _ in range(3)])
        images, labels = DATA.images[some], DATA.labels[some]
        with torch.no_grad():
            reduced = how(net.latent(to_input(images)))
        joint = np.concatenate([np.asarray(images).reshape(len(some), -1) / 255, np.eye(CLASSES)[labels]], 1)
        assert row[0] == length
        assert row[1 : 1 + length] == pytest.approx(descriptor(reduced, labels, CLASSES).numpy(), abs=1e-3)
        assert row[1 + length :] == pytest.approx(np.concatenate([joint.mean(0), joint.std(0)]), abs=1e-5)


#: Every clustering as descriptors to ids.
ALL: dict[str, Callable[[clustering.Floats], clustering.Ints]] = {
    "dynamic": lambda x: clustering.dynamic(x)[0],
    "rounded": lambda x: clustering.dynamic_rounded(x)[0],
    "density": lambda x: clustering.density(x, 0.5),
    "k_means": lambda x: clustering.k_means(x, 3)[0],
    "silhouette": lambda x: clustering.k_means_silhouette(x)[0],
    "hdbscan": clustering.hdbscan,
    "agglomerative": clustering.agglomerative,
}
everyone = pytest.mark.parametrize("name", ALL)


def scattered(seed: int, clients: int, groups: int, apart: float = 10.0) -> clustering.Floats:
    """Descriptors of two entries, in groups."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, apart, (groups, 2))[rng.integers(0, groups, clients)] + rng.normal(0, 0.5, (clients, 2))


def partition(labels: clustering.Ints) -> set[frozenset[int]]:
    """Who is with whom, whatever the ids."""
    return {frozenset(np.flatnonzero(labels == m).tolist()) for m in set(labels.tolist())}


def kneedle(curve: clustering.Floats) -> int | None:
    """Satopaa et al. (2011), Sec. III, written out for a convex increasing curve at sensitivity 1: the curve is
    turned round, and the first local maximum of its height over the diagonal after which the height sinks by one
    step's width, or below zero past a minimum, is the knee. An end of the curve is level with what is beyond it."""
    k = len(curve)
    y = (curve - curve[0]) / (curve[-1] - curve[0])
    height = (1 - y)[::-1] - np.arange(k) / (k - 1)
    top = None
    for i in range(k - 1):
        before, here, after = height[max(i - 1, 0)], height[i], height[i + 1]
        if here >= before and here >= after:
            top, floor = i, here - 1 / (k - 1)
        if top is not None and here <= before and here <= after:
            floor = 0.0
        if top is not None and after < floor:
            return k - 1 - top
    return None


def test_the_elbow_of_a_curve_by_hand() -> None:
    # Turned round, 0 1 2 3 10 is 0, .7, .8, .9, 1 and 0, .45, .3, .15, 0 over the diagonal: the maximum is the second
    # from the end. With 0 .. 3 further on it is where the steep part begins.
    assert _elbow_of(np.array([0.0, 1.0, 2.0, 3.0, 10.0])) == 3
    assert _elbow_of(np.array([1.0, 1.1, 1.2, 1.3, 1.4, 4.0, 6.0, 9.0])) == 4
    x = np.array([0.0, 1.0, 3.0, 6.0, 16.0])[:, None]  # nearest others: 1 1 2 3 10
    assert elbow(x) == 3.0
    assert elbow(x, 0.5) == 1.5
    line = np.cumsum([0.0, 1.0, 1.0, 1.0, 1.0])[:, None]
    assert elbow(line, 0.98) == 0.98  # a constant curve
    assert elbow(np.array([[0.0], [1.0], [5.0]])) == 4.0  # three clients
    assert elbow(np.array([[0.0], [3.0]])) == 3.0
    assert elbow(np.array([[7.0, 7.0]])) == 0.0
    assert elbow(np.ones((6, 3))) == 0.0
    # Mutual neighbours: Kneedle answers with the last position, so all within that distance merge.
    x = np.array([0.0, 1.0, 10.0, 12.5, 20.0, 23.0])[:, None]
    curve = np.sort(nearest_other(x))
    assert curve[-1] == curve[-2] == 3.0
    assert _elbow_of(curve) == 5
    labels, eps = clustering.dynamic(x)
    assert (labels.tolist(), eps) == ([0, 0, 1, 1, 2, 2], 3.0)
    assert clustering.dynamic(x, 0.98)[0].tolist() == [0, 0, 1, 1, 2, 3]
    # A steep end is an elbow all the same.
    assert _elbow_of(np.array([0.1, 0.1, 0.1, 0.1, 3.0, 3.0])) == 3


@few(st.lists(st.floats(0, 100), min_size=4, max_size=25, unique=True), examples=100)
def test_the_elbow_is_kneedles(values: list[float]) -> None:
    curve = np.sort(np.array(values))
    if np.diff(curve).min() < 1e-6 or _touches(curve):
        return
    expected = kneedle(curve)
    assert _elbow_of(curve) == (len(curve) - 1 if expected is None else expected)


def _touches(curve: clustering.Floats) -> bool:
    """Whether rounding decides something: neighbours of equal height over the diagonal, or a height on a threshold."""
    k = len(curve)
    height = (1 - (curve - curve[0]) / (curve[-1] - curve[0]))[::-1] - np.arange(k) / (k - 1)
    thresholds = np.append(height - 1 / (k - 1), 0.0)
    gaps = np.abs(height[1:-1, None] - thresholds)
    return bool(np.abs(np.diff(height)).min() < 1e-9 or gaps.min() < 1e-9)


@few(seed=SEEDS, clients=st.integers(1, 15), groups=st.integers(1, 5), eps=st.floats(0.05, 8), examples=100)
def test_density_joins_who_is_within_reach(seed: int, clients: int, groups: int, eps: float) -> None:
    x = scattered(seed, clients, groups)
    within_reach = np.linalg.norm(x[:, None] - x, axis=2) <= eps
    assert partition(clustering.density(x, eps)) == partition(connected_components(within_reach)[1])


@given(seed=SEEDS, clients=st.integers(3, 15))
def test_the_dynamic_rule_is_density_at_the_elbow(seed: int, clients: int) -> None:
    x = scattered(seed, clients, 4)
    labels, eps = clustering.dynamic(x, 0.95)
    assert eps == elbow(x, 0.95)
    assert partition(labels) == partition(clustering.density(x, eps))
    alone = np.vstack([x, [[1e6, 1e6]]])
    assert np.flatnonzero(clustering.density(alone, eps) == clustering.density(alone, eps)[-1]).tolist() == [clients]


@pytest.mark.parametrize("name", ["flux", "flux_soft"])
def test_nobody_is_described_after_the_last_round(name: str) -> None:
    """It would be FedAvg, under another name."""
    s = setting(rounds=3, votes=False)
    refused(rf"--start of {name} must be at most the number of rounds, 3 \(.*\), not 4", Job.of, s, name, {"start": 4})
    assert Job.of(s, name, {"start": 3}).spec.params["start"] == 3


def test_the_released_codes_rounding_parts_only_whom_the_elbow_joins() -> None:
    """Of 400 synthetic cases about a quarter; each is then as if neighbours were nearer than epsilon, by components of
    their graph, and one cluster more. How many depends on how a processor rounds (105 on an EPYC)."""
    other, larger = 0, 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        clients, entries, groups = (int(rng.integers(*bounds)) for bounds in ((5, 30), (10, 250), (2, 6)))
        centres = rng.normal(size=(groups, entries))
        noise = 0.1 * rng.random() * rng.normal(size=(clients, entries))
        x = centres[rng.integers(0, groups, clients)] + noise
        (labels, eps), (rounded, near) = clustering.dynamic(x), clustering.dynamic_rounded(x)
        assert near == pytest.approx(eps, rel=1e-6)
        gaps = distances(x, x)
        within, nearer = (connected_components(linked)[1] for linked in (gaps <= eps, gaps < eps))
        assert partition(labels) == partition(within)
        assert partition(rounded) in (partition(within), partition(nearer))
        other += partition(rounded) != partition(labels)
        larger += int(rounded.max() - labels.max())
    assert 40 < other < 200
    assert larger == other


def test_equal_descriptors_are_one_cluster_however_it_rounds() -> None:
    for x in (np.ones((5, 30)), np.ones((1, 30))):
        assert clustering.dynamic_rounded(x)[0].tolist() == [0] * len(x)


def test_pairs_exactly_at_the_reach_are_within_it() -> None:
    # The reach is one of the distances, computed twice: many entries make a last bit likely to differ.
    x = np.random.default_rng(4).normal(0, 1, (12, 220))
    for eps in nearest_other(x):
        i = int(np.flatnonzero(nearest_other(x) == eps)[0])
        labels = clustering.density(x, float(eps))
        assert (labels == labels[i]).sum() > 1
    x = np.array([[0.0], [2.0], [0.0], [5.0]])
    assert clustering.density(x, 0.0).tolist() == [0, 1, 0, 2]
    assert clustering.density(x[[0, 1, 0, 1]], 0.0).tolist() == [0] * 4  # nothing but equals


@everyone
def test_equal_few_and_no_descriptors(name: str) -> None:
    for clients in (1, 2, 3, 7):
        assert ALL[name](np.full((clients, 4), 0.3)).tolist() == [0] * clients
    few = np.array([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [30.0, 0.0]])
    for clients, expected in ((2, [0, 0]), (3, [0, 0, 1]), (4, [0, 0, 1, 2])):
        labels = ALL[name](few[:clients])
        assert (labels.shape, labels.dtype, labels[0]) == ((clients,), np.int64, 0)
        if name == "k_means":
            assert len(set(labels.tolist())) == min(3, clients)
        elif name in ("density", "agglomerative"):
            assert labels.tolist() == expected


@everyone
@few(seed=SEEDS, clients=st.integers(2, 12), examples=15)
def test_ids_count_up_by_first_appearance(name: str, seed: int, clients: int) -> None:
    labels = ALL[name](scattered(seed, clients, 4))
    first = [int(np.flatnonzero(labels == m)[0]) for m in range(labels.max() + 1)]
    assert first == sorted(first)


def test_k_means_is_scikit_learns_with_one_start() -> None:
    from sklearn.cluster import KMeans

    x = np.random.default_rng(0).normal(0, 1, (60, 5))
    reference = KMeans(9, n_init=1, random_state=42).fit(x)
    assert reference.inertia_ > KMeans(9, n_init=3, random_state=42).fit(x).inertia_, "more starts change nothing"
    labels, centres = clustering.k_means(x, 9)
    assert partition(labels) == partition(reference.labels_)
    for i in range(60):
        np.testing.assert_array_equal(centres[labels[i]], reference.cluster_centers_[reference.labels_[i]])
    seeds = {frozenset(partition(clustering.k_means(x, 9, seed)[0])) for seed in range(6)}
    assert len(seeds) > 1, "the seed changes nothing"
    for gap in (0.0, 1e-18):  # fewer distinct clients than clusters
        labels, centres = clustering.k_means(np.array([[1.0, 0.0], [1.0, gap], [4.0, 0.0], [1.0, 0.0]]), 3)
        assert labels.tolist() == [0, 0, 1, 0]
        np.testing.assert_allclose(centres, [[1, 0], [4, 0]], atol=1e-12)


@few(seed=SEEDS, clients=st.integers(3, 9), examples=15)
def test_the_silhouette_chooses_k(seed: int, clients: int) -> None:
    x = scattered(seed, clients, 3)
    scores = {k: silhouette_score(x, clustering.k_means(x, k)[0]) for k in range(2, clients)}
    labels, centres = clustering.k_means_silhouette(x)
    assert len(centres) == labels.max() + 1
    assert scores[len(centres)] == pytest.approx(max(scores.values()))


def test_hdbscan_ward_and_centroids_by_hand() -> None:
    """Ward: two points at distance d merge at d; two pairs of spread 0 at distance d merge at sqrt(2) d."""
    rng = np.random.default_rng(0)
    x = np.vstack([rng.normal(0, 0.1, (5, 2)), [[40.0, 0.0]], rng.normal(9, 0.1, (5, 2)), [[0.0, -60.0]]])
    assert clustering.hdbscan(x).tolist() == [0] * 5 + [1] + [2] * 5 + [3]
    assert clustering.agglomerative(np.array([[0.0], [1.19]])).tolist() == [0, 0]
    assert clustering.agglomerative(np.array([[0.0], [1.21]])).tolist() == [0, 1]
    pairs = np.array([[0.0], [0.0], [0.9], [0.9]])
    assert clustering.agglomerative(pairs).tolist() == [0, 0, 1, 1]
    assert clustering.agglomerative(pairs, 1.3).tolist() == [0, 0, 0, 0]
    x = np.array([[0.0, 0.0], [5.0, 5.0], [2.0, 4.0]])
    centres = clustering.centroids(x, np.array([0, 1, 0]))
    assert centres.tolist() == [[1, 2], [5, 5]]
    points = np.array([[0.0, 9.0], [4.0, 4.0], [3.0, 3.5]])  # the last: a tie
    assert clustering.nearest(points, centres).tolist() == [1, 1, 0]


@few(seed=SEEDS, clients=st.integers(2, 9), eps=st.floats(0, 20), examples=40)
def test_soft_weights_by_hand(seed: int, clients: int, eps: float) -> None:
    x, n = scattered(seed, clients, 3), np.random.default_rng(seed).integers(1, 50, clients).astype(float)
    tau = bandwidth(x)
    assert tau == pytest.approx(float(np.median([v * v for v in nearest_other(x)])))
    found = soft_weights(x, x, n, eps, tau)
    for i in range(clients):
        far = [float(np.linalg.norm(x[i] - other)) for other in x]
        raw = [n[j] * np.exp(-d * d / tau) if i == j or d <= eps else 0.0 for j, d in enumerate(far)]
        np.testing.assert_allclose(found[i], np.array(raw) / sum(raw), atol=1e-12)


def test_a_point_beyond_reach_takes_the_nearest_and_equals_share_by_size() -> None:
    x = np.array([[0.0], [0.0], [8.0]])
    far = soft_weights(np.array([[1000.0], [-1000.0]]), x, np.array([1.0, 3.0, 9.0]), 2.0, 1.0)
    np.testing.assert_allclose(far, [[0, 0, 1], [0.25, 0.75, 0]])
    assert bandwidth(x) == 0
    np.testing.assert_allclose(soft_weights(x, x, np.array([1.0, 3.0, 9.0]), 20.0, 0.0)[0], [0.25, 0.75, 0])
