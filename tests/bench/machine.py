"""The process that measures: its device, what that can do at most, and the time of a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedbench.core.executors import available_cores
from fedbench.core.precision import layout
from fedbench.machine import processor

#: (channels in, channels out, side of the map) of ResNet-18's 3x3 convolutions on 32x32 images, one a stage.
CONVOLUTIONS = ((64, 64, 32), (128, 128, 16), (256, 256, 8), (512, 512, 4))
SQUARES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
#: Images of a convolution: a client's batch on a GPU; enough of it to be as fast on a core.
BATCH = {"cpu": 16, "cuda": 128}

#: Made anew in each thread: a function to be timed.
Work = Callable[[], Callable[[], object]]


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


def peak(device: torch.device, precision: str, seconds: float = 0.25) -> dict[str, float]:
    """GFLOP/s of `product` (square matrices) and of `convolution` (3x3), each of the best size, which is given so many
    `seconds`. On a CPU all cores work at once, each with one thread on its own data, as the executor `cores` does."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    batch, order = BATCH[device.type], layout(precision, device)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    def product(n: int) -> Callable[[], object]:
        a, b, out = normal(n, n), normal(n, n), normal(n, n)
        return lambda: torch.mm(a, b, out=out)

    def convolution(inputs: int, outputs: int, side: int) -> Callable[[], object]:
        x = normal(batch, inputs, side, side).to(memory_format=order)
        weight = normal(outputs, inputs, 3, 3).to(memory_format=order)
        return lambda: F.conv2d(x, weight, padding=1)

    def speed(operations: int, work: Work) -> float:
        return operations * _rate(work, device, seconds) / 1e9

    return {
        "product": max(speed(2 * n**3, lambda n=n: product(n)) for n in SQUARES[device.type]),
        "convolution": max(
            speed(2 * batch * s * s * 9 * i * o, lambda i=i, o=o, s=s: convolution(i, o, s)) for i, o, s in CONVOLUTIONS
        ),
    }


@torch.no_grad()
def _rate(work: Work, device: torch.device, seconds: float) -> float:
    """Calls a second, of all cores together."""
    if device.type == "cuda":
        return _of_one(work(), device, seconds)
    count = available_cores()
    rates, together = [0.0] * count, threading.Barrier(count, timeout=60)

    def run(i: int) -> None:
        torch.set_num_threads(1)  # a property of the thread
        with torch.no_grad():
            call = work()
            together.wait()
            rates[i] = _of_one(call, device, seconds)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _of_one(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    call()
    wait(device)
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(4):  # a GPU is kept busy between two waits
            call()
        wait(device)
        calls += 4
    return calls / (time.perf_counter() - started)
