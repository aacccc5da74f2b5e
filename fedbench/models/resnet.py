"""ResNet-18 of FedDRM (group norm), pFedFDA (another group norm) and FTW-ERM (batch norm), and FLUX's ResNet-9."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.models.base import FLModel, Pixels, normalised_linear, too_small

Shape = tuple[int, int, int]
Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """Basic block of He et al. (2016): two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=convolution, norm=norm(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _backbone(stem: dict[str, nn.Module], norm: Norm, pool: list[nn.Module]) -> nn.Sequential:
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inputs, outputs, stride, norm), Block(outputs, outputs, 1, norm)]
        inputs = outputs
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(OrderedDict(stem)),
            blocks=nn.Sequential(*blocks),
            pool=nn.Sequential(*pool, nn.Flatten()),
        )
    )


def _he_normal_convolutions(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class ResNet18GN(FLModel):
    """FedDRM's network: CIFAR stem, GroupNorm with 16 groups, and a projection to `projection_size` features.

    Ends with a 4x4 average pool: 512 backbone features for 32x32 images, 4,608 for 96x96 (the RETINA network, which has
    projection_size=512). Convolutions He-normal (fan out), linear layers He-normal (fan in) with zero bias, scale 0 in
    the second norm of every block. Parameters: 11,168,832 in the backbone, 11,303,242 in total for 10 classes.
    """

    def __init__(self, shape: Shape, classes: int, projection_size: int = 256) -> None:
        height, width, channels = shape
        for _ in range(3):  # three stages with stride 2
            height, width = (height + 1) // 2, (width + 1) // 2
        if min(height, width) < 4:
            raise too_small("resnet18_gn", shape)
        backbone_size = 512 * (height // 4) * (width // 4)

        def norm(channels: int) -> nn.Module:
            return nn.GroupNorm(16, channels)

        stem = {"conv": nn.Conv2d(channels, 64, 3, 1, 1, bias=False), "norm": norm(64), "act": nn.ReLU()}
        projection = normalised_linear(backbone_size, projection_size)
        backbone = _backbone(stem, norm, [nn.AvgPool2d(4)])
        super().__init__(backbone, projection, nn.Linear(projection_size, classes), backbone_size=backbone_size)

    def initialise(self, module: nn.Module) -> None:
        super().initialise(module)
        _he_normal_convolutions(module)
        for part in module.modules():
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
                nn.init.zeros_(part.bias)
            elif isinstance(part, Block):
                nn.init.zeros_(part.norm2.weight)


class GroupScaleNorm(nn.Module):
    """Group norm with 32 channels per group, and one scale and one shift per *group*, not per channel.

    FedML's variant; only with it does the backbone have pFedFDA's 11,167,212 parameters.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = channels // 32
        self.weight = nn.Parameter(torch.ones(self.groups))
        self.bias = nn.Parameter(torch.zeros(self.groups))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (p.unsqueeze(1).expand(-1, 32).reshape(-1) for p in (self.weight, self.bias))
        return F.group_norm(x, self.groups, weight, bias, eps=1e-5)


class ResNet18FedML(FLModel):
    """pFedFDA's ResNet-18 for TinyImageNet: ImageNet stem, `GroupScaleNorm`, global average pool, d = 512.

    Convolutions He-normal (fan out), head with torch's default. 11,167,212 backbone parameters.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        stem = {
            "conv": nn.Conv2d(shape[2], 64, 7, 2, 3, bias=False),
            "norm": GroupScaleNorm(64),
            "act": nn.ReLU(),
            "pool": nn.MaxPool2d(3, 2, 1),
        }
        backbone = _backbone(stem, GroupScaleNorm, [nn.AdaptiveAvgPool2d(1)])
        super().__init__(backbone, nn.Identity(), nn.Linear(512, classes), backbone_size=512)

    def initialise(self, module: nn.Module) -> None:
        super().initialise(module)
        _he_normal_convolutions(module)


#: Mean and standard deviation of CIFAR-10's channels for pixels in [0, 1], as in FTW-ERM's code.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class ResNet18BN(FLModel):
    """FTW-ERM's network for CIFAR-10: CIFAR stem, batch norm, global average pool, torch's own initial weights;
    11,173,962 parameters with 10 classes, d = 512. Colour images are normalised as CIFAR-10's are."""

    def __init__(self, shape: Shape, classes: int) -> None:
        stem: dict[str, nn.Module] = {
            "pixels": Pixels(CIFAR10_MEAN, CIFAR10_STD) if shape[2] == 3 else Pixels(),
            "conv": nn.Conv2d(shape[2], 64, 3, 1, 1, bias=False),
            "norm": nn.BatchNorm2d(64),
            "act": nn.ReLU(),
        }
        backbone = _backbone(stem, nn.BatchNorm2d, [nn.AdaptiveAvgPool2d(1)])
        super().__init__(backbone, nn.Identity(), nn.Linear(512, classes), backbone_size=512)


def _convolutional(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    """3x3 convolution with bias, batch norm, optional 2x2 max-pooling, ReLU. Pooling before ReLU gives the same result
    and is faster."""
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(inputs, outputs, 3, padding=1),
        "norm": nn.BatchNorm2d(outputs),
        **({"pool": nn.MaxPool2d(2)} if pool else {}),
        "act": nn.ReLU(),
    }
    return nn.Sequential(OrderedDict(layers))


class Residual(nn.Sequential):
    """x plus two convolutional blocks of x, without an activation after the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__(_convolutional(channels, channels), _convolutional(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + inner


class ResNet9(FLModel):
    """FLUX's network for CIFAR-100, CheXpert and Office-Home: eight convolutions with batch norm, two residual sums,
    one linear layer; pixels in [0, 1], torch's own initial weights.

    6,775,140 parameters on 32x32x3 with 100 classes, 6,683,790 on 64x64x1 with 14, 6,734,100 on 64x64x3 with 20.
    The head's inputs are the flattened maps: d = z = 2,048 on 32x32 images, 8,192 on 64x64.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        height, width, channels = shape
        z = 512 * (height // 16) * (width // 16)
        if z < 1:
            raise too_small("resnet9", shape)
        layers: dict[str, nn.Module] = {
            "pixels": Pixels(),
            "block1": _convolutional(channels, 64),
            "block2": _convolutional(64, 128, pool=True),
            "residual1": Residual(128),
            "block3": _convolutional(128, 256, pool=True),
            "block4": _convolutional(256, 512, pool=True),
            "residual2": Residual(512),
            "pool": nn.MaxPool2d(2),
            "flat": nn.Flatten(),
        }
        super().__init__(nn.Sequential(OrderedDict(layers)), nn.Identity(), nn.Linear(z, classes), backbone_size=z)
