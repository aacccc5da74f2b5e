"""Runs that diverged, as packs hold them: a table that chooses values must know that these are out of the question."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from fedbench.errors import FedbenchError
from fedbench.specs import RunSpec


@dataclass(frozen=True)
class Failure:
    """A run that diverged, and why it ended."""

    spec: RunSpec
    reason: str

    @property
    def id(self) -> str:
        return self.spec.id


def to_json(failures: Iterable[Failure]) -> bytes:
    """The same failures are the same bytes."""
    each = {failure.id: {"spec": failure.spec.to_dict(), "reason": failure.reason} for failure in failures}
    return json.dumps(each, sort_keys=True, separators=(",", ":")).encode()


def from_json(text: bytes) -> list[Failure]:
    """Raises ValueError for what `to_json` has not written."""
    try:
        failures = [Failure(RunSpec.shared(one["spec"]), str(one["reason"])) for one in json.loads(text).values()]
    except (AttributeError, KeyError, TypeError, FedbenchError) as error:
        raise ValueError(f"a run that diverged cannot be read: {error}") from error
    return failures
