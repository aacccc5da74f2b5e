"""Bregman divergences for density-ratio matching, and the non-negative objective that uses one.

For a convex f with slope f', matching needs l1(z) = f'(z) z - f(z) and l2(z) = c l1(z) - f'(z) of a ratio z, where
c = 1 / (upper bound of the ratio) (FTW-ERM, Eq. 3.2 and Table 4). Everything is computed from the network's raw output
o, which avoids the logarithm of a ratio that underflowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

#: Function of a raw output o, a tensor of any shape, and c = 1 / (upper bound of the ratio).
Of = Callable[[Tensor, float], Tensor]


class Divergence(NamedTuple):
    """A Bregman divergence, given by f."""

    ratio: Of  #: the link function: raw output to ratio z
    l1: Of  #: f'(z) z - f(z), >= 0 for z >= 0, because the surplus is its mean under a positive measure
    slope: Of  #: f'(z)

    def l2(self, output: Tensor, c: float) -> Tensor:
        """c l1(z) - f'(z)."""
        return c * self.l1(output, c) - self.slope(output, c)


def _log_softplus(output: Tensor) -> Tensor:
    """Return log(softplus(o)); for very negative o, where softplus underflows, this is o."""
    low = output < -15
    return torch.where(low, output, torch.log(F.softplus(output.masked_fill(low, 0))))


#: Divergences by name.
DIVERGENCES = {
    # Least-squares importance fitting: f(z) = z^2 / 2, the paper's (z - 1)^2 / 2 without its linear part; z is the raw
    # output. The paper's f gives l1 = (z^2 - 1) / 2, which may be negative; its explicit LSIF objective and this one
    # have z^2 / 2 (the constant 1/2 that Kato and Teshima, 2021, add). Gradients are equal but for the switch at the
    # surplus's sign, which may differ. The ratio may become negative in training; `matching` clamps it afterwards.
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
    # the form for ratios below 1, but a sum of densities over a density can exceed 1; the scaled form reaches up to the
    # bound 1 / c. Its slope is c (log s - log(1 - s)).
    "pu": Divergence(lambda o, c: torch.sigmoid(o) / c, lambda o, c: F.softplus(o), lambda o, c: c * o),
}


class Terms(NamedTuple):
    """The two scalars of the objective max(0, S) + rest (Eq. 3.2 and D.1), over a whole data set or a batch."""

    surplus: Tensor  #: S = mean over training samples of l1 - c mean over the pool of l1; >= 0 in the population
    rest: Tensor  #: mean over the pool of l2

    @property
    def step(self) -> Tensor:
        """The loss of a stochastic step: S + rest if S >= 0, and only -S if S < 0 (so the step ascends S).

        The choice runs on the device, without synchronisation. The regulariser is separate, as the optimiser's weight
        decay, so it is always descended. (The printed algorithm has it inside the bracket that is ascended, which would
        make the weights grow; deviates: taken as a slip, as in the authors' code.)
        """
        return torch.where(self.surplus >= 0, self.surplus + self.rest, -self.surplus)


def terms(divergence: Divergence, train: Tensor, pool: Tensor, c: float) -> Terms:
    """Compute the terms from a network's raw outputs on the client's training samples [n] and on pool samples [m].

    The pool has equally many test samples of each of K clients, so its mean is the paper's sum over clients of a mean
    over each client's test samples, divided by K: the minimiser is sum_l q_l / (K p_k), and c must be that of this
    ratio's bound. A batch of the pool may hold different numbers of samples per client.
    """
    return Terms(divergence.l1(train, c).mean() - c * divergence.l1(pool, c).mean(), divergence.l2(pool, c).mean())
