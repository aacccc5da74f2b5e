"""FedDRM's LeNet with group norms, whose client branch may leave the network at four depths (its Figure 6)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedbench.models.base import FLModel, flat_size, normalised_linear

Shape = tuple[int, int, int]

#: The stages that the two branches share, by where the second one leaves.
SHARED = {"none": 0, "shallow": 1, "mid": 2, "deep": 3}
#: Of the stages, the convolutional ones.
CONVOLUTIONAL = 2


class LeNetGN(FLModel):
    """Two convolutional stages (5x5, group norm, ReLU, max-pooling), linear layers 512-256, and 128 before the head.

    `branch` says how much of it the backbone is, and so what a second branch shares with the first: none of it, the
    first convolution (shallow), both (mid), or the two linear layers too (deep); all that lies behind is the
    projection, of which each branch has its own. 2,081,554, 2,079,058, 2,027,666 and 1,075,090 parameters with a client
    branch, on 32x32x3 with 10 classes and eight clients. Torch's own initial weights, as in the authors' code.
    """

    def __init__(self, shape: Shape, classes: int, branch: str = "deep") -> None:
        height, width, channels = shape
        first, second = _convolutional(channels, 32, 8), _convolutional(32, 64, 16)
        maps = nn.Sequential(first, second)
        flat = flat_size(maps, "lenet_gn", shape)
        hidden = nn.Sequential(nn.Flatten(), normalised_linear(flat, 512), normalised_linear(512, 256))
        stages = [first, second, hidden, normalised_linear(256, 128)]
        shared = SHARED[branch]
        # What the backbone gives is flat; a projection that begins with a convolution makes images of it again.
        form = (channels, height, width) if shared == 0 else (32, (height - 4) // 2, (width - 4) // 2)
        size = (channels * height * width, form[0] * form[1] * form[2], flat, 256)[shared]
        unflatten = [nn.Unflatten(1, form)] if shared < CONVOLUTIONAL else []
        super().__init__(
            nn.Sequential(*stages[:shared], nn.Flatten()),
            nn.Sequential(*unflatten, *stages[shared:]),
            nn.Linear(128, classes),
            backbone_size=size,
        )
        #: Layers of backbone and projection up to the latents, with what flattens maps and makes them maps again.
        self.convolutional = CONVOLUTIONAL + 2 * len(unflatten)

    def latent(self, x: Tensor) -> Tensor:
        return nn.Sequential(*self._layers()[: self.convolutional])(x).flatten(1)

    def from_latent(self, h: Tensor) -> Tensor:
        return self.head(nn.Sequential(*self._layers()[self.convolutional :])(h))

    def _layers(self) -> list[nn.Module]:
        return [*self.backbone, *self.projection]  # type: ignore[misc]


def _convolutional(inputs: int, outputs: int, groups: int) -> nn.Sequential:
    conv, norm = nn.Conv2d(inputs, outputs, 5), nn.GroupNorm(groups, outputs)
    return nn.Sequential(OrderedDict(conv=conv, norm=norm, pool=nn.MaxPool2d(2), act=nn.ReLU()))
