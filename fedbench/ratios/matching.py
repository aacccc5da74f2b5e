"""Density-ratio matching of one client: HDRM (FTW-ERM, Sec. 3 and Algorithm 1).

The server's pool of unlabelled test samples; a bound of the ratio; then a network fitted to training samples and pool
by stochastic gradients that ascend where the surplus is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench import models
from fedbench.errors import DivergedError, FedbenchError
from fedbench.models.base import seeded
from fedbench.ratios.bound import kmeans_bound
from fedbench.rng import stream

Ints = npt.NDArray[np.int64]
#: Turns a batch of samples as they are stored into the network's float32 input.
Prepare = Callable[[Tensor], Tensor]
#: Samples of one forward pass when ratios are read off.
CHUNK = 1024

# -- pool ------------------------------------------------------------------------------------------------------
# The server's pool of unlabelled test samples (Sec. 2 "Privacy", Algorithm 1, lines 1-3, and App. E).


def contribution(count: int, size: int, seed: int, client: int) -> Ints:
    """What a client sends of its `count` test samples: `size` positions among them, drawn without replacement.

    The draw depends on the seed, on the client and on how many samples it has. Raises FedbenchError if the client has
    fewer samples.
    """
    if count < size:
        raise FedbenchError(
            f"client {client} has {count} test samples and is to give {size} to the pool", f"give at most {count}"
        )
    return stream(seed, "ratio pool", client).choice(count, size, replace=False)


def shuffle(count: int, seed: int) -> Ints:
    """The order [count] of the anonymous pool that the server broadcasts, uniformly drawn: it says nothing of who sent
    what. Equal numbers from each client make the pool a sample of the mean test density."""
    return stream(seed, "ratio shuffle").permutation(count)


# -- divergence ------------------------------------------------------------------------------------------------
# Bregman divergences for density-ratio matching, and the non-negative objective that is made of one.
#
# For a convex f with slope f', matching needs l1(z) = f'(z) z - f(z) and l2(z) = c l1(z) - f'(z) of a ratio z, where
# c = 1 / (upper bound of the ratio) (FTW-ERM, Eq. 3.2 and Table 4). Everything is computed from the network's raw
# output o, so that no logarithm of a ratio that underflowed is ever computed.


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


# -- matching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matching:
    """Hyper-parameters; the defaults are those of the authors' code (the paper gives none)."""

    divergence: str = "lsif"  #: a name of DIVERGENCES
    epochs: int = 10  #: passes over the client's training samples
    batch_size: int = 128  #: of the training samples and of the pool, each
    lr: float = 1e-3  #: of Adam
    weight_decay: float = 1e-6  #: L2 regulariser, always descended
    clusters: int = 20  #: M, k-means clusters that the bound is estimated with
    restarts: int = 10  #: starts of k-means
    floor: float = 1e-4  #: lowest weight


@dataclass(frozen=True)
class Estimate:
    """A client's estimated ratios, over the mean of the test densities, and what the method reports of them."""

    weights: Tensor  #: [n] float32: ratios of the samples, within [floor, bound]
    bound: float  #: the upper bound r~ that the fit used; it used c = 1 / r~
    ascents: float  #: share of steps with a negative surplus
    at_floor: int  #: samples that were raised to the floor
    at_bound: int  #: samples whose ratio would have blown up beyond the bound and were lowered to it


def ratio_network(model: str, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """A fresh network of that kind whose head is one linear output: images [B, C, H, W] -> raw outputs [B, 1] (the
    authors' code; the paper names none).

    `shape` is (height, width, channels). The weights are determined by `seed` alone; torch's generators stay
    untouched. Raises FedbenchError as `models.build` does. A LeNet has 43,661 parameters on 28x28x1.
    """
    network = models.build(model, shape=shape, classes=2, seed=seed)
    with seeded(seed, "ratio head"):
        network.head = nn.Linear(network.feature_size, 1)
        network.initialise(network.head)
    network.classes = 1
    return network


def find_bound(train: Tensor, pool: Tensor, matching: Matching, seed: int) -> float:
    """The bound of the k-means clusters. Raises FedbenchError as `bound.kmeans_bound` does."""
    own, other = (x.detach().cpu().numpy() for x in (train, pool))
    return kmeans_bound(own, other, matching.clusters, matching.restarts, seed).value


def estimate(
    network: nn.Module,
    train: Tensor,
    pool: Tensor,
    matching: Matching,
    bound: float,
    seed: int,
    client: int,
    prepare: Prepare = Tensor.float,
) -> Estimate:
    """HDRM for one client whose bound is known: fit (in place), and ratios of its training samples.

    train [n, ...] and pool [m, ...] are inputs of the network, or what `prepare` makes them from, batch by batch. The
    pool holds equally many samples of every client. Raises FedbenchError as `ratios` does.
    """
    ascents = fit(network, train, pool, matching, bound, seed, client, prepare)
    weights, at_floor, at_bound = ratios(network, train, matching, bound, client, prepare)
    return Estimate(weights, bound, ascents, at_floor, at_bound)


def fit(
    network: nn.Module,
    train: Tensor,
    pool: Tensor,
    matching: Matching,
    bound: float,
    seed: int,
    client: int,
    prepare: Prepare = Tensor.float,
) -> float:
    """Train `network` in place with Adam and leave it in evaluation mode; returns the share of ascending steps.

    A pass over the training samples is an epoch; the pool is shuffled anew whenever it is used up; short last batches
    are kept. Batches come from streams of (seed, client), torch's generators are not used: same arguments, same
    weights. One forward pass serves both batches. Runs where the tensors and the network lie.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=matching.lr, weight_decay=matching.weight_decay)
    train_batches, pool_batches = (
        _endless(len(samples), matching.batch_size, seed, f"ratio {what} batches", client)
        for samples, what in ((train, "train"), (pool, "pool"))
    )
    steps = matching.epochs * -(-len(train) // matching.batch_size)
    ascents = torch.zeros((), device=train.device)
    network.train()
    for _, own, other in zip(range(steps), train_batches, pool_batches, strict=False):
        batch = torch.cat([prepare(train[own.to(train.device)]), prepare(pool[other.to(pool.device)])])
        output = network(batch).reshape(-1)
        objective = terms(DIVERGENCES[matching.divergence], output[: len(own)], output[len(own) :], 1 / bound)
        ascents += objective.surplus.detach() < 0
        optimiser.zero_grad()
        objective.step.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    network.eval()
    return float(ascents) / steps


@torch.no_grad()
def ratios(
    network: nn.Module, samples: Tensor, matching: Matching, bound: float, client: int, prepare: Prepare = Tensor.float
) -> tuple[Tensor, int, int]:
    """The fitted ratios [n] float32 of samples [n, ...] clamped to [floor, bound], and how many were clamped below
    and above. Raises DivergedError if an output is not finite."""
    raw = torch.cat([network(prepare(part)).reshape(-1) for part in torch.split(samples, CHUNK)])
    ratio = DIVERGENCES[matching.divergence].ratio(raw, 1 / bound).float()
    if not bool(ratio.isfinite().all()):
        raise DivergedError(f"the ratio network of client {client} diverged", "take a lower lr of the ratios")
    low, high = ratio < matching.floor, ratio > bound
    return ratio.clamp(matching.floor, bound), int(low.sum()), int(high.sum())


def _endless(n: int, size: int, seed: int, purpose: str, client: int) -> Iterator[Tensor]:
    """Batches of indices below n, pass after pass, each pass a fresh shuffle."""
    passes = 0
    while True:
        order = torch.from_numpy(stream(seed, purpose, client, passes).permutation(n).astype(np.int64))
        yield from torch.split(order, size)
        passes += 1
