"""Density-ratio matching of one client: HDRM (FTW-ERM, Sec. 3 and Algorithm 1).

The server collects a pool of unlabelled test samples. Each client bounds its ratio, then fits a network to training
samples and pool by stochastic gradients, which ascend if the surplus is negative.
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
#: Turns a batch of stored samples into the network's float32 input.
Prepare = Callable[[Tensor], Tensor]
#: Batch size of the forward passes that evaluate ratios.
CHUNK = 1024

# -- pool ------------------------------------------------------------------------------------------------------
# The server's pool of unlabelled test samples (Sec. 2 "Privacy", Algorithm 1, lines 1-3, and App. E).


def contribution(count: int, size: int, seed: int, client: int) -> Ints:
    """Choose which of its `count` test samples a client sends: `size` positions, drawn without replacement.

    The draw depends on the seed, the client and `count`. Raises FedbenchError if the client has fewer samples.
    """
    if count < size:
        raise FedbenchError(
            f"client {client} has {count} test samples and is to give {size} to the pool", f"give at most {count}"
        )
    return stream(seed, "ratio pool", client).choice(count, size, replace=False)


def shuffle(count: int, seed: int) -> Ints:
    """Draw a uniform order [count] for the pool that the server broadcasts, which hides who sent a sample. Equal
    numbers of samples per client make the pool a sample of the mean test density."""
    return stream(seed, "ratio shuffle").permutation(count)


# -- divergence ------------------------------------------------------------------------------------------------
# Bregman divergences for density-ratio matching, and the non-negative objective that uses one.
#
# For a convex f with slope f', matching needs l1(z) = f'(z) z - f(z) and l2(z) = c l1(z) - f'(z) of a ratio z, where
# c = 1 / (upper bound of the ratio) (FTW-ERM, Eq. 3.2 and Table 4). Everything is computed from the network's raw
# output o, which avoids the logarithm of a ratio that underflowed.


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


# -- matching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matching:
    """Hyper-parameters; the defaults are those of the authors' code (the paper gives none)."""

    divergence: str = "lsif"  #: a name of DIVERGENCES
    epochs: int = 10  #: passes over the client's training samples
    batch_size: int = 128  #: of the training samples and of the pool samples, each
    lr: float = 1e-3  #: Adam's learning rate
    weight_decay: float = 1e-6  #: L2 regulariser, always descended
    clusters: int = 20  #: M, k-means clusters for the estimate of the bound
    restarts: int = 10  #: k-means starts
    floor: float = 1e-4  #: lowest weight


@dataclass(frozen=True)
class Estimate:
    """A client's estimated ratios, relative to the mean test density, and statistics that the method reports."""

    weights: Tensor  #: [n] float32: ratios of the samples, within [floor, bound]
    bound: float  #: the upper bound r~ in the fit, which uses c = 1 / r~
    ascents: float  #: share of steps with a negative surplus
    at_floor: int  #: number of samples raised to the floor
    at_bound: int  #: number of samples lowered to the bound


def ratio_network(model: str, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """Build a network of kind `model` with one linear output: images [B, C, H, W] -> raw outputs [B, 1] (the authors'
    code; the paper names no architecture).

    `shape` is (height, width, channels). The weights depend on `seed` only; torch's generators stay unchanged. Raises
    FedbenchError as `models.build` does. A LeNet has 43,661 parameters on 28x28x1.
    """
    network = models.build(model, shape=shape, classes=2, seed=seed)
    with seeded(seed, "ratio head"):
        network.head = nn.Linear(network.feature_size, 1)
        network.initialise(network.head)
    network.classes = 1
    return network


def find_bound(train: Tensor, pool: Tensor, matching: Matching, seed: int) -> float:
    """Return the bound from k-means clusters. Raises FedbenchError as `bound.kmeans_bound` does."""
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
    """Run HDRM for one client with a known bound: fit `network` in place and return its training samples' ratios.

    train [n, ...] and pool [m, ...] are network inputs, or stored samples that `prepare` converts batch by batch. The
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
    """Train `network` in place with Adam, leave it in evaluation mode, and return the share of ascending steps.

    An epoch is a pass over the training samples; the pool is reshuffled whenever it is exhausted; short last batches
    are used. Batches come from streams of (seed, client), not from torch's generators, so the same arguments give the
    same weights. One forward pass serves both batches. Runs on the device of the tensors and the network.
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
    """Return the ratios [n] float32 of samples [n, ...], clamped to [floor, bound], and the numbers clamped below and
    above. Raises DivergedError if an output is not finite."""
    raw = torch.cat([network(prepare(part)).reshape(-1) for part in torch.split(samples, CHUNK)])
    ratio = DIVERGENCES[matching.divergence].ratio(raw, 1 / bound).float()
    if not bool(ratio.isfinite().all()):
        raise DivergedError(f"the ratio network of client {client} diverged", "take a lower lr of the ratios")
    low, high = ratio < matching.floor, ratio > bound
    return ratio.clamp(matching.floor, bound), int(low.sum()), int(high.sum())


def _endless(n: int, size: int, seed: int, purpose: str, client: int) -> Iterator[Tensor]:
    """Yield batches of indices below n without end; each pass is shuffled anew."""
    passes = 0
    while True:
        order = torch.from_numpy(stream(seed, purpose, client, passes).permutation(n).astype(np.int64))
        yield from torch.split(order, size)
        passes += 1
