"""Norms of a stack of clients, where torch's own rules for vmap fall short."""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
#: What autocast hands on.
SHORT = (torch.bfloat16, torch.float16)


def with_norms_for_vmap(model: nn.Module) -> nn.Module:
    """The model itself, whose batch and group norms can now be called under vmap on every device and in every
    precision."""
    for module in model.modules():
        if type(module) is nn.GroupNorm:
            module.forward = MethodType(_normalise_groups, module)  # type: ignore[method-assign]
        if type(module) in BATCH_NORMS:
            module.forward = MethodType(_normalise, module)
    return model


def _normalise(self: nn.Module, x: Tensor) -> Tensor:
    # On a GPU torch asks for the order in memory, to which it has no answer under vmap but the usual one.
    laid = x.contiguous() if x.is_cuda else x
    # Outside vmap torch normalises short numbers by statistics in float32; under vmap it takes one type only.
    exact = laid.float() if x.dtype in SHORT else laid
    out: Tensor = type(self).forward(self, exact)
    return out.to(x.dtype)


def _normalise_groups(self: nn.GroupNorm, x: Tensor) -> Tensor:
    # Of images in another order torch asks for the order in memory.
    return nn.GroupNorm.forward(self, x.contiguous())
