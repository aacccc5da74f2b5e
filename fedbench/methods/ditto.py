"""Ditto: a shared model, and a personal model near it."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER, UNLABELLED, Client, ClientUpdate, Train
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PersonalModel, check_split, remaining, steps_hyperparameter
from fedbench.specs import Setting


@dataclass(frozen=True)
class Ditto(PersonalModel):
    """Ditto (Li, Hu, Beirami and Smith, ICML 2021, Algorithm 1) with pFedFDA's hyper-parameters.

    The shared model w is FedAvg's. In each of its rounds a client also trains a personal model v on
    loss(v) + (mu/2) ||v - w||^2, where w is the shared model that the client received. v is never sent; it continues
    from its state after the client's last round, and starts from the common initial model. The client predicts with v.
    Running statistics of norm layers belong to the model that processed the images.

    FedDRM's comparison counts local steps and splits them: `personal_steps` of them train v, the others w.

    deviates: v trains with the setting's momentum and weight decay, as all methods of pFedFDA's tables, where Ditto's
    algorithm takes plain gradient steps; the shared models are averaged by training sizes.

    deviates: v passes over the data on its own after w, where the time that pFedFDA reports for Ditto (1.08 times
    FedAvg's, Table 6) suggests that its authors trained both on each batch that was loaded.
    """

    name = "ditto"
    title = "Ditto"
    personalised = True
    serves = (MEMBER, UNLABELLED)

    mu: float = hyperparameter(
        1.0, "pull of the shared model on the personal one", "μ", "pFedFDA, App. C.2; Ditto's λ", least=0
    )
    personal_epochs: int = hyperparameter(
        5, "local epochs of the personal model; 0: the setting's", source="pFedFDA, App. C.2", least=0
    )
    personal_steps: int = steps_hyperparameter("the personal model", 5)

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "personal-steps", self.personal_steps, setting)

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, steps=remaining(client.setting, self.personal_steps))
        length = {"steps": self.personal_steps} if self.personal_steps else {"epochs": self.personal_epochs or None}
        yield Train(cross_entropy, model="own", prox=self.mu, **length)

    def relative_compute(self, setting: Setting) -> float:
        if self.personal_steps:
            return 1.0
        return 1 + (self.personal_epochs / setting.epochs if self.personal_epochs and setting.epochs else 1.0)
