"""FLUX's warm-up: what clients tell of the averaged model after each of its rounds, and when it ends (Eq. 14)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.core.client import Batch, Client, Collect
from fedbench.methods.parts.descriptor import MARGIN, Box, common_box, cube, extent
from fedbench.methods.parts.phases import Memory

#: Warm-up ends after this share of all rounds at the latest, and not before round EARLIEST (FLUX, Eq. 14).
LATEST, EARLIEST = 0.8, 3


@dataclass(frozen=True)
class Seen:
    """What a client tells: the model's accuracy [] float64 on so many validation images, and the extent float32 of
    their latents: the smallest and the largest value of each coordinate [z], or for a common box the largest of all."""

    accuracy: Tensor
    images: int
    low: Tensor | None
    high: Tensor


def look(model: Any, batch: Batch) -> Tensor:
    """[B, 1 + z]: whether the answer is right, and the latents.

    Images of many labels count as right by half, whatever the answer, as in the released code for CheXpert: so the
    accuracy never rises, and warm-up ends after round 3 (Eq. 14; flux/protocol.md#warm-up-with-many-labels).
    """
    h = model.latent(batch.x)
    if batch.y.dim() > 1:
        return torch.cat([torch.full_like(h[:, :1], 0.5), h], 1).float()
    right = model.from_latent(h).argmax(1) == batch.y
    return torch.cat([right.float()[:, None], h.float()], 1)


def inspect(client: Client, per_coordinate: bool = False) -> Generator[Collect, Any, Seen]:
    """What the client sees in the model that it holds, on its validation images (on its training images if it has
    none): as in the released code; the paper's box a coordinate would be of training images."""
    rows = (yield Collect(look, split=client.validates_on)).rows
    box = extent(rows[:, 1:], f"client {client.index}")
    accuracy = rows[:, 0].double().mean()
    low, high = box.low.float(), box.high.float()  # as the latents are
    return Seen(accuracy, len(rows), low, high) if per_coordinate else Seen(accuracy, len(rows), None, high.max())


def remember(memory: Memory, cohort: Sequence[Client]) -> None:
    """Put a round's accuracy (a mean weighted by images) and the latents' box into the server's memory."""
    views: list[Seen] = [c.upload for c in cohort]
    accuracy = sum(seen.accuracy.cpu() * seen.images for seen in views) / sum(seen.images for seen in views)
    memory.accuracies = [*memory.accuracies, float(accuracy)]
    boxes = [Box(seen.low, seen.high) for seen in views if seen.low is not None]
    top = MARGIN * torch.stack([seen.high.max() for seen in views]).max().double()
    memory.box = common_box(boxes) if boxes else cube(top, len(memory.box.low))


def warm_up_ends(
    accuracies: Sequence[float], t: int, rounds: int, threshold: float, first_slope: int = EARLIEST, start: int = 0
) -> bool:
    """Whether warm-up ends after round t, given the accuracies of the rounds that had a cohort (FLUX, Eq. 14).

    From round 3 on, as soon as the accuracy has risen by less than the threshold in a round (of those from
    `first_slope` on: A(first_slope) - A(first_slope - 1)); or when 80 % of all rounds are over, empty ones too. Where
    the round of the clustering is given (`start`), before that.
    """
    if start:
        return t >= start - 1
    r = len(accuracies)
    slopes = [accuracies[s - 1] - accuracies[s - 2] for s in range(first_slope, r + 1)]
    return (r >= EARLIEST and min(slopes, default=1.0) < threshold) or t >= LATEST * rounds
