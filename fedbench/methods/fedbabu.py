"""FedBABU: the body is trained with a fixed head; clients fine-tune afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import UNLABELLED, UNSEEN, Client, ClientUpdate, Train
from fedbench.methods.base import BODY, FORWARD, HEAD, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import FineTunes
from fedbench.specs import Setting


@dataclass(frozen=True)
class FedBABU(FineTunes):
    """Federated averaging with body aggregation and body update (Oh, Kim and Yun, ICLR 2022, Algorithm 1).

    All clients hold the same random head, which is constant; only the body trains, is sent and averaged. After the last
    round each client trains its head for `finetune_epochs` on the averaged body; before, the initial head predicts.

    An unseen client starts from the averaged body and the initial head, and fine-tunes the head only or everything for
    as many epochs. pFedFDA's paper (App. C.3) takes the better of the two in the mean over clients: run both.

    In FedDRM's comparison the last `finetune_rounds` of the run's rounds train the head instead, without communication
    and under the schedule of the rounds.

    deviates: only the head is tuned at the end (in pFedFDA's comparison after the last round, in FedDRM's in the last
    rounds); FedBABU's own default tunes all.
    """

    name = "fedbabu"
    title = "FedBABU"
    personalised = True
    personal = HEAD
    unlabelled_has = HEAD  # the common initial head, for which the body has been trained

    finetune_epochs: int = hyperparameter(
        5, "epochs of head training after the last round", "τ", "pFedFDA, App. C.2", least=0
    )
    finetune_rounds: int = hyperparameter(
        0, "last rounds that train the head alone, not communicating", source="FedDRM: 100 of 800", least=0
    )
    newcomers: str = hyperparameter(
        "head", "what an unseen client fine-tunes", source="pFedFDA, App. C.3", choices=("head", "all")
    )

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, trains=BODY if self.communicates(client.round, client.rounds) else HEAD)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        whole = kind == UNSEEN and self.newcomers == "all"
        passes = self.finetune_epochs if final and kind != UNLABELLED else 0
        return passes * n_train * (1 if whole else FORWARD)

    def personalise(self, client: Client) -> ClientUpdate:
        if client.kind != UNLABELLED and client.final and self.finetune_epochs:
            whole = client.kind == UNSEEN and self.newcomers == "all"
            yield Train(cross_entropy, trains=("",) if whole else HEAD, epochs=self.finetune_epochs)
