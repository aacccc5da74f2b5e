"""What any partition may have beside what its partitioner does: validation samples, fewer training samples, copies of
them, and clients that never train."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedbench.partitions.scheme import Indices
from fedbench.partitions.transforms import Transform
from fedbench.partitions.transforms.corruption import CORRUPTIONS, SEVERITIES, named
from fedbench.rng import stream
from fedbench.specs import PartitionSpec, require


def check(spec: PartitionSpec) -> None:
    """Raise FedbenchError for corruptions of unseen clients that there are not."""
    for text in spec.unseen_as or ():
        named(text)
        require((spec.unseen_as or ()).count(text) == 1, f"unseen_as names {text} twice")


def least(spec: PartitionSpec) -> int:
    """Training images that a client needs."""
    return 1 if spec.validation is None else 2


# In drift phases under P(Y) a validation image of one phase may be a training image of another; it only says when a
# method such as FLUX ends its warm-up.
def hold_back(part: Indices, spec: PartitionSpec, client: int, phase: int = 0) -> tuple[Indices, Indices]:
    """Training and validation samples: ceil(validation x n) of them, drawn uniformly, are held back; one at least
    stays on either side."""
    if spec.validation is None:
        return part, part[:0]
    require(len(part) >= 2, f"client {client} has {len(part)} training images: too few to hold one back", "see --split")
    mixed = stream(spec.seed, "validation", client, phase).permutation(part)
    back = min(math.ceil(spec.validation * len(part) - 1e-9), len(part) - 1)
    return mixed[: len(part) - back], mixed[len(part) - back :]


def subsampled(part: Indices, spec: PartitionSpec) -> Indices:
    """The first floor(subsample x n) of a client's training samples, one at least: smaller sets lie in larger ones."""
    return part if spec.subsample is None else part[: max(1, int(spec.subsample * len(part)))]


def repeated(part: Indices, spec: PartitionSpec) -> Indices:
    """Every training sample so many times."""
    return part if spec.duplicates is None else np.tile(part, spec.duplicates)


def again(spec: PartitionSpec) -> list[tuple[int, Transform]]:
    """Unseen clients that come again: which client each is, and the corruption that it then sees its images under."""
    unseen = range(spec.trainees, spec.clients)
    corrupted = [Transform(corruption=name, severity=severity) for name, severity in map(named, spec.unseen_as or ())]
    return [(client, transform) for transform in corrupted for client in unseen]


def details(spec: PartitionSpec) -> list[str]:
    """The modifiers in a few words each."""
    own = [f"{spec.phases} phases"] if spec.phases else []
    own += [f"{100 * spec.validation:g} % of the training images for validation"] if spec.validation else []
    own += [f"every training image {spec.duplicates} times"] if spec.duplicates else []
    own += [f"training images subsampled to {100 * spec.subsample:g} %"] if spec.subsample else []
    if spec.unseen:
        who = f"{spec.unseen} unseen clients" if spec.unseen > 1 else "1 unseen client"
        own.append(who + (f", again under {_listed(spec.unseen_as)}" if spec.unseen_as else ""))
    return own


def _listed(corruptions: Sequence[str]) -> str:
    for severity in range(1, SEVERITIES + 1):
        if set(corruptions) == {f"{name}-{severity}" for name in CORRUPTIONS}:
            return f"each corruption at severity {severity}"
    return ", ".join(text.replace("_", " ").replace("-", " ") for text in corruptions)
