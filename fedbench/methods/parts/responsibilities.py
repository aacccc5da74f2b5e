"""Mixtures of models that all clients share: responsibilities of the models, and weighted training of all of them.

Shapes: M models, n training images of a client, K classes. A client's pi [M] float64 are its mixture weights;
q [n, M] float64, the responsibilities, are the probabilities that each image belongs to each model.
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
from fedbench.methods.base import FORWARD, hyperparameter
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

#: A client's pi, which is personal.
PI = "mixture.pi"


def even(count: int) -> State:
    """Return the initial pi of all clients."""
    return {PI: torch.full((count,), 1 / count, dtype=torch.float64)}


def posterior(pi: Tensor, costs: Tensor) -> Tensor:
    """Return q [n, M], proportional to pi_m exp(-cost_im), from pi [M] and costs [M, n]; each row sums to 1."""
    return torch.softmax(pi.double().log() - costs.double().T, 1)


def expectation(
    client: Client, class_shares: Tensor | None = None, judged_on: str = "train"
) -> Generator[Collect, Any, tuple[Tensor, Tensor]]:
    """Run the E-step: compute the client's q from its pi and the losses of the received models, and set pi to q's mean.

    With class shares [M, K], exp(-loss) is divided by the share of the image's class in the model, or for multi-label
    images by the geometric mean of its labels' shares. With `judged_on` validation a training image gets the losses of
    the validation image at the same position, and validation images repeat as often as needed. Returns q and the number
    of images of each class (or with each label) that each model has, [M, K] float64.
    """
    pi = client.state[PI]
    if len(pi) == 1:  # all images belong to the only model
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
    """Look up values [M, K] for each image's class, [M, n], from classes [n]; for multi-label images [n, K], average
    over the image's labels, with 0 for none."""
    return values[:, y] if y.dim() == 1 else values @ y.double().T / y.sum(1).clamp(min=1)


def maximisation(client: Client, q: Tensor) -> ClientUpdate:
    """Run the M-step: train every model on all images, weighted by q and divided by the batch size.

    All models use the same batches, so they can be computed in parallel. The weights are not normalised within a batch,
    so a model with a small share of the images takes small steps. The models' cross-entropy, weighted by pi, is logged.
    """
    # As long as the largest client's weights, so that clients can be stacked.
    weights = torch.zeros(q.shape[1], max(client.n_train, *client.context.n_train), device=q.device)
    weights[:, : len(q)] = q.T
    extras = {"weight": weights, "share": client.state[PI].to(weights)}
    client.logged = (yield Train(weighted_losses, extras=extras, model=names_of(q.shape[1]))).loss


def weighted_losses(models: Any, batch: Batch) -> Loss:
    """Return the sum over models of the batch's mean of weight times loss. `extras["weight"]` [M, >= n] are the weights
    of the client's images; for the log, `extras["share"]` [M] weights the models' losses instead."""
    each = OfEach(losses)(models, batch)  # [B, M]
    weighted = (batch.extras["weight"][:, batch.position].T * each).mean(0).sum()
    return Loss(weighted, logged=each.mean(0) @ batch.extras["share"])


def answer_by_pi(client: Client, class_shares: Tensor | None = None, judged_on: str = "train") -> ClientUpdate:
    """Predict with the models' mixture by the client's pi; a client without a learned pi runs the E-step first."""
    pi = client.state[PI]
    if bool((pi == pi[0]).all()):
        yield from expectation(client, class_shares, judged_on)
    yield from mixture(client, client.state[PI])


@dataclass(frozen=True)
class Mixtures(GivenCount):
    """A method whose clients share M models, held in one state, and mix them by a personal pi."""

    takes_votes = False
    personal = (PI,)
    serves = (MEMBER, UNSEEN, UNLABELLED)

    judged_on: str = hyperparameter(
        "train",
        "images whose losses say whose a training image is; validation: those at the same positions",
        source="FLUX's copy of FedRC's code: validation",
        choices=("train", "validation"),
        later=True,
    )

    def start(self, server: Server) -> None:
        models = fresh_models(server, len(server.initial[PI]))
        rest = {name: t for name, t in server.shared.items() if name not in models[0]}
        server.shared = {**rest, **side_by_side(models)}

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        return {"clusters": float(len(server.initial[PI]))}

    def relative_compute(self, setting: Setting) -> float:
        """Count M trainings, and the evaluation of each model before them."""
        count = self.clusters or expected_groups(setting)
        return count + choice_cost(count, setting)

    def class_shares_of(self, client: Client) -> Tensor | None:
        """Return the class shares of the E-step (see `expectation`)."""
        return None

    def weights(self, server: Server) -> Tensor:
        """Return the clients' mean pi."""
        mixtures = [state[PI].cpu() for _, state in sorted(server.personal.items()) if PI in state]
        return shares_of(torch.stack(mixtures).sum(0) if mixtures else torch.zeros_like(server.initial[PI]).cpu())

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        count = self.clusters or expected_groups(setting)
        return (count - 1) * n_test * FORWARD

    def personalise(self, client: Client) -> ClientUpdate | None:
        return super().personalise(client) or answer_by_pi(client, self.class_shares_of(client), self.judged_on)
