"""FLUX's descriptor of a client: two moments of its projected latents, over all images and within each class; and the
scaling of descriptors by block.

Shapes: K clients, n images, U classes, z latents of an image, l projected ones. All in float64. Steps S1 to S4 are
those of the paper's Sec. C.1 (Fenoglio et al., NeurIPS 2025); "released" is the authors' code where it differs.

A descriptor consists of blocks of l entries: mu_x, sigma_x, then U blocks mu_u, then U blocks sigma_u. Source of the
scaling: the released code; the paper does not mention one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.task import task_of
from fedbench.errors import DivergedError, FedbenchError

Floats = npt.NDArray[np.float64]

#: The moments in the descriptor's order.
MOMENTS = ("mu_x", "sigma_x", "mu_u", "sigma_u")


@dataclass(frozen=True)
class Scaling:
    """The smallest and largest value of each block, over clients and coordinates, in the first descriptors that were
    clustered: [B] float64 each. The scaling maps each block to [0, 1], so it preserves relative sizes within a block,
    and all blocks have equal weight. The -1 of missing classes counts as a value."""

    low: Tensor
    high: Tensor

    @classmethod
    def fit(cls, descriptors: Floats, width: int) -> Scaling:
        """Fit the scaling to descriptors [K, B l] with blocks of `width` = l entries."""
        blocks = _blocks(descriptors, width)
        return cls(torch.from_numpy(blocks.min((0, 2))), torch.from_numpy(blocks.max((0, 2))))

    def apply(self, descriptors: Floats, width: int) -> Floats:
        """Scale descriptors [..., B' l] by their first B' blocks; values outside of [0, 1] are not clipped, and a
        constant block becomes 0."""
        blocks = _blocks(descriptors, width)
        low, high = (side.cpu().numpy()[: blocks.shape[-2], None] for side in (self.low, self.high))
        span = high - low
        scaled: Floats = np.divide(blocks - low, span, out=np.zeros_like(blocks), where=span > 0)
        return scaled.reshape(descriptors.shape)


def entries(moments: Collection[str], width: int, classes: int) -> npt.NDArray[np.int64]:
    """Return the positions of these moments in a descriptor with l = `width` and `classes` classes, in its order (the
    ablation of Table 66)."""
    owner = np.repeat(np.arange(4), np.array([1, 1, classes, classes]) * width)
    return np.flatnonzero(np.isin(owner, [MOMENTS.index(moment) for moment in moments]))


def _blocks(descriptors: Floats, width: int) -> Floats:
    """Reshape [..., B l] to [..., B, l]."""
    return np.asarray(descriptors, np.float64).reshape(*descriptors.shape[:-1], -1, width)


#: Number of synthetic points to which the projector is fitted, and the seed with which all clients draw them.
POINTS, SEED = 200, 1
#: The released code's upper bound, as a multiple of the largest latent.
MARGIN = 1.02
#: The value of all moments of a class with fewer than LEAST images.
MISSING, LEAST = -1.0, 2


@dataclass(frozen=True)
class Bounds:
    """Lower and upper bounds [z] of latents, and so of the synthetic points."""

    low: Tensor
    high: Tensor


def extent(latents: Tensor, who: str = "a client") -> Bounds:
    """Return a client's smallest and largest value of each coordinate, from latents [n, z] (step S1).

    Raises FedbenchError if there are no latents, or if some are NaN or infinite.
    """
    if not len(latents):
        raise _no_images(who)
    both = torch.stack([latents.amin(0), latents.amax(0)])  # NaN and infinite values propagate into these
    return Bounds(*_checked(both, who))


def common_bounds(extents: Sequence[Bounds]) -> Bounds:
    """Return the common bounds of all clients (paper): the smallest and largest value of each coordinate."""
    return Bounds(torch.stack([e.low for e in extents]).amin(0), torch.stack([e.high for e in extents]).amax(0))


def cube(top: Tensor, size: int) -> Bounds:
    """Return bounds from 0 to the same `top` [] for each of `size` = z coordinates (released)."""
    return Bounds(torch.zeros(size).to(top), top.repeat(size))


def synthetic(bounds: Bounds) -> Tensor:
    """Draw 200 points [200, z] uniformly between the bounds, the same for all clients (step S2); on the CPU.

    They match the released code's points, from NumPy's legacy generator. Other points would give other axes with other
    offsets, which in the scaled blocks of means outweigh the differences between clients.
    """
    low, high = bounds.low.double().cpu(), bounds.high.double().cpu()
    return low + (high - low) * torch.from_numpy(np.random.RandomState(SEED).random_sample((POINTS, len(low))))


class Projector(NamedTuple):
    """Map z to l coordinates: the first l principal axes [l, z] of the synthetic points with mean [z]; no whitening."""

    mean: Tensor
    axes: Tensor

    def __call__(self, latents: Tensor) -> Tensor:
        """Project latents to [n, l], float64, on their device."""
        mean, axes = self.mean.to(latents.device), self.axes.to(latents.device)
        return latents.double() @ axes.T - axes @ mean


def projector(points: Tensor, width: int) -> Projector:
    """Fit the projector onto `width` = l axes of the points [200, z] (step S2), by a full singular value decomposition.

    The sign of each axis makes its largest entry positive, so all clients get the same axes. Raises FedbenchError if
    the points have fewer axes.
    """
    axes_there = min(len(points) - 1, points.shape[1])
    if not 1 <= width <= axes_there:
        raise FedbenchError(
            f"cannot project latents to {width} values: {len(points)} synthetic points of {points.shape[1]} values "
            f"have {axes_there} principal axes",
            f"take 1 to {axes_there}",
        )
    x = points.double().cpu()
    mean = x.mean(0)
    axes = torch.linalg.svd(x - mean, full_matrices=False).Vh[:width]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return Projector(mean, (axes * largest.sign()).contiguous())


def descriptor(projected: Tensor, labels: Tensor, classes: int, who: str = "a client") -> Tensor:
    """Compute the descriptor [2 (U + 1) l] of projected latents [n, l] (step S3): mu_x, sigma_x, all mu_u, all sigma_u.

    sigma is the standard deviation of each coordinate, dividing by the count. `labels` are classes [n], or 0 and 1
    [n, U] for multi-label images; class u then consists of all images with label u. A class with fewer than 2 images
    has -1 in all of its entries. Raises FedbenchError for no images and for NaN or infinite latents.
    """
    rows = _checked(projected, who)
    members = task_of(labels).members(labels, classes)
    everyone = torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
    mean, deviation, counts = _moments(rows, torch.cat([everyone, members.to(rows)], 1))
    enough = counts >= LEAST
    enough[0] = True  # the moments of all images exist even for a single image
    mean, deviation = torch.where(enough, mean, MISSING), torch.where(enough, deviation, MISSING)
    return torch.cat([t.flatten() for t in (mean[:1], deviation[:1], mean[1:], deviation[1:])])


def label_free(projected: Tensor, who: str = "a client") -> Tensor:
    """Compute the first 2 l entries of the descriptor, d' = (mu_x, sigma_x), without labels; errors as `descriptor`."""
    rows = _checked(projected, who)
    mean, deviation, _ = _moments(rows, torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device))
    return torch.cat([mean.flatten(), deviation.flatten()])


def _moments(rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean [G, l], standard deviation [G, l] and count [G, 1] of the rows [n, l] of each group, from 0 and 1
    memberships [n, G].

    One matrix product serves all groups. Rows are centred first, which limits cancellation in the difference of
    squares.
    """
    origin = rows.mean(0)
    centred = rows - origin
    counts = members.sum(0)[:, None]
    sums = members.T @ torch.cat([centred, centred.square()], 1)
    mean, square = (sums / counts.clamp(min=1)).chunk(2, 1)
    return mean + origin, (square - mean.square()).clamp(min=0).sqrt(), counts


def _checked(latents: Tensor, who: str) -> Tensor:
    """Return the latents in float64; raise an error if there are none or some are not finite."""
    if not len(latents):
        raise _no_images(who)
    if not bool(latents.isfinite().all()):
        raise DivergedError(
            f"the latents of {who} hold NaN or infinite values: the model has diverged", "lower the learning rate"
        )
    return latents.double()


def _no_images(who: str) -> FedbenchError:
    return FedbenchError(f"{who} has no images to describe", "give every client images in each of its splits")
