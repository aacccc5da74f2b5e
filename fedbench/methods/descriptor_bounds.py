"""FedAvg that measures what FLUX's descriptors leave out: snapshots of every client after every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate, Collect
from fedbench.core.context import Context
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts.description import AXES, MEAN, first_bounds, reduced
from fedbench.methods.parts.descriptor import projector, synthetic


@dataclass(frozen=True)
class Snapshot:
    """A client's reply: moments of its latents [(U + 1)(1 + l + l^2)] (see `snapshot`)."""

    moments: Tensor


@dataclass
class Snapshots:
    """What the server remembers: the snapshots of all rounds so far, and whose each is."""

    clients: list[int]
    moments: list[Tensor]


@dataclass(frozen=True)
class DescriptorBounds(Method):
    """FedAvg whose clients, after each round, send mean and covariance of their training images' latents (FLUX, NeurIPS
    2025, App. C.1, Table 4).

    FLUX's descriptors hold means and standard deviations of reduced latents. Here, after every round, the cohort also
    sends whole covariances under the averaged model, over all images and over each class: with them distances of
    descriptors can be compared with Wasserstein distances. Nothing else differs from FedAvg, and the run stores these
    snapshots in place of descriptors.

    Latents of all rounds and all runs are reduced by one projection, or there would be no distances between them: the
    axes FLUX draws from the released code's first bounds, 0 and 2 in each coordinate. With wider common bounds the axes
    are the same and only the origin moves.

    deviates: the paper says neither what its 44,850 pairs are nor how their latents are reduced. They are as many as
    300 snapshots have, of ten clients in ten rounds of three runs; a round's model is that after the server's step.
    """

    name = "descriptor_bounds"
    title = "Descriptor bounds"
    personal = (MEAN, AXES)  # constants: everyone has them from the beginning, nobody sends them

    components: int = hyperparameter(10, "axes that latents are projected on", "l", "App. B", least=1)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        how = projector(synthetic(first_bounds(model, context)), self.components)
        return {MEAN: how.mean.float(), AXES: how.axes.float()}

    def start(self, server: Server) -> None:
        server.memory = Snapshots([], [])

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t and k == 0 else None

    def reply(self, client: Client) -> ClientUpdate:
        extras = {name: client.state[name] for name in (MEAN, AXES)}
        rows, labels = yield Collect(reduced, extras=extras)
        client.upload = Snapshot(snapshot(rows, labels, len(client.class_counts)))

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        of = server.memory
        server.memory = Snapshots(
            [*of.clients, *(c.index for c in cohort)], [*of.moments, *(c.upload.moments.cpu() for c in cohort)]
        )

    def described(self, server: Server) -> tuple[Tensor, Tensor] | None:
        of = server.memory
        return (torch.tensor(of.clients), torch.stack([m.cpu() for m in of.moments])) if of.clients else None


def snapshot(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """[(U + 1)(1 + l + l^2)] of reduced latents [n, l]: of all images, then of each class, how many they are, their
    mean and their covariance (which divides by their number).

    `labels` are classes [n], or 0 and 1 [n, U] where an image may have many. Moments of no image are 0.
    """
    x = rows.double()
    members = task_of(labels).members(labels, classes)
    blocks = [x, *(x[members[:, u] == 1] for u in range(classes))]
    return torch.cat([_moments(block) for block in blocks]).float()


def _moments(x: Tensor) -> Tensor:
    mean = x.sum(0) / max(len(x), 1)
    centred = x - mean
    return torch.cat([x.new_tensor([len(x)]), mean, (centred.T @ centred / max(len(x), 1)).flatten()])
