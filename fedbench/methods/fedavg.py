"""FedAvg: one model for all."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.state import Mean
from fedbench.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Federated averaging (McMahan et al., AISTATS 2017, Algorithm 1): every hook at its default."""

    name = "fedavg"
    title = "FedAvg"
    # The server's sum: `Mean.add` is called with each client's upload as it arrives, weighted by its training size, and
    # `Mean.result` at the round's end. No upload is stored, so `aggregate` is not called.
    aggregation = Mean
