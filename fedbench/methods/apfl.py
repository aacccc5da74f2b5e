"""APFL: each client predicts with a mixture of its own model and the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Collect, Loss, Train
from fedbench.methods.base import AFTER_AGGREGATE, FORWARD, Scored, hyperparameter, score_hyperparameter
from fedbench.specs import Setting


@dataclass(frozen=True)
class APFL(Scored):
    """Adaptive personalized federated learning (Deng, Kamani and Mahdavi, arXiv:2003.13461, Algorithm 1).

    Each client holds the shared model w and a personal model v. On every batch, w takes an SGD step on its loss, and v
    takes one on the loss of the mixture alpha v + (1 - alpha) w, in which w is constant. Both steps start from the same
    w, so they equal one step on the sum of the two losses. Only w is sent and averaged. The loss of w is logged.

    The client predicts with its v mixed with the averaged w. With `score` after_local, a client of the round predicts
    with the w that it has just trained together with v.

    deviates: the logits of v and w are mixed, not their parameters, so that v's gradient does not pass through a
    third network; pFedFDA's paper does not say which it mixes.

    deviates: alpha is fixed, as in pFedFDA's comparison, where APFL can also learn it by gradient descent; the shared
    models are averaged by training sizes, where APFL takes the plain mean.
    """

    name = "apfl"
    title = "APFL"
    personalised = True
    personal_models = ("own",)
    serves = (MEMBER,)
    takes_multi_label = False

    alpha: float = hyperparameter(
        0.25, "share of a client's own model in the mixture", "α", "pFedFDA, App. C.2", least=0, most=1
    )
    score: str = score_hyperparameter("not given; pFedFDA's comparison: after_local", AFTER_AGGREGATE, later=True)

    def loss(self, models: Any, batch: Batch) -> Loss:
        """Return the sum of the two losses, which have no parameter in common."""
        shared, own = (model(batch.x).float() for model in models)
        of_shared = F.cross_entropy(shared, batch.y)
        of_mixture = F.cross_entropy(self.mix(own, shared.detach()), batch.y)
        return Loss(of_shared + of_mixture, logged=of_shared)

    def mix(self, own: Tensor, shared: Tensor) -> Tensor:
        """Mix the logits of two models."""
        return self.alpha * own + (1 - self.alpha) * shared

    def mixture(self, models: Any, batch: Batch) -> Tensor:
        """Return the logits [B, K] of the predictions."""
        shared, own = (model(batch.x) for model in models)
        return self.mix(own, shared)

    def local(self, client: Client) -> ClientUpdate:
        yield Train(self.loss, model=("", "own"))

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return n_test * FORWARD  # by a second model

    def personalise(self, client: Client) -> None:
        client.answers_by = Collect(self.mixture, model=("", "own"))

    def relative_compute(self, setting: Setting) -> float:
        return 2.0
