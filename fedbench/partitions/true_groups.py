"""The view of true groups: which clients share a distribution, and what it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedbench.partitions.artifact import Partition
from fedbench.partitions.shade import plain_table, rows_shown

if TYPE_CHECKING:
    from rich.table import Table

#: Clients of a group that are named.
_NAMED = 12


def of_client(p: Partition, client: int) -> str:
    """A client's group; in drift phases, those one after another and then the test data's."""
    if p.spec.phases is None:
        return str(p.groups[client])
    return "→".join(str(phase[client]) for phase in p.phase_groups) + f", {p.test_groups[client]}"


def render(p: Partition, width: int) -> Iterable[str | Table]:
    """A line a group: its clients (in drift phases: how many meet it, and how many are tested on it), and in words what
    their data are drawn from."""
    total = len(p.distributions)
    drifting = p.spec.phases is not None
    if drifting:
        yield "\nColumn group: of each phase of the training data, and behind the comma of the test data."
    grid = plain_table(gap=2)
    grid.add_column("group", justify="right", no_wrap=True)
    for name in ("training", "test") if drifting else ("clients",):
        grid.add_column(name)
    grid.add_column("distribution")
    yield ""
    for g in range(rows_shown(total)):
        trained = [c for c in range(p.clients) if any(phase[c] == g for phase in p.phase_groups)]
        tested = [c for c in range(p.clients) if p.test_groups[c] == g]
        who = [trained, tested] if drifting else [trained]
        grid.add_row(str(g), *map(_clients, who), p.distributions[g].described(p.classes))
    yield grid
    if more := total - rows_shown(total):
        yield f"and {more:,} more"


def _clients(numbers: list[int]) -> str:
    """Which clients, as many as are named."""
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = len(numbers) - _NAMED
    return f"{named} and {more} more" if more > 0 else named or "none"
