"""Additional metrics that a method declares: one value per round or per client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench import reader
from fedbench.errors import FedbenchError, unknown

#: Values of `Measure.of`: a metric per round, or per client.
ROUND, CLIENT = "round", "client"
#: Rule -> function from the values of the training clients to the value of the federation.
FEDERATION: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
    "min": min,
    "sum": math.fsum,
}


@dataclass(frozen=True)
class Measure:
    """A metric that a method declares (`Method.measures`).

    `Method.round_metrics` returns the values per round; the run's value is the last one. `personalise` writes the
    values per client to `client.metrics`; the last evaluation counts. Raises FedbenchError for an empty text or one of
    several lines, an invalid name, and an unknown `of` or `federation`.
    """

    name: str  #: identifier of the metric, also in tables
    meaning: str  #: in one line
    unit: str  #: such as "fraction", "count", "ratio"
    of: str = ROUND
    federation: str = "mean"  #: rule for a metric per client, a key of FEDERATION
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
    """The measures as JSON values for a run's provenance."""
    return [dataclasses.asdict(measure) for measure in measures]


def restored(raw: Any, where: str) -> list[Measure]:
    """Read the measures of a provenance. Raises FedbenchError, which names `where`, for invalid ones."""
    if not isinstance(raw, list):
        raise FedbenchError(f"{where} are no list")
    return [reader.read(Measure, entry, where) for entry in raw]
