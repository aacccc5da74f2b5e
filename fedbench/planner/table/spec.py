"""Table specs: what a paper's table measures, as data."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from fedbench import reader, resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.planner.table.claims import Claim
from fedbench.planner.table.cost import Case
from fedbench.protocol import Chosen, Remark, Seed, Training
from fedbench.reader import Among, Between
from fedbench.specs import Plain

# -- reported --------------------------------------------------------------------------------------------------
# What a paper prints: `reported.csv` beside a table's file, one line a cell, in the printed unit.
#
# Its columns are table, row, group, column, value and std; group may be empty, and so may std.


#: (row label, column key) -> (value, ± or None).
Reported = dict[tuple[str, str], tuple[float, float | None]]

FIELDS = ("table", "row", "group", "column", "value", "std")


def reported(path: Path, tables: Collection[str], rows: Collection[str], columns: Collection[str]) -> Reported:
    """The values of a table's cells; none if there is no such file.

    Raises FedbenchError for lines of `tables` whose row or column is unknown, whose cell is another line's too or
    whose numbers are none, and for a file that is unreadable or has other columns.
    """
    if not path.exists():
        return {}
    values: Reported = {}
    changed = path.stat()
    for line, cell in _lines(path, changed.st_mtime_ns, changed.st_size):
        if cell["table"] not in tables:
            continue
        where = f"{path}, line {line}"
        key = f"{cell['group']}/{cell['column']}" if cell["group"] else cell["column"]
        for kind, name, known in (("row", cell["row"], rows), ("column", key, columns)):
            check_known(f"{kind} of table {cell['table']} in {where}", name, known)
        if (cell["row"], key) in values:
            raise FedbenchError(f"{where}: {cell['row']}, {key} of table {cell['table']} has a value already")
        std = _number(cell["std"], f"{where}: std") if cell["std"] else None
        if std is not None and std < 0:
            raise FedbenchError(f"{where}: std cannot be negative, as '{cell['std']}' is")
        values[cell["row"], key] = _number(cell["value"], f"{where}: value"), std
    return values


@lru_cache(maxsize=16)
def _lines(path: Path, changed: int, size: int) -> list[tuple[int, dict[str, str]]]:
    """(number of the line, its values by column). Kept while the file is the same: all tables of a paper read it."""
    lines: list[tuple[int, dict[str, str]]] = []
    text = csv.reader(io.StringIO(reader.text(path, "CSV file"), newline=""), strict=True)
    try:
        head = next(text, [])
        for name in head:
            check_known(f"column in {path}", name, FIELDS)
        if missing := [name for name in FIELDS if head.count(name) != 1]:
            raise FedbenchError(f"{path} must have one column '{missing[0]}'", f"its first line: {','.join(FIELDS)}")
        for cells in text:
            if cells and len(cells) != len(head):
                raise FedbenchError(f"{path}, line {text.line_num} has {len(cells)} values, not {len(head)}")
            if cells:
                lines.append((text.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise FedbenchError(f"{path}, line {text.line_num} is not valid CSV ({error})") from error
    return lines


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FedbenchError(f"{where} must be a number, not '{text}'")
    return number


# -- spec ------------------------------------------------------------------------------------------------------


#: Metrics of statistic "properties" that are about costs.
COMPARED = ("low_bytes", "low_server", "low_client", "scales")


@dataclass(frozen=True)
class Statistic:
    """What a cell's number is taken over."""

    words: str  #: below a table
    ddof: int | None = None  #: of its ±, where that is over seeds
    over: str = ""  #: "clients": over those of a run; "some": of each run over some of its clients
    row: str = ""  #: of one that needs no run: what its rows say
    metrics: tuple[str, ...] = ()  #: of one that has metrics of its own


STATISTICS = {
    "last_rounds": Statistic("± is the standard deviation (ddof 0) over the last {window} rounds of a run"),
    "clients": Statistic("± is the standard deviation (ddof 1) across clients after the last round", over="clients"),
    "weighted_clients": Statistic(
        "Means over clients are weighted by their test images; ± is the standard deviation (ddof 1, unweighted) across "
        "clients after the last round",
        over="clients",
    ),
    "rounds": Statistic("± is the standard deviation (ddof 1) over a run's rounds without the first"),
    "whole_run": Statistic("One number a run"),
    "final": Statistic("Value after the last round", ddof=1),
    "best_round": Statistic(  # the best unweighted one
        "Value at the evaluated round of the best mean client accuracy (selected on test data)", ddof=1
    ),
    "folds": Statistic("Value after the last round", ddof=0),  # as over the folds of a validation
    "worst_tenth": Statistic(  # of the clients that train, of one at least
        "Mean over the worst tenth of the clients after the last round", ddof=1, over="some"
    ),
    "unseen": Statistic("Mean over the clients that never train, after the last round", ddof=1, over="some"),
    "pairs": Statistic(  # of all seeds together
        "Over all pairs of a run's snapshots; ± is the standard deviation (ddof 0) over the pairs",
        metrics=("xi_max", "xi_min", "xi_mean"),
    ),
    #: Parameters of a network, or what a round of a method costs with it.
    "count": Statistic(
        "Counted from layer shapes", row="model, shape and classes, or everywhere a method with costs"
    ),
    #: What a preset of a protocol says of its clients' data.
    "preset": Statistic(
        "Follows from preset '{preset}'",
        row="a client (from 1) and side = 'train' or 'test'",
        metrics=("class_count", "class_probability", "flip_probability"),
    ),
    #: What clients draw at a level of a protocol's shifts: how many angles, colours, classes that a client keeps,
    #: classes whose labels are swapped and whose images are turned there are, and how many distributions.
    "levels": Statistic(
        "Counted in the distributions that clients draw",
        row="a level and classes",
        metrics=("angles", "colours", "classes", "swapped", "turned", "distributions"),
    ),
    #: What methods declare, and whether counted costs are comparable to FedAvg's.
    "properties": Statistic(
        "✓ yes, ○ on a condition, – no, by what methods declare and by counted costs",
        row="a method",
        metrics=(
            "clustered", "personalised", "adaptive", "all_shifts", "adapts", "no_prior", "by_losses", "by_parameters",
            "by_descriptors", *COMPARED,
        ),
    ),
}  # fmt: skip
#: Unit -> (factor from the stored value, symbol in print). Accuracies are stored as fractions, times in seconds.
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
#: Units in which accuracies are printed -> how many percentage points their one is.
POINTS_IN = {"percent": 1.0, "fraction": 100.0}
#: How a value in unit "marks" is printed.
MARKS = {1.0: "✓", 0.5: "○", 0.0: "–"}
#: Statistics over the clients of a run.
OVER_CLIENTS = tuple(name for name, one in STATISTICS.items() if one.over == "clients")
#: Statistics of each run over some of its clients.
SOME_CLIENTS = tuple(name for name, one in STATISTICS.items() if one.over == "some")
#: Statistics that need no run.
COUNTED = tuple(name for name, one in STATISTICS.items() if one.row)
#: Statistics whose ± is over seeds -> its ddof.
OVER_SEEDS = {name: one.ddof for name, one in STATISTICS.items() if one.ddof is not None}
BEST = ("max", "min", "none")
#: How a derived column sets a row against another: relation -> what it prints.
RELATIONS: dict[str, Callable[[float, float], float]] = {
    "difference": lambda value, base: value - base,
    "percent": lambda value, base: 100 * (value / base - 1),  # more than the other
}
#: What the ± of a column that is a mean over others says (`metrics.statistics.SPREADS` computes it).
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
    """Rule: nothing, or [low, high] from a least number on."""

    words: str
    least: float

    def check(self, value: list[float], where: str) -> None:
        if value and not (len(value) == 2 and self.least <= value[0] <= value[1]):
            raise FedbenchError(f"{where}: {self.words}, not {value}")


StatisticName = Annotated[str, Among("statistic", tuple(STATISTICS))]
Unit = Annotated[str, Among("unit", tuple(UNITS))]
Best = Annotated[str, Among("best", BEST)]


@dataclass(frozen=True)
class Place:
    """Some cells of a table: those of `rows` (all if it is empty) in `columns`; a * in a key stands for any text."""

    columns: list[str]
    rows: list[str] = field(default_factory=list)

    def covers(self, row: str, column: str) -> bool:
        """Whether the cell of that row ("": one that the paper does not have) and column key is among them."""
        return (not self.rows or row in self.rows) and any(matches(column, key) for key in self.columns)


def matches(key: str, pattern: str) -> bool:
    """Whether a column's key is the pattern's, in which a * stands for any text."""
    return key == pattern if "*" not in pattern else fnmatchcase(key, pattern.replace("[", "[[]").replace("?", "[?]"))


@dataclass(frozen=True)
class Row:
    """A method with the hyper-parameters the table gives it.

    Or a model, or a method's costs, to be counted (statistic "count"), one side of a client's data (statistic
    "preset"), a level of the columns' shifts (statistic "levels"), or a method's properties (statistic "properties").
    """

    label: str = ""  #: the method's title and its `params`, unless the file has another
    method: str = ""
    params: Mapping[str, Plain] = field(default_factory=dict)
    note: str = ""
    planned: bool = False  #: its method may not be built yet, under whatever name; else an unknown method is a mistake
    added: bool = False  #: a row that the paper's table does not have, so that nothing is reported of it
    train: Training = field(default_factory=dict)  #: setting overrides of this row's runs, at all budgets
    budget: Mapping[str, Training] = field(default_factory=dict)  #: and by budget
    #: Of numbers that are no accuracies: what is near the paper's, in the place of a tolerance.
    band: Annotated[list[float], Range("a band is [low, high]", -math.inf)] = field(default_factory=list)
    model: str = ""
    shape: list[Count] = field(default_factory=list)  #: of an image: height, width, channels
    classes: Count = 0
    level: Count = 0  #: statistic "levels"
    client: int = 0  #: of the preset, counted from 1
    side: str = ""  #: of its data: "train" or "test"
    metrics: Mapping[str, str] = field(default_factory=dict)  #: a column's metric -> the one this row has in its place

    def overrides(self, budget: str) -> dict[str, Any]:
        """Setting overrides of this row's runs at a budget; empty if they share the table's setting."""
        return {**self.train, **self.budget.get(budget, {})}

    def reads(self, column: Column) -> Column:
        """The column with the metric that this row has in it."""
        metric = self.metrics.get(str(column.metric))
        return dataclasses.replace(column, metric=metric) if metric else column


@dataclass(frozen=True)
class Column:
    """A data set under a partition and a setting; `partition` and `train` override the protocol's values.

    Or (`of`) a mean over other columns of the table, which needs no run of its own: of their values as printed, or of
    how far these lie from those of the row `relative_to`. It has a ± only if `spread` says of what. What a column
    leaves out (None) is the table's, or the first such column's.
    """

    label: str
    group: str = ""
    dataset: str = ""
    partition: Chosen = field(default_factory=dict)
    train: Training = field(default_factory=dict)
    budget: Mapping[str, Training] = field(default_factory=dict)  #: and by budget, as a row's
    client: int | None = None  #: the metric of this client, counted from 1; else of the federation
    #: OVER_CLIENTS: the first and last of those.
    clients: Annotated[list[int], Range("clients are [first, last], counted from 1", 1)] = field(default_factory=list)
    category: int | None = None  #: statistic "preset": the class
    costs: Case | None = None  #: statistic "count" of methods
    metric: str | None = None
    statistic: StatisticName | None = None
    unit: Unit | None = None
    decimals: Decimals | None = None
    std_decimals: Decimals | None = None
    best: Best | None = None
    tolerance: Tolerance | None = None
    #: Data sets that `--dataset` puts into this column rather than the template's -> what then holds of `partition`.
    stands_in: Mapping[str, Chosen] = field(default_factory=dict)
    doubtful: bool = False  #: what is reported is printed with a "?" and is no target
    #: Keys of the columns before it that this one is a mean over; a * in a key stands for any text.
    of: list[str] = field(default_factory=list)
    spread: Annotated[str, Among("spread", tuple(SPREADS))] = ""  #: of such a mean, if it has one
    hidden: bool = False  #: not printed: there for the means over it
    relative_to: str = ""  #: a row, with which a `relation` compares each of these columns
    relation: Annotated[str, Among("relation", tuple(RELATIONS))] = ""

    @cached_property
    def key(self) -> str:
        """GROUP/LABEL: how claims and reported values name the column."""
        return f"{self.group}/{self.label}" if self.group else self.label

    def overrides(self, budget: str) -> dict[str, Any]:
        """Setting overrides of this column's runs at a budget."""
        return {**self.train, **self.budget.get(budget, {})}


@dataclass(frozen=True)
class Table:
    """One table of a paper. `id` and `path` come from the file's place, the rest from its text."""

    id: str
    path: Path
    title: str
    statistic: StatisticName
    rows: list[Row]
    column: list[Column]
    protocol: str = ""
    metric: str = ""
    #: Of the test images: "crop" (random crops as in training) or "plain".
    view: Annotated[str, Among("view", VIEWS)] = "plain"
    unit: Unit = "fraction"
    decimals: Decimals = 2
    std_decimals: Decimals | None = None  #: of the ±; `decimals` unless given
    best: Best = "max"
    seeds: list[Seed] = field(default_factory=list)  #: of the runs; the protocol's seed if empty
    #: Of numbers that are no accuracies (those are judged in points): |measured - reported| that still counts as near,
    #: in the printed unit, or of the ratio (`ratio_to`). For columns without one.
    tolerance: Tolerance | None = None
    stub: str = ""  #: heading of the rows
    preset: str = ""  #: of the protocol (statistic "preset")
    smallest: Mapping[str, Count] = field(default_factory=dict)  #: images of the data set's rarest class: train, test
    ratio_to: str = ""  #: a row; values are compared as ratios to it
    template: str = ""  #: the data set whose columns `--dataset` takes over; the first column's unless given
    budget: Mapping[str, Training] = field(default_factory=dict)  #: setting overrides by budget
    #: Fields of a setting -> values of which each cell takes what does best on images that its clients hold back.
    tune: Mapping[str, list[Any]] = field(default_factory=dict)
    about: list[str] = field(default_factory=list)  #: notes without which no number may stand
    notes: list[str] = field(default_factory=list)  #: the others
    reported_notes: list[str] = field(default_factory=list)  #: on the paper's own numbers
    remark: list[Remark] = field(default_factory=list)  #: notes that hold for some of its cells only
    claim: list[Claim] = field(default_factory=list)
    undefined: list[Place] = field(default_factory=list)  #: cells that have no number, so that nobody asks for them
    doubtful: list[Place] = field(default_factory=list)  #: cells of which the paper reports what is no target
    reported_in: list[str] = field(default_factory=list)  #: its tables in reported.csv, unless it is the file's own
    number: str = ""  #: of the table among those of its file, if that declares several
    siblings: Mapping[str, str] = field(default_factory=dict)  #: data set -> the table that is this one on it
    replaced: bool = False  #: by `for_dataset`
    chosen: list[str] = field(default_factory=list)  #: keys of the columns that `only` was asked for

    @property
    def columns(self) -> list[Column]:
        return self.column

    @property
    def measured(self) -> list[Column]:
        """The columns that runs of their own stand in."""
        return [c for c in self.column if not c.of]

    @property
    def printed(self) -> list[Column]:
        return [c for c in self.column if not c.hidden]

    @property
    def shipped(self) -> bool:
        """Whether its file is one of fedbench's own, not a user's."""
        return self.path.resolve().is_relative_to(resources.TABLES.resolve())

    @property
    def of_paper(self) -> bool:
        """Whether it stands for a paper's table: it is one of fedbench's own, or reports what a paper has."""
        return self.shipped or bool(self.reported)

    @property
    def part(self) -> bool:
        """Whether it has not all of its columns, or others in their place."""
        return self.replaced or bool(self.chosen)

    @property
    def counted(self) -> bool:
        """Whether the table needs no run at all."""
        return self.statistic in COUNTED

    @cached_property
    def reported(self) -> Reported:
        """What the paper prints: (row label, column key) -> (value, ± or None), in the printed unit."""
        tables = self.reported_in or [self.number or self.path.stem]
        rows, columns = [r.label for r in self.rows], [c.key for c in self.columns]
        return reported(self.path.with_name("reported.csv"), tables, rows, columns)

    @property
    def trusted(self) -> Reported:
        """What is reported without doubt."""
        return {place: value for place, value in self.reported.items() if not self.doubts(*place)}

    def doubts(self, row: str, column: str) -> bool:
        """Whether what is reported in a cell (row label, column key) is no target."""
        return column in self._doubtful_columns or any(place.covers(row, column) for place in self.doubtful)

    def undefines(self, row: str, column: str) -> bool:
        """Whether a cell (row label, or "" for a row that the paper does not have; column key) has no number."""
        return any(place.covers(row, column) for place in self.undefined)

    @cached_property
    def no_numbers(self) -> set[tuple[str, str]]:
        """(row label, column key) of the cells that have none."""
        cells = [(r.label, c.key) for r in self.rows for c in self.columns] if self.undefined else []
        return {cell for cell in cells if self.undefines(*cell)}

    @cached_property
    def _doubtful_columns(self) -> set[str]:
        return {c.key for c in self.columns if c.doubtful}

    def for_dataset(self, dataset: str) -> Table:
        """The table on one data set.

        Of one of its own data sets: those columns alone, with what is reported and claimed of them. Of another: the
        columns that it stands in for, else the template's, with that data set in place, with nothing reported and
        nothing claimed. Columns that are means over such columns alone come with them.
        """
        if own := {c.key for c in self.columns if c.dataset == dataset}:
            columns = self._with_means(own)
            return self._cut(columns, replaced=len(columns) < len(self.columns))
        template = self.template or self.columns[0].dataset
        models = [c for c in self.columns if dataset in c.stands_in] or [
            c for c in self.columns if c.dataset == template
        ]
        # The heading that stands for a data set; where headings stand for something else (metrics), none does.
        heading = models[0].group if len({c.group for c in models}) == 1 else ""
        new = {c.key: _on(c, dataset, dataset if c.group == heading else c.group) for c in models}
        columns = [
            dataclasses.replace(c, of=[new[k].key if k in new else k for k in c.of]) if c.of else new[c.key]
            for c in self._with_means(set(new))
        ]
        title = f"{self.title} ({dataset} in place of {models[0].dataset})"
        other = dataclasses.replace(self, title=title, column=columns, claim=[], reported_notes=[], replaced=True)
        other.__dict__["reported"] = {}
        return other

    def only(self, keys: Iterable[str]) -> Table:
        """The table's columns of these keys alone (a mean over others with those), with what is reported and claimed.

        A key may be a label without its group, and have * in it. Raises FedbenchError for one that no column has.
        """
        wanted: dict[str, None] = {}  # in order, and once where two keys fit
        known = {c.key: c for c in self.columns}
        for key in keys:
            fit = [c.key for c in self.printed if matches(c.key, key) or matches(c.label, key)]
            found = [key] if key in known else fit
            if not found:
                raise unknown(f"column of table {self.id}", key, [c.key for c in self.printed])
            wanted |= dict.fromkeys(found)
        needed = dict(wanted)
        for key in reversed(known):  # parts stand before their means
            if key in needed:
                needed.update(dict.fromkeys(known[key].of))
        return self._cut(self._with_means(set(needed)), chosen=list(wanted))

    def _cut(self, columns: list[Column], **marks: Any) -> Table:
        """The table with these of its columns, and what is reported and claimed of them alone."""
        kept = {c.key for c in columns}
        claims = [c for c in self.claim if kept.issuperset(c.columns)]
        part = dataclasses.replace(self, column=columns, claim=claims, **marks)
        part.__dict__["reported"] = {place: v for place, v in self.reported.items() if place[1] in kept}
        return part

    def _with_means(self, keys: set[str]) -> list[Column]:
        """These columns, and those that are means over none but them, in the table's order."""
        kept = set(keys)
        for c in self.columns:
            if c.of and kept.issuperset(c.of):
                kept.add(c.key)
        return [c for c in self.columns if c.key in kept]


def _on(column: Column, dataset: str, group: str) -> Column:
    """A column on another data set, under another heading."""
    partition = {**column.partition, **column.stands_in.get(dataset, {})}
    return dataclasses.replace(column, dataset=dataset, group=group, partition=partition)
