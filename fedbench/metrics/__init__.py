"""Computes accuracies and times from a run's predictions, without models, images or torch.

`evaluate` makes a run's metrics artifact; `read` reads its values quickly; `statistics` summarises them.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

from fedbench.metrics.evaluate import evaluate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["evaluate"]


class _Listed(types.ModuleType):
    """This package, which lists the metrics when it is called: `fedbench.metrics()` (see `fedbench/__init__.py`)."""

    def __call__(self) -> pd.DataFrame:
        """A row for each metric that runs may have and tables can name: its unit, and what it is."""
        import pandas as pd

        from fedbench.metrics.definitions import all_metrics

        rows = {name: {"unit": one.unit, "what": one.description} for name, one in all_metrics().items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric")


sys.modules[__name__].__class__ = _Listed
