"""FedProx: FedAvg with a proximal term towards the received model."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import FineTunes, finetune_hyperparameter


@dataclass(frozen=True)
class FedProx(FineTunes):
    """FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020, Algorithm 2).

    A client minimises h_k(w; w^t) = F_k(w) + (mu/2) ||w - w^t||^2 (Eq. 2), with w^t the received model. The term
    includes every parameter, also head and norms; its gradient mu (w - w^t) enters each local step before momentum. The
    local solver's inexactness gamma follows from the setting's epochs or steps. With mu = 0 this is FedAvg. The logged
    loss includes the term.

    FedDRM's comparison has FedProxFT, `--mu 0.01 --finetune-rounds 100`: the last `finetune_rounds` of the run's rounds
    do not communicate; in them each client trains its local copy without the term, as in FedAvgFT.

    deviates: Algorithm 2 draws clients by the sizes of their data and averages alike; here cohorts are those of every
    method, and the mean is weighted by training sizes, as in the authors' code.

    deviates: all clients do the same local work: the paper's stragglers, whose partial work it keeps, are left out.
    """

    name = "fedprox"
    title = "FedProx"

    mu: float = hyperparameter(
        0.01, "weight of the proximal term; the paper tries 0.001, 0.01, 0.1 and 1", "μ", "Eq. 2", least=0
    )
    finetune_rounds: int = finetune_hyperparameter()

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, prox=self.mu if self.communicates(client.round, client.rounds) else 0.0)
