"""Check whether a shipped run is reproducible here: the same predictions, or accuracies within a tolerance.

What is trained for that stays apart from the store's runs, so that no table changes by a check.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from fedbench.data import resolve
from fedbench.engine.job import Job
from fedbench.engine.run import STACKING, execute_all
from fedbench.engine.training import data_of
from fedbench.errors import FedbenchError
from fedbench.files import erase
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import Metrics, headline, load
from fedbench.results import making, own_code
from fedbench.results.making import machine
from fedbench.results.packs import Shipped
from fedbench.results.run import stale
from fedbench.specs import SCHEMA, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.folder import schema_of

#: Allowed difference of two accuracies (fractions) if predictions may differ: one percentage point.
TOLERANCE = 0.01
#: Allowed difference of two numbers from the same predictions: other CPUs round means differently.
ROUNDING = 1e-9
#: Allowed difference from the shipped run, as a multiple of what another executor's rounding changes here.
SPREAD = 3
#: Headline metrics that are no accuracies: the spread over a few clients moves by points where no accuracy does.
SPREADS = ("client_accuracy_std",)
#: Folder of a store with the runs that were trained to verify others: a store of its own, which no table reads.
FOLDER = "verified"
#: The words for predictions that differ.
OTHER = "other bits"


class Verdict(StrEnum):
    SAME = "the same predictions"
    CLOSE = f"{OTHER}, accuracies within the tolerance"
    UNSTABLE = f"{OTHER}, no further apart than rounding moves it here"
    OTHER_NUMBERS = "the same predictions, but other numbers than the pack's"
    OTHER_BITS = f"{OTHER} on the same kind of machine"
    FAR = "accuracies beyond the tolerance"

    @property
    def good(self) -> bool:
        return self in (Verdict.SAME, Verdict.CLOSE, Verdict.UNSTABLE)


@dataclass(frozen=True)
class Checked:
    """A shipped run compared with the same run trained here."""

    verdict: Verdict
    difference: float  #: the largest of all compared values (accuracies: fractions)
    metric: str  #: the metric of that difference
    here: str  #: kind of machine
    processors: tuple[str | None, str | None]  #: of the shipped run and of the run here; None if not recorded
    rounding: float | None = None  #: if beyond the tolerance: largest difference between two executors here

    @property
    def words(self) -> str:
        """The verdict, with a note if the shipped run's processor, a possible cause, was not recorded."""
        why = " (the processor it was made on was not recorded)" if self.processors[0] is None else ""
        return self.verdict.replace(OTHER, f"{OTHER}{why}", 1)


def sample(runs: Sequence[Shipped], n: int, seed: int, store: Store, roots: Sequence[Path]) -> list[Shipped]:
    """Draw `n` of the runs at random, of those that are not stale and whose images and users' code are available.

    Raises FedbenchError if there are none.
    """
    at_hand: dict[str, bool] = {}

    def there(run: Shipped) -> bool:
        spec = run.origin.spec.setting.partition.dataset
        if spec.id not in at_hand:
            try:
                at_hand[spec.id] = resolve(spec.name, store, roots) == spec
            except FedbenchError:
                at_hand[spec.id] = False
        return at_hand[spec.id]

    lacking = {run.id: why for run in runs if (why := own_code.at_hand(run.path).lacks(run.origin.spec))}
    able = [run for run in runs if run.id not in lacking and not stale(run.origin.spec) and there(run)]
    if not able:
        why = "their images are not available, or they are of other versions than today's" if runs else "there is none"
        why = f"of run {(first := next(iter(lacking)))} {lacking[first]}" if lacking else why
        raise FedbenchError(f"no shipped run can be verified: {why}", "fedbench data list, fedbench results list")
    return sorted(Random(seed).sample(able, min(n, len(able))), key=lambda run: (run.origin.started, run.id))


def apart(store: Store) -> Store:
    """The store of runs that were trained to verify others. One of an older schema is deleted: it can be made again."""
    home = store.home / FOLDER
    if (schema_of(home) or SCHEMA) < SCHEMA:
        erase(home)
    return Store(home)


def as_made(run: Shipped) -> tuple[str, str]:
    """(device, executor) to repeat a run. A run on a CPU is repeated on a CPU by its executor, on which bits depend."""
    provenance = run.provenance
    return ("cpu", str(provenance.get("executor", "auto"))) if provenance.get("device") == "cpu" else ("auto", "auto")


def compare(run: Shipped, again: Artifact, store: Store, tolerance: float = TOLERANCE) -> Checked:
    """Compare a shipped run with `again`, the same run in this store (or in the one `apart`)."""
    assert isinstance(again.spec, RunSpec)
    setting, here = again.spec.setting, machine(again.provenance)
    processors = (run.provenance.get("processor"), again.provenance.get("processor"))
    theirs, ours = run.metrics, load(evaluate(again, store))
    if making.predictions(again) == run.origin.predictions:
        difference, metric = _largest_gap(_exact(theirs), _exact(ours))
        verdict = Verdict.SAME if difference < ROUNDING else Verdict.OTHER_NUMBERS
        return Checked(verdict, difference, metric, here, processors)
    difference, metric = _largest_gap(*(_headlines(of, setting) for of in (theirs, ours)))
    if _kind(run) == _kind(again) and run.provenance.get("processor"):
        return Checked(Verdict.OTHER_BITS, difference, metric, here, processors)
    return Checked(Verdict.CLOSE if difference <= tolerance else Verdict.FAR, difference, metric, here, processors)


def settled(checked: Checked, run: Shipped, again: Artifact, of: Store, store: Store, roots: list[Path]) -> Checked:
    """Decide about a run beyond the tolerance: train it here by another executor too, which differs only in rounding.
    `again` is in the store `of`, its images are in `store`. Short runs and high learning rates amplify rounding, also
    another processor's, to many percentage points."""
    assert isinstance(again.spec, RunSpec)
    setting, provenance = again.spec.setting, again.provenance
    other = "cores" if provenance["executor"] in ("stacked", "graphed") else "stacked"
    data = {setting.partition.id: data_of(setting.partition, store, roots)}
    with tempfile.TemporaryDirectory() as folder:
        scratch_store = Store(Path(folder))
        scratch_store.prepare()
        device = "cpu" if provenance["device"] == "cpu" else "auto"
        (third,) = execute_all(
            [Job.of_spec(run.origin.spec, code=own_code.at_hand(run.path))],
            scratch_store,
            roots,
            device=device,
            executor=other,
            data=data,
        )
        both = (load(evaluate(again, of)), load(evaluate(third, scratch_store)))
    rounding, _ = _largest_gap(*(_headlines(of, setting) for of in both))
    verdict = Verdict.UNSTABLE if checked.difference <= SPREAD * rounding else Verdict.FAR
    return replace(checked, verdict=verdict, rounding=rounding)


def _headlines(metrics: Metrics, setting: Setting) -> dict[tuple[Any, ...], float]:
    """The accuracies among the main results, by which runs of other bits are judged."""
    return {(name,): mean for name, mean in headline(metrics, setting).items() if name not in SPREADS}


def _exact(metrics: Metrics) -> dict[tuple[Any, ...], float]:
    """(metric, view, round, client) -> value, for the metrics that depend only on the predictions."""
    exact = {k for k, name in enumerate(metrics.names) if (one := METRICS.get(name)) and one.by_view}
    columns = (metrics.metric, metrics.view, metrics.round, metrics.client, metrics.value)
    return {
        (metrics.names[metric], metrics.views[view], round, client): value
        for metric, view, round, client, value in zip(*(column.tolist() for column in columns), strict=True)
        if metric in exact
    }


def _largest_gap(before: Mapping[tuple[Any, ...], float], after: Mapping[tuple[Any, ...], float]) -> tuple[float, str]:
    """The largest difference of two values with the same key, and its metric; infinite if only one of them is NaN."""
    gaps = {place: _gap(value, after[place]) for place, value in before.items() if place in after}
    place = max(gaps, key=lambda place: gaps[place], default=("",))
    return gaps.get(place, 0.0), str(place[0])


def _gap(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    return abs(one - other)


def _kind(run: Artifact) -> tuple[object, ...]:
    """The fields of the provenance that can change a run's bits."""
    provenance = run.provenance
    names = ("device", "cpu", "processor", "executor", "threads")
    # Older runs: stacks depended on the number of cores and on how many seeds were trained together.
    before = ("cores", "together") if provenance.get("executor") in STACKING and "stacks" not in provenance else ()
    libraries = provenance.get("libraries", {})
    return (libraries.get("torch"), *(provenance.get(name) for name in (*names, "stacks", *before)))
