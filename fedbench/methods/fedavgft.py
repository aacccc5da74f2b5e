"""FedAvgFT: FedAvg, then each client fine-tunes."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import UNLABELLED, Client, ClientUpdate, Train
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import FineTunes, finetune_hyperparameter
from fedbench.specs import Setting


@dataclass(frozen=True)
class FedAvgFT(FineTunes):
    """FedAvg followed by fine-tuning of all parameters at each client.

    Two protocols, which may be combined:

    - FedDRM (section 6 of its protocol): the last `finetune_rounds` of the run's rounds do not communicate; each
      client trains its local copy under the same learning-rate schedule. Before these rounds, the averaged model
      predicts.
    - pFedFDA (section 4): after the last round each client trains `finetune_epochs` on the averaged model; only
      the predictions of the last round come from the fine-tuned models.
    """

    name = "fedavgft"
    title = "FedAvgFT"
    personalised = True

    finetune_rounds: int = finetune_hyperparameter()
    finetune_epochs: int = hyperparameter(
        0, "local epochs after the last round", source="pFedFDA, App. C.2: 5", least=0
    )

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return float(self.finetune_epochs * n_train) if final and kind != UNLABELLED else 0.0

    def personalise(self, client: Client) -> ClientUpdate:
        if client.kind != UNLABELLED and client.final and self.finetune_epochs:
            yield Train(cross_entropy, epochs=self.finetune_epochs)
