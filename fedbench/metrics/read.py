"""Reads a metrics artifact quickly, with numpy and pyarrow only."""

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

#: Tolerance beyond a metric's range: rounding of a mean.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Metrics:
    """A metrics artifact in memory."""

    id: str
    names: list[str]
    views: list[str]  #: "" first, for metrics without views
    metric: np.ndarray  #: [rows] index into names
    view: np.ndarray  #: [rows] index into views
    round: np.ndarray
    client: np.ndarray
    value: np.ndarray

    def series(self, metric: str, view: str = "") -> dict[int, float]:
        """Round -> value for the whole federation; round 0 has the value of the whole run. Empty if not measured.

        Ignores `view` if the metric has none. Raises FedbenchError for an unknown metric.
        """
        rows = self._rows(metric, view) & (self.client == -1)
        order = np.argsort(self.round[rows], kind="stable")
        return dict(zip(self.round[rows][order].tolist(), self.value[rows][order].tolist(), strict=True))

    def evaluated(self, view: str) -> set[int]:
        """The rounds after which any metric of the federation was measured on this view of the test images."""
        if view not in self.views:
            return set()
        rows = (self.view == self.views.index(view)) & (self.client == -1) & (self.round > 0)
        return set(self.round[rows].tolist())

    def whole_run(self, metric: str) -> float | None:
        """The value of the whole run, such as total_runtime_seconds, or None."""
        return self.series(metric).get(0)

    def per_client(self, metric: str, view: str = "", round: int | None = None) -> np.ndarray:
        """Values of the clients 0, 1, ... after `round` (default: the last evaluated), up to the last client that has
        one; NaN for a client without, such as one whose labels are constant (AUC). Empty if not measured."""
        rows = self._rows(metric, view) & (self.client >= 0)
        if round is None and rows.any():
            round = int(self.round[rows].max())
        rows &= self.round == round
        client = self.client[rows]
        values = np.full(int(client.max(initial=-1)) + 1, np.nan)
        values[client] = self.value[rows]
        return values

    def _rows(self, metric: str, view: str) -> np.ndarray:
        definition = METRICS.get(metric)
        if definition is None and metric not in self.names and metric not in all_metrics():
            raise unknown("metric", metric, {*all_metrics(), *self.names})
        wanted = view if definition is not None and definition.by_view else ""
        if metric not in self.names or wanted not in self.views:
            return np.zeros(len(self.value), bool)
        rows: np.ndarray = (self.metric == self.names.index(metric)) & (self.view == self.views.index(wanted))
        return rows


def outside(names: Sequence[str], metric: np.ndarray, value: np.ndarray, method: str = "") -> str:
    """The first value outside the range of its metric, in words; "" if there is none. `metric`: indices into `names`.

    A metric that a built-in `method` measures itself has the declared range; an undeclared one may be any number.
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
    """Smallest and largest valid value of these metrics, each [names]."""
    measured = defined(declarations.of(method).measures) if method in declarations.built_in() else {}
    every = [definition.range if (definition := METRICS.get(name) or measured.get(name)) else ANY for name in names]
    return np.array([least for least, _ in every]), np.array([most for _, most in every])


def load(artifact: Artifact) -> Metrics:
    """Read a metrics artifact. Raises FedbenchError if its file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = artifact.file("metrics.parquet")
    try:
        return of_table(artifact.id, pq.ParquetFile(path, read_dictionary=["metric", "view"]).read(use_threads=False))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise FedbenchError(f"cannot read {path} ({error})", "'fedbench evaluate --again' makes it again") from error


def of_table(id: str, table: pa.Table) -> Metrics:
    """The metrics in a table in long form, as `evaluate` writes it."""
    metric, view = (table.column(n).unify_dictionaries().combine_chunks() for n in ("metric", "view"))
    return Metrics(
        id=id,
        names=metric.dictionary.to_pylist(),
        views=view.dictionary.to_pylist(),
        # By DLPack: pyarrow's to_numpy imports pandas, which would slow every report.
        metric=np.from_dlpack(metric.indices),
        view=np.from_dlpack(view.indices),
        **{n: np.from_dlpack(table.column(n).combine_chunks()) for n in ("round", "client", "value")},
    )


def spec_of(run: Artifact) -> MetricsSpec:
    """The spec of a run's metrics. Raises FedbenchError if the artifact is not a run."""
    spec = run.spec
    if not isinstance(spec, RunSpec):
        raise FedbenchError(f"{run.id} is a {run.kind}, not a run", "'fedbench list' shows the runs")
    return MetricsSpec(run=spec)


@contextlib.contextmanager
def writing(run: Artifact, store: Store) -> Iterator[Writer]:
    """Write a run's metrics, replacing existing ones. Records the run's digest and the code."""
    before = store.whole(spec_of(run))
    with store.writing(spec_of(run), _inputs(run), before.digest if before else None) as writer:
        writer.provenance["code"] = _code()
        yield writer


def _inputs(run: Artifact) -> dict[str, str]:
    return {"run": run.id, "digest": run.digest}


def of_this_making(metrics: Artifact, run: Artifact) -> bool:
    """Whether the metrics come from this build of the run, and not from an earlier one with the same id."""
    return bool(metrics.manifest["inputs"] == _inputs(run))


def _code() -> str:
    return fingerprint("metrics")


def metrics_of(run: Artifact, store: Store) -> Artifact | None:
    """The metrics of a run, or None if they are missing or outdated: of an earlier build of the run (`train --again`),
    or by other code.
    """
    artifact = store.get(spec_of(run))
    if artifact is None or not of_this_making(artifact, run) or artifact.provenance.get("code") != _code():
        return None
    return artifact


#: In printing order.
HEADLINES = (
    "system_accuracy",
    "average_accuracy",
    "client_accuracy_mean",
    "client_accuracy_std",
    "test_phase_accuracy_mean",
    "routing_accuracy",
)
#: The same for multi-label images, which have no accuracies.
AREAS = ("client_auc_mean", "test_phase_auc_mean")
#: For the clients that never train, if there are any.
UNSEEN = "unseen_client_accuracy"
#: Default view of the test images: unchanged images, which every run has after its last round.
VIEW = "plain"


def headline(metrics: Metrics, setting: Setting, view: str = VIEW) -> dict[str, float]:
    """Headline metric -> its mean over the last evaluated rounds, for the metrics that the run has."""
    # Images without labels do not reveal P(Y|X): the number would be meaningless.
    unknown = TEST_PHASE if setting.partition.shift == "pyx" else ()
    means = {
        name: last_rounds(metrics.series(name, view), setting.window).mean
        for name in (*HEADLINES, *AREAS)
        if name not in unknown
    }
    by_round = {t: unseen(metrics, setting, view, t) for t in setting.evaluated_rounds()[-setting.window :]}
    means[UNSEEN] = last_rounds({t: mean for t, mean in by_round.items() if mean is not None}, setting.window).mean
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def unseen(metrics: Metrics, setting: Setting, view: str, round: int, metric: str = "client_accuracy") -> float | None:
    """Unweighted mean of a metric after a round over the clients that never train, each on its own test images (without
    their corrupted copies, `unseen_as`); clients without test images do not count. None if there are none, or it was
    not measured."""
    part = setting.partition
    values = metrics.per_client(metric, view, round)[part.trainees : part.clients]
    values = values[~np.isnan(values)]
    return float(values.mean()) if part.unseen and len(values) else None


#: Key in the provenance of a metrics artifact: the headline metrics that a list of runs shows, so that it reads no
#: tables.
HEADLINE = "headline"
#: The metric that a run is judged by unless another is named: the first of these that it has. The second is that of
#: images with several labels, which have no accuracies.
USUAL = ("average_accuracy", "client_auc_mean")
#: Metrics that a list of runs shows.
LISTED = ("client_accuracy_mean", "average_accuracy", "system_accuracy", "client_auc_mean")


def listed(metrics: Metrics, setting: Setting) -> dict[str, Any]:
    """Metric -> value that a list of runs shows, and "view" -> the view of the test images."""
    view = VIEW if VIEW in metrics.views else next(filter(None, metrics.views), "")
    means = headline(metrics, setting, view)
    return {"view": view, **{name: means[name] for name in LISTED if name in means}}


def read_listed(artifact: Artifact) -> Mapping[str, Any]:
    """The same for a metrics artifact: from its provenance, or (written by an older fedbench) from its table.

    Raises FedbenchError if that table is damaged.
    """
    spec = artifact.spec
    assert isinstance(spec, MetricsSpec)
    kept = artifact.provenance.get(HEADLINE)
    return kept if isinstance(kept, Mapping) else listed(load(artifact), spec.run.setting)
