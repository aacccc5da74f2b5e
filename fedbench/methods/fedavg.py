"""FedAvg: one model for all."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Federated averaging (McMahan et al., AISTATS 2017, Algorithm 1): every hook at its default."""

    name = "fedavg"
    title = "FedAvg"
