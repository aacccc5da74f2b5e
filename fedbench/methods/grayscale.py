"""Grayscale: FedSGD on grey images."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.core.client import Context
from fedbench.methods.parts.one_step import OneStep


class FirstChannel(nn.Module):
    """Put the brightest channel of each pixel into the first channel and make the others black, so that a grey image in
    any one channel always looks the same. Inputs [B, C, H, W] are in [-1, 1], as the trainer gives them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.amax(1, keepdim=True), torch.full_like(x[:, 1:], -1.0)], 1)


@dataclass(frozen=True)
class Grayscale(OneStep):
    """FedSGD with a server Adam on images whose colour is hidden (FTW-ERM, TMLR 2023, Sec. 5 and Table 3).

    The network is the same except for a first layer without parameters that puts the image into the first channel
    whatever its colour, in training and in tests. On grey images it is fedsgd.
    """

    name = "grayscale"
    title = "Grayscale"
    takes_vectors = False

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        backbone = model.get_submodule("backbone")
        model.backbone = nn.Sequential(OrderedDict(gray=FirstChannel(), net=backbone))
        return model
