"""APFL: a client answers with a mixture of its own model and the shared one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.client import Batch, Box, Client, Loss, Train
from fedbench.core.federation import Federation
from fedbench.core.who import MEMBER
from fedbench.methods.base import Method, check, knob
from fedbench.methods.parts.own_model import OWN
from fedbench.models.base import FLModel
from fedbench.spec import Setting


class Mixture(FLModel):
    """The shared model w under its usual names and the client's own model v as `own`; it answers with
    alpha v(x) + (1 - alpha) w(x), logits [B, classes]."""

    def __init__(self, model: FLModel, alpha: float) -> None:
        super().__init__(model.trunk, model.neck, model.head, model.trunk_size)
        self.own = copy.deepcopy(model)
        self.alpha = alpha

    def shared(self, x: Tensor) -> Tensor:
        """w(x), logits [B, classes]."""
        return super().forward(x)

    def mix(self, own: Tensor, shared: Tensor) -> Tensor:
        """The mixture of two models' logits."""
        return self.alpha * own + (1 - self.alpha) * shared

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.own(x), self.shared(x))


@dataclass(frozen=True)
class APFL(Method):
    """Adaptive personalized federated learning (Deng, Kamani and Mahdavi, arXiv:2003.13461, Algorithm 1).

    Each client holds the shared model w and its own model v. On every batch, w takes an SGD step on its own loss,
    and v one on the loss of the mixture alpha v + (1 - alpha) w, in which w is given; both steps start from the same
    w, so they are one step on the sum of the two losses. Only w is sent and averaged. The client's v mixed with the
    averaged w answers. The logged loss is that of w.

    deviates: the logits of v and w are mixed, not their parameters, so that v's gradient does not pass through a
    third network; pFedFDA's paper does not say which it mixes.

    deviates: alpha is fixed, as in pFedFDA's comparison, where APFL can also learn it by gradient descent; the shared
    models are averaged by training sizes, where APFL takes the plain mean.
    """

    name = "apfl"
    title = "APFL"
    personal = (OWN,)
    serves = (MEMBER,)
    takes_many_labels = False

    alpha: float = knob(0.25, "share of a client's own model in the mixture", "α", "pFedFDA, App. C.2")

    def __post_init__(self) -> None:
        check(0 <= self.alpha <= 1, self.name, "alpha", self.alpha, "in [0, 1]")

    def build(self, model: nn.Module, federation: Federation) -> nn.Module:
        assert isinstance(model, FLModel)
        return Mixture(model, self.alpha)

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The two losses, which have no parameter in common."""
        shared, own = model.shared(batch.x).float(), model.own(batch.x).float()
        of_shared = F.cross_entropy(shared, batch.y)
        of_mixture = F.cross_entropy(model.mix(own, shared.detach()), batch.y)
        return Loss(of_shared + of_mixture, shown=of_shared)

    def local(self, client: Client) -> Box:
        yield Train(self.loss)

    def effort(self, setting: Setting) -> float:
        return 2.0
