"""Small convolutional networks: the two CNNs of pFedFDA, LeNet-5, and a net for 8x8 digits.

Each has its features in the last hidden layer, so the neck is the identity. Pooling stands before the
activation: both are monotone, so the values are the same, and the activation has a quarter of the work (a
training step of cifar_cnn on a CPU takes 0.68 of the time).
"""

from __future__ import annotations

from torch import nn

from fedbench.models.base import FLModel, flat_size

Shape = tuple[int, int, int]


class _CNN(FLModel):
    """Convolutional layers, flattened into linear layers of the given sizes, each followed by `act`."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        classes: int,
        convolutions: nn.Sequential,
        sizes: list[int],
        act: nn.Module,
    ) -> None:
        layers: list[nn.Module] = [*convolutions, nn.Flatten()]
        inputs = flat_size(convolutions, name, shape)
        for size in sizes:
            layers += [nn.Linear(inputs, size), act]
            inputs = size
        super().__init__(nn.Sequential(*layers), nn.Identity(), nn.Linear(inputs, classes), trunk_size=inputs)


class EmnistCNN(_CNN):
    """The 4-layer CNN of pFedFDA's EMNIST experiments: 115,776 body parameters on 28x28x1, d = 128."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.LeakyReLU(0.01)
        convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 5), nn.MaxPool2d(2), act,
            nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), act,
        )  # fmt: skip
        super().__init__("emnist_cnn", shape, classes, convolutions, [128], act)


class CifarCNN(_CNN):
    """The 5-layer CNN of pFedFDA's CIFAR experiments: 106,400 body parameters on 32x32x3, d = 128."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.LeakyReLU(0.01)
        convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 5), nn.MaxPool2d(2), act,
            nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), act,
            nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), act,
        )  # fmt: skip
        super().__init__("cifar_cnn", shape, classes, convolutions, [128], act)


class LeNet5(_CNN):
    """LeNet-5 (LeCun et al. 1998) as the field uses it, with ReLU and max-pooling: 62,006 parameters on 32x32x3
    with 10 classes, d = 84."""

    def __init__(self, shape: Shape, classes: int) -> None:
        act = nn.ReLU()
        convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 6, 5), nn.MaxPool2d(2), act,
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), act,
        )  # fmt: skip
        super().__init__("lenet5", shape, classes, convolutions, [120, 84], act)


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
