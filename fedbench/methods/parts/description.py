"""The phases of a run of FLUX (Fenoglio et al., NeurIPS 2025, Algorithm 1): how clients describe their data at the
server's request, and what the server remembers of it."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, Collect, Context
from fedbench.core.server import Server
from fedbench.errors import DivergedError
from fedbench.methods.parts.descriptor import (
    MOMENTS,
    Bounds,
    Floats,
    Projector,
    Scaling,
    cube,
    descriptor,
    entries,
    label_free,
    projector,
    synthetic,
)


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
class DescriptionMemory:
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
