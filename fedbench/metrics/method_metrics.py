"""Metrics that a run's method measured itself, per round and per client, as its provenance declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedbench.data.part import values_of
from fedbench.errors import FedbenchError
from fedbench.measure import CLIENT, FEDERATION, ROUND, Measure, restored
from fedbench.methods import declarations
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.predictions import broken, numbers
from fedbench.store import Artifact

#: Key of a run's provenance: the measures of its method.
MEASURES = "measures"
#: Metrics of old runs, whose provenance has no declared measures.
BEFORE = ("clusters", "elbow", "clustering_round", "ratio_bound")
#: Columns of a run's `clients` table; a metric may not have these names.
RESERVED = ("client", "n_train", "n_test", "group", "cluster")


class Noted(NamedTuple):
    """A metric with a value per client."""

    whole: float  #: value of the federation
    values: np.ndarray  #: [M]; NaN for unseen clients without a value


def measures_of(run: Artifact) -> dict[str, Measure]:
    """Name -> measure that the run's method declared. Raises FedbenchError if the provenance is damaged there."""
    if (raw := run.provenance.get(MEASURES)) is None:
        return {name: measure for name, measure in declarations.measures().items() if name in BEFORE}
    try:
        return {measure.name: measure for measure in restored(raw, MEASURES)}
    except FedbenchError as error:
        raise broken(run, str(error)) from error


def of_rounds(run: Artifact) -> dict[str, dict[int, float]]:
    """Metric -> round -> value, of the method's measures per round; round 0 has the last value."""
    rounds = run.table("rounds")
    number = rounds.column("round").to_pylist()
    values: dict[str, dict[int, float]] = {}
    for name in (name for name, measure in measures_of(run).items() if measure.of == ROUND):
        if (column := f"figure_{name}") in rounds.column_names:
            series = {t: v for t, v in zip(number, rounds.column(column).to_pylist(), strict=True) if v is not None}
            if series:
                values[name] = {**series, 0: series[max(series)]}
    return values


def of_clients(run: Artifact, trainees: int) -> dict[str, Noted]:
    """Metric -> values, of the method's measures that every training client (the first `trainees`) has.

    Raises FedbenchError for a value that is not finite or below the measure's least value.
    """
    table = run.table("clients")
    noted: dict[str, Noted] = {}
    for name, measure in measures_of(run).items():
        if measure.of != CLIENT or name not in table.column_names or table.column(name)[:trainees].null_count:
            continue
        values = numbers(run, table, "clients", name)
        present = values[values_of(table.column(name).is_valid())]
        least = -np.inf if measure.least is None else measure.least
        if not np.isfinite(present).all() or (present < least).any():
            below = "" if measure.least is None else f"below {measure.least:g} or "
            raise broken(run, f"column '{name}' of table clients holds a value {below}not finite")
        noted[name] = Noted(FEDERATION[measure.federation](values[:trainees].tolist()), values)
    return noted


def check(measures: Sequence[Measure], where: str) -> None:
    """Raise FedbenchError unless a method's `measures` can be metrics of its runs; `where` names the method."""
    names = [measure.name for measure in measures]
    for name in names:
        if name in (*METRICS, *RESERVED):
            raise FedbenchError(f"{where} measures '{name}', which is a name of fedbench's own", "choose another name")
        if names.count(name) > 1:
            raise FedbenchError(f"{where} measures '{name}' twice", "choose another name")
