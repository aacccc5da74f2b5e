"""Norms: of a stack of clients, where torch's own rules for vmap fall short, and of a single image."""

from __future__ import annotations

import copy
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.plan import Plan
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded

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


def check_batches(model: nn.Module, plan: Plan, shape: tuple[int, int, int]) -> None:
    """Raise FedbenchError if the plan has a batch of a single image of this shape (height, width, channels) and the
    model a batch norm to which that is one value a channel: training would end there, in whatever round."""
    size = plan.setting.batch_size
    client = plan.lone(size)
    if client is None or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    image = torch.zeros(1, shape[2], *shape[:2], device=next(model.parameters()).device)
    try:
        with torch.no_grad(), seeded(0, None):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        images = plan.n_train[client]
        others = range(max(size, 2), max(plan.n_train) + 1)
        other = next((str(one) for one in others if plan.lone(one) is None), None)
        raise FedbenchError(
            f"client {client}, of {images} training image{'s' * (images > 1)} in batches of {size}, has a batch of a "
            "single image, of which the network's batch norm finds no variance",
            f"choose {f'--batch-size {other}' if other else 'a partition of larger clients'}, or a network without it",
        ) from None
