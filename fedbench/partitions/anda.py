"""FLUX's shifts in the order of draws of the paper's generator, so that a seed's clients are the paper's own.

The public ANDA seeds torch and NumPy's legacy generator with the run's seed. From torch come the order of the training
images and then that of the test images, whose consecutive shards are dealt out; all else comes from NumPy, one draw
after another (flux/protocol.md#draws). What is drawn has the law of `partitions/bank.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.partitions import bank
from fedbench.partitions.bank import Level
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.scheme import Assignment
from fedbench.partitions.split import Indices, shards
from fedbench.partitions.transforms import Rotation
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: The shifts whose order of draws is public.
SHIFTS = ("px", "py", "pyx", "pxy")


def draw(at: Level, dataset: Dataset, pools: Sequence[Indices]) -> Assignment:
    """Who holds which image of the training and the test side's pools, and from which distribution.

    Raises FedbenchError if the data have too few classes, or a client none of those that it keeps.
    """
    import torch

    clients, rng = at.spec.clients, np.random.RandomState(at.seed)
    order = torch.Generator().manual_seed(at.seed)
    trains, tests = (shards(pool[torch.randperm(len(pool), generator=order).numpy()], clients) for pool in pools)
    if at.spec.shift == "py":
        distributions = []
        entries = [bank.subset(i, _classes(at, at.scaled(11 - at.level), rng)) for i in range(bank.BANK)]
        for c in range(clients):
            distributions.append(entries[rng.choice(bank.BANK)])
            trains[c] = _padded(trains[c], distributions[c], dataset, rng, f"client {c} has no training image")
            tests[c] = _padded(tests[c], distributions[c], dataset, rng, f"client {c} has no test image")
        drawn = Drawn.of([distributions, distributions])
    else:
        drawn = without_images(at)
    return Assignment.of(zip(trains, tests, strict=True), drawn=drawn)


def without_images(at: Level) -> Drawn:
    """The distributions of the clients under another shift than P(Y), whose draws go on with those of images.

    Raises FedbenchError if the data have too few classes.
    """
    distributions = {"px": _px, "pyx": _pyx, "pxy": _pxy}[at.spec.shift](at, np.random.RandomState(at.seed))
    return Drawn.of([distributions, distributions])


def _classes(at: Level, number: int, rng: np.random.RandomState) -> list[int]:
    at.check(number)
    return [int(k) for k in rng.choice(at.classes, number, replace=False)]


def _px(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    entries = bank.of_images(at.level)
    return [entries[i] for i in rng.randint(0, len(entries), size=at.spec.clients)]


def _pyx(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    pool, distributions = _classes(at, at.pool, rng), []
    for _ in range(at.spec.clients):
        rng.uniform()  # of how many of a client's labels are swapped, which is all of them
        labels = list(pool)
        rng.shuffle(labels)
        distributions.append(Distribution(labels=tuple(sorted(zip(pool, labels, strict=True)))))
    return distributions


def _pxy(at: Level, rng: np.random.RandomState) -> list[Distribution]:
    """All clients' angles come before all clients' colours, which only the levels of many classes have."""
    turned, coloured = (sorted(_classes(at, at.scaled(at.level), rng)) for _ in range(2))
    clients = range(at.spec.clients)
    angles = [{k: int(rng.choice(at.angles)) for k in turned} for _ in clients]
    colours = [{k: str(rng.choice(at.colours)) for k in coloured} if at.colours else {} for _ in clients]
    return [
        Distribution(rotations=tuple((k, Rotation(a.get(k, 0), c.get(k))) for k in sorted({*a, *c})))
        for a, c in zip(angles, colours, strict=True)
    ]


def _padded(shard: Indices, of: Distribution, dataset: Dataset, rng: np.random.RandomState, who: str) -> Indices:
    """The shard's images of the distribution's classes, and behind them draws of the same, rounded down."""
    classes = of.classes or ()
    mine = shard[np.isin(dataset.labels[shard], classes)]
    require(len(mine) > 0, f"{who} of classes {list(classes)}", "fewer clients, or --draws fedbench")
    more = int(len(mine) * (len(dataset.classes) / len(classes) - 1))
    return np.concatenate([mine, mine[rng.choice(len(mine), more)]])
