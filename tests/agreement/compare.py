"""What every adapter hands back: largest differences, with their reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedbench.core.state import State
from fedbench.methods.agreement import Difference


class Adapter(Protocol):
    """A module of this folder that runs one project's code."""

    TITLE: str
    REPOSITORY: str  #: owner/name on GitHub
    CHANGES: Sequence[str]  #: what is changed in memory, so that the code runs beside ours
    #: Name -> options of ours without which our method follows another rule; a module may have none.
    OPTIONS: Mapping[str, str]

    def differences(self, folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
        """Import the checkout in a folder, and compare these methods of fedbench."""


def largest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest absolute difference of tensors by the same names; NaN counts as infinite."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    assert theirs, "nothing is compared"
    most = 0.0
    for name, a in ours.items():
        b = theirs[name]
        assert a.shape == b.shape, (name, tuple(a.shape), tuple(b.shape))
        gap = (a.double() - b.double()).abs()
        most = max(most, float(torch.nan_to_num(gap, nan=torch.inf).max())) if gap.numel() else most
    return most


def sharing(numbers: Sequence[int]) -> State:
    """Who shares a cluster [M, M], from the numbers of the clients' clusters, which are arbitrary."""
    each = torch.tensor(numbers)
    return {"all": (each[:, None] == each).double()}


@dataclass(frozen=True)
class OfBoth:
    """A method that a project and fedbench have, and its hyper-parameters in both."""

    ours: str
    theirs: str
    server: str  #: module and class
    hyper: dict[str, Any] = field(default_factory=dict)  #: ours
    arguments: dict[str, Any] = field(default_factory=dict)  #: theirs


@dataclass
class Against:
    """Collects the differences of one method on one case."""

    method: str
    theirs: str
    case: str
    condition: str = ""  #: a change of theirs without which there is a difference
    found: dict[str, float] = field(default_factory=dict)

    def see(self, quantity: str, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
        """Compare, and keep the quantity's largest difference so far."""
        self.found[quantity] = max(self.found.get(quantity, 0.0), largest(ours, theirs))

    def differences(self, reasons: Mapping[str, str]) -> Iterator[Difference]:
        """One a quantity; `reasons`: quantity -> why it is more than rounding, where it is."""
        for quantity, most in self.found.items():
            one = Difference(self.method, self.theirs, self.case, quantity, most, condition=self.condition)
            yield one if one.equal else replace(one, reason=reasons.get(quantity, ""))
