"""Exact ratios: the numbers of the paper's settings, the special cases, and the checks of weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbench.errors import FedbenchError
from fedbench.ratios.cases import CASES, case_ratios
from fedbench.ratios.exact import stratum_ratios
from fedbench.ratios.weights import check_weights, weights_of

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


@given(p=densities(2), q=densities(3), loss=LOSSES, raw=st.lists(st.floats(0.1, 1), min_size=3, max_size=3))
@settings(max_examples=25)
def test_special_cases_are_consistent_for_the_target(p: Floats, q: Floats, loss: Floats, raw: list[float]) -> None:
    assert p[0] @ stratum_ratios(p[0], q) == pytest.approx(1), "the mean form has expectation one"
    assert p[0] @ stratum_ratios(p[0], q, "sum") == pytest.approx(3)
    third = np.stack([*p, p.mean(0)])
    lambdas = np.array(raw) / sum(raw)
    settings = {
        "no_cs": (p, p, None),
        "cs_one": (p, np.stack([q[0], p[1]]), None),
        "cs_both": (p, q[:2], None),
        "cs_multi": (third, q, lambdas),
    }
    assert set(settings) == set(CASES)
    for case, (train, test, given_lambdas) in settings.items():
        try:
            weights = case_ratios(case, train, test, given_lambdas)
        except FedbenchError:  # two of the densities drawn are equal
            continue
        share = np.ones(len(train)) if given_lambdas is None else lambdas
        np.testing.assert_allclose((train * weights * loss).sum(1), share * (test[0] @ loss), rtol=1e-9, atol=1e-12)


P, Q = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.1, 0.9], [0.4, 0.6]])


def test_special_cases_by_hand() -> None:
    np.testing.assert_allclose(case_ratios("no_cs", P, P), [[1, 1], [2.5, 0.625]])
    one = [Q[0], P[1]]
    np.testing.assert_allclose(case_ratios("cs_one", P, one), [[0.2, 1.8], [0.5, 1.125]])
    np.testing.assert_allclose(case_ratios("cs_both", P, Q), [[0.2, 1.8], [0.5, 1.125]])
    np.testing.assert_allclose(case_ratios("cs_multi", P, Q), [[0.2, 1.8], [0.5, 1.125]])
    np.testing.assert_allclose(case_ratios("cs_multi", P, Q, [0.25, 0.75]), [[0.05, 0.45], [0.375, 0.84375]])


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
        (lambda: case_ratios("cs_multi", P, Q, [1.0]), "one lambda a client"),
        (lambda: case_ratios("cs_multi", P, Q, [0.5, 0.6]), "lambdas sums to 1.1"),
        (lambda: case_ratios("cs_multi", P, Q, [1.5, -0.5]), "lambdas has a negative"),
        (lambda: case_ratios("cs_both", P, Q, [0.5, 0.5]), "needs no lambdas"),
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
