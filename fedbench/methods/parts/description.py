"""FLUX's descriptors: how clients describe their data at the server's request, and how the server uses them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, Collect, Context
from fedbench.core.federation import task_of
from fedbench.core.server import Server
from fedbench.errors import DivergedError, FedbenchError

# -- scaling ---------------------------------------------------------------------------------------------------
# FLUX's scaling of descriptors by block, and the positions of each moment.
#
# A descriptor consists of blocks of l entries: mu_x, sigma_x, then U blocks mu_u, then U blocks sigma_u. Source: the
# released code; the paper does not mention a scaling.


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


# -- descriptor ------------------------------------------------------------------------------------------------
# FLUX's descriptor of a client: two moments of its projected latents, over all images and within each class.
#
# Shapes: K clients, n images, U classes, z latents of an image, l projected ones. All in float64. Steps S1 to S4 are
# those of the paper's Sec. C.1 (Fenoglio et al., NeurIPS 2025); "released" is the authors' code where it differs.


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


# -- phases ----------------------------------------------------------------------------------------------------
# The phases of a run of FLUX (Fenoglio et al., NeurIPS 2025, Algorithm 1), and the server's memory.


class Phase(IntEnum):
    """The phase of a run."""

    WARM_UP = 0  #: FedAvg, until Eq. 14 ends it
    DESCRIPTION = 1  #: the next round with a cohort, in which clients describe themselves and train
    GROUPED = 2  #: all later rounds
    REGROUPING = 3  #: a round of a drift, in which clients describe themselves again and do not train


@dataclass(frozen=True)
class Described:
    """The last clustering: its round, the clients [K] and their scaled descriptors [K, L]."""

    round: int
    clients: Tensor
    descriptors: Tensor


@dataclass
class Memory:
    """The server's memory."""

    phase: Phase
    bounds: Bounds  #: bounds of the latents that clients last reported
    accuracies: list[float] = field(default_factory=list)  #: validation accuracy of each warm-up round
    scaling: Scaling | None = None
    described: Described | None = None


def phase_of(server: Server, t: int) -> Phase:
    """Return the phase of the current round t."""
    phase: Phase = server.memory.phase
    drifts = server.context.setting.drifts or ()
    return Phase.REGROUPING if phase == Phase.GROUPED and t in drifts else phase


# -- description -----------------------------------------------------------------------------------------------


#: Names of a projection's tensors in a Collect: mean [z] and axes [l, z].
MEAN, AXES = "flux.mean", "flux.axes"
#: Name in the state of the initial bounds [2, z], a constant that is never sent.
FIRST_BOUNDS = "flux.bounds"
#: The largest latent that the released code assumes before clients have reported theirs.
FIRST_TOP = 2.0


@dataclass(frozen=True)
class Describe:
    """The server's request that a client describe itself, with the received model and the projection that follows from
    these bounds, and then train the model if `trains`."""

    bounds: Bounds
    trains: bool


@dataclass(frozen=True)
class Description:
    """The client's reply: its descriptor [2 (U + 1) l] float64."""

    descriptor: Tensor


class Projection(NamedTuple):
    """The projection that follows from given bounds: mean [z], axes [l, z], projected synthetic points [200, l];
    float32."""

    mean: Tensor
    axes: Tensor
    points: Tensor


def first_bounds(model: nn.Module, context: Context) -> Bounds:
    """Return the released code's initial bounds of latents [z]."""
    height, width, channels = context.shape
    trains = model.training
    with torch.no_grad():
        latents: Tensor = model.eval().latent(torch.zeros(1, channels, height, width))  # type: ignore[operator]
    model.train(trains)
    return cube(torch.tensor(FIRST_TOP), latents.shape[1])


def projection(bounds: Bounds, components: int) -> Projection:
    """Return the projection that a client derives from the bounds, on the CPU; cached for all clients of this
    process."""
    return _projection(*(side.double().cpu().numpy().tobytes() for side in (bounds.low, bounds.high)), components)


@lru_cache(maxsize=16)
def _projection(low: bytes, high: bytes, components: int) -> Projection:
    points = synthetic(Bounds(*(torch.from_numpy(np.frombuffer(side, np.float64).copy()) for side in (low, high))))
    how = projector(points, components)
    return Projection(how.mean.float(), how.axes.float(), how(points).float())


def reduced(model: Any, batch: Batch) -> Tensor:
    """[B, l]: the projected latents."""
    how = Projector(batch.extras[MEAN], batch.extras[AXES])
    latents: Tensor = model.latent(batch.x).float()
    return (latents - how.mean) @ how.axes.T


def describe(
    client: Client, bounds: Bounds, components: int, split: str = "train"
) -> Generator[Collect, Any, tuple[Tensor, Tensor]]:
    """Return the client's descriptor [2 (U + 1) l] under its current model, and the projected latents [n, l]; for
    images without labels only the descriptor's first entries [2 l]."""
    how, device = projection(bounds, components), client.context.device
    extras = {MEAN: how.mean.to(device), AXES: how.axes.to(device)}
    rows, labels = yield Collect(reduced, extras=extras, split=split)
    who = f"client {client.index}"
    if split == "test":
        return label_free(rows, who), rows
    return descriptor(rows, labels, client.context.classes, who), rows


def remember(
    server: Server, cohort: Sequence[Client], t: int, width: int, moments: Collection[str] = MOMENTS
) -> Floats:
    """Scale the cohort's descriptors [K, L] and store them in the server's memory; the first call fits the scaling."""
    memory = server.memory
    descriptors = torch.stack([c.upload.descriptor for c in cohort]).cpu().numpy()
    memory.scaling = memory.scaling or Scaling.fit(descriptors, width)
    rows = scaled(memory.scaling, descriptors, width, server.context.classes, moments)
    memory.described = Described(t, torch.tensor([c.index for c in cohort]), torch.from_numpy(rows))
    return rows


def scaled(by: Scaling, descriptors: Floats, width: int, classes: int, moments: Collection[str] = MOMENTS) -> Floats:
    """Scale descriptors [P, L], or their label-free first entries, and select the entries of these moments. Raises
    DivergedError for NaN or infinite ones."""
    if not np.isfinite(descriptors).all():
        bad = np.flatnonzero(~np.isfinite(descriptors).all(1)).tolist()
        raise DivergedError(f"descriptors {bad} hold NaN or infinite values: a model or its noise is out of bounds")
    positions = entries(moments, width, classes)
    return by.apply(descriptors, width)[:, positions[positions < descriptors.shape[1]]]
