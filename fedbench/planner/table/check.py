"""Checks of a table beyond the types of its fields: names must exist, and a statistic needs certain fields."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from fedbench import data, methods, protocol
from fedbench.errors import FedbenchError, check_known
from fedbench.methods import declarations
from fedbench.metrics.definitions import METRICS, Definition, all_metrics, defined
from fedbench.models import counts
from fedbench.partitions import schemes
from fedbench.planner.table import cost, statistic
from fedbench.planner.table.spec import (
    MARKED,
    Column,
    Row,
    Table,
    matches,
)
from fedbench.plugins.load import is_file
from fedbench.results import beside_local
from fedbench.results.reached import goal
from fedbench.specs import PartitionSpec, Setting

#: Metrics of statistic "count" of a network: parameters, and for pFedFDA's Table 8 "gaussian", the number of values of
#: class means and one symmetric covariance over the features, C d + d (d + 1) / 2, and "overhead", by what fraction a
#: message grows with them, (gaussian - head) / (body + head). That base reproduces the printed column, though the
#: paper's text says "relative to the backbone".
PARAMETERS = ("backbone", "projection", "body", "head", "total", "features", "gaussian", "overhead")
#: Fields of a setting that a table can tune.
TUNABLE = tuple(
    f.name for f in dataclasses.fields(Setting) if f.name not in ("partition", "seed", "precision", "version")
)
#: Metrics of statistic "preset" that are about one class.
OF_CLASS = ("class_count", "class_probability")


@cache
def facts() -> frozenset[str]:
    """Names of a cell's facts, which a remark may use."""
    fields = {f.name for of in (PartitionSpec, Setting) for f in dataclasses.fields(of)} - {"partition", "options"}
    return frozenset({*fields, *schemes.hints(), "budget", "method", "metric", "statistic"})


def check(table: Table) -> None:
    """Check a table whose columns have their inherited values. Raises FedbenchError, naming file and place."""
    for row in () if table.counted else table.rows:
        if is_file(row.method) or (row.params and row.method in declarations.built_in()):
            _try(lambda own: declarations.of(own.method).values(own.params), row, f"{table.path}, row {row.label}")
    definitions = _metrics(table)
    for wrong, where, says, hint in _rules(table, definitions):
        if wrong:
            raise FedbenchError(f"{table.path}{where}{says}", hint)
    for what, name, known, where in _names(table, definitions):
        check_known(f"{what} in {table.path}{where}", name, known)
    if table.statistic == "count":
        for model in (*(r.model for r in table.rows if r.model), *(c.costs.model for c in table.columns if c.costs)):
            counts.check(model)
    for column in () if table.counted else table.measured:
        _try(data.recipe, column.dataset, f"{table.path}, column {column.key}")


def _try(make: Callable[[Any], object], of: Any, where: str) -> None:
    try:
        make(of)
    except FedbenchError as error:
        raise error.at(where) from error


def _rules(table: Table, metrics: Mapping[str, Definition]) -> Iterator[tuple[bool, str, str, str]]:
    """(Whether it is violated, place, message, hint) of each rule."""
    for what, labels in (("row", [r.label for r in table.rows]), ("column", [c.key for c in table.columns])):
        twice = min((label for label, times in Counter(labels).items() if times > 1), default="")
        yield bool(twice), "", f": two {what}s are called '{twice}'", ""
    yield table.statistic != "count" and not table.protocol, "", " lacks 'protocol'", ""
    beside = not table.partition_seeds or len(table.partition_seeds) == len(table.seeds)
    yield not beside, "", ": partition_seeds stand one beside each of seeds", "seeds = [0, 1], partition_seeds = [0, 1]"
    for column in table.columns:
        read = [row.reads(column) for row in table.rows if column.metric in row.metrics]
        rules = (rule for one in (column, *read) for rule in _of_statistic(table, one, metrics))
        for wrong, says, *hint in (*_of_any(table, column), *rules):
            yield wrong, f", column {column.key}", says, "".join(hint)
    for row in table.rows:
        needs = statistic.find(table.statistic).row or "a method"
        yield not _says_all(table, row), f", row {row.label}", f" needs {needs}", ""
    for name, values in table.tune.items():
        says = f": tune needs values of {name} to choose from, and runs"
        yield not values or table.counted, "", says, "lr = [0.01, 0.1]"


#: A rule for a column: whether it is violated, the message, and perhaps a hint.
Rule = tuple[bool, str] | tuple[bool, str, str]


def _of_any(table: Table, c: Column) -> Iterator[Rule]:
    """Rules for a column of any statistic."""
    for_runs = c.dataset or c.partition or c.train or c.budget or c.client or c.clients or c.stands_in
    compared = c.relative_to or c.relation or c.spread
    yield not c.of and bool(compared), ": relative_to, relation and spread go with 'of', the columns to compare"
    yield bool(c.of) and table.counted, f": a table of statistic {table.statistic} has no means over columns"
    yield bool(c.of and for_runs), " is a mean over columns, so it has no data set and no setting of its own"
    yield bool(c.relative_to) != bool(c.relation), ": relative_to (a row) and relation go together"
    yield not c.metric, " lacks a metric"
    mixed = bool(statistic.find(str(c.statistic)).row) != table.counted or (
        table.counted and c.statistic != table.statistic
    )
    yield mixed, ": counted and measured columns cannot stand in one table"
    yield (
        (c.statistic == "pairs") != (table.statistic == "pairs"),
        ": statistic pairs is all of a table's columns' or none's",
    )
    needless = c.tolerance is not None and c.unit == "percent" and not (table.counted or table.ratio_to)
    yield needless, ": numbers in percent are judged in points, so they have no tolerance"
    yield (c.unit == "marks") != (table.statistic == "marks"), ": unit marks and statistic marks go together"
    yield bool(c.marks) and table.statistic != "marks", ": marks go with statistic marks"
    yield not table.counted and not c.of and not c.dataset, " lacks a dataset"


def _of_statistic(table: Table, c: Column, metrics: Mapping[str, Definition]) -> Iterator[Rule]:
    """Rules for a column of its statistic."""
    if table.statistic == "levels":
        yield "shift" not in c.partition, " lacks a shift", 'partition = { shift = "px" }'
    elif table.statistic == "preset" and c.metric in statistic.find("preset").metrics:
        about = c.metric in OF_CLASS
        needs = "needs a category: the class, from 0" if about else "is about no category"
        yield about != (c.category is not None and c.category >= 0), f": {c.metric} {needs}"
        unsized = any(table.smallest.get(side, 0) < 1 for side in ("train", "test"))
        yield c.metric == "class_count" and unsized, " lacks 'smallest'", "smallest = { train = 6000, test = 1000 }"
    elif not table.counted:
        each = metrics[c.metric].clients if c.metric in metrics else "no"
        entry = statistic.find(str(c.statistic))
        alone = c.client is None and entry.one_client
        yield alone and each == "only", f": {c.metric} needs a client", "client = 1 is the first"
        of_client = c.client is not None
        yield of_client and (c.client or 0) < 1, f": clients are counted from 1, not {c.client}"
        names = " or ".join(name for name, one in statistic.STATISTICS.items() if one.one_client)
        yield of_client and not entry.one_client, f": a client goes with statistic {names}"
        yield of_client and each == "no", f": {c.metric} is no client's but the federation's"
        names = " or ".join(name for name, one in statistic.STATISTICS.items() if one.range_of_clients)
        yield bool(c.clients) and not entry.range_of_clients, f": clients go with statistic {names}"
        soon = goal(str(c.metric)) is not None and c.statistic != "whole_run"
        yield soon, f": {c.metric} is a number of a whole run", 'statistic = "whole_run"'
        beside = c.metric in beside_local.NUMBERS
        of_rounds = entry.rule or c.statistic == "last"
        yield beside and not of_rounds, f": {c.metric} is a number of clients", 'statistic = "last"'
        yield beside and c.best == "max", f": of {c.metric} less is better", 'best = "min"'
        if c.metric in metrics and not c.of and not soon:
            says = f": statistic {c.statistic} does not go with {c.metric}"
            takes = entry.takes(c.metric, metrics[c.metric])
            yield not takes, says, "'fedbench metrics' tells what each metric is of"


def _says_all(table: Table, row: Row) -> bool:
    """Whether a row has all fields that the table's statistic needs."""
    if table.statistic == "levels":
        return bool(row.level and row.classes)
    if table.statistic == "preset":
        return row.client >= 1 and row.side in ("train", "test")
    if table.statistic == "count" and not row.method:
        return bool(row.model and row.classes and len(row.shape) == 3) and not any(c.costs for c in table.columns)
    return bool(row.method) and (table.statistic != "count" or all(bool(c.costs) for c in table.columns))


#: Kind, name, known names, and place of a name in a table that must exist.
Name = tuple[str, str, Collection[str], str]


def _names(table: Table, metrics: Collection[str]) -> Iterator[Name]:
    """Every name in a table that must exist."""
    rules = protocol.load(table.protocol) if table.protocol else None
    presets, budgets = (rules.presets, rules.budgets) if rules else ({}, {})
    yield from _names_of_table(table, presets, budgets)
    yield from _names_of_rows(table, metrics, budgets)
    yield from _names_of_columns(table, metrics, presets if rules else None, budgets)
    yield from (("field of a setting", name, TUNABLE, ", tune") for name in table.tune)
    yield from _names_of_places(table)
    yield from (("fact", name, facts(), ", remark") for remark in table.remark for name in remark.where)
    yield from _names_of_claims(table)


def _names_of_table(table: Table, presets: Collection[str], budgets: Collection[str]) -> Iterator[Name]:
    if table.ratio_to:
        yield "row in ratio_to", table.ratio_to, [r.label for r in table.rows], ""
    if table.template:
        yield "data set in template", table.template, {c.dataset for c in table.measured}, ""
    if table.statistic == "preset":
        yield "preset", table.preset, presets, ""
    yield from (("budget", name, budgets, "") for name in table.budget)


def _names_of_rows(table: Table, metrics: Collection[str], budgets: Collection[str]) -> Iterator[Name]:
    """Budgets, metrics and methods of rows; a measured row's method may be planned or a user's file."""
    known = statistic.find(table.statistic).metrics or metrics
    with_costs = table.counted and any(c.costs for c in table.columns)
    for r in table.rows:
        where = f", row {r.label}"
        yield from (("budget", name, budgets, where) for name in r.budget)
        yield from (("metric", name, known, where) for pair in r.metrics.items() for name in pair)
        if r.method and (table.counted or not (r.planned or is_file(r.method))):
            yield "method", r.method, cost.METHODS if with_costs else declarations.built_in(), where


def _names_of_columns(
    table: Table, metrics: Collection[str], presets: Collection[str] | None, budgets: Collection[str]
) -> Iterator[Name]:
    """Budgets, rows, presets and metrics of columns. `presets`: None without a protocol."""
    known = statistic.find(table.statistic).metrics or metrics
    for c in table.columns:
        where = f", column {c.key}"
        yield from (("budget", name, budgets, where) for name in c.budget)
        if c.relative_to:
            yield "row", c.relative_to, [r.label for r in table.rows], where
        if "preset" in c.partition and presets is not None:
            yield "preset", str(c.partition["preset"]), presets, where
        counted = cost.Cost._fields if c.costs else PARAMETERS
        yield "metric", str(c.metric), counted if table.statistic == "count" else known, where
        labels = [r.label for r in table.rows]
        yield from (("mark", name, MARKED, where) for name in c.marks)
        yield from (("row", name, labels, f"{where}, marks") for marked in c.marks.values() for name in marked)


def _names_of_places(table: Table) -> Iterator[Name]:
    """Rows and columns of the cells without a number and of the doubtful ones; a * in a column's key may match any."""
    rows, columns = [r.label for r in table.rows], [c.key for c in table.columns]
    for what, places in (("undefined", table.undefined), ("doubtful", table.doubtful)):
        for place in places:
            yield from (("row", name, rows, f", {what}") for name in place.rows)
            for pattern in place.columns:
                known = [pattern] if any(matches(key, pattern) for key in columns) else columns
                yield "column", pattern, known, f", {what}"


def _names_of_claims(table: Table) -> Iterator[Name]:
    rows, columns = [r.label for r in table.rows], [c.key for c in table.columns]
    for claim in table.claim:
        where = f", claim '{claim.text}'"
        yield from (("row", name, rows, where) for name in (*claim.rows, *claim.than))
        yield from (("column", name, columns, where) for name in claim.columns)


def _metrics(table: Table) -> Mapping[str, Definition]:
    """Name -> definition of the metrics that its columns may have: those of every run, those of its rows' methods, how
    soon a run reaches a value and, only if it names others, those of all built-in methods."""
    wanted = {str(c.metric) for c in table.columns} | {m for r in table.rows for m in (*r.metrics, *r.metrics.values())}
    known = {**METRICS, **{name: one.definition for name in wanted if (one := goal(name))}}
    known |= {name: definition for name, (definition, _) in beside_local.NUMBERS.items()}
    if table.counted or table.statistic == "pairs" or wanted <= known.keys():
        return known
    present = {r.method for r in table.rows if is_file(r.method) or r.method in methods.names()}
    known |= defined(measure for method in sorted(present) for measure in declarations.of(method).measures)
    return known if wanted <= known.keys() else {**known, **all_metrics()}
