"""Notes on a table's runs from result packs: who made them, when, on which machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedbench.groups import by_key
from fedbench.reports.layout.grid import CONTRADICTED, SHIPPED
from fedbench.results.packs import Shipped
from fedbench.results.run import Run
from fedbench.words import counted, duration

#: The maker of runs whose pack does not name one.
NOBODY = "an unnamed maker"


def of_runs(runs: Iterable[Shipped]) -> Iterator[str]:
    """One line per maker, machine and version of torch, with commands to verify or exclude their runs."""
    for line in makers(runs):
        yield f"{line}: 'fedbench results verify' trains some again; --no-shipped leaves them out."


def makers(runs: Iterable[Shipped]) -> Iterator[str]:
    """One line per maker, machine and version of torch."""
    with_torch = ((run, run.provenance.get("libraries", {}).get("torch", "")) for run in runs)
    groups = by_key(((run.origin.by or NOBODY, run.origin.machine, torch), run) for run, torch in with_torch)
    for (by, machine, torch), runs_ in groups.items():
        days = sorted({run.origin.started[:10] for run in runs_})
        on = ", ".join(word for word in (machine, f"torch {torch}" if torch else "") if word)
        seconds = duration(sum(run.origin.seconds for run in runs_))
        when = " to ".join(dict.fromkeys((days[0], days[-1])))
        yield (f"{SHIPPED} {counted(len(runs_), 'run')} by {by}, {when}, on {on} ({seconds} of training)")


def contradicted(others: Mapping[str, tuple[Run, Sequence[Shipped]]]) -> Iterator[str]:
    """A line about runs for which packs have other numbers than the printed ones. `others`: id -> (printed run, runs of
    packs with other numbers)."""
    if not others:
        return
    few = []
    for id, (record, runs) in [*others.items()][:3]:
        shown = record.shipped.pack if record.shipped else "this store"
        few.append(f"{id} (shown: {shown}; other: {', '.join(run.pack for run in runs)})")
    yield (
        f"{CONTRADICTED} {counted(len(others), 'run')} with other numbers in another result pack: "
        f"{', '.join([*few, *(['...'] if len(others) > 3 else [])])}. "
        f"'fedbench results verify {next(iter(others))}' tells which come out again."
    )
