"""Density-ratio matching of one client: HDRM (FTW-ERM, Sec. 3 and Algorithm 1).

The server collects a pool of unlabelled test samples. Each client bounds its ratio, then fits a network to training
samples and pool by stochastic gradients, which ascend if the surplus is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.errors import DivergedError, FedbenchError
from fedbench.models.base import seeded
from fedbench.ratios.bound import kmeans_bound
from fedbench.ratios.divergence import DIVERGENCES, terms
from fedbench.rng import stream

Ints = npt.NDArray[np.int64]
#: Turns a batch of stored samples into the network's float32 input.
Prepare = Callable[[Tensor], Tensor]
#: Batch size of the forward passes that evaluate ratios.
CHUNK = 1024


def contribution(count: int, size: int, seed: int, client: int) -> Ints:
    """Choose which of its `count` test samples a client sends to the server's pool of unlabelled ones: `size`
    positions, drawn without replacement (Sec. 2 "Privacy", Algorithm 1, lines 1-3, and App. E).

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
