"""Colored MNIST: blocks in file order, noisy halves of the classes, colours that agree as often as they should."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import data, partitions, protocol
from fedbench.errors import FedbenchError
from fedbench.partitions.transforms import paint
from fedbench.specs import PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.partitions_lab import MADE

#: Standard deviations that a share of flips may lie off: less than one false alarm in 10^8 draws.
SIGMAS = 6


def dataset(n: int = 600, classes: int = 10, channels: int = 1) -> data.Dataset:
    """Noise in every class; 30 official test images first, so that only the split tells which is which."""
    labels = np.random.default_rng(3).integers(0, classes, n + 30)
    split = np.repeat(np.array([1, 0], np.uint8), [30, n])
    return lab.noise(labels, split, (3, 4, channels), classes=tuple("abcdefghijkl"[:classes]))


def spec(
    blocks: Any = ((0, 100, 200, 300),), flips: Any = ((0.5, 0.2),), noise: float = 0.25, seed: int = 1
) -> PartitionSpec:
    return lab.spec("colored", len(blocks), seed, blocks=blocks, flips=flips, label_noise=noise)


def test_blocks_are_training_images_in_file_order() -> None:
    of = dataset()
    made = partitions.make(spec([(0, 100, 200, 300), (100, 150, 300, 600)], [(0.5, 0.2), (0.2, 0.8)]), of)
    for client, (a, b, c, d) in enumerate(made.spec.options.get("blocks") or ()):
        assert made.sample[made.rows(client, test=False)].tolist() == list(range(int(a) + 30, int(b) + 30))
        assert made.sample[made.rows(client, test=True)].tolist() == list(range(int(c) + 30, int(d) + 30))
    assert (made.n_train.tolist(), made.n_test.tolist()) == ([100, 50], [100, 300])
    assert made.groups == [0, 1]


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_flips_are_as_frequent_as_asked(train: float, test: float, noise: float, seed: int) -> None:
    n = 4000
    of = dataset(2 * n)
    made = partitions.make(spec([(0, n, n, 2 * n)], [(train, test)], noise, seed), of)
    assert made.colour is not None
    clean = of.labels[made.sample] >= 5
    for side, flip in ((False, train), (True, test)):
        rows = made.rows(0, side)
        noisy, flipped = made.label[rows] != clean[rows], made.colour[rows] != made.label[rows]
        for p, wrong in ((noise, noisy), (flip, flipped), (noise * flip, noisy & flipped)):  # which are independent
            assert abs(wrong.mean() - p) <= SIGMAS * np.sqrt(p * (1 - p) / n) + 1e-9


@pytest.mark.parametrize(
    ("classes", "names"), [(10, ("a-e", "f-j")), (2, ("a", "b")), (3, ("a", "b-c")), (5, ("a-b", "c-e"))]
)
def test_class_names(classes: int, names: tuple[str, str]) -> None:
    of = dataset(classes=classes)
    made = partitions.make(spec(noise=0), of)
    assert made.classes == names
    assert made.label.tolist() == (of.labels[made.sample] >= classes // 2).tolist()
    assert made.class_counts().sum() == 200


def test_images_lie_in_the_channel_of_their_colour() -> None:
    of = dataset()
    made = partitions.make(spec(), of)
    seen = made.transformed_images(of)
    assert made.colour is not None
    assert set(made.colour) == {0, 1}
    assert seen.dtype == np.uint8
    assert seen.shape[1:] == made.image_shape(of.images.shape[1:]) == (3, 4, 3)
    for row, colour in enumerate(made.colour):
        for channel in range(3):
            expected = of.images[made.sample[row], :, :, 0] if channel == colour else 0
            assert np.all(seen[row, :, :, channel] == expected)
    assert np.array_equal(paint(of.images[:2], np.array([1, 0], np.int8))[..., 2], np.zeros((2, 3, 4)))
    other = partitions.make(lab.spec("iid", 3, train_fraction=0.5), of)  # which sees the data set's own shape
    assert other.colour is None
    assert other.image_shape((3, 4, 1)) == (3, 4, 1) == other.transformed_images(of).shape[1:]


def test_the_seed_draws_the_flips() -> None:
    of = dataset()
    one, again, other = (partitions.make(spec(seed=s), of) for s in (1, 1, 2))
    assert np.array_equal(one.label, again.label)
    assert np.array_equal(one.colour, again.colour)
    assert not np.array_equal(one.label, other.label)
    assert not np.array_equal(one.colour ^ one.label, other.colour ^ other.label)  # type: ignore[operator]


def test_ratios_of_the_paper() -> None:
    """ftw_erm/protocol.md#colored-mnist: weights of images whose colour disagrees and agrees with the noisy label."""
    made = partitions.make(spec([(0, 100, 200, 300), (100, 200, 300, 400)], [(0.5, 0.2), (0.2, 0.8)]), dataset())
    known = made.densities
    assert np.array_equal(known.strata == 1, made.colour == made.label)
    np.testing.assert_allclose(known.train, [[0.5, 0.5], [0.2, 0.8]])
    np.testing.assert_allclose(known.test / known.train, [[0.4, 1.6], [4, 0.25]])
    np.testing.assert_allclose(known.test.mean(axis=0) / known.train, [[1, 1], [2.5, 0.625]])


def test_layout_of_the_paper() -> None:
    """Table 12, and the block sizes of ftw_erm/protocol.md#colored-mnist."""
    options = protocol.load("ftw_erm").partition_spec(MADE, 10, preset="colored").options
    blocks, flip = options["blocks"], options["flips"]
    sizes = {"train": [b - a for a, b, _, _ in blocks], "test": [d - c for _, _, c, d in blocks]}
    flips = dict(zip(("train", "test"), zip(*flip, strict=True), strict=True))
    told = {"12": 0, "12_samples": 0, "12_label_noise": 0}
    with (Path(__file__).parent / "ftw_erm_counts.csv").open() as file:
        for row in csv.DictReader(file):
            client, value = row["client"], float(row["value"])
            if row["table"] in told:
                told[row["table"]] += 1
                found = {
                    "12": lambda k, s: flips[s][k],
                    "12_samples": lambda k, s: sizes[s][k],
                    "12_label_noise": lambda k, s: options["label_noise"],
                }[row["table"]]
                assert found(int(client) - 1, row["split"]) == value
    assert set(told.values()) == {4}
    assert max(d for *_, d in blocks) <= 60_000  # the training images of MNIST


@pytest.mark.parametrize(
    ("of", "asked", "says"),
    [
        (dataset(channels=3), spec(), "needs grey images, and made has 3 channels"),
        (dataset(classes=1), spec(), "needs two classes or more, and made has one"),
        (dataset(299), spec(), "client 0 asks for images 200 to 300, but made has 299 training images"),
    ],
)
def test_bad_input_is_one_line(of: data.Dataset, asked: PartitionSpec, says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        partitions.make(asked, of)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
