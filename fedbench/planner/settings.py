"""The settings of a table's cells at a budget, from its protocol, its columns and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedbench import protocol
from fedbench.data import called
from fedbench.errors import FedbenchError
from fedbench.planner.table.spec import Column, Row, Table
from fedbench.results.packs import Packs, Scope
from fedbench.specs import DatasetSpec, Setting
from fedbench.store import Store


@dataclass(frozen=True)
class Settings:
    """The settings of a table's cells at a budget and a precision, made on demand."""

    table: Table
    budget: str
    precision: str
    seeds: tuple[int, ...]
    datasets: Mapping[str, tuple[DatasetSpec, int]]  #: name -> spec and number of classes to partition by
    cache: dict[str, Setting]

    def of(
        self,
        column: Column,
        row: Row | None = None,
        tuned: Mapping[str, Any] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[Setting, ...]:
        """One setting per seed, of a column, with the overrides of `row` and the `tuned` values; none without the data.

        Raises FedbenchError, naming the column, for invalid values.
        """
        if column.dataset not in self.datasets:
            return ()
        row_ = row if row and row.overrides(self.budget) else None
        make = partial(_setting, self.table, column, self.budget, *self.datasets[column.dataset], row=row_, tuned=tuned)
        try:
            return tuple(make(seed=seed, precision=self.precision, known=self.cache) for seed in seeds or self.seeds)
        except FedbenchError as error:
            raise error.at(f"{self.table.path}, column {column.key}{f', row {row_.label}' if row_ else ''}") from error


def sketch(table: Table, column: Column, budget: str, row: Row | None = None) -> Setting:
    """The setting of a column (or of a row in it) without its images: the ids are meaningless."""
    from fedbench.data.catalogue import candidates

    vectors = any(recipe.vectors for recipe in candidates(column.dataset))  # vectors have another network
    dataset = DatasetSpec(column.dataset, "", "", vectors=vectors)
    return _setting(table, column, budget, dataset, 1, row=row, known=_SKETCHES)


def scopes(table: Table, column: Column, budget: str, precision: str = "") -> set[Scope]:
    """Data set, model, rounds and precision (default: the budget's) of the runs in a column's cells: a quick test
    whether there may be any."""
    precision = precision or protocol.load(table.protocol).precision(budget)
    rows: list[Row | None] = [row for row in table.rows if row.overrides(budget)]
    try:
        settings = [sketch(table, column, budget, row) for row in (None, *rows)]
    except FedbenchError as error:
        raise error.at(f"{table.path}, column {column.key}") from error
    models, rounds = table.tune.get("model", []), table.tune.get("rounds", [])
    return {
        (called(column.dataset), model, number, precision)
        for setting in settings
        for model in models or [setting.model]
        for number in rounds or [setting.rounds]
    }


#: The settings that `sketch` has made: the notes below a table need the same ones many times.
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
    """The setting of a column, or of a row in it; `known` is a cache."""
    rules = protocol.load(table.protocol)
    chosen = dict(column.partition)
    if (draw := table.partition_seed(seed)) is not None:
        chosen.setdefault("seed", draw)
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
            "values are chosen on validation images, and these clients have none",
            "partition = { validation = 0.2 }",
        )
    setting = rules.setting(partition, budget, declared, seed=seed, precision=precision)
    if known is not None:
        known[key] = setting
    return setting


def dataset(name: str, store: Store, roots: Sequence[Path]) -> tuple[DatasetSpec, int]:
    """The spec of a data set and its number of classes to partition by. A data set whose recipe does not declare them
    is read, once.

    Raises FedbenchError if the data set is missing.
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


def shipped_dataset(name: str, packs: Packs) -> tuple[DatasetSpec, int] | None:
    """The spec of a data set in most of its shipped runs, and its number of classes to partition by; None without such
    runs."""
    from fedbench.data import info, recipe

    try:
        known_name = recipe(name).name
    except FedbenchError:
        return None
    spec = packs.datasets.get(known_name)
    return None if spec is None else (spec, info(known_name).partition_classes)
