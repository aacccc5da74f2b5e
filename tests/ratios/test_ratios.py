"""Exact ratios, the divergences and the non-negative objective; HDRM of one client against known ratios; the bound
from bins and clusters, with a row of Table 13; what clients send to the pool."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor, nn

from fedbench import models
from fedbench.conformance.lab import federation, setting, trainer
from fedbench.core import message
from fedbench.data.readers import read_idx
from fedbench.errors import FedbenchError
from fedbench.methods.ftw_erm import FTWERM
from fedbench.methods.parts.importance import Pool, sample
from fedbench.ratios import matching as module
from fedbench.ratios.bound import Bound, histogram_bound, kmeans_bound
from fedbench.ratios.divergence import DIVERGENCES, Divergence, Terms, terms
from fedbench.ratios.exact import CASES, case_ratios, check_weights, stratum_ratios, weights_of
from fedbench.ratios.matching import Matching, contribution, estimate, find_bound, fit, ratio_network, ratios, shuffle
from fedbench.rng import stream
from tests.support.frames import few, refused

Floats = npt.NDArray[np.float64]


def peaked(*tops: int) -> Floats:
    """Client i: 0.95 on class tops[i], the rest equally on the other nine (Table 6's rule)."""
    rows = np.full((len(tops), 10), 0.05 / 9)
    rows[range(len(tops)), tops] = 0.95
    return rows


def test_five_clients() -> None:
    """Tables 1 and 7."""
    train, test = peaked(5, 6, 7, 8, 9), peaked(0, 1, 2, 3, 4)
    for i in range(5):
        own = stratum_ratios(train[i], test[i])
        expected = np.ones(10)
        expected[i], expected[5 + i] = 171, 1 / 171
        np.testing.assert_allclose(own, expected)
        ratio = stratum_ratios(train[i], test)
        expected = np.repeat([35.0, 1.0], 5)
        expected[5 + i] = 0.005848
        np.testing.assert_allclose(ratio, expected, rtol=1e-4)
        np.testing.assert_allclose(stratum_ratios(train[i], test, "sum"), 5 * ratio)
        np.testing.assert_allclose(train[i] * ratio, np.repeat([0.19444, 0.00556], 5), atol=5e-6)


def densities(rows: int) -> st.SearchStrategy[Floats]:
    """`rows` positive densities on 4 points."""
    return arrays(np.float64, (rows, 4), elements=st.floats(0.05, 1)).map(lambda a: a / a.sum(1, keepdims=True))


LOSSES = arrays(np.float64, 4, elements=st.floats(0, 5))


@few(p=densities(2), q=densities(3), loss=LOSSES, examples=25)
def test_special_cases_are_consistent_for_the_target(p: Floats, q: Floats, loss: Floats) -> None:
    assert p[0] @ stratum_ratios(p[0], q) == pytest.approx(1), "the mean form has expectation one"
    assert p[0] @ stratum_ratios(p[0], q, "sum") == pytest.approx(3)
    third = np.stack([*p, p.mean(0)])
    settings = {"no_cs": (p, p), "cs_one": (p, np.stack([q[0], p[1]])), "cs_both": (p, q[:2]), "cs_multi": (third, q)}
    assert set(settings) == set(CASES)
    for case, (train, test) in settings.items():
        try:
            weights = case_ratios(case, train, test)
        except FedbenchError:  # two of the densities drawn are equal
            continue
        expected = np.full(len(train), test[0] @ loss)
        np.testing.assert_allclose((train * weights * loss).sum(1), expected, rtol=1e-9, atol=1e-12)


P, Q = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.1, 0.9], [0.4, 0.6]])


def test_special_cases_by_hand() -> None:
    np.testing.assert_allclose(case_ratios("no_cs", P, P), [[1, 1], [2.5, 0.625]])
    for case, test in (("cs_one", [Q[0], P[1]]), ("cs_both", Q), ("cs_multi", Q)):
        np.testing.assert_allclose(case_ratios(case, P, test), [[0.2, 1.8], [0.5, 1.125]])


def test_a_stratum_that_the_client_cannot_have_is_refused_only_when_asked_for() -> None:
    np.testing.assert_array_equal(weights_of([2, 0, 0], [0.5, 9, 3], client=0), [3, 0.5, 0.5])
    check_weights([0, 1e-9], client=4)
    ratios = stratum_ratios([0, 0.5, 0.5], [[0.2, 0.4, 0.4]])
    np.testing.assert_allclose(weights_of([1, 2], ratios, client=3), [0.8, 0.8])
    refused("client 3 has training samples of stratum 0, whose training density", weights_of, [1, 0], ratios, client=3)
    for strata in ([-1], [3]):
        refused(rf"client 3 has a training sample of stratum {strata[0]}", weights_of, strata, ratios, client=3)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: case_ratios("no_cs", P, Q), "case no_cs needs each client's training and test density to be equal"),
        (lambda: case_ratios("no_cs", P[[0, 0]], P[[0, 0]]), "the two clients' densities to differ"),
        (lambda: case_ratios("cs_one", P, P), "client 0's training and test density to differ"),
        (lambda: case_ratios("cs_one", P, Q), "client 1's to be equal"),
        (lambda: case_ratios("cs_both", P, [Q[0], P[1]]), "client 1's to differ"),
        (lambda: case_ratios("cs_both", P[[0, 1, 1]], Q[[0, 1, 1]]), "2 clients, not 3"),
        (lambda: case_ratios("cs_multi", [P[0], Q[0]], Q), "client 1 to train on another density than the target"),
        (lambda: case_ratios("cs_all", P, Q), "unknown case of covariate shift 'cs_all'"),
        (lambda: case_ratios("cs_both", P, Q * 2), "test density of client 0 sums to 2"),
        (lambda: case_ratios("cs_both", P, Q[:1]), "must both be"),
        (lambda: weights_of([1], [1, -2], client=2), "client 2 has 1 negative"),
        (lambda: weights_of([1], [1, np.inf], client=2), "client 2 has 1 infinite"),
        (lambda: weights_of([1], [1, 0], client=2), "client 2 has no training sample of positive"),
        (lambda: check_weights([1, -1e-9], 4), "client 4 has 1 negative sample weights, the first at position 1"),
        (lambda: check_weights([np.nan, np.nan], 4), "client 4 has 2 NaN"),
        (lambda: check_weights([1, np.inf], 4), "client 4 has 1 infinite"),
        (lambda: check_weights([0, 0], 4), "client 4 has no training sample of positive weight"),
        (lambda: check_weights([], 4), "client 4 has no training sample of positive weight"),
        (lambda: stratum_ratios([0.5, 0.6], [[0.5, 0.5]]), "training density sums to 1.1"),
        (lambda: stratum_ratios([0.5, 0.5], [[0.5, 0.5], [1.5, -0.5]]), "test density of client 1 has a negative"),
        (lambda: stratum_ratios([0.5, np.nan], [[0.5, 0.5]]), "training density has a negative or non-finite"),
        (lambda: stratum_ratios([0.5, 0.5], [[0.2, 0.3, 0.5]]), "do not match"),
        (lambda: stratum_ratios([[0.5, 0.5]], [[0.5, 0.5]]), "do not match"),
        (lambda: stratum_ratios(np.full(10, 0.95 / 10), peaked(0) * 5.95), "sums to"),
        (lambda: kmeans_bound(*np.zeros((2, 3, 2)), 7, 1), "6 samples cannot make 7 clusters; take 1 to 6"),
        (lambda: find_bound(*gaussians(20), Matching(clusters=41), 0), "40 samples cannot make 41 clusters"),
        (
            lambda: estimate(perceptron(1), torch.full((20, 1), np.nan), torch.ones(20, 1), GIVEN, LIMIT, 0, 2),
            "ratio network of client 2 diverged; take a lower lr",
        ),
        (lambda: contribution(0, 5, 0, 1), "client 1 has 0 test samples"),
        (lambda: contribution(4, 5, 0, 1), "client 1 has 4 test samples and is to give 5 to the pool; give at most 4"),
    ],
)
def test_what_is_refused(act: Callable[[], object], message: str) -> None:
    refused(message, act)


each_divergence = pytest.mark.parametrize("name", DIVERGENCES)
C = 0.3
#: f of a ratio z as the sources print it (PU: the scaled form, s = C z).
F: dict[str, Callable[[float], float]] = {
    "lsif": lambda z: (z - 1) ** 2 / 2,
    "ukl": lambda z: z * math.log(z) - z,
    "lr": lambda z: z * math.log(z) - (z + 1) * math.log(z + 1),
    "pu": lambda z: C * z * math.log(C * z) + (1 - C * z) * math.log(1 - C * z),
}
#: What the implemented l1 and l2 have beyond the literal ones: least squares is shifted so that l1 >= 0.
SHIFT = {"lsif": (0.5, C / 2 - 1)}
OUTPUTS = {"lsif": (0.05, 0.7, 1.0, 2.9)}


@each_divergence
def test_l1_and_l2_are_those_of_f(name: str) -> None:
    found, f = DIVERGENCES[name], F[name]
    for o in OUTPUTS.get(name, (-3.0, -0.4, 0.0, 1.3, 2.5)):
        output = torch.tensor(o, dtype=torch.float64)
        z = float(found.ratio(output, C))
        h = 1e-5 * z
        slope = (f(z + h) - f(z - h)) / (2 * h)
        l1 = slope * z - f(z)
        shift1, shift2 = SHIFT.get(name, (0.0, 0.0))
        assert float(found.l1(output, C)) == pytest.approx(l1 + shift1, abs=1e-8)
        assert float(found.l2(output, C)) == pytest.approx(C * l1 - slope + shift2, abs=1e-8)
        assert float(found.l1(output, C)) >= 0


def test_pu_and_least_squares_as_they_are_written() -> None:
    """PU is the scaled form of Kato and Teshima; least squares is as the paper writes it out."""
    output = torch.linspace(-6, 6, 13, dtype=torch.float64)
    s = torch.sigmoid(output)
    pu = DIVERGENCES["pu"]
    torch.testing.assert_close(pu.ratio(output, C), s / C)
    torch.testing.assert_close(pu.l1(output, C), -torch.log(1 - s))
    torch.testing.assert_close(pu.l2(output, C), -C * torch.log(s))
    train, pool, c = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0]), 0.25
    surplus, rest = terms(DIVERGENCES["lsif"], train, pool, c)
    assert float(surplus) == pytest.approx(0.5 * 5 - 0.25 / 2 * 2.125)
    assert float(rest) == pytest.approx(-(1.25 - 0.25 / 2 * 2.125))


@each_divergence
def test_extreme_outputs_give_finite_terms_and_gradients(name: str) -> None:
    output = torch.tensor([-1e4, -200.0, -20.0, 0.0, 20.0, 200.0, 1e4], requires_grad=True)
    found = DIVERGENCES[name]
    total = found.l1(output, C) + found.l2(output, C)
    assert total.isfinite().all()
    total.sum().backward()
    assert output.grad is not None
    assert output.grad.isfinite().all()


@pytest.mark.parametrize("name", ["ukl", "lr"])
def test_logarithm_of_a_tiny_ratio_is_continuous(name: str) -> None:
    """Two formulas meet at o = -15."""
    near = torch.tensor([-15.001, -14.999], dtype=torch.float64, requires_grad=True)
    slope = DIVERGENCES[name].slope(near, C)
    np.testing.assert_allclose(slope.detach(), [-15.001, -14.999], atol=1e-6)
    slope.sum().backward()
    np.testing.assert_allclose(near.grad, [1, 1], atol=1e-6)


#: A finite space of 4 points; training counts and test counts of 3 clients, 20 test samples each.
TRAIN = np.array([10, 20, 30, 40])
TEST = np.array([[8, 6, 4, 2], [2, 2, 8, 8], [5, 5, 5, 5]])
OWN, POOL = np.repeat(range(4), TRAIN), np.repeat(range(4), TEST.sum(0))


def objective(f: Divergence, train: Tensor, pool: Tensor, c: float) -> Tensor:
    """max(0, surplus) + rest, the whole objective of a client."""
    found = terms(f, train, pool, c)
    return found.surplus.clamp(min=0) + found.rest


def minimiser(name: str, c: float) -> np.ndarray:
    """The ratios of the 4 points that minimise the objective over all functions on them."""
    table = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    f = DIVERGENCES[name]
    solver = torch.optim.LBFGS(
        [table], max_iter=500, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = objective(f, table[OWN], table[POOL], c)
        loss.backward()
        return loss

    for _ in range(3):
        solver.step(closure)
    return f.ratio(table.detach(), c).numpy()


@each_divergence
def test_minimiser_is_the_ratio_up_to_the_bound(name: str) -> None:
    """With a bound of a quarter of the largest ratio no point reaches its ratio beyond that bound."""
    exact = stratum_ratios(TRAIN / 100, TEST / 20)
    np.testing.assert_allclose(minimiser(name, 0.9 / exact.max()), exact, atol=1e-7)
    np.testing.assert_allclose(minimiser(name, 4 / exact.max()), np.minimum(exact, exact.max() / 4), atol=1e-5)


@each_divergence
def test_the_objective_is_the_paper_s_mean_over_clients(name: str) -> None:
    """Against Eq. 3.2 written out client by client, divided by their number; of one client Eq. D.2."""
    f, c = DIVERGENCES[name], 0.2
    output = torch.linspace(-0.4, 1.1, 4, dtype=torch.float64)
    each = [output[np.repeat(range(4), row)] for row in TEST]
    for pools in (each, each[:1]):
        surplus = f.l1(output[OWN], c).mean() - c * sum(f.l1(o, c).mean() for o in pools) / len(pools)
        expected = max(0.0, float(surplus)) + float(sum(f.l2(o, c).mean() for o in pools)) / len(pools)
        assert float(objective(f, output[OWN], torch.cat(pools), c)) == pytest.approx(expected)


@each_divergence
def test_step_descends_both_terms_or_ascends_the_surplus_alone(name: str) -> None:
    f, c = DIVERGENCES[name], 0.5

    def gradients(train: list[float], pool: list[float]) -> tuple[Terms, Tensor, Tensor, Tensor]:
        outputs = torch.tensor([*train, *pool], dtype=torch.float64, requires_grad=True)
        found = terms(f, outputs[: len(train)], outputs[len(train) :], c)
        of = [torch.autograd.grad(g, outputs, retain_graph=True)[0] for g in (found.step, found.surplus, found.rest)]
        return found, *of

    found, step, surplus, rest = gradients([2.0, 3.0], [0.1, 0.2])
    assert found.surplus > 0
    torch.testing.assert_close(step, surplus + rest)
    found, step, surplus, rest = gradients([0.1, 0.2], [4.0, 5.0])
    assert found.surplus < 0
    torch.testing.assert_close(step, -surplus)
    assert float(rest.abs().max()) > 1e-3  # so that a step with it would differ


#: Two clients' test densities, N(mean, std): their mean over the training density N(0, 1) is below 2.
TESTS = ((0.8, 0.6), (-0.9, 0.5))


def normal(x: Tensor, mean: float, std: float) -> Tensor:
    return torch.exp(-(((x - mean) / std) ** 2) / 2) / std


def true_ratio(x: Tensor) -> Tensor:
    return sum(normal(x, *q) for q in TESTS) / len(TESTS) / normal(x, 0, 1)


def gaussians(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Training samples [n, 1] and a pool [n, 1] of equal numbers from both clients."""
    rng = stream(seed, "test")
    pool = np.concatenate([rng.normal(mean, std, n // 2) for mean, std in TESTS])
    return (torch.from_numpy(a.astype(np.float32))[:, None] for a in (rng.normal(size=n), rng.permutation(pool)))


def perceptron(inputs: int, hidden: int = 32, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, second = (nn.Sequential(nn.Linear(size, hidden), nn.Tanh()) for size in (inputs, hidden))
        return nn.Sequential(nn.Flatten(), first, second, nn.Linear(hidden, 1))


LIMIT = 2.5
GIVEN = Matching()


def error(network: nn.Module, matching: Matching) -> float:
    """Mean absolute error of the ratio over fresh training samples."""
    fresh, _ = gaussians(4000, seed=99)
    found, _, _ = ratios(network, fresh, matching, LIMIT, 0)
    return float((found - true_ratio(fresh[:, 0])).abs().mean())


@pytest.mark.parametrize("name", DIVERGENCES)
def test_gaussians_in_closed_form(name: str) -> None:
    """The constant ratio 1 errs by 0.33; the bound of 2.5 is above the largest ratio."""
    train, pool = gaussians(2000)
    matching = replace(GIVEN, divergence=name, epochs=20, lr=1e-2)
    network = perceptron(1)
    ascents = fit(network, train, pool, matching, LIMIT, 0, 0)
    assert error(network, matching) < 0.15
    assert 0 <= ascents < 0.5


def wide(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same ratio in 10 dimensions, of which only the first matters: easy to learn by heart."""
    noise = stream(seed, "noise").normal(size=(2 * n, 9)).astype(np.float32)
    first = torch.cat(list(gaussians(n, seed)))
    both = torch.cat([first, torch.from_numpy(noise)], 1)
    return both[:n], both[n:]


@pytest.mark.parametrize("name", ["lsif", "ukl"])
def test_the_switch_keeps_a_network_from_hacking_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples, many epochs: without ascents the ratios of the pool's samples, and with them all others, run off."""
    train, pool = wide(200, 0)
    fresh, _ = wide(2000, 1)
    matching = replace(GIVEN, divergence=name, epochs=100, lr=3e-3)

    def fitted() -> tuple[float, float]:
        network = perceptron(10, 64)
        ascents = fit(network, train, pool, matching, LIMIT, 0, 0)
        found, _, _ = ratios(network, fresh, matching, 1e9, 0)
        return ascents, float((found - true_ratio(fresh[:, 0])).abs().mean())

    ascents, kept = fitted()
    monkeypatch.setattr(Terms, "step", property(lambda found: found.surplus + found.rest))
    _, hacked = fitted()
    assert 0.05 < ascents < 0.5
    assert kept < 1.2
    assert hacked > 2 * kept


def digits(shares: np.ndarray, n: int, rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """n scikit-learn digits as images [n, 1, 8, 8] with those class shares, drawn with replacement; their labels."""
    images, labels = load_digits(return_X_y=True)
    each = shares[labels] / np.bincount(labels)[labels]
    rows = rng.choice(len(labels), n, p=each / each.sum())
    return torch.from_numpy(images[rows].astype(np.float32) / 16).reshape(-1, 1, 8, 8), labels[rows]


def test_target_shift_of_digits() -> None:
    """Separable classes, exact ratios 10 (digits 0-4) and 1/10 (5-9): the estimate keeps them apart."""
    low = np.repeat([1.0, 10.0], 5) / 55
    exact = stratum_ratios(low, low[::-1])
    train, labels = digits(low, 1500, stream(0, "digits train"))
    pool, _ = digits(low[::-1], 600, stream(0, "digits pool"))
    matching = Matching(epochs=40, lr=3e-3)
    bound = find_bound(train, pool, matching, 0)
    found = estimate(perceptron(64), train, pool, matching, bound, seed=0, client=0)
    of_class = [float(found.weights[labels == c].mean()) for c in range(10)]
    assert min(of_class[:5]) > 3
    assert max(of_class[5:]) < 1
    assert 0.5 * exact.max() < found.bound < 2 * exact.max()
    assert 0 < found.ascents < 0.5
    assert 0.7 < float(found.weights.mean()) < 1.2
    assert float(found.weights.max()) <= found.bound


def test_same_arguments_same_bits_also_of_bytes_and_the_global_generators_rest() -> None:
    """`prepare` makes batches of 8-bit images [n, H, W, C] into the network's input."""
    train, pool = gaussians(300)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()

    def weights(seed: int = 0, client: int = 0) -> Tensor:
        return estimate(perceptron(1), train, pool, replace(GIVEN, epochs=2), LIMIT, seed, client).weights

    once = weights()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    torch.rand(3)
    assert torch.equal(weights(), once)
    assert not torch.equal(weights(seed=1), once)
    assert not torch.equal(weights(client=1), once)
    images, _ = digits(np.full(10, 0.1), 150, stream(0, "bytes"))
    stored = (images * 16).to(torch.uint8).permute(0, 2, 3, 1)

    def prepare(batch: Tensor) -> Tensor:
        return batch.permute(0, 3, 1, 2).float() / 16

    direct = estimate(perceptron(64), images[:100], images[100:], replace(GIVEN, epochs=2), LIMIT, 0, 0)
    given = estimate(perceptron(64), stored[:100], stored[100:], replace(GIVEN, epochs=2), LIMIT, 0, 0, prepare)
    assert torch.equal(direct.weights, given.weights)


def test_batches_pass_over_all_training_samples_and_recycle_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 training samples and a pool of 4 in batches of 3: 3 steps an epoch, the pool is shuffled after 2."""
    seen: list[tuple[list[float], list[float]]] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            values = x[:, 0].tolist()
            seen.append(([v for v in values if v < 50], [v for v in values if v >= 50]))
            return super().forward(x * 0.01)

    train, pool = torch.arange(7.0)[:, None], torch.arange(50.0, 54.0)[:, None]
    network = Spy(1, 1)
    fit(network, train, pool, replace(GIVEN, epochs=2, batch_size=3), LIMIT, 0, 0)
    assert [(len(a), len(b)) for a, b in seen] == [(3, 3), (3, 1), (1, 3), (3, 1), (3, 3), (1, 1)]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(v for own, _ in epoch for v in own) == list(range(7))
    for k in (0, 2, 4):
        assert sorted(seen[k][1] + seen[k + 1][1]) == [50, 51, 52, 53]
    assert seen[0][0] + seen[1][0] != seen[3][0] + seen[4][0]
    assert not network.training


def test_regulariser_is_descended_when_the_surplus_is_ascended() -> None:
    """Outputs are 0 on the training samples and large on the pool, so every step ascends."""
    train, pool = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])

    def idle_weight(weight_decay: float) -> float:
        network = nn.Linear(2, 1, bias=False)
        network.weight.data = torch.tensor([[5.0, 2.0]])  # no sample reaches the second weight
        matching = replace(GIVEN, epochs=10, weight_decay=weight_decay)
        assert fit(network, train, pool, matching, 1.0, 0, 0) == 1
        return network.weight[0, 1].item()

    assert idle_weight(0) == 2
    assert idle_weight(0.1) < 2


def test_clamped_ratios_are_counted_and_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    samples = torch.tensor([[-1.0], [0.0], [1e-4], [1.0], [2.5], [3.0], [9.0], [99.0]])
    found, at_floor, at_bound = ratios(network, samples, GIVEN, LIMIT, 0)
    torch.testing.assert_close(found, torch.tensor([1e-4, 1e-4, 1e-4, 1.0, 2.5, 2.5, 2.5, 2.5]))
    assert (at_floor, at_bound) == (2, 3)
    train, _ = gaussians(50)
    whole, _, _ = ratios(perceptron(1), train, GIVEN, LIMIT, 0)
    monkeypatch.setattr(module, "CHUNK", 7)
    torch.testing.assert_close(ratios(perceptron(1), train, GIVEN, LIMIT, 0)[0], whole)


def test_the_ratio_network_is_the_classifier_with_one_output() -> None:
    """Its head is drawn as the model draws its own: the ResNet's linear layers have no bias at the start."""
    network = ratio_network("lenet5", (28, 28, 1), seed=3)
    assert sum(p.numel() for p in network.parameters()) == 43_661
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 1)
    again, other = (ratio_network("lenet5", (28, 28, 1), seed=s) for s in (3, 4))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert not torch.equal(network.head.weight, other.head.weight)
    body = models.build("lenet5", shape=(28, 28, 1), classes=2, seed=3).backbone
    assert all(torch.equal(a, b) for a, b in zip(body.parameters(), network.backbone.parameters(), strict=True))
    network = ratio_network("resnet18_gn", (32, 32, 3), seed=0)
    assert network.head.weight.shape == (1, 256)
    assert float(network.head.bias.detach().abs().sum()) == 0


BINS = 6
NUMBERS = st.lists(st.integers(0, BINS - 1), min_size=1, max_size=60)


def test_by_hand() -> None:
    """Bin 0: (3/6)/(4/8) = 1; bin 1: (1/6)/(1/8) = 4/3; bin 2: 0; bin 3 has no training sample."""
    train, pool = [0, 0, 0, 0, 1, 2, 2, 2], [0, 0, 0, 1, 3, 3]
    assert histogram_bound(train, pool, 4) == Bound(pytest.approx(4 / 3), train_count=1)


@few(train=NUMBERS, pool=NUMBERS, examples=40)
def test_every_bin_is_below_and_one_attains_it(train: list[int], pool: list[int]) -> None:
    shares = {b: (pool.count(b) / len(pool)) / (train.count(b) / len(train)) for b in range(BINS) if b in train}
    if not max(shares.values()):
        refused("no bin of 6 holds both", histogram_bound, train, pool, BINS)
        return
    found = histogram_bound(train, pool, BINS)
    assert found.value == pytest.approx(max(shares.values()))
    assert found.train_count in {train.count(b) for b, share in shares.items() if share == pytest.approx(found.value)}


def blobs(counts: list[int], seed: int = 0) -> np.ndarray:
    """Four far-apart clouds of points in the plane."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0], [100, 0], [0, 100], [100, 100]])
    return np.repeat(centres, counts, axis=0) + rng.normal(size=(sum(counts), 2))


def test_clusters_of_separate_clouds_give_the_exact_largest_ratio() -> None:
    train, pool = blobs([70, 10, 20, 0]), blobs([5, 20, 20, 5], 1)
    found = kmeans_bound(train, pool, 4)
    assert found == Bound(pytest.approx((20 / 50) / (10 / 100)), train_count=10)
    assert kmeans_bound(train.reshape(-1, 1, 2, 1), pool.reshape(-1, 1, 2, 1), 4) == found, "images"


def test_same_seed_same_bound_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several threads would depend on how many there are."""
    threads: list[int] = []
    original = KMeans.fit_predict

    def spy(self: KMeans, samples: np.ndarray) -> np.ndarray:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return original(self, samples)

    monkeypatch.setattr(KMeans, "fit_predict", spy)
    x = np.random.default_rng(0).random((300, 5))
    with threadpool_limits(2):
        values = [kmeans_bound(x[:200], x[200:] ** 2, 7, 1, seed).value for seed in (0, 0, 1, 2)]
    assert set(threads) == {1}
    assert values[0] == values[1]
    assert len(set(values)) > 1


def test_restarts_make_the_bound_steady() -> None:
    """Digits in Table 13's way: a single start in few clusters may miss the rare digits, the best of ten does not."""
    images, labels = load_digits(return_X_y=True)
    high = labels >= 5
    train = np.concatenate([images[:1200][high[:1200]], images[:1200][~high[:1200]][:30]])
    pool = np.concatenate([images[1200:][~high[1200:]], images[1200:][high[1200:]][:15]])
    single, many = ([kmeans_bound(train, pool, 8, n, seed).value for seed in range(6)] for n in (1, 10))
    assert np.std(many) < 0.2 * np.std(single)


def test_needs_no_torch() -> None:
    modules = ", ".join(f"fedbench.ratios.{name}" for name in ("bound", "exact"))
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'sklearn', 'scipy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_table_13_with_20_clusters(data_root: Path) -> None:
    """MNIST, train 271 of each digit 0-4 and 5421 of 5-9, test 892 and 44."""
    sides = []
    for split, counts in (("train", [271] * 5 + [5421] * 5), ("t10k", [892] * 5 + [44] * 5)):
        images = read_idx(data_root / "mnist" / f"{split}-images-idx3-ubyte.gz")
        labels = read_idx(data_root / "mnist" / f"{split}-labels-idx1-ubyte.gz")
        sides.append(images[np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(counts)])])
    assert [len(x) for x in sides] == [28_460, 4_680]
    assert 14 < kmeans_bound(*sides, clusters=20, restarts=1).value < 17


@few(count=st.integers(3, 30), client=st.integers(0, 50), seed=st.integers(0, 2**32), examples=25)
def test_a_client_gives_so_many_of_its_own_samples_and_the_pool_has_an_order_of_all(
    count: int, client: int, seed: int
) -> None:
    chosen = contribution(count, 3, seed, client)
    assert len(set(chosen.tolist())) == 3
    assert set(chosen.tolist()) <= set(range(count))
    np.testing.assert_array_equal(chosen, contribution(count, 3, seed, client))
    for size in (0, 1, count):
        order = shuffle(size, seed)
        assert sorted(order.tolist()) == list(range(size))
        np.testing.assert_array_equal(order, shuffle(size, seed))


def test_draws_and_orders_are_uniform() -> None:
    """Client 0's share at each place of a pool of three clients' two samples, over 1000 seeds: 1/3 within 5 standard
    errors; and each of a client's five samples is as often one of two."""
    first = np.mean([shuffle(6, seed) < 2 for seed in range(1000)], axis=0)
    np.testing.assert_allclose(first, 1 / 3, atol=5 * np.sqrt(2 / 9 / 1000))
    seen = Counter(int(i) for seed in range(1000) for i in contribution(5, 2, seed, 0))
    np.testing.assert_allclose([seen[i] / 1000 for i in range(5)], 2 / 5, atol=5 * np.sqrt(0.24 / 1000))
    own = contribution(9, 4, 7, 0)
    for another in (contribution(9, 4, 8, 0), contribution(9, 4, 7, 1)):
        assert not np.array_equal(own, another), "the draw of another seed or client"


class Watching(FTWERM):
    pools: list[torch.Tensor] = []  # noqa: RUF012

    def learn(self, server: Any, cohort: Any, t: int) -> None:
        super().learn(server, cohort, t)
        if isinstance(server.memory, Pool):
            self.pools.append(server.memory.images)


SIZES = (30, 20, 20, 20)
DATA = federation(SIZES)


def asked(where: Path, data: Any = DATA) -> tuple[Any, torch.Tensor]:
    """(the trainer, the pool) after the server's questions before the first round; three samples a client."""
    how = Watching(ratios="hdrm", n_te=3, clusters=2, restarts=1, matching_epochs=1)
    it = trainer(how, data, where, setting(steps=1, passes="endless", momentum=0.0, rounds=1, window=1))
    Watching.pools.clear()
    it.resume()
    it.executor.close()
    (pool,) = Watching.pools
    return it, pool


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [one.numpy().tobytes() for one in images]


def test_the_pool(tmp_path: Path) -> None:
    """Equally many of each client's test images, in an order that does not depend on them, and counted as sent."""
    it, pool = asked(tmp_path)
    own = [rows_of(sample(it.client(i, {}, 0), 3)) for i in range(len(SIZES))]
    assert sorted(rows_of(pool)) == sorted(image for images in own for image in images)
    for i, images in enumerate(own):
        assert set(images) <= set(rows_of(DATA.images[DATA.test[i]]))
    assert rows_of(pool) != [image for images in own for image in images], "who sent what cannot be told by the order"
    _, inverted = asked(tmp_path / "inverted", dataclasses.replace(DATA, images=255 - DATA.images))
    assert torch.equal(inverted, 255 - pool)
    assert len(pool) == 3 * len(SIZES)
    assert it.surveyed == (pool.nbytes, len(SIZES) * pool.nbytes)
    assert message.size(message.Question()) == 0
    image = torch.zeros(32, 32, 3, dtype=torch.uint8)
    up, down = (message.size(Pool(image.expand(count, -1, -1, -1))) for count in (100, 10 * 100))
    assert down == 10 * up == 3_072_000
    assert round(8 * down / 1e6) == 25
