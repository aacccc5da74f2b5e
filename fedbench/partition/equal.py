"""Equal shards: FLUX's federations (Appendices F.1 and F.2), and how validation images are held back.

The official training and the official test images are each shuffled once and cut into consecutive shards, one a
client. What the client's distribution asks for is then done to each side by itself, so no image is on both.
All draws come from counter-based streams keyed by (seed, purpose, client, ...): the shards of a seed are the same
under every shift and level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.core.rng import stream
from fedbench.errors import FedbenchError
from fedbench.partition import official
from fedbench.partition.bank import Drawn
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset

Indices = NDArray[np.int64]

#: Standard deviation of drawn training shares over their mean; they are cut at nothing and at twice the mean.
SPREAD = 0.5


@dataclass(frozen=True, eq=False)
class Held:
    """What one client holds, as rows of the data set; training and validation images stage after stage."""

    train: tuple[Indices, ...]  #: of each stage: as many in all of them
    validation: tuple[Indices, ...]
    test: Indices


def draw(dataset: Dataset, spec: PartitionSpec, drawn: Drawn | None) -> list[Held]:
    """The samples of each client under the distributions that it drew (None: all are that of the data set).

    On each side: the shard, or the drawn number of its first images (`data_share`); cut into `stages` equal parts;
    classes filtered and padded, under P(Y); validation images held back; the first of the others kept (`subsample`)
    and repeated (`duplicates`). In stages P(Y) filters the whole shard anew for each stage, as ANDA does, and gives
    every stage the size of its part. Test shards are neither cut nor repeated.
    Raises FedbenchError if there are fewer images than clients need.
    """
    is_test = official.test_images(dataset, stream(spec.seed, "official split"))
    pools = [np.flatnonzero(~is_test), np.flatnonzero(is_test)]
    stages = spec.stages or 1
    for pool, side, least in zip(pools, ("training", "test"), (stages * _least(spec), 1), strict=True):
        require(
            len(pool) >= least * spec.clients,
            f"{len(pool)} {side} images cannot serve {spec.clients} clients (each needs {least} at least)",
            f"ask for at most {len(pool) // least} clients",
        )
    shards = [_shards(pool, spec, side) for pool, side in zip(pools, ("train", "test"), strict=True)]
    sizes = _sizes(spec, len(pools[0]), stages * _least(spec), [len(shard) for shard in shards[0]])
    held = []
    for c, (train, test, size) in enumerate(zip(*shards, sizes, strict=True)):
        kept = [None] * (stages + 1) if drawn is None else [drawn.distributions[g].classes for g in drawn.of[:, c]]
        mine = train[:size]
        length = size // stages
        parts: list[Indices] = []
        for s in range(stages):
            part, classes = mine[s * length : (s + 1) * length] if spec.stages else mine, kept[s]
            if classes is not None:
                wanted = length if spec.stages else None
                part = restricted(mine, classes, dataset, pools[0], wanted, (spec.seed, "padding", c, s))
            parts.append(part)
        both = [hold_back(part, spec, c, s) for s, part in enumerate(parts)]
        classes = kept[-1]
        if classes is not None:
            test = restricted(test, classes, dataset, pools[1], None, (spec.seed, "test padding", c))
        trains = tuple(np.tile(subsampled(part, spec), spec.duplicates or 1) for part, _ in both)
        held.append(Held(trains, tuple(part for _, part in both), test))
    return held


# Under P(Y) in stages a validation image of one stage may be a training image of another; it only says when a method
# such as FLUX ends its warm-up.
def hold_back(part: Indices, spec: PartitionSpec, client: int, stage: int = 0) -> tuple[Indices, Indices]:
    """Training and validation samples: ceil(validation x n) of them, drawn uniformly, are held back; one at least
    stays on either side."""
    if spec.validation is None:
        return part, part[:0]
    require(len(part) >= 2, f"client {client} has {len(part)} training images: too few to hold one back", "see --split")
    mixed = stream(spec.seed, "validation", client, stage).permutation(part)
    back = min(math.ceil(spec.validation * len(part) - 1e-9), len(part) - 1)
    return mixed[: len(part) - back], mixed[len(part) - back :]


def subsampled(part: Indices, spec: PartitionSpec) -> Indices:
    """The first floor(subsample x n) of a client's training samples, one at least."""
    return part if spec.subsample is None else part[: max(1, int(spec.subsample * len(part)))]


def restricted(
    shard: Indices,
    classes: Sequence[int],
    dataset: Dataset,
    pool: Indices,
    wanted: int | None,
    key: tuple[int, str, *tuple[int, ...]],
) -> Indices:
    """The shard's images of these classes, and behind them draws from the same with replacement.

    They fill it up to `wanted` images, or by the factor (all classes / these classes): to about its old size, if its
    classes are balanced. A shard without any such image, as tiny ones may be, draws as many as it had from the whole
    `pool` of its side. Raises FedbenchError if that has none either.
    """
    rng = stream(*key)
    mine = shard[np.isin(dataset.labels[shard], classes)]
    if not len(mine):
        mine = pool[np.isin(dataset.labels[pool], classes)]
        if not len(mine):
            raise FedbenchError(f"{dataset.spec.name} has no image of classes {list(classes)} on one side of its split")
        return np.asarray(rng.choice(mine, wanted or len(shard)))
    size = wanted or round(len(mine) * len(dataset.classes) / len(classes))
    return np.concatenate([mine[:size], rng.choice(mine, max(size - len(mine), 0))])


def _least(spec: PartitionSpec) -> int:
    """Training images that a client needs in each stage."""
    return 1 if spec.validation is None else 2


def _shards(pool: Indices, spec: PartitionSpec, side: str) -> list[Indices]:
    """Equal consecutive pieces of the shuffled pool; the last one takes what is left over."""
    each = len(pool) // spec.clients
    mixed = stream(spec.seed, "shards", int(side == "test")).permutation(pool)
    return np.split(mixed, each * np.arange(1, spec.clients))


def _sizes(spec: PartitionSpec, total: int, least: int, shards: Sequence[int]) -> list[int]:
    """Training images of each client, its validation images included, and no more than its shard has.

    Shares of all training images around `data_share` are normal, with SPREAD of it as standard deviation, cut off at
    nothing and at twice the mean, so that the mean stays what it is.
    """
    if spec.data_share is None:
        return list(shards)
    sizes = []
    for c, shard in enumerate(shards):
        rng = stream(spec.seed, "data share", c)
        factor = rng.normal(1, SPREAD)
        while not 0 < factor < 2:
            factor = rng.normal(1, SPREAD)
        sizes.append(min(max(round(factor * spec.data_share * total), least), shard))
    return sizes
