"""FedDRM: the server routes each image to a client's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Context, Loss, Train
from fedbench.methods.base import Method, hyperparameter


@dataclass(frozen=True)
class FedDRM(Method):
    """Density-ratio model of the clients' marginals, profiled to a dual cross-entropy (FedDRM, ICLR 2026, Eq. 9).

    The network has a second branch that classifies the client of an image. The loss of a batch of client i is
    lambda CE(target, y) + (1 - lambda) CE(client, i). All tensors are averaged except the last target layer. An unseen
    image is routed to the client that the branch finds most probable, and that client's target head predicts.

    The client branch's softmax is the posterior under training proportions; its logit minus log n_i is the log
    density ratio (Theorem 2.2). Both routing rules are stored: `probability` (the paper's, headline) and
    `density_ratio` (prior removed, the official code's). They agree if clients have equal sizes.

    deviates: lambda is 0.8, as in the paper; the official configuration has 0.9.
    """

    name = "feddrm"
    title = "FedDRM"
    personalised = True
    routes = True
    serves = (MEMBER,)
    personal = ("head.",)
    takes_multi_label = False

    lambda_: float = hyperparameter(
        0.8, "weight of the target loss; the client loss has 1 - lambda", "λ", "Eq. 9, Sec. 3.2", above=0, most=1
    )

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        seed = int(torch.randint(2**31, ()))  # depends on the run's seed, because the trainer seeds this call
        model.client_branch = model.branch(context.clients, seed)  # type: ignore[operator]
        return model

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return the dual cross-entropy; only the target part is logged."""
        features = model.backbone(batch.x)
        target = F.cross_entropy(model.head(model.projection(features)).float(), batch.y)
        origin = batch.extras["client"].expand(len(batch.y))
        client = F.cross_entropy(model.client_branch(features).float(), origin)
        return Loss(self.lambda_ * target + (1 - self.lambda_) * client, logged=target)

    def local(self, client: Client) -> ClientUpdate:
        index = torch.tensor(client.index, device=client.class_counts.device)
        yield Train(self.loss, extras={"client": index})

    def route(self, model: Any, features: Tensor, log_shares: Tensor) -> Mapping[str, Tensor]:
        logits = model.client_branch(features)
        return {"probability": logits.argmax(1), "density_ratio": (logits - log_shares).argmax(1)}
