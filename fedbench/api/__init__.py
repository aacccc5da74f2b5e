"""The Python interface: the names that `import fedbench` provides (README.md)."""

from __future__ import annotations

from fedbench.api.parts import Checks, Part, check, partition
from fedbench.api.results import Run, curves, run, runs
from fedbench.api.sweeping import Sweep, sweep
from fedbench.api.tables import Tables, compare, report
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
    "Store",
    "Sweep",
    "Tables",
    "check",
    "compare",
    "curves",
    "partition",
    "report",
    "run",
    "runs",
    "sweep",
    "train",
]
