"""Partitions: who holds which sample, in which split, seen through which covariate shift."""

from __future__ import annotations

from fedbench.partition.artifact import Partition
from fedbench.partition.builder import build, make, obtain
from fedbench.partition.density import Densities
from fedbench.partition.mixture_csv import read_mixture
from fedbench.partition.scheme import assign, draw, split
from fedbench.partition.shift import Shift, apply, groups, shifts
from fedbench.partition.tables import read

__all__ = [
    "Densities",
    "Partition",
    "Shift",
    "apply",
    "assign",
    "build",
    "draw",
    "groups",
    "make",
    "obtain",
    "read",
    "read_mixture",
    "shifts",
    "split",
]
