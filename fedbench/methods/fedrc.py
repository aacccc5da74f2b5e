"""FedRC: a mixture of models that clusters clients by concept, not by their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate, Context
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.parts import responsibilities as em

#: Shares [M, K] of each class among the images of each model; in a client's message, its counts.
CLASS_SHARES = "mixture.class_shares"
#: Minimum share of a class.
FLOOR = 1e-8


@dataclass(frozen=True)
class FedRC(em.Mixtures):
    """Robust clustering (Guo, Tang and Lin, "FedRC: Tackling diverse distribution shifts challenge in federated
    learning by robust clustering", ICML 2024, Algorithm 1) as FLUX compares with it (NeurIPS 2025, App. E.1).

    As in FedEM, all clients share M models, and a client's images belong to them by responsibilities q_im. But here
    q_im is proportional to pi_km exp(-loss_im) / s_m(y_i), where s_m(y) is the share of class y among all images of
    model m. So q depends on the relation of image and label, not on the classes that a client has. The clients of a
    round send the number of images of each class that they assigned to each model; the server turns the sums into the
    shares of the next round, at least 1e-8; initially all are equal. Training, averaging and prediction are FedEM's.

    The weighted losses are divided by the batch size, not by the sum of the weights. So with M models a step is about
    1/M as long, and at FLUX's learning rate with many models all of them stay at their initial weights.

    deviates: of a multi-label image (CheXpert) the geometric mean of its labels' shares counts; neither FedRC nor
    FLUX says how it is done.

    deviates: FedRC's paper gives no way to serve clients without labels; as for FedEM, the models' class probabilities
    are averaged with the sum of the clients' pi. M is the true number of distributions, as FLUX has it.

    deviates: FLUX's copy of FedRC's code takes the losses of the E-step from the held-back images, repeated to the
    number of training images, and the weights that come of them for the training images at the same positions
    (`judged_on` validation), three models set by hand (`clusters`; two and four in other states of that code) and a
    weight decay of 5e-4.

    deviates: all models of a client take their steps on the same batches, as in FedEM here.
    """

    name = "fedrc"
    version = 2
    title = "FedRC"
    clusters_by = "losses"

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        count, classes = self.count(context), context.classes
        return {**em.even(count), CLASS_SHARES: class_shares(torch.ones(count, classes, dtype=torch.float64))}

    def local(self, client: Client) -> ClientUpdate:
        q, counts = yield from em.expectation(client, client.state[CLASS_SHARES], judged_on=self.judged_on)
        yield from em.maximisation(client, q)
        client.state = {**client.state, CLASS_SHARES: counts}

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        super().aggregate(server, cohort, t)
        server.shared[CLASS_SHARES] = class_shares(torch.stack([c.state[CLASS_SHARES] for c in cohort]).sum(0))

    def class_shares_of(self, client: Client) -> Tensor:
        return client.state[CLASS_SHARES]


def class_shares(counts: Tensor) -> Tensor:
    """Return shares [M, K] of the classes among each model's images, from counts [M, K]."""
    return (counts / counts.sum(1, keepdim=True).clamp(min=FLOOR)).clamp(min=FLOOR)
