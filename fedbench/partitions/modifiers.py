"""Modifiers that apply to the partitions of many partitioners: validation samples, subsampled or repeated training
samples, and clients that never train."""

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
    """Raise FedbenchError for unknown or repeated corruptions of unseen clients."""
    for text in spec.unseen_as or ():
        named(text)
        require((spec.unseen_as or ()).count(text) == 1, f"unseen_as names {text} twice")


def least(spec: PartitionSpec) -> int:
    """Return the minimum number of training images of a client."""
    return 1 if spec.validation is None else 2


# In drift phases under P(Y) a validation image of one phase may be a training image of another. This is acceptable
# because the validation loss only decides when a method such as FLUX ends its warm-up.
def hold_back(part: Indices, spec: PartitionSpec, client: int, phase: int = 0) -> tuple[Indices, Indices]:
    """Split into training and validation samples: ceil(validation x n) samples, drawn uniformly, are held back; each
    side gets at least one."""
    if spec.validation is None:
        return part, part[:0]
    require(len(part) >= 2, f"client {client} has {len(part)} training images: too few to hold one back", "see --split")
    mixed = stream(spec.seed, "validation", client, phase).permutation(part)
    back = min(math.ceil(spec.validation * len(part) - 1e-9), len(part) - 1)
    return mixed[: len(part) - back], mixed[len(part) - back :]


def subsampled(part: Indices, spec: PartitionSpec) -> Indices:
    """Return the first floor(subsample x n) training samples, at least one; smaller subsets are nested in larger."""
    return part if spec.subsample is None else part[: max(1, int(spec.subsample * len(part)))]


def repeated(part: Indices, spec: PartitionSpec) -> Indices:
    """Repeat the training samples `duplicates` times."""
    return part if spec.duplicates is None else np.tile(part, spec.duplicates)


def again(spec: PartitionSpec) -> list[tuple[int, Transform]]:
    """List the copies of unseen clients under corruptions: the original client, and the corruption of its images."""
    unseen = range(spec.trainees, spec.clients)
    corrupted = [Transform(corruption=name, severity=severity) for name, severity in map(named, spec.unseen_as or ())]
    return [(client, transform) for transform in corrupted for client in unseen]


def details(spec: PartitionSpec) -> list[str]:
    """Describe each modifier in a few words."""
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
