"""fedbench: benchmarks for federated learning, from a data recipe to the table in the paper.

`import fedbench as fb` gives the functions of `fedbench.api`, which is imported when one of them is first used. Two
names are also those of packages: `fb.methods()` and `fb.metrics()` call the packages `fedbench.methods` and
`fedbench.metrics`, which list themselves. So a name means the same whether its package has been imported or not.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers assume True; importing `typing` would slow down the start
if TYPE_CHECKING:
    from typing import Any

    from fedbench.api import (
        FedbenchError,
        Observer,
        Store,
        check,
        compare,
        curves,
        datasets,
        figure,
        partition,
        report,
        run,
        runs,
        sweep,
        train,
    )
    from fedbench.api.listings import tables

__version__ = "0.1.0"

__all__ = [
    "FedbenchError",
    "Observer",
    "Store",
    "check",
    "compare",
    "curves",
    "datasets",
    "figure",
    "methods",
    "metrics",
    "partition",
    "report",
    "run",
    "runs",
    "sweep",
    "tables",
    "train",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("methods", "metrics"):
        return import_module(f"fedbench.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fedbench' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module("fedbench.api"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
