"""Convolution as a matrix product of unfolded images: under vmap, C clients' layers become one batched product."""

from __future__ import annotations

import copy
from types import MethodType
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def as_products(model: nn.Module) -> nn.Module:
    """A model with the same parameters (the same tensors) whose plain 2-d convolutions are matrix products."""
    other = twin(model)
    for module in other.modules():
        if is_plain(module) and isinstance(module.padding, tuple):
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
    return other


def twin(model: nn.Module) -> nn.Module:
    """A copy of the modules on the same parameters and buffers (the same tensors)."""
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


def is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is an ungrouped 2-d convolution over zeros."""
    return type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"


def _forward(self: nn.Conv2d, x: Tensor) -> Tensor:
    return convolution(x, self.weight, self.bias, self.stride, self.padding, self.dilation)  # type: ignore[arg-type]


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """x [B, I, H, W] with weight [O, I, kh, kw] gives [B, O, H', W'], as F.conv2d does.

    The taps are cut as strided slices, not with F.unfold, whose kernel runs image by image.
    """
    kh, kw = weight.shape[2:]
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    high = (x.shape[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    wide = (x.shape[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    taps = [
        x[:, :, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]][:, :, :high, :wide]
        for i in range(kh)
        for j in range(kw)
    ]
    columns = torch.stack([t.permute(0, 2, 3, 1) for t in taps], -1)  # [B, H', W', I, kh kw]
    out = columns.flatten(3) @ weight.flatten(1).T
    if bias is not None:
        out = out + bias
    # Contiguous: of one client's single image, torch's batch norm on a CPU misreads the permuted strides (backward).
    return out.permute(0, 3, 1, 2).contiguous()
