"""How exactly a run computes, how much memory that takes, and its clock."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.state import size_in_bytes
from fedbench.errors import FedbenchError

# -- precision -------------------------------------------------------------------------------------------------
# How exactly a run computes, as its setting declares it (`specs.run.PRECISIONS`).
#
# - `fp32`: float32 throughout; no matrix product and no convolution is rounded to TF32. The default.
# - `tf32`: torch's own way on a GPU, and so that of the papers' codes: float32, but cuDNN rounds the factors of
#   convolutions to 10 bits of mantissa. Matrix products are exact, the one in a random crop among them.
# - `bf16`: autocast: products and convolutions in bfloat16 (7 bits), everything that is kept in float32.


#: The first compute capability with TF32 and bfloat16 arithmetic (Ampere).
CAPABILITY = (8, 0)

_PLAIN: AbstractContextManager[Any] = contextlib.nullcontext()  # has no state: one serves all threads


def check(precision: str, device: torch.device) -> None:
    """Raise FedbenchError unless the device can compute so."""
    if precision == "fp32" or (precision, device.type) == ("bf16", "cpu"):
        return
    if device.type != "cuda":
        raise FedbenchError(f"{precision} needs a GPU, and this is a {device.type.upper()}", "use --precision fp32")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < CAPABILITY:
        needed = ".".join(map(str, CAPABILITY))
        raise FedbenchError(
            f"{precision} needs compute capability {needed}, and {torch.cuda.get_device_name(device)} has"
            f" {major}.{minor}",
            "use --precision fp32",
        )


@contextlib.contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Around a whole run: torch's TF32 switches (of matrix products and of cuDNN) as the precision says.

    They are put back at the end. They belong to the process, not to a thread: runs of two precisions cannot share a
    process at the same time. On a CPU nothing is touched.
    """
    if device.type != "cuda":
        yield
        return
    products, convolutions, name, (off, on) = _switches()
    owners = (products, *convolutions)
    before = [getattr(owner, name) for owner in owners]
    try:
        for owner in owners:
            # Under bf16 too: what autocast leaves in float32 is meant to be exact.
            setattr(owner, name, on if precision == "tf32" and owner is not products else off)
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(owner, name, value)


def _switches() -> tuple[Any, tuple[Any, ...], str, tuple[Any, Any]]:
    """(object of matrix products, those of cuDNN, their attribute, its (off, on)), by this torch's one interface.

    Since 2.9 that is `fp32_precision`. The older `allow_tf32` still exists there, but it warns in some versions, and
    reading it raises once the newer one has been set: it may not be touched at all.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision") and hasattr(cudnn, "conv"):
        return matmul, (cudnn.conv, cudnn.rnn), "fp32_precision", ("ieee", "tf32")
    return matmul, (cudnn,), "allow_tf32", (False, True)


def layout(precision: str, device: torch.device) -> torch.memory_format:
    """How a network's weights and its images lie in memory: channels-last, but on a GPU in float32.

    There cuDNN is quick in that order with TF32 and bfloat16 alone: on an H100 a ResNet-18's steps took 1.7 times as
    long as plain PyTorch's, as others have seen (https://github.com/pytorch/pytorch/issues/44943).
    """
    plain = device.type == "cuda" and precision == "fp32"
    return torch.contiguous_format if plain else torch.channels_last


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Around one forward pass and its loss: under bf16, products and convolutions take and give bfloat16.

    What stays float32: the weights and buffers that a client holds (each product works on a rounded copy), their
    gradients, the optimiser and its momentum, aggregation (float64 sums), and a method's own statistics, which it
    computes outside the context from features that were rounded. bfloat16 has float32's range: losses need no scaling.
    The backward pass and the optimiser's step belong outside.

    The loss is float32 where it takes `logits.float()`. Without that, `F.cross_entropy` of a single client's logits
    still is; under vmap on a CPU it is not, for autocast sees it in pieces. (And there convolutions stay in float32,
    and a bias is added in float32: stacked clients agree with single ones in fp32 only.)

    A new context each step, outside of vmap. Autocast belongs to the thread, so threads do not disturb each other. Its
    cache of rounded weights belongs to all of them, and is off: a net uses each weight once a pass, weights that change
    within the context count at once, and no copy from before a CUDA graph can be captured into it.
    """
    if precision != "bf16":
        return _PLAIN
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class Clock:
    """Accumulates wall seconds by phase; on a GPU it waits for the device at a phase's ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`."""
        started = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def reset(self) -> dict[str, float]:
        """The seconds so far; the counts start again at zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds


# -- memory ----------------------------------------------------------------------------------------------------


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
