"""Protocols: a paper's experimental setting as data (tables/PAPER/protocol.toml), and its budgets.

A protocol gives the defaults of `fedbench partition` and `fedbench train`, and the settings of its paper's
tables, so that a plain `train` makes the very run that a table's cell asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from fedbench import models, reader
from fedbench.errors import FedbenchError, unknown
from fedbench.reader import Between, Filled, Some
from fedbench.remark import Remark
from fedbench.resources import TABLES
from fedbench.specs import DRAWN_APART, LEVELLED, DatasetSpec, PartitionSpec, Plain, Setting

DEFAULT = "feddrm"

_SETTING_FIELDS = {f.name for f in dataclasses.fields(Setting)}
#: What holds where nothing is said.
_UNSAID = {f.name: f.default for f in dataclasses.fields(Setting)} | {"optimizer": "sgd"}
_PARTITION_FIELDS = {f.name for f in dataclasses.fields(PartitionSpec)}

#: A protocol's `partition.seed` where every run draws its partition anew, from the run's own seed.
RUN_SEED = "run"

Seed = Annotated[int, Between(0, 2**32 - 1)]

# Some values of a spec, as a TOML table has them: they make a spec only when all that there are have been laid over
# one another.
_NO_PARTITION = ("partition", "budget")
#: What a table, a row or a column may set of its runs, whose seeds and precision are the caller's choice.
Training = Annotated[Mapping[str, Any], Some(Setting, (*_NO_PARTITION, "seed", "precision"))]
#: What a column may choose of its partition.
Chosen = Annotated[Mapping[str, Any], Some(PartitionSpec, ("dataset",), {"layout": str})]

_RUN = {
    "methods": Mapping[str, Mapping[str, Plain]],
    "models": Mapping[str, str],
    "stages": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _NO_PARTITION)]],
}
_TRAIN = {**_RUN, "datasets": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _NO_PARTITION, _RUN)]]}
_LAID = {"min_size": int | Literal["classes"]}
_DEFAULTS = {**_LAID, "layout": str, "seed": Seed | Literal["run"]}

_Layout = Annotated[Mapping[str, Any], Some(PartitionSpec, ("dataset",), _LAID)]
_Partition = Annotated[
    Mapping[str, Any], Some(PartitionSpec, ("dataset",), {**_DEFAULTS, "datasets": Mapping[str, _Layout]})
]
_Train = Annotated[Mapping[str, Any], Some(Setting, _NO_PARTITION, _TRAIN)]
_Budget = Annotated[
    Mapping[str, Any], Some(Setting, _NO_PARTITION, {**_TRAIN, "seeds": Annotated[list[Seed], Filled()]})
]


@dataclass(frozen=True)
class File:
    """What a protocol's file holds."""

    title: str
    partition: _Partition
    train: _Train
    budget: Mapping[str, _Budget]
    deviates: tuple[Remark, ...] = ()
    layout: Mapping[str, _Layout] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """One paper's setting: `partition` and `train` defaults, and named budgets laid over `train`.

    A layout is a named partition of the paper, laid over the `partition` defaults; `partition.layout` names the one
    that holds where no scheme is chosen. `stages.N` in a budget holds where training data come in N stages,
    `datasets.NAME` in `partition`, in `train` or in a budget for that
    data set only.
    """

    name: str
    title: str
    partition: Mapping[str, Any]
    train: Mapping[str, Any]
    budgets: Mapping[str, Mapping[str, Any]]
    deviates: tuple[Remark, ...] = ()  #: where this differs from the paper and its code, for all methods alike
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)  #: rows that several tables share

    @property
    def redraws(self) -> bool:
        """Whether every run draws its partition anew, from its own seed."""
        return self.partition.get("seed") == RUN_SEED

    @property
    def default_layout(self) -> str | None:
        """The layout that holds where neither a layout nor a scheme is chosen."""
        return self.partition.get("layout")

    def partition_spec(
        self, dataset: DatasetSpec, classes: int, layout: str | None = None, **chosen: Any
    ) -> PartitionSpec:
        """The partition of `dataset` (with that many classes to partition by).

        A layout overrides the defaults, and `chosen` overrides both. A `min_size` of "classes" means as many samples
        as there are classes (FedDRM's code). Where runs redraw, the seed is that of a run with the default seed.
        Raises FedbenchError on an unknown layout, and on a scheme that is not the chosen layout's.
        """
        chosen = {k: v for k, v in chosen.items() if v is not None}
        laid = self._layout(layout, chosen.get("scheme"))
        defaults = _of_dataset(self.partition, dataset)
        defaults.pop("layout", None)
        if self.redraws:
            defaults["seed"] = self.train.get("seed", 0)
        scheme = {**defaults, **laid, **chosen}.get("scheme")
        unfit = {"train_fraction"} if scheme in DRAWN_APART else set()
        levelled = defaults.get("shift") in LEVELLED
        if (scheme != "equal") if levelled else (scheme in DRAWN_APART):
            unfit |= {"shift", "level"}
        if scheme in DRAWN_APART and scheme != "equal":
            unfit.add("validation")
        if {**laid, **chosen}.get("shift", "px") not in LEVELLED:
            unfit.add("level")
        values = {**{k: v for k, v in defaults.items() if k not in unfit}, **laid, **chosen}
        if scheme != "dirichlet":
            values.pop("min_size", None)
        elif values.get("min_size") == "classes":
            values["min_size"] = classes
        _check(values, _PARTITION_FIELDS, f"protocol {self.name}, partition")
        return PartitionSpec.from_dict({"dataset": dataset, **values})

    def _layout(self, name: str | None, scheme: str | None) -> Mapping[str, Any]:
        """The values of a layout: the named one, else the default one unless a scheme is chosen."""
        if name is None:
            name = None if scheme else self.default_layout
        if name is None:
            return {}
        if name not in self.layouts:
            raise unknown(f"layout of protocol {self.name}", name, self.layouts)
        own = self.layouts[name]
        if scheme not in (None, own.get("scheme")):
            raise FedbenchError(f"layout {name} is a {own.get('scheme')} partition, not a {scheme} one", "choose one")
        return own

    def setting(
        self, partition: PartitionSpec, budget: str, table: Mapping[str, Any] | None = None, **chosen: Any
    ) -> Setting:
        """The setting of a run under `budget`; a chosen value that differs makes the budget "custom".

        `table` holds what a table's file declares of the budget for its own cells; that is still the budget.
        """
        values = _lay(self._values(partition, budget), table or {})
        chosen = {k: v for k, v in chosen.items() if v is not None}
        for own in (values, chosen):
            if isinstance(own.get("model"), str):  # a user's file, by its class and its source
                own["model"] = models.named(own["model"])
        free = {"seed", "precision"}  # other seeds and precisions are still that budget
        if any(values.get(k, _UNSAID.get(k)) != v for k, v in chosen.items() if k not in free):
            values["budget"] = "custom"
        values = _lay(values, chosen)
        if values["model"] is None:
            raise FedbenchError(
                f"protocol {self.name} names no model for {partition.dataset.name}", "choose one with --model"
            )
        if chosen.get("rounds") is not None and "window" not in chosen:
            values["window"] = min(values.get("window", 1), values["rounds"])
        _check(values, _SETTING_FIELDS, f"protocol {self.name}, budget {budget}")
        return Setting.from_dict({"partition": partition, **values})

    def own_descent(self, setting: Setting, budget: str) -> str:
        """The setting's optimiser in words, where it is not what this protocol has under `budget`; else empty."""
        values = self._values(setting.partition, budget)
        usual = {k: values.get(k, _UNSAID[k]) for k in ("optimizer", "momentum", "weight_decay")}
        return setting.descent if setting.descent != dataclasses.replace(setting, **usual).descent else ""

    def seeds(self, budget: str) -> tuple[int, ...]:
        """The seeds of a table's runs under `budget`, unless the table has its own: the budget's, or `train`'s."""
        return tuple(self._budget(budget).get("seeds", (self.train.get("seed", 0),)))

    def method_params(self, method: str, budget: str, dataset: str = "") -> dict[str, Any]:
        """Hyper-parameters that this protocol sets for a method (over the method's own defaults) on a data set."""
        found: dict[str, Any] = {}
        for values in (self.train, self._budget(budget)):
            for own in (values, values.get("datasets", {}).get(dataset, {})):
                found |= own.get("methods", {}).get(method, {})
        return found

    def _budget(self, budget: str) -> Mapping[str, Any]:
        if budget not in self.budgets:
            raise unknown("budget", budget, self.budgets)
        return self.budgets[budget]

    def _values(self, partition: PartitionSpec, budget: str) -> dict[str, Any]:
        dataset = partition.dataset
        values = _lay(_of_dataset(self.train, dataset), _of_dataset(self._budget(budget), dataset))
        for name in ("methods", "seeds"):
            values.pop(name, None)
        values = _lay(values, values.pop("stages", {}).get(str(partition.stages), {}))
        own = values.pop("models", {})
        values["model"] = own.get(partition.scheme) or own.get(dataset.name, values.get("model"))
        return {**values, "budget": budget}


def _of_dataset(values: Mapping[str, Any], dataset: DatasetSpec) -> dict[str, Any]:
    """The values as they hold for a data set: those under `datasets.NAME` laid over the others."""
    common = {k: v for k, v in values.items() if k != "datasets"}
    return _lay(common, values.get("datasets", {}).get(dataset.name, {}))


def _lay(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `over` laid over them; local steps replace local epochs and the reverse, and another optimiser
    than SGD its momentum."""
    out = {**values, **over}
    if over.get("optimizer", "sgd") != "sgd" and "momentum" not in over:
        out["momentum"] = 0.0
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if over.get(one) is not None and other not in over:
            out[other] = None
    return out


def _check(values: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in values:
        if name not in known:
            raise unknown(f"key in {where}", name, known)


def names() -> list[str]:
    """The protocols that there are."""
    return sorted(p.parent.name for p in TABLES.glob("*/protocol.toml"))


@cache
def load(name: str) -> Protocol:
    """The protocol of a paper, such as 'feddrm'."""
    if name not in names():
        raise unknown("protocol", name, names())
    path = TABLES / name / "protocol.toml"
    f = reader.read(File, reader.toml(path, "protocol"), str(path))
    return Protocol(name, f.title, f.partition, f.train, f.budget, f.deviates, f.layout, f.rows)
