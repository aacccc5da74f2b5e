"""Last rounds of a run without communication, in which each client goes on with its own copy (FedDRM, Sec. 3.1)."""

from __future__ import annotations

from typing import Any

from fedbench.methods.base import check, hyperparameter
from fedbench.specs import Setting


def finetune_hyperparameter() -> Any:
    """The hyper-parameter `finetune_rounds`, the number of such rounds."""
    return hyperparameter(0, "last rounds without communication", source="FedDRM, Sec. 3.1: 100 of 800", least=0)


def check_finetuning(method: str, rounds: int, setting: Setting) -> None:
    """Raise FedbenchError unless so many rounds leave some that communicate."""
    check(rounds < setting.rounds, method, "finetune-rounds", rounds, f"below the number of rounds, {setting.rounds}")
