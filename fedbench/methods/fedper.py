"""FedPer: a shared body and personal heads, trained together."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER
from fedbench.methods.base import HEAD, Scored, score_hyperparameter


@dataclass(frozen=True)
class FedPer(Scored):
    """Federated learning with personalization layers (Arivazhagan, Aggarwal, Singh and Choudhary, arXiv:1912.00818).

    The base layers W_B are shared and averaged by training sizes (Algorithm 1: weights gamma_j = n_j / n); the
    personalization layers W_P, the last K_P of the network, never leave their client (Algorithm 2). Both train
    together on the cross-entropy. Here K_P = 1: W_P is the last linear layer, the network's head.

    With `score` after_local a client of the round predicts with its model at the end of its training; with
    after_aggregate with its head on the averaged body.

    deviates: clients start from one common head, where the paper draws each its own; the paper's base and
    personalization layers may be parted higher up, K_P from 1 to 4 blocks.
    """

    name = "fedper"
    title = "FedPer"
    personalised = True
    personal = HEAD
    serves = (MEMBER,)

    score: str = score_hyperparameter("not given by FedPer; as FedRep's")
