"""Partitions: who holds which sample, in which split, seen through which covariate shift."""

from __future__ import annotations

from fedbench.partition.artifact import Partition
from fedbench.partition.builder import build, make, obtain
from fedbench.partition.density import Densities
from fedbench.partition.mixture_csv import read_mixture
from fedbench.partition.scheme import Assignment, Scheme
from fedbench.partition.schemes import spec
from fedbench.partition.tables import read
from fedbench.partition.transforms import Transform

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
