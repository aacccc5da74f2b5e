"""Small networks: two CNNs of pFedFDA and two variants, LeNets, a network for 8x8 digits, and an MLP.

In most the last hidden layer gives the features, so the projection is the identity. Max-pooling precedes the
activation: both are monotone, so the result is the same, and the activation has a quarter of the work (a training step
of cifar_cnn on a CPU takes 0.68 of the time).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedbench.models.base import FLModel, Pixels, flat_size, normalised_linear

Shape = tuple[int, int, int]


class _CNN(FLModel):
    """Convolutional layers, flattened into linear layers of the given sizes, each followed by `act`."""

    backbone: nn.Sequential

    def __init__(
        self, name: str, shape: Shape, classes: int, convolutions: nn.Sequential, sizes: list[int], act: nn.Module
    ) -> None:
        inputs = flat_size(convolutions, name, shape)
        backbone = convolutions.append(nn.Flatten())
        convolutional = len(backbone)  # number of layers up to the latents
        for size in sizes:
            backbone.append(nn.Linear(inputs, size)).append(act)
            inputs = size
        super().__init__(backbone, nn.Identity(), nn.Linear(inputs, classes), backbone_size=inputs)
        self.convolutional = convolutional

    def latent(self, x: Tensor) -> Tensor:
        return self.backbone[: self.convolutional](x)

    def from_latent(self, h: Tensor) -> Tensor:
        return self.head(self.projection(self.backbone[self.convolutional :](h)))


class EmnistCNN(_CNN):
    """The 4-layer CNN of pFedFDA's EMNIST experiments: 115,776 body parameters on 28x28x1, d = 128."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.LeakyReLU(0.01)
        convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 5), nn.MaxPool2d(2), act,
            nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), act,
        )  # fmt: skip
        super().__init__("emnist_cnn", shape, classes, convolutions, [128], act)


def _cifar_convolutions(channels: int, act: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5), nn.MaxPool2d(2), act,
        nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), act,
        nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), act,
    )  # fmt: skip


class CifarCNN(_CNN):
    """The 5-layer CNN of pFedFDA's CIFAR experiments: 106,400 body parameters on 32x32x3, d = 128."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.LeakyReLU(0.01)
        super().__init__("cifar_cnn", shape, classes, _cifar_convolutions(shape[2], act), [128], act)


class CifarCNNProjection(FLModel):
    """The convolutions of `CifarCNN` with ReLU, and a projection of their maps as FedDRM's network has one (linear
    layer, LayerNorm, ReLU): FedDRM at a small budget. 576 backbone features on 32x32 images; 107,946 parameters with 10
    classes."""

    def __init__(self, shape: Shape, classes: int, projection_size: int = 128) -> None:
        backbone = _cifar_convolutions(shape[2], nn.ReLU())
        size = flat_size(backbone, "cifar_cnn_projection", shape)
        projection, head = normalised_linear(size, projection_size), nn.Linear(projection_size, classes)
        super().__init__(backbone.append(nn.Flatten()), projection, head, backbone_size=size)


class CifarCNNBN(_CNN):
    """`CifarCNN` with a batch norm behind every convolution: batch norms at a small budget."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.LeakyReLU(0.01)
        layers: dict[str, nn.Module] = {}
        inputs = shape[2]
        for i, (outputs, kernel, padding) in enumerate(((16, 5, 0), (32, 5, 1), (64, 3, 1)), 1):
            layers |= {
                f"conv{i}": nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False),
                f"norm{i}": nn.BatchNorm2d(outputs),
                f"pool{i}": nn.MaxPool2d(2),
                f"act{i}": act,
            }
            inputs = outputs
        super().__init__("cifar_cnn_bn", shape, classes, nn.Sequential(OrderedDict(layers)), [128], act)


class LeNetTanh(_CNN):
    """LeNet-5 closer to the original, as FTW-ERM's code has it: tanh, average pooling, pixels in [0, 1]; 44,426
    parameters on 28x28x1 with 10 classes, d = 84."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.Tanh()
        convolutions = nn.Sequential(
            Pixels(), nn.Conv2d(shape[2], 6, 5), act, nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), act, nn.AvgPool2d(2)
        )
        super().__init__("lenet_tanh", shape, classes, convolutions, [120, 84], act)


class LeNet5Flux(_CNN):
    """LeNet-5 as FLUX's code has it: padding 2 in the first layer, ReLU, average pooling, pixels in [0, 1]; 62,006
    parameters on 28x28x3 with 10 classes, 61,706 on 28x28x1, 83,126 on 32x32x3; z = 400 or 576, d = 84.

    Averaging does not commute with ReLU, so here the pooling follows the activation.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.ReLU()
        convolutions = nn.Sequential(
            Pixels(),
            nn.Conv2d(shape[2], 6, 5, padding=2), act, nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), act, nn.AvgPool2d(2),
        )  # fmt: skip
        super().__init__("lenet5_flux", shape, classes, convolutions, [120, 84], act)


class LeNet5(_CNN):
    """LeNet-5 (LeCun et al. 1998) as the field uses it, with ReLU and max-pooling: 62,006 parameters on 32x32x3
    with 10 classes, d = 84."""

    def __init__(self, shape: Shape, classes: int, first: tuple[nn.Module, ...] = ()) -> None:
        act = nn.ReLU()
        convolutions = nn.Sequential(
            *first,
            nn.Conv2d(shape[2], 6, 5), nn.MaxPool2d(2), act,
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), act,
        )  # fmt: skip
        super().__init__("lenet5", shape, classes, convolutions, [120, 84], act)


class OneLogit(nn.Linear):
    """A linear layer of one output, which is the second of two logits; the first is 0."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return torch.cat([torch.zeros_like(out), out], 1)


class LeNet5Binary(LeNet5):
    """LeNet-5 on pixels in [0, 1] with one output for two classes, as FTW-ERM's Colored MNIST has it: 43,961
    parameters on 28x28x3.

    The logits are 0 and that output, so that cross-entropy is binary cross-entropy and the larger logit is the sign
    of the output. With more classes it is LeNet-5.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes, (Pixels(),))
        if classes == 2:
            self.head = OneLogit(self.feature_size, 1)


#: Value of `branch` -> number of stages of `LeNetGN` that its two branches share.
SHARED = {"none": 0, "shallow": 1, "mid": 2, "deep": 3}
#: Number of convolutional stages; they come first.
CONVOLUTIONAL = 2


class LeNetGN(FLModel):
    """FedDRM's LeNet, whose client branch may leave it at four depths (its Figure 6).

    Two convolutional stages (5x5, group norm, ReLU, max-pooling), linear layers 512-256, and 128 before the head.
    `branch` selects the backbone, which a second branch shares with the first: nothing (none), the first convolution
    (shallow), both (mid), or also the two linear layers (deep). The remaining layers are the projection, of which each
    branch has a copy. 2,081,554, 2,079,058, 2,027,666 and 1,075,090 parameters with a client branch, on 32x32x3 with 10
    classes and eight clients. Torch's initial weights, as in the authors' code.
    """

    def __init__(self, shape: Shape, classes: int, branch: str = "deep") -> None:
        height, width, channels = shape
        first, second = _convolutional(channels, 32, 8), _convolutional(32, 64, 16)
        maps = nn.Sequential(first, second)
        flat = flat_size(maps, "lenet_gn", shape)
        hidden = nn.Sequential(nn.Flatten(), normalised_linear(flat, 512), normalised_linear(512, 256))
        stages = [first, second, hidden, normalised_linear(256, 128)]
        shared = SHARED[branch]
        # The backbone's output is flat; a projection that starts with a convolution unflattens it.
        form = (channels, height, width) if shared == 0 else (32, (height - 4) // 2, (width - 4) // 2)
        size = (channels * height * width, form[0] * form[1] * form[2], flat, 256)[shared]
        unflatten = [nn.Unflatten(1, form)] if shared < CONVOLUTIONAL else []
        super().__init__(
            nn.Sequential(*stages[:shared], nn.Flatten()),
            nn.Sequential(*unflatten, *stages[shared:]),
            nn.Linear(128, classes),
            backbone_size=size,
        )
        #: Number of layers of backbone and projection up to the latents, including Flatten and Unflatten.
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


class DigitsCNN(_CNN):
    """A small net for 8x8 and 16x16 grey images: 13,706 parameters with 10 classes, d = 64.

    The last pooling leaves a 2x2 map whatever the size of the image, so the parameters stay as few.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.ReLU()
        last = (max(1, shape[0] // 4), max(1, shape[1] // 4))
        convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 3, padding=1), nn.MaxPool2d(2), act,
            nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(last), act,
        )  # fmt: skip
        super().__init__("digits_cnn", shape, classes, convolutions, [64], act)


class MLP(FLModel):
    """Linear layers with ReLU, for vectors (and any image, flattened): by default the 2NN of FedAvg's paper (McMahan et
    al., AISTATS 2017, Sec. 3), two hidden layers of 200 units; 199,210 parameters on 28x28x1 with 10 classes, d = 200.

    It has no convolution, so its latents are its features.
    """

    def __init__(self, shape: Shape, classes: int, width: int = 200, layers: int = 2) -> None:
        backbone, inputs = nn.Sequential(nn.Flatten()), shape[0] * shape[1] * shape[2]
        for _ in range(layers):
            backbone.append(nn.Linear(inputs, width)).append(nn.ReLU())
            inputs = width
        super().__init__(backbone, nn.Identity(), nn.Linear(width, classes), backbone_size=width)
