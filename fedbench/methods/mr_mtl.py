"""MR-MTL: personal models, each near the average of all."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER, Client, ClientUpdate, Train
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PersonalModel


@dataclass(frozen=True)
class MRMTL(PersonalModel):
    """Mean-regularised multi-task learning (Liu, Hu, Wu and Smith, NeurIPS 2022, without the noise of its private
    form): what FLUX's comparison (NeurIPS 2025) calls pFedMe.

    A client's personal model v starts from the common initial model and continues from its state after its last round,
    by SGD on loss(v) + (lambda/2) ||v - w||^2; w is the average of the personal models, weighted by training
    images, as the client received it. A client predicts with v; without labels it has no v, so there is no test phase.
    Statistics of batch norms belong to v. (`pfedme` is T. Dinh, Tran and Nguyen's algorithm with Moreau envelopes.)

    deviates: pFedMe's paper solves for v on every batch and sends a second model that follows it; the code that FLUX
    names trains v as above, and FLUX's values for it are those of local training within noise. FLUX gives no pull; 0.1
    is ours (protocol, section 8).

    deviates: in that code (FedRC's) the optimiser is made once and its momentum lives on from round to round; here it
    begins at rest in every request, unless the setting says otherwise (`--momentum-lives`). On 1,920 training images a
    client that is worth about two points.
    """

    name = "mr_mtl"
    title = "MR-MTL"
    personalised = True
    serves = (MEMBER,)

    pull: float = hyperparameter(0.1, "pull of the average on a personal model", "λ", "not given by FLUX", least=0)

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, model="own", prox=self.pull)  # prox pulls towards the received average
        client.put(client.model("own"))  # the personal model is sent, and also stays
