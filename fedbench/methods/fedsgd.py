"""FedSGD with a server Adam: what FTW-ERM's paper calls FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.methods.parts.one_step import OneStep, scale_hyperparameter


@dataclass(frozen=True)
class FedSGD(OneStep):
    """Synchronous SGD: each client sends the gradient of one batch, the server takes an Adam step on their mean.

    This is the loop of FTW-ERM's paper (TMLR 2023, Sec. 2) with all weights 1, which its tables call FedAvg. Clients
    have equal weight. Batch-norm statistics are averaged.
    """

    name = "fedsgd"
    title = "FedSGD (server Adam)"

    scale: str = scale_hyperparameter()
