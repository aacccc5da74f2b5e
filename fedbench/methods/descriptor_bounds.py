"""FedAvg, then snapshots: compares FLUX's descriptors with Gaussians of images and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Context
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts.description import AXES, MEAN, first_bounds, reduced
from fedbench.methods.parts.descriptor import descriptor, projector, synthetic
from fedbench.rng import stream


@dataclass(frozen=True)
class Snapshot:
    """A client's reply (see `snapshot`)."""

    moments: Tensor


@dataclass
class Snapshots:
    """The server's memory: the snapshots of all rounds so far, and the client of each."""

    clients: list[int]
    moments: list[Tensor]


@dataclass(frozen=True)
class DescriptorBounds(Method):
    """FedAvg whose model stays as it is after some rounds and then describes its clients (FLUX, NeurIPS 2025, Table 4).

    After the warm-up no client trains. In each later round every client of the cohort draws `samples` random halves of
    its validation images and joins them. It sends FLUX's descriptor of them under the model, and mean and standard
    deviation of [pixels in 0 to 1; one-hot label] of the images themselves: a diagonal Gaussian, whose 2-Wasserstein
    distances the descriptors' distances should approximate. The run stores these snapshots instead of descriptors. A
    client's snapshots differ between rounds by the draws, and under drift also by its distribution.

    All latents are reduced by one projection: the axes that FLUX draws from the released code's first bounds, 0 and 2
    in each coordinate. Wider common bounds would give the same axes and only move the origin.

    deviates: neither the paper nor the authors' notebook behind it says of how many clients and rounds its 300
    snapshots are. The configuration beside the notebook has 20 clients and 20 rounds, which makes 15 rounds of
    snapshots after a warm-up of five.
    """

    name = "descriptor_bounds"
    title = "Descriptor bounds"
    version = 2
    personal = (MEAN, AXES)  # constants: all clients have them from the start, so they are never sent

    components: int = hyperparameter(10, "axes that latents are projected on", "l", "App. B", least=1)
    warm_up: float = hyperparameter(
        0.25, "share of the rounds that are FedAvg's, one at least; then the model stays as it is", above=0, below=1
    )
    samples: int = hyperparameter(3, "random halves of the validation images in a snapshot", least=1)

    def trains_until(self, rounds: int) -> int:
        """Return the last of `rounds` rounds in which clients train."""
        return max(1, int(self.warm_up * rounds))

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        how = projector(synthetic(first_bounds(model, context)), self.components)
        return {MEAN: how.mean.float(), AXES: how.axes.float()}

    def start(self, server: Server) -> None:
        server.memory = Snapshots([], [])

    def local(self, client: Client) -> ClientUpdate | None:
        return super().local(client) if client.round <= self.trains_until(client.rounds) else None

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        if t <= self.trains_until(server.context.setting.rounds):
            super().aggregate(server, cohort, t)

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t > self.trains_until(server.context.setting.rounds) and k == 0 else None

    def reply(self, client: Client) -> ClientUpdate:
        extras = {name: client.state[name] for name in (MEAN, AXES)}
        rows, labels = yield Collect(reduced_and_pixels, extras=extras, split=client.validates_on)
        rng = stream(client.setting.seed, "halves", client.round, client.index)
        half = max(1, len(rows) // 2)
        halves = np.concatenate([rng.permutation(len(rows))[:half] for _ in range(self.samples)])
        some = torch.from_numpy(halves).to(rows.device)
        client.upload = Snapshot(snapshot(rows[some], labels[some], self.components, client.context.classes))

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        of = server.memory
        server.memory = Snapshots(
            [*of.clients, *(c.index for c in cohort)], [*of.moments, *(c.upload.moments.cpu() for c in cohort)]
        )

    def described(self, server: Server) -> tuple[Tensor, Tensor] | None:
        of = server.memory
        return (torch.tensor(of.clients), torch.stack([m.cpu() for m in of.moments])) if of.clients else None


def reduced_and_pixels(model: Any, batch: Batch) -> Tensor:
    """[B, l + C H W]: the projected latents, and the pixels in 0 to 1."""
    return torch.cat([reduced(model, batch), (batch.x.float().flatten(1) + 1) / 2], 1)


def snapshot(rows: Tensor, labels: Tensor, width: int, classes: int) -> Tensor:
    """Return float32 [1 + L + 2 (P + U)] of images [n, l + P], reduced latents before pixels: the descriptor's length
    L, the descriptor [L] (`parts/descriptor.py`), and mean and standard deviation (dividing by n) of [pixels;
    one-hot label].

    `labels` are classes [n], or 0 and 1 [n, U] for multi-label images.
    """
    described = descriptor(rows[:, :width], labels, classes)
    joint = torch.cat([rows[:, width:].double(), task_of(labels).members(labels, classes).double()], 1)
    of_all = joint.mean(0), joint.std(0, correction=0)
    return torch.cat([described.new_tensor([len(described)]), described, *of_all]).float()
