"""FLUX's descriptors against NumPy class by class, their scaling by hand, and the noise on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.errors import FedbenchError
from fedbench.methods.flux.noise import Noise
from fedbench.methods.parts.descriptor import (
    Bounds,
    common_bounds,
    cube,
    descriptor,
    extent,
    label_free,
    projector,
    synthetic,
)
from fedbench.methods.parts.scaling import Scaler, entries


def rows(n: int, width: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(3.0, 2.0, (n, width))).float()


# -- bounds, points and projector -----------------------------------------------------------------------------


def test_the_bounds_of_all_clients() -> None:
    a, b = extent(torch.tensor([[0.5, 2.0], [1.0, 3.0]])), extent(torch.tensor([[0.25, 4.0]]))
    assert (a.low.tolist(), a.high.tolist()) == ([0.5, 2.0], [1.0, 3.0])
    paper, released = common_bounds([a, b]), cube(torch.tensor(1.02) * 4.0, 2)
    assert (paper.low.tolist(), paper.high.tolist()) == ([0.25, 2.0], [1.0, 4.0])
    assert released.low.tolist() == [0.0, 0.0]
    assert released.high.tolist() == pytest.approx([1.02 * 4.0, 1.02 * 4.0])


def test_synthetic_points_fill_the_bounds_and_are_always_the_same() -> None:
    low, high = torch.tensor([0.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    points = synthetic(Bounds(low, high))
    assert points.shape == (200, 3)
    assert points.dtype == torch.float64
    assert torch.equal(points, synthetic(Bounds(low, high)))
    share = ((points - low) / (high - low))[:, :2]
    assert 0 <= share.min() < 0.02
    assert 0.98 < share.max() < 1
    assert (share.mean(0) - 0.5).abs().max() < 0.1
    assert not torch.equal(share[:, 0], share[:, 1])
    assert (points[:, 2] == 2).all()
    # They are the released code's: uniform numbers of NumPy's global generator, seeded with 1 by every client.
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
    torch.testing.assert_close(found.axes @ found.axes.T, torch.eye(width, dtype=torch.float64))
    assert found(points).mean(0).abs().max() < 1e-12


def test_more_axes_than_there_are() -> None:
    with pytest.raises(FedbenchError, match="200 synthetic points of 5 values have 5 principal axes; take 1 to 5"):
        projector(synthetic(Bounds(torch.zeros(5), torch.ones(5))), 6)
    with pytest.raises(FedbenchError, match="have 199 principal axes"):
        projector(synthetic(Bounds(torch.zeros(300), torch.ones(300))), 200)
    with pytest.raises(FedbenchError, match="project latents to 0 values"):
        projector(synthetic(Bounds(torch.zeros(5), torch.ones(5))), 0)


def test_a_dead_network_has_a_projector_all_the_same() -> None:
    points = synthetic(common_bounds([extent(torch.zeros(3, 6))]))
    assert not projector(points, 2)(torch.zeros(3, 6)).any()


# -- moments --------------------------------------------------------------------------------------------------


def by_hand(x: Tensor, members: np.ndarray) -> np.ndarray:
    """Class after class with NumPy, from which images [n, U] belong to which."""
    a = x.double().numpy()
    groups = [a[members[:, u]] for u in range(members.shape[1])]
    means = [g.mean(0) if len(g) > 1 else np.full(a.shape[1], -1.0) for g in groups]
    deviations = [g.std(0) if len(g) > 1 else np.full(a.shape[1], -1.0) for g in groups]
    return np.concatenate([a.mean(0), a.std(0), *means, *deviations])


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    width=st.integers(1, 4),
    shift=st.sampled_from([0.0, 1000.0]),
)
def test_moments_are_numpys(labels: list[int], width: int, shift: float) -> None:
    x, y = rows(len(labels), width) + shift, torch.tensor(labels)
    found = descriptor(x, y, 5)
    assert found.shape == (2 * (5 + 1) * width,)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), by_hand(x, np.eye(5, dtype=bool)[labels]), rtol=1e-9, atol=1e-6)
    assert torch.equal(found[: 2 * width], label_free(x))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20))
def test_images_of_many_labels_count_in_each(seed: int, n: int) -> None:
    labels = np.random.default_rng(seed).random((n, 3)) < 0.4
    x = rows(n, 2, seed)
    for given_labels in (torch.from_numpy(labels), torch.from_numpy(labels).float()):
        np.testing.assert_allclose(descriptor(x, given_labels, 3).numpy(), by_hand(x, labels), rtol=1e-9, atol=1e-6)


def test_classes_with_fewer_than_two_images_are_filled() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]])
    d = descriptor(x, torch.tensor([1, 1, 0]), 3)
    mu, sigma = d[4:10].view(3, 2), d[10:].view(3, 2)
    assert mu.tolist() == [[-1, -1], [2, 4], [-1, -1]]
    torch.testing.assert_close(sigma, torch.tensor([[-1.0, -1.0], [1.0, 2.0], [-1.0, -1.0]], dtype=torch.float64))
    alone = descriptor(x[:1], torch.tensor([2]), 3)
    assert alone.tolist() == [1, 2, 0, 0] + [-1] * 12


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_latents_that_are_not_finite_are_named(bad: float) -> None:
    x = rows(6, 3)
    x[4, 1] = bad
    for act in (extent, label_free, lambda x, who: descriptor(x, torch.zeros(6, dtype=torch.int64), 2, who)):
        with pytest.raises(FedbenchError, match="latents of client 3 hold NaN or infinite values: the model has div"):
            act(x, "client 3")
        with pytest.raises(FedbenchError, match="client 3 has no images"):
            act(x[:0], "client 3")


# -- scaling --------------------------------------------------------------------------------------------------


def test_scaling_by_hand() -> None:
    """One minimum and one maximum a block; a block of equal values becomes 0, whatever it is applied to."""
    scaler = Scaler.fit(np.array([[0.0, 4.0, 7.0, 7.0, -1.0, -1.0], [2.0, 1.0, 7.0, 7.0, 3.0, 1.0]]), 2)
    assert scaler.apply(np.array([[2.0, 1.0, 7.0, 9.0, -1.0, 1.0]])).tolist() == [[0.5, 0.25, 0, 0, 0, 0.5]]
    assert scaler.apply(np.array([-2.0, 8.0, 3.0, 7.0])).tolist() == [-0.5, 2.0, 0, 0]
    with pytest.raises(FedbenchError, match="scaling of 3 blocks cannot take descriptors of 4"):
        scaler.apply(np.zeros(8))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 6), blocks=st.integers(1, 4), width=st.integers(1, 3))
def test_the_fitting_set_fills_the_unit_interval_block_by_block(
    seed: int, clients: int, blocks: int, width: int
) -> None:
    d = np.random.default_rng(seed).normal(0, 10, (clients, blocks * width))
    scaler = Scaler.fit(d, width)
    scaled = scaler.apply(d)
    for b in range(blocks):
        cut = slice(b * width, (b + 1) * width)
        before, after = d[:, cut], scaled[:, cut]
        if before.size > 1:
            assert (after.min(), after.max()) == (0, 1)
            np.testing.assert_allclose(after, (before - before.min()) / np.ptp(before))
        else:
            assert not after.any()
    np.testing.assert_array_equal(scaler.apply(d[0, :width]), scaled[0, :width])


def test_what_cannot_be_scaled() -> None:
    with pytest.raises(FedbenchError, match=r"descriptors \[1\] hold NaN"):
        Scaler.fit(np.array([[1.0, 2.0], [np.nan, 2.0]]), 2)
    with pytest.raises(FedbenchError, match="no descriptors"):
        Scaler.fit(np.zeros((0, 4)), 2)
    with pytest.raises(FedbenchError, match="of 5 values has no blocks of 2"):
        Scaler.fit(np.zeros((3, 5)), 2)


def test_entries_of_chosen_moments() -> None:
    """Told by a descriptor whose moments are known by their values."""
    x = torch.tensor([[10.0, 20.0], [12.0, 26.0]]).repeat(2, 1) + torch.tensor([0.0, 0.0, 100.0, 100.0])[:, None]
    d = descriptor(x, torch.tensor([0, 0, 1, 1]), 2).numpy()
    assert d[entries(["mu_x"], 2, 2)].tolist() == [61, 73]
    assert d[entries(["mu_u"], 2, 2)].tolist() == [11, 23, 111, 123]
    np.testing.assert_allclose(d[entries(["sigma_u"], 2, 2)], [1, 3, 1, 3])
    np.testing.assert_array_equal(entries(["sigma_x", "mu_x"], 2, 2), np.arange(4))
    np.testing.assert_array_equal(entries(("mu_x", "sigma_x", "mu_u", "sigma_u"), 2, 2), np.arange(12))
    with pytest.raises(FedbenchError, match="unknown moment 'mu_y'; did you mean 'mu_"):
        entries(["mu_y"], 2, 2)
    with pytest.raises(FedbenchError, match="at least one moment"):
        entries([], 2, 2)


# -- noise ----------------------------------------------------------------------------------------------------


def draws(noise: Noise, count: int, x: Tensor, points: Tensor, d: Tensor) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.stack([(noise.on(d, x, points, rng) - d).numpy() for _ in range(count)])


def test_noise_has_the_range_of_its_coordinate_over_n_epsilon() -> None:
    x = torch.tensor([[0.0, 5.0], [1.0, 45.0], [0.5, 7.0], [0.25, 9.0]])  # ranges 1 and 40
    d = torch.zeros(12, dtype=torch.float64)
    found = np.abs(draws(Noise(2.0), 4000, x, torch.full((3, 2), 1e6), d)).mean(0)
    np.testing.assert_allclose(found.reshape(6, 2), np.tile([1 / 8, 40 / 8], (6, 1)), rtol=0.1)
    one, other = (Noise(2.0).on(d, x, x, np.random.default_rng(s)) for s in (1, 2))
    assert not torch.equal(one, other)
    assert Noise(2.0).on(d[:4], x, x, np.random.default_rng(1), test_phase=True).any()


def test_the_released_noise_is_the_same_for_all_and_spares_the_test_phase() -> None:
    x, points = torch.tensor([[0.0, 5.0], [1.0, 45.0]]), torch.tensor([[-3.0, 2.0]])
    d, noise = torch.arange(12.0, dtype=torch.float64), Noise(0.5, released=True)
    one, other = (noise.on(d, x, points, np.random.default_rng(s)) - d for s in (1, 2))
    assert torch.equal(one, other)
    twice = noise.on(d, torch.cat([x, x]), points, np.random.default_rng(1)) - d
    torch.testing.assert_close(one, 2 * twice)
    without = noise.on(d, x, x, np.random.default_rng(1)) - d
    torch.testing.assert_close(one / 48, without / 45)  # the points' -3 is in the range
    assert torch.equal(noise.on(d[:4], x, points, np.random.default_rng(1), test_phase=True), d[:4])
    many = Noise(0.5, released=True).on(torch.zeros(20_000, dtype=torch.float64), x, points, np.random.default_rng(1))
    assert many.abs().mean() == pytest.approx(48 / (2 * 0.5), rel=0.05)


def test_a_budget_that_is_none() -> None:
    for epsilon in (0.0, -1.0, float("nan")):
        with pytest.raises(FedbenchError, match="epsilon must be positive"):
            Noise(epsilon)
