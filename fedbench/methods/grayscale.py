"""Grayscale: FedSGD on images without their colour."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate, Context, Gradient
from fedbench.core.server import Server
from fedbench.methods.base import Method
from fedbench.methods.parts.one_step import Moments, check_one_step, mean_loss, server_step, upload_gradient
from fedbench.specs import Setting


class FirstChannel(nn.Module):
    """The brightest channel of each pixel as the first channel, the others black: a grey image in any one channel
    always looks the same. Inputs [B, C, H, W] in [-1, 1], as the trainer gives them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.amax(1, keepdim=True), torch.full_like(x[:, 1:], -1.0)], 1)


@dataclass(frozen=True)
class Grayscale(Method):
    """FedSGD with a server Adam on images whose colour is hidden (FTW-ERM, TMLR 2023, Sec. 5 and Table 3).

    The network is the same but for a first layer without parameters that puts the image into the first channel
    whatever its colour, in training and in tests. On grey images it is fedsgd.
    """

    name = "grayscale"
    title = "Grayscale"

    def check_setting(self, setting: Setting) -> None:
        check_one_step(self.name, setting)

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        backbone = model.get_submodule("backbone")
        model.backbone = nn.Sequential(OrderedDict(gray=FirstChannel(), net=backbone))
        return model

    def start(self, server: Server) -> None:
        server.memory = Moments()

    def local(self, client: Client) -> ClientUpdate | None:
        return upload_gradient(client, Gradient(mean_loss))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server_step(server, cohort)
