"""Floating-point operations of a network: products and convolutions, a multiply-add as two."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from workloads import Workload


def forward(model: nn.Module, shape: tuple[int, int, int]) -> float:
    """Of one image's forward pass; `shape` is (height, width, channels)."""
    return _count(model, shape, backward=False)


def training(model: nn.Module, shape: tuple[int, int, int]) -> float:
    """Of one image's share of a training step: forward and backward (no gradient of the pixels)."""
    return _count(model, shape, backward=True)


def of(workload: Workload) -> float:
    """Of a repeat of the workload."""
    count = forward if workload.answers else training
    return count(workload.build(), workload.shape) * workload.work[1]


def _count(model: nn.Module, shape: tuple[int, int, int], backward: bool) -> float:
    height, width, channels = shape
    x = torch.zeros(2, channels, height, width)  # two images: some norms cannot train on one
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        logits = model(x)
        if backward:
            F.cross_entropy(logits, torch.zeros(2, dtype=torch.long)).backward()
    return counter.get_total_flops() / 2
