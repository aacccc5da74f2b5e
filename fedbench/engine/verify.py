"""Whether a shipped run comes out again: the same predictions, or accuracies within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from fedbench.data import resolve
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.reports.headline import VIEW, headline
from fedbench.results import checksum
from fedbench.results.making import machine
from fedbench.results.shipped import Shipped
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store

#: How far accuracies may lie apart where bits may differ: a point.
TOLERANCE = 0.01


class Verdict(StrEnum):
    SAME = "the same predictions"
    CLOSE = "other bits, accuracies within the tolerance"
    OTHER_BITS = "other bits on the same kind of machine"
    FAR = "accuracies beyond the tolerance"

    @property
    def good(self) -> bool:
        return self in (Verdict.SAME, Verdict.CLOSE)


@dataclass(frozen=True)
class Checked:
    """A shipped run beside the same one made here."""

    verdict: Verdict
    difference: float  #: the largest between two headline accuracies, as a fraction
    metric: str  #: of which
    here: str  #: kind of machine


def sample(runs: Sequence[Shipped], n: int, seed: int, store: Store, roots: Sequence[Path]) -> list[Shipped]:
    """Some of the runs, drawn at random from those whose images are at hand. Raises FedbenchError if none is."""
    at_hand: dict[str, bool] = {}

    def there(run: Shipped) -> bool:
        spec = run.origin.spec.setting.partition.dataset
        if spec.id not in at_hand:
            try:
                at_hand[spec.id] = resolve(spec.name, store, roots) == spec
            except FedbenchError:
                at_hand[spec.id] = False
        return at_hand[spec.id]

    able = [run for run in runs if there(run)]
    if not able:
        why = "the images of none are at hand in the form that it was made of" if runs else "there is none"
        raise FedbenchError(f"no shipped run can be verified: {why}", "fedbench data list, fedbench results list")
    return sorted(Random(seed).sample(able, min(n, len(able))), key=lambda run: (run.origin.started, run.id))


def job_of(run: Shipped) -> Job:
    """The job that makes it again. Raises FedbenchError if today's code would make another run."""
    spec = run.origin.spec
    job = Job.of(spec.setting, spec.method, spec.params)
    if job.spec.id != spec.id:
        raise FedbenchError(f"run {spec.id} is of another version of {spec.method} than this fedbench has")
    return job


def where_of(run: Shipped) -> tuple[str, str]:
    """The device and the executor that make it again: those that made it if on a CPU, where bits depend on them."""
    return (
        ("cpu", str(run.provenance.get("executor", "auto"))) if run.provenance.get("device") == "cpu" else ("auto",) * 2
    )


def compare(run: Shipped, again: Artifact, store: Store, tolerance: float = TOLERANCE) -> Checked:
    """A shipped run against the same one of this store."""
    assert isinstance(again.spec, RunSpec)
    setting, here = again.spec.setting, machine(again.provenance)
    theirs, ours = run.metrics, load(evaluate(again, store))
    before, after = headline(theirs, setting, VIEW), headline(ours, setting, VIEW)
    apart = {name: abs(before[name] - after[name]) for name in before if name in after}
    metric = max(apart, key=lambda name: apart[name], default="")
    difference = apart.get(metric, 0.0)
    if checksum.predictions(again) == run.origin.predictions:
        return Checked(Verdict.SAME, difference, metric, here)
    if _kind(run) == _kind(again) and run.provenance.get("cpu"):
        return Checked(Verdict.OTHER_BITS, difference, metric, here)
    return Checked(Verdict.CLOSE if difference <= tolerance else Verdict.FAR, difference, metric, here)


def _kind(run: Artifact) -> tuple[object, ...]:
    """What the bits of a run depend on besides its spec."""
    told = run.provenance
    names = ("device", "cpu", "executor", "threads", "together")
    return (told.get("libraries", {}).get("torch"), *(told.get(name) for name in names))
