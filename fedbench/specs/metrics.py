"""The accuracies of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.specs.base import Spec
from fedbench.specs.run import RunSpec


@dataclass(frozen=True)
class MetricsSpec(Spec):
    """The accuracies of one run, computed from its predictions."""

    kind: ClassVar[str] = "metrics"
    run: RunSpec
    version: int = 1

    def __post_init__(self) -> None:
        self._check_types()
