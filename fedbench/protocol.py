"""Protocols: an experimental setting as data (tables/PAPER/protocol.toml), and its budgets; `plain` is no paper's.

A protocol gives the defaults of `fedbench partition` and `fedbench train`, and the settings of its paper's
tables, so that a plain `train` makes the very run that a table's cell asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fedbench import models, reader, resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.options import VALUES, parse, several
from fedbench.reader import Between, Filled, Some, shown
from fedbench.specs import DatasetSpec, PartitionSpec, Plain, Setting
from fedbench.specs.base import described, kind_of


@dataclass(frozen=True)
class Remark:
    """A line to be printed below tables whose cells it holds for.

    `where` has the values that a fact of a cell may have, such as `{ shift = ["low", "high"] }`; of several facts one
    cell must fit them all. Facts are the fields of a cell's partition and setting, and its `dataset`, `method`,
    `metric` and `statistic`.
    """

    text: str
    where: Mapping[str, list[Any]] = field(default_factory=dict)

    def holds(self, cells: Iterable[Mapping[str, Any]]) -> bool:
        """Whether it holds for any cell, by the cells' facts."""
        return not self.where or any(
            all(facts.get(name) in values for name, values in self.where.items()) for facts in cells
        )


#: Whose defaults hold for the papers' data sets, and whose for any other.
DEFAULT, OWN = "feddrm", "plain"

_SETTING_FIELDS = {f.name: f for f in dataclasses.fields(Setting)}
#: What holds where nothing is said.
_UNSAID = {f.name: f.default for f in dataclasses.fields(Setting)} | {"optimizer": "sgd"}

#: A protocol's `partition.seed` where every run draws its partition anew, from the run's own seed.
RUN_SEED = "run"

Seed = Annotated[int, Between(0, 2**32 - 1)]

# Some values of a spec, as a TOML table has them: they make a spec only when all that there are have been laid over
# one another.
_UNCHOSEN = tuple(_SETTING_FIELDS.keys() - described(Setting))
#: What a table, a row or a column may set of its runs, whose seeds and precision are the caller's choice.
Training = Annotated[Mapping[str, Any], Some(Setting, (*_UNCHOSEN, "seed", "precision"))]


@dataclass(frozen=True)
class OfPartition:
    """Rule: a mapping holds some values of a partition and `more`: fields that any has, and options of partitioners.
    Those of a user's own partitioner are checked when it is made."""

    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def check(self, value: Any, where: str) -> None:
        from fedbench.partitions import schemes

        known = {**schemes.hints(), **self.more}
        if schemes.is_users(str(value.get("scheme", ""))):
            fields = {f.name for f in dataclasses.fields(PartitionSpec)}
            known |= {name: Any for name in value if name not in (fields | set(known))}
        Some(PartitionSpec, ("dataset", "options", "version", *self.more), known).check(value, where)


#: What a column may choose of its partition.
Chosen = Annotated[Mapping[str, Any], OfPartition({"preset": str})]

_RUN = {
    "methods": Mapping[str, Mapping[str, Plain]],
    "models": Mapping[str, str],
    "phases": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _UNCHOSEN)]],
}
_TRAIN = {**_RUN, "datasets": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _UNCHOSEN, _RUN)]]}
_CLASSES = {"min_size": int | Literal["classes"]}
_DEFAULTS = {**_CLASSES, "preset": str, "seed": Seed | Literal["run"]}

_Preset = Annotated[Mapping[str, Any], OfPartition(_CLASSES)]
_OfScheme = Annotated[Mapping[str, Any], OfPartition({**_CLASSES, "clients": int | Literal["groups"]})]
_CASES = {"datasets": Mapping[str, _Preset], "shifts": Mapping[str, _Preset], "schemes": Mapping[str, _OfScheme]}
_Partition = Annotated[Mapping[str, Any], OfPartition({**_DEFAULTS, **_CASES})]
_Train = Annotated[Mapping[str, Any], Some(Setting, _UNCHOSEN, _TRAIN)]
_Budget = Annotated[Mapping[str, Any], Some(Setting, _UNCHOSEN, {**_TRAIN, "seeds": Annotated[list[Seed], Filled()]})]


@dataclass(frozen=True)
class File:
    """What a protocol's file holds."""

    title: str
    partition: _Partition
    train: _Train
    budget: Mapping[str, _Budget]
    deviates: tuple[Remark, ...] = ()
    preset: Mapping[str, _Preset] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """One paper's setting: `partition` and `train` defaults, and named budgets laid over `train`.

    A preset is a named partition of the paper, over the `partition` defaults; `partition.preset` names the one that
    holds where no partitioner is chosen. `phases.N` in a budget holds where training data drift through N phases,
    `datasets.NAME` in `partition`, in `train` or in a budget for that data set only, `shifts.NAME` in `partition` under
    that shift, `schemes.NAME` with that partitioner.
    """

    name: str
    title: str
    partition: Mapping[str, Any]
    train: Mapping[str, Any]
    budgets: Mapping[str, Mapping[str, Any]]
    deviates: tuple[Remark, ...] = ()  #: where this differs from the paper and its code, for all methods alike
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)  #: rows that several tables share

    @property
    def redraws(self) -> bool:
        """Whether every run draws its partition anew, from its own seed."""
        return self.partition.get("seed") == RUN_SEED

    @property
    def default_preset(self) -> str | None:
        """The preset that holds where neither a preset nor a partitioner is chosen."""
        return self.partition.get("preset")

    def partition_spec(
        self,
        dataset: DatasetSpec,
        classes: int,
        preset: str | None = None,
        groups: Callable[[str], int] | None = None,
        **chosen: Any,
    ) -> PartitionSpec:
        """The partition of `dataset` (with that many classes to partition by).

        A preset overrides the defaults, and `chosen` overrides both. Of the defaults those hold that say something to
        the partitioner. A value of "classes" means as many as there are classes (FedDRM's code: the smallest client),
        and "groups" as many clients as `groups` says that the column of natural groups has.
        Where runs redraw, the seed is that of a run with the default seed. Raises FedbenchError on an unknown preset,
        and on a partitioner that is not the chosen preset's.
        """
        from fedbench.partitions import schemes

        chosen = {k: v for k, v in chosen.items() if v is not None}
        own = {**self._preset(preset, chosen.get("scheme")), **chosen}
        values = _of_dataset(self.partition, dataset)
        by_shift, by_scheme = values.pop("shifts", {}), values.pop("schemes", {})
        values |= by_shift.get(own.get("shift", values.get("shift")), {})
        values |= {**by_scheme.get(own.get("scheme", values.get("scheme")), {}), **own}
        values.pop("preset", None)
        if self.redraws and "seed" not in own:
            values["seed"] = self.train.get("seed", 0)
        if "scheme" in values and "clients" not in own:
            counted = schemes.load(schemes.named(values["scheme"])).count(own)
            values |= {} if counted is None else {"clients": counted}
        for name in ("scheme", "clients", "seed"):
            if name not in values:
                raise FedbenchError(f"protocol {self.name} says nothing of a partition's {name}", "say it")
        scheme = schemes.load(schemes.named(values["scheme"]))
        values = {k: v for k, v in values.items() if k in own or scheme.takes(k, values)}
        if values["clients"] == "groups":
            if groups is None:
                raise FedbenchError(f"nobody counts the groups by {values.get('by')} here", "say how many clients")
            values["clients"] = groups(str(values.get("by")))
        return schemes.spec(dataset, **{k: classes if v == "classes" else v for k, v in values.items()})

    def _preset(self, name: str | None, scheme: str | None) -> Mapping[str, Any]:
        """The values of a preset: the named one, else the default one unless a partitioner is chosen."""
        if name is None:
            name = None if scheme else self.default_preset
        if name is None:
            return {}
        if name not in self.presets:
            having = " or ".join(f"--protocol {other}" for other in names() if name in load(other).presets)
            if having:
                raise FedbenchError(f"protocol {self.name} has no preset '{name}'", f"{having} has it")
            raise unknown(f"preset of protocol {self.name}", name, self.presets)
        own = self.presets[name]
        if scheme not in (None, own.get("scheme")):
            raise FedbenchError(f"preset {name} is a {own.get('scheme')} partition, not a {scheme} one", "choose one")
        return own

    def setting(
        self, partition: PartitionSpec, budget: str, table: Mapping[str, Any] | None = None, **chosen: Any
    ) -> Setting:
        """The setting of a run under `budget`; a chosen value that differs makes the budget "custom".

        `table` holds what a table's file declares of the budget for its own cells; that is still the budget.
        """
        values = _lay(self._values(partition, budget), table or {})
        chosen = {k: value_of("train", k, v) for k, v in chosen.items() if v is not None}
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
        if (version := models.version(values["model"])) > 1:
            values["model_version"] = version
        given = {"partition": partition, **values}
        try:
            return Setting.from_dict(given)
        except FedbenchError as error:  # about a value that nobody chose, if it would do without that
            for name in (name for name in values if name not in {*chosen, *(table or {})}):
                with contextlib.suppress(FedbenchError):
                    Setting.from_dict({key: value for key, value in given.items() if key != name})
                    break
            else:
                raise
            whose = f"{name.replace('_', ' ')} {values[name]} is protocol {self.name}'s, budget {budget}"
            hint = error.hint or "give other values, or another --protocol"
            raise FedbenchError(f"{error.message} ({whose})", hint) from error

    def own_descent(self, setting: Setting, budget: str) -> str:
        """The setting's optimiser in words, where it is not what this protocol has under `budget`; else empty."""
        values = self._values(setting.partition, budget)
        usual = {k: values.get(k, _UNSAID[k]) for k in ("optimizer", "momentum", "momentum_lives", "weight_decay")}
        return setting.descent if setting.descent != dataclasses.replace(setting, **usual).descent else ""

    def precision(self, budget: str) -> str:
        """Of the arithmetic of a table's runs under `budget`, where none is chosen."""
        return str({**self.train, **self._budget(budget)}.get("precision", Setting.precision))

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
        check_known("budget", budget, self.budgets)
        return self.budgets[budget]

    def _values(self, partition: PartitionSpec, budget: str) -> dict[str, Any]:
        dataset = partition.dataset
        values = _lay(_of_dataset(self.train, dataset), _of_dataset(self._budget(budget), dataset))
        for name in ("methods", "seeds"):
            values.pop(name, None)
        values = _lay(values, values.pop("phases", {}).get(str(partition.phases), {}))
        own = values.pop("models", {})
        vectors = own.get("vectors") if dataset.vectors else None
        values["model"] = own.get(partition.scheme) or own.get(dataset.name) or vectors or values.get("model")
        return {"seed": 0, **values, "budget": budget}


def value_of(owner: str, name: str, given: Any) -> Any:
    """A value of a setting's field, perhaps from its text; bounds, and the entries of a list, are the setting's to
    check. Raises FedbenchError, which says whose option it is, for what is no such value."""
    field = _SETTING_FIELDS.get(name)
    if field is None:
        return given
    kind, hint = kind_of(Setting, field), field.metadata.get("hint", "")
    if kind in VALUES:
        return parse(owner, name, kind, given, most=math.inf, hint=hint)
    try:
        return [int(one) for one in given.split(",")] if isinstance(given, str) else several(given)
    except ValueError:
        raise FedbenchError(f"--{name} of {owner} takes a list, not {shown(given)}", hint) from None


def _of_dataset(values: Mapping[str, Any], dataset: DatasetSpec) -> dict[str, Any]:
    """The values as they hold for a data set: those under `datasets.NAME` laid over the others."""
    common = {k: v for k, v in values.items() if k != "datasets"}
    return _lay(common, values.get("datasets", {}).get(dataset.name, {}))


def _lay(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `over` laid over them; local steps replace local epochs and the reverse, and another optimiser
    than SGD its momentum, and momentum that lives its restarts."""
    out = {**values, **over}
    if over.get("momentum_lives") and "momentum_restarts" not in over:
        out["momentum_restarts"] = None
    if over.get("optimizer", "sgd") != "sgd" and "momentum" not in over:
        out["momentum"] = 0.0
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if over.get(one) is not None and other not in over:
            out[other] = None
    return out


def _check(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name in values:
        check_known(f"key in {where}", name, known)


def default_for(dataset: str | None) -> str:
    """The protocol whose defaults hold for a data set (its name, or its recipe's path) where none is chosen: its
    recipe's, else FedDRM's for the papers' data sets and `plain` for others. Raises FedbenchError for a faulty recipe.
    """
    from fedbench import data

    shipped = data.recipes().get(dataset or "")
    if shipped is not None:
        return shipped.protocol or DEFAULT
    own = data.recipe(dataset).protocol if dataset is not None and dataset.endswith(".toml") else None
    return own or OWN


def names() -> list[str]:
    """The protocols that there are."""
    return sorted(name for name, folder in resources.papers().items() if (folder / "protocol.toml").exists())


def load(name: str) -> Protocol:
    """The protocol of that name, such as 'feddrm', or of the paper in that folder."""
    name = resources.named(name)
    folder = resources.paper(name)
    if folder is None:
        raise unknown("protocol", name, names())
    return _read(name, folder)


@cache
def _read(name: str, folder: Path) -> Protocol:
    path = folder / "protocol.toml"
    if not path.exists():
        raise unknown("protocol", name, names())
    f = reader.read(File, reader.toml(path, "protocol"), str(path))
    return Protocol(name, f.title, f.partition, f.train, f.budget, f.deviates, f.preset, f.rows)
