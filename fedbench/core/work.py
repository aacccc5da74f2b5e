"""What the executor keeps of a client while it is at work: its images, its draws, and the count of what was done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.state import State

#: The splits of a client's data.
SPLITS = ("train", "validation", "test")
#: The label that test images are given out with.
NO_LABEL = -1


def known(labels: Tensor, split: str) -> Tensor:
    """The labels of a split that anything outside of the evaluation may see."""
    return torch.full_like(labels, NO_LABEL) if split == "test" else labels


@dataclass
class Work:
    """A client's side of the executor. No method sees it."""

    federation: Federation
    plan: Plan
    rows: Tensor  #: [n] training images, as rows of the federation
    test_rows: Tensor  #: [m] test images
    validation_rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  #: [v] held back images
    losses: list[tuple[float, int]] = field(default_factory=list)  #: (mean loss, images) of each Train
    phase: int = 0  #: requests answered so far, but for Collect; keys the random streams
    collects: int = 0  #: Collects answered so far; they draw no batches, so the batches of Train stay the same
    seconds: float = 0.0  #: time spent on this client
    parts: dict[str, float] = field(default_factory=dict)  #: of it by part of the work: "network", and what was `timed`
    puts_by: Callable[[str], bool] | None = None  #: what of its state waits in host memory when it is not at work
    home: State = field(default_factory=dict)  #: its state where it waited, before it was fetched to the device
    momenta: State | None = None  #: what optimisers remember of the rounds so far; None where momentum does not live

    def rows_of(self, split: str, part: tuple[int, int] | None = None) -> Tensor:
        """Rows of the federation that are a split (one of SPLITS) of the client's data, or a part of it."""
        rows = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}[split]
        return rows if part is None else rows[slice(*part)]

    def images(self, split: str) -> Tensor:
        """[n, H, W, C] uint8 of a split."""
        rows = self.rows_of(split)
        return self.federation.images[rows if self.federation.image is None else self.federation.image[rows]]

    def labels(self, split: str) -> Tensor:
        """[n] int64 of a split, or with multi-label images [n, K]; NO_LABEL for test images."""
        return known(self.federation.labels[self.rows_of(split)], split)

    def strata(self) -> Tensor:
        """[n] int64: the stratum of each training image."""
        rows = self.rows
        return torch.from_numpy(self.federation.densities.strata[rows.cpu().numpy()]).to(rows.device)

    def counted(self, draws: bool) -> None:
        """Count a request, before it is answered: one that draws batches, or a Collect."""
        if draws:
            self.phase += 1
        else:
            self.collects += 1

    @property
    def first_loss(self) -> float:
        """The mean loss of the first Train."""
        return self.losses[0][0] if self.losses else 0.0

    @property
    def processed(self) -> int:
        """Training images processed so far this round."""
        return sum(n for _, n in self.losses)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the block's seconds as a part of the work."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.count(part, time.perf_counter() - started)

    def count(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the work."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds
