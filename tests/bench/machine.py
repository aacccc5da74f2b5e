"""The process that measures: its device, what that can do at most, and the time of a call."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedbench.core.executors import available_cores
from fedbench.machine import processor


def choose(device: str) -> torch.device:
    """The device of that name; 'auto' takes the GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def facts(device: torch.device) -> dict[str, Any]:
    """What a measurement is of."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {"device": name, "kind": device.type, "cores": available_cores(), "torch": torch.__version__}


def flops(model: nn.Module, shape: tuple[int, int, int], training: bool) -> float:
    """Floating-point operations of one image (height, width, channels), a multiply-add as two: of its forward pass, or
    of its share of a training step, forward and backward (no gradient of the pixels)."""
    height, width, channels = shape
    x = torch.zeros(2, channels, height, width)  # two images: some norms cannot train on one
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        logits = model(x)
        if training:
            F.cross_entropy(logits, torch.zeros(2, dtype=torch.long)).backward()
    return counter.get_total_flops() / 2


def wait(device: torch.device) -> None:
    """Until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timed:
    """A workload that can be done `once`."""

    device: torch.device
    images: int = 0  #: of the last time

    def once(self) -> None:
        raise NotImplementedError

    def repeat(self) -> float:
        """Seconds of the workload done once."""
        wait(self.device)
        started = time.perf_counter()
        self.once()
        wait(self.device)
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing to stop, as a rule."""
