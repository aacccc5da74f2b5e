"""Equal shards under FLUX's shifts: what each client holds, under which label, seen how; stages, copies, cuts."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbench import data, partitions
from fedbench.partitions import Partition
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.schemes.equal import SPREAD
from fedbench.partitions.transforms import apply
from fedbench.specs import DatasetSpec, PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.frames import few, refused
from tests.support.partitions_lab import MADE, SINGLE, equals, equals_of, sides
from tests.support.real_images import RealImages

dataset, spec = equals_of, lab.equal
OF = dataset()
NATURAL: dict[str, Any] = {"scheme": "natural", "train_fraction": 0.8, "by": "domain", "round_robin": True}


@few(equals(), examples=40)
def test_rows_are_in_order_and_add_up(of: PartitionSpec) -> None:
    p = partitions.make(of, OF)
    total = p.n_train.sum() + p.n_validation.sum() + p.n_test.sum()
    assert {len(column) for column in (p.client, p.sample, p.test, p.label)} == {total}
    assert (p.validation is None) == (of.validation is None)
    assert (p.phase is None) == (of.phases is None)
    held_back = np.zeros(len(p.test), bool) if p.validation is None else p.validation
    end = 0
    for c in range(p.clients):
        whole, train, back, test = p.rows(c), p.rows(c, False), p.validation_rows(c), p.rows(c, True)
        assert (whole.start, train.start, back.start, test.start) == (end, end, train.stop, back.stop)
        assert test.stop == whole.stop
        end = whole.stop
        assert set(p.client[whole]) == {c}
        sizes = [span.stop - span.start for span in (train, back, test)]
        assert sizes == [p.n_train[c], p.n_validation[c], p.n_test[c]]
        assert min(sizes[0], sizes[2], sizes[1] if of.validation else 1) >= 1
        assert p.test[whole].tolist() == [False] * (sizes[0] + sizes[1]) + [True] * sizes[2]
        assert held_back[whole].tolist() == [False] * sizes[0] + [True] * sizes[1] + [False] * sizes[2]
        assert p.class_counts(False)[c].tolist() == np.bincount(p.label[train], minlength=10).tolist()
    assert (p.class_counts() >= p.class_counts(False) + p.class_counts(True)).all()
    assert p.class_counts().sum() == len(p.sample)
    assert (OF.split[p.sample] == p.test).all()  # never an image on the other side
    if p.phase is not None:
        assert of.phases is not None
        assert (p.phase[p.test] == -1).all()
        for c in range(p.clients):
            for span in (p.rows(c, False), p.validation_rows(c)):
                counts = np.bincount(p.phase[span], minlength=of.phases)
                assert len(set(counts.tolist())) == 1
                assert np.all(np.diff(p.phase[span]) >= 0)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from(("none", "px", "pyx", "pxy")))
@settings(max_examples=40)
def test_shards_are_disjoint_equal_and_whole(clients: int, copies: int, seed: int, shift: str) -> None:
    """Every image once over all clients; so many times where images are copied before they are dealt."""
    own: dict[str, Any] = {"clients": clients, "seed": seed, "shift": shift, "level": None if shift == "none" else 3}
    p, plain = partitions.make(spec(**own, copies=copies), OF), partitions.make(spec(**own), OF)
    assert np.bincount(p.sample).tolist() == [copies] * 800
    assert (OF.split[p.sample] == p.test).all()
    held = (p.n_train + p.n_validation).tolist()
    assert held == [each := 600 * copies // clients] * (clients - 1) + [600 * copies - each * (clients - 1)]
    assert p.n_test.tolist()[:-1] == [200 * copies // clients] * (clients - 1)
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]
    assert (p.groups, p.distributions) == (plain.groups, plain.distributions)
    assert (p.id == plain.id) == (copies == 1)
    assert len(p.distinct(OF)[0]) <= 800 * len(p.distributions or (0,))  # an image is stored once, however many copies


def test_shards_are_the_same_under_every_shift_and_another_seed_deals_anew() -> None:
    plain = partitions.make(spec(), OF)
    for shift in ("px", "pyx", "pxy"):
        assert np.array_equal(partitions.make(spec(shift=shift, level=8), OF).sample, plain.sample)
    assert not np.array_equal(partitions.make(spec(seed=43), OF).sample, plain.sample)
    assert plain.image_shape((8, 8, 1)) == (8, 8, 1)
    assert plain.groups == plain.test_groups == [0] * 4
    assert np.array_equal(plain.label, OF.labels[plain.sample])


# -- what a client's distribution does to its data --------------------------------------------------------------


def by_hand(p: Partition, of: data.Dataset, row: int) -> tuple[np.ndarray, int]:
    """Image [H, W, channels] and label of one row, by the words of flux/protocol.md#shards-and-images and by Pillow."""
    c, k = int(p.client[row]), int(of.labels[p.sample[row]])
    stage = 0 if p.phase is None else int(p.phase[row])
    g = (p.test_groups if p.test[row] else p.phase_groups[stage])[c]
    one = p.distributions[g]
    assert one.classes is None or k in one.classes
    look = dict(one.rotations).get(k, one.rotation)
    image = of.images[p.sample[row]]
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).rotate(look.angle)
    wide = p.spec.shift.startswith(("px", "pxy"))
    seen = np.asarray(picture.convert("RGB") if wide else picture).reshape(8, 8, -1).copy()
    if look.colour:
        seen[..., ("red", "green", "blue").index(look.colour)] = 255
    return seen, dict(one.labels).get(k, k)


@pytest.mark.parametrize(
    ("shift", "stages", "channels"),
    [*((s, None, 1) for s in LEVELLED), *((s, None, 3) for s in SINGLE), *((s, n, 1) for s in SINGLE for n in (2, 3))],
)
def test_images_and_labels_against_pillow_row_by_row(shift: str, stages: int | None, channels: int) -> None:
    of = dataset(120, 60, channels=channels)
    p = partitions.make(spec(shift=shift, level=3 if stages else 7, phases=stages, duplicates=2), of)
    images, index = p.distinct(of)
    seen = p.transformed_images(of)
    assert seen.dtype == np.uint8
    assert seen.shape == (len(p.sample), *p.image_shape(of.images.shape[1:]))
    assert seen.shape[-1] == (3 if shift.startswith("px") or channels == 3 else 1)
    assert np.array_equal(images[index], seen)
    assert len(images) < len(p.sample)
    assert len({image.tobytes() for image in images}) == len(images)  # each of them once
    for row in range(len(p.sample)):
        image, label = by_hand(p, of, row)
        assert np.array_equal(seen[row], image)
        assert p.label[row] == label


def test_distinct_images_where_nothing_is_seen_otherwise_and_where_all_is() -> None:
    plain = partitions.make(spec(duplicates=3), OF)
    images, index = plain.distinct(OF)
    assert len(images) == 800
    assert np.array_equal(images[index], OF.images[plain.sample])
    images, index = partitions.make(partition_spec(MADE, "iid", 4, 1, 0.5, "high"), OF).distinct(OF)
    assert index.tolist() == list(range(len(images))) == list(range(800))
    refused("is of dataset", plain.distinct, dataclasses.replace(OF, spec=DatasetSpec("made", "there", "now")))


@few(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_py_filters_and_pads_to_about_the_old_size(level: int, seed: int) -> None:
    p = partitions.make(spec(shift="py", level=level, seed=seed), OF)
    plain = partitions.make(spec(seed=seed), OF)
    kept = 11 - level
    for c in range(4):
        classes = p.distributions[p.groups[c]].classes
        assert classes is not None
        train, back, test = sides(p, c)
        before = sides(plain, c)
        for now, old in (([*train, *back], [*before[0], *before[1]]), (test, before[2])):
            mine = [s for s in old if OF.labels[s] in classes]
            assert set(now) == set(mine)  # nothing else, and nothing lost
            assert len(now) == round(len(mine) * 10 / kept)


def test_a_shard_without_a_kept_class_draws_from_its_whole_side() -> None:
    of = dataset(400, 100)
    p = partitions.make(spec(clients=100, shift="py", level=8), of)  # one test image each, seven of ten classes gone
    kept = [p.distributions[g].classes or () for g in p.groups]
    assert all(int(k) in kept[c] for c, k in zip(p.client, p.label, strict=True))
    assert (of.split[p.sample] == p.test).all()
    assert p.n_test.min() >= 1


def test_stages_share_out_the_shard_and_py_filters_all_of_it() -> None:
    whole, plain, filtered = (
        partitions.make(spec(shift=shift, level=level, phases=phases), OF)
        for shift, level, phases in (("none", None, None), ("px", 1, 3), ("py", 1, 3))
    )
    assert plain.n_train.tolist() == [120] * 4
    for c in range(4):
        train, back, _ = sides(plain, c)
        assert len(set(train + back)) == 150  # a shard of 150 in three parts, no image twice
        shard = {s for side in sides(whole, c)[:2] for s in side}
        for stage in range(3):
            mine = (filtered.client == c) & (filtered.phase == stage)
            classes = filtered.distributions[filtered.phase_groups[stage][c]].classes or ()
            left = {s for s in shard if OF.labels[s] in classes}
            assert mine.sum() == 50
            assert set(filtered.sample[mine]) <= left
            assert len(set(filtered.sample[mine])) == min(50, len(left))


# -- copies and cuts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [None, 3])
def test_copies_and_cuts_are_of_training_rows_only(stages: int | None) -> None:
    fields: dict[str, Any] = {"shift": "pxy", "level": 3, "phases": stages}
    plain, changed = (partitions.make(spec(**fields, **own), OF) for own in ({}, {"duplicates": 4, "subsample": 0.25}))
    for c in range(4):
        for stage in range(stages or 1):
            whole, mine = (
                p.sample[rows][slice(None) if p.phase is None else p.phase[rows] == stage].tolist()
                for p, rows in ((p, p.rows(c, False)) for p in (plain, changed))
            )
            assert mine == whole[: int(0.25 * len(whole))] * 4
        assert sides(plain, c)[1:] == sides(changed, c)[1:]
    assert changed.n_train.tolist() == [4 * int(0.25 * (n // (stages or 1))) * (stages or 1) for n in plain.n_train]


def test_drawn_training_shares_have_the_mean_that_was_asked() -> None:
    of = dataset(20_000, 400)
    p = partitions.make(spec(clients=400, data_share=0.001), of)
    sizes = p.n_train + p.n_validation
    assert 0 < sizes.min() < 10
    assert sizes.max() <= 40
    assert abs(sizes.mean() - 20) < 5 * 20 * SPREAD / math.sqrt(400)
    assert sizes.std() > 5
    assert (p.n_test == 1).all()
    whole = partitions.make(spec(clients=400, validation=None), of)
    part = partitions.make(spec(clients=400, validation=None, data_share=0.001), of)
    assert all(set(sides(part, c)[0]) <= set(sides(whole, c)[0]) for c in range(400))


# -- data sets without an official split, natural groups, other schemes -----------------------------------------


def test_without_official_test_images_a_fifth_of_each_class_stands_in(digits: data.Dataset) -> None:
    p = partitions.make(partition_spec(digits.spec, "equal", 10, 1, shift="px", level=5, validation=0.2), digits)
    tests = p.sample[p.test]
    assert np.bincount(digits.labels[tests]).tolist() == [n // 5 for n in np.bincount(digits.labels)]
    assert sorted(p.sample.tolist()) == list(range(len(digits.labels)))


@few(st.integers(3, 11), st.integers(0, 1000))
def test_domains_are_dealt_in_turn_and_shared_out(clients: int, seed: int) -> None:
    p = partitions.make(lab.spec(clients=clients, seed=seed, validation=0.2, **NATURAL), OF)
    domain = OF.columns["domain"][p.sample]
    assert sorted(p.sample.tolist()) == list(range(800))  # disjoint, and whole
    mine = [set(domain[p.rows(c)]) for c in range(clients)]
    assert all(len(names) == 1 for names in mine)
    assert [p.distributions[g].name for g in p.groups] == [f"domain {min(names)}" for names in mine]
    members = [[c for c in range(clients) if mine[c] == {one}] for one in ("Art", "Clip", "Real")]
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for group in members:
        sizes = [p.rows(c).stop - p.rows(c).start for c in group]
        assert max(sizes) - min(sizes) <= 1
    held = p.n_train + p.n_validation
    assert held.tolist() == [int(0.8 * n) for n in (held + p.n_test)]
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]


def test_the_seed_deals_the_domains() -> None:
    made = [partitions.make(lab.spec(clients=6, seed=seed, **NATURAL), OF) for seed in range(8)]
    assert len({str([p.distributions[g].name for g in p.groups]) for p in made}) > 3


@pytest.mark.parametrize(
    "own", [{"scheme": "iid"}, {"scheme": "dirichlet", "alpha": 1.0, "unseen": 1, "unseen_as": ("fog-3",)}]
)
def test_other_schemes_hold_validation_images_back_too(own: dict[str, Any]) -> None:
    whole, p = (
        partitions.make(lab.spec(train_fraction=0.5, shift="high", **own, **less), OF)
        for less in ({}, {"validation": 0.25, "subsample": 0.5})
    )
    for c in range(p.clients):
        (train, back, test), before = sides(p, c), sides(whole, c)
        assert test == before[2]
        assert len(back) == math.ceil(0.25 * len(before[0]) - 1e-9)
        assert set(back) <= set(before[0])
        assert set(train) <= set(before[0]) - set(back)
        assert len(train) == int(0.5 * (len(before[0]) - len(back)))
    seen = p.transformed_images(OF)
    assert np.array_equal(seen[p.validation_rows(0)], apply(OF.images[p.sample[p.validation_rows(0)]], p.transforms[0]))


# -- what cannot be, and the real thing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "fields", "says"),
    [
        (OF, {"clients": 201}, "200 test images cannot serve 201 clients (each needs 1 at least); ask for at most 200"),
        (OF, {"clients": 190, "shift": "px", "level": 1, "phases": 2}, "600 training images cannot serve 190 clients"),
        (OF, {**NATURAL, "clients": 2}, "2 clients are too few for the 3 groups by domain"),
        (dataset(6, 3), {**NATURAL, "clients": 12}, "samples of domain "),
    ],
)
def test_bad_input_is_one_line(of: data.Dataset, fields: dict[str, Any], says: str) -> None:
    refused(re.escape(says), partitions.make, spec(**fields), of)


@pytest.mark.parametrize(
    ("clients", "own", "sizes", "distinct"),
    [
        (10, {"level": 8}, (4800, 1200, 1000), None),
        (50, {"duplicates": 4}, (3840, 240, 200), 70_000),
        (50, {"copies": 2}, (1920, 480, 400), None),
        pytest.param(100, {"duplicates": 8}, (3840, 120, 100), 70_000, marks=pytest.mark.slow),
        pytest.param(1200, {"copies": 120}, (4800, 1200, 1000), 4 * 70_000, marks=pytest.mark.slow),  # of 8.4 million
    ],
)
def test_real_mnist_has_the_papers_sizes(
    real_images: RealImages, clients: int, own: dict[str, Any], sizes: tuple[int, int, int], distinct: int | None
) -> None:
    mnist = real_images.load("mnist")
    values = {"seed": 42, "validation": 0.2, "shift": "px", "level": 3, **own}
    p = partitions.make(partition_spec(mnist.spec, "equal", clients, **values), mnist)
    assert (set(p.n_train), set(p.n_validation), set(p.n_test)) == tuple({n} for n in sizes)
    assert distinct is None or len(p.distinct(mnist)[0]) == distinct
    if clients == 50 and "copies" in own:
        assert all(len(set(p.sample[p.rows(c)])) > 2700 for c in range(clients))  # of 2,800: few of them twice
