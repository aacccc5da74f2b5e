"""What training uses: seconds by phase, bytes and floating-point operations of a step, and what fits into memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.state import size_in_bytes


class Clock:
    """Adds up wall-clock seconds by phase; on a GPU it synchronises at the start and end of a phase."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's time to `name`."""
        started = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def reset(self) -> dict[str, float]:
        """Return the seconds so far and reset them."""
        seconds, self.seconds = self.seconds, {}
        return seconds


#: Models in one batch on a CPU, in a stack of clients or of one client's models; larger stacks do not fit the caches.
CPU_BLOCK = 16
#: Bytes that one worker's stack may take, by kind of device. They do not depend on free memory, because the clients in
#: a stack determine the rounding, and other programs must not. An 8 GB GPU has as much left for everything else.
STACK_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
#: Share of a GPU's free memory for clients' personal states; if they need more, they go to pinned host memory.
PERSONAL_SHARE = 0.3

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


@cache
def keep_freed_pages() -> bool:
    """Set glibc's allocator to keep freed memory, for the whole process; False if the allocator is another one.

    By default glibc maps activations above 128 KB to 32 MB again in each step and faults them in page by page, which
    takes a quarter of a training step of `cifar_cnn` on a CPU. Threads share one arena; otherwise each would keep its
    own freed pages, and a heap of 64 MB for every activation of 40 MB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # mallopt takes ints and returns 1 for success; older versions reject thresholds above 32 MB.
    large = mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25)
    trim = mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    return bool(large and trim and mallopt(_M_ARENA_MAX, 1) and mallopt(_M_TOP_PAD, 16 << 20))


def give_back_pages() -> None:
    """Return freed memory to the system, if the allocator can: call this before work with allocations of other sizes,
    which could not reuse it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def bytes_of_step(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """Bytes that one client's training step on these images needs: twice what autograd saves (gradients are as large),
    and copies of the parameters (weights, leaves, gradients, and the optimiser's `moments`). Measured, not estimated,
    by one forward pass on the model's device."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    state = {name: t.clone() for name, t in model.state_dict().items()}  # the pass changes running statistics
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=images.device))
    model.load_state_dict(state)
    del loss
    return 2 * sum(sizes.values()) + (3 + moments) * size_in_bytes(state)


def flop_of_step(model: nn.Module, images: Tensor) -> int:
    """Floating-point operations of one training step on these images: three times those of a forward pass, measured on
    the model's device."""
    from torch.utils.flop_counter import FlopCounterMode

    training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(images)  # eval keeps running statistics unchanged
    model.train(training)
    return 3 * int(counter.get_total_flops())


def clients_that_fit(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """Number of clients that fit into one stack on the model's device, within STACK_BYTES; at least one."""
    return max(1, STACK_BYTES[images.device.type] // bytes_of_step(model, images, moments))


def lanes_that_fit(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """Number of clients that can train in parallel, each in its own memory, in a quarter of the GPU's total memory; at
    least one. It does not depend on free memory, and results do not depend on it."""
    total = torch.cuda.get_device_properties(images.device).total_memory
    return max(1, total // 4 // bytes_of_step(model, images, moments))


def forget_peak(device: torch.device) -> None:
    """Reset `peak_bytes`, if the system supports it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Peak memory so far: of the GPU's tensors, or of this process; 0 if the system does not tell.

    Uses ru_maxrss only if /proc has no value, because a process inherits that number from its parent.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)


def fits(personal: int, device: torch.device) -> bool:
    """Whether this many bytes, the personal states of all clients, may stay on the device; always true on a CPU."""
    return device.type != "cuda" or personal <= PERSONAL_SHARE * torch.cuda.mem_get_info(device)[0]
