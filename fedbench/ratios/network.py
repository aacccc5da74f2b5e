"""Ratio networks: a classifier of the house with one linear output (the authors' code; the paper names none)."""

from __future__ import annotations

from torch import nn

from fedbench import models
from fedbench.models.base import seeded


def ratio_network(model: str, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """A fresh network of that kind whose head is one linear output: images [B, C, H, W] -> raw outputs [B, 1].

    `shape` is (height, width, channels). The weights are determined by `seed` alone; torch's generators stay
    untouched. Raises FedbenchError as `models.build` does. A LeNet has 43,661 parameters on 28x28x1.
    """
    network = models.build(model, shape=shape, classes=2, seed=seed)
    with seeded(seed, "ratio head"):
        network.head = nn.Linear(network.feature_size, 1)
        network.initialise(network.head)
    network.classes = 1
    return network
