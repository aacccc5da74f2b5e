"""The settings of a table's cells at a budget, from its protocol, the table itself, its columns and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.planner.table.spec import Column, Row, Table
from fedbench.results.packs import Packs
from fedbench.specs import DatasetSpec, Setting
from fedbench.store import Store


@dataclass(frozen=True)
class Settings:
    """The settings of a table's cells at a budget and a precision, each made when it is needed."""

    table: Table
    budget: str
    precision: str
    seeds: tuple[int, ...]
    datasets: Mapping[str, tuple[DatasetSpec, int]]  #: at hand; and how many classes each is partitioned by
    cache: dict[str, Setting]

    def of(
        self,
        column: Column,
        row: Row | None = None,
        tuned: Mapping[str, Any] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[Setting, ...]:
        """One a seed, of the column or of a row in it with overrides of its own and the values that are `tuned`; none
        without the data.

        Raises FedbenchError, which names the column, for values that make no setting.
        """
        if column.dataset not in self.datasets:
            return ()
        own = row if row and row.overrides(self.budget) else None
        at = partial(_setting, self.table, column, self.budget, *self.datasets[column.dataset], row=own, tuned=tuned)
        try:
            return tuple(at(seed=seed, precision=self.precision, known=self.cache) for seed in seeds or self.seeds)
        except FedbenchError as error:
            raise error.at(f"{self.table.path}, column {column.key}{f', row {own.label}' if own else ''}") from error


def sketch(table: Table, column: Column, budget: str, row: Row | None = None) -> Setting:
    """The setting of a column (of a row in it) as far as it can be told without the images: its ids mean nothing."""
    from fedbench.data.catalogue import candidates

    vectors = any(recipe.vectors for recipe in candidates(column.dataset))  # they have a network of their own
    dataset = DatasetSpec(column.dataset, "", "", vectors=vectors)
    return _setting(table, column, budget, dataset, 1, row=row, known=_SKETCHES)


#: What has been sketched: the texts below a table ask for the same settings many times over.
_SKETCHES: dict[str, Setting] = {}


def _setting(
    table: Table,
    column: Column,
    budget: str,
    dataset: DatasetSpec,
    classes: int,
    *,
    row: Row | None = None,
    tuned: Mapping[str, Any] | None = None,
    seed: int | None = None,
    precision: str | None = None,
    known: dict[str, Setting] | None = None,
) -> Setting:
    """The setting of a column, or of a row in it; `known` holds those made before."""
    rules = protocol.load(table.protocol)
    chosen = dict(column.partition)
    if rules.redraws and seed is not None:
        chosen.setdefault("seed", seed)
    declared = {
        **table.budget.get(budget, {}),
        **column.overrides(budget),
        **(row.overrides(budget) if row else {}),
        **(tuned or {}),
    }
    key = repr((table.protocol, dataset, classes, chosen, budget, declared, seed, precision))
    if known is not None and key in known:
        return known[key]
    partition = rules.partition_spec(dataset, classes, **chosen)
    if tuned and not partition.validation:
        raise FedbenchError(
            "values are chosen on images that clients hold back, and these hold none back",
            "partition = { validation = 0.2 }",
        )
    setting = rules.setting(partition, budget, declared, seed=seed, precision=precision)
    if known is not None:
        known[key] = setting
    return setting


def dataset(name: str, store: Store, roots: Sequence[Path]) -> tuple[DatasetSpec, int]:
    """The data set and how many classes it is partitioned by. One without a recipe file is read for that, once.

    Raises FedbenchError if it is not at hand.
    """
    from fedbench.data import info, obtain, recipe, recipes, resolve

    try:
        chosen = recipe(name)
    except FedbenchError:
        if name in recipes():
            raise
        raise FedbenchError(f"there is no recipe for the data set {name} yet") from None
    spec = resolve(name, store, list(roots))
    if chosen.told:
        return spec, info(name).partition_classes
    obtain(spec, store, list(roots))
    return spec, info(spec, store).partition_classes


def nominal(name: str) -> tuple[DatasetSpec, int] | None:
    """Stands in for a data set that is not at hand, with the classes that its recipe names: ids that come of it mean
    nothing. None if no recipe names them."""
    from fedbench.data import recipe

    try:
        chosen = recipe(name)
    except FedbenchError:
        return None
    return (DatasetSpec(chosen.name, "", ""), chosen.partition_classes) if chosen.told else None


def shipped_dataset(name: str, packs: Packs) -> tuple[DatasetSpec, int] | None:
    """The images that shipped runs of the data set are of, and by how many classes they are partitioned; None without
    such runs."""
    from fedbench.data import info, recipe

    try:
        own = recipe(name).name
    except FedbenchError:
        return None
    spec = packs.datasets.get(own)
    return None if spec is None else (spec, info(own).partition_classes)
