"""Metrics that a method declares in addition to those of every run: one value per round or per client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench import reader
from fedbench.errors import FedbenchError, unknown

#: Whether a metric has a value per round or per client.
ROUND, CLIENT = "round", "client"
#: Rule -> the value of the whole federation from the values of the clients that train.
FEDERATION: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
    "min": min,
    "sum": math.fsum,
}


@dataclass(frozen=True)
class Measure:
    """A metric that a method declares (`Method.measures`).

    `Method.round_metrics` returns the values per round; the last one is the run's. `personalise` writes the values per
    client to `client.metrics`; those of the last evaluation count. Raises FedbenchError for a text that is empty or has
    more than one line, an invalid name, and an unknown `of` or `federation`.
    """

    name: str  #: of the metric, also in tables
    meaning: str  #: in one line
    unit: str  #: such as "fraction", "count", "ratio"
    of: str = ROUND
    federation: str = "mean"  #: for a metric per client: one of FEDERATION
    source: str = ""  #: paper or code that defines it
    least: float | None = None  #: lower bound of its values

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise FedbenchError(f"the name of a Measure is {self.name!r}", "a name is letters, digits and _")
        for name in ("meaning", "unit", "source"):
            text = getattr(self, name)
            if not (isinstance(text, str) and text.isprintable() and (text or name == "source")):
                raise FedbenchError(f"{name} of a Measure is {text!r}", "write it as a text of one line")
        if self.of not in (ROUND, CLIENT):
            raise unknown("'of' of a Measure", str(self.of), (ROUND, CLIENT))
        if self.federation not in FEDERATION:
            raise unknown("'federation' of a Measure", str(self.federation), FEDERATION)

    def __str__(self) -> str:
        of = f"{self.federation} of the clients" if self.of == CLIENT else "of each round"
        return f"{self.name}: {self.meaning} ({self.unit}, {of})" + (f" [{self.source}]" if self.source else "")


def stored(measures: Iterable[Measure]) -> list[dict[str, Any]]:
    """The measures as a run's provenance stores them."""
    return [dataclasses.asdict(measure) for measure in measures]


def restored(raw: Any, where: str) -> list[Measure]:
    """The measures of a provenance. Raises FedbenchError, naming `where`, for invalid ones."""
    if not isinstance(raw, list):
        raise FedbenchError(f"{where} are no list")
    return [reader.read(Measure, entry, where) for entry in raw]
