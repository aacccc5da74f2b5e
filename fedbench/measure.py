"""What a method measures itself, beside what fedbench does of every run: a metric of each round or of each client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench import reader
from fedbench.errors import FedbenchError, unknown

#: What a metric is of.
ROUND, CLIENT = "round", "client"
#: What stands for the whole federation, from the metrics of the clients that train.
FEDERATION: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
    "min": min,
    "sum": math.fsum,
}


@dataclass(frozen=True)
class Measure:
    """A metric that a method declares (`Method.measures`), and so one of the method's runs.

    One of a round is reported by `Method.round_metrics`, and its last value stands for the run. One of a client is left
    in `client.metrics` by `personalise`; the last evaluation's counts. Raises FedbenchError for a text that is empty or
    not of one line, a name that is none, and another `of` or `federation` than there are.
    """

    name: str  #: of the metric, in tables too
    meaning: str  #: in one line
    unit: str  #: such as "fraction", "count", "ratio"
    of: str = ROUND
    federation: str = "mean"  #: of a client's metric: one of FEDERATION
    source: str = ""  #: who defines it so
    least: float | None = None  #: no value of a client lies below it

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
    """The declarations as a run's provenance keeps them."""
    return [dataclasses.asdict(measure) for measure in measures]


def restored(raw: Any, where: str) -> list[Measure]:
    """The declarations of a provenance. Raises FedbenchError, which names `where`, for what are none."""
    if not isinstance(raw, list):
        raise FedbenchError(f"{where} are no list")
    return [reader.read(Measure, one, where) for one in raw]
