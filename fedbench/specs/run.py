"""One training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fedbench.specs.base import Plain, Spec, coerce, require, to_json
from fedbench.specs.setting import Setting


@dataclass(frozen=True)
class RunSpec(Spec):
    """One training run: a method with its hyper-parameters in a setting."""

    kind: ClassVar[str] = "run"
    setting: Setting
    method: str
    params: Mapping[str, Plain] = field(default_factory=dict)  #: every one, defaults included (but for `later` ones)
    method_version: int = 1
    source: str | None = None  #: digest of the code of a method that is not fedbench's own (plugins/source.py)

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.params:
            require(isinstance(name, str), f"RunSpec.params: a hyper-parameter's name cannot be {name!r}")
        params = {name: coerce(f"hyper-parameter {name}", Plain, value) for name, value in self.params.items()}
        object.__setattr__(self, "params", params)

    @property
    def but_for_seeds(self) -> str:
        """Canonical JSON, the same for runs that differ in nothing but seeds: of run, partition, initial weights."""
        rest = {"method": self.method, "params": self.params, "version": self.method_version, "source": self.source}
        return to_json([self.setting.but_for_seeds, rest])

    def __hash__(self) -> int:
        return hash(self.id)
