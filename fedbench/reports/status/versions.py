"""Whether a run is of another version than today's: of its method, the trainer, its network, partitioner or images.

Versions are whole numbers that stand beside what they are of, and in every spec. One is raised when its results change,
which the golden predictions of the tests find out (tests/golden). So a change of the code that changes no number makes
no number stale.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedbench import declared, methods, models
from fedbench.data.locate import VERSION as READERS
from fedbench.partitions import schemes
from fedbench.specs import RunSpec, Setting


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
