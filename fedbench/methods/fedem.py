"""FedEM: every client's data are a mixture of M distributions, with a model for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import Box, Client
from fedbench.core.context import Context
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.who import UNLABELLED
from fedbench.methods.base import Method
from fedbench.methods.parts import responsibilities as em
from fedbench.methods.parts.clustered import (
    CLUSTERS,
    answer_by_ensemble,
    check_clusters,
    clusters_knob,
    expected_groups,
    true_groups,
)
from fedbench.specs import Setting


@dataclass(frozen=True)
class FedEM(Method):
    """Federated expectation maximization (Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, Algorithm 1) as FLUX
    compares with it (2025, App. E.1).

    All clients share M models; client k has shares pi_k in them, at first 1/M each. In its rounds it finds for each
    training image i how far model m is responsible, q_im proportional to pi_km exp(-loss_im); pi_k becomes the mean of
    q, and every model is trained on all images with weights q_im. All models are averaged over all clients by training
    images. A client answers with the mean, by its pi, of the models' class probabilities; one that has taken part in
    no round finds its pi when it is asked. A client without labels is answered with the sum of the clients' pi.

    The weighted losses are divided by the size of the batch, not by the sum of the weights. So with M models a step is
    about 1/M as long, and at FLUX's learning rate and with many models all of them stay where they began.

    deviates: FedEM's paper gives no way to serve clients without labels; the sum of pi is the plainest ensemble that
    FLUX's text allows. M is the true number of distributions, as FLUX has it.
    """

    name = "fedem"
    title = "FedEM"
    takes_votes = False
    personal = (em.PI,)
    measures = (CLUSTERS,)

    clusters: int = clusters_knob()

    def check_setting(self, setting: Setting) -> None:
        check_clusters(self.name, self.clusters, setting)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return em.even(self.clusters or true_groups(context))

    def start(self, server: Server) -> None:
        em.begin(server)

    def local(self, client: Client) -> Box:
        q, _ = yield from em.expectation(client)
        yield from em.maximisation(client, q)

    def figures(self, server: Server) -> Mapping[str, float]:
        return {"clusters": float(len(server.initial[em.PI]))}

    def effort(self, setting: Setting) -> float:
        return em.effort(self.clusters or expected_groups(setting), setting)

    def serve(self, server: Server, client: Client) -> None:
        if client.kind == UNLABELLED:
            em.send_ensemble(server, client)

    def personalise(self, client: Client) -> Box | None:
        unlabelled = client.kind == UNLABELLED
        return answer_by_ensemble(client) if unlabelled else em.answer_by_pi(client)
