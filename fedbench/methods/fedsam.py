"""FedSAM: local sharpness-aware steps; MoFedSAM adds momentum from the last global update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import Add, Ascend, Client, ClientUpdate, Context, Train
from fedbench.core.state import State
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import FineTunes, check_sgd, finetune_hyperparameter, zeros
from fedbench.specs import Setting

#: MoFedSAM's mean direction of the last round's local steps, over clients and steps; a tensor for each parameter.
DIRECTION = "direction"


@dataclass(frozen=True)
class FedSAM(FineTunes):
    """FedSAM and MoFedSAM (Qu, Li, Duan, Liu, Tang and Lu, ICML 2022).

    FedSAM is FedAvg whose local steps use the gradient at w + rho g / |g|, with g the gradient at w on the same batch
    and the norm over all parameters. Weight decay is that of w. Each step processes its batch twice. The logged loss is
    that at w.

    With `beta` below 1 it is MoFedSAM: the local steps are w <- w - lr (beta g~ + (1 - beta) D), with g~ that gradient
    (with the weight decay of w) and D = mean_i (x - x_i) / (K_i lr) of the last round: the clients' mean direction, in
    the scale of a gradient. They are plain steps, without the setting's momentum.

    FedDRM's comparison has FedSAMFT, `--rho 0.05 --finetune-rounds 100`: the last `finetune_rounds` of the run's rounds
    do not communicate; in them each client trains its local copy by the setting's plain steps, as in FedAvgFT.

    deviates: clients are averaged by training sizes, and the server's step size is 1, as in FedAvg; the paper counts
    clients alike and gives the server a step size of its own.

    deviates: FedSAM's local steps have the setting's momentum, as in FedDRM's comparison; the paper's have none.
    """

    name = "fedsam"
    title = "FedSAM"

    rho: float = hyperparameter(0.05, "how far from the weights the gradient is taken", "ρ", "FedDRM, code", least=0)
    beta: float = hyperparameter(
        1.0, "share of the client's own gradient; below 1: MoFedSAM", "β", "Qu et al.: 0.1 in MoFedSAM", above=0, most=1
    )
    finetune_rounds: int = finetune_hyperparameter()

    def check_setting(self, setting: Setting) -> None:
        super().check_setting(setting)
        if self.beta < 1:
            check_sgd(self.name, setting)

    def relative_compute(self, setting: Setting) -> float:
        return 2 - self.finetune_rounds / setting.rounds

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return zeros(model, DIRECTION) if self.beta < 1 else {}

    def local(self, client: Client) -> ClientUpdate:
        if not self.communicates(client.round, client.rounds):
            yield Train(cross_entropy)
        elif self.beta == 1:
            yield Train(cross_entropy, rules=(Ascend(self.rho),))
        else:
            # A step beta (g + (1 - beta) / beta D) with rate lr is a step g + (1 - beta) / beta D with rate beta lr.
            rules = (Ascend(self.rho), Add(DIRECTION, (1 - self.beta) / self.beta))
            trained = yield Train(cross_entropy, lr=self.beta * client.lr, momentum=0.0, rules=rules)
            start, end, rates = client.received, client.state, trained.steps * client.lr
            # Averaged like the network.
            client.put({n: (start[n] - end[n]) / rates for n in client.model(DIRECTION)}, DIRECTION)
