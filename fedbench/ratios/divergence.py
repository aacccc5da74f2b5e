"""Bregman divergences for density-ratio matching, each with its link from a network's output to a ratio.

For a convex f with slope f', matching needs l1(z) = f'(z) z - f(z) and l2(z) = c l1(z) - f'(z) of a ratio z, where
c = 1 / (upper bound of the ratio) (FTW-ERM, Eq. 3.2 and Table 4). Everything is computed from the network's raw
output o, so that no logarithm of a ratio that underflowed is ever taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.errors import unknown


class Divergence(ABC):
    """One f. Tensors of raw outputs and results have the same, any shape; `c` is 1 / (upper bound of the ratio)."""

    #: What the paper, or the literature, calls it.
    title: ClassVar[str]

    @abstractmethod
    def ratio(self, output: Tensor, c: float) -> Tensor:
        """The link: the ratio z that a raw output stands for."""

    @abstractmethod
    def l1(self, output: Tensor, c: float) -> Tensor:
        """f'(z) z - f(z), never negative for a ratio z >= 0: the surplus is a mean of it under a positive measure."""

    @abstractmethod
    def slope(self, output: Tensor, c: float) -> Tensor:
        """f'(z)."""

    def l2(self, output: Tensor, c: float) -> Tensor:
        """c l1(z) - f'(z)."""
        return c * self.l1(output, c) - self.slope(output, c)


class LSIF(Divergence):
    """Least squares: f(z) = z^2 / 2, the paper's (z - 1)^2 / 2 without its linear part; z is the raw output itself.

    The paper's f gives l1 = (z^2 - 1) / 2, which may be negative; its explicit LSIF objective and this class have
    z^2 / 2 (the constant 1/2 that Kato and Teshima, 2021, add). Gradients are the same but for the switch. The ratio
    is not kept positive in training; `matching` clamps it afterwards.
    """

    title = "least-squares importance fitting"

    def ratio(self, output: Tensor, c: float) -> Tensor:
        return output

    def l1(self, output: Tensor, c: float) -> Tensor:
        return output.square() / 2

    def slope(self, output: Tensor, c: float) -> Tensor:
        return output


class UKL(Divergence):
    """Unnormalised Kullback-Leibler: f(z) = z log z - z; z = softplus(o)."""

    title = "unnormalised Kullback-Leibler"

    def ratio(self, output: Tensor, c: float) -> Tensor:
        return F.softplus(output)

    def l1(self, output: Tensor, c: float) -> Tensor:
        return F.softplus(output)

    def slope(self, output: Tensor, c: float) -> Tensor:
        return _log_softplus(output)


class LR(Divergence):
    """Logistic regression (binary KL): f(z) = z log z - (z + 1) log(z + 1); z = softplus(o)."""

    title = "logistic regression"

    def ratio(self, output: Tensor, c: float) -> Tensor:
        return F.softplus(output)

    def l1(self, output: Tensor, c: float) -> Tensor:
        return torch.log1p(F.softplus(output))

    def slope(self, output: Tensor, c: float) -> Tensor:
        return _log_softplus(output) - torch.log1p(F.softplus(output))


class PU(Divergence):
    """Positive-unlabelled learning with the log loss, scaled: z = s / c with s = sigmoid(o).

    f(z) = s log s + (1 - s) log(1 - s), so l1 = -log(1 - s), l2 = -c log s (Kato and Teshima, 2021). The paper prints
    the form for ratios below 1, which a sum of densities over a density cannot keep; the scaled one reaches up to the
    bound 1 / c.
    """

    title = "positive-unlabelled learning"

    def ratio(self, output: Tensor, c: float) -> Tensor:
        return torch.sigmoid(output) / c

    def l1(self, output: Tensor, c: float) -> Tensor:
        return F.softplus(output)  # -log(1 - s)

    def slope(self, output: Tensor, c: float) -> Tensor:
        return c * output  # c (log s - log(1 - s))


def _log_softplus(output: Tensor) -> Tensor:
    """log(softplus(o)), which is o for very negative o, where softplus itself underflows."""
    low = output < -15
    return torch.where(low, output, torch.log(F.softplus(output.masked_fill(low, 0))))


#: Divergences by name.
DIVERGENCES: dict[str, Divergence] = {"lsif": LSIF(), "ukl": UKL(), "lr": LR(), "pu": PU()}


def divergence(name: str) -> Divergence:
    """The divergence of that name. Raises FedbenchError for an unknown one."""
    if name not in DIVERGENCES:
        raise unknown("divergence", name, DIVERGENCES)
    return DIVERGENCES[name]
