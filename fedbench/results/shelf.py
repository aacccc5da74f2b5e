"""All result packs at hand: those that come with fedbench, then those that a store has imported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.results.failure import Failure
from fedbench.results.pack import Pack
from fedbench.results.shipped import Shipped
from fedbench.specs import DatasetSpec, RunSpec
from fedbench.store import Store

#: Beside a paper's tables, and in a store.
FOLDER = "results"


def with_fedbench() -> list[Path]:
    """The packs that come with fedbench."""
    return sorted(resources.TABLES.glob(f"*/{FOLDER}/*.parquet"))


def imported(store: Store) -> list[Path]:
    """The packs that a store has imported."""
    return sorted(path for path in (store.home / FOLDER).glob("*.parquet") if not path.name.startswith("."))


class Shelf:
    """The runs of some packs; of a run in several of them the first counts."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self._runs: dict[str, Shipped] = {}
        #: Data set, budget and precision -> what runs have in common that differ in seeds only -> their ids.
        self._groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}

    @classmethod
    def of(cls, store: Store) -> Shelf:
        """All that are at hand where this store is."""
        return cls([*with_fedbench(), *imported(store)])

    @cached_property
    def _read(self) -> tuple[list[Pack], list[FedbenchError]]:
        packs, problems = [], []
        for pack in map(Pack, self.paths):
            try:
                if pack.heads:
                    packs.append(pack)
            except FedbenchError as error:
                problems.append(error)
        return packs, problems

    @property
    def packs(self) -> list[Pack]:
        """Those that can be read."""
        return self._read[0]

    @property
    def problems(self) -> list[FedbenchError]:
        """What is wrong with the others."""
        return self._read[1]

    @cached_property
    def places(self) -> dict[str, tuple[Pack, int]]:
        """Run's id -> its pack, and its row there."""
        places: dict[str, tuple[Pack, int]] = {}
        for pack in self.packs:
            places = {**{id: (pack, row) for id, row in pack.places.items()}, **places}
        return places

    def get(self, id: str, expected: RunSpec | None = None) -> Shipped | None:
        """The run of that id, whose spec may be known. Raises FedbenchError if its row is damaged."""
        if id not in self._runs and id in self.places:
            self._runs[id] = Shipped.of(*self.places[id], expected)
        return self._runs.get(id)

    @cached_property
    def stems(self) -> dict[str, str]:
        """What runs of other versions have in common -> the id of the one that was made last."""
        heads = (zip(*(pack.heads[name] for name in ("started", "stem", "id")), strict=True) for pack in self.packs)
        return {stem: id for _, stem, id in sorted(row for rows in heads for row in rows)}

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """Id -> a run that diverged."""
        return {failure.id: failure for pack in reversed(self.packs) for failure in pack.failures}

    def of_stem(self, stem: str) -> Shipped | None:
        """A run of that stem, of whatever versions. Raises FedbenchError if its row is damaged."""
        return self.get(self.stems.get(stem, ""))

    def find(self, prefix: str) -> Shipped | None:
        """The one run whose id starts with `prefix`. Raises FedbenchError if there are several."""
        hits = [id for id in self.places if id.startswith(prefix)]
        if len(hits) > 1:
            raise FedbenchError(f"'{prefix}' is ambiguous: {', '.join(f'run {id}' for id in sorted(hits))}")
        return self.get(hits[0]) if hits else None

    def all(self) -> list[Shipped]:
        """Every run, oldest first."""
        runs = [run for id in self.places if (run := self.get(id)) is not None]
        return sorted(runs, key=lambda run: (run.origin.started, run.id))

    def but_for_seeds(self, spec: RunSpec) -> Iterator[Shipped]:
        """The runs that differ from one in nothing but seeds, that itself among them."""
        setting = spec.setting
        scope = setting.partition.dataset.text, setting.budget, setting.precision
        if scope not in self._groups:
            groups = self._groups.setdefault(scope, {})
            for id, (pack, row) in self.places.items():
                if scope == tuple(pack.heads[name][row] for name in ("data", "budget", "precision")):
                    groups.setdefault(pack.spec(row).but_for_seeds, []).append(id)
        found = map(self.get, self._groups[scope].get(spec.but_for_seeds, ()))
        return (run for run in found if run is not None)

    def specs(self) -> Iterator[RunSpec]:
        return (pack.spec(row) for pack, row in self.places.values())

    @cached_property
    def scopes(self) -> set[tuple[str, str, str]]:
        """Data set, budget and precision of all runs."""
        return {
            (json.loads(data)["name"], budget, precision)
            for data, budget, precision in {row for pack in self.packs for row in _scopes(pack)}
        }

    @cached_property
    def partitions(self) -> set[str]:
        """The stems of all runs' partitions."""
        return {stem for pack in self.packs for stem in pack.partitions}

    @cached_property
    def datasets(self) -> dict[str, DatasetSpec]:
        """Name of a data set -> the images that most of its runs are of."""
        counts = Counter(data for pack in self.packs for data in pack.heads["data"])
        specs = [DatasetSpec.shared(json.loads(data)) for data, _ in counts.most_common()]
        return {spec.name: spec for spec in reversed(specs)}


def _scopes(pack: Pack) -> Iterator[tuple[str, str, str]]:
    return zip(pack.heads["data"], pack.heads["budget"], pack.heads["precision"], strict=True)


def summary(pack: Pack) -> dict[str, Any]:
    """What a pack holds, in brief."""
    heads, days = pack.heads, sorted(pack.heads["started"])
    return {
        "name": f"{pack.path.parent.parent.name}/{pack.path.stem}", "path": str(pack.path),
        "bytes": pack.path.stat().st_size, "runs": len(heads["id"]), "diverged": len(pack.failures),
        "by": sorted({*heads["by"]}),
        "datasets": sorted({json.loads(data)["name"] for data in heads["data"]}),
        "machines": sorted({*heads["machine"]}), "first": days[0] if days else "", "last": days[-1] if days else "",
        "seconds": sum(heads["seconds"]),
    }  # fmt: skip
