"""Memory: how many clients fit in a stack, and pages that need not be faulted in again at every step."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.state import size_in_bytes

#: Models that are computed at once on a CPU, of a stack of clients or of one client: more would only fall out of the
#: caches.
CPU_BLOCK = 16
#: Bytes that one worker's stack may take, by kind of device. Not a share of what is free: which clients share a stack
#: decides a run's last bits, and other programs must not. A GPU of 8 GB has as much again for all the rest.
STACK_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
#: Share of a GPU's free memory that clients' personal states may take; beyond it they wait in pinned host memory.
PERSONAL_SHARE = 0.3

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


@cache
def keep_freed_pages() -> bool:
    """Tell glibc's allocator to keep what is freed, for the whole process; False where there is no such allocator.

    By default every activation above 128 KB to 32 MB is mapped anew at each step and faulted in page by page: a
    quarter of the time of a training step of `cifar_cnn` on a CPU. All threads share them: else each keeps pages of
    its own, and a heap of 64 MB for every activation of 40.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # mallopt returns 1 for success and takes ints; older versions take no threshold above 32 MB.
    large = mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25)
    trim = mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    return bool(large and trim and mallopt(_M_ARENA_MAX, 1) and mallopt(_M_TOP_PAD, 16 << 20))


def give_back_pages() -> None:
    """Give freed pages back to the system, where that can be said: before work that allocates in other sizes, which
    would come to lie beside them."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def bytes_of_step(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """Bytes that one client's training step on these images holds: what autograd saves, twice (gradients are as
    large), and copies of the parameters (weights, leaves, gradients, and the optimiser's `moments`). Counted, not
    guessed: the forward pass is run once on the model's device."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    state = {name: t.clone() for name, t in model.state_dict().items()}  # the pass moves running statistics
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=images.device))
    model.load_state_dict(state)
    del loss
    return 2 * sum(sizes.values()) + (3 + moments) * size_in_bytes(state)


def flop_of_step(model: nn.Module, images: Tensor) -> int:
    """Floating-point operations of one training step on these images: three times those of the forward pass, which is
    run once on the model's device."""
    from torch.utils.flop_counter import FlopCounterMode

    training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(images)  # leaves running statistics alone
    model.train(training)
    return 3 * int(counter.get_total_flops())


def clients_that_fit(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """How many clients one stack may hold on the model's device; at least one."""
    return max(1, STACK_BYTES[images.device.type] // bytes_of_step(model, images, moments))


def lanes_that_fit(model: nn.Module, images: Tensor, moments: int = 1) -> int:
    """How many clients may train side by side on the model's GPU in a quarter of its memory, each in memory of its
    own; at least one. What is free does not matter, nor do a client's bits depend on it."""
    total = torch.cuda.get_device_properties(images.device).total_memory
    return max(1, total // 4 // bytes_of_step(model, images, moments))


def forget_peak(device: torch.device) -> None:
    """Let `peak_bytes` count from now on, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Most memory so far: of the GPU's tensors, or of this process.

    Not ru_maxrss where Linux tells more: a process inherits that figure from the one that started it.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)


def fits(personal: int, device: torch.device) -> bool:
    """Whether so many bytes of all clients' personal states may stay on the device. A CPU's memory is their home."""
    return device.type != "cuda" or personal <= PERSONAL_SHARE * torch.cuda.mem_get_info(device)[0]
