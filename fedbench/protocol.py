"""Protocols: a paper's experimental setting as data (tables/PAPER/protocol.toml), and its budgets.

A protocol gives the defaults of `fedbench partition` and `fedbench train`, and the settings of its paper's
tables, so that a plain `train` makes the very run that a table's cell asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedbench.errors import FedbenchError, unknown
from fedbench.resources import TABLES, read_toml
from fedbench.spec import DatasetSpec, PartitionSpec, Setting

DEFAULT = "feddrm"

_SETTING_FIELDS = {f.name for f in dataclasses.fields(Setting)}
_PARTITION_FIELDS = {f.name for f in dataclasses.fields(PartitionSpec)}


@dataclass(frozen=True)
class Protocol:
    """One paper's setting: `partition` and `train` defaults, and named budgets laid over `train`."""

    name: str
    title: str
    partition: Mapping[str, Any]
    train: Mapping[str, Any]
    budgets: Mapping[str, Mapping[str, Any]]
    deviates: tuple[str, ...] = ()  #: where this differs from the paper and its code, for all methods alike

    def partition_spec(self, dataset: DatasetSpec, classes: int, **chosen: Any) -> PartitionSpec:
        """The partition of `dataset` (with that many classes to partition by); `chosen` overrides the defaults.

        A `min_size` of "classes" means as many samples as there are classes (FedDRM's code).
        """
        values = {**self.partition, **{k: v for k, v in chosen.items() if v is not None}}
        per_dataset = values.pop("datasets", {}).get(dataset.name, {})
        values.update({k: v for k, v in per_dataset.items() if chosen.get(k) is None})
        if values.get("scheme") != "dirichlet":
            values.pop("min_size", None)
        elif values.get("min_size") == "classes":
            values["min_size"] = classes
        _check(values, _PARTITION_FIELDS, f"protocol {self.name}, partition")
        return PartitionSpec.from_dict({"dataset": dataset, **values})

    def setting(
        self, partition: PartitionSpec, budget: str, table: Mapping[str, Any] | None = None, **chosen: Any
    ) -> Setting:
        """The setting of a run under `budget`; a chosen value that differs makes the budget "custom".

        `table` holds what a table's file declares of the budget for its own cells; that is still the budget.
        """
        values = _lay(self._values(partition, budget), table or {})
        chosen = {k: v for k, v in chosen.items() if v is not None}
        free = {"seed", "precision"}  # other seeds and precisions are still that budget
        if any(values.get(k) != v for k, v in chosen.items() if k not in free):
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

    def method_params(self, method: str, budget: str) -> dict[str, Any]:
        """Hyper-parameters that this protocol sets for a method (over the method's own defaults)."""
        return dict(self._budget(budget).get("methods", {}).get(method, {}))

    def _budget(self, budget: str) -> Mapping[str, Any]:
        if budget not in self.budgets:
            raise unknown("budget", budget, self.budgets)
        return self.budgets[budget]

    def _values(self, partition: PartitionSpec, budget: str) -> dict[str, Any]:
        values = {**self.train, **self._budget(budget)}
        values.pop("methods", None)
        models = values.pop("models", {})
        values["model"] = models.get(partition.dataset.name, values.get("model"))
        return {**values, "budget": budget}


def _lay(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `over` laid over them; local steps replace local epochs and the reverse."""
    out = {**values, **over}
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
    path = TABLES / name / "protocol.toml"
    if not path.exists():
        raise unknown("protocol", name, names())
    raw = read_toml(path)
    try:
        return Protocol(
            name, raw["title"], raw["partition"], raw["train"], raw["budget"], tuple(raw.get("deviates", ()))
        )
    except KeyError as error:
        raise FedbenchError(f"{path} lacks {error}") from error
