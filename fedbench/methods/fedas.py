"""FedAS: the shared body is aligned to each client before training; clients are weighted by Fisher information."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Gradient, Loss, Train
from fedbench.core.server import Server
from fedbench.core.state import weighted_mean
from fedbench.methods.base import (
    AFTER_LOCAL,
    BODY,
    HEAD,
    Method,
    cross_entropy,
    features,
    hyperparameter,
    score_hyperparameter,
)
from fedbench.methods.parts.prototypes import own_class_means
from fedbench.methods.parts.steps import check_split, remaining, steps_hyperparameter
from fedbench.specs import Setting


def fisher_trace(client: Client) -> Generator[Gradient, Any, float]:
    """Return the trace of the empirical Fisher information of the client's current model: the sum of squared gradient
    norms of the batches of one pass over its training images, in their stored order and in training mode."""
    state, images, size = client.state, client.pass_rows, client.setting.batch_size
    squares: list[Tensor] = []
    for first in range(0, images, size):
        answer = yield Gradient(cross_entropy, part=(first, min(first + size, images)))
        squares += [g.square().sum() for g in answer.gradient.values()]
    client.state = state  # undo the changes of running statistics by the gradients
    return float(torch.stack(squares).double().sum())


#: Prefix of the client's personal model as of the end of its last training.
PREVIOUS = "previous"


@dataclass(frozen=True)
class Information:
    """Message from a client, sent with its body: the trace of the empirical Fisher information of its model."""

    trace: float


@dataclass(frozen=True)
class FedAS(Method):
    """FedAS: bridging inconsistency in personalized federated learning (Yang, Huang and Ye, CVPR 2024).

    Parameter alignment: before the training a client trains the shared body on the distance of its features from p_k,
    the class means of the features of the client's previous body: the sum over a batch's classes of the mean squared
    distance, over images and features. Then body and personal head train together. Client synchronisation: bodies are
    averaged by F_i, the trace of the empirical Fisher information of the client's trained model: the squared norms of
    the loss's gradients, summed over the batches of one pass. With `score` after_local a client predicts, as in the
    authors' code, with its model of its last training; with after_aggregate with its head on the averaged body. The
    logged loss is that of the training.

    FedDRM's comparison uses `align_steps` of the local steps, 2 of 10, to move the backbone's features towards those of
    the client's previous model on the same images, without labels, and averages by training sizes: `align_steps` 2,
    `weigh_by` size and `score` after_aggregate.

    deviates: every client aligns the body that the server has averaged; the authors' code changes that one in place, so
    that a client starts from what those before it have aligned to themselves.

    deviates: the alignment has the setting's batches and weight decay, and F_i is of the network in training mode over
    whole passes; the authors' code has evaluation mode, no weight decay, and leaves short last batches out.
    """

    name = "fedas"
    title = "FedAS"
    personalised = True
    personal = HEAD
    personal_models = (PREVIOUS,)
    serves = (MEMBER,)
    takes_multi_label = False

    align_epochs: int = hyperparameter(1, "epochs of the alignment to class means", source="code", least=0)
    align_lr: float = hyperparameter(0.01, "learning rate of the alignment to class means", source="code", above=0)
    align_steps: int = steps_hyperparameter("FedDRM's alignment; 0: to class means", 2)
    weigh_by: str = hyperparameter(
        "fisher", "what clients count by", source="FedDRM, code: size", choices=("fisher", "size")
    )
    score: str = score_hyperparameter("code; FedDRM: after_aggregate")

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "align-steps", self.align_steps, setting)

    @property
    def answers_after_local(self) -> bool:
        return self.score == AFTER_LOCAL

    def local(self, client: Client) -> ClientUpdate:
        if self.align_steps:
            yield Train(to_previous, model=("", PREVIOUS), trains=("backbone.",), steps=self.align_steps)
        elif self.align_epochs:
            means = {"means": (yield from own_class_means(client, PREVIOUS))}
            yield Train(to_means, trains=BODY, epochs=self.align_epochs, lr=self.align_lr, momentum=0.0, extras=means)
        trained = yield Train(cross_entropy, steps=remaining(client.setting, self.align_steps))
        client.logged = trained.loss
        client.put(client.model(), PREVIOUS)
        if self.weigh_by == "fisher":
            client.upload = Information((yield from fisher_trace(client)))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        traces = [c.upload.trace for c in cohort] if self.weigh_by == "fisher" else []
        if sum(traces) > 0:
            server.shared = weighted_mean([c.state for c in cohort], traces, server.shared)
        else:
            super().aggregate(server, cohort, t)

    def personalise(self, client: Client) -> ClientUpdate | None:
        if self.answers_after_local:
            client.put(client.model(PREVIOUS))
        return None

    def relative_compute(self, setting: Setting) -> float:
        fisher = self.weigh_by == "fisher"
        if self.align_steps and setting.steps:  # one additional forward pass
            return 1 + self.align_steps / (3 * setting.steps) + fisher
        return 1 + (self.align_epochs + fisher) / (setting.epochs or 1)  # local steps count as an epoch


def to_means(model: Any, batch: Batch) -> Loss:
    """Return the mean squared distance to the class mean, summed over the classes of the batch."""
    distance = (features(model, batch).float() - batch.extras["means"][batch.y]).square().mean(1)
    class_size = (batch.y[:, None] == batch.y).sum(1)  # [B]: images of the same class in the batch
    return Loss((distance / class_size).sum())


def to_previous(models: Any, batch: Batch) -> Loss:
    """Return the mean squared distance of the backbone's features from those of the previous model."""
    ours, previous = (model.backbone(batch.x).float() for model in models)
    return Loss(F.mse_loss(ours, previous.detach()))
