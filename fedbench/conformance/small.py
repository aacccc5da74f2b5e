"""A small network of 8x8 images for much training in little time, with or without running statistics."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedbench.models.base import FLModel, seeded


class Small(FLModel):
    """One convolution and one hidden layer, 16 features; `norm` puts a BatchNorm after the convolution."""

    def __init__(self, channels: int = 1, norm: bool = False) -> None:
        between = {"norm": nn.BatchNorm2d(6)} if norm else {}
        layers = {
            "conv": nn.Conv2d(channels, 6, 3, padding=1),
            **between,
            "pool": nn.MaxPool2d(2),
            "act": nn.ReLU(),
            "flat": nn.Flatten(),
            "hidden": nn.Linear(6 * 16, 16),
            "last": nn.ReLU(),
        }
        backbone = nn.Sequential(OrderedDict(layers))
        super().__init__(backbone, nn.Identity(), nn.Linear(16, 10), backbone_size=16)


def small(channels: int = 1, norm: bool = False, seed: int = 0) -> Small:
    """The network with its weights drawn from the seed."""
    with seeded(seed, "model"):
        model = Small(channels, norm)
        model.initialise(model)
    return model
