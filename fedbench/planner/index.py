"""The state of each run, found by its id: complete (in the store or in a result pack), running, or failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench import methods, models
from fedbench.data.locate import VERSION as READERS
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.read import Metrics, load, metrics_of
from fedbench.partitions import schemes
from fedbench.results.shelf import Shelf, Shipped
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code
from fedbench.words import counted

# -- versions --------------------------------------------------------------------------------------------------
# Whether a run is of another version than today's: of its method, the trainer, its network, partitioner or images.
#
# Methods, networks, partitioners, readers and the trainer each carry a version, a whole number that every spec records.
# It is raised when results change, which the golden predictions of the tests detect (tests/golden). A change of the
# code that changes no number therefore makes no run stale; that other code made the run is reported all the same.


def stale(spec: RunSpec) -> bool:
    """Whether a part of the run is of another version than today's."""
    return any(True for _ in other_versions(spec))


def other_versions(spec: RunSpec) -> Iterator[str]:
    """These parts. A user's own are known by their text and have no other version."""
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


#: So many runs are named by their ids.
NAMED = 3


def by_other_code(runs: Iterable[Artifact]) -> list[str]:
    """A line on those of the runs that other code than today's made, if there are any.

    Shipped ones are none of these: a pack does not say which files made them, and 'fedbench results verify' tells.
    """
    ids = list(dict.fromkeys(run.id for run in runs if other_code(run.provenance)))
    if not ids:
        return []
    names = ", ".join(ids[:NAMED]) + (", ..." if ids[NAMED:] else "")
    was, them = ("was", "it") if len(ids) == 1 else ("were", "them")
    return [
        f"{counted(len(ids), 'run')} {was} made by other code than today's ({names}): "
        f"'fedbench train --again' makes {them} anew."
    ]


# -- index -----------------------------------------------------------------------------------------------------


class State(StrEnum):
    """The state of a cell, or of the run that it needs."""

    DONE = "done"
    STALE = "stale"  #: done, by another version of the code
    UNEVALUATED = "not evaluated"  #: the run is there, its metrics are not
    DAMAGED = "damaged"
    RUNNING = "running"
    FAILED = "failed"
    MISSING = "missing"
    NO_DATA = "no data"  #: the images are not at hand, so the run cannot be named yet
    NOT_BUILT = "not built"  #: the method does not exist yet
    UNDEFINED = "not defined"  #: there is no such number, so nothing is to be made
    NOT_PACKED = "not in the pack"  #: the run is a shipped one, and its pack has too little of it for this number


@dataclass(frozen=True)
class Record:
    """One run the store knows of."""

    id: str
    spec: RunSpec
    state: State
    provenance: Mapping[str, Any]
    artifact: Artifact | None = None
    reason: str = ""

    @property
    def shipped(self) -> Shipped | None:
        """The run, if it comes out of a result pack."""
        return self.artifact if isinstance(self.artifact, Shipped) else None


def metrics(run: Artifact, store: Store) -> Metrics:
    """The metrics of a complete run, computed now if need be. Raises FedbenchError if they cannot be."""
    from fedbench.metrics.evaluate import evaluate

    return run.metrics if isinstance(run, Shipped) else load(evaluate(run, store))


class Index:
    """All runs of a store, and those of result packs behind them, read once. Looking up is then free of disk access but
    for the metrics themselves."""

    def __init__(self, store: Store, shelf: Shelf | None = None) -> None:
        self.store = store
        self.shelf = shelf or Shelf([])
        self.settings: dict[str, Setting] = {}  #: what tables have asked for, many of them the same
        self._specs: dict[tuple[str, str | None, str, str], RunSpec] = {}  #: likewise
        self._looked_up: dict[str, Record | None] = {}  #: by the run's id: many cells read the same one
        #: Runs that cannot be read, so that nobody knows which cells they belong to; known after `records`.
        self.damaged: list[FedbenchError] = []

    @cached_property
    def records(self) -> dict[str, list[Record]]:
        """Setting id -> its runs: failed and running ones first, then complete ones, oldest first."""
        home, store = self.store.home, self.store
        under_way = (path for path in home.glob("work/*/spec.json") if store.claimed(path.parent.name))
        failed = _records_in(home.glob("failed/*.json"), "spec", State.FAILED)
        every = (*failed, *_records_in(under_way, "run", State.RUNNING), *self._complete())
        return by_key((record.spec.setting.id, record) for record in every)

    @cached_property
    def scopes(self) -> set[tuple[str, str, str]]:
        """Data set, budget and precision of the store's runs."""
        settings = [records[0].spec.setting for records in self.records.values()]
        return {(s.partition.dataset.name, s.budget, s.precision) for s in settings}

    def knows(self, dataset: str, budget: str, precision: str) -> bool:
        """Whether there is any run on a data set at that budget and precision."""
        return (dataset, budget, precision) in self.scopes | self.shelf.scopes

    @cached_property
    def _partitions(self) -> set[str]:
        return {records[0].spec.setting.partition.stem for records in self.records.values()} | self.shelf.partitions

    def trained_in(self, partition: PartitionSpec) -> bool:
        """Whether there is any run in a partition, of whatever versions."""
        return partition.stem in self._partitions

    def specs(self, method: Declaration, settings: Iterable[Setting], params: Mapping[str, Any]) -> Iterator[RunSpec]:
        """The method's runs in these settings; each is made once, however many cells read it."""
        values = repr(params)
        for setting in settings:
            key = (method.name, method.source, setting.id, values)
            if key not in self._specs:
                self._specs[key] = method.run(setting, params)
            yield self._specs[key]

    def find(self, spec: RunSpec) -> Record | None:
        """The run: of today's versions if it is complete, shipped or under way; else of others; else as it failed, here
        or, if it diverged, where a pack was made.

        The store's comes before a shipped one.
        """
        if spec.id not in self._looked_up:
            self._looked_up[spec.id] = self._look_up(spec)
        return self._looked_up[spec.id]

    def _look_up(self, spec: RunSpec) -> Record | None:
        hits = [r for r in self.records.get(spec.setting.id, []) if r.id == spec.id]
        hits += [self._of_pack(run, State.DONE) for run in (self.shelf.get(spec.id, spec),) if run]
        if not any(r.artifact for r in hits) and (self._stale or self.shelf.stems):
            hits += self._stale.get(spec.stem, ())
            hits += [self._of_pack(run, State.STALE) for run in (self.shelf.of_stem(spec.stem),) if run]
        if failure := self.shelf.failures.get(spec.id):
            hits.append(Record(spec.id, spec, State.FAILED, {}, reason=failure.reason))
        order = (State.DONE, State.STALE, State.RUNNING, State.FAILED)
        return min(hits, key=lambda r: (order.index(r.state), r.shipped is not None), default=None)

    def _of_pack(self, run: Shipped, state: State) -> Record:
        return Record(run.id, run.origin.spec, state, run.provenance, run)

    @cached_property
    def _stale(self) -> dict[str, list[Record]]:
        """Stem -> the store's runs of other versions, the latest first."""
        every = (r for records in self.records.values() for r in reversed(records))
        return by_key((record.spec.stem, record) for record in every if record.state is State.STALE)

    def but_for_seeds(self, spec: RunSpec) -> list[Record]:
        """The complete runs that differ from one in nothing but seeds, that itself among them."""
        own = [record for record in self._but_for_seeds.get(spec.but_for_seeds, ()) if record.artifact]
        ids = {record.id for record in own}
        return own + [self._of_pack(run, State.DONE) for run in self.shelf.but_for_seeds(spec) if run.id not in ids]

    @cached_property
    def _but_for_seeds(self) -> dict[str, list[Record]]:
        return by_key((record.spec.but_for_seeds, record) for records in self.records.values() for record in records)

    def evaluated(self, record: Record) -> bool:
        """Whether the metrics of a complete run are there."""
        assert record.artifact is not None
        return record.shipped is not None or metrics_of(record.artifact, self.store) is not None

    def metrics(self, record: Record) -> Metrics:
        """The metrics of a complete run (`metrics`)."""
        assert record.artifact is not None
        return metrics(record.artifact, self.store)

    def read(self, id: str) -> Metrics:
        """The metrics of a complete run: of the store, else shipped. Raises FedbenchError if there is none."""
        shipped = None if self.store.path("run", id).exists() else self.shelf.get(id)
        return metrics(shipped or self.store.open("run", id), self.store)

    def _complete(self) -> list[Record]:
        found = []
        for run in self.store.scan("run"):
            if isinstance(run, FedbenchError):
                self.damaged.append(run)
            elif isinstance(spec := run.spec, RunSpec):
                state = State.STALE if stale(spec) else State.DONE
                found.append(Record(run.id, spec, state, run.provenance, run))
        return found


def _records_in(paths: Iterable[Path], key: str, state: State) -> list[Record]:
    """The runs that these JSON files describe under a key.

    A file that cannot be read is skipped: no number comes from it.
    """
    found = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError, FedbenchError):  # finished this moment, or damaged
            raw = read_json(path)
            spec, overrides = raw.get(key), raw.get("overrides", {})
            if isinstance(spec, dict) and isinstance(overrides, dict):
                run = RunSpec.from_dict(spec)
                provenance, reason = {"overrides": overrides}, str(raw.get("reason", ""))
                found.append(Record(run.id, run, state, provenance, reason=reason))
    return found
