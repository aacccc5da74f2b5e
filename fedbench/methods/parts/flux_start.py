"""FLUX before it clusters: what clients look at in warm-up, when that ends, and how they describe themselves."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench import models
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State, size_in_bytes
from fedbench.methods.parts.descriptor import (
    Box,
    Projector,
    common_box,
    descriptor,
    extent,
    label_free,
    projector,
    synthetic,
)
from fedbench.spec import Setting

#: The projection of latents in a client's state: mean [z] and axes [l, z]; the synthetic points under it [200, l].
MEAN, AXES, POINTS = "flux.mean", "flux.axes", "flux.points"
#: What the server remembers of the warm-up: validation accuracies [r], and the box of the latents [2, z].
ACCURACY, BOX = "flux.accuracy", "flux.box"
#: Warm-up ends after this share of all rounds at the latest, and not before round EARLIEST (FLUX, Eq. 14).
LATEST, EARLIEST = 0.8, 3
#: The largest latent that the released code assumes before it has seen any.
FIRST_TOP = 2.0


def look(model: Any, batch: Batch) -> Tensor:
    """[B, 1 + z]: whether the answer is right, and the latents.

    Images of many labels count as right by half, whatever the answer, as in the released code for CheXpert: so the
    accuracy never rises, and warm-up ends after round 3 (protocol 5.1).
    """
    h = model.latent(batch.x)
    if batch.y.dim() > 1:
        return torch.cat([torch.full_like(h[:, :1], 0.5), h], 1).float()
    right = model.from_latent(h).argmax(1) == batch.y
    return torch.cat([right.float()[:, None], h.float()], 1)


def inspect(client: Client) -> Generator[Collect, Any, None]:
    """The box: accuracy of the model that the client holds on its validation images (on its training images if it has
    none), and the extent of their latents, as its upload: as in the released code; the paper's box a coordinate would
    be of training images."""
    seen = yield Collect(look, split=client.validates_on)
    client.upload |= {
        "accuracy": seen.rows[:, 0].double().mean(),
        "extent": extent(seen.rows[:, 1:], f"client {client.index}"),
        "images": len(seen.rows),
    }


def remember(server: Server, cohort: Sequence[Client], per_coordinate: bool) -> list[float]:
    """Put a round's accuracy (a mean weighted by images) and the latents' box into the server's memory; the accuracies
    of all rounds so far."""
    told = [c.upload for c in cohort]
    images = sum(u["images"] for u in told)
    accuracy = sum(u["accuracy"].cpu() * u["images"] for u in told) / images
    so_far = server.memory.get(ACCURACY, torch.zeros(0, dtype=torch.float64)).cpu()  # where a resumed run has put it
    box = common_box([u["extent"] for u in told], per_coordinate)
    server.memory |= {ACCURACY: torch.cat([so_far, accuracy.view(1)]), BOX: torch.stack([*box])}
    return server.memory[ACCURACY].tolist()


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


def begin(
    server: Server,
    federation: Federation,
    setting: Setting,
    components: int,
    start: int,
    per_coordinate: bool = False,
) -> None:
    """Remember the box that the released code begins with, where it is needed: for a clustering in the first round,
    which projects by it, and to count the bytes of a box a coordinate."""
    if start != 1 and not per_coordinate:
        return
    network = models.build(setting.model, shape=federation.shape, classes=federation.classes, seed=0)
    height, width, channels = federation.shape
    with torch.no_grad():
        low = torch.zeros_like(network.eval().latent(torch.zeros(1, channels, height, width))[0])
    server.memory[BOX] = torch.stack([low, low + FIRST_TOP]).to(federation.images.device)
    if start == 1:
        fit(server, components)


def fit(server: Server, components: int) -> None:
    """Make the projection from the box that the server remembers."""
    box = Box(*server.memory[BOX])
    points = synthetic(box)
    how = projector(points, components)
    found = {MEAN: how.mean, AXES: how.axes, POINTS: how(points)}
    server.memory |= {name: t.float().to(box.low.device) for name, t in found.items()}


def projection(server: Server) -> State:
    """What a client must know to describe itself, beside the model. It draws the points itself: it is sent a box."""
    return {name: server.memory[name] for name in (MEAN, AXES, POINTS)}


def reduced(model: Any, batch: Batch) -> Tensor:
    """[B, l]: the latents under the projection."""
    how = Projector(batch.extras[MEAN], batch.extras[AXES])
    latents: Tensor = model.latent(batch.x).float()
    return (latents - how.mean) @ how.axes.T


def describe(client: Client, split: str = "train") -> Generator[Collect, Any, tuple[Tensor, Tensor]]:
    """(the client's descriptor [2 (U + 1) l] by the model that it holds, the reduced latents [n, l] behind it); of
    images without labels the descriptor's first entries [2 l]."""
    extras = {name: client.state[name] for name in (MEAN, AXES)}
    rows, labels = yield Collect(reduced, extras=extras, split=split)
    who = f"client {client.index}"
    if split == "test":
        return label_free(rows, who), rows
    return descriptor(rows, labels, len(client.class_counts), who), rows


def traffic(server: Server, components: int, regroups: bool, per_coordinate: bool = False) -> tuple[int, int]:
    """(bytes up, bytes down) of a client in a round: the model; in warm-up an accuracy and the bounds of the latents;
    when clients are grouped a descriptor, in a later grouping instead of the model. What draws the projection is a box
    of so many numbers, sent once."""
    model = size_in_bytes(server.shared)
    if MEAN not in server.memory:
        bounds = 2 * server.memory[BOX].shape[1] if per_coordinate else 1
        return model + 8 + 4 * bounds, model
    tells = 4 * 2 * (len(server.shared["head.bias"]) + 1) * components if regroups or not server.models else 0
    return (0 if regroups else model) + tells, model
