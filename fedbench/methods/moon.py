"""MOON: FedAvg with a contrastive loss: features near the received model's, far from the client's last model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.client import Batch, Client, ClientUpdate, Context, Loss, Train
from fedbench.core.state import State, as_model, name_in
from fedbench.methods.base import BODY, HEAD, Method, cross_entropy, hyperparameter

#: Names of a client's additional models: the one received in this round, and the one trained in its last round.
RECEIVED, PREVIOUS = "received", "previous"
#: Name of a flag: 1 once the client has trained a model, else 0 [].
KNOWN = name_in(PREVIOUS, "known")


@dataclass(frozen=True)
class MOON(Method):
    """Model-contrastive federated learning (Li, He and Song, CVPR 2021, Algorithm 1).

    A client minimises the cross-entropy plus mu times the contrast (lines 13-19, Eq. 3 and 4)

        -log( exp(s(z, z_glob)/tau) / (exp(s(z, z_glob)/tau) + exp(s(z, z_prev)/tau)) )

    with the cosine similarity s, averaged over the batch. z, z_glob and z_prev are the features of the same augmented
    images under the network that trains, the received one and the one that the client trained in its last round; the
    latter two are frozen. In a client's first round its previous model is the received one, so the contrast is log 2
    and has no effect. Models are averaged by training sizes (line 7). With mu = 0 this is FedAvg. The logged loss is
    the sum.

    deviates: features are those that the head reads. The paper adds a projection head to its networks, a perceptron of
    two layers with 256 outputs in front of the head; here that is the network's projection where it has one.
    """

    name = "moon"
    title = "MOON"
    personal_models = (PREVIOUS,)

    mu: float = hyperparameter(
        1.0, "weight of the contrast; the paper tries 0.1, 1, 5 and 10", "μ", "Eq. 4; official code", least=0
    )
    temperature: float = hyperparameter(0.5, "of the contrast", "τ", "Eq. 3; paper, Sec. 4.1", above=0)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return {KNOWN: torch.zeros(())}

    def loss(self, models: Any, batch: Batch) -> Loss:
        """Return the loss of Eq. 4 from the network that trains, the received and the previous one."""
        model, received, previous = models
        z = model.features(batch.x)
        classified = cross_entropy(model.head, batch._replace(x=z))
        # Eq. 3: -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)).
        gap = self.similarity(z, previous, batch) - self.similarity(z, received, batch)
        return Loss(classified.total + self.mu * F.softplus(gap).mean())

    def similarity(self, z: Tensor, frozen: Any, batch: Batch) -> Tensor:
        """Return s / tau [B] of features z [B, d] and those of a frozen network in evaluation mode."""
        other = frozen.eval().features(batch.x).detach()
        return F.cosine_similarity(z.float(), other.float(), dim=1) / self.temperature

    def local(self, client: Client) -> ClientUpdate:
        received, has_previous = client.model(), client.state[KNOWN]
        client.put(received, RECEIVED)
        if not has_previous:
            client.put(received, PREVIOUS)
        yield Train(self.loss, model=("", RECEIVED, PREVIOUS), trains=(*BODY, *HEAD))
        trained = client.model()
        client.state = {**trained, **as_model(trained, PREVIOUS), KNOWN: torch.ones_like(has_previous)}
