"""FedBN in the loop of FTW-ERM's paper: normalisation layers stay at the clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import MEMBER, Client, ClientUpdate, Context
from fedbench.core.state import State
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.one_step import AdamMemory, OneStep, Slope, adam

#: Prefix of the moments of a client's local optimiser.
OWN = "local_adam."


@dataclass(frozen=True)
class FedBN(OneStep):
    """FedBN (Li et al., ICLR 2021) as FTW-ERM's paper compares with it (Tables 2 and 7).

    It is fedsgd, except that normalisation layers, their parameters and their running statistics, never leave the
    client; they change only in rounds in which it participates. Without such layers it is fedsgd.

    deviates: as clients take no local step here, each trains the parameters of its own norms by an Adam of its own
    from the same gradient; the authors' code leaves them at 1 and 0 (`affine` frozen). Original FedBN has local epochs.
    """

    name = "fedbn"
    title = "FedBN"
    serves = (MEMBER,)

    affine: str = hyperparameter(
        "local_adam",
        "who trains the scales and shifts of the norms",
        source="protocol, Sec. 5; code: frozen",
        choices=("local_adam", "frozen"),
    )

    def is_personal(self, name: str) -> bool:
        return is_norm(name) or name.startswith(OWN)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        size = sum(p.numel() for name, p in model.named_parameters() if is_norm(name))
        if self.affine == "frozen" or not size:
            return {}
        zero = AdamMemory(torch.zeros((), dtype=torch.float64), torch.zeros(size), torch.zeros(size))
        return {f"{OWN}{part}": t for part, t in vars(zero).items()}

    def local(self, client: Client) -> ClientUpdate:
        gradient: State = (yield self.request(client)).gradient
        own = {name: g for name, g in gradient.items() if is_norm(name)}
        client.upload = Slope({name: g for name, g in gradient.items() if name not in own})
        if own and self.affine == "local_adam":
            before = AdamMemory(*(client.state[f"{OWN}{part}"] for part in ("step", "mean", "square")))
            moved, after = adam(client.state, own, before, client.lr, client.setting.weight_decay)
            client.state = {**client.state, **moved, **{f"{OWN}{part}": t for part, t in vars(after).items()}}


def is_norm(name: str) -> bool:
    """Whether a tensor belongs to a normalisation layer."""
    return any(part.startswith("norm") for part in name.split("."))
