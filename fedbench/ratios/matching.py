"""Density-ratio matching of one client: HDRM (FTW-ERM, Sec. 3 and Algorithm 1).

Two steps: a bound of the ratio, then a network fitted to training samples and pool by stochastic gradients that
ascend where the surplus is negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.errors import DivergedError, FedbenchError
from fedbench.ratios.bound import kmeans_bound
from fedbench.ratios.divergence import divergence
from fedbench.ratios.objective import terms
from fedbench.rng import stream

#: Turns a batch of samples as they are stored into the network's float32 input.
Prepare = Callable[[Tensor], Tensor]
#: Samples of one forward pass when ratios are read off.
CHUNK = 1024


@dataclass(frozen=True)
class Matching:
    """Hyper-parameters; the defaults are those of the authors' code (the paper gives none), its bound apart."""

    divergence: str = "lsif"  #: a name of `divergence.DIVERGENCES`
    epochs: int = 10  #: passes over the client's training samples
    batch_size: int = 128  #: of the training samples and of the pool, each
    lr: float = 1e-3  #: of Adam
    weight_decay: float = 1e-6  #: L2 regulariser, always descended
    clusters: int = 20  #: M, k-means clusters that the bound is estimated with; 0 takes `bound` as given
    restarts: int = 10  #: starts of k-means
    bound: float = 0.0  #: upper bound of the ratio in mean form, with clusters = 0
    floor: float = 1e-4  #: lowest weight

    def __post_init__(self) -> None:
        divergence(self.divergence)
        _require(self.epochs >= 1 and self.batch_size >= 1, "needs at least one epoch and one sample a batch")
        _require(self.lr > 0 and self.weight_decay >= 0, "needs a positive lr and no negative weight_decay")
        _require(self.clusters >= 0 and self.restarts >= 1, "needs no negative clusters and at least one restart")
        _require((self.clusters > 0) == (self.bound == 0), "takes either clusters or, with clusters = 0, a bound")
        _require(math.isfinite(self.bound) and self.bound >= 0, "needs a finite bound above 0")
        _require(self.floor >= 0, "needs a floor that is not negative")


@dataclass(frozen=True)
class Estimate:
    """A client's estimated ratios in mean form, and what to tell the user about them."""

    weights: Tensor  #: [n] float32: ratios of the samples asked for, within [floor, bound]
    bound: float  #: the upper bound r~ that the fit used; it used c = 1 / r~
    ascents: float  #: share of steps with a negative surplus
    at_floor: int  #: samples that were raised to the floor
    at_bound: int  #: samples whose ratio would have blown up beyond the bound and were lowered to it

    @property
    def mean(self) -> float:
        """Mean weight; on the training samples it should be near 1."""
        return float(self.weights.double().mean())


def estimate(
    network: nn.Module,
    train: Tensor,
    pool: Tensor,
    matching: Matching,
    seed: int,
    client: int,
    prepare: Prepare | None = None,
    bound: float | None = None,
) -> Estimate:
    """The whole of HDRM for one client: bound (unless it is known), fit (in place), ratios of its training samples.

    train [n, ...] and pool [m, ...] are inputs of the network, or what `prepare` makes them from, batch by batch; the
    clusters are those of the samples as given. The pool holds equally many samples of every client (`pool`). Raises
    FedbenchError as `find_bound`, `fit` and `ratios` do.
    """
    bound = find_bound(train, pool, matching, seed) if bound is None else bound
    ascents = fit(network, train, pool, matching, bound, seed, client, prepare)
    weights, at_floor, at_bound = ratios(network, train, matching, bound, client, prepare)
    return Estimate(weights, bound, ascents, at_floor, at_bound)


def find_bound(train: Tensor, pool: Tensor, matching: Matching, seed: int) -> float:
    """The bound given, or the one of the k-means clusters. Raises FedbenchError as `bound.kmeans_bound` does."""
    if not matching.clusters:
        return matching.bound
    own, other = (x.detach().cpu().numpy() for x in (train, pool))
    return kmeans_bound(own, other, matching.clusters, matching.restarts, seed).value


def fit(
    network: nn.Module,
    train: Tensor,
    pool: Tensor,
    matching: Matching,
    bound: float,
    seed: int,
    client: int,
    prepare: Prepare | None = None,
) -> float:
    """Train `network` in place with Adam and leave it in evaluation mode; returns the share of ascending steps.

    A pass over the training samples is an epoch; the pool is shuffled anew whenever it is used up; short last batches
    are kept. Batches come from streams of (seed, client), torch's generators are not used: same arguments, same
    weights. One forward pass serves both batches. Runs where the tensors and the network lie. Raises FedbenchError
    for an empty set and for a bound that is not positive and finite.
    """
    if not len(train) or not len(pool):
        raise FedbenchError(
            f"client {client} cannot match ratios with {len(train)} training samples and a pool of {len(pool)}"
        )
    if not 0 < bound < math.inf:
        raise FedbenchError(f"client {client} cannot match ratios with the upper bound {bound:g}")
    f, c, input_of = divergence(matching.divergence), 1 / bound, prepare or torch.Tensor.float
    optimiser = torch.optim.Adam(network.parameters(), lr=matching.lr, weight_decay=matching.weight_decay)
    pool_batches = _endless(len(pool), matching.batch_size, seed, "ratio pool batches", client)
    steps_a_pass = -(-len(train) // matching.batch_size)
    steps = matching.epochs * steps_a_pass
    ascents = torch.zeros((), device=train.device)
    network.train()
    train_batches = _endless(len(train), matching.batch_size, seed, "ratio train batches", client)
    for _, own, other in zip(range(steps), train_batches, pool_batches, strict=False):
        batch = torch.cat([input_of(train[own.to(train.device)]), input_of(pool[other.to(pool.device)])])
        output = _outputs(network, batch)
        objective = terms(f, output[: len(own)], output[len(own) :], c)
        ascents += objective.surplus.detach() < 0
        optimiser.zero_grad()
        objective.step.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    network.eval()
    return float(ascents) / steps


@torch.no_grad()
def ratios(
    network: nn.Module, samples: Tensor, matching: Matching, bound: float, client: int, prepare: Prepare | None = None
) -> tuple[Tensor, int, int]:
    """The fitted ratios [n] float32 of samples [n, ...] clamped to [floor, bound], and how many were clamped below
    and above. Raises DivergedError if an output is not finite."""
    f, input_of = divergence(matching.divergence), prepare or torch.Tensor.float
    raw = torch.cat([_outputs(network, input_of(part)) for part in torch.split(samples, CHUNK)])
    ratio = f.ratio(raw, 1 / bound).float()
    if not bool(ratio.isfinite().all()):
        raise DivergedError(f"the ratio network of client {client} diverged", "take a lower lr of the ratios")
    low, high = ratio < matching.floor, ratio > bound
    return ratio.clamp(matching.floor, bound), int(low.sum()), int(high.sum())


def _outputs(network: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = network(batch)
    if output.numel() != len(batch):
        shape = tuple(output.shape)
        raise FedbenchError(f"a ratio network gives one value a sample, not an output of shape {shape}")
    return output.reshape(-1)


def _endless(n: int, size: int, seed: int, purpose: str, client: int) -> Iterator[Tensor]:
    """Batches of indices below n, pass after pass, each pass a fresh shuffle."""
    passes = 0
    while True:
        order = torch.from_numpy(stream(seed, purpose, client, passes).permutation(n).astype(np.int64))
        yield from torch.split(order, size)
        passes += 1


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise FedbenchError(f"ratio matching {what}")
