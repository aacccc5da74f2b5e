"""Local steps shared out between two phases of a round, as FedDRM's comparison does (section 6 of its protocol)."""

from __future__ import annotations

from fedbench.methods.base import check
from fedbench.specs import Setting


def check_split(method: str, option: str, phase_steps: int, setting: Setting) -> None:
    """Raise FedbenchError unless a phase of so many steps leaves some of the setting's local steps (0: no split)."""
    if phase_steps:
        wanted = "0 where a setting counts local epochs" if setting.steps is None else f"below {setting.steps} steps"
        check(setting.steps is not None and phase_steps < setting.steps, method, option, phase_steps, wanted)


def remaining(setting: Setting, phase_steps: int) -> int | None:
    """The steps of the other phase; None, the setting's whole local work, where nothing is split."""
    return setting.steps - phase_steps if phase_steps and setting.steps is not None else None
