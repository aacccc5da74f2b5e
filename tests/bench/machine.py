"""This machine, for measurements: device, memory, and the profile of a call."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedbench.core.executors import available_cores
from fedbench.core.precision import peak_bytes


def choose(device: str) -> torch.device:
    """The device of that name; 'auto' takes the GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def facts(device: torch.device) -> dict[str, Any]:
    """What a measurement is recorded with."""
    from fedbench.store.provenance import git_revision

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "device": name, "kind": device.type, "cores": available_cores(), "torch": torch.__version__,
        "revision": git_revision() or "",
    }  # fmt: skip


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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


def peak_mb(device: torch.device) -> float:
    """Most memory so far, in MB (2**20 bytes): of the GPU's tensors, or of this process."""
    return peak_bytes(device) / 2**20


class Others:
    """What share of the cores' time goes to other processes between two looks. None where the system does not tell."""

    def __init__(self) -> None:
        self.before = self._look()

    def share(self) -> float | None:
        """Since this was made."""
        now = self._look()
        if self.before is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self.before, now, strict=True))
        return min(max((busy - own) / (wall * (os.cpu_count() or 1)), 0.0), 1.0)

    @staticmethod
    def _look() -> tuple[float, float, float] | None:
        """Seconds: of the clock, of all cores at work, of this process at work."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal: what the host takes away is lost as well.
        ticks = [int(n) for n in stat.read_text().splitlines()[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, time.process_time()


def profile(call: Callable[[], float], device: torch.device, lanes: int = 1, top: int = 12) -> dict[str, Any]:
    """Where the time of `call` (which gives its seconds) goes: {"busy": share of the wall time of `lanes` threads
    (or of the GPU) that is computing, "shares": [(operator or kernel, share of that computing), ...]}."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    everywhere = _ExperimentalConfig(profile_all_threads=True)  # the executor's threads are older than the profile
    with torch.profiler.profile(activities=activities, experimental_config=everywhere) as profiler:
        seconds = call()
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        # On a GPU the kernels: a replayed graph has no operators.
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        if cuda == on_device:
            spent[event.key] = event.self_device_time_total if cuda else event.self_cpu_time_total
    total = sum(spent.values()) or 1.0
    shares = sorted(((name[:60], t / total) for name, t in spent.items()), key=lambda item: -item[1])
    return {"busy": total / 1e6 / seconds / lanes, "shares": shares[:top]}
