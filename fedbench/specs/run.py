"""One training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fedbench.specs.base import Plain, Spec, coerce, require
from fedbench.specs.setting import Setting


@dataclass(frozen=True)
class RunSpec(Spec):
    """One training run: a method with its hyper-parameters in a setting."""

    kind: ClassVar[str] = "run"
    setting: Setting
    method: str
    params: Mapping[str, Plain] = field(default_factory=dict)  #: every one, defaults included (but for `later` ones)
    method_version: int = 1
    source: str | None = None  #: SHA-256 of the file of a method that is not fedbench's own

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.params:
            require(isinstance(name, str), f"RunSpec.params: a hyper-parameter's name cannot be {name!r}")
        params = {name: coerce(f"hyper-parameter {name}", Plain, value) for name, value in self.params.items()}
        object.__setattr__(self, "params", params)

    @property
    def but_for_seeds(self) -> RunSpec:
        """The same for runs that differ in nothing but the seeds of run, partition and initial weights."""
        partition = replace(self.setting.partition, seed=0)
        return replace(self, setting=replace(self.setting, seed=0, init_seed=None, partition=partition))

    def __hash__(self) -> int:
        return hash(self.id)
