"""Which images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.specs.base import Spec


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """Which images: the recipe's name, which of its sources, and what those files hold."""

    kind: ClassVar[str] = "dataset"
    name: str
    source: str  #: name of the recipe's source; the same data set may exist in exact and in re-encoded form
    content: str  #: digest of the source's checksums and of how the recipe reads them
    version: int = 1  #: of the readers

    def __post_init__(self) -> None:
        self._check_types()
