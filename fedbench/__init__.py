"""fedbench: benchmarks for federated learning, from a data recipe to the table in the paper.

`import fedbench as fb` gives the functions of `fedbench.api`, which is imported when one of them is first used.
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
        partition,
        report,
        run,
        runs,
        sweep,
        train,
    )

__version__ = "0.1.0"

__all__ = [
    "FedbenchError",
    "Observer",
    "Store",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedbench' has no attribute '{name}'")
    from importlib import import_module

    value = globals()[name] = getattr(import_module("fedbench.api"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
