"""Values out of a metrics artifact, quickly: numpy and pyarrow only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError, unknown
from fedbench.methods import declarations
from fedbench.metrics.definitions import ANY, METRICS, TEST_PHASE, all_metrics, defined
from fedbench.metrics.statistics import last_rounds
from fedbench.specs import MetricsSpec, RunSpec, Setting
from fedbench.store import Artifact, Store, Writer
from fedbench.store.provenance import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

#: How far beyond its range a value may lie: a last bit of a mean.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Metrics:
    """A metrics artifact in memory; for reading more than one metric of a run."""

    id: str
    names: list[str]
    views: list[str]  #: "" first: what depends on no view
    metric: np.ndarray  #: [rows] index into names
    view: np.ndarray  #: [rows] index into views
    round: np.ndarray
    client: np.ndarray
    value: np.ndarray

    def series(self, metric: str, view: str = "") -> dict[int, float]:
        """Round -> value for the whole federation; round 0 has the value of the whole run. Empty if not measured.

        The view is ignored where the metric has none. Raises FedbenchError for an unknown metric.
        """
        rows = self._rows(metric, view) & (self.client == -1)
        order = np.argsort(self.round[rows], kind="stable")
        return dict(zip(self.round[rows][order].tolist(), self.value[rows][order].tolist(), strict=True))

    def whole_run(self, metric: str) -> float | None:
        """The value of the whole run, such as total_runtime_seconds, or None."""
        return self.series(metric).get(0)

    def per_client(self, metric: str, view: str = "", round: int | None = None) -> np.ndarray:
        """Values of the clients 0..M-1 [M] after `round` (default: the last evaluated). Empty if not measured."""
        rows = self._rows(metric, view) & (self.client >= 0)
        if round is None and rows.any():
            round = int(self.round[rows].max())
        rows &= self.round == round
        return self.value[rows][np.argsort(self.client[rows], kind="stable")]

    def _rows(self, metric: str, view: str) -> np.ndarray:
        own = METRICS.get(metric)
        if own is None and metric not in self.names and metric not in all_metrics():
            raise unknown("metric", metric, {*all_metrics(), *self.names})
        wanted = view if own is not None and own.by_view else ""
        if metric not in self.names or wanted not in self.views:
            return np.zeros(len(self.value), bool)
        rows: np.ndarray = (self.metric == self.names.index(metric)) & (self.view == self.views.index(wanted))
        return rows


def outside(names: Sequence[str], metric: np.ndarray, value: np.ndarray, method: str = "") -> str:
    """Which value (of `metric`, a place in `names`) lies outside the range of its metric, in words; "" if none does.

    Those of no method's declaration are any numbers; what a built-in `method` measures itself, as it declares it.
    """
    if not len(value):
        return ""
    least, most = _ranges(tuple(names), method)
    starts = np.append(0, np.flatnonzero(metric[1:] != metric[:-1]) + 1)  # a metric's values are contiguous
    of, lowest, highest = metric[starts], np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    below, above = (~(lowest >= least[of] - ROUNDING), ~(highest <= most[of] + ROUNDING))  # NaN is in no range
    if not (below | above).any():
        return ""
    k = int((below | above).argmax())
    low, high = float(least[of[k]]), float(most[of[k]])
    meant = f"{low:g} to {high:g}" if high < ANY[1] else "a number" if low == ANY[0] else f"{low:g} or more"
    return f"{names[of[k]]} is {lowest[k] if below[k] else highest[k]:g}, not {meant}"


@lru_cache(256)
def _ranges(names: tuple[str, ...], method: str) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that the metrics of these names may be."""
    own = defined(declarations.of(method).measures) if method in declarations.built_in() else {}
    every = [one.range if (one := METRICS.get(name) or own.get(name)) else ANY for name in names]
    return np.array([least for least, _ in every]), np.array([most for _, most in every])


def load(artifact: Artifact) -> Metrics:
    """Read a metrics artifact. Raises FedbenchError if its file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = artifact.file("metrics.parquet")
    try:
        return of_table(artifact.id, pq.ParquetFile(path, read_dictionary=["metric", "view"]).read(use_threads=False))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise FedbenchError(f"cannot read {path} ({error})", "'fedbench evaluate --again' makes it anew") from error


def of_table(id: str, table: pa.Table) -> Metrics:
    """The metrics of that id in long form, as `evaluate` writes them."""
    metric, view = (table.column(n).unify_dictionaries().combine_chunks() for n in ("metric", "view"))
    return Metrics(
        id=id,
        names=metric.dictionary.to_pylist(),
        views=view.dictionary.to_pylist(),
        # By DLPack: pyarrow's own to_numpy imports pandas, which every report would feel.
        metric=np.from_dlpack(metric.indices),
        view=np.from_dlpack(view.indices),
        **{n: np.from_dlpack(table.column(n).combine_chunks()) for n in ("round", "client", "value")},
    )


def spec_of(run: Artifact) -> MetricsSpec:
    """The spec of a run's metrics. Raises FedbenchError if the artifact is no run."""
    spec = run.spec
    if not isinstance(spec, RunSpec):
        raise FedbenchError(f"{run.id} is a {run.kind}, not a run", "'fedbench list' shows the runs")
    return MetricsSpec(run=spec)


@contextlib.contextmanager
def writing(run: Artifact, store: Store) -> Iterator[Writer]:
    """Write a run's metrics in place of any that are there. They say which making of the run, and which code, they come
    from."""
    there = store.whole(spec_of(run))
    with store.writing(spec_of(run), _inputs(run), there.digest if there else None) as writer:
        writer.provenance["code"] = _code()
        yield writer


def _inputs(run: Artifact) -> dict[str, str]:
    return {"run": run.id, "digest": run.digest}


def of_this_making(metrics: Artifact, run: Artifact) -> bool:
    """Whether these are the metrics of that run as it is, and not of one that was there before it."""
    return bool(metrics.manifest["inputs"] == _inputs(run))


def _code() -> str:
    return fingerprint("metrics")


def metrics_of(run: Artifact, store: Store) -> Artifact | None:
    """The metrics of a run, or None if they are not there.

    Those of another making of it (`train --again`) or by other code count as not there: they cost nothing but time.
    """
    artifact = store.get(spec_of(run))
    if artifact is None or not of_this_making(artifact, run) or artifact.provenance.get("code") != _code():
        return None
    return artifact


# -- headline --------------------------------------------------------------------------------------------------
# What is said first of a run: means over the last evaluated rounds of its setting.


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
#: The test images that a run is judged by where nothing else is said: untouched ones, which every run has after its
#: last round.
VIEW = "plain"


def headline(metrics: Metrics, setting: Setting, view: str = VIEW) -> dict[str, float]:
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
    values = metrics.per_client("client_accuracy", view, round)[part.trainees : part.clients]
    return float(values.mean()) if part.unseen and len(values) else None


#: The key in a provenance of the headline metrics that a list of runs shows: thousands of runs are listed without
#: reading a table.
HEADLINE = "headline"
#: These metrics.
LISTED = ("client_accuracy_mean", "average_accuracy", "system_accuracy", "client_auc_mean")


def listed(metrics: Metrics, setting: Setting) -> dict[str, Any]:
    """These metrics, and the "view" of the test images that they are of."""
    view = VIEW if VIEW in metrics.views else next(filter(None, metrics.views), "")
    means = headline(metrics, setting, view)
    return {"view": view, **{name: means[name] for name in LISTED if name in means}}


def read_listed(artifact: Artifact) -> Mapping[str, Any]:
    """The same of a metrics artifact; of those that an older fedbench wrote, from their table.

    Raises FedbenchError if that table is damaged.
    """
    spec = artifact.spec
    assert isinstance(spec, MetricsSpec)
    kept = artifact.provenance.get(HEADLINE)
    return kept if isinstance(kept, Mapping) else listed(load(artifact), spec.run.setting)
