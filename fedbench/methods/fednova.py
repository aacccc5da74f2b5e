"""FedNova: clients' updates are normalised by their numbers of local steps before averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import weighted_mean
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import check_pull, check_sgd, moved, trainable
from fedbench.specs import Setting


@dataclass(frozen=True)
class Normaliser:
    """Message from a client, sent with its model: ||a||_1, the divisor of its change."""

    value: float


@dataclass(frozen=True)
class FedNova(Method):
    """FedNova, normalised averaging (Wang, Liu, Liang, Joshi and Poor, NeurIPS 2020, its FedNova update rule).

    A client's change by local SGD is a sum of its gradients, x_i - x = -lr sum_k a_k g_k, so d_i = (x - x_i) /
    (lr ||a_i||_1) is a mean of them. With p_i the cohort's shares of training images and tau_eff = sum_i p_i ||a_i||_1
    the server steps to x - tau_eff lr sum_i p_i d_i: more steps give a client no more weight. ||a_i||_1 is the number
    of plain steps; for momentum, and for the proximal term of `mu`, the paper gives formulas. Here it comes from the
    recursion behind them, which covers both together and momentum that restarts with each pass. Weight decay is part of
    the gradients.

    If all clients take the same number of steps it is FedAvg, or with `mu` FedProx.

    deviates: with a proximal term tau_eff stays the mean of ||a_i||_1, where the authors' code takes that of the steps.

    deviates: running statistics of batch norms are averaged as in FedAvg.
    """

    name = "fednova"
    title = "FedNova"

    mu: float = hyperparameter(0.0, "weight of a proximal term", "μ", "the paper has it as an option", least=0)

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)
        if setting.momentum_lives:
            raise FedbenchError(
                "fednova assumes that momentum starts at zero in every round", "leave --momentum-lives out"
            )
        check_pull(self.name, "mu", self.mu, setting)

    def local(self, client: Client) -> ClientUpdate:
        trained = yield Train(cross_entropy, prox=self.mu)
        setting = client.setting
        restarts = client.batches_a_pass if setting.momentum_restarts else trained.steps
        client.upload = Normaliser(normaliser(trained.steps, setting.momentum, client.lr * self.mu, restarts))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        before, images, names = server.shared, sum(c.n_train for c in cohort), trainable(server.shared)
        super().aggregate(server, cohort, t)
        weights = [c.n_train / c.upload.value for c in cohort]
        tau_eff = sum(c.n_train * c.upload.value for c in cohort) / images
        mean = weighted_mean([c.state for c in cohort], weights, names)
        # x - tau_eff sum_i p_i (x - x_i) / ||a_i||_1
        server.shared = {**server.shared, **moved(before, mean, tau_eff * sum(weights) / images, names)}


def normaliser(steps: int, momentum: float, pull: float, restarts: int) -> float:
    """Return ||a||_1 of `steps` local steps: their total length if all gradients and the learning rate are 1. `pull` is
    lr mu, and momentum is reset before every step whose number is a multiple of `restarts`."""
    way = velocity = 0.0
    for k in range(steps):
        velocity = (momentum * velocity if k % restarts else 0.0) + 1 - pull * way
        way += velocity
    return way
