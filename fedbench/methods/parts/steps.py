"""Methods whose steps follow a rule of their own, so that the setting's optimiser has no say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fedbench.core.state import STATISTICS, State, name_in
from fedbench.errors import FedbenchError
from fedbench.methods.base import check, hyperparameter
from fedbench.specs import Setting

# -- plain sgd -------------------------------------------------------------------------------------------------


def check_sgd(name: str, setting: Setting) -> None:
    """Raise FedbenchError unless the setting leaves the optimiser at SGD: another would change the run's name alone."""
    if setting.optimizer is not None:
        raise FedbenchError(
            f"{name} takes its steps by a rule of its own, not by {setting.optimizer}", "leave --optimizer out"
        )


# -- split steps -----------------------------------------------------------------------------------------------
# Local steps shared out between two phases of a round, as FedDRM's comparison does (section 6 of its protocol).


def check_split(method: str, option: str, phase_steps: int, setting: Setting) -> None:
    """Raise FedbenchError unless a phase of so many steps leaves some of the setting's local steps (0: no split)."""
    if phase_steps:
        wanted = "0 where a setting counts local epochs" if setting.steps is None else f"below {setting.steps} steps"
        check(setting.steps is not None and phase_steps < setting.steps, method, option, phase_steps, wanted)


def remaining(setting: Setting, phase_steps: int) -> int | None:
    """The steps of the other phase; None, the setting's whole local work, where nothing is split."""
    return setting.steps - phase_steps if phase_steps and setting.steps is not None else None


# -- finetuning ------------------------------------------------------------------------------------------------
# Last rounds of a run without communication, in which each client goes on with its own copy (FedDRM, Sec. 3.1).


def finetune_hyperparameter() -> Any:
    """The hyper-parameter `finetune_rounds`, the number of such rounds."""
    return hyperparameter(0, "last rounds without communication", source="FedDRM, Sec. 3.1: 100 of 800", least=0)


def check_finetuning(method: str, rounds: int, setting: Setting) -> None:
    """Raise FedbenchError unless so many rounds leave some that communicate."""
    check(rounds < setting.rounds, method, "finetune-rounds", rounds, f"below the number of rounds, {setting.rounds}")


# -- parameters ------------------------------------------------------------------------------------------------
# What a method keeps or moves beside each parameter of the network, running statistics left out.


def zeros(model: nn.Module, *names: str) -> State:
    """A tensor of zeros for each parameter of the network, under each of these names: "control/backbone.0.weight"."""
    return {name_in(name, n): torch.zeros_like(p.detach()) for name in names for n, p in model.named_parameters()}


def trainable(state: State) -> list[str]:
    """Names of what an optimiser may move: neither counters nor running statistics."""
    return [n for n, t in state.items() if t.is_floating_point() and not n.endswith(STATISTICS)]


def moved(before: State, after: State, share: float, names: Iterable[str]) -> State:
    """The named tensors on that share of their way from one state to another; beyond the end if it is above 1."""
    return {n: torch.lerp(before[n], after[n], share) for n in names}
