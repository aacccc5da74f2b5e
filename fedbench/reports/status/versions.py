"""Whether a run is of another version than today's: of its method, the trainer, its network, partitioner or images.

Versions are whole numbers that stand beside what they are of, and in every spec. One is raised when its results change,
which the golden predictions of the tests find out (tests/golden). So a change of the code that changes no number makes
no number stale; that other code made a run is said all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedbench import declared, methods, models
from fedbench.data.locate import VERSION as READERS
from fedbench.partitions import schemes
from fedbench.specs import RunSpec, Setting
from fedbench.store import Artifact
from fedbench.store.provenance import other_code
from fedbench.words import counted


def stale(spec: RunSpec) -> bool:
    """Whether a part of the run is of another version than today's."""
    return any(True for _ in other_versions(spec))


def other_versions(spec: RunSpec) -> Iterator[str]:
    """These parts. A user's own are known by their text and have no other version."""
    setting, part = spec.setting, spec.setting.partition
    ours = spec.source is None and spec.method in methods.names()
    if ours and spec.method_version != declared.of(spec.method).version:
        yield f"method {spec.method}"
    if setting.version != Setting.version:
        yield "trainer"
    if (setting.model_version or 1) != models.version(setting.model):
        yield f"network {setting.model}"
    if schemes.at_hand(part) and part.version != schemes.load(part.scheme).version:
        yield f"partitioner {part.scheme}"
    if part.dataset.version != READERS:
        yield f"images of {part.dataset.name}"


#: So many runs are named by their ids.
NAMED = 3


def by_other_code(runs: Iterable[Artifact]) -> list[str]:
    """A line on those of the runs that other code than today's made, if there are any.

    Shipped ones are none of these: a pack does not say which files made them, and 'fedbench results verify' tells.
    """
    ids = list(dict.fromkeys(run.id for run in runs if other_code(run.provenance)))
    if not ids:
        return []
    names = ", ".join(ids[:NAMED]) + (", ..." if ids[NAMED:] else "")
    was, them = ("was", "it") if len(ids) == 1 else ("were", "them")
    return [
        f"{counted(len(ids), 'run')} {was} made by other code than today's ({names}): "
        f"'fedbench train --again' makes {them} anew."
    ]
