"""Every divergence against its f, by numerical derivatives, and where floats end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedbench.errors import FedbenchError
from fedbench.ratios.divergence import DIVERGENCES, divergence

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


@pytest.mark.parametrize("name", DIVERGENCES)
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


def test_pu_is_the_scaled_form_of_kato_and_teshima() -> None:
    output = torch.linspace(-6, 6, 13, dtype=torch.float64)
    s = torch.sigmoid(output)
    pu = divergence("pu")
    torch.testing.assert_close(pu.ratio(output, C), s / C)
    torch.testing.assert_close(pu.l1(output, C), -torch.log(1 - s))
    torch.testing.assert_close(pu.l2(output, C), -C * torch.log(s))


@pytest.mark.parametrize("name", DIVERGENCES)
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


def test_unknown_name() -> None:
    with pytest.raises(FedbenchError, match=r"unknown divergence 'lsiv'.*did you mean 'lsif'"):
        divergence("lsiv")
