"""A run of a store or a result pack: its parameters, state and metrics; and whether today's code has other versions.

Methods, networks, partitioners, readers and the trainer each have a version, a whole number that every spec records.
It is raised when results change, which the golden predictions of the tests detect (tests/golden). A code change
that changes no number therefore makes no run stale; reports still say that other code made the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from fedbench import methods, models, protocol
from fedbench.data.locate import VERSION as READERS
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.read import Metrics, load, metrics_of, spec_of
from fedbench.partitions import names, schemes
from fedbench.results.packs import Shipped
from fedbench.specs import RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.provenance import LEAKAGE, other_code
from fedbench.words import counted, first_of, plain


def stale(spec: RunSpec) -> bool:
    """Whether a part of the run has another version than today's."""
    return any(True for _ in other_versions(spec))


def other_versions(spec: RunSpec) -> Iterator[str]:
    """These parts. A user's files have no versions: their text identifies them."""
    setting, part = spec.setting, spec.setting.partition
    ours = spec.source is None and spec.method in methods.names()
    if ours and spec.method_version != declarations.of(spec.method).version:
        yield f"method {spec.method}"
    if setting.version != Setting.version:
        yield "trainer"
    if (setting.model_version or 1) != models.version(setting.model):
        yield f"network {setting.model}"
    if schemes.at_hand(part) and part.version != schemes.load(part.scheme).version:
        yield f"partitioner {part.scheme}"
    if part.dataset.version != READERS:
        yield f"images of {part.dataset.name}"


def by_other_code(runs: Iterable[Run | Artifact]) -> list[str]:
    """One line that names the runs made by other code than today's; empty if there are none.

    Shipped runs do not count: a pack does not record which files made them. 'fedbench results verify' checks them.
    """
    ids = list(dict.fromkeys(run.id for run in runs if other_code(run.provenance)))
    if not ids:
        return []
    was, them = ("was", "it") if len(ids) == 1 else ("were", "them")
    return [
        f"{counted(len(ids), 'run')} {was} made by other code than today's ({first_of(ids)}): "
        f"'fedbench train --again' makes {them} again."
    ]


def leaking(runs: Iterable[Run | Artifact]) -> list[str]:
    """One line for each number of test images that train other clients, with the runs that it is true of."""
    of = by_key((run.provenance[LEAKAGE], run.id) for run in runs if run.provenance.get(LEAKAGE))
    return [
        f"{text} ({counted(len(ids), 'run')}: {first_of(ids)})."
        for text, ids in ((text, list(dict.fromkeys(ids))) for text, ids in of.items())
    ]


class State(StrEnum):
    """The state of a cell, or of the run that it needs."""

    DONE = "done"
    STALE = "stale"  #: done, by another version of the code
    PARTIAL = "some seeds"  #: a cell of which runs of some seeds exist, and of others do not
    UNEVALUATED = "not evaluated"  #: complete, without metrics
    DAMAGED = "damaged"
    RUNNING = "running"
    FAILED = "failed"
    MISSING = "missing"
    NO_DATA = "no data"  #: the images are missing, so the run's id is unknown
    NOT_BUILT = "not built"  #: the method does not exist yet
    UNDEFINED = "not defined"  #: the table has no number here, so it needs no run
    NEVER = "not reached"  #: a run of the number does not reach the value that it is about
    NOT_PACKED = "not in the pack"  #: the run is shipped, and its pack lacks the data for this number


@dataclass(frozen=True)
class Run:
    """A run of a store or a result pack: its parameters (`spec`, `values`), its state, and, if it is complete, its
    results (`artifact`, `metrics`)."""

    spec: RunSpec
    store: Store
    state: State
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    complete: Artifact | None = None
    reason: str = ""  #: why it failed
    row: str | None = None  #: label of its row in the tables that filters name

    @classmethod
    def of(cls, artifact: Artifact, store: Store, state: State | None = None) -> Self:
        """The run of a complete artifact; `state`: done or stale, if already known. Raises FedbenchError for an
        artifact of another kind."""
        spec = spec_of(artifact).run
        state = state or (State.STALE if stale(spec) else State.DONE)
        return cls(spec, store, state, artifact.provenance, artifact)

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def artifact(self) -> Artifact:
        """The artifact of a complete run."""
        assert self.complete is not None
        return self.complete

    @property
    def shipped(self) -> Shipped | None:
        """The run in its result pack; None for a run of the store."""
        return self.complete if isinstance(self.complete, Shipped) else None

    @property
    def stale(self) -> bool:
        """Whether it has another version than today's code."""
        return self.state is State.STALE

    @property
    def evaluated(self) -> bool:
        """Whether the metrics of a complete run exist."""
        return self.shipped is not None or metrics_of(self.artifact, self.store) is not None

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of a complete run, computed if missing. Raises FedbenchError if that fails."""
        from fedbench.metrics.evaluate import evaluate

        run = self.artifact
        return run.metrics if isinstance(run, Shipped) else load(evaluate(run, self.store))

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The name of each client that is a natural group, such as a hospital; () if they have none, or if the store
        lacks the partition, as for most shipped runs."""
        return names.of(self.spec.setting.partition, self.store)

    @property
    def title(self) -> str:
        """The method's printed name."""
        return title_of(self.spec.method, self.provenance)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Name -> value of all the run's parameters: method, partition, setting and hyper-parameters."""
        return {**self._places, **self.hyper_parameters}

    @cached_property
    def hyper_parameters(self) -> Mapping[str, Any]:
        """Name -> value. A name that a partition or a setting may also have becomes METHOD.NAME."""
        method, names = self._places["method"], {*self._places, *schemes.hints()}
        return {f"{method}.{k}" if k in names else k: value for k, value in self.spec.params.items()}

    @cached_property
    def _places(self) -> Mapping[str, Any]:
        """Method, and the fields of partition (its seed as `partition_seed`) and setting."""
        spec, setting, part = self.spec, self.spec.setting, self.spec.setting.partition
        values: dict[str, Any] = {
            "id": self.id,
            "row": self.row,
            "method": spec.method.partition("@")[0],
            "title": self.title,
            "method_version": spec.method_version,
            "file": spec.source and spec.source[:8],
            "dataset": part.dataset.name,
            "source": part.dataset.source,
            "dataset_id": part.dataset.id[:8],
            "split": schemes.label(part),
            "partition": part.id,
            "partition_seed": part.seed,
            "partition_version": part.version,
        }
        at = schemes.facts(part).items()
        values |= {k: v for k, v in at if k not in ("dataset", "seed", "version") and v is not None}
        values["budget"] = protocol.budgets_of(setting)
        return values | {f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting) if f.name != "partition"}


def title_of(method: str, provenance: Mapping[str, Any]) -> str:
    """A method's printed name: from the run's provenance, else (very old runs) from the method's declaration."""
    declared = declarations.of(method).title if method in methods.names() else method
    return plain(str(provenance.get("title") or declared))
