"""How a partition looks: its tables at every width, who shares a distribution, and what is said above them."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedbench import data, partitions
from fedbench.partitions import Partition, view
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import CORRUPTIONS, of_clients
from fedbench.specs import PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.partitions_lab import cells, shown

AGAIN = ("fog-3", "gaussian_noise-1")


def of_digits(digits: data.Dataset, scheme: str = "iid", clients: int = 8, **fields: Any) -> Partition:
    return partitions.make(partition_spec(digits.spec, scheme, clients, 1, 0.7, shift="high", **fields), digits)


def made(asked: PartitionSpec, channels: int = 3) -> Partition:
    return partitions.make(asked, lab.noise(np.arange(240) % 6, shape=(8, 8, channels)))


spec = partial(lab.spec, clients=6, train_fraction=0.75)


def test_plain_text_is_aligned_and_complete(digits: data.Dataset) -> None:
    p = of_digits(digits, "dirichlet", alpha=0.3, min_size=10)
    text = shown(p, 500, force_terminal=False)
    assert "\x1b" not in text
    assert "grey images have no hue and no saturation to shift" in text
    rows = cells(text, r" +\d ")
    assert [row[0] for row in rows] == [str(c) for c in range(8)]
    for c, row in enumerate(rows):
        assert [0 if cell == "·" else int(cell) for cell in row[1:11]] == p.class_counts()[c].tolist()
        assert row[11:] == [str(p.n_train[c]), str(p.n_test[c]), f"{p.transforms[c].gamma:g}"]
    lengths = {len(line) for line in text.splitlines() if re.match(r" +\d ", line)}
    assert len(lengths) == 1
    assert max(lengths) <= view.WIDTH


def test_colours_on_a_terminal(digits: data.Dataset) -> None:
    p = of_digits(digits, "shards", shards=1)
    painted = shown(p, color_system="truecolor")
    assert "48;2;" in painted  # shaded cells
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == shown(p)


@pytest.mark.parametrize(("width", "form"), [(66, "compact"), (82, "two tables"), (100, "one table")])
def test_narrow_terminals(digits: data.Dataset, width: int, form: str) -> None:
    names = ("airplane", "automobile", "bird", "cat", "deer", "frog", "horse", "ship", "[large]", "truck")
    p = dataclasses.replace(of_digits(digits), classes=names, transforms=tuple(of_clients("high", 8)))
    text = shown(p, width)
    assert max(map(len, text.splitlines())) <= width
    assert ("largest classes" in text) == (form == "compact")
    assert ("client 3: gamma 1.4, hue +0.1, saturation 0.5" in text) == (form == "two tables")
    assert ("[larg" in text) == (form != "compact")
    rows = cells(text, r" +\d ")
    assert [row[0] for row in rows] == [str(c) for c in range(8)]
    # Sizes and shifts are never cut short: only the column of the largest classes gives way.
    for c, row in enumerate(rows):
        seen = p.transforms[c]
        shift = [f"{seen.gamma:g}", f"{seen.hue:+g}", f"{seen.saturation:g}"]
        sizes = [str(p.n_train[c]), str(p.n_test[c])]
        assert row[-5:] == sizes + shift if form != "two tables" else row[-2:] == sizes


def test_many_clients_are_summed_up(digits: data.Dataset) -> None:
    p = of_digits(digits, clients=40)
    text = shown(p)
    assert "The first 10 clients" in text
    assert len(cells(text, r" +\d+ ")) == 10
    summary = next(line for line in text.splitlines() if line.startswith("training images")).split()
    assert (int(summary[2]), int(summary[-1])) == (p.n_train.min(), p.n_train.max())


def test_who_shares_a_distribution_is_told(digits: data.Dataset) -> None:
    p = partitions.make(partition_spec(digits.spec, "equal", 9, 1, shift="px", level=5, validation=0.2), digits)
    said = shown(p)
    assert f"P(X) in {len(p.distributions)} groups" in said
    sizes = (p.n_train, p.n_validation, p.n_test)
    assert "{:,} training, {:,} validation and {:,} test images".format(*(s.sum() for s in sizes)) in said
    of_client = {int(row[0]): row[-4:] for row in cells(said, r" +\d +\d") if len(row) == 15 and "," not in row[1]}
    assert of_client == {c: [*(str(s[c]) for s in sizes), str(p.groups[c])] for c in range(9)}
    below = said[said.index("distribution ") :].splitlines()
    groups = [re.split(r" {2,}", line.strip()) for line in below if re.match(r" +\d+  ", line)]
    assert [int(g) for g, *_ in groups] == list(range(len(p.distributions)))
    for g, who, what in groups:
        assert who == ", ".join(str(c) for c in range(9) if p.groups[c] == int(g))
        assert what.strip() == str(p.distributions[int(g)].rotation)


def test_a_drift_is_told() -> None:
    p = partitions.make(lab.equal(shift="py", level=1, phases=3), lab.equals_of())
    said = shown(p)
    for c in range(4):
        a, b, d = (stage[c] for stage in p.phase_groups)
        assert f"{a}→{b}→{d}, {p.test_groups[c]}\n" in said
    assert "behind the comma of the test data" in said


@pytest.mark.parametrize(("clients", "shift", "level"), [(40, "pxy", 8), (10, "pyx", 8), (3, "none", None)])
@pytest.mark.parametrize("width", [70, 100])
def test_no_line_of_groups_is_too_wide(clients: int, shift: str, level: int | None, width: int) -> None:
    p = partitions.make(lab.equal(clients=clients, shift=shift, level=level), lab.equals_of())
    text = shown(p, width)
    assert max(map(len, text.splitlines())) <= width
    assert (f"\nand {len(p.distributions) - 10} more\n" in text) == (clients == 40)


def test_clients_that_never_train() -> None:
    p = made(spec(unseen=2, unseen_as=AGAIN, shift="corrupted"))
    text = shown(p)
    assert "180 training and 60 test images\n" in text  # those that come again are not counted again
    assert "6 clients  shift corrupted in 4 groups" in text
    assert (
        "2 unseen clients, again under fog 3, gaussian noise 1\nclients 4 to 9 (counted from 0) never train (*)" in text
    )
    assert "grey" not in text
    kinds = ("motion blur 1", "defocus blur 1", "gaussian noise 1", "-", "-", "-", *["fog 3"] * 2)
    seen = [*kinds, "gaussian noise 1", "gaussian noise 1"]
    for c, (row, shift) in enumerate(zip(cells(text), seen, strict=True)):
        assert row[0] == f"{c}{'*' * (c > 3)}"
        assert row[7:] == [str(p.n_train[c]), str(p.n_test[c]), *shift.split()]


def test_narrow_terminals_tell_corruptions_below_the_table() -> None:
    text = shown(made(spec(unseen=2, unseen_as=["gaussian_noise-1"])), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "client 5: none" in text
    assert re.search(r"client 6: gaussian.noise 1", text)


@pytest.mark.parametrize("width", [70, 100])
def test_views_of_hundreds_of_clients_fit(width: int) -> None:
    again = [f"{c}-{s}" for c in CORRUPTIONS for s in (3, 4)]
    text = shown(made(spec(clients=60, unseen=30, unseen_as=again, shift="corrupted", subsample=0.25)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "training images subsampled to 25 %" in text
    assert "clients 30 to 659 (counted from 0) never train (*)" in text
    assert "The first 10 clients" in text
    summary = next(line for line in text.splitlines() if line.startswith("training images  ")).split()
    assert summary[2:] == ["1"] * 5  # of four images a client keeps one of three for training


def test_only_what_is_there_is_told() -> None:
    assert "corruption" not in shown(made(spec(clients=40, unseen=1, unseen_as=AGAIN)))  # none of the first ten
    assert "corruption" in shown(made(spec(unseen=1, unseen_as=AGAIN)))
    text = shown(made(spec(scheme="limited", alpha=0.5, size=20)))
    assert "made  Dir-0.5 (20 samples each)  6 clients  no covariate shift  seed 1" in text
    assert "newcomer" not in text


TRAIN, TEST = [[4, 1, 1, 1], [1, 4, 1, 1]], [[1, 1, 4, 1], [1, 1, 1, 4]]


def mixture(clients: int = 2, classes: int = 4, **fields: Any) -> Partition:
    asked = lab.spec("mixture", clients, **{"train_mix": TRAIN, "test_mix": TEST, **fields})
    names, split = tuple(f"class{k}" for k in range(classes)), (np.arange(1200) >= 800).astype(np.uint8)
    return partitions.make(asked, lab.noise(np.arange(1200) % classes, split, (3, 3, 1), classes=names))


def lines(text: str) -> list[list[str]]:
    return cells(text, r"^ *\S* +(train|test) ")


def test_a_line_for_either_side() -> None:
    p = mixture()
    text = shown(p)
    assert f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images\n" in text
    train, test = p.class_counts(False), p.class_counts(True)
    assert lines(text) == [
        [*name, *map(str, counts[c]), str(counts[c].sum())]
        for c in range(2)
        for name, counts in (((str(c), "train"), train), (("test",), test))
    ]


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_group_is_one_client_or_all_that_share(disjoint: bool) -> None:
    one, text = mixture(), shown(mixture(20, disjoint=disjoint))
    shared = "share the images of their group out" if disjoint else "hold the same images"
    assert f"2 groups of 10 clients, who {shared}" in text
    assert f"{one.n_train.sum():,} training and {one.n_test.sum():,} test images;" in text
    first, test, second, *_ = lines(shown(one))
    assert lines(text)[:3] == [["0-9", *first[1:]], test, ["10-19", *second[1:]]]


@pytest.mark.parametrize("width", [60, 100])
def test_many_classes_are_summed_up(width: int) -> None:
    p = mixture(1, 16, train_mix=[[9, 1, 0, 1, *[0] * 12]], test_mix=[[0] * 15 + [1]])
    text = shown(p, width)
    assert max(map(len, text.splitlines())) <= width
    counts = p.class_counts(False)[0]
    assert lines(text)[0][:6] == ["0", "train", str(counts.sum()), "3", "class0", f"{counts[0] / counts.sum():.0%},"]
    assert lines(text)[1] == ["test", str(p.n_test[0]), "1", "class15", "100%"]


def test_many_groups_are_cut() -> None:
    text = shown(mixture(40, train_mix=TRAIN * 20, test_mix=TEST * 20))
    assert len(lines(text)) == 20
    assert "and 30 more" in text


def test_colours_of_either_side() -> None:
    blocks, flips = [(0, 30, 60, 70), (30, 60, 70, 80)], [(0.5, 0.2), (0.2, 0.8)]
    p = made(lab.spec("colored", 2, blocks=blocks, flips=flips, label_noise=0.25), channels=1)
    rows = p.rows(1, test=True)
    agree = int((p.colour[rows] == p.label[rows]).sum())  # type: ignore[index]
    ones = int(p.label[rows].sum())
    assert lines(shown(p))[3] == ["test", str(10 - ones), str(ones), str(10 - agree), str(agree), "0.8", "10"]
    assert "25% of the labels are flipped" in shown(p)
