"""Optimisers of local steps, SGD and AdamW as in torch, for one client or for a stack of clients.

An optimiser's state (`memory`) is a dictionary of tensors outside the optimiser object; zeros reset the optimiser.
Steps are in place, with torch's fused kernels. With `momentum_lives` this state persists over rounds (`recall`,
`remember`): it is stored with the client (`Server.momenta`), apart from the state that methods see, and never sent.
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
    """torch.optim.SGD: weight decay is part of the gradient. `memory` holds the momentum under the parameter's name.

    In a stack all tensors begin with the client axis, [C, ...].
    """

    moments: ClassVar[int] = 1  #: number of tensors of the parameter's size in `memory`, at most

    weight_decay: float
    momentum: float

    def memory(self, parameters: Mapping[str, Tensor], stacked: bool) -> State:
        """Initial optimiser state: zeros."""
        return {name: torch.zeros_like(p) for name, p in parameters.items()} if self.momentum else {}

    def apart(self) -> SGD:
        """The optimiser for a stack whose clients may have taken different numbers of steps."""
        return self

    def descend(self, parameters: Mapping[str, Tensor], memory: State, lr: float | Tensor) -> None:
        """Take one step in place, with the gradients in `p.grad`, and clear them.

        A parameter without a gradient (the loss does not depend on it) does not change.
        """
        touched = {name: p for name, p in parameters.items() if p.grad is not None}
        with torch.no_grad():
            # The function behind torch.optim.SGD: the class's overhead doubles the time of a step on small networks.
            sgd(
                list(touched.values()),
                [g for p in touched.values() if (g := p.grad) is not None],
                [memory.get(name) for name in touched],
                fused=True,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=lr,  # type: ignore[arg-type]  # the fused kernel accepts a tensor
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        for p in touched.values():
            p.grad = None


#: AdamW's beta1, beta2 and epsilon: torch's defaults.
BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class AdamW:
    """torch.optim.AdamW (Loshchilov and Hutter, ICLR 2019): weight decay is decoupled from the gradient. Same interface
    as `SGD`.

    `memory` holds running means of gradients and squared gradients, and the steps (float32 [], in a stack [C]).
    """

    moments: ClassVar[int] = 2

    weight_decay: float
    in_step: bool  #: whether all clients of a stack have taken the same number of steps

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
    """The tensors of a stack whose clients are in step, as those of one client. Counts the steps of the stack here,
    because torch increments only the copy."""
    *whole, steps = tensors
    one = [s[0].clone() for s in steps]
    for s in steps:
        s += 1
    return [*whole, one]


def _each(tensors: list[list[Tensor]]) -> list[list[Tensor]]:
    """The tensors of a stack as those of many clients (views)."""
    return [[part for t in kind for part in t.unbind()] for kind in tensors]


def _names(parameter: str) -> tuple[str, str, str]:
    """Names in `memory` of AdamW's tensors for a parameter."""
    return f"{parameter}/mean", f"{parameter}/square", f"{parameter}/steps"


#: An optimiser of local steps.
Optimizer = SGD | AdamW


def optimizer(setting: Setting, momentum: float | None = None) -> Optimizer:
    """The optimiser for a request: SGD if the request sets a momentum, else the setting's."""
    if setting.optimizer == "adamw" and momentum is None:
        # With restarts, clients with fewer batches per pass restart after fewer steps; with momentum that persists over
        # rounds, clients that took part in more rounds have taken more steps.
        return AdamW(setting.weight_decay, in_step=not (setting.momentum_restarts or setting.momentum_lives))
    return SGD(setting.weight_decay, setting.momentum if momentum is None else momentum)


def recall(client: Client, request: Train, memory: State) -> None:
    """Copy the optimiser state after the client's last steps on this model into `memory` (shapes [...], no stack)."""
    kept = client.work.momenta or {}
    for name, place in memory.items() if kept else ():
        if (before := kept.get(_key(request, name))) is not None:
            place.copy_(before)


def remember(client: Client, request: Train, memory: State) -> None:
    """Store the optimiser state after the client's steps, if it persists over rounds."""
    if client.work.momenta is not None:
        client.work.momenta |= {_key(request, name): t.detach().clone() for name, t in memory.items()}


def _key(request: Train, name: str) -> str:
    """The name under which to store an entry of `memory`: in the model `momentum_of`, if the request sets it."""
    if request.momentum_of is None:
        return name
    assert isinstance(request.model, str), "several models have their own momenta"
    return name_in(request.momentum_of, name.removeprefix(f"{request.model}/"))
