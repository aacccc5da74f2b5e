"""Image classification data sets of torchvision: where it lays their files, and which splits they have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Set:
    """One of torchvision's data sets, whose class has its name."""

    files: tuple[str, ...]  #: files and folders below torchvision's root; "{split}" is the variant
    #: Arguments that choose the training and the test images.
    sides: tuple[tuple[str, object], tuple[str, object]] = (("split", "train"), ("split", "test"))
    variants: tuple[str, ...] = ()  #: of EMNIST: values of its argument `split`


_TRAIN: tuple[tuple[str, object], tuple[str, object]] = (("train", True), ("train", False))


def _idx(folder: str, train: str = "train", test: str = "t10k") -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{side}-{kind}" for side in (train, test) for kind in kinds)


SETS: dict[str, Set] = {
    "CIFAR10": Set(("cifar-10-batches-py",), _TRAIN),
    "CIFAR100": Set(("cifar-100-python",), _TRAIN),
    "Country211": Set(("country211",)),
    "DTD": Set(("dtd",)),
    "EMNIST": Set(
        _idx("EMNIST", "emnist-{split}-train", "emnist-{split}-test"),
        _TRAIN,
        ("balanced", "byclass", "bymerge", "digits", "letters", "mnist"),
    ),
    "FGVCAircraft": Set(("fgvc-aircraft-2013b",)),
    "FashionMNIST": Set(_idx("FashionMNIST"), _TRAIN),
    "Flowers102": Set(("flowers-102",)),
    "Food101": Set(("food-101",)),
    "GTSRB": Set(("gtsrb",)),
    "KMNIST": Set(_idx("KMNIST"), _TRAIN),
    "MNIST": Set(_idx("MNIST"), _TRAIN),
    "OxfordIIITPet": Set(("oxford-iiit-pet",), (("split", "trainval"), ("split", "test"))),
    "STL10": Set(("stl10_binary",)),
    "SVHN": Set(("train_32x32.mat", "test_32x32.mat")),
    "USPS": Set(("usps.bz2", "usps.t.bz2"), _TRAIN),
}
