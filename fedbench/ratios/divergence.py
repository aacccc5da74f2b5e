"""Bregman divergences for density-ratio matching, and the non-negative objective that is made of one.

For a convex f with slope f', matching needs l1(z) = f'(z) z - f(z) and l2(z) = c l1(z) - f'(z) of a ratio z, where
c = 1 / (upper bound of the ratio) (FTW-ERM, Eq. 3.2 and Table 4). Everything is computed from the network's raw
output o, so that no logarithm of a ratio that underflowed is ever computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

#: Of a raw output o and c: tensors of any shape, and c = 1 / (upper bound of the ratio).
Of = Callable[[Tensor, float], Tensor]


class Divergence(NamedTuple):
    """One f."""

    ratio: Of  #: the link: the ratio z of a raw output
    l1: Of  #: f'(z) z - f(z), never negative for a ratio z >= 0: the surplus is a mean of it under a positive measure
    slope: Of  #: f'(z)

    def l2(self, output: Tensor, c: float) -> Tensor:
        """c l1(z) - f'(z)."""
        return c * self.l1(output, c) - self.slope(output, c)


def _log_softplus(output: Tensor) -> Tensor:
    """log(softplus(o)), which is o for very negative o, where softplus itself underflows."""
    low = output < -15
    return torch.where(low, output, torch.log(F.softplus(output.masked_fill(low, 0))))


#: Divergences by name.
DIVERGENCES = {
    # Least-squares importance fitting: f(z) = z^2 / 2, the paper's (z - 1)^2 / 2 without its linear part; z is the raw
    # output itself. The paper's f gives l1 = (z^2 - 1) / 2, which may be negative; its explicit LSIF objective and this
    # one have z^2 / 2 (the constant 1/2 that Kato and Teshima, 2021, add). Gradients are the same but for the switch.
    # The ratio is not kept positive in training; `matching` clamps it afterwards.
    "lsif": Divergence(lambda o, c: o, lambda o, c: o.square() / 2, lambda o, c: o),
    # Unnormalised Kullback-Leibler: f(z) = z log z - z; z = softplus(o).
    "ukl": Divergence(lambda o, c: F.softplus(o), lambda o, c: F.softplus(o), lambda o, c: _log_softplus(o)),
    # Logistic regression (binary KL): f(z) = z log z - (z + 1) log(z + 1); z = softplus(o).
    "lr": Divergence(
        lambda o, c: F.softplus(o),
        lambda o, c: torch.log1p(F.softplus(o)),
        lambda o, c: _log_softplus(o) - torch.log1p(F.softplus(o)),
    ),
    # Positive-unlabelled learning with the log loss, scaled: z = s / c with s = sigmoid(o).
    # f(z) = s log s + (1 - s) log(1 - s), so l1 = -log(1 - s), l2 = -c log s (Kato and Teshima, 2021). The paper prints
    # the form for ratios below 1, which a sum of densities over a density cannot keep; the scaled one reaches up to the
    # bound 1 / c. Its slope is c (log s - log(1 - s)).
    "pu": Divergence(lambda o, c: torch.sigmoid(o) / c, lambda o, c: F.softplus(o), lambda o, c: c * o),
}


class Terms(NamedTuple):
    """The two scalars of the objective max(0, S) + rest (Eq. 3.2 and D.1), over a whole data set or over a batch."""

    surplus: Tensor  #: S = mean over training samples of l1 - c mean over the pool of l1; >= 0 in the population
    rest: Tensor  #: mean over the pool of l2

    @property
    def step(self) -> Tensor:
        """What a stochastic step descends: S + rest where S >= 0, and -S alone where S < 0 (that is, it ascends S).

        Chosen on the device, without waiting for it. The regulariser stays outside, in the optimiser's weight decay:
        it is descended in both cases. (The printed algorithm has it inside the bracket that is ascended, which would
        make the weights grow; deviates: taken as a slip, as in the authors' code.)
        """
        return torch.where(self.surplus >= 0, self.surplus + self.rest, -self.surplus)


def terms(divergence: Divergence, train: Tensor, pool: Tensor, c: float) -> Terms:
    """The terms from a ratio network's raw outputs on own training samples [n] and on samples of the pool [m].

    The pool mixes the test samples of K clients in equal numbers, so the mean over it is the paper's sum over clients
    of a mean over each one's test samples, divided by K: the minimiser is sum_l q_l / (K p_k), and c's bound is that of
    this ratio. A batch of the pool need not hold as many samples of each client.
    """
    return Terms(divergence.l1(train, c).mean() - c * divergence.l1(pool, c).mean(), divergence.l2(pool, c).mean())
