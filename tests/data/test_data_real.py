"""The real images of FEDBENCH_DATA: counts as published, pixels as they should look."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedbench.data import Dataset, check, recipe, resolve
from fedbench.store import Store
from tests.support.real_images import RealImages

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST += [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
#: Of the first 5,000 training and 1,000 test images of MNIST.
MNIST_M = [479, 563, 488, 493, 535, 434, 501, 550, 462, 495, 85, 126, 116, 107, 110, 87, 87, 99, 89, 94]
USPS = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644, 359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


def counts(got: Dataset, labels: np.ndarray | None = None, classes: int | None = None) -> list[int]:
    values = got.labels if labels is None else labels
    return [int(n) for s in (0, 1) for n in np.bincount(values[got.split == s], minlength=classes or len(got.classes))]


#: The moments of the training images, in grey levels, by which everybody normalises these data sets.
MOMENTS = {
    "mnist": ([33.32], [78.57]),
    "fashion_mnist": ([72.94], [90.02]),
    "cifar10": ([125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
    "cifar100": ([129.3, 124.1, 112.4], [68.2, 65.4, 70.4]),
}
#: A frog, twice a truck, then a deer and two automobiles open the training images of CIFAR-10.
FIRST = {"cifar10": [6, 9, 9, 4, 1, 1], "mnist": [5, 0, 4, 1, 9]}
slow = pytest.mark.slow  # thousands of PNG files to decode


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", MNIST),
        ("mnist_writers", MNIST),
        ("fashion_mnist", [6000] * 10 + [1000] * 10),
        ("usps", USPS),
        ("mnist_m", MNIST_M),
        pytest.param("cifar10", [5000] * 10 + [1000] * 10, marks=slow),
        pytest.param("cifar20", [2500] * 20 + [500] * 20, marks=slow),
        pytest.param("cifar100", [500] * 100 + [100] * 100, marks=slow),
        pytest.param("tinyimagenet", [40] * 200 + [10] * 200, marks=slow),
    ],
)
def test_class_counts_and_moments(name: str, expected: list[int], real_images: RealImages) -> None:
    got = real_images.load(name)
    assert counts(got) == expected
    assert (np.diff(got.split.astype(int)) >= 0).all()  # training images first
    assert got.images.shape[1:] == recipe(name).shape
    assert got.labels[: len(first := FIRST.get(name, []))].tolist() == first
    levels = np.arange(256)
    for channel, (m, s) in enumerate(zip(*MOMENTS.get(name, ([], [])), strict=True)):
        share = np.bincount(got.images[got.split == 0][..., channel].ravel(), minlength=256)
        found = np.average(levels, weights=share)
        assert abs(found - m) < 0.3
        assert abs(np.sqrt(np.average((levels - found) ** 2, weights=share)) - s) < 0.5


@slow
def test_cifar20_is_cifar100_with_coarse_labels(real_images: RealImages) -> None:
    coarse, fine = real_images.load("cifar20"), real_images.load("cifar100")
    np.testing.assert_array_equal(coarse.images, fine.images)
    np.testing.assert_array_equal(coarse.partition_labels, fine.labels)
    np.testing.assert_array_equal(coarse.labels, fine.columns["coarse"])
    assert coarse.partition_classes == fine.partition_classes == 100
    pairs = {(int(c), int(f)) for c, f in zip(coarse.labels, fine.labels, strict=True)}
    assert len(pairs) == 100  # each fine class lies in one coarse one
    names = {fine.classes[f]: coarse.classes[c] for c, f in pairs}
    assert (names["maple_tree"], names["shark"], names["bus"]) == ("trees", "fish", "vehicles_1")


def test_writers(real_images: RealImages) -> None:
    got = real_images.load("mnist_writers")
    train, test = (set(got.columns["writer"][got.split == s].tolist()) for s in (0, 1))
    assert (len(train), len(test), len(train & test)) == (539, 297, 0)
    series = got.columns["series"][got.split == 0]
    assert [(series == s).sum() for s in (0, 4)] == [30950, 29050]
    sizes = np.unique(got.columns["writer"][got.split == 0], return_counts=True)[1]
    assert (sizes.min(), sizes.max(), np.median(sizes)) == (19, 131, 116)
    np.testing.assert_array_equal(got.images, real_images.load("mnist").images)


@slow
def test_three_domains_of_digit5(real_images: RealImages) -> None:
    mnist, usps, mnist_m = (real_images.load(name) for name in ("mnist", "usps", "mnist_m"))
    got = real_images.load("digit3")
    assert got.images.shape == (85298, 32, 32, 3)
    domain = got.columns["domain"]
    assert np.bincount(domain).tolist() == [70000, 9298, 6000]
    assert [counts(got, domain, 3)] == [[60000, 7291, 5000, 10000, 2007, 1000]]
    for code, part in enumerate((mnist, usps, mnist_m)):
        np.testing.assert_array_equal(got.labels[domain == code], part.labels)
        np.testing.assert_array_equal(got.split[domain == code], part.split)
        # Interpolation leaves the mean of an image about where it was.
        means = [images.mean((1, 2, 3)) for images in (got.images[domain == code], part.images)]
        assert np.abs(means[0] - means[1]).max() < 4
    grey = got.images[domain < 2]
    assert (grey[..., 0] == grey[..., 2]).all()
    np.testing.assert_array_equal(got.images[domain == 2], mnist_m.images)
    # The sample of MNIST-M was made from the first images of MNIST.
    np.testing.assert_array_equal(mnist_m.labels[:5000], mnist.labels[:5000])


def test_resolving_reads_no_file(store: Store, data_root: Path) -> None:
    opened: list[str] | None = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and opened is not None:
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)  # there is no taking it away
    for name in ("cifar10", "cifar100", "mnist", "tinyimagenet"):
        resolve(name, store, [data_root])
    Path(__file__).open().close()
    files, opened = opened, None
    assert __file__ in files, "the hook must hear of files"
    assert [path for path in files if path.startswith(str(data_root))] == []


def test_the_files_at_hand_are_whole(store: Store, data_root: Path) -> None:
    found = [f for name in ("cifar10", "usps", "tinyimagenet", "digit3") for f in check(name, store, [data_root])]
    other = ("binary", "folder", "archive")  # sources that may be elsewhere
    assert {f.what: f.state for f in found if not f.what.startswith(other) and f.state != "good"} == {}
    assert sum(f.state == "good" for f in found) >= 18
