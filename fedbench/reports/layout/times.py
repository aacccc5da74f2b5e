"""The origin of printed times: times are comparable only with the same executor on the same processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench.groups import by_key
from fedbench.metrics.definitions import METRICS
from fedbench.planner.cells import Cells
from fedbench.planner.others import Hits
from fedbench.planner.table.claims import Comparable
from fedbench.planner.table.spec import Column
from fedbench.results.run import Run

#: The processor of runs that do not record it; it may be equal to any other.
UNRECORDED = "an unrecorded one"
#: (column, provenance) of each run in a column that prints times or shares of times.
Times = Sequence[tuple[Column, Mapping[str, Any]]]


def timed(cells: Cells, extra: Mapping[str, Hits]) -> Times:
    """The runs in columns of times, of a table's cells and its extra rows."""
    of_cells = ((cell.column, record) for cell in cells.all for record in cell.records)
    return [*_timed(of_cells), *_timed(hit for hits in extra.values() for hit in hits)]


def _timed(hits: Iterable[tuple[Column, Run | None]]) -> Iterator[tuple[Column, Mapping[str, Any]]]:
    for column, record in hits:
        metric = METRICS.get(str(column.metric))  # None: of snapshots, or declared by a method
        if metric is None or column.of or not (metric.unit == "seconds" or str(column.metric).endswith("_share")):
            continue
        if record and record.complete:
            yield column, record.provenance


def executors(times: Times) -> list[str]:
    """Each "EXECUTOR on DEVICE" of the runs, sorted."""
    return sorted({executor(provenance) for _, provenance in times if "executor" in provenance})


def by_column(times: Times) -> str:
    """A sentence about the executors of columns: a group is named for its columns with the most frequent executors, the
    other columns by their keys, so that each name occurs once."""
    places = by_key(((column.group or column.label, column.key), (column, provenance)) for column, provenance in times)
    used = {place: words for place, times_ in places.items() if (words := " and ".join(executors(times_)))}
    groups = by_key((group, words) for (group, _), words in used.items())
    usual = {group: Counter(every).most_common(1)[0][0] for group, every in groups.items()}
    named = ((words, group if words == usual[group] else key) for (group, key), words in used.items())
    names = by_key(named, once=True)
    each = (f"{', '.join(columns)}: {words}" for words, columns in names.items())
    return f"Times are those of different executors. {'; '.join(each)}."


def executor(provenance: Mapping[str, Any]) -> str:
    return f"{provenance.get('executor', 'unknown')} on {provenance.get('device', 'unknown')}"


def processors(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line if the times are, or may be, of more than one processor according to the runs' provenance."""
    names = sorted({_processor(provenance) for provenance in runs})
    known = not any(name.startswith(UNRECORDED) for name in names)
    several = f"are of {len(names)} processors" if known else "may be of several processors"
    return [f"Times {several}, so not to be compared: {', '.join(names)}."] if names[1:] else []


def of_many_processors(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the provenances name more than one processor. One that is not recorded may be any CPU, but no GPU."""
    names = {_processor(run): run.get("device", "cpu") != "cpu" for run in runs}
    known = [on_gpu for name, on_gpu in names.items() if not name.startswith(UNRECORDED)]
    return len(known) > 1 or (len(names) > len(known) and any(known))


def incomparable(columns: Sequence[Column], times: Times) -> list[Column]:
    """The columns (means, too) whose times are of more than one processor, so that they do not compare methods only."""
    runs = by_key((column.key, provenance) for column, provenance in times)
    return [c for c in columns if of_many_processors(run for key in c.of or (c.key,) for run in runs.get(key, ()))]


def comparable(cells: Cells) -> Comparable:
    """Whether the times (or means of times) in some cells, by row label and column key, are of one processor. One
    that is not recorded is another one."""
    runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in cells.all:  # parts stand before their means
        timed = (provenance for _, provenance in _timed((cell.column, record) for record in cell.records))
        parts = (run for key in cell.column.of for run in runs[cell.row.label, key])
        runs[cell.row.label, cell.column.key] = [*timed, *parts]
    return lambda places: len({_processor(run) for place in places for run in runs.get(place, ())}) < 2


def unranked(columns: Iterable[Column]) -> list[str]:
    """A line that names the printed columns among `incomparable` ones."""
    names = ", ".join(column.key for column in columns if not column.hidden)
    return (
        [f"Of several processors, so none is marked best, and claims compare those of one alone: {names}."]
        if names
        else []
    )


def _processor(provenance: Mapping[str, Any]) -> str:
    """The name of a GPU or CPU; for old runs, which do not record it, UNRECORDED with the instruction set."""
    device, cpu = str(provenance.get("device", "cpu")), provenance.get("cpu")
    unrecorded = f"{UNRECORDED} ({cpu})" if cpu else UNRECORDED
    return device if device != "cpu" else str(provenance.get("processor") or unrecorded)
