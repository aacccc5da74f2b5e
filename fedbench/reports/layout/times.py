"""Where printed times come from: they compare only within one executor on one processor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedbench.metrics.definitions import METRICS
from fedbench.reports.status.index import Record
from fedbench.reports.table.spec import Column


def timed(hits: Iterable[tuple[Column, Record | None]]) -> Iterator[tuple[Column, Mapping[str, Any]]]:
    """The columns that print times of runs, or shares of them, each with the provenance of every such run."""
    for column, record in hits:
        metric = METRICS.get(str(column.metric))  # others are of pairs of runs' snapshots, or the method's own
        if metric is None or column.of or not (metric.unit == "seconds" or str(column.metric).endswith("_share")):
            continue
        if record and record.artifact:
            yield column, record.provenance


def by_executor(times: Iterable[tuple[Column, Mapping[str, Any]]]) -> dict[str, dict[str, None]]:
    """Executor and device, as the runs say -> the columns of its times, an ordered set."""
    columns: dict[str, dict[str, None]] = {}
    for column, provenance in times:
        if "executor" in provenance:
            columns.setdefault(executor(provenance), {})[column.group or column.label] = None
    return columns


def executors(columns: Mapping[str, Collection[str]]) -> str:
    """What is said of `by_executor`."""
    if len(columns) == 1:
        return f"Times are those of executor {next(iter(columns))}."
    each = (f"{', '.join(names)}: {where}" for where, names in columns.items())
    return f"Times are those of different executors. {'; '.join(each)}."


def executor(provenance: Mapping[str, Any]) -> str:
    return f"{provenance.get('executor', 'unknown')} on {provenance.get('device', 'unknown')}"


def processors(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line if the times are of several processors, by the runs' provenance."""
    names = sorted({_processor(provenance) for provenance in runs})
    return [f"Times are of {len(names)} processors, so not to be compared: {', '.join(names)}."] if names[1:] else []


def _processor(provenance: Mapping[str, Any]) -> str:
    """A GPU's name, or a CPU's; of runs made before that was recorded what it can compute."""
    device = str(provenance.get("device", "cpu"))
    return device if device != "cpu" else str(provenance.get("processor") or provenance.get("cpu") or "an unknown one")
