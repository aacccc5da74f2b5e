"""What is said first of a run: its headline metrics, means over the last evaluated rounds of its setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedbench.metrics.read import Metrics, load, spec_of
from fedbench.metrics.statistics import last_rounds
from fedbench.planner.cells import TEST_PHASE
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
#: Of the clients that never train, where there are any.
UNSEEN = "unseen_client_accuracy"
#: The test images that a run is judged by where nothing else is said: untouched ones.
VIEW = "plain"


def headline(metrics: Metrics, setting: Setting, view: str) -> dict[str, float]:
    """Headline metric -> its mean over the last evaluated rounds; those that the run does not have are left out."""
    # Without labels nothing can be told of P(Y|X): a number would mean nothing.
    unknown = TEST_PHASE if setting.partition.shift == "pyx" else ()
    means = {
        name: last_rounds(metrics.series(name, view), setting.window).mean
        for name in (*HEADLINES, *AREAS)
        if name not in unknown
    }
    by_round = {t: unseen(metrics, setting, view, t) for t in setting.evaluated_rounds()[-setting.window :]}
    means[UNSEEN] = last_rounds({t: mean for t, mean in by_round.items() if mean is not None}, setting.window).mean
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def unseen(metrics: Metrics, setting: Setting, view: str, round: int) -> float | None:
    """Unweighted mean accuracy after a round of the clients that never train, each on its own test images (those that
    come again under corruptions are not counted); None if there are none, or it was not measured."""
    part = setting.partition
    values = metrics.per_client("client_accuracy", view, round)[part.trainees : part.clients] if part.unseen else ()
    return float(values.mean()) if len(values) else None


def of_runs(runs: Sequence[Artifact], store: Store) -> dict[str, float]:
    """The headline metrics of evaluated runs, and the means over them where they are several."""
    from fedbench.metrics.evaluate import evaluate

    each = []
    for run in runs:
        each.append(headline(load(evaluate(run, store)), spec_of(run).run.setting, VIEW))
    return {name: sum(one[name] for one in each) / len(each) for name in each[0] if all(name in one for one in each)}
