"""FedRep: a shared body and personal heads, trained one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER, Client, ClientUpdate, Train
from fedbench.methods.base import BODY, HEAD, Scored, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import HeadFirst, remaining, steps_hyperparameter


@dataclass(frozen=True)
class FedRep(HeadFirst, Scored):
    """Federated representation learning (Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, Algorithm 1).

    In a round a client first trains its head on the received body, for `head_epochs`, then the body under that head,
    for the setting's local epochs. Bodies are averaged; heads never leave their clients.

    With `score` after_local a client of the round predicts with its model at the end of its training; with
    after_aggregate with its head on the averaged body. The logged loss is that of the head's epochs.

    FedDRM's comparison counts local steps and splits them: `head_steps` of them train the head, the others the body.
    What it calls FedPAC is this method with a proximal term on the body (`mu`; section 6 of its protocol).

    deviates: bodies are averaged by training sizes, as in pFedFDA's comparison; Algorithm 1 weighs clients alike.
    """

    name = "fedrep"
    title = "FedRep"
    personalised = True
    personal = HEAD
    serves = (MEMBER,)

    head_epochs: int = hyperparameter(
        5, "epochs of the head alone, before those of the body", "τ_h", "pFedFDA, App. C.2", least=0
    )
    head_steps: int = steps_hyperparameter("the head; 0: head_epochs", 5)
    mu: float = hyperparameter(0.0, "weight of a proximal term on the body", "μ", "FedDRM, code: its FedPAC", least=0)

    def local(self, client: Client) -> ClientUpdate:
        yield from self.train_head(client)
        rest = remaining(client.setting, self.head_steps)
        yield Train(cross_entropy, trains=BODY, steps=rest, prox=self.mu)
