"""FTW-ERM's target shift from class probabilities, its counts to the digit, and what holds for any mixture; Colored
MNIST: blocks in file order, noisy halves of the classes, colours that agree as often as they should."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fedbench import data, partitions, protocol
from fedbench.partitions.schemes.mixture import counts, kept
from fedbench.partitions.transforms import paint
from fedbench.ratios.exact import stratum_ratios
from fedbench.specs import PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.frames import SEEDS, few, refused
from tests.support.partitions_lab import MADE

#: Smallest and other class sizes of the training and of the test split.
FASHION = ([6000] * 10, [1000] * 10)
CIFAR10 = ([5000] * 10, [1000] * 10)
MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)


def dataset(train: list[int], test: list[int]) -> data.Dataset:
    """Images of one pixel without content, as many of each class as asked for, in no order."""
    rng = np.random.default_rng(5)
    labels = [rng.permutation(np.repeat(np.arange(len(sizes)), sizes)) for sizes in (train, test)]
    split = np.repeat(np.array([0, 1], np.uint8), [sum(train), sum(test)])
    images = np.broadcast_to(np.uint8(7), (len(split), 1, 1, 1))
    classes = tuple(f"c{k}" for k in range(len(train)))
    return lab.noise(np.concatenate(labels), split, (0, 0, 1), images=images, classes=classes)


def spec(train: Any, test: Any, clients: int | None = None, **fields: Any) -> PartitionSpec:
    return lab.spec("mixture", clients or len(train), train_mix=train, test_mix=test, **fields)


def laid_out(layout: str) -> PartitionSpec:
    return protocol.load("ftw_erm").partition_spec(MADE, 10, preset=layout)


def printed_rows() -> list[dict[str, str]]:
    with (Path(__file__).parent / "ftw_erm_counts.csv").open() as file:
        return list(csv.DictReader(file))


def printed(table: str) -> dict[tuple[int, bool], list[int]]:
    """(client from 0, test) -> the counts of the ten classes; a range of clients has an entry for each."""
    found: dict[tuple[int, bool], list[int]] = {}
    for row in printed_rows():
        if row["table"] == table:
            first, _, last = row["client"].partition("-")
            for client in range(int(first) - 1, int(last or first)):
                found.setdefault((client, row["split"] == "test"), [0] * 10)[int(row["class"])] = int(row["value"])
    return found


@pytest.mark.parametrize(
    ("table", "layout", "of", "sizes"),  # of the paper, of the protocol, of its data set and of its clients
    [
        ("9", "five", FASHION, (6168, 1022)),
        ("8", "five", CIFAR10, (5137, 1022)),
        ("11", "two", FASHION, None),
        ("6_counts", "hundred", CIFAR10, (4993, 995)),
        ("13_counts", "one", MNIST, (28460, 4680)),
    ],
)
def test_counts_of_the_paper(table: str, layout: str, of: Any, sizes: tuple[int, int] | None) -> None:
    made = partitions.make(laid_out(layout), dataset(*of))
    told = printed(table)
    assert len(told) == 2 * made.clients
    sides = {test: made.class_counts(test).tolist() for test in (False, True)}
    assert {(c, test): sides[test][c] for c, test in told} == told
    assert sizes is None or set(zip(made.n_train.tolist(), made.n_test.tolist(), strict=True)) == {sizes}


def test_probabilities_in_sixteen_digits_lose_no_sample() -> None:
    """Table 6 as it is read: 0.95 and 0.05/9 add up to a little more than 1; a plain floor would give 4749."""
    train = [[0.005555555555555556] * 10 for _ in range(10)]
    for group in range(10):
        train[group][group] = 0.95
    assert counts(train, CIFAR10[0])[3].tolist() == [27, 27, 27, 4750, 27, 27, 27, 27, 27, 27]  # type: ignore[arg-type]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], int]:
    """Weights of 1..4 groups over 2..5 classes, and how many clients a group has."""
    groups, classes = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 60), min_size=classes, max_size=classes).filter(any)
    rows = st.lists(row, min_size=groups, max_size=groups)
    return draw(rows), draw(rows), draw(st.integers(1, 3))


def exact(mix: list[list[int]], available: list[int]) -> list[list[int]]:
    """The rule in exact fractions: floor(share x n_min) of each class, give or take a millionth of a sample."""
    shares = [[Fraction(w, sum(row)) for w in row] for row in mix]
    columns = [sum(column) for column in zip(*shares, strict=True)]
    n_min = min(n for n, c in zip(available, columns, strict=True) if c)
    return [[floor(s / max(columns) * n_min + Fraction(1, 10**6)) for s in row] for row in shares]


@few(st.lists(st.integers(0, 10**5), min_size=3, max_size=3), st.integers(1, 1000), examples=25)
def test_keep_takes_the_floor_of_each_class(taken: list[int], thousandths: int) -> None:
    share = thousandths / 1000
    assert kept(np.array([taken, taken]), [share, 1.0]).tolist() == [[n * thousandths // 1000 for n in taken], taken]
    assert kept(np.array([taken]), None).tolist() == [taken]


@few(mixtures(), st.booleans(), st.integers(0, 3), examples=25)
def test_slices(mixture: tuple[Any, Any, int], disjoint: bool, seed: int) -> None:
    """Groups never share a sample; a group's clients hold the same ones, or share them out; counts are the rule's."""
    train, test, members = mixture
    classes, groups = len(train[0]), len(train)
    of = dataset([400 + 10 * k for k in range(classes)], [300] * classes)
    made = partitions.make(spec(train, test, groups * members, disjoint=disjoint, seed=seed), of)
    for side, mix in ((False, train), (True, test)):
        expected = exact(mix, np.bincount(of.labels[of.split == side]).tolist())
        held = [made.sample[made.rows(c, side)] for c in range(made.clients)]
        assert all((of.split[rows] == side).all() for rows in held)
        seen: set[int] = set()
        for group in range(groups):
            mine = held[group * members : (group + 1) * members]
            if disjoint:
                sizes = np.array([np.bincount(of.labels[rows], minlength=classes) for rows in mine])
                assert (sizes.max(axis=0) - sizes.min(axis=0)).max() <= 1, "evenly, class by class"
                whole = np.concatenate(mine)
            else:
                assert all(np.array_equal(mine[0], rows) for rows in mine)
                whole = mine[0]
            assert np.bincount(of.labels[whole], minlength=classes).tolist() == expected[group]
            assert len(set(whole.tolist())) == len(whole)
            assert not seen & set(whole.tolist())
            seen |= set(whole.tolist())
    assert np.array_equal(made.label, of.labels[made.sample])
    assert made.groups == [c // members for c in range(made.clients)]


def test_keeping_less_takes_nothing_from_others() -> None:
    """What a group does not keep lies idle: its clients hold a part of what they held, the others the very same."""
    of = dataset([90, 120], [50, 50])
    whole, less = (partitions.make(spec([[1, 2], [2, 1]], [[1, 1]] * 2, keep=k), of) for k in (None, [0.5, 1]))
    held = [[set(p.sample[p.rows(c, test=False)].tolist()) for c in (0, 1)] for p in (whole, less)]
    assert held[1][0] < held[0][0]
    assert held[1][1] == held[0][1]
    assert less.class_counts(False).tolist() == [[15, 30], [60, 30]]


def test_seeds_draw_other_samples_of_the_same_counts() -> None:
    of = dataset([50, 60], [50, 50])
    one, two = (partitions.make(spec([[1, 2]], [[2, 1]], seed=s), of) for s in (1, 2))
    assert np.array_equal(one.class_counts(False), two.class_counts(False))
    assert set(one.sample.tolist()) != set(two.sample.tolist())
    assert np.array_equal(one.sample, partitions.make(one.spec, of).sample)


def test_samples_are_shuffled_across_classes_and_one_that_nobody_asks_for_may_be_rare() -> None:
    made = partitions.make(spec([[1, 1]], [[1, 1]]), dataset([200, 200], [200, 200]))
    for test in (False, True):  # the first batch of a client must not be one class
        assert 5 < made.label[made.rows(0, test)][:40].sum() < 35
    made = partitions.make(spec([[1, 1, 0]], [[1, 1, 0]]), dataset([80, 90, 0], [40, 40, 3]))
    assert [made.class_counts(test).tolist() for test in (False, True)] == [[[80, 80, 0]], [[40, 40, 0]]]


def test_without_official_test_images_a_fifth_of_each_class_stands_in() -> None:
    of = dataclasses.replace(dataset([50, 60], [50, 50]), split=np.zeros(210, np.uint8))
    made, other = (partitions.make(spec([[1, 1]], [[1, 1]], seed=s), of) for s in (1, 2))
    assert made.class_counts(True).tolist() == [[20, 20]]  # of 100 and 110, trimmed to the rarest
    assert made.class_counts(False).tolist() == [[80, 80]]
    assert len(set(made.sample.tolist())) == 200
    assert set(other.sample[other.test].tolist()) != set(made.sample[made.test].tolist())


def one_in(c: int, much: float, less: int, little: float) -> list[float]:
    """Ones, but for `much` at c and `little` at `less`."""
    row = [1.0] * 10
    row[c], row[less] = much, little
    return row


@pytest.mark.parametrize(
    ("layout", "sizes", "own", "pooled"),
    [
        (
            "five",
            FASHION,
            [one_in(c, 171, 5 + c, 1 / 171) for c in range(5)],
            [[35] * 5 + [1 / 171 if k == c else 1 for k in range(5)] for c in range(5)],
        ),
        (
            "hundred",
            ([500] * 10, [500] * 10),
            [one_in(9 - g, 171, g, 1 / 171) for g in range(10) for _ in range(10)],
            [[0.1 / 0.95 if k == g else 18 for k in range(10)] for g in range(10) for _ in range(10)],
        ),
        (
            "two",
            FASHION,
            [[0.1 / 5.05] * 5 + [10 / 5.05] * 5, [100] * 5 + [0.01] * 5],
            [[1] * 10, [50.5] * 5 + [0.505] * 5],
        ),
        ("one", MNIST, [[20] * 5 + [0.05] * 5], [[20] * 5 + [0.05] * 5]),
    ],
)
def test_ratios_of_the_paper(layout: str, sizes: Any, own: list[list[float]], pooled: list[list[float]]) -> None:
    """FTW-ERM, Proposition 4 (ftw_erm/protocol.md#exact-ratios): q_k/p_k, (1/K) sum_l q_l/p_k, whatever is kept."""
    made = partitions.make(laid_out(layout), dataset(*sizes))
    known = made.densities
    assert np.array_equal(known.strata, made.label)
    for side in (known.train, known.test):
        assert side.shape == (made.clients, 10)
        np.testing.assert_allclose(side.sum(axis=1), 1, rtol=1e-12)
    each = zip(known.train, known.test, strict=True)
    np.testing.assert_allclose([stratum_ratios(p, q) for p, q in each], own, rtol=1e-12)
    np.testing.assert_allclose([stratum_ratios(p, known.test) for p in known.train], pooled, rtol=1e-12)
    assert layout != "two" or made.n_train[0] == 1000


HEAD = "client,split,class,value\n"


@pytest.mark.parametrize("first", [0, 1])
def test_weights_from_a_file(tmp_path: Path, first: int) -> None:
    file = lab.weights(tmp_path / "weights.csv", first)
    assert lab.spec(clients=2, **partitions.read_mixture(file, 4)) == spec(lab.TRAIN, lab.TEST)
    file.write_text(HEAD + "1,train,2,3\n1,test,0,0.5\n")  # a class without a row weighs nothing
    read = partitions.read_mixture(file, 4)
    assert (read["train_mix"], read["test_mix"]) == (((0, 0, 3, 0),), ((0.5, 0, 0, 0),))
    sheet = (HEAD + "1,train,2,3\n1,test,0,0.5\n").replace(",", ";").replace(".", ",")
    file.write_text(sheet, "utf-16")  # as a spreadsheet of another country writes it
    assert partitions.read_mixture(file, 4) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        (b"\xff\xfe\x00", "not a CSV file: it is not UTF-16"),
        ("client,split,value\n", "has no column 'class'"),
        ("", "has no column 'client'"),
        (HEAD, "has no class weights"),
        (HEAD + "1,train,0,1,5\n", "line 2: has not as many values"),
        (HEAD + "1-10,train,0,1\n", "line 2: client must be a whole number, not '1-10'"),
        (HEAD + "1,valid,0,1\n", "split must be train or test, not 'valid'"),
        (HEAD + "1,train,4,1\n", "class 4 is not one of the data set's classes 0 to 3"),
        (HEAD + "1,train,0,-1\n", "a class weight must be a number from 0 on, not '-1'"),
        (HEAD + "1,train,0,nan\n", "a class weight must be a number from 0 on, not 'nan'"),
        (HEAD + "1,train,0,much\n", "not 'much'"),
        (HEAD + '1,train,0,"1,500"\n', "not '1,500'"),
        (HEAD + "1,train,0,1\n1,train,0,2\n", "line 3: class 0 of client 1, train, has a value already"),
        (HEAD + "1,train,0,1\n1,test,0,1\n3,train,0,1\n3,test,0,1\n", "without gaps, not 1, 3"),
        (HEAD + "2,train,0,1\n2,test,0,1\n", "counted from 0 or 1"),
        (HEAD + "0,train,0,1\n", "gives client 0 no test class with a weight above 0"),
        (HEAD + "0,train,0,1\n0,test,1,0\n", "gives client 0 no test class with a weight above 0"),
        ("table," + HEAD + "8,1,train,0,1\n9,1,test,0,1\n", "holds several tables (8, 9); keep the rows of one"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str | bytes | None, says: str) -> None:
    path = tmp_path / "weights.csv"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    for words in (says, str(path)):
        refused(re.escape(words), partitions.read_mixture, path, 4)


#: Standard deviations that a share of flips may lie off: less than one false alarm in 10^8 draws.
SIGMAS = 6


def coloured_images(n: int = 600, classes: int = 10, channels: int = 1) -> data.Dataset:
    """Noise in every class; 30 official test images first, so that only the split tells which is which."""
    labels = np.random.default_rng(3).integers(0, classes, n + 30)
    split = np.repeat(np.array([1, 0], np.uint8), [30, n])
    return lab.noise(labels, split, (3, 4, channels), classes=tuple("abcdefghijkl"[:classes]))


def colored(
    blocks: Any = ((0, 100, 200, 300),), flips: Any = ((0.5, 0.2),), noise: float = 0.25, seed: int = 1
) -> PartitionSpec:
    return lab.spec("colored", len(blocks), seed, blocks=blocks, flips=flips, label_noise=noise)


def test_blocks_are_training_images_in_file_order() -> None:
    of = coloured_images()
    made = partitions.make(colored([(0, 100, 200, 300), (100, 150, 300, 600)], [(0.5, 0.2), (0.2, 0.8)]), of)
    for client, (a, b, c, d) in enumerate(made.spec.options.get("blocks") or ()):
        assert made.sample[made.rows(client, test=False)].tolist() == list(range(int(a) + 30, int(b) + 30))
        assert made.sample[made.rows(client, test=True)].tolist() == list(range(int(c) + 30, int(d) + 30))
    assert (made.n_train.tolist(), made.n_test.tolist()) == ([100, 50], [100, 300])
    assert made.groups == [0, 1]


@few(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), SEEDS, examples=15)
def test_flips_are_as_frequent_as_asked(train: float, test: float, noise: float, seed: int) -> None:
    n = 4000
    of = coloured_images(2 * n)
    made = partitions.make(colored([(0, n, n, 2 * n)], [(train, test)], noise, seed), of)
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
    of = coloured_images(classes=classes)
    made = partitions.make(colored(noise=0), of)
    assert made.classes == names
    assert made.label.tolist() == (of.labels[made.sample] >= classes // 2).tolist()
    assert made.class_counts().sum() == 200


def test_images_lie_in_the_channel_of_their_colour() -> None:
    of = coloured_images()
    made = partitions.make(colored(), of)
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
    of = coloured_images()
    one, again, other = (partitions.make(colored(seed=s), of) for s in (1, 1, 2))
    assert np.array_equal(one.label, again.label)
    assert np.array_equal(one.colour, again.colour)
    assert not np.array_equal(one.label, other.label)
    assert not np.array_equal(one.colour ^ one.label, other.colour ^ other.label)  # type: ignore[operator]


def test_ratios_of_colours() -> None:
    """ftw_erm/protocol.md#colored-mnist: weights of images whose colour disagrees and agrees with the noisy label."""
    asked = colored([(0, 100, 200, 300), (100, 200, 300, 400)], [(0.5, 0.2), (0.2, 0.8)])
    made = partitions.make(asked, coloured_images())
    known = made.densities
    assert np.array_equal(known.strata == 1, made.colour == made.label)
    np.testing.assert_allclose(known.train, [[0.5, 0.5], [0.2, 0.8]])
    np.testing.assert_allclose(known.test / known.train, [[0.4, 1.6], [4, 0.25]])
    np.testing.assert_allclose(known.test.mean(axis=0) / known.train, [[1, 1], [2.5, 0.625]])


def test_layout_of_the_paper() -> None:
    """Table 12, and the block sizes of ftw_erm/protocol.md#colored-mnist."""
    options = laid_out("colored").options
    blocks, flips = options["blocks"], dict(zip(("train", "test"), zip(*options["flips"], strict=True), strict=True))
    sizes = {"train": [b - a for a, b, _, _ in blocks], "test": [d - c for _, _, c, d in blocks]}
    noise = dict.fromkeys(sizes, [options["label_noise"]] * len(blocks))
    told = {"12": flips, "12_samples": sizes, "12_label_noise": noise}
    rows = [row for row in printed_rows() if row["table"] in told]
    assert Counter(row["table"] for row in rows) == dict.fromkeys(told, 4)
    for row in rows:
        assert told[row["table"]][row["split"]][int(row["client"]) - 1] == float(row["value"])
    assert max(d for *_, d in blocks) <= 60_000  # the training images of MNIST


@pytest.mark.parametrize(
    ("asked", "of", "says"),
    [
        (spec([[1, 1]], [[1, 1]]), dataset([9, 9], [9, 0]), "made has no test image of class 'c1'"),
        (spec([[1, 1]], [[1, 1]]), dataset([0, 9], [9, 9]), "made has no training image of class 'c0'"),
        (spec([[1, 1]], [[1, 1]]), dataset([9] * 3, [9] * 3), "weights for 2 classes, but made has 3"),
        (spec([[1, 1]], [[1, 1]], 12, disjoint=True), dataset([6, 6], [20, 20]), "client 6 of the mixture is left wi"),
        (spec([[1, 1]] * 5, [[1, 1]] * 5), dataset([9, 9], [4, 4]), "client 0 of the mixture is left without a test s"),
        (spec([[1, 1]], [[1, 1]], keep=[0.1]), dataset([9, 9], [9, 9]), "client 0 .* is left without a training"),
        (colored(), coloured_images(channels=3), "needs grey images, and made has 3 channels"),
        (colored(), coloured_images(classes=1), "needs two classes or more, and made has one"),
        (colored(), coloured_images(299), "client 0 asks for images 200 to 300, but made has 299 training images"),
    ],
)
def test_bad_input_is_one_line(asked: PartitionSpec, of: data.Dataset, says: str) -> None:
    refused(says, partitions.make, asked, of)
