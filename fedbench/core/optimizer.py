"""The optimisers of clients' local steps, SGD and AdamW as torch has them: of one client, or of a stack of clients.

What an optimiser remembers of a client's earlier steps are tensors beside the parameters (`memory`); where they are
zeroed, it begins anew. A step is taken in place, with torch's fused kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedbench.core.client import Client, Train
from fedbench.core.state import State, name_in
from fedbench.specs import Setting


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD: weight decay is part of the gradient. It remembers the momentum, under the parameter's name.

    In a stack all tensors begin with the client axis, [C, ...].
    """

    moments: ClassVar[int] = 1  #: tensors as large as a parameter that it remembers of it, at most

    weight_decay: float
    momentum: float

    def memory(self, parameters: Mapping[str, Tensor], stacked: bool) -> State:
        """What is remembered before the first step: zeros."""
        return {name: torch.zeros_like(p) for name, p in parameters.items()} if self.momentum else {}

    def apart(self) -> SGD:
        """The same for a stack whose clients have taken different numbers of steps."""
        return self

    def descend(self, parameters: Mapping[str, Tensor], memory: State, lr: float | Tensor) -> None:
        """One step in place, with the gradients that the parameters hold and then hold no more.

        A parameter without a gradient (the loss does not touch it) stays where it is.
        """
        touched = {name: p for name, p in parameters.items() if p.grad is not None}
        with torch.no_grad():
            # The function behind torch.optim.SGD: the class takes as long again for its book-keeping on small networks.
            sgd(
                list(touched.values()),
                [g for p in touched.values() if (g := p.grad) is not None],
                [memory.get(name) for name in touched],
                fused=True,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=lr,  # type: ignore[arg-type]  # a tensor will do where it is fused
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        for p in touched.values():
            p.grad = None


#: Of AdamW: torch's defaults.
BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class AdamW:
    """torch.optim.AdamW (Loshchilov and Hutter, ICLR 2019): weight decay shrinks the weights, apart from the gradient.
    To be used as `SGD`.

    It remembers the means of gradients and of their squares, and the number of steps (float32 []; of a stack [C]).
    """

    moments: ClassVar[int] = 2

    weight_decay: float
    in_step: bool  #: the clients of a stack have always taken as many steps as one another

    def apart(self) -> AdamW:
        return replace(self, in_step=False)

    def memory(self, parameters: Mapping[str, Tensor], stacked: bool) -> State:
        zeros: State = {}
        for name, p in parameters.items():
            mean, square, steps = _names(name)
            zeros |= {mean: torch.zeros_like(p), square: torch.zeros_like(p)}
            zeros[steps] = torch.zeros(len(p) if stacked else (), device=p.device)
        return zeros

    def descend(self, parameters: Mapping[str, Tensor], memory: State, lr: float | Tensor) -> None:
        touched = {name: p for name, p in parameters.items() if p.grad is not None}
        means, squares, steps = ([memory[_names(name)[k]] for name in touched] for k in range(3))
        gradients = [g for p in touched.values() if (g := p.grad) is not None]
        tensors = [list(touched.values()), gradients, means, squares, steps]
        if any(s.dim() for s in steps):
            tensors = _as_one(tensors) if self.in_step else _each(tensors)
        with torch.no_grad():
            adamw(
                tensors[0],
                tensors[1],
                tensors[2],
                tensors[3],
                max_exp_avg_sqs=[],
                state_steps=tensors[4],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=lr,
                weight_decay=self.weight_decay,
                eps=EPS,
                maximize=False,
            )
        for p in touched.values():
            p.grad = None


def _as_one(tensors: list[list[Tensor]]) -> list[list[Tensor]]:
    """Parameters, gradients, means, squares and steps of a stack in step as those of one client; the steps, of which
    torch counts one client's, move on here."""
    *whole, steps = tensors
    one = [s[0].clone() for s in steps]
    for s in steps:
        s += 1
    return [*whole, one]


def _each(tensors: list[list[Tensor]]) -> list[list[Tensor]]:
    """The same as those of many clients: views of the stack's."""
    return [[part for t in kind for part in t.unbind()] for kind in tensors]


def _names(parameter: str) -> tuple[str, str, str]:
    """Under which names AdamW remembers what it does of a parameter."""
    return f"{parameter}/mean", f"{parameter}/square", f"{parameter}/steps"


#: How local steps are taken.
Optimizer = SGD | AdamW


def optimizer(setting: Setting, momentum: float | None = None) -> Optimizer:
    """The optimiser of a request: SGD where it has a momentum of its own, else the setting's."""
    if setting.optimizer == "adamw" and momentum is None:
        # Where it begins anew with every pass, clients with fewer batches a pass do so after fewer steps; where it
        # lives, who was in more rounds has taken more.
        return AdamW(setting.weight_decay, in_step=not (setting.momentum_restarts or setting.momentum_lives))
    return SGD(setting.weight_decay, setting.momentum if momentum is None else momentum)


# -- momentum --------------------------------------------------------------------------------------------------
# Momentum that lives: what an optimiser remembers of a client's model goes on in the client's next round.
#
# It stays with the client beside its personal state (`Server.momenta`), apart from what methods see, and nobody sends
# it.


def recall(client: Client, request: Train, memory: State) -> None:
    """Fill the optimiser's memory [...] with what it held after the client's last steps on this model."""
    kept = client.work.momenta or {}
    for name, place in memory.items() if kept else ():
        if (before := kept.get(_key(request, name))) is not None:
            place.copy_(before)


def remember(client: Client, request: Train, memory: State) -> None:
    """Keep what the optimiser holds after the client's steps, if momentum lives."""
    if client.work.momenta is not None:
        client.work.momenta |= {_key(request, name): t.detach().clone() for name, t in memory.items()}


def _key(request: Train, name: str) -> str:
    """Under which name it is kept what is remembered under `name` in a request's own models."""
    if request.momentum_of is None:
        return name
    assert isinstance(request.model, str), "several models have their own momenta"
    return name_in(request.momentum_of, name.removeprefix(f"{request.model}/"))
