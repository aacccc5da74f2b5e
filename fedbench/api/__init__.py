"""The Python interface: the names that `import fedbench` provides (README.md)."""

from __future__ import annotations

from fedbench.api.figures import figure
from fedbench.api.listings import datasets, tables
from fedbench.api.parts import Checks, Part, check, partition
from fedbench.api.reporting import Runs, Tables, compare, report
from fedbench.api.results import Run, curves, run, runs
from fedbench.api.sweeping import Sweep, sweep
from fedbench.api.training import train
from fedbench.errors import FedbenchError
from fedbench.observers import Observer
from fedbench.store import Store

__all__ = [
    "Checks",
    "FedbenchError",
    "Observer",
    "Part",
    "Run",
    "Runs",
    "Store",
    "Sweep",
    "Tables",
    "check",
    "compare",
    "curves",
    "datasets",
    "figure",
    "partition",
    "report",
    "run",
    "runs",
    "sweep",
    "tables",
    "train",
]
