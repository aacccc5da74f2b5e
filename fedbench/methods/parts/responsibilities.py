"""Mixtures of models that all clients share: whose images are whose, and M weighted trainings.

Shapes: M models, n training images of a client, K classes. A client's pi [M] float64 is its share in each model; q
[n, M] float64, the responsibilities, say how far each of its images belongs to each.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Collect, Loss, Train
from fedbench.core.network import OfEach
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.clustered import (
    GivenCount,
    choice_cost,
    each_model,
    expected_groups,
    fresh_models,
    losses,
    mixture,
    names_of,
    shares_of,
    side_by_side,
)
from fedbench.specs import Setting

#: A client's pi, which it keeps to itself.
PI = "mixture.pi"


def even(count: int) -> State:
    """The pi that clients begin with."""
    return {PI: torch.full((count,), 1 / count, dtype=torch.float64)}


def posterior(pi: Tensor, costs: Tensor) -> Tensor:
    """q [n, M] proportional to pi_m exp(-cost_im), from pi [M] and costs [M, n]; rows sum to one."""
    return torch.softmax(pi.double().log() - costs.double().T, 1)


def expectation(
    client: Client, class_shares: Tensor | None = None, judged_on: str = "train"
) -> Generator[Collect, Any, tuple[Tensor, Tensor]]:
    """The E-step: the client's q from its pi and the losses of the models it was sent; pi becomes the mean of q.

    With class shares [M, K], exp(-loss) is divided by the share that the image's class has in the model, or where
    images have many labels by the geometric mean of its labels' shares. With `judged_on` validation a training image's
    losses are those of the held-back image at its position, which begin again as often as there are training images.
    Returns q and how many images of each class (or with each label) each model has, [M, K] float64.
    """
    pi = client.state[PI]
    if len(pi) == 1:  # everything belongs to the one model
        return torch.ones(client.n_train, 1, dtype=torch.float64, device=pi.device), client.class_counts[None].double()
    each = yield from each_model(client, len(pi), losses, "train")
    rows, y = each.rows, each.labels
    if judged_on == "validation":
        held_back = (yield from each_model(client, len(pi), losses, client.validates_on)).rows
        rows = held_back[torch.arange(len(rows), device=rows.device) % len(held_back)]
    costs = rows.T.double()
    if class_shares is not None:
        costs = costs + of_labels(class_shares.double().log(), y)
    q = posterior(pi, costs)
    client.state = {**client.state, PI: q.mean(0)}
    return q, q.T @ client.context.task.members(y, client.context.classes).double()


def of_labels(values: Tensor, y: Tensor) -> Tensor:
    """What [M, K] values say of each image's class [M, n], from classes [n]; with multi-label images [n, K], the
    mean over those that an image has, and 0 without any."""
    return values[:, y] if y.dim() == 1 else values @ y.double().T / y.sum(1).clamp(min=1)


def maximisation(client: Client, q: Tensor) -> ClientUpdate:
    """The M-step: train every model on all images, weighted by q and divided by the size of the batch.

    All models take their steps on the same batches, so that they can be computed side by side. The weights are not
    normalised within a batch, so a model that has a small share of the images takes small steps. What is logged is the
    models' cross-entropy, weighted by pi.
    """
    # As long as the largest client's, so that clients can be stacked.
    weights = torch.zeros(q.shape[1], max(client.n_train, *client.context.n_train), device=q.device)
    weights[:, : len(q)] = q.T
    extras = {"weight": weights, "share": client.state[PI].to(weights)}
    client.logged = (yield Train(weighted_losses, extras=extras, model=names_of(q.shape[1]))).loss


def weighted_losses(models: Any, batch: Batch) -> Loss:
    """The sum over models of the mean over the batch of weight times loss. `extras["weight"]` [M, >= n] are the
    client's images' weights; what is logged weighs the models' losses by `extras["share"]` [M] instead."""
    each = OfEach(losses)(models, batch)  # [B, M]
    weighted = (batch.extras["weight"][:, batch.position].T * each).mean(0).sum()
    return Loss(weighted, logged=each.mean(0) @ batch.extras["share"])


def answer_by_pi(client: Client, class_shares: Tensor | None = None, judged_on: str = "train") -> ClientUpdate:
    """Answer with the mixture of the models by the client's pi; a client that has learned none yet does so now."""
    pi = client.state[PI]
    if bool((pi == pi[0]).all()):
        yield from expectation(client, class_shares, judged_on)
    yield from mixture(client, client.state[PI])


@dataclass(frozen=True)
class Mixtures(GivenCount):
    """A method whose clients all share M models, side by side in the place of one network, each by its own pi."""

    takes_votes = False
    personal = (PI,)
    serves = (MEMBER, UNSEEN, UNLABELLED)

    judged_on: str = hyperparameter(
        "train", "images whose losses say whose a training image is; validation: those at the same positions",
        source="FLUX's copy of FedRC's code: validation", choices=("train", "validation"), later=True,
    )  # fmt: skip

    def start(self, server: Server) -> None:
        models = fresh_models(server, len(server.initial[PI]))
        rest = {name: t for name, t in server.shared.items() if name not in models[0]}
        server.shared = {**rest, **side_by_side(models)}

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        return {"clusters": float(len(server.initial[PI]))}

    def relative_compute(self, setting: Setting) -> float:
        """M trainings, and before them each model's answers."""
        count = self.clusters or expected_groups(setting)
        return count + choice_cost(count, setting)

    def class_shares_of(self, client: Client) -> Tensor | None:
        """What the E-step divides by (see `expectation`)."""
        return None

    def weights(self, server: Server) -> Tensor:
        """The sum of the clients' pi."""
        mixtures = [state[PI].cpu() for _, state in sorted(server.personal.items()) if PI in state]
        return shares_of(torch.stack(mixtures).sum(0) if mixtures else torch.zeros_like(server.initial[PI]).cpu())

    def personalise(self, client: Client) -> ClientUpdate | None:
        return super().personalise(client) or answer_by_pi(client, self.class_shares_of(client), self.judged_on)
