"""The frame: every run of a store or a result pack (complete, running or failed), and its metrics.

Tables find their runs by id (`Frame.find`); commands about a user's runs select them by their parameters
(`Run.values`, `planner.runs.select`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fedbench import methods, models, protocol
from fedbench.data.locate import VERSION as READERS
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.read import Metrics, load, metrics_of, spec_of
from fedbench.partitions import schemes
from fedbench.results.packs import Packs, Scope, Shipped
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code
from fedbench.words import counted, plain

# -- versions --------------------------------------------------------------------------------------------------
# Whether a run has another version than today's: of its method, the trainer, its network, partitioner or images.
#
# Methods, networks, partitioners, readers and the trainer each have a version, a whole number that every spec records.
# It is raised when results change, which the golden predictions of the tests detect (tests/golden). A code change
# that changes no number therefore makes no run stale; reports still say that other code made the run.


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


#: How many ids of runs a line prints.
NAMED = 3


def by_other_code(runs: Iterable[Run | Artifact]) -> list[str]:
    """One line that names the runs made by other code than today's; empty if there are none.

    Shipped runs do not count: a pack does not record which files made them. 'fedbench results verify' checks them.
    """
    ids = list(dict.fromkeys(run.id for run in runs if other_code(run.provenance)))
    if not ids:
        return []
    names = ", ".join(ids[:NAMED]) + (", ..." if ids[NAMED:] else "")
    was, them = ("was", "it") if len(ids) == 1 else ("were", "them")
    return [
        f"{counted(len(ids), 'run')} {was} made by other code than today's ({names}): "
        f"'fedbench train --again' makes {them} again."
    ]


# -- run -------------------------------------------------------------------------------------------------------


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
            "id": self.id, "row": self.row, "method": spec.method.partition("@")[0], "title": self.title,
            "method_version": spec.method_version, "file": spec.source and spec.source[:8],
            "dataset": part.dataset.name, "source": part.dataset.source, "dataset_id": part.dataset.id[:8],
            "split": schemes.label(part), "partition": part.id, "partition_seed": part.seed,
            "partition_version": part.version,
        }  # fmt: skip
        at = schemes.facts(part).items()
        values |= {k: v for k, v in at if k not in ("dataset", "seed", "version") and v is not None}
        values["budget"] = protocol.budgets_of(setting)
        return values | {f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting) if f.name != "partition"}


def title_of(method: str, provenance: Mapping[str, Any]) -> str:
    """A method's printed name: from the run's provenance, else (very old runs) from the method's declaration."""
    declared = declarations.of(method).title if method in methods.names() else method
    return plain(str(provenance.get("title") or declared))


# -- frame -----------------------------------------------------------------------------------------------------


class Frame:
    """All runs of a store and of result packs, read once. After that only metrics need disk access."""

    def __init__(self, store: Store, packs: Packs | None = None) -> None:
        self.store = store
        self.packs = packs or Packs([])
        self.settings: dict[str, Setting] = {}  #: cache of tables' settings
        self._specs: dict[tuple[str, str | None, str, str], RunSpec] = {}  #: cache
        self._looked_up: dict[str, Run | None] = {}  #: run's id -> run
        #: Errors of runs that cannot be read, whose cells are therefore unknown; filled by `complete`.
        self.damaged: list[FedbenchError] = []

    @classmethod
    def of(cls, store: Store, warn: Callable[[FedbenchError], None] | None = None) -> Frame:
        """The frame of a store and all packs; `warn` is called for each faulty pack."""
        return cls(store, Packs.of(store, warn))

    @cached_property
    def complete(self) -> list[Run]:
        """The store's complete runs, oldest first."""
        found = []
        for run in self.store.scan("run"):
            if isinstance(run, FedbenchError):
                self.damaged.append(run)
            else:
                found.append(Run.of(run, self.store))
        return found

    @cached_property
    def records(self) -> dict[str, list[Run]]:
        """Setting's id -> the store's runs: failed, running, then complete ones, oldest first."""
        home, store = self.store.home, self.store
        under_way = (path for path in home.glob("work/*/spec.json") if store.claimed(path.parent.name))
        failed = _described(home.glob("failed/*.json"), "spec", State.FAILED, store)
        every = (*failed, *_described(under_way, "run", State.RUNNING, store), *self.complete)
        return by_key((run.spec.setting.id, run) for run in every)

    @cached_property
    def own_scopes(self) -> set[Scope]:
        """Data set, model, rounds and precision of the store's runs."""
        return {scope_of(runs[0].spec.setting) for runs in self.records.values()}

    @cached_property
    def scopes(self) -> set[Scope]:
        """Data set, model, rounds and precision of the runs of store and packs."""
        return self.own_scopes | self.packs.scopes

    @cached_property
    def _partitions(self) -> set[str]:
        return {runs[0].spec.setting.partition.stem for runs in self.records.values()} | self.packs.partitions

    def trained_in(self, partition: PartitionSpec) -> bool:
        """Whether any run, of any version, has this partition."""
        return partition.stem in self._partitions

    def specs(self, method: Declaration, settings: Iterable[Setting], params: Mapping[str, Any]) -> Iterator[RunSpec]:
        """The method's runs in these settings; a cache makes each spec once."""
        values = repr(params)
        for setting in settings:
            key = (method.name, method.source, setting.id, values)
            if key not in self._specs:
                self._specs[key] = method.run(setting, params)
            yield self._specs[key]

    def find(self, spec: RunSpec) -> Run | None:
        """The run of a spec, or None. Order: complete with today's versions, complete with others (stale), running,
        failed (in the store, or diverged according to a pack). In each state the store's run before a shipped one. A
        run of the store that answered more (`Setting.covers`) takes the place of one that is not complete.
        """
        if spec.id not in self._looked_up:
            self._looked_up[spec.id] = self._look_up(spec)
        return self._looked_up[spec.id]

    def _look_up(self, spec: RunSpec) -> Run | None:
        hits = [run for run in self.records.get(spec.setting.id, []) if run.id == spec.id]
        hits += [self.of_pack(run, State.DONE) for run in (self.packs.get(spec.id, spec),) if run]
        if not any(run.complete for run in hits):  # a run that answered more has this one's answers, too
            same = self._trainings.get(spec.training, ())
            hits += [run for run in same if run.spec.setting.covers(spec.setting)][:1]
        if not any(run.complete for run in hits) and (self._stale or self.packs.stems):
            hits += self._stale.get(spec.stem, ())
            hits += [self.of_pack(run, State.STALE) for run in (self.packs.of_stem(spec.stem),) if run]
        if failure := self.packs.failures.get(spec.id):
            hits.append(Run(spec, self.store, State.FAILED, reason=failure.reason))
        order = (State.DONE, State.STALE, State.RUNNING, State.FAILED)
        return min(hits, key=lambda run: (order.index(run.state), run.shipped is not None), default=None)

    def of_pack(self, run: Shipped, state: State | None = None) -> Run:
        """The run of a pack; `state` if already known."""
        return Run.of(run, self.store, state)

    @cached_property
    def _trainings(self) -> dict[str, list[Run]]:
        """`RunSpec.training` -> the store's complete runs, the latest first."""
        return by_key((run.spec.training, run) for run in reversed(self.complete))

    @cached_property
    def _stale(self) -> dict[str, list[Run]]:
        """Stem -> the store's stale runs, the latest first."""
        return by_key((run.spec.stem, run) for run in reversed(self.complete) if run.stale)

    def but_for_seeds(self, spec: RunSpec) -> list[Run]:
        """The complete runs that equal this one in all but seeds, itself included."""
        runs = self._but_for_seeds.get(spec.but_for_seeds, [])
        ids = {run.id for run in runs}
        return runs + [self.of_pack(run) for run in self.packs.but_for_seeds(spec) if run.id not in ids]

    @cached_property
    def _but_for_seeds(self) -> dict[str, list[Run]]:
        return by_key((run.spec.but_for_seeds, run) for run in self.complete)

    def named(self, prefix: str) -> Run:
        """The complete run whose id begins with `prefix`: from the store, else from a pack. Raises FedbenchError for
        none or more than one."""
        try:
            artifact = self.store.find(prefix, ("run",))
        except FedbenchError:
            if (shipped := self.packs.find(prefix)) is None:
                raise
            artifact = shipped
        return Run.of(artifact, self.store)


def scope_of(setting: Setting) -> Scope:
    """Data set, model, rounds and precision of a setting: a quick test whether any run may be in it."""
    return setting.partition.dataset.name, setting.model, setting.rounds, setting.precision


def _described(paths: Iterable[Path], key: str, state: State, store: Store) -> list[Run]:
    """The runs whose specs these JSON files hold under `key`. Skips unreadable files: they give no number."""
    found = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError, FedbenchError):  # finished this moment, or damaged
            raw = read_json(path)
            spec, overrides = raw.get(key), raw.get("overrides", {})
            if isinstance(spec, dict) and isinstance(overrides, dict):
                about, reason = {"overrides": overrides}, str(raw.get("reason", ""))
                found.append(Run(RunSpec.from_dict(spec), store, state, about, reason=reason))
    return found
