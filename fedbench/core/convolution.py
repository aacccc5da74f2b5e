"""A network's twin, and which of its convolutions are plain."""

from __future__ import annotations

import copy
from typing import TypeGuard

from torch import nn


def twin(model: nn.Module) -> nn.Module:
    """A copy of the modules on the same parameters and buffers (the same tensors)."""
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


def is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is an ungrouped 2-d convolution over zeros."""
    return type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"
