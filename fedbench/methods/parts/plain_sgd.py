"""Methods whose steps follow a rule of their own, so that the setting's optimiser has no say."""

from __future__ import annotations

from fedbench.errors import FedbenchError
from fedbench.specs import Setting


def check_sgd(name: str, setting: Setting) -> None:
    """Raise FedbenchError unless the setting leaves the optimiser at SGD: another would change the run's name alone."""
    if setting.optimizer is not None:
        raise FedbenchError(
            f"{name} takes its steps by a rule of its own, not by {setting.optimizer}", "leave --optimizer out"
        )
