"""All result packs: those that a store has imported, those of the user's papers, and those that fedbench ships."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.read import Metrics
from fedbench.results.pack import OF_SPEC, Failure, Pack, Row, name_of, same_numbers
from fedbench.specs import DatasetSpec, RunSpec
from fedbench.store import Artifact, Store

T = TypeVar("T")
#: Data set's name, model, rounds and precision of runs: a quick test whether any run may be in a setting.
Scope = tuple[str, str, int, str]

#: Folder of packs in a paper's folder and in a store.
FOLDER = "results"


def with_fedbench() -> list[Path]:
    """The packs that fedbench ships."""
    return sorted(resources.TABLES.glob(f"*/{FOLDER}/*.parquet"))


def of_papers() -> list[Path]:
    """The packs in the folders of the user's papers."""
    return sorted(path for folder in resources.of_user().values() for path in folder.glob(f"{FOLDER}/*.parquet"))


def imported(store: Store) -> list[Path]:
    """The packs that a store has imported."""
    return sorted(path for path in (store.home / FOLDER).glob("*.parquet") if not path.name.startswith("."))


class Packs:
    """The runs of some packs; if packs share a run, the first one's counts. A pack is dropped as soon as a fault is
    found in it, and `warn` is called."""

    def __init__(
        self, paths: list[Path] | Callable[[], list[Path]], warn: Callable[[FedbenchError], None] | None = None
    ) -> None:
        #: A function is called at the first use: by then a command has registered papers that it names by path.
        self._paths, self._warn = paths, warn
        self._runs: dict[tuple[Path, str], Shipped] = {}
        self._problems: list[FedbenchError] = []
        #: Data set, model, rounds, precision -> `RunSpec.but_for_seeds` -> ids of these runs.
        self._groups: dict[tuple[str, str, int, str], dict[str, list[str]]] = {}

    @classmethod
    def of(cls, store: Store, warn: Callable[[FedbenchError], None] | None = None) -> Packs:
        """All packs that a user of this store has."""
        return cls(lambda: [*imported(store), *of_papers(), *with_fedbench()], warn)

    @cached_property
    def paths(self) -> list[Path]:
        """The packs' files, with and without faults."""
        return self._paths() if callable(self._paths) else self._paths

    @cached_property
    def whole(self) -> list[Pack]:
        """The packs without a known fault."""
        packs = []
        for pack in map(Pack, self.paths):
            try:
                if pack.failures is not None:  # reads the heads, too
                    packs.append(pack)
            except FedbenchError as error:
                self._found(error)
        return packs

    def checked(self) -> list[Pack]:
        """The packs without a value out of range; reads all of them."""
        self._of_each(Pack.check)
        return self.whole

    def _of_each(self, function: Callable[[Pack], T]) -> list[T]:
        """The results of a function for each pack; drops packs for which it raises FedbenchError."""
        results = []
        for pack in [*self.whole]:
            try:
                results.append(function(pack))
            except FedbenchError as error:
                self._leave_out(pack, error)
        return results

    @property
    def problems(self) -> list[FedbenchError]:
        """The errors of the packs that were dropped."""
        _ = self.whole
        return self._problems

    def _found(self, error: FedbenchError) -> None:
        self._problems.append(error)
        if self._warn:
            self._warn(error)

    def _leave_out(self, pack: Pack, error: FedbenchError) -> None:
        self.whole.remove(pack)
        for name in ("places", "stems", "failures", "scopes", "partitions", "datasets"):
            self.__dict__.pop(name, None)
        self._found(error)

    @cached_property
    def places(self) -> dict[str, list[tuple[Pack, int]]]:
        """Run's id -> (pack, row) of each pack that has it."""
        places: dict[str, list[tuple[Pack, int]]] = {}
        for pack in self.whole:
            for id, row in pack.places.items():
                places.setdefault(id, []).append((pack, row))
        return places

    def get(self, id: str, expected: RunSpec | None = None) -> Shipped | None:
        """The run with this id, or None; `expected` is its spec, if known."""
        return next(self._each(id, expected), None)

    def others(self, id: str, metrics: Metrics) -> list[Shipped]:
        """The run with this id from each pack whose metrics for it differ from `metrics`."""
        return [run for run in self._each(id) if run.metrics is not metrics and not same_numbers(metrics, run.metrics)]

    def _each(self, id: str, expected: RunSpec | None = None) -> Iterator[Shipped]:
        """The run with this id from each pack that has it."""
        for pack, row in self.places.get(id, ()):
            try:
                if (key := (pack.path, id)) not in self._runs:
                    self._runs[key] = Shipped.of(pack, row, expected)
            except FedbenchError as error:
                self._leave_out(pack, error)
            else:
                yield self._runs[key]

    @cached_property
    def stems(self) -> dict[str, str]:
        """Stem (id without versions) -> id of its run that was made last."""
        heads = (zip(*(pack.heads[name] for name in ("started", "stem", "id")), strict=True) for pack in self.whole)
        return {stem: id for _, stem, id in sorted(row for rows in heads for row in rows)}

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """Id -> diverged run."""
        return {failure.id: failure for pack in reversed(self.whole) for failure in pack.failures}

    def of_stem(self, stem: str) -> Shipped | None:
        """The latest run with this stem, of any version."""
        return self.get(self.stems.get(stem, ""))

    def find(self, prefix: str) -> Shipped | None:
        """The run whose id starts with `prefix`, or None. Raises FedbenchError if there is more than one."""
        hits = [id for id in self.places if id.startswith(prefix)]
        if len(hits) > 1:
            raise FedbenchError(f"'{prefix}' is ambiguous: {', '.join(f'run {id}' for id in sorted(hits))}")
        return self.get(hits[0]) if hits else None

    def runs(self) -> list[Shipped]:
        """Every run, oldest first."""
        runs = [run for id in self.places if (run := self.get(id)) is not None]
        kept = {pack.path for pack in self.whole}  # without packs that `get` dropped
        return sorted((run for run in runs if run.path in kept), key=lambda run: (run.origin.started, run.id))

    def but_for_seeds(self, spec: RunSpec) -> Iterator[Shipped]:
        """The runs that equal this one in all but seeds, itself included."""
        setting = spec.setting
        scope = setting.partition.dataset.text, setting.model, setting.rounds, setting.precision
        if scope not in self._groups:
            groups = self._groups.setdefault(scope, {})
            for id, ((pack, row), *_) in self.places.items():
                if scope == tuple(pack.heads[name][row] for name in OF_SPEC):
                    groups.setdefault(pack.spec(row).but_for_seeds, []).append(id)
        found = map(self.get, self._groups[scope].get(spec.but_for_seeds, ()))
        return (run for run in found if run is not None)

    @cached_property
    def repeated(self) -> dict[str, list[str]]:
        """Method -> the id of one run of each group that differs in seeds alone and has more than one."""
        groups: dict[tuple[str, str], list[str]] = {}
        for id, ((pack, row), *_) in self.places.items():
            spec = json.loads(pack.heads["spec"][row])["spec"]  # making the specs of all runs takes seconds
            setting = {key: value for key, value in spec["setting"].items() if key not in ("seed", "init_seed")}
            partition = {key: value for key, value in setting["partition"].items() if key != "seed"}
            rest = {**spec, "setting": {**setting, "partition": partition}}
            groups.setdefault((spec["method"], json.dumps(rest, sort_keys=True)), []).append(id)
        return by_key((method, ids[0]) for (method, _), ids in groups.items() if len(ids) > 1)

    @cached_property
    def scopes(self) -> set[Scope]:
        """Data set's name, model, rounds and precision of all runs."""
        return {
            (json.loads(data)["name"], *rest)
            for data, *rest in {
                scope for pack in self.whole for scope in zip(*(pack.heads[name] for name in OF_SPEC), strict=True)
            }
        }

    @cached_property
    def partitions(self) -> set[str]:
        """The stems of all runs' partitions."""
        return set().union(*self._of_each(lambda pack: pack.partitions))

    @cached_property
    def datasets(self) -> dict[str, DatasetSpec]:
        """Data set's name -> the spec that most of its runs have."""
        counts = Counter(data for pack in self.whole for data in pack.heads["data"])
        specs = [DatasetSpec.shared(json.loads(data)) for data, _ in counts.most_common()]
        return {spec.name: spec for spec in reversed(specs)}


def summary(pack: Pack) -> dict[str, Any]:
    """A summary of a pack's contents, as JSON values."""
    heads, days = pack.heads, sorted(pack.heads["started"])
    return {
        "name": name_of(pack.path),
        "path": str(pack.path),
        "bytes": pack.path.stat().st_size,
        "runs": len(heads["id"]),
        "diverged": len(pack.failures),
        "by": sorted({*heads["by"]}),
        "datasets": sorted({json.loads(data)["name"] for data in heads["data"]}),
        "machines": sorted({*heads["machine"]}),
        "first": days[0] if days else "",
        "last": days[-1] if days else "",
        "seconds": sum(heads["seconds"]),
    }


@dataclass(frozen=True)
class Shipped(Artifact):
    """A run of a result pack: an artifact without files. It has metrics and origin, but only the SHA-256 of its
    predictions (`Row.predictions`)."""

    row: Row | None = None

    @classmethod
    def of(cls, pack: Pack, number: int, expected: RunSpec | None = None) -> Shipped:
        """The run in row `number` of a pack; `expected` is its spec, if known. Raises FedbenchError if damaged."""
        row = pack.row(number, expected)
        origin: dict[str, Any] = {"started": row.started, "train_seconds": row.seconds, "platform": row.machine}
        manifest = {
            "id": row.id,
            "kind": row.spec.kind,
            "spec": row.spec.to_dict(),
            "inputs": {},
            "files": {},
            "provenance": {**row.about, **origin},
        }
        return cls(pack.path, manifest, row.spec, row=row)

    @cached_property
    def origin(self) -> Row:
        """The run's row in its pack: who made it, when, on which machine."""
        assert self.row is not None
        return self.row

    @property
    def pack(self) -> str:
        """The printed name of its pack."""
        return name_of(self.path)

    @property
    def metrics(self) -> Metrics:
        return self.origin.metrics

    def file(self, name: str) -> Path:
        """Raises NotPacked: a pack has no files."""
        table = name.partition(".")[0]
        raise NotPacked(
            f"run {self.id} is a shipped result, and its {table} are not in the pack",
            f"'fedbench results verify {self.id}' trains it here",
        )


class NotPacked(FedbenchError):
    """A shipped run's pack lacks the data."""
