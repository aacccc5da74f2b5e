"""FLUX's messages to and from a client that comes after the clustering, and what the server remembers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.methods.parts import phases
from fedbench.methods.parts.descriptor import Bounds
from fedbench.methods.parts.phases import Scaling


@dataclass(frozen=True)
class Assignment:
    """What leads a late or unlabelled client to its cluster, beside theta* and all models: the bounds, the scaling, and
    the centroids [M, L]."""

    bounds: Bounds
    scaling: Scaling
    centroids: Tensor


@dataclass(frozen=True)
class Choice:
    """A late client's answer: its cluster."""

    cluster: int


@dataclass
class Memory(phases.Memory):
    """... and the last clustering: centroids [M, L], the distance at the elbow (None: none was looked for), and the
    training images [M] behind the clusters' running means."""

    centroids: Tensor | None = None
    elbow: float | None = None
    behind: Tensor | None = None
