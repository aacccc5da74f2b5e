"""The declaration of a paper's table, as data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from fedbench import resources
from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.definitions import METRICS
from fedbench.planner.table import statistic
from fedbench.planner.table.claims import Claim
from fedbench.planner.table.cost import Case
from fedbench.planner.table.reported import Reported, reported, tables_in
from fedbench.protocol import Chosen, Remark, Seed, Training
from fedbench.reader import Among, Between
from fedbench.specs import Plain

#: Unit -> (factor from the stored value, printed symbol). Accuracies are stored as fractions, times in seconds.
UNITS = {
    "percent": (100.0, "%"),
    "fraction": (1.0, ""),
    "seconds": (1.0, "s"),
    "minutes": (1 / 60, "min"),
    "count": (1.0, ""),
    "kilobytes": (1e-3, "kB"),
    "megabytes": (1e-6, "MB"),
    "millions": (1e-6, "million"),
    "gigamacs": (1e-9, "GMAC"),
    "marks": (1.0, ""),
}
#: Unit of accuracies -> percentage points per unit.
POINTS_IN = {"percent": 1.0, "fraction": 100.0}
#: Value in unit "marks" -> printed mark; and key of a column's `marks` -> value, which is else 0.
MARKS = {1.0: "✓", 0.5: "○", 0.0: "–"}
MARKED = {"yes": 1.0, "partly": 0.5}
BEST = ("max", "min", "none")
#: Relation of a derived column -> function from a row's value and the base row's to the printed number.
RELATIONS: dict[str, Callable[[float, float], float]] = {
    "difference": lambda value, base: value - base,
    "percent": lambda value, base: 100 * (value / base - 1),  # how much more than the base
}
#: Rule for the ± of a mean over columns -> its description (`metrics.statistics.SPREADS` computes it).
SPREADS = {
    "rms": "root of the mean square of the ± of the parts",
    "mean": "mean of the ± of the parts",
    "propagated": "± of the mean of independent parts: the root of the sum of squares of their ±, over their number",
    "sample": "standard deviation (ddof 1) over the parts",
}
VIEWS = ("crop", "plain")

Decimals = Annotated[int, Between(0, 15)]
Count = Annotated[int, Between(0, 10**9)]
Tolerance = Annotated[float, Between(0, math.inf)]


@dataclass(frozen=True)
class Range:
    """Rule: an empty list, or [low, high] with least <= low <= high."""

    words: str
    least: float

    def check(self, value: list[float], where: str) -> None:
        if value and not (len(value) == 2 and self.least <= value[0] <= value[1]):
            raise FedbenchError(f"{where}: {self.words}, not {value}")


StatisticName = Annotated[str, statistic.Known()]
Unit = Annotated[str, Among("unit", tuple(UNITS))]
Best = Annotated[str, Among("best", BEST)]


@dataclass(frozen=True)
class CellPattern:
    """Cells of a table: `rows` (empty: all) in `columns`; a * in a key matches any text."""

    columns: list[str]
    rows: list[str] = field(default_factory=list)

    def covers(self, row: str, column: str) -> bool:
        """Whether it has the cell of this row (label; "": a row that the paper does not have) and column (key)."""
        return (not self.rows or row in self.rows) and self.has(column)

    def has(self, column: str) -> bool:
        """Whether its columns include this one (key)."""
        return any(matches(column, key) for key in self.columns)


def matches(key: str, pattern: str) -> bool:
    """Whether a column's key matches the pattern, in which a * matches any text."""
    return key == pattern if "*" not in pattern else fnmatchcase(key, pattern.replace("[", "[[]").replace("?", "[?]"))


@dataclass(frozen=True)
class Row:
    """A method with the table's hyper-parameters for it.

    Or, for a counted statistic: a model or a method with costs ("count"), a client's training or test set ("preset"), a
    level of the columns' shifts ("levels"), or a method with marks ("marks").
    """

    label: str = ""  #: default: the method's title and its `params`
    method: str = ""
    params: Mapping[str, Plain] = field(default_factory=dict)
    note: str = ""
    planned: bool = False  #: its method may be unknown (not built yet); else an unknown method is an error
    added: bool = False  #: not in the paper's table
    train: Training = field(default_factory=dict)  #: setting overrides of this row's runs, at all budgets
    budget: Mapping[str, Training] = field(default_factory=dict)  #: budget -> setting overrides of this row's runs
    model: str = ""
    shape: list[Count] = field(default_factory=list)  #: an image's height, width, channels
    classes: Count = 0
    level: Count = 0  #: statistic "levels"
    client: int = 0  #: statistic "preset": counted from 1
    side: str = ""  #: statistic "preset": "train" or "test"
    metrics: Mapping[str, str] = field(default_factory=dict)  #: a column's metric -> this row's metric instead

    def overrides(self, budget: str) -> dict[str, Any]:
        """Setting overrides of this row's runs at a budget; empty if it uses the columns' settings."""
        return {**self.train, **self.budget.get(budget, {})}

    def reads(self, column: Column) -> Column:
        """The column with this row's metric."""
        metric = self.metrics.get(str(column.metric))
        return dataclasses.replace(column, metric=metric) if metric else column


@dataclass(frozen=True)
class Column:
    """A data set under a partition and a setting; `partition` and `train` override the protocol's values.

    Or (`of`) a mean over other columns of the table, without runs: of their values as printed, or of their `relation`
    to those of the row `relative_to`. It has a ± only if `spread` gives the rule. Fields that are None are inherited
    from the table, or for a mean from the first of its columns.
    """

    label: str
    group: str = ""
    dataset: str = ""
    partition: Chosen = field(default_factory=dict)
    train: Training = field(default_factory=dict)
    budget: Mapping[str, Training] = field(default_factory=dict)  #: budget -> setting overrides
    client: int | None = None  #: the metric of this client, counted from 1; None: of the federation
    #: Of a statistic over clients: the first and last client.
    clients: Annotated[list[int], Range("clients are [first, last], counted from 1", 1)] = field(default_factory=list)
    category: int | None = None  #: statistic "preset": the class
    costs: Case | None = None  #: statistic "count" of methods
    #: Statistic "marks": one of MARKED -> the rows (labels) with this mark.
    marks: Mapping[str, list[str]] = field(default_factory=dict)
    metric: str | None = None
    statistic: StatisticName | None = None
    unit: Unit | None = None
    decimals: Decimals | None = None
    std_decimals: Decimals | None = None
    best: Best | None = None
    tolerance: Tolerance | None = None
    #: Data set that `--dataset` puts into this column instead of the template's -> overrides of `partition` for it.
    stands_in: Mapping[str, Chosen] = field(default_factory=dict)
    doubtful: bool = False  #: the paper's values are printed with a "?" and are no target
    #: Keys of earlier columns, of which this one is the mean; a * in a key matches any text.
    of: list[str] = field(default_factory=list)
    spread: Annotated[str, Among("spread", tuple(SPREADS))] = ""  #: rule for the ± of such a mean
    hidden: bool = False  #: not printed, only part of means
    relative_to: str = ""  #: the row with which `relation` compares each of these columns
    relation: Annotated[str, Among("relation", tuple(RELATIONS))] = ""

    @cached_property
    def key(self) -> str:
        """GROUP/LABEL: the column's name in claims and reported values."""
        return f"{self.group}/{self.label}" if self.group else self.label

    def overrides(self, budget: str) -> dict[str, Any]:
        """Setting overrides of this column's runs at a budget."""
        return {**self.train, **self.budget.get(budget, {})}


@dataclass(frozen=True)
class Look:
    """How the paper prints a table, which LaTeX does, too."""

    #: How ± is set: 63.85 ± 0.12, with a small ±, .763(.07), or not at all.
    spread: Annotated[str, Among("form of ±", ("pm", "small", "paren", "none"))] = "small"
    methods: Annotated[str, Among("place of the methods", ("rows", "columns"))] = "rows"


@dataclass(frozen=True)
class Table:
    """One table of a paper. `id` and `path` come from the file's path, the rest from its content."""

    id: str
    path: Path
    title: str
    statistic: StatisticName
    rows: list[Row]
    column: list[Column]
    protocol: str = ""
    metric: str = ""
    #: Test images: "crop" (random crops as in training) or "plain".
    view: Annotated[str, Among("view", VIEWS)] = "plain"
    unit: Unit = "fraction"
    decimals: Decimals = 2
    std_decimals: Decimals | None = None  #: of the ±; default: `decimals`
    best: Best = "max"
    seeds: list[Seed] = field(default_factory=list)  #: of the runs; empty: the protocol's
    #: Of the draws of its partitions, one beside each of `seeds`; empty: those of the protocol and the columns.
    partition_seeds: list[Seed] = field(default_factory=list)
    #: For numbers other than accuracies (which are compared in points): the largest |measured - reported| that counts
    #: as near, in the printed unit, or of the ratio (`ratio_to`). Default of the columns.
    tolerance: Tolerance | None = None
    stub: str = ""  #: heading of the rows
    look: Look = field(default_factory=Look)
    preset: str = ""  #: of the protocol (statistic "preset")
    smallest: Mapping[str, Count] = field(default_factory=dict)  #: images of the data set's rarest class: train, test
    ratio_to: str = ""  #: a row; values are compared as ratios to it
    template: str = ""  #: the data set that `--dataset` replaces; default: the first column's
    budget: Mapping[str, Training] = field(default_factory=dict)  #: budget -> setting overrides
    #: Field of a setting -> values; each cell uses the one with the best accuracy on validation images.
    tune: Mapping[str, list[Any]] = field(default_factory=dict)
    about: list[str] = field(default_factory=list)  #: notes that are always printed
    notes: list[str] = field(default_factory=list)  #: other notes
    reported_notes: list[str] = field(default_factory=list)  #: notes on the paper's numbers
    remark: list[Remark] = field(default_factory=list)  #: notes on some of its cells
    claim: list[Claim] = field(default_factory=list)
    undefined: list[CellPattern] = field(default_factory=list)  #: cells without a number, which need no runs
    doubtful: list[CellPattern] = field(default_factory=list)  #: cells whose reported numbers are no target
    reported_in: list[str] = field(default_factory=list)  #: its tables in reported.csv; default: this one
    number: str = ""  #: of the table in a family's file
    siblings: Mapping[str, str] = field(default_factory=dict)  #: data set -> the same table on it
    replaced: bool = False  #: whether `for_dataset` changed or dropped columns
    chosen: list[str] = field(default_factory=list)  #: keys of the columns that `only` selected

    @property
    def columns(self) -> list[Column]:
        return self.column

    @property
    def measured(self) -> list[Column]:
        """The columns with runs, that is, without means over columns."""
        return [c for c in self.column if not c.of]

    @property
    def printed(self) -> list[Column]:
        return [c for c in self.column if not c.hidden]

    def partition_seed(self, seed: int | None) -> int | None:
        """The partition seed that stands beside a seed of the runs; None if none does."""
        return dict(zip(self.seeds, self.partition_seeds, strict=True)).get(seed) if self.partition_seeds else None

    @property
    def shipped(self) -> bool:
        """Whether fedbench ships its file."""
        return self.path.resolve().is_relative_to(resources.TABLES.resolve())

    @property
    def of_paper(self) -> bool:
        """Whether it is a paper's table: fedbench ships it, or it has reported numbers."""
        return self.shipped or bool(self.reported)

    @property
    def part(self) -> bool:
        """Whether columns were dropped or replaced."""
        return self.replaced or bool(self.chosen)

    @property
    def counted(self) -> bool:
        """Whether the table needs no runs."""
        return bool(statistic.find(self.statistic).row)

    @cached_property
    def reported(self) -> Reported:
        """The paper's numbers: (row label, column key) -> (value, ± or None), in the printed unit."""
        tables = self.reported_in or [self.number or self.path.stem]
        rows, columns = [r.label for r in self.rows], [c.key for c in self.columns]
        most = {c.key: 100 / POINTS_IN[unit] for c in self.columns if (unit := self._unit_of_shares(c))}
        path = self.path.with_name("reported.csv")
        known = tables_in(path.parent) if path.exists() else ()
        return reported(path, tables, rows, columns, most, known)

    def _unit_of_shares(self, column: Column) -> str:
        """The unit of a column whose values are means of a metric from 0 to 1; "" of others, such as differences."""
        unit, metric = column.unit or self.unit, METRICS.get(column.metric or self.metric)
        plain = metric is not None and metric.range == (0.0, 1.0) and not (column.of or column.relative_to)
        return unit if plain and unit in POINTS_IN else ""

    @property
    def trusted(self) -> Reported:
        """The paper's numbers without doubtful ones."""
        return {place: value for place, value in self.reported.items() if not self.doubts(*place)}

    def doubts(self, row: str, column: str) -> bool:
        """Whether the paper's number in a cell (row label, column key) is doubtful, and so no target."""
        return column in self._doubtful_columns or any(place.covers(row, column) for place in self.doubtful)

    def undefines(self, row: str, column: str) -> bool:
        """Whether a cell (row label, or "" for a row that the paper does not have; column key) is without a number."""
        return any(place.covers(row, column) for place in self.undefined)

    @cached_property
    def no_numbers(self) -> set[tuple[str, str]]:
        """(row label, column key) of the cells without a number."""
        cells = [(r.label, c.key) for r in self.rows for c in self.columns] if self.undefined else []
        return {cell for cell in cells if self.undefines(*cell)}

    @cached_property
    def _doubtful_columns(self) -> set[str]:
        return {c.key for c in self.columns if c.doubtful}

    def for_dataset(self, dataset: str) -> Table:
        """The table on one data set.

        If it has columns on this data set: only those, with their reported numbers and claims. Else: the columns whose
        `stands_in` has it, or the template's, with the data set replaced, without reported numbers and claims. Both
        with the means over only such columns.
        """
        if on_it := {c.key for c in self.columns if c.dataset == dataset}:
            columns = self._with_means(on_it)
            return self._cut(columns, replaced=len(columns) < len(self.columns))
        template = self.template or self.columns[0].dataset
        models = [c for c in self.columns if dataset in c.stands_in] or [
            c for c in self.columns if c.dataset == template
        ]
        # The group that names the data set; none if the columns have different groups (such as metrics).
        heading = models[0].group if len({c.group for c in models}) == 1 else ""
        new = {c.key: _on(c, dataset, dataset if c.group == heading else c.group) for c in models}
        columns = [
            dataclasses.replace(c, of=[new[k].key if k in new else k for k in c.of]) if c.of else new[c.key]
            for c in self._with_means(set(new))
        ]
        undefined = [
            dataclasses.replace(place, columns=[*place.columns, *(new[key].key for key in new if place.has(key))])
            for place in self.undefined
        ]
        title = f"{self.title} ({dataset} in place of {models[0].dataset})"
        other = dataclasses.replace(
            self, title=title, column=columns, claim=[], reported_notes=[], undefined=undefined, replaced=True
        )
        other.__dict__["reported"] = {}
        return other

    def only(self, keys: Iterable[str]) -> Table:
        """The table with only these columns (and the parts of means), their reported numbers and claims.

        A key may be a label without its group, and may contain *; a hidden column that a key names in full is printed.
        Raises FedbenchError for a key without a column.
        """
        wanted: dict[str, None] = {}  # an ordered set
        known = {c.key: c for c in self.columns}
        for key in keys:
            fit = [c.key for c in self.printed if matches(c.key, key) or matches(c.label, key)]
            found = [key] if key in known else fit
            if not found:
                raise unknown(f"column of table {self.id}", key, [c.key for c in self.printed])
            wanted |= dict.fromkeys(found)
        needed = dict(wanted)
        for key in reversed(known):  # parts precede their means
            if key in needed:
                needed.update(dict.fromkeys(known[key].of))
        columns = [
            dataclasses.replace(c, hidden=c.hidden and c.key not in wanted) for c in self._with_means(set(needed))
        ]
        return self._cut(columns, chosen=list(wanted))

    def _cut(self, columns: list[Column], **marks: Any) -> Table:
        """The table with only these columns, their reported numbers and claims."""
        kept = {c.key for c in columns}
        claims = [c for c in self.claim if kept.issuperset(c.columns)]
        part = dataclasses.replace(self, column=columns, claim=claims, **marks)
        part.__dict__["reported"] = {place: v for place, v in self.reported.items() if place[1] in kept}
        return part

    def _with_means(self, keys: set[str]) -> list[Column]:
        """These columns, and the means over only such columns, in the table's order."""
        kept = set(keys)
        for c in self.columns:
            if c.of and kept.issuperset(c.of):
                kept.add(c.key)
        return [c for c in self.columns if c.key in kept]


def _on(column: Column, dataset: str, group: str) -> Column:
    """A column on another data set, in another group."""
    partition = {**column.partition, **column.stands_in.get(dataset, {})}
    return dataclasses.replace(column, dataset=dataset, group=group, partition=partition)
