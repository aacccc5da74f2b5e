"""ResNet-9 as FLUX uses it: eight convolutions with batch norm, two residual sums, one linear layer."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedbench.models.base import FLModel, Pixels, too_small

Shape = tuple[int, int, int]


def _block(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    """3x3 convolution with bias, batch norm, 2x2 max-pooling if wanted, ReLU (before which pooling is cheaper and
    the same)."""
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(inputs, outputs, 3, padding=1),
        "norm": nn.BatchNorm2d(outputs),
        **({"pool": nn.MaxPool2d(2)} if pool else {}),
        "act": nn.ReLU(),
    }
    return nn.Sequential(OrderedDict(layers))


class Residual(nn.Sequential):
    """x and what two blocks make of it, without an activation on the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__(_block(channels, channels), _block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + inner


class ResNet9(FLModel):
    """FLUX's network for CIFAR-100, CheXpert and Office-Home: pixels in [0, 1], torch's own initial weights.

    6,775,140 parameters on 32x32x3 with 100 classes, 6,683,790 on 64x64x1 with 14, 6,734,100 on 64x64x3 with 20.
    The head reads the flattened maps: d = z = 2,048 on 32x32 images, 8,192 on 64x64.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        height, width, channels = shape
        z = 512 * (height // 16) * (width // 16)
        if z < 1:
            raise too_small("resnet9", shape)
        layers: dict[str, nn.Module] = {
            "pixels": Pixels(),
            "block1": _block(channels, 64),
            "block2": _block(64, 128, pool=True),
            "residual1": Residual(128),
            "block3": _block(128, 256, pool=True),
            "block4": _block(256, 512, pool=True),
            "residual2": Residual(512),
            "pool": nn.MaxPool2d(2),
            "flat": nn.Flatten(),
        }
        super().__init__(nn.Sequential(OrderedDict(layers)), nn.Identity(), nn.Linear(z, classes), backbone_size=z)
