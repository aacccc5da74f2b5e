"""FedAvg as FLUX's code reports it: by the model of the round that did best on validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Box, Client, Collect
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.who import Who
from fedbench.methods.base import Method
from fedbench.methods.parts.clustered import sample_losses

#: In the server's memory: the lowest validation loss so far, and the prefix of the model that had it.
LOWEST, BEST = "validation.loss", "best/"


@dataclass(frozen=True)
class FedAvgFlux(Method):
    """FedAvg (McMahan et al., AISTATS 2017) that answers with the averaged model of the round whose validation loss was
    lowest, as the released code of FLUX (NeurIPS 2025) reports FedAvg, and no other method.

    After each averaging the round's clients tell the new model's mean loss on their validation images (on their
    training images where they have none); the server weights it by images. Training goes on from the last model, so
    that only the answers differ from FedAvg's. Where data drift, the rounds of the last stage count. FLUX's tables here
    take `fedavg`, after the last round like all others.
    """

    name = "fedavg_flux"
    title = "FedAvg, best round"

    def inspects(self, server: Server, t: int) -> int:
        return 1

    def inspect(self, client: Client) -> Box:
        seen = yield Collect(sample_losses, split=client.validates_on)
        client.upload |= {"loss": seen.rows.double().sum(), "images": len(seen.rows)}

    def regroup(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        loss = torch.stack([c.upload["loss"].cpu() for c in cohort]).sum() / sum(c.upload["images"] for c in cohort)
        drifted = t in (cohort[0].plan.setting.drifts or ())  # models of other data do not compete
        if LOWEST not in server.memory or drifted or loss < server.memory[LOWEST]:
            server.memory |= {LOWEST: loss, **{BEST + name: value for name, value in server.shared.items()}}

    def traffic(self, server: Server, t: int) -> tuple[int, int]:
        up, down = super().traffic(server, t)
        return up + 8, down

    def serve(self, server: Server, who: Who) -> State:
        return {**super().serve(server, who), **self.best(server)}

    def best(self, server: Server) -> State:
        """The model of the lowest validation loss; empty before the first round."""
        return {n.removeprefix(BEST): value for n, value in server.memory.items() if n.startswith(BEST)}
