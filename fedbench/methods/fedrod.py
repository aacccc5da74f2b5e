"""FedRoD: a generic head for balanced classes, and a personal head added to it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Context, Loss, Train
from fedbench.methods.base import Scored

#: Count of an absent class, as a share of the most frequent class's; it practically removes the class from the softmax.
NONE = 1e-12


@dataclass(frozen=True)
class FedRoD(Scored):
    """Federated robust decoupling, its linear version (Chen and Chao, ICLR 2022).

    Body and generic head minimise the balanced softmax: cross-entropy of the logits plus the logarithms of the
    client's class counts, which removes the client's label shift from the shared part; they are averaged. A personal
    linear head on the same features learns what the generic logits lack, by the cross-entropy of the sum of both, with
    constant features and generic logits. The sum predicts. The two losses share no parameter and are minimised
    together. The logged loss is that of the sum.

    deviates: the personal head starts at zero, so that a client that has not trained yet answers with the generic
    head; pFedFDA's paper does not say where it starts.

    deviates: counts enter as shares of the client's commonest class (the softmax does not see a common factor), and
    an absent class has 1e-12.
    """

    name = "fedrod"
    title = "FedRoD"
    personalised = True
    personal = ("personal_head.",)
    serves = (MEMBER,)
    takes_multi_label = False

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        personal = copy.deepcopy(model.head)
        for p in personal.parameters():  # type: ignore[union-attr]
            nn.init.zeros_(p)
        model.personal_head = personal
        return model

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return the balanced softmax of the generic logits plus the cross-entropy of generic plus personal logits."""
        z = model.features(batch.x)
        generic = model.head(z).float()
        both = generic.detach() + model.personal_head(z.detach()).float()
        balanced = F.cross_entropy(generic + batch.extras["log_counts"], batch.y)
        personal = F.cross_entropy(both, batch.y)
        return Loss(balanced + personal, logged=personal)

    def local(self, client: Client) -> ClientUpdate:
        yield Train(self.loss, extras={"log_counts": log_counts(client.class_counts)})

    def personalise(self, client: Client) -> ClientUpdate | None:
        # The sum of two linear heads is a linear head. The generic head takes the place of the personal one, so that
        # clients with the same body differ only in the head that predicts.
        generic = {name: client.state[f"head.{name}"] for name in ("weight", "bias")}
        for name, t in generic.items():
            personal = client.state[f"personal_head.{name}"]
            client.state = {**client.state, f"head.{name}": t + personal, f"personal_head.{name}": t}
        return None


def log_counts(counts: Tensor) -> Tensor:
    """Return the logarithms [K] of a client's class counts [K], up to a constant: zero for its most frequent class."""
    return torch.log((counts / counts.max()).clamp(min=NONE))
