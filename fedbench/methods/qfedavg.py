"""q-FedAvg: clients with a higher loss have larger weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Client, ClientUpdate, Collect, Train
from fedbench.core.server import Server
from fedbench.core.state import State, weighted_mean
from fedbench.errors import DivergedError
from fedbench.methods.base import Method, cross_entropy, hyperparameter
from fedbench.methods.parts.clustered import sample_losses
from fedbench.methods.parts.steps import trainable

#: Stands for a loss of 0, which has no power below 0; the authors' code adds it to every loss.
LEAST = 1e-10


@dataclass(frozen=True)
class Before:
    """Message from a client, sent with its model: its loss before training."""

    loss: float


@dataclass(frozen=True)
class QFedAvg(Method):
    """q-FedAvg (Li, Sanjabi, Beirami and Smith, ICLR 2020, Algorithm 2).

    With w the received model, w_k client k's trained model, F_k its mean loss on its training images before training
    and L = 1 / learning rate (Sec. 4): Δw_k = L (w - w_k), Δ_k = F_k^q Δw_k, h_k = q F_k^(q-1) |Δw_k|² + L F_k^q, and
    the server steps to w - ΣΔ_k / Σh_k. With q = 0 this is the plain mean of the w_k.

    deviates: every client of the cohort counts alike, as in Algorithm 2; its sampling by training sizes is the
    setting's participation here.

    deviates: running statistics of batch norms, which have no gradient, are the plain mean of the clients'.
    """

    name = "qfedavg"
    title = "q-FedAvg"

    q: float = hyperparameter(
        0.1, "how much more clients of high loss count", "q", "Eq. 2; the paper tries 0.001 to 15", least=0
    )

    def local(self, client: Client) -> ClientUpdate:
        losses = yield Collect(sample_losses)
        client.upload = Before(float(losses.rows.double().mean()))
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        means = weighted_mean([c.state for c in cohort], [1] * len(cohort), server.shared)
        learned = trainable(means)
        steps: State = {n: torch.zeros_like(server.shared[n], dtype=torch.float64) for n in learned}
        total = 0.0
        for c in (c for c in cohort if c.upload):
            loss, lipschitz = c.upload.loss or LEAST, 1 / c.lr
            change = {n: lipschitz * (server.shared[n].double() - c.state[n].double()) for n in learned}
            square = sum(float(d.square().sum()) for d in change.values())
            try:
                total += self.q * loss ** (self.q - 1) * square + lipschitz * loss**self.q
            except OverflowError as error:
                wrong = f"the loss of client {c.index}, {loss:g}, to the power of q = {self.q:g} is too large"
                raise DivergedError(wrong, "a smaller --q or --lr may help") from error
            for n, d in change.items():
                steps[n] += loss**self.q * d
        moved = {n: (server.shared[n].double() - steps[n] / total).to(means[n].dtype) for n in learned if total}
        server.shared = {**means, **moved}
