"""How exactly a run computes, as its setting declares it (`spec.PRECISIONS`).

- `fp32`: float32 throughout; no matrix product and no convolution is rounded to TF32. The default.
- `tf32`: torch's own way on a GPU, and so that of the papers' codes: float32, but cuDNN rounds the factors of
  convolutions to 10 bits of mantissa. Matrix products are exact, the one in a random crop among them.
- `bf16`: autocast: products and convolutions in bfloat16 (7 bits), everything that is kept in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from fedbench.errors import FedbenchError

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
