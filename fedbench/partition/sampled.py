"""Samples of natural groups: FLUX's federations of CheXpert (Appendices B.1 and F.4).

Every client draws one group uniformly, and from it training samples of the data set's official training side and test
samples of its official test side. All draws come from counter-based streams keyed by (seed, purpose, client or group).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbench.core.rng import stream
from fedbench.partition import official
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset

Indices = NDArray[np.int64]


class Sampled(NamedTuple):
    """(training, test) samples of each client, as rows of the data set, and the name of its group."""

    sides: list[tuple[Indices, Indices]]
    groups: list[str]


def draw(dataset: Dataset, spec: PartitionSpec) -> Sampled:
    """`size` training and `test_size` test samples of each client, none of them twice in a client.

    Training samples are shared out among the clients of a group; test samples are drawn by each client for itself, so
    that two clients of a group may be tested on the same ones. With `apart`, test samples whose value in that column a
    training sample has are left out. Groups that could not serve one client (a sex that is not known) are none.

    leaky: as in FLUX's released code, training and test samples both are the first ones of the group's training side,
    so that all clients of a group hold the same and are tested on what they were trained on.

    Raises FedbenchError for an unknown column, and if a group that was drawn has too few training samples.
    """
    assert spec.by is not None
    assert spec.size is not None
    assert spec.test_size is not None
    names, group = groups(dataset, spec)
    is_test = official.test_images(dataset, stream(spec.seed, "official split"))
    tested = ~is_test if spec.leaky else is_test
    if spec.apart is not None:
        key = dataset.column(spec.apart)
        tested = tested & ~np.isin(key, key[~is_test])
    trains = [np.flatnonzero((group == g) & ~is_test) for g in range(len(names))]
    tests = [np.flatnonzero((group == g) & tested) for g in range(len(names))]
    fit = [g for g in range(len(names)) if len(trains[g]) >= spec.size and len(tests[g]) >= spec.test_size]
    require(
        bool(fit),
        f"no group by {spec.by} of {spec.dataset.name} has {spec.size} training and {spec.test_size} test images",
        "smaller sizes, or fewer columns",
    )
    of = [fit[int(stream(spec.seed, "natural group", c).integers(len(fit)))] for c in range(spec.clients)]
    if spec.leaky:
        return Sampled([(trains[g][: spec.size], tests[g][: spec.test_size]) for g in of], [names[g] for g in of])
    pools = {g: _pieces(trains[g], of.count(g), spec, names[g], g) for g in sorted(set(of))}
    sides = []
    for c, g in enumerate(of):
        mixed = stream(spec.seed, "natural test", c).permutation(tests[g])
        sides.append((pools[g].pop(0), mixed[: spec.test_size]))
    return Sampled(sides, [names[g] for g in of])


def groups(dataset: Dataset, spec: PartitionSpec) -> tuple[list[str], NDArray[np.int64]]:
    """The groups' names [G], and the group of each sample [N]: what the columns of `by` hold together.

    A column of numbers makes two groups at the `cut`, if there is one.
    """
    assert spec.by is not None
    parts = [_told(name, dataset.column(name), spec.cut) for name in spec.by.split("+")]
    together = np.array([", ".join(those) for those in zip(*parts, strict=True)])
    names, group = np.unique(together, return_inverse=True)
    return [str(name) for name in names], group.astype(np.int64)


def _told(name: str, values: NDArray[np.generic], cut: float | None) -> Sequence[str]:
    """Each sample's value of a column, in words."""
    if cut is None or values.dtype.kind not in "iuf":
        return [f"{name} {value}" for value in values.tolist()]
    return [f"{name} below {cut:g}" if value < cut else f"{name} {cut:g} or more" for value in values.tolist()]


def _pieces(pool: Indices, members: int, spec: PartitionSpec, name: str, group: int) -> list[Indices]:
    """A group's shuffled training samples shared out to its clients."""
    assert spec.size is not None
    require(
        len(pool) >= members * spec.size,
        f"{len(pool)} training images of {name} cannot give {members} clients {spec.size} each",
        "fewer clients, or a smaller size",
    )
    mixed = stream(spec.seed, "natural training", group).permutation(pool)
    return [mixed[i * spec.size : (i + 1) * spec.size] for i in range(members)]
