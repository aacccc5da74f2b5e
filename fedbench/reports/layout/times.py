"""Where printed times come from: they compare only within one executor on one processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench.groups import by_key
from fedbench.metrics.definitions import METRICS
from fedbench.planner.cells import Cells
from fedbench.planner.others import Hits
from fedbench.planner.table.spec import Column
from fedbench.results.frame import Run

#: A processor that runs do not name: it may be any other's.
UNRECORDED = "an unrecorded one"
#: Columns that print times of runs, or shares of them, each with the provenance of every such run.
Times = Sequence[tuple[Column, Mapping[str, Any]]]


def timed(cells: Cells, extra: Mapping[str, Hits]) -> Times:
    """The times of a table's cells and of its extra rows."""
    own = ((cell.column, record) for cell in cells.all for record in cell.records)
    return [*_timed(own), *_timed(hit for hits in extra.values() for hit in hits)]


def _timed(hits: Iterable[tuple[Column, Run | None]]) -> Iterator[tuple[Column, Mapping[str, Any]]]:
    for column, record in hits:
        metric = METRICS.get(str(column.metric))  # others are of pairs of runs' snapshots, or the method's own
        if metric is None or column.of or not (metric.unit == "seconds" or str(column.metric).endswith("_share")):
            continue
        if record and record.complete:
            yield column, record.provenance


def executors(times: Times) -> list[str]:
    """Each executor and device that the runs name."""
    return sorted({executor(provenance) for _, provenance in times if "executor" in provenance})


def by_column(times: Times) -> str:
    """What is said of several executors: a group of columns stands for those of its most usual ones, and the others for
    themselves, so that no name stands twice."""
    places = by_key(((column.group or column.label, column.key), (column, provenance)) for column, provenance in times)
    used = {place: words for place, own in places.items() if (words := " and ".join(executors(own)))}
    groups = by_key((group, words) for (group, _), words in used.items())
    usual = {group: Counter(every).most_common(1)[0][0] for group, every in groups.items()}
    named = ((words, group if words == usual[group] else key) for (group, key), words in used.items())
    names = by_key(named, once=True)
    each = (f"{', '.join(columns)}: {words}" for words, columns in names.items())
    return f"Times are those of different executors. {'; '.join(each)}."


def executor(provenance: Mapping[str, Any]) -> str:
    return f"{provenance.get('executor', 'unknown')} on {provenance.get('device', 'unknown')}"


def processors(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line if the times are of several processors, by the runs' provenance, or may be."""
    names = sorted({_processor(provenance) for provenance in runs})
    known = not any(name.startswith(UNRECORDED) for name in names)
    several = f"are of {len(names)} processors" if known else "may be of several processors"
    return [f"Times {several}, so not to be compared: {', '.join(names)}."] if names[1:] else []


def of_many_processors(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the runs are known, by their provenance, to be of more than one processor."""
    return len({name for run in runs if not (name := _processor(run)).startswith(UNRECORDED)}) > 1


def incomparable(columns: Sequence[Column], times: Times) -> list[Column]:
    """The columns, means over others too, whose times are of several processors: no row is faster than another there by
    its method alone."""
    runs = by_key((column.key, provenance) for column, provenance in times)
    return [c for c in columns if of_many_processors(run for key in c.of or (c.key,) for run in runs.get(key, ()))]


def unranked(columns: Iterable[Column]) -> list[str]:
    """A line that names the printed ones among the columns that are `incomparable`."""
    names = ", ".join(column.key for column in columns if not column.hidden)
    return [f"Of several processors, so none is marked best and no claim is judged: {names}."] if names else []


def _processor(provenance: Mapping[str, Any]) -> str:
    """A GPU's name, or a CPU's; of runs made before that was recorded what it can compute, as many others can."""
    device, cpu = str(provenance.get("device", "cpu")), provenance.get("cpu")
    unrecorded = f"{UNRECORDED} ({cpu})" if cpu else UNRECORDED
    return device if device != "cpu" else str(provenance.get("processor") or unrecorded)
