"""The commands that make a run again, from its spec alone; the site's page of a run prints them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fedbench import data, protocol
from fedbench.data import called
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.partitions import schemes
from fedbench.planner import table as tables
from fedbench.planner.cells import points
from fedbench.planner.settings import Settings
from fedbench.planner.table.spec import Column, Table
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec, Setting
from fedbench.specs.fields import typed
from fedbench.words import option_of


def commands(spec: RunSpec) -> list[str]:
    """The commands that make a run's partition and train the run. If no options of `train` give its setting (a cohort,
    FLUX's test phase), the command of the first table that asks for it; empty if none does, such as for the run of a
    user's table. A user's files are called FILE.py, since a spec holds only the digest of their text."""
    parted = _partition(spec.setting.partition)
    trained = _train(spec) if parted else None
    return [parted, trained] if parted and trained else [*_of_table(spec)]


def _partition(spec: PartitionSpec) -> str | None:
    """None if a partitioner is not available, or has values that are no options, such as the weights of a mixture."""
    if not schemes.at_hand(spec):
        return None
    # The shift is always named, because protocols can have another default.
    values = {name: (getattr(spec, f.name), f.default) for name, f in typed(PartitionSpec).items()}
    options = {name: value for name, (value, usual) in values.items() if value != usual or name == "shift"}
    of = schemes.of(spec)
    own = {name: getattr(of, f.name) for name, f in of.options().items() if getattr(of, f.name) != f.default}
    if any(of.kind(name) is None for name in own):
        return None
    return _command(["partition", spec.dataset.name], {"scheme": spec.scheme, **options, **own})


def _train(spec: RunSpec) -> str | None:
    """The shortest command, over all protocols and budgets."""
    setting = spec.setting
    candidates = []
    for name in protocol.names():
        rules = protocol.load(name)
        for budget in rules.budgets:
            values = _options(rules, budget, setting)
            if values is not None:
                candidates.append((len(values), name != protocol.DEFAULT, name, budget, values, rules))
    if not candidates:
        return None
    _, _, name, budget, values, rules = min(candidates, key=lambda one: one[:4])
    usual = rules.method_params(spec.method, budget, setting.partition.dataset.name)
    if spec.source is None:  # a user's file gets all values
        usual = {**declarations.of(spec.method).defaults, **usual}
    own = {k: v for k, v in spec.params.items() if v != usual.get(k)}
    method = spec.method if spec.source is None else f"FILE.py:{spec.method}"
    options = {"method": method, "partition": setting.partition.id, "protocol": name, "budget": budget}
    return _command(["train"], {**options, **values, **own})


def _options(rules: protocol.Protocol, budget: str, setting: Setting) -> dict[str, Any] | None:
    """The options that turn a protocol's budget into this setting, or None if that is impossible."""
    try:
        usual = rules.setting(setting.partition, budget, model=setting.model)
        values = {name: getattr(setting, f.name) for name, f in typed(Setting).items()}
        options = {name: value for name, value in values.items() if value is not None and value != getattr(usual, name)}
        if rules.setting(setting.partition, budget, **{**options, "model": setting.model}) != setting:
            return None
    except FedbenchError:
        return None
    with contextlib.suppress(FedbenchError):  # if the protocol has no model for the data set
        if rules.setting(setting.partition, budget, **options) == setting:
            return options
    return {**options, "model": setting.model}


def _command(words: list[str], options: Mapping[str, Any]) -> str:
    for name, value in options.items():
        option = option_of(name)
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)]
    return shlex.join(["fedbench", *words])


def _of_table(spec: RunSpec) -> Iterator[str]:
    """The command of a table that asks for the run's setting, for all rows of its method."""
    setting = spec.setting
    found = _asked(setting.partition.dataset).get(setting.but_for_seeds, [])
    for table, budget, column in found:
        if any(row.method == spec.method for row in table.rows):
            options = {"table": table.id, "budget": budget, "column": column.key, "method": spec.method}
            yield _command(["train"], {**options, "seed": setting.seed})
            return


@cache
def _asked(dataset: DatasetSpec) -> Mapping[str, list[tuple[Table, str, Column]]]:
    """A setting but for its seeds -> what asks for it on a data set: tables, their budgets and columns."""
    found: dict[str, list[tuple[Table, str, Column]]] = {}
    classes = data.info(dataset.name).partition_classes
    for table in map(tables.load, tables.names()):
        columns = [] if table.counted else [c for c in table.measured if called(c.dataset) == dataset.name]
        for budget in protocol.load(table.protocol).budgets if columns else ():
            at_hand = {column.dataset: (dataset, classes) for column in columns}
            settings = Settings(table, budget, protocol.load(table.protocol).precision(budget), (0,), at_hand, {})
            for column in columns:
                for row in (None, *(row for row in table.rows if row.overrides(budget))):
                    for tuned in points(table.tune) if table.tune else [{}]:
                        (made,) = settings.of(column, row, tuned)
                        found.setdefault(made.but_for_seeds, []).append((table, budget, column))
    return found
