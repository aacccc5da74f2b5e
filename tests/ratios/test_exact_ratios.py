"""Exact ratios: the numbers of the paper's settings, the special cases, and the checks of weights; the divergences
against their f, by numerical derivatives, and where floats end; the non-negative objective: its minimiser, its form
over clients, and the switch of the stochastic step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedbench.errors import FedbenchError
from fedbench.ratios.divergence import DIVERGENCES, Divergence, Terms, terms
from fedbench.ratios.exact import CASES, case_ratios, check_weights, stratum_ratios, weights_of

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


@given(p=densities(2), q=densities(3), loss=LOSSES)
@settings(max_examples=25)
def test_special_cases_are_consistent_for_the_target(p: Floats, q: Floats, loss: Floats) -> None:
    assert p[0] @ stratum_ratios(p[0], q) == pytest.approx(1), "the mean form has expectation one"
    assert p[0] @ stratum_ratios(p[0], q, "sum") == pytest.approx(3)
    third = np.stack([*p, p.mean(0)])
    settings = {
        "no_cs": (p, p),
        "cs_one": (p, np.stack([q[0], p[1]])),
        "cs_both": (p, q[:2]),
        "cs_multi": (third, q),
    }
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
    one = [Q[0], P[1]]
    np.testing.assert_allclose(case_ratios("cs_one", P, one), [[0.2, 1.8], [0.5, 1.125]])
    np.testing.assert_allclose(case_ratios("cs_both", P, Q), [[0.2, 1.8], [0.5, 1.125]])
    np.testing.assert_allclose(case_ratios("cs_multi", P, Q), [[0.2, 1.8], [0.5, 1.125]])


def test_a_stratum_that_the_client_cannot_have_is_refused_only_when_asked_for() -> None:
    np.testing.assert_array_equal(weights_of([2, 0, 0], [0.5, 9, 3], client=0), [3, 0.5, 0.5])
    check_weights([0, 1e-9], client=4)
    ratios = stratum_ratios([0, 0.5, 0.5], [[0.2, 0.4, 0.4]])
    np.testing.assert_allclose(weights_of([1, 2], ratios, client=3), [0.8, 0.8])
    with pytest.raises(FedbenchError, match="client 3 has training samples of stratum 0, whose training density"):
        weights_of([1, 0], ratios, client=3)
    for strata in ([-1], [3]):
        with pytest.raises(FedbenchError, match=rf"client 3 has a training sample of stratum {strata[0]}"):
            weights_of(strata, ratios, client=3)


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
    ],
)
def test_what_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        act()


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
    found = minimiser(name, 4 / exact.max())
    np.testing.assert_allclose(found, np.minimum(exact, exact.max() / 4), atol=1e-5)


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
