"""FedSGD with a server Adam: what FTW-ERM's paper calls FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.client import Client, ClientUpdate, Gradient
from fedbench.core.server import Server
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts.one_step import Moments, check_one_step, mean_loss, server_step, upload_gradient
from fedbench.specs import Setting


@dataclass(frozen=True)
class FedSGD(Method):
    """Synchronous SGD: each client sends the gradient of one batch, the server takes an Adam step on their mean.

    The loop of FTW-ERM's paper (TMLR 2023, Sec. 2) with all weights 1, which its tables call FedAvg. Clients count
    equally. Batch-norm statistics are averaged.
    """

    name = "fedsgd"
    title = "FedSGD (server Adam)"

    scale: str = hyperparameter(
        "mean", "of the clients' gradients", source="code: mean; paper: sum", choices=("mean", "sum")
    )

    def check_setting(self, setting: Setting) -> None:
        check_one_step(self.name, setting)

    def start(self, server: Server) -> None:
        server.memory = Moments()

    def local(self, client: Client) -> ClientUpdate | None:
        return upload_gradient(client, Gradient(mean_loss))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server_step(server, cohort, self.scale)
