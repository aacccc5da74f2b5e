"""Statistic "properties": what methods say of themselves, and whether their counted costs are comparable to FedAvg's.

A mark is 1 (yes), 0.5 (on a condition) or 0 (no). What no declaration tells, methods say in their docstring:

    properties: clusters by losses; made for px, py; adapts without labels.

which changes no result and so makes no run stale: what clients are clustered by, the kinds of shift that the method's
paper sets out to handle, and whether a client without labels is served by what its own images are like.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from fedbench import declared
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.partitions.bank import LEVELLED
from fedbench.reports.numbers.measured import Value
from fedbench.reports.table import cost
from fedbench.reports.table.spec import Column, Row

#: Costs up to so many times FedAvg's are comparable to them; up to the other, on a condition.
COMPARABLE, CONDITIONAL = 1.2, 2.0
#: Whether a method scales: with so many times the clients and the clusters its costs grow as FedAvg's do.
_GROWTH = 10
#: What clients can be clustered by, and the kinds of shift.
_BY = ("losses", "parameters", "descriptors")
_KINDS = frozenset(kind for kind in LEVELLED if "+" not in kind)


@dataclass(frozen=True)
class Properties:
    """What a method's docstring says."""

    clusters_by: str = ""  #: one of _BY, or nothing
    made_for: frozenset[str] = frozenset()  #: of _KINDS
    adapts: bool = False  #: to a client without labels


@cache
def of(method: str) -> Properties:
    """The properties of a method. Raises FedbenchError for a paragraph that says something else."""
    paragraphs = (" ".join(one.split()) for one in declared.of(method).text.split("\n\n"))
    said = Properties()
    for paragraph in (one for one in paragraphs if one.startswith("properties:")):
        for part in paragraph.removeprefix("properties:").strip().rstrip(".").split(";"):
            said = dataclasses.replace(said, **_read(part.strip(), method))
    return said


def _read(part: str, method: str) -> dict[str, object]:
    if part == "adapts without labels":
        return {"adapts": True}
    if part.startswith("clusters by ") and (by := part.removeprefix("clusters by ")) in _BY:
        return {"clusters_by": by}
    kinds = frozenset(one.strip() for one in part.removeprefix("made for ").split(","))
    if part.startswith("made for ") and kinds <= _KINDS:
        return {"made_for": kinds}
    hint = f"'clusters by {'|'.join(_BY)}', 'made for {', '.join(sorted(_KINDS))}' or 'adapts without labels'"
    raise FedbenchError(f"method {method} says of its properties '{part}', which says nothing to a table", hint)


def _category(said: Properties, method: Declaration) -> str:
    """CFL: clustered; AFL: one model, which adapts to clients as they are asked; PFL: a part of each client's own."""
    if said.clusters_by:
        return "clustered"
    if said.adapts:
        return "adaptive"
    return "personalised" if method.personal or method.personal_models else ""


#: Metric -> whether a method has it.
DECLARED: Mapping[str, Callable[[Properties, Declaration], bool]] = {
    "clustered": lambda said, method: _category(said, method) == "clustered",
    "personalised": lambda said, method: _category(said, method) == "personalised",
    "adaptive": lambda said, method: _category(said, method) == "adaptive",
    "all_shifts": lambda said, method: said.made_for == _KINDS,
    "adapts": lambda said, method: said.adapts,
    "no_prior": lambda said, method: "clusters" not in method.hyper_parameters,  # else the true number is its default
    **{f"by_{by}": (lambda said, method, by=by: said.clusters_by == by) for by in _BY},
}
#: Metric -> how many times FedAvg's cost it is.
COSTS: Mapping[str, Callable[[cost.Cost, cost.Cost], float]] = {
    "low_bytes": lambda ours, base: (ours.bytes_up + ours.bytes_down) / (base.bytes_up + base.bytes_down),
    "low_server": lambda ours, base: ours.printed_server / base.printed_server,
    "low_client": lambda ours, base: ours.client / base.client,
}


def number(row: Row, column: Column) -> Value:
    """The mark of a cell. Raises FedbenchError for costs that nobody has counted."""
    if (metric := str(column.metric)) in DECLARED:
        return Value(float(DECLARED[metric](of(row.method), declared.of(row.method))))
    assert column.costs is not None
    times = _times(row.method, column.costs)
    if metric == "scales":
        more = {name: getattr(column.costs, name) * _GROWTH for name in ("clients", "clusters")}
        grown = _times(row.method, dataclasses.replace(column.costs, **more))
        return Value(_mark(max(grown[name] / times[name] for name in COSTS)))
    return Value(_mark(times[metric]))


def _times(method: str, case: cost.Case) -> dict[str, float]:
    """Each of the costs as a multiple of FedAvg's."""
    ours, base = cost.cost(method, case), cost.cost("fedavg", case)
    return {name: times(ours, base) for name, times in COSTS.items()}


def _mark(times: float) -> float:
    rounded = round(times, 9)  # a multiple such as 1.2 is no exact sum
    return 1.0 if rounded <= COMPARABLE else 0.5 if rounded <= CONDITIONAL else 0.0
