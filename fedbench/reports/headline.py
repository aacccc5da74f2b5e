"""What is said first of a run: its headline metrics, means over the last evaluated rounds of its setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import Metrics, load, spec_of
from fedbench.metrics.statistics import last_rounds
from fedbench.specs import Setting
from fedbench.store import Artifact, Store

#: In the order in which they are printed.
HEADLINES = (
    "system_accuracy",
    "average_accuracy",
    "client_accuracy_mean",
    "client_accuracy_std",
    "test_phase_accuracy_mean",
    "routing_accuracy",
)
#: ... of multi-label images, which have no accuracies.
AREAS = ("client_auc_mean", "test_phase_auc_mean")
#: The test images that a run is judged by where nothing else is said: untouched ones.
VIEW = "plain"
#: What is measured of clients without labels.
_UNLABELLED = ("test_phase_accuracy_mean", "test_phase_auc_mean")


def headline(metrics: Metrics, setting: Setting, view: str) -> dict[str, float]:
    """Headline metric -> its mean over the last evaluated rounds; those that the run does not have are left out."""
    # Without labels nothing can be told of P(Y|X): a number would mean nothing.
    unknown = _UNLABELLED if setting.partition.shift == "pyx" else ()
    means = {
        name: last_rounds(metrics.series(name, view), setting.window).mean
        for name in (*HEADLINES, *AREAS)
        if name not in unknown
    }
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def of_runs(runs: Sequence[Artifact], store: Store) -> dict[str, float]:
    """The headline metrics of evaluated runs, and the means over them where they are several."""
    each = []
    for run in runs:
        each.append(headline(load(evaluate(run, store)), spec_of(run).run.setting, VIEW))
    return {name: sum(one[name] for one in each) / len(each) for name in each[0] if all(name in one for one in each)}
