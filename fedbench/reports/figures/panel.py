"""What a figure of any kind shows: panels, each with its marks, and what is said of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedbench.partitions import schemes
from fedbench.reports.table.claims import Verdict
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from fedbench.partitions import Partition
    from fedbench.store import Artifact

#: What a kind draws in a panel.
Marks = TypeVar("Marks")


@dataclass(frozen=True, eq=False)
class Panel(Generic[Marks]):
    """One panel: what its kind draws, and where that comes from."""

    title: str
    about: Mapping[str, Any]  #: data set, partition, run, ..., by their names in the CSV and JSON
    marks: Marks


@dataclass(frozen=True, eq=False)
class Content(Generic[Marks]):
    """All panels of a figure."""

    panels: Sequence[Panel[Marks]]
    about: Mapping[str, Any] = field(default_factory=dict)  #: what goes for all of them, as in `Panel`
    claims: Sequence[Verdict] = ()  #: how it stands with what the paper says of the figure


def of_partition(partition: Partition, marks: Marks, title: str = "") -> Panel[Marks]:
    """A panel about a partition, which names itself where the figure has no title for it."""
    name = partition.spec.dataset.name
    about = {"dataset": name, "partition": partition.id}
    return Panel(title or f"{name}, {schemes.label(partition.spec)}", about, marks)


def of_run(run: Artifact, marks: Marks, title: str = "") -> Panel[Marks]:
    """A panel about a run, which names itself where the figure has no title for it."""
    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, partition = spec.setting, spec.setting.partition
    name = partition.dataset.name
    about = {"run": run.id, "budget": setting.budget, "dataset": name, "partition": partition.id}
    title = title or f"{run.provenance.get('title', spec.method)}, {name} {schemes.label(partition)}"
    return Panel(title, about, marks)
