"""How FLUX's clients describe themselves when they are asked to, and what the server makes of the descriptors."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, Collect, Context
from fedbench.core.server import Server
from fedbench.methods.parts.descriptor import (
    Bounds,
    Projector,
    cube,
    descriptor,
    label_free,
    projector,
    synthetic,
)
from fedbench.methods.parts.phases import Described, Scaling
from fedbench.methods.parts.scaling import MOMENTS, Floats, Scaler, entries

#: A projection's tensors for a Collect: mean [z] and axes [l, z].
MEAN, AXES = "flux.mean", "flux.axes"
#: The bounds [2, z] that everybody begins with, by their name in the state: a constant, which nobody sends.
FIRST_BOUNDS = "flux.bounds"
#: The largest latent that the released code assumes before any client has reported one.
FIRST_TOP = 2.0


@dataclass(frozen=True)
class Describe:
    """The server's request to a client: to describe itself by the model that it is sent, with the projection that
    everybody draws from these bounds, and then to train the model or not."""

    bounds: Bounds
    trains: bool


@dataclass(frozen=True)
class Description:
    """The client's answer: its descriptor [2 (U + 1) l] float64."""

    descriptor: Tensor


class Projection(NamedTuple):
    """What everybody draws from the same bounds: mean [z], axes [l, z], the synthetic points under them [200, l];
    float32."""

    mean: Tensor
    axes: Tensor
    points: Tensor


def first_bounds(model: nn.Module, context: Context) -> Bounds:
    """The bounds of latents [z] that the released code begins with."""
    height, width, channels = context.shape
    trains = model.training
    with torch.no_grad():
        latents: Tensor = model.eval().latent(torch.zeros(1, channels, height, width))  # type: ignore[operator]
    model.train(trains)
    return cube(torch.tensor(FIRST_TOP), latents.shape[1])


def projection(bounds: Bounds, components: int) -> Projection:
    """The projection that a client draws from the bounds, on the host: computed once for all clients of this
    process."""
    return _projection(*(side.double().cpu().numpy().tobytes() for side in (bounds.low, bounds.high)), components)


@lru_cache(maxsize=16)
def _projection(low: bytes, high: bytes, components: int) -> Projection:
    points = synthetic(Bounds(*(torch.from_numpy(np.frombuffer(side, np.float64).copy()) for side in (low, high))))
    how = projector(points, components)
    return Projection(how.mean.float(), how.axes.float(), how(points).float())


def reduced(model: Any, batch: Batch) -> Tensor:
    """[B, l]: the latents under the projection."""
    how = Projector(batch.extras[MEAN], batch.extras[AXES])
    latents: Tensor = model.latent(batch.x).float()
    return (latents - how.mean) @ how.axes.T


def describe(
    client: Client, bounds: Bounds, components: int, split: str = "train"
) -> Generator[Collect, Any, tuple[Tensor, Tensor]]:
    """(the client's descriptor [2 (U + 1) l] by the model that it holds, the reduced latents [n, l] behind it); of
    images without labels the descriptor's first entries [2 l]."""
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
    """The cohort's scaled descriptors [K, L], which the server remembers; the first ones fit the scaling."""
    memory = server.memory
    descriptors = torch.stack([c.upload.descriptor for c in cohort]).cpu().numpy()
    if memory.scaling is None:
        scaler = Scaler.fit(descriptors, width)
        memory.scaling = Scaling(torch.from_numpy(scaler.low), torch.from_numpy(scaler.high))
    rows = scaled(memory.scaling, descriptors, width, server.context.classes, moments)
    memory.described = Described(t, torch.tensor([c.index for c in cohort]), torch.from_numpy(rows))
    return rows


def scaled(by: Scaling, descriptors: Floats, width: int, classes: int, moments: Collection[str] = MOMENTS) -> Floats:
    """The entries of these moments of descriptors [P, L], or of their label-free first entries, under the scaling."""
    scaler = Scaler(by.low.cpu().numpy(), by.high.cpu().numpy(), width)
    positions = entries(moments, width, classes)
    return scaler.apply(np.asarray(descriptors, np.float64))[:, positions[positions < descriptors.shape[1]]]


def last_grouping(server: Server) -> tuple[Tensor, Tensor] | None:
    """(clients [K], their scaled descriptors [K, L]) of the last grouping, if there was one."""
    last = server.memory.described
    return last and (last.clients, last.descriptors)
