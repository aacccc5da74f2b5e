"""Remarks that hold for some runs only, and what they hold for: declared in TOML, by tables and protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


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
