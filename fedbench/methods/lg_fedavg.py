"""LG-FedAvg: personal bodies and a shared head."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER
from fedbench.methods.base import Scored


@dataclass(frozen=True)
class LGFedAvg(Scored):
    """Local global federated averaging (Liang et al., arXiv:2001.01523), supervised, with the last layer shared.

    Clients train body and head jointly on the cross-entropy. Only the head, the last linear layer, is sent and averaged
    by training sizes; bodies never leave their clients.

    With `score` after_local a client of the round predicts with its model at the end of its training; with
    after_aggregate with its body under the averaged head.

    deviates: all clients start from common random weights; the authors' scripts start from a FedAvg model.
    """

    name = "lg_fedavg"
    title = "LG-FedAvg"
    personalised = True
    serves = (MEMBER,)

    def is_personal(self, name: str) -> bool:
        return not name.startswith("head.")
