"""The generative classifier of pFedFDA against scikit-learn, SciPy and NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedbench.methods.pfedfda.gaussian import Gaussian, Moments, classifier, estimate, positive_semidefinite, prior

K, D = 5, 7


def covariance(rng: np.random.Generator, d: int = D, scale: float = 1.0) -> np.ndarray:
    a = rng.normal(size=(d, d))
    return scale * (a @ a.T / d + 0.3 * np.eye(d))


def estimated(z: torch.Tensor, y: torch.Tensor, fallback: Gaussian, *options: float) -> Gaussian:
    """`estimate` from rows."""
    return estimate(Moments.of(z, y, len(fallback.mean)), fallback, *options)  # type: ignore[arg-type]


def example(seed: int) -> tuple[Gaussian, np.ndarray, np.ndarray]:
    """A Gaussian, a prior and features [50, D]."""
    rng = np.random.default_rng(seed)
    gaussian = Gaussian(torch.from_numpy(rng.normal(size=(K, D)) * 2), torch.from_numpy(covariance(rng)))
    return gaussian, rng.dirichlet(np.ones(K)), rng.normal(size=(50, D)) * 2


def shrunk(sigma: np.ndarray) -> np.ndarray:
    return (1 - 1e-4) * sigma + 1e-4 * np.trace(sigma) / len(sigma) * np.eye(len(sigma))


def logits(gaussian: Gaussian, pi: np.ndarray, z: np.ndarray) -> np.ndarray:
    weight, bias = classifier(gaussian, torch.from_numpy(pi))
    out: np.ndarray = (torch.from_numpy(z) @ weight.T + bias).numpy()
    return out


@given(st.integers(0, 10_000))
def test_softmax_of_the_head_is_the_posterior(seed: int) -> None:
    gaussian, pi, z = example(seed)
    s = shrunk(gaussian.covariance.numpy())
    joint = np.stack(
        [multivariate_normal(mu, s).logpdf(z) + np.log(p) for mu, p in zip(gaussian.mean.numpy(), pi, strict=True)], 1
    )
    np.testing.assert_allclose(
        log_softmax(logits(gaussian, pi, z), axis=1), log_softmax(joint, axis=1), rtol=1e-7, atol=1e-9
    )


def test_estimate_and_head_are_linear_discriminant_analysis_fitted_to_the_rows() -> None:
    rng = np.random.default_rng(6)
    y = np.concatenate([np.arange(K), rng.integers(0, K, 40)])
    z = rng.normal(size=(K, D))[y] + rng.normal(size=(len(y), D)) @ np.linalg.cholesky(covariance(rng)).T
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-4, store_covariance=True).fit(z, y)
    common = Gaussian(torch.full((K, D), 7.0), torch.eye(D))
    own = estimated(torch.from_numpy(z), torch.from_numpy(y), common, 0.0, 0.0)
    # Scikit-learn divides by n.
    own = Gaussian(own.mean, own.covariance * (len(y) - 1) / len(y))
    np.testing.assert_allclose(own.mean, lda.means_, rtol=1e-12)
    np.testing.assert_allclose(shrunk(own.covariance.numpy()), lda.covariance_, rtol=1e-9, atol=1e-12)
    ours, new = logits(own, np.bincount(y) / len(y), z), rng.normal(size=(200, D)) * 2
    np.testing.assert_allclose(softmax(ours, axis=1), lda.predict_proba(z), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(logits(own, np.bincount(y) / len(y), new).argmax(1), lda.predict(new))


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_the_moments_of_parts_add_up_to_those_of_all_rows(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(size=(sum(sizes), D)).astype(np.float32) + 5)
    y = torch.from_numpy(rng.integers(0, K, len(z)))
    parts = [Moments.of(*part, K) for part in zip(z.split(sizes), y.split(sizes), strict=True)]
    total, whole = functools.reduce(Moments.__add__, parts), Moments.of(z, y, K)
    assert torch.equal(total.counts, whole.counts)
    np.testing.assert_allclose(total.mean, whole.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(total.scatter, whole.scatter, rtol=1e-11, atol=1e-11)


@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 40), ridge=st.sampled_from([1.0, 1e-4]),
    least=st.integers(1, 3), offset=st.sampled_from([0.0, 1e-4]),
)  # fmt: skip
def test_moments_are_numpys(seed: int, n: int, ridge: float, least: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    z, y = rng.normal(size=(n, D)).astype(np.float32), rng.integers(0, K, n)
    fallback = example(seed)[0]
    got = estimated(torch.from_numpy(z), torch.from_numpy(y), fallback, ridge, offset, least)
    rows = z.astype(np.float64)
    scatter = np.zeros((D, D))
    for k in range(K):
        own = rows[y == k]
        wanted = own.mean(0) if len(own) >= least else fallback.mean[k].numpy()
        np.testing.assert_allclose(got.mean[k], wanted, rtol=1e-9, atol=1e-12)
        if len(own):
            scatter += (own - own.mean(0)).T @ (own - own.mean(0))
    expected = scatter / max(n - 1, 1) + offset + ridge * np.eye(D)
    np.testing.assert_allclose(got.covariance, expected, rtol=1e-9, atol=1e-12)
    assert got.mean.dtype == got.covariance.dtype == torch.float64


def test_beta_0_is_the_common_head_and_beta_1_the_clients_own() -> None:
    own, pi, z = example(1)
    common = example(2)[0]
    np.testing.assert_array_equal(logits(own.mix(common, 0.0, 0.0), pi, z), logits(common, pi, z))
    np.testing.assert_array_equal(logits(own.mix(common, 1.0, 1.0), pi, z), logits(own, pi, z))
    half = own.mix(common, 0.25, 0.75)
    np.testing.assert_allclose(half.mean, 0.25 * own.mean + 0.75 * common.mean)
    np.testing.assert_allclose(half.covariance, 0.75 * own.covariance + 0.25 * common.covariance)


@given(beta=st.floats(0, 1), seed=st.integers(0, 100))
def test_an_absent_class_keeps_exactly_the_common_mean(beta: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    common = Gaussian(torch.from_numpy(rng.random((K, D), np.float32)).double(), torch.eye(D, dtype=torch.float64))
    z, y = torch.from_numpy(rng.normal(size=(20, D))), torch.from_numpy(rng.integers(1, K - 1, 20))
    mixed = estimated(z, y, common, 1.0, 1e-4).mix(common, beta, beta)
    for k in (0, K - 1):
        assert torch.equal(mixed.mean[k].float(), common.mean[k].float())
    if beta > 0.01:
        assert not torch.equal(mixed.mean[1].float(), common.mean[1].float())


def features(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor, Gaussian]:
    rng = np.random.default_rng(n)
    z = torch.from_numpy(rng.normal(size=(n, d)).astype(np.float32)).relu()
    common = Gaussian(torch.zeros(K, d, dtype=torch.float64), torch.eye(d, dtype=torch.float64))
    return z, torch.from_numpy(rng.integers(0, K, n)), common


@pytest.mark.parametrize("n", [1, 5, 40, 400])
def test_the_ridge_of_one_makes_the_psd_step_a_no_op(n: int) -> None:
    z, y, common = features(n, 64)
    sigma = estimated(z, y, common, 1.0, 1e-4).covariance
    assert positive_semidefinite(sigma) is sigma
    assert torch.linalg.eigvalsh(sigma).min() >= 1 - 1e-9


def test_few_rows_and_a_small_ridge_stay_positive_semidefinite() -> None:
    # pfedfda/protocol.md#local-statistics: summed in float32, 40 rows of 128 features have eigenvalues below zero.
    z, y, common = features(40, 128)
    own = torch.zeros(K, 128).index_add_(0, y, z) / torch.bincount(y, minlength=K)[:, None]
    centred = z - own[y]
    rough = (centred.T @ centred / 39).double()
    rough.diagonal().add_(1e-8)
    assert torch.linalg.eigvalsh(rough).min() < 0
    fixed = positive_semidefinite(rough)
    # Up to the rounding of the check itself, and a Cholesky factor exists after the head's shrinkage.
    assert torch.linalg.eigvalsh(fixed).min() > -1e-14 * fixed.diagonal().max()
    torch.testing.assert_close(fixed.diagonal(), rough.diagonal(), rtol=1e-12, atol=0)
    assert torch.equal(fixed, fixed.T)
    torch.testing.assert_close(fixed, rough, rtol=0, atol=1e-4)
    weight, bias = classifier(estimated(z, y, common, 1e-4, 1e-4), prior(torch.bincount(y, minlength=K)))
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@pytest.mark.parametrize("n", [2, 8, 40])
def test_a_singular_covariance_is_raised_to_the_floor(n: int) -> None:
    """Fewer rows than features, a dead unit, a ridge below rounding: eigenvalues about zero, of either sign."""
    z, y, common = features(n, 64)
    z[:, 5] = 0.0
    scatter = Moments.of(z, y, K).scatter / (n - 1)
    sigma = estimated(z, y, common, 1e-30, 0.0).covariance
    np.testing.assert_allclose(sigma.diagonal(), scatter.diagonal(), rtol=1e-12, atol=1e-29)
    np.testing.assert_allclose(sigma, scatter, atol=1e-12)
    assert torch.linalg.eigvalsh(sigma).min() > -1e-13
    weight, bias = classifier(Gaussian(torch.ones(K, 64), sigma), prior(torch.ones(K)))
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@given(st.integers(0, 1000))
def test_a_broken_covariance_is_mended_and_keeps_its_variances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(D, D))
    sigma = torch.from_numpy((a + a.T) / 2)
    sigma.diagonal().copy_(torch.from_numpy(rng.uniform(0.2, 3, D)))
    fixed = positive_semidefinite(sigma)
    lowest = torch.linalg.eigvalsh(sigma).min()
    assert torch.linalg.eigvalsh(fixed).min() > -1e-12
    torch.testing.assert_close(fixed.diagonal(), sigma.diagonal())
    assert (fixed is sigma) == bool(lowest > 0)


def test_the_prior_is_smoothed_and_whole() -> None:
    pi = prior(torch.tensor([30.0, 10.0, 0.0]))
    np.testing.assert_allclose(pi, (np.array([0.75, 0.25, 0.0]) + 1e-4) / (1 + 3e-4), rtol=1e-12)
    # An absent class costs about -9.2 in logit (pfedfda/protocol.md#generative-classifier), not minus infinity.
    assert float(pi[2].log()) == pytest.approx(-9.2, abs=0.02)
