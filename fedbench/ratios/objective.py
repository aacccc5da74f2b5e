"""The non-negative Bregman objective and its stochastic step (FTW-ERM, Eq. 3.2, D.1 and Algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedbench.errors import FedbenchError
from fedbench.ratios.divergence import Divergence
from fedbench.ratios.scale import factor


class Terms(NamedTuple):
    """The two scalars of the objective, over a whole data set or over a batch."""

    surplus: Tensor  #: S = mean over training samples of l1 - c mean over the pool of l1; >= 0 in the population
    rest: Tensor  #: mean over the pool of l2

    @property
    def objective(self) -> Tensor:
        """max(0, S) + rest: what is minimised."""
        return self.surplus.clamp(min=0) + self.rest

    @property
    def step(self) -> Tensor:
        """What a stochastic step descends: S + rest where S >= 0, and -S alone where S < 0 (that is, it ascends S).

        Chosen on the device, without waiting for it. The regulariser stays outside, in the optimiser's weight decay:
        it is descended in both cases. (The printed algorithm has it inside the bracket that is ascended, which would
        make the weights grow; deviates: taken as a slip, as in the authors' code.)
        """
        return torch.where(self.surplus >= 0, self.surplus + self.rest, -self.surplus)


def terms(
    divergence: Divergence, train: Tensor, pool: Tensor, c: float, clients: int = 1, scale: str = "mean"
) -> Terms:
    """The terms from a ratio network's raw outputs on own training samples [n] and on samples of the pool [m].

    The pool mixes the test samples of `clients` clients in equal numbers, which turns the paper's sum over clients of
    a mean over each one's test samples into clients x the mean over the pool. With scale "sum" that factor is kept:
    the minimiser is sum_l q_l / p_k, and c = 1 / its upper bound. With "mean" it is dropped: the minimiser is
    1 / clients of that, and so must be c's bound. A batch of the pool need not hold as many samples of each client.
    Raises FedbenchError for an unknown scale.
    """
    times = factor(scale, clients)
    surplus = divergence.l1(train, c).mean() - times * c * divergence.l1(pool, c).mean()
    return Terms(surplus, times * divergence.l2(pool, c).mean())


def objective(
    divergence: Divergence, train: Tensor, pool: Tensor, c: float, clients: int = 1, scale: str = "mean"
) -> Tensor:
    """The whole non-negative objective of one client (a scalar), from outputs on all its training samples [n] and on
    the whole pool [m]; clients = 1 and a pool of own test samples is the single-client objective (Eq. D.2).

    Raises FedbenchError if the samples of the pool cannot come in equal numbers from the clients: the shuffled pool
    does not say whose they are, so unequal numbers could not be put right.
    """
    factor(scale, clients)
    if not len(train) or not len(pool) or len(pool) % clients:
        raise FedbenchError(
            f"no objective from {len(train)} training samples and a pool of {len(pool)} samples of {clients} clients",
            "both must hold samples, and each client gives equally many to the pool",
        )
    return terms(divergence, train, pool, c, clients, scale).objective
