"""The few numbers that stand for a run in a list: they are kept in the manifest of its metrics, so that a list of
thousands of runs reads no table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedbench.metrics.read import Metrics, load
from fedbench.metrics.statistics import last_rounds
from fedbench.specs import MetricsSpec
from fedbench.store import Artifact

#: The key of a provenance under which they stand.
HEADLINE = "headline"
#: Metrics among them: means over the last evaluated rounds of the setting.
NAMES = ("client_accuracy_mean", "average_accuracy", "system_accuracy", "client_auc_mean")
#: The view of the test images that they are of, where a run has it.
VIEW = "plain"


def headline(metrics: Metrics, window: int) -> dict[str, Any]:
    """Metric -> value, and the "view" of the test images; what was not measured is left out."""
    view = VIEW if VIEW in metrics.views else next(filter(None, metrics.views), "")
    values = {name: last_rounds(metrics.series(name, view), window).mean for name in NAMES}
    return {"view": view, **{name: value for name, value in values.items() if not math.isnan(value)}}


def read_headline(artifact: Artifact) -> Mapping[str, Any]:
    """The headline of a run's metrics; of those that an older fedbench wrote, from their table.

    Raises FedbenchError if that table is damaged.
    """
    spec = artifact.spec
    assert isinstance(spec, MetricsSpec)
    kept = artifact.provenance.get(HEADLINE)
    return kept if isinstance(kept, Mapping) else headline(load(artifact), spec.run.setting.window)
