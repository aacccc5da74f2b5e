"""The frame: every run of a store or a result pack (complete, running or failed), and its metrics.

Tables find their runs by id (`Frame.find`); commands about a user's runs select them by their parameters
(`Run.values`, `planner.runs.select`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.groups import by_key
from fedbench.results.packs import Packs, Scope, Shipped
from fedbench.results.run import Run, State
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.store import Store


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

    def repeated(self, method: str) -> list[list[Run]]:
        """The method's complete runs with more than one seed: those that differ in seeds alone together."""
        specs = [runs[0].spec for runs in self._but_for_seeds.values() if runs[0].spec.method == method]
        specs += [self.of_pack(run).spec for id in self.packs.repeated.get(method, ()) if (run := self.packs.get(id))]
        groups = {spec.but_for_seeds: self.but_for_seeds(spec) for spec in specs}
        return [runs for runs in groups.values() if len(runs) > 1]

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
