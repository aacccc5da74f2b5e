"""Partitions: which client holds which sample, in which split, and under which covariate shift."""

from __future__ import annotations

from fedbench.partitions.artifact import Partition
from fedbench.partitions.builder import build, make, obtain
from fedbench.partitions.distribution import Densities
from fedbench.partitions.mixture_file import read_mixture
from fedbench.partitions.scheme import Assignment, Scheme
from fedbench.partitions.schemes import spec
from fedbench.partitions.tables import read
from fedbench.partitions.transforms import Transform

__all__ = [
    "Assignment",
    "Densities",
    "Partition",
    "Scheme",
    "Transform",
    "build",
    "make",
    "obtain",
    "read",
    "read_mixture",
    "spec",
]
