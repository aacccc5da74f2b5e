"""Tables by name: tables/PAPER/NUMBER.toml, or a user's own file, checked when read."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedbench import protocol, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.metrics.definitions import METRICS
from fedbench.report.claims import KINDS, Claim
from fedbench.report.counted import LAYOUT
from fedbench.report.spec import BEST, COUNTED, OVER_SEEDS, STATISTICS, UNITS, VIEWS, Column, Row, Table
from fedbench.spec import PartitionSpec, Setting

T = TypeVar("T")

#: Files beside the tables that are none.
_NO_TABLES = ("protocol", "figures")


def names() -> list[str]:
    """The tables that there are, such as 'feddrm/1', in order."""
    found = [p for p in resources.TABLES.glob("*/*.toml") if p.stem not in _NO_TABLES]
    return [f"{p.parent.name}/{p.stem}" for p in sorted(found, key=lambda p: (p.parent.name, len(p.stem), p.stem))]


def headline() -> dict[str, tuple[str, str | None]]:
    """The headline set: number -> (what it shows, its table or None while it is not built)."""
    entries = resources.read_toml(resources.TABLES / "headline.toml")["headline"]
    return {str(e["number"]): (e["name"], e.get("table")) for e in entries}


def load(name: str) -> Table:
    """The table of that name ('feddrm/1'), headline number ('1') or TOML file ('./mine.toml').

    Raises FedbenchError for an unknown name (the nearest offered), a planned number and a faulty file.
    """
    numbers = headline()
    if name in numbers:
        what, table = numbers[name]
        if table is None:
            built = ", ".join(n for n, (_, t) in numbers.items() if t)
            raise FedbenchError(f"headline table {name} ({what}) is not built yet", f"built: {built}")
        name = table
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise FedbenchError(f"there is no table file {path}", "'fedbench tables' lists the built-in ones")
        return _read(path.stem, path)
    if name not in names():
        raise unknown("table", name, [*names(), *numbers])
    return _read(name, resources.TABLES / f"{name}.toml")


def _read(id: str, path: Path) -> Table:
    raw = resources.read_toml(path)
    for name in ("id", "path", "replaced"):
        if name in raw:
            raise FedbenchError(f"{path}: unknown key '{name}'", "the file's place is the name of the table")
    rows = [_build(Row, r, f"{path}, row {i}") for i, r in enumerate(_list(raw, "rows", path), 1)]
    claims = [_build(Claim, c, f"{path}, claim {i}") for i, c in enumerate(raw.get("claim", []), 1)]
    columns = [_build(Column, c, f"{path}, column {i}") for i, c in enumerate(_list(raw, "column", path), 1)]
    table = _build(Table, {**raw, "id": id, "path": path, "rows": rows, "column": columns, "claim": claims}, str(path))
    inherited = ("metric", "statistic", "unit", "decimals", "best", "tolerance")
    columns = [
        dataclasses.replace(
            c,
            **{n: getattr(table, n) for n in inherited if getattr(c, n) is None},
            std_decimals=next(
                d for d in (c.std_decimals, c.decimals, table.std_decimals, table.decimals) if d is not None
            ),
        )
        for c in columns
    ]
    table = dataclasses.replace(table, column=columns)
    _check(table)
    return table


def _list(raw: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    value = raw.get(name)
    if not isinstance(value, list) or not value:
        raise FedbenchError(f"{path} has no {name}", f"a table needs at least one entry of '{name}'")
    return value


def _build(cls: type[T], raw: Any, where: str) -> T:
    """A dataclass from a TOML table: unknown keys, missing keys and wrong types are errors that say where."""
    if not isinstance(raw, Mapping):
        raise FedbenchError(f"{where} must be a table of keys, not {raw!r}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for name, value in raw.items():
        if name not in fields:
            raise unknown(f"key in {where}", name, fields)
        options = typing.get_args(hints[name]) if isinstance(hints[name], types.UnionType) else (hints[name],)
        allowed = tuple(typing.get_origin(o) or o for o in options)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise FedbenchError(f"{where}: {name} cannot be {value!r}")
    for name, f in fields.items():
        if name not in raw and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise FedbenchError(f"{where} lacks '{name}'")
    return cls(**raw)


def _check(table: Table) -> None:
    """What types alone do not say: names that must exist, and what a statistic needs."""
    rows, columns = [r.label for r in table.rows], [c.key for c in table.columns]
    for what, labels in (("row", rows), ("column", columns)):
        if twice := sorted({x for x in labels if labels.count(x) > 1}):
            raise FedbenchError(f"{table.path}: two {what}s are called '{twice[0]}'")

    def known(what: str, value: Any, options: typing.Iterable[str], where: str = "") -> None:
        if value not in options:
            raise unknown(f"{what} in {table.path}{where}", str(value), options)

    known("view", table.view, VIEWS)
    if table.ratio_to:
        known("row in ratio_to", table.ratio_to, rows)
    if table.template:
        known("data set in template", table.template, {c.dataset for c in table.columns})
    partition = {f.name for f in dataclasses.fields(PartitionSpec)} - {"dataset"} | {"layout"}
    # A table's runs have one precision, and that is the caller's choice.
    setting = {f.name for f in dataclasses.fields(Setting)} - {"partition", "budget", "seed", "precision"}
    budgets = protocol.load(table.protocol).budgets if table.protocol else {}
    for owner, declared in (("", table.budget), *((f", row {r.label}", r.budget) for r in table.rows)):
        for name, values in declared.items():
            known("budget", name, budgets, owner)
            for key in values:
                known("key", key, setting, f"{owner}, budget {name}")
    for c in table.columns:
        where = f", column {c.key}"
        known("statistic", c.statistic, STATISTICS, where)
        known("unit", c.unit, UNITS, where)
        known("best", c.best, BEST, where)
        for key in c.partition:
            known("partition key", key, partition, where)
        if "layout" in c.partition and table.protocol:
            known("layout", c.partition["layout"], protocol.load(table.protocol).layouts, where)
        for key in c.train:
            known("train key", key, setting, where)
        if not c.metric:
            raise FedbenchError(f"{table.path}{where} lacks a metric")
        if not table.counted:
            known("metric", c.metric, METRICS, where)
            _check_client(table, c, where)
        if (c.statistic in COUNTED) != table.counted or (table.counted and c.statistic != table.statistic):
            raise FedbenchError(f"{table.path}{where}: counted and measured columns cannot stand in one table")
        if not table.counted and not c.dataset:
            raise FedbenchError(f"{table.path}{where} lacks a dataset")
    if table.statistic != "count" and not table.protocol:
        raise FedbenchError(f"{table.path} lacks 'protocol'")
    if table.statistic == "layout":
        _check_layout(table)
    for r in table.rows:
        complete, what = {
            "count": (bool(r.model and r.classes and len(r.shape) == 3), "model, shape and classes"),
            "layout": (r.client >= 1 and r.side in ("train", "test"), "a client (from 1) and side = 'train' or 'test'"),
        }.get(table.statistic, (bool(r.method), "a method"))
        if not complete:
            raise FedbenchError(f"{table.path}, row {r.label} needs {what}")
        for key in r.train:
            known("train key", key, setting, f", row {r.label}")
        if r.band and not (len(r.band) == 2 and r.band[0] <= r.band[1]):
            raise FedbenchError(f"{table.path}, row {r.label}: a band is [low, high], not {r.band}")
    for claim in table.claim:
        where = f", claim '{claim.text}'"
        known("claim kind", claim.kind, KINDS, where)
        for name in (*claim.rows, *claim.than):
            known("row", name, rows, where)
        for name in claim.columns:
            known("column", name, columns, where)


def _check_layout(table: Table) -> None:
    """A table of what a layout says: the layout, metrics of it, and class sizes where images are counted."""
    if table.layout not in (layouts := protocol.load(table.protocol).layouts):
        raise unknown(f"layout in {table.path}", table.layout, layouts)
    for c in table.columns:
        if c.metric not in LAYOUT:
            raise unknown(f"metric in {table.path}, column {c.key}", str(c.metric), LAYOUT)
        if LAYOUT[c.metric] != (c.category is not None and c.category >= 0):
            what = "needs a category: the class, from 0" if LAYOUT[c.metric] else "is about no category"
            raise FedbenchError(f"{table.path}, column {c.key}: {c.metric} {what}")
        if c.metric == "class_count" and any(table.smallest.get(side, 0) < 1 for side in ("train", "test")):
            raise FedbenchError(f"{table.path} lacks 'smallest'", "smallest = { train = 6000, test = 1000 }")


def _check_client(table: Table, column: Column, where: str) -> None:
    """A column of one client: a statistic that takes one, a metric that has one."""
    each = METRICS[str(column.metric)].clients
    if column.client is None:
        if each == "only" and column.statistic in OVER_SEEDS:
            raise FedbenchError(f"{table.path}{where}: {column.metric} needs a client", "client = 1 is the first")
        return
    if column.client < 1:
        raise FedbenchError(f"{table.path}{where}: clients are counted from 1, not {column.client}")
    if column.statistic not in OVER_SEEDS:
        raise FedbenchError(f"{table.path}{where}: a client goes with statistic {' or '.join(OVER_SEEDS)}")
    if each == "no":
        raise FedbenchError(f"{table.path}{where}: {column.metric} is no client's but the federation's")
