"""FedEM: each client's data are a mixture of M distributions, with one model per distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import Client, ClientUpdate, Context
from fedbench.core.state import State
from fedbench.methods.parts import responsibilities as em


@dataclass(frozen=True)
class FedEM(em.Mixtures):
    """Federated expectation maximization (Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, Algorithm 1) as FLUX
    compares with it (2025, App. E.1).

    All clients share M models; client k has mixture weights pi_k, initially 1/M each. In its rounds it computes, for
    each training image i, the responsibility of model m, q_im proportional to pi_km exp(-loss_im). pi_k becomes the
    mean of q, and every model is trained on all images with weights q_im. All models are averaged over all clients by
    training images. A client predicts with the mean of the models' class probabilities, weighted by its pi; a client
    that has never participated computes its pi first. Clients without labels use the clients' mean pi.

    The weighted losses are divided by the batch size, not by the sum of the weights. So with M models a step is about
    1/M as long, and at FLUX's learning rate with many models all of them stay at their initial weights.

    deviates: FedEM's paper gives no way to serve clients without labels; the sum of pi is the plainest ensemble that
    FLUX's text allows. M is the true number of distributions, as FLUX has it.

    deviates: FLUX's copy of FedRC's code takes the losses of the E-step from the held-back images, repeated to the
    number of training images, and the weights that come of them for the training images at the same positions
    (`judged_on` validation), three models set by hand (`clusters`; two and four in other states of that code) and a
    weight decay of 5e-4.

    deviates: all models of a client take their steps on the same batches; the code of FedEM's paper shuffles the images
    anew for each.
    """

    name = "fedem"
    version = 2
    title = "FedEM"
    clusters_by = "losses"

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return em.even(self.count(context))

    def local(self, client: Client) -> ClientUpdate:
        q, _ = yield from em.expectation(client, judged_on=self.judged_on)
        yield from em.maximisation(client, q)
