"""Arithmetic precision of a run, as its setting declares it (`specs.run.PRECISIONS`).

- `fp32`: float32 throughout; no matrix product or convolution uses TF32. The default.
- `tf32`: torch's default on a GPU, and so that of the papers' code: float32, but cuDNN rounds the factors of
  convolutions to 10 bits of mantissa. Matrix products stay exact, including the one in a random crop.
- `bf16`: autocast: products and convolutions in bfloat16 (7 bits); everything stored stays in float32.
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

_PLAIN: AbstractContextManager[Any] = contextlib.nullcontext()  # stateless, so threads can share it


def check(precision: str, device: torch.device) -> None:
    """Raise FedbenchError unless the device supports the precision."""
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
    """Set torch's TF32 switches (of matrix products and of cuDNN) for the duration of a run.

    Restores them at the end. They belong to the process, not to a thread, so runs of different precision cannot share a
    process at the same time. Does nothing on a CPU.
    """
    if device.type != "cuda":
        yield
        return
    products, convolutions, name, (off, on) = _switches()
    owners = (products, *convolutions)
    before = [getattr(owner, name) for owner in owners]
    try:
        for owner in owners:
            # Also for bf16: what autocast leaves in float32 must be exact.
            setattr(owner, name, on if precision == "tf32" and owner is not products else off)
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(owner, name, value)


def _switches() -> tuple[Any, tuple[Any, ...], str, tuple[Any, Any]]:
    """(switch of matrix products, switches of cuDNN, their attribute, its (off, on)) in this version of torch.

    Since 2.9 the attribute is `fp32_precision`. The older `allow_tf32` still exists, but some versions warn, and
    reading it raises after the newer one has been set, so it must not be used there.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision") and hasattr(cudnn, "conv"):
        return matmul, (cudnn.conv, cudnn.rnn), "fp32_precision", ("ieee", "tf32")
    return matmul, (cudnn,), "allow_tf32", (False, True)


def layout(precision: str, device: torch.device) -> torch.memory_format:
    """Memory format of a network's weights and images: channels-last, except in float32 on a GPU.

    There cuDNN is fast with channels-last only in TF32 and bfloat16: in float32 on an H100, a ResNet-18's steps took
    1.7 times as long as plain PyTorch's (see https://github.com/pytorch/pytorch/issues/44943).
    """
    plain = device.type == "cuda" and precision == "fp32"
    return torch.contiguous_format if plain else torch.channels_last


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context for one forward pass and its loss; with bf16, products and convolutions compute in bfloat16.

    These stay in float32: the weights and buffers of clients (each product rounds a copy), gradients, the optimiser and
    its momentum, aggregation (sums in float64), and a method's statistics, which it computes from rounded features
    outside the context. Losses need no scaling, since bfloat16 has the range of float32. Run the backward pass and the
    optimiser's step outside.

    The loss is float32 if it uses `logits.float()`. Without that, `F.cross_entropy` of one client's logits is still
    float32, but not under vmap on a CPU, where autocast sees its component operations. (There convolutions also stay
    in float32, and biases are added in float32, so stacked and single clients agree only in fp32.)

    Create a new context per step, outside vmap. Autocast is per thread, so threads do not interfere. Its cache of
    rounded weights is shared by all threads and therefore off: networks use each weight once per pass, changes of
    weights inside the context take effect at once, and a CUDA graph cannot capture an old copy.
    """
    if precision != "bf16":
        return _PLAIN
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
