"""FLUX's descriptor of a client: two moments of its projected latents, over all images and within each class.

Shapes: K clients, n images, U classes, z latents of an image, l projected ones. All in float64. Steps S1 to S4 are
those of the paper's Sec. C.1 (Fenoglio et al., NeurIPS 2025); "released" means the authors' code where it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbench.core.federation import task_of
from fedbench.errors import DivergedError, FedbenchError

#: Synthetic points that the projector is fitted to, and the seed that all clients draw them from.
POINTS, SEED = 200, 1
#: The released code's upper bound, as a multiple of the largest latent.
MARGIN = 1.02
#: What stands for the moments of a class with fewer than LEAST images.
MISSING, LEAST = -1.0, 2


@dataclass(frozen=True)
class Bounds:
    """Of latents, and so of the synthetic points: lower and upper bound [z]."""

    low: Tensor
    high: Tensor

    @property
    def stacked(self) -> Tensor:
        """Both [2, z]."""
        return torch.stack([self.low, self.high])


def extent(latents: Tensor, who: str = "a client") -> Bounds:
    """A client's smallest and largest value of each coordinate, from latents [n, z] (step S1).

    Raises FedbenchError if there are none, or NaN or infinite ones.
    """
    if not len(latents):
        raise _no_images(who)
    both = torch.stack([latents.amin(0), latents.amax(0)])  # which NaN and infinite values reach
    return Bounds(*_checked(both, who))


def common_bounds(extents: Sequence[Bounds]) -> Bounds:
    """The bounds of all clients (paper): per coordinate from the smallest to the largest value."""
    return Bounds(torch.stack([e.low for e in extents]).amin(0), torch.stack([e.high for e in extents]).amax(0))


def cube(top: Tensor, size: int) -> Bounds:
    """The bounds 0 and the same `top` [] of each of `size` = z coordinates (released)."""
    return Bounds(torch.zeros(size).to(top), top.repeat(size))


def synthetic(bounds: Bounds) -> Tensor:
    """The 200 points [200, z] drawn uniformly between the bounds, the same for everyone (step S2); on the host.

    They are the released code's, from NumPy's legacy generator: other points have other axes, whose offsets weigh more
    in the scaled blocks of means than what tells clients apart.
    """
    low, high = bounds.low.double().cpu(), bounds.high.double().cpu()
    return low + (high - low) * torch.from_numpy(np.random.RandomState(SEED).random_sample((POINTS, len(low))))


class Projector(NamedTuple):
    """z to l: the first l principal axes [l, z] of the synthetic points about their mean [z]; no whitening."""

    mean: Tensor
    axes: Tensor

    def __call__(self, latents: Tensor) -> Tensor:
        """Projected latents [n, l], float64, where the latents lie."""
        mean, axes = self.mean.to(latents.device), self.axes.to(latents.device)
        return latents.double() @ axes.T - axes @ mean


def projector(points: Tensor, width: int) -> Projector:
    """The projector onto `width` = l axes of these points [200, z] (step S2), by a full singular value decomposition.

    An axis' sign makes its largest entry positive, so that everybody has the same. Raises FedbenchError if the
    points have fewer axes.
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
    """The descriptor [2 (U + 1) l] of projected latents [n, l] (step S3): mu_x, sigma_x, all mu_u, all sigma_u.

    sigma is the standard deviation of each coordinate, dividing by the count. `labels` are classes [n], or 0 and 1
    [n, U] where an image may have several labels; class u then is all images whose label u is 1. A class with fewer
    than 2 images has -1 in all of its entries. Raises FedbenchError for no images and for NaN or infinite latents.
    """
    rows = _checked(projected, who)
    members = task_of(labels).members(labels, classes)
    everyone = torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
    mean, deviation, counts = _moments(rows, torch.cat([everyone, members.to(rows)], 1))
    enough = counts >= LEAST
    enough[0] = True  # all images together, be it one
    mean, deviation = torch.where(enough, mean, MISSING), torch.where(enough, deviation, MISSING)
    return torch.cat([t.flatten() for t in (mean[:1], deviation[:1], mean[1:], deviation[1:])])


def label_free(projected: Tensor, who: str = "a client") -> Tensor:
    """The first 2 l entries of the descriptor, d' = (mu_x, sigma_x), which need no labels; errors as `descriptor`."""
    rows = _checked(projected, who)
    mean, deviation, _ = _moments(rows, torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device))
    return torch.cat([mean.flatten(), deviation.flatten()])


def _moments(rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [G, l], standard deviation [G, l] and count [G, 1] of the rows [n, l] of each group, from 0 and 1 [n, G].

    One product for all groups; about the overall mean, so that the difference of squares loses little.
    """
    origin = rows.mean(0)
    centred = rows - origin
    counts = members.sum(0)[:, None]
    sums = members.T @ torch.cat([centred, centred.square()], 1)
    mean, square = (sums / counts.clamp(min=1)).chunk(2, 1)
    return mean + origin, (square - mean.square()).clamp(min=0).sqrt(), counts


def _checked(latents: Tensor, who: str) -> Tensor:
    """In float64, if there are any and all are finite."""
    if not len(latents):
        raise _no_images(who)
    if not bool(latents.isfinite().all()):
        raise DivergedError(
            f"the latents of {who} hold NaN or infinite values: the model has diverged", "lower the learning rate"
        )
    return latents.double()


def _no_images(who: str) -> FedbenchError:
    return FedbenchError(f"{who} has no images to describe", "give every client images in each of its splits")
