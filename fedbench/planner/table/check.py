"""What the types of a table's file alone do not say: names that must exist, and what a statistic needs."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedbench import declared, methods, protocol
from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.definitions import METRICS, Definition, all_metrics, defined
from fedbench.models import counts
from fedbench.partitions import schemes
from fedbench.planner.table import cost
from fedbench.planner.table.claims import KINDS
from fedbench.planner.table.spec import (
    BEST,
    COUNTED,
    OVER_CLIENTS,
    OVER_SEEDS,
    RELATIONS,
    SOME_CLIENTS,
    SPREADS,
    STATISTICS,
    UNITS,
    VIEWS,
    Column,
    Row,
    Table,
    matches,
)
from fedbench.plugins.load import is_file
from fedbench.specs import PartitionSpec, Setting

#: Metrics of statistic "count" of a network: parameters, and what pFedFDA's Table 8 sets against them: the values of
#: class means and one symmetric covariance over the features, C d + d (d + 1) / 2, and how much larger (a fraction) a
#: message grows by them, (gaussian - head) / (body + head). That base reproduces the printed column, though the paper's
#: text says "relative to the backbone".
PARAMETERS = ("backbone", "projection", "body", "head", "total", "features", "gaussian", "overhead")
#: What a table can tune.
TUNABLE = tuple(
    f.name for f in dataclasses.fields(Setting) if f.name not in ("partition", "budget", "seed", "precision", "version")
)
#: Metrics of statistic "preset" -> whether they are about one class.
PRESET = {"class_count": True, "class_probability": True, "flip_probability": False}
#: Metrics of statistic "levels": how many angles, colours, classes that a client keeps, classes whose labels are
#: swapped and whose images are turned there are, and how many distributions the protocol's clients draw.
LEVELS = ("angles", "colours", "classes", "swapped", "turned", "distributions")
#: Metrics of statistic "properties" -> whether they are about costs.
PROPERTIES = {
    "clustered": False, "personalised": False, "adaptive": False, "all_shifts": False, "adapts": False,
    "no_prior": False, "by_losses": False, "by_parameters": False, "by_descriptors": False,
    "low_bytes": True, "low_server": True, "low_client": True, "scales": True,
}  # fmt: skip
#: What the statistic knows of the pairs: no metrics, for no run has them alone.
PAIRS = ("xi_max", "xi_min", "xi_mean")


@cache
def facts() -> frozenset[str]:
    """What a remark may ask of a cell."""
    fields = {f.name for of in (PartitionSpec, Setting) for f in dataclasses.fields(of)} - {"partition", "options"}
    return frozenset({*fields, *schemes.hints(), "method", "metric", "statistic"})


def check(table: Table) -> None:
    """A table whose columns have all that they inherit. Raises FedbenchError, which names the file and the place."""
    rows, columns = [r.label for r in table.rows], [c.key for c in table.columns]
    for what, labels in (("row", rows), ("column", columns)):
        if twice := sorted({x for x in labels if labels.count(x) > 1}):
            raise FedbenchError(f"{table.path}: two {what}s are called '{twice[0]}'")

    def known(what: str, value: Any, options: typing.Iterable[str], where: str = "") -> None:
        if value not in options:
            raise unknown(f"{what} in {table.path}{where}", str(value), options)

    for r in table.rows:
        if r.method and not table.counted:
            _check_method(r, f"{table.path}, row {r.label}")
    definitions = {} if table.statistic == "pairs" else _metrics(table)
    metrics = PAIRS if table.statistic == "pairs" else definitions
    known("view", table.view, VIEWS)
    if table.ratio_to:
        known("row in ratio_to", table.ratio_to, rows)
    if table.template:
        known("data set in template", table.template, {c.dataset for c in table.measured})
    budgets = protocol.load(table.protocol).budgets if table.protocol else {}
    owners = [("", table.budget), *((f", row {r.label}", r.budget) for r in table.rows)]
    owners += [(f", column {c.key}", c.budget) for c in table.columns]
    for owner, budgeted in owners:
        for name in budgeted:
            known("budget", name, budgets, owner)
    for c in table.columns:
        where = f", column {c.key}"
        known("statistic", c.statistic, STATISTICS, where)
        if c.spread:
            known("spread", c.spread, SPREADS, where)
        known("unit", c.unit, UNITS, where)
        if c.unit == "marks" and table.statistic != "properties":
            raise FedbenchError(f"{table.path}{where}: unit marks goes with statistic properties")
        known("best", c.best, BEST, where)
        if "preset" in c.partition and table.protocol:
            known("preset", c.partition["preset"], protocol.load(table.protocol).presets, where)
        if not c.metric:
            raise FedbenchError(f"{table.path}{where} lacks a metric")
        if not table.counted:
            known("metric", c.metric, metrics, where)
            _check_client(table, c, where, definitions)
            _check_clients(table, c, where)
        if (c.statistic in COUNTED) != table.counted or (table.counted and c.statistic != table.statistic):
            raise FedbenchError(f"{table.path}{where}: counted and measured columns cannot stand in one table")
        if (c.statistic == "pairs") != (table.statistic == "pairs"):
            raise FedbenchError(f"{table.path}{where}: statistic pairs is all of a table's columns' or none's")
        if not table.counted and not c.of:
            if not c.dataset:
                raise FedbenchError(f"{table.path}{where} lacks a dataset")
            _check_dataset(c.dataset, f"{table.path}{where}")
    if table.statistic != "count" and not table.protocol:
        raise FedbenchError(f"{table.path} lacks 'protocol'")
    if table.statistic == "preset":
        _check_preset(table)
    for r in table.rows:
        complete, what = {
            "count": (_countable(table, r), "model, shape and classes, or everywhere a method with costs"),
            "levels": (bool(r.level and r.classes), "a level and classes"),
            "preset": (r.client >= 1 and r.side in ("train", "test"), "a client (from 1) and side = 'train' or 'test'"),
        }.get(table.statistic, (bool(r.method), "a method"))
        if not complete:
            raise FedbenchError(f"{table.path}, row {r.label} needs {what}")
        for metric in (*r.metrics, *r.metrics.values()):
            known("metric", metric, metrics, f", row {r.label}")
        if r.band and not (len(r.band) == 2 and r.band[0] <= r.band[1]):
            raise FedbenchError(f"{table.path}, row {r.label}: a band is [low, high], not {r.band}")
    if table.statistic == "count":
        _check_costs(table)
    if table.statistic == "levels":
        _check_levels(table)
    if table.statistic == "properties":
        _check_properties(table)
    for name, values in table.tune.items():
        known("field of a setting", name, TUNABLE, ", tune")
        if not values or table.counted:
            raise FedbenchError(
                f"{table.path}: tune needs values of {name} to choose from, and runs", "lr = [0.01, 0.1]"
            )
    for what, places in (("undefined", table.undefined), ("doubtful", table.doubtful)):
        for place in places:
            for name in place.rows:
                known("row", name, rows, f", {what}")
            for pattern in place.columns:
                if not any(matches(key, pattern) for key in columns):
                    raise unknown(f"column in {table.path}, {what}", pattern, columns)
    for remark in table.remark:
        for name, values in remark.where.items():
            known("fact", name, facts(), ", remark")
            if not isinstance(values, list):
                raise FedbenchError(f"{table.path}, remark: {name} needs a list of values, not {values!r}")
    for claim in table.claim:
        where = f", claim '{claim.text}'"
        known("claim kind", claim.kind, KINDS, where)
        for name in (*claim.rows, *claim.than):
            known("row", name, rows, where)
        for name in claim.columns:
            known("column", name, columns, where)


def _metrics(table: Table) -> Mapping[str, Definition]:
    """The metrics that its columns may have: fedbench's own, what its rows' methods declare, and where it names others
    still, all that built-in methods declare."""
    wanted = {str(c.metric) for c in table.columns} | {m for r in table.rows for m in (*r.metrics, *r.metrics.values())}
    if table.counted or wanted <= METRICS.keys():
        return METRICS
    present = {r.method for r in table.rows if is_file(r.method) or r.method in methods.names()}
    own = {**METRICS, **defined(one for method in sorted(present) for one in declared.of(method).measures)}
    return own if wanted <= own.keys() else {**own, **all_metrics()}


def _check_method(row: Row, where: str) -> None:
    """A row whose method there is (unless it is planned), with hyper-parameters that it has."""
    own = is_file(row.method)
    if not own and row.method not in declared.names():
        if row.planned:
            return
        raise unknown(f"method in {where}", row.method, declared.names())
    if own or row.params:
        try:
            declared.of(row.method).values(row.params)
        except FedbenchError as error:
            raise error.at(where) from error


def _check_dataset(name: str, where: str) -> None:
    """A data set that there is a recipe for."""
    from fedbench.data import recipe

    try:
        recipe(name)
    except FedbenchError as error:
        raise error.at(where) from error


def _countable(table: Table, row: Row) -> bool:
    """Whether a row of statistic "count" says what is counted, and the columns with it."""
    if row.method:
        return all(bool(c.costs) for c in table.columns)
    return bool(row.model and row.classes and len(row.shape) == 3) and not any(c.costs for c in table.columns)


def _check_costs(table: Table) -> None:
    """A table of what is counted: networks, methods and numbers that there are."""
    for r in table.rows:
        if r.method and r.method not in cost.METHODS:
            raise unknown(f"method in {table.path}, row {r.label}", r.method, cost.METHODS)
    for model in (r.model for r in table.rows if r.model):
        counts.check(model)
    for c in table.columns:
        if c.costs:
            counts.check(c.costs.model)
        metrics = cost.Cost._fields if c.costs else PARAMETERS
        if c.metric not in metrics:
            raise unknown(f"metric in {table.path}, column {c.key}", str(c.metric), metrics)


def _check_levels(table: Table) -> None:
    """A table of what clients draw: metrics of it, and the shift whose levels they are of."""
    for c in table.columns:
        if c.metric not in LEVELS:
            raise unknown(f"metric in {table.path}, column {c.key}", str(c.metric), LEVELS)
        if "shift" not in c.partition:
            raise FedbenchError(f"{table.path}, column {c.key} lacks a shift", 'partition = { shift = "px" }')


def _check_properties(table: Table) -> None:
    """A table of methods' properties: methods that there are, and costs where marks are about them."""
    for c in table.columns:
        where = f"{table.path}, column {c.key}"
        if c.metric not in PROPERTIES:
            raise unknown(f"metric in {where}", str(c.metric), PROPERTIES)
        if c.unit != "marks":
            raise FedbenchError(f"{where}: properties are in unit marks, not {c.unit}")
        if PROPERTIES[c.metric] != (c.costs is not None):
            raise FedbenchError(f"{where}: {c.metric} {'lacks' if PROPERTIES[c.metric] else 'has no'} costs")
    for r in table.rows:
        known = cost.METHODS if any(c.costs for c in table.columns) else declared.built_in()
        if r.method not in known:
            raise unknown(f"method in {table.path}, row {r.label}", r.method, known)


def _check_preset(table: Table) -> None:
    """A table of what a preset says: the preset, metrics of it, and class sizes where images are counted."""
    if table.preset not in (presets := protocol.load(table.protocol).presets):
        raise unknown(f"preset in {table.path}", table.preset, presets)
    for c in table.columns:
        if c.metric not in PRESET:
            raise unknown(f"metric in {table.path}, column {c.key}", str(c.metric), PRESET)
        if PRESET[c.metric] != (c.category is not None and c.category >= 0):
            what = "needs a category: the class, from 0" if PRESET[c.metric] else "is about no category"
            raise FedbenchError(f"{table.path}, column {c.key}: {c.metric} {what}")
        if c.metric == "class_count" and any(table.smallest.get(side, 0) < 1 for side in ("train", "test")):
            raise FedbenchError(f"{table.path} lacks 'smallest'", "smallest = { train = 6000, test = 1000 }")


def _check_client(table: Table, column: Column, where: str, metrics: Mapping[str, Definition]) -> None:
    """A column of one client: a statistic that takes one, a metric that has one."""
    each = metrics[column.metric].clients if column.metric in metrics else "no"
    if column.client is None:
        if each == "only" and column.statistic in OVER_SEEDS and column.statistic not in SOME_CLIENTS:
            raise FedbenchError(f"{table.path}{where}: {column.metric} needs a client", "client = 1 is the first")
        return
    if column.client < 1:
        raise FedbenchError(f"{table.path}{where}: clients are counted from 1, not {column.client}")
    if column.statistic not in OVER_SEEDS:
        raise FedbenchError(f"{table.path}{where}: a client goes with statistic {' or '.join(OVER_SEEDS)}")
    if each == "no":
        raise FedbenchError(f"{table.path}{where}: {column.metric} is no client's but the federation's")


def _check_clients(table: Table, column: Column, where: str) -> None:
    """A column of some clients: a statistic over clients, and a range of them."""
    if not column.clients:
        return
    if column.statistic not in OVER_CLIENTS:
        raise FedbenchError(f"{table.path}{where}: clients go with statistic {' or '.join(OVER_CLIENTS)}")
    if len(column.clients) != 2 or not 1 <= column.clients[0] <= column.clients[1]:
        raise FedbenchError(f"{table.path}{where}: clients are [first, last], counted from 1, not {column.clients}")


def check_means(table: Table) -> None:
    """Columns that are means over others: those exist and stand before them, and nothing is asked of runs.

    Comes before inheritance, as such columns inherit from others. Raises FedbenchError.
    """
    before: list[str] = []
    for c in table.column:
        where = f"{table.path}, column {c.key}"
        if not c.of:
            if c.relative_to or c.relation or c.spread:
                raise FedbenchError(f"{where}: relative_to, relation and spread go with 'of', the columns to compare")
            before.append(c.key)
            continue
        if table.counted:
            raise FedbenchError(f"{where}: a table of statistic {table.statistic} has no means over columns")
        if c.dataset or c.partition or c.train or c.budget or c.client or c.clients or c.stands_in:
            raise FedbenchError(f"{where} is a mean over columns, so it has no data set and no setting of its own")
        for key in c.of:
            if key not in before:
                later = any(key == other.key for other in table.column)
                raise unknown(f"column {'before it ' * later}in {where}, of", key, before)
        before.append(c.key)
        if bool(c.relative_to) != bool(c.relation):
            raise FedbenchError(f"{where}: relative_to (a row) and relation go together")
        if c.relative_to:
            for what, value, options in (
                ("row", c.relative_to, [r.label for r in table.rows]),
                ("relation", c.relation, list(RELATIONS)),
            ):
                if value not in options:
                    raise unknown(f"{what} in {where}", value, options)
