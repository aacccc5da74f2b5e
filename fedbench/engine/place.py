"""Where a run computes: the device, and what it must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """'auto' (a GPU if there is one), 'cpu' or 'cuda'."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise FedbenchError("no CUDA device here", "use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_place(device: str, executor: str, precision: str) -> torch.device:
    """The device of that name. Raises FedbenchError unless this machine has it, it can compute so, and there is such
    an executor."""
    place = choose_device(device)
    from fedbench.core import precision as precisions
    from fedbench.core.executors import EXECUTORS

    precisions.check(precision, place)
    if executor not in ("auto", *EXECUTORS):
        raise unknown("executor", executor, ("auto", *EXECUTORS))
    return place
