"""Protocols: experimental settings of papers, with budgets, in tables/PAPER/protocol.toml; `plain` is of no paper.

A protocol gives the defaults of `fedbench partition` and `fedbench train`, and the settings of its paper's tables.
Therefore `train` without options trains the same run as a table.
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
from fedbench.reader import Between, NotEmpty, Some, shown
from fedbench.specs import DatasetSpec, PartitionSpec, Plain, Setting
from fedbench.specs.fields import described, kind_of


@dataclass(frozen=True)
class Remark:
    """A note below tables, for cells that match `where`.

    `where` maps facts of a cell to their accepted values, such as `{ shift = ["low", "high"] }`. The note is printed if
    one cell matches all of them. Facts are the fields of a cell's partition and setting, and its `dataset`, `method`,
    `metric` and `statistic`.
    """

    text: str
    where: Mapping[str, list[Any]] = field(default_factory=dict)

    def holds(self, cells: Iterable[Mapping[str, Any]]) -> bool:
        """Whether any cell matches; `cells`: the facts of each cell."""
        return not self.where or any(
            all(facts.get(name) in values for name, values in self.where.items()) for facts in cells
        )


#: The budget with the paper's own training.
PAPER = "paper"

#: The default protocol for the papers' data sets, and for all others.
DEFAULT, OWN = "feddrm", "plain"

_SETTING_FIELDS = {f.name: f for f in dataclasses.fields(Setting)}
#: Default of each field of a setting.
_DEFAULT_OF = {f.name: f.default for f in dataclasses.fields(Setting)} | {"optimizer": "sgd"}

#: Fields of a setting in which two runs of one budget may differ: seed and precision are chosen, versions are the
#: code's, an executor changes only times, and the rest says what is evaluated.
NO_TRAINING = (
    "partition",
    "seed",
    "precision",
    "version",
    "model_version",
    "executor",
    "window",
    "every",
    "votes",
    "test_phase",
)

#: Value of a protocol's `partition.seed`: every run draws its partition with the run's seed.
RUN_SEED = "run"

Seed = Annotated[int, Between(0, 2**32 - 1)]

# Each TOML table has some fields of a spec; merged they give a complete spec. These fields cannot be in a table.
_NO_OPTION = tuple(_SETTING_FIELDS.keys() - described(Setting))
#: Fields of a setting that a table, row or column can set; seeds and precision are set elsewhere.
Training = Annotated[Mapping[str, Any], Some(Setting, (*_NO_OPTION, "seed", "precision"))]


@dataclass(frozen=True)
class OfPartition:
    """Rule: the keys of a mapping are fields of a partition, options of partitioners, or in `more`. Options of a user's
    partitioner are checked later, when the spec is created."""

    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def check(self, value: Any, where: str) -> None:
        from fedbench.partitions import schemes

        known = {**schemes.hints(), **self.more}
        if schemes.is_users(str(value.get("scheme", ""))):
            fields = {f.name for f in dataclasses.fields(PartitionSpec)}
            known |= {name: Any for name in value if name not in (fields | set(known))}
        Some(PartitionSpec, ("dataset", "options", "version", *self.more), known).check(value, where)


#: Values of a partition that a column can set.
Chosen = Annotated[Mapping[str, Any], OfPartition({"preset": str})]

_RUN = {
    "methods": Mapping[str, Mapping[str, Plain]],
    "models": Mapping[str, str],
    "phases": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _NO_OPTION)]],
}
_TRAIN = {**_RUN, "datasets": Mapping[str, Annotated[Mapping[str, Any], Some(Setting, _NO_OPTION, _RUN)]]}
_CLASSES = {"min_size": int | Literal["classes"]}
_DEFAULTS = {**_CLASSES, "preset": str, "seed": Seed | Literal["run"]}

_Preset = Annotated[Mapping[str, Any], OfPartition(_CLASSES)]
_OfScheme = Annotated[Mapping[str, Any], OfPartition({**_CLASSES, "clients": int | Literal["groups"]})]
_CASES = {"datasets": Mapping[str, _Preset], "shifts": Mapping[str, _Preset], "schemes": Mapping[str, _OfScheme]}
_Partition = Annotated[Mapping[str, Any], OfPartition({**_DEFAULTS, **_CASES})]
_Train = Annotated[Mapping[str, Any], Some(Setting, _NO_OPTION, _TRAIN)]
#: The seeds of a table's runs, or how many of the table's own it has.
_SEEDS = Annotated[list[Seed], NotEmpty()] | Annotated[int, Between(1, 1000)]
_Budget = Annotated[Mapping[str, Any], Some(Setting, _NO_OPTION, {**_TRAIN, "seeds": _SEEDS})]


@dataclass(frozen=True)
class ProtocolFile:
    """The contents of a protocol's file."""

    title: str
    partition: _Partition
    train: _Train
    budget: Mapping[str, _Budget]
    deviates: tuple[Remark, ...] = ()
    preset: Mapping[str, _Preset] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """One paper's setting: defaults of `partition` and `train`, and named budgets, which override `train`.

    A preset is a named partition of the paper, which overrides the `partition` defaults; `partition.preset` names the
    default preset, which is used if no partitioner is chosen. Nested tables override values in special cases:
    `datasets.NAME` (in `partition`, `train` or a budget) for a data set, `phases.N` (in `train` or a budget) for data
    that drift through N phases, `shifts.NAME` and `schemes.NAME` (in `partition`) for a shift or a partitioner.
    """

    name: str
    title: str
    partition: Mapping[str, Any]
    train: Mapping[str, Any]
    budgets: Mapping[str, Mapping[str, Any]]
    deviates: tuple[Remark, ...] = ()  #: differences from the paper or its code, for all methods
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)  #: name -> rows that several tables use

    @property
    def redraws(self) -> bool:
        """Whether every run draws its partition with the run's seed."""
        return self.partition.get("seed") == RUN_SEED

    @property
    def default_preset(self) -> str | None:
        """The preset that is used if neither a preset nor a partitioner is chosen."""
        return self.partition.get("preset")

    def partition_spec(
        self,
        dataset: DatasetSpec,
        classes: int,
        preset: str | None = None,
        groups: Callable[[str], int] | None = None,
        **chosen: Any,
    ) -> PartitionSpec:
        """The spec of a partition of `dataset`; `classes`: number of classes to partition by.

        A preset overrides the defaults, and `chosen` overrides both. Defaults that the partitioner does not accept are
        ignored. The value "classes" means the number of classes (FedDRM's code: for the smallest client), and "groups"
        the number of natural groups, `groups(column)`. If runs redraw, the default seed is that of a run.
        Raises FedbenchError for an unknown preset, and for a partitioner other than the chosen preset's.
        """
        from fedbench.partitions import schemes

        chosen = {k: v for k, v in chosen.items() if v is not None}
        explicit = {**self._preset(preset, chosen.get("scheme")), **chosen}
        values = _of_dataset(self.partition, dataset)
        by_shift, by_scheme = values.pop("shifts", {}), values.pop("schemes", {})
        values |= by_shift.get(explicit.get("shift", values.get("shift")), {})
        values |= {**by_scheme.get(explicit.get("scheme", values.get("scheme")), {}), **explicit}
        values.pop("preset", None)
        if self.redraws and "seed" not in explicit:
            values["seed"] = self.train.get("seed", 0)
        if "scheme" in values and "clients" not in explicit:
            counted = schemes.load(schemes.named(values["scheme"])).count(explicit)
            values |= {} if counted is None else {"clients": counted}
        for name in ("scheme", "clients", "seed"):
            if name not in values:
                raise FedbenchError(f"protocol {self.name} has no value for a partition's {name}", "say it")
        scheme = schemes.load(schemes.named(values["scheme"]))
        values = {k: v for k, v in values.items() if k in explicit or scheme.takes(k, values)}
        if values["clients"] == "groups":
            if groups is None:
                raise FedbenchError(
                    f"the number of groups by {values.get('by')} is not known here", "give the number of clients"
                )
            values["clients"] = groups(str(values.get("by")))
        return schemes.spec(dataset, **{k: classes if v == "classes" else v for k, v in values.items()})

    def _preset(self, name: str | None, scheme: str | None) -> Mapping[str, Any]:
        """The values of a preset; by default the default preset's, or none if a partitioner is chosen."""
        if name is None:
            name = None if scheme else self.default_preset
        if name is None:
            return {}
        if name not in self.presets:
            owners = " or ".join(f"--protocol {other}" for other in names() if name in load(other).presets)
            if owners:
                raise FedbenchError(f"protocol {self.name} has no preset '{name}'", f"{owners} has it")
            raise unknown(f"preset of protocol {self.name}", name, self.presets)
        values = self.presets[name]
        if scheme not in (None, values.get("scheme")):
            raise FedbenchError(
                f"preset {name} is a {values.get('scheme')} partition, not a {scheme} one", "choose one"
            )
        return values

    def setting(
        self, partition: PartitionSpec, budget: str, table: Mapping[str, Any] | None = None, **chosen: Any
    ) -> Setting:
        """The setting of a run with `budget`, with values from a table's file for it (`table`) and `chosen` ones.

        Raises FedbenchError for invalid values.
        """
        values = _merged(self._values(partition, budget), table or {})
        chosen = {k: value_of("train", k, v) for k, v in chosen.items() if v is not None}
        for mapping in (values, chosen):
            if isinstance(mapping.get("model"), str):  # a user's network: by class and digest of its file
                mapping["model"] = models.named(mapping["model"])
        values = _merged(values, chosen)
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
        except FedbenchError as error:  # name the protocol's value that causes the error
            for name in (name for name in values if name not in {*chosen, *(table or {})}):
                with contextlib.suppress(FedbenchError):
                    Setting.from_dict({key: value for key, value in given.items() if key != name})
                    break
            else:
                raise
            whose = f"{name.replace('_', ' ')} {values[name]} is protocol {self.name}'s, budget {budget}"
            hint = error.hint or "give other values, or another --protocol"
            raise FedbenchError(f"{error.message} ({whose})", hint) from error

    def asks_for(self, setting: Setting, budget: str, table: Mapping[str, Any] | None = None) -> bool:
        """Whether `budget` asks for this setting's training, whatever its seed, its precision and what is evaluated.

        `table`: values from a table's file for this budget.
        """
        values = _merged(self._values(setting.partition, budget), table or {})
        if isinstance(values.get("model"), str):
            values["model"] = models.named(values["model"])
        return all(
            _plain(getattr(setting, name)) == _plain(values.get(name, default))
            for name, default in _DEFAULT_OF.items()
            if name not in NO_TRAINING and not (name == "optimizer" and setting.optimizer is None)
        )

    def own_descent(self, setting: Setting, budget: str) -> str:
        """The setting's optimiser as text if it differs from this protocol's for `budget`, else ""."""
        values = self._values(setting.partition, budget)
        usual = {k: values.get(k, _DEFAULT_OF[k]) for k in ("optimizer", "momentum", "momentum_lives", "weight_decay")}
        return setting.descent if setting.descent != dataclasses.replace(setting, **usual).descent else ""

    def precision(self, budget: str) -> str:
        """The default arithmetic precision of a table's runs with `budget`."""
        return str({**self.train, **self._budget(budget)}.get("precision", Setting.precision))

    def seeds(self, budget: str, table: Collection[int] = ()) -> tuple[int, ...]:
        """The seeds of a table's runs with `budget`: the table's own, or the budget's, or else the seed in `train`. A
        budget that gives a number of seeds has the first ones."""
        declared = self._budget(budget).get("seeds")
        usual = declared if isinstance(declared, list) else (self.train.get("seed", 0),)
        return tuple(table or usual)[: declared if isinstance(declared, int) else None]

    def method_params(self, method: str, budget: str, dataset: str = "") -> dict[str, Any]:
        """The hyper-parameters that this protocol sets for a method on a data set, which override its defaults."""
        found: dict[str, Any] = {}
        for values in (self.train, self._budget(budget)):
            for table in (values, values.get("datasets", {}).get(dataset, {})):
                found |= table.get("methods", {}).get(method, {})
        return found

    def _budget(self, budget: str) -> Mapping[str, Any]:
        check_known("budget", budget, self.budgets)
        return self.budgets[budget]

    def _values(self, partition: PartitionSpec, budget: str) -> dict[str, Any]:
        dataset = partition.dataset
        values = _merged(_of_dataset(self.train, dataset), _of_dataset(self._budget(budget), dataset))
        for name in ("methods", "seeds"):
            values.pop(name, None)
        values = _merged(values, values.pop("phases", {}).get(str(partition.phases), {}))
        networks = values.pop("models", {})
        vectors = networks.get("vectors") if dataset.vectors else None
        values["model"] = networks.get(partition.scheme) or networks.get(dataset.name) or vectors or values.get("model")
        return {"seed": 0, **values}


def _plain(value: Any) -> Any:
    """A value of a setting as a file has it: False, which a setting stores as None, and tuples are the same."""
    return list(value) if isinstance(value, tuple) else value or None


def value_of(owner: str, name: str, given: Any) -> Any:
    """Convert a value of a setting's field; the setting checks bounds and list entries later. Raises FedbenchError,
    which names the option's `owner`, for a value of another type."""
    field = _SETTING_FIELDS.get(name)
    if field is None:
        return given
    kind, hint = kind_of(Setting, field), field.metadata.get("hint", "")
    if kind in VALUES:
        return parse(owner, name, kind, given, most=math.inf, hint=hint)
    try:
        return [int(item) for item in given.split(",")] if isinstance(given, str) else several(given)
    except ValueError:
        raise FedbenchError(f"--{name} of {owner} takes a list, not {shown(given)}", hint) from None


def _of_dataset(values: Mapping[str, Any], dataset: DatasetSpec) -> dict[str, Any]:
    """The values for a data set: those in `datasets.NAME` override the others."""
    common = {k: v for k, v in values.items() if k != "datasets"}
    return _merged(common, values.get("datasets", {}).get(dataset.name, {}))


def _merged(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, overridden by `over`. Local steps in `over` remove local epochs and vice versa, an optimiser other than
    SGD sets momentum to 0, and `momentum_lives` removes `momentum_restarts`, unless `over` has these too."""
    out = {**values, **over}
    if over.get("momentum_lives") and "momentum_restarts" not in over:
        out["momentum_restarts"] = None
    if over.get("optimizer", "sgd") != "sgd" and "momentum" not in over:
        out["momentum"] = 0.0
    for name, other in (("steps", "epochs"), ("epochs", "steps")):
        if over.get(name) is not None and other not in over:
            out[other] = None
    return out


def _check(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name in values:
        check_known(f"key in {where}", name, known)


def default_for(dataset: str | None) -> str:
    """The default protocol of a data set (name, or path of a recipe): the recipe's, else DEFAULT for the papers' data
    sets and OWN for others. Raises FedbenchError for an invalid recipe.
    """
    from fedbench import data

    shipped = data.recipes().get(dataset or "")
    if shipped is not None:
        return shipped.protocol or DEFAULT
    of_recipe = data.recipe(dataset).protocol if dataset is not None and dataset.endswith(".toml") else None
    return of_recipe or OWN


#: The budget of a setting that no protocol's budget asks for.
OWN_BUDGET = "own"

_BUDGETS: dict[str, str] = {}  #: setting's id -> its budgets, in words


def budgets_of(setting: Setting) -> str:
    """The names of the protocols' budgets that ask for this training, such as "paper and small", or OWN_BUDGET.

    A table's rows and columns may ask for more than its protocol's budget does; they are not looked at.
    """
    if setting.id not in _BUDGETS:
        every = [(budget, rules) for rules in map(load, names()) for budget in rules.budgets]
        found = dict.fromkeys(budget for budget, rules in every if rules.asks_for(setting, budget))
        _BUDGETS[setting.id] = " and ".join(sorted(found, key=lambda b: (b != PAPER, b))) or OWN_BUDGET
    return _BUDGETS[setting.id]


def names() -> list[str]:
    """The names of all protocols, sorted."""
    return sorted(name for name, folder in resources.papers().items() if (folder / "protocol.toml").exists())


def load(name: str) -> Protocol:
    """Load a protocol by name, such as 'feddrm', or of the paper in a folder. Raises FedbenchError if unknown."""
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
    f = reader.read(ProtocolFile, reader.toml(path, "protocol"), str(path))
    return Protocol(name, f.title, f.partition, f.train, f.budget, f.deviates, f.preset, f.rows)
