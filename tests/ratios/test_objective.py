"""The divergences against their f, by numerical derivatives, and where floats end; the non-negative objective: its
minimiser, its two scales, and the switch of the stochastic step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.errors import FedbenchError
from fedbench.ratios.divergence import DIVERGENCES, divergence
from fedbench.ratios.exact import stratum_ratios
from fedbench.ratios.objective import Terms, objective, terms

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
    found, f = divergence(name), F[name]
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
    pu = divergence("pu")
    torch.testing.assert_close(pu.ratio(output, C), s / C)
    torch.testing.assert_close(pu.l1(output, C), -torch.log(1 - s))
    torch.testing.assert_close(pu.l2(output, C), -C * torch.log(s))
    train, pool, c = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0]), 0.25
    surplus, rest = terms(divergence("lsif"), train, pool, c)
    assert float(surplus) == pytest.approx(0.5 * 5 - 0.25 / 2 * 2.125)
    assert float(rest) == pytest.approx(-(1.25 - 0.25 / 2 * 2.125))


@each_divergence
def test_extreme_outputs_give_finite_terms_and_gradients(name: str) -> None:
    output = torch.tensor([-1e4, -200.0, -20.0, 0.0, 20.0, 200.0, 1e4], requires_grad=True)
    found = divergence(name)
    total = found.l1(output, C) + found.l2(output, C)
    assert total.isfinite().all()
    total.sum().backward()
    assert output.grad is not None
    assert output.grad.isfinite().all()


@pytest.mark.parametrize("name", ["ukl", "lr"])
def test_logarithm_of_a_tiny_ratio_is_continuous(name: str) -> None:
    """Two formulas meet at o = -15."""
    near = torch.tensor([-15.001, -14.999], dtype=torch.float64, requires_grad=True)
    slope = divergence(name).slope(near, C)
    np.testing.assert_allclose(slope.detach(), [-15.001, -14.999], atol=1e-6)
    slope.sum().backward()
    np.testing.assert_allclose(near.grad, [1, 1], atol=1e-6)


#: A finite space of 4 points; training counts and test counts of 3 clients, 20 test samples each.
TRAIN = np.array([10, 20, 30, 40])
TEST = np.array([[8, 6, 4, 2], [2, 2, 8, 8], [5, 5, 5, 5]])
OWN, POOL = np.repeat(range(4), TRAIN), np.repeat(range(4), TEST.sum(0))


def minimiser(name: str, c: float, scale: str) -> np.ndarray:
    """The ratios of the 4 points that minimise the objective over all functions on them."""
    table = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    f = divergence(name)
    solver = torch.optim.LBFGS(
        [table], max_iter=500, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = objective(f, table[OWN], table[POOL], c, clients=3, scale=scale)
        loss.backward()
        return loss

    for _ in range(3):
        solver.step(closure)
    return f.ratio(table.detach(), c).numpy()


@each_divergence
def test_minimiser_is_the_ratio_up_to_the_bound(name: str) -> None:
    """With a bound of a quarter of the largest ratio no point reaches its ratio beyond that bound."""
    for scale in ("mean", "sum"):
        exact = stratum_ratios(TRAIN / 100, TEST / 20, scale)
        np.testing.assert_allclose(minimiser(name, 0.9 / exact.max(), scale), exact, atol=1e-7)
    exact = stratum_ratios(TRAIN / 100, TEST / 20)
    found = minimiser(name, 4 / exact.max(), "mean")
    np.testing.assert_allclose(found, np.minimum(exact, exact.max() / 4), atol=1e-5)


@each_divergence
def test_sum_form_is_the_paper_s_sum_over_clients(name: str) -> None:
    """Against Eq. 3.2 written out client by client."""
    f, c = divergence(name), 0.2
    output = torch.linspace(-0.4, 1.1, 4, dtype=torch.float64)
    each = [output[np.repeat(range(4), row)] for row in TEST]
    surplus = f.l1(output[OWN], c).mean() - c * sum(f.l1(o, c).mean() for o in each)
    expected = max(0.0, float(surplus)) + float(sum(f.l2(o, c).mean() for o in each))
    shuffled = output[np.random.default_rng(0).permutation(POOL)]
    assert float(objective(f, output[OWN], shuffled, c, clients=3, scale="sum")) == pytest.approx(expected)
    single = f.l1(output[OWN], c).mean() - c * f.l1(each[0], c).mean()
    expected = max(0.0, float(single)) + float(f.l2(each[0], c).mean())
    assert float(objective(f, output[OWN], each[0], c)) == pytest.approx(expected)


@each_divergence
def test_step_descends_both_terms_or_ascends_the_surplus_alone(name: str) -> None:
    f, c = divergence(name), 0.5

    def gradients(train: list[float], pool: list[float]) -> tuple[Terms, Tensor, Tensor, Tensor]:
        outputs = torch.tensor([*train, *pool], dtype=torch.float64, requires_grad=True)
        found = terms(f, outputs[: len(train)], outputs[len(train) :], c)
        of = [torch.autograd.grad(g, outputs, retain_graph=True)[0] for g in (found.step, found.surplus, found.rest)]
        return found, *of

    found, step, surplus, rest = gradients([2.0, 3.0], [0.1, 0.2])
    assert found.surplus > 0
    torch.testing.assert_close(step, surplus + rest)
    assert found.objective.item() == pytest.approx((found.surplus + found.rest).item())
    found, step, surplus, rest = gradients([0.1, 0.2], [4.0, 5.0])
    assert found.surplus < 0
    torch.testing.assert_close(step, -surplus)
    assert float(rest.abs().max()) > 1e-3  # so that a step with it would differ
    assert found.objective.item() == pytest.approx(found.rest.item())


@pytest.mark.parametrize(
    ("train", "pool", "clients", "scale", "message"),
    [
        (5, 7, 3, "mean", "7 samples of 3 clients"),
        (0, 6, 3, "mean", "0 training"),
        (5, 0, 1, "mean", "pool of 0"),
        (5, 6, 0, "mean", "one client"),
        (5, 6, 2, "means", r"scale of ratios 'means'.*'mean'"),
    ],
)
def test_pools_that_make_no_objective(train: int, pool: int, clients: int, scale: str, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        objective(divergence("lsif"), torch.zeros(train), torch.zeros(pool), 0.1, clients, scale)
    with pytest.raises(FedbenchError, match=r"unknown divergence 'lsiv'.*did you mean 'lsif'"):
        divergence("lsiv")
