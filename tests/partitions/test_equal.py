"""Equal shards under FLUX's shifts: what each client holds, under which label, seen how; stages, copies, cuts."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition, tables
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.schemes.equal import SPREAD
from fedbench.partitions.transforms import apply
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support.real_images import RealImages

MADE = DatasetSpec("made", "here", "now")
SINGLE = ("px", "py", "pyx", "pxy")


def dataset(n: int = 600, tests: int = 200, classes: int = 10, channels: int = 1, seed: int = 0) -> data.Dataset:
    """Noise without a black pixel; test images are not in one piece, so that only the split tells them."""
    rng = np.random.default_rng(seed)
    return data.Dataset(
        spec=MADE,
        images=rng.integers(1, 255, (n + tests, 8, 8, channels), dtype=np.uint8),
        labels=rng.integers(0, classes, n + tests),
        split=rng.permutation(np.repeat(np.array([0, 1], np.uint8), [n, tests])),
        columns={"domain": np.array(["Art", "Clip", "Real"])[rng.integers(0, 3, n + tests)]},
        classes=tuple(str(k) for k in range(classes)),
    )


OF = dataset()


def spec(**fields: Any) -> PartitionSpec:
    values = {"scheme": "equal", "clients": 4, "seed": 42, "validation": 0.2, **fields}
    return partition_spec(MADE, **values)


def sides(p: Partition, c: int) -> tuple[list[int], list[int], list[int]]:
    """A client's training, validation and test samples."""
    spans = (p.rows(c, test=False), p.validation_rows(c), p.rows(c, test=True))
    return tuple(p.sample[span].tolist() for span in spans)  # type: ignore[return-value]


@st.composite
def asked(draw: st.DrawFn) -> PartitionSpec:
    shift = draw(st.sampled_from(("none", *LEVELLED)))
    own: dict[str, Any] = {"shift": shift}
    if shift != "none":
        own["level"] = draw(st.integers(1, 3))
    if shift in SINGLE and draw(st.booleans()):
        own["phases"] = draw(st.integers(2, 4))
    optional = {
        "validation": st.sampled_from((None, 0.1, 0.5)),
        "subsample": st.sampled_from((None, 0.3, 1)),
        "duplicates": st.integers(1, 3),
        "copies": st.integers(1, 3),
        "data_share": st.sampled_from((None, 0.05)),
    }
    own |= draw(st.fixed_dictionaries({}, optional=optional))
    return spec(clients=draw(st.integers(1, 9)), seed=draw(st.integers(0, 2**32 - 1)), **own)


@given(asked())
@settings(max_examples=120)
def test_rows_are_in_order_and_add_up(of: PartitionSpec) -> None:
    p = partitions.make(of, OF)
    assert (
        len(p.client)
        == len(p.sample)
        == len(p.test)
        == len(p.label)
        == p.n_train.sum() + p.n_validation.sum() + p.n_test.sum()
    )
    assert (p.validation is None) == (of.validation is None)
    assert (p.phase is None) == (of.phases is None)
    held_back = np.zeros(len(p.test), bool) if p.validation is None else p.validation
    assert not (held_back & p.test).any()
    end = 0
    for c in range(p.clients):
        whole, train, back, test = p.rows(c), p.rows(c, False), p.validation_rows(c), p.rows(c, True)
        assert (whole.start, whole.stop) == (train.start, test.stop)
        assert (train.stop, back.stop) == (back.start, test.start)
        assert whole.start == end
        end = whole.stop
        assert set(p.client[whole]) == {c}
        assert p.test[test].all()
        assert held_back[back].all()
        assert not p.test[train].any()
        assert not held_back[train].any()
        assert train.stop - train.start == p.n_train[c] >= 1
        assert test.stop - test.start == p.n_test[c] >= 1
        assert (back.stop - back.start == p.n_validation[c] >= 1) or of.validation is None
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


@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from(("none", "px", "pyx", "pxy")))
@settings(max_examples=40)
def test_shards_are_disjoint_equal_and_whole(clients: int, seed: int, shift: str) -> None:
    p = partitions.make(spec(clients=clients, seed=seed, shift=shift, level=None if shift == "none" else 3), OF)
    assert sorted(p.sample.tolist()) == list(range(800))
    held = (p.n_train + p.n_validation).tolist()
    assert held[:-1] == [600 // clients] * (clients - 1)
    assert held[-1] == 600 - 600 // clients * (clients - 1)
    assert p.n_test.tolist()[:-1] == [200 // clients] * (clients - 1)
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]


def test_shards_are_the_same_under_every_shift_and_another_seed_deals_anew() -> None:
    plain = partitions.make(spec(), OF)
    for shift in ("px", "pyx", "pxy"):
        assert np.array_equal(partitions.make(spec(shift=shift, level=8), OF).sample, plain.sample)
    other = partitions.make(spec(seed=43), OF)
    assert not np.array_equal(other.sample, plain.sample)
    assert plain.image_shape((8, 8, 1)) == (8, 8, 1)
    assert plain.groups == plain.test_groups == [0] * 4
    assert np.array_equal(plain.label, OF.labels[plain.sample])


# -- what a client's distribution does to its data ------------------------------------------------------------


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


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("shift", "stages"), [*((s, None) for s in LEVELLED), *((s, n) for s in SINGLE for n in (2, 3))]
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
    iid = partition_spec(MADE, "iid", 4, 1, 0.5, "high")
    images, index = partitions.make(iid, OF).distinct(OF)
    assert index.tolist() == list(range(len(images))) == list(range(800))
    with pytest.raises(FedbenchError, match="is of dataset"):
        plain.distinct(
            data.Dataset(DatasetSpec("made", "there", "now"), OF.images, OF.labels, OF.split, {}, OF.classes)
        )


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
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
    kept = [p.distributions[g].classes for g in p.groups]
    assert all(int(k) in (kept[c] or ()) for c, k in zip(p.client, p.label, strict=True))
    assert (of.split[p.sample] == p.test).all()
    assert p.n_test.min() >= 1


def test_stages_share_out_the_shard_and_py_filters_all_of_it() -> None:
    p = partitions.make(spec(shift="px", level=1, phases=3), OF)
    assert p.phase is not None
    for c in range(4):
        train, back, _ = sides(p, c)
        assert len(set(train + back)) == 150  # a shard of 150 in three parts, no image twice
    assert p.n_train.tolist() == [120] * 4
    p = partitions.make(spec(shift="py", level=1, phases=3), OF)
    whole = partitions.make(spec(), OF)
    assert p.phase is not None
    for c in range(4):
        shard = {s for side in sides(whole, c)[:2] for s in side}
        for stage in range(3):
            mine = (p.client == c) & (p.phase == stage)
            classes = p.distributions[p.phase_groups[stage][c]].classes or ()
            assert mine.sum() == 50
            assert set(p.sample[mine]) <= {s for s in shard if OF.labels[s] in classes}
            assert len(set(p.sample[mine])) == min(50, sum(OF.labels[s] in classes for s in shard))


# -- copies and cuts ------------------------------------------------------------------------------------------


def of_stage(p: Partition, c: int, stage: int) -> list[int]:
    """A client's training samples in a stage; all of them where nothing drifts."""
    rows = p.rows(c, False)
    return p.sample[rows][slice(None) if p.phase is None else p.phase[rows] == stage].tolist()


@pytest.mark.parametrize("stages", [None, 3])
def test_copies_and_cuts_are_of_training_rows_only(stages: int | None) -> None:
    fields: dict[str, Any] = {"shift": "pxy", "level": 3, "phases": stages}
    plain = partitions.make(spec(**fields), OF)
    changed = partitions.make(spec(**fields, duplicates=4, subsample=0.25), OF)
    for c in range(4):
        for stage in range(stages or 1):
            whole, mine = (of_stage(p, c, stage) for p in (plain, changed))
            assert mine == whole[: int(0.25 * len(whole))] * 4
        assert sides(plain, c)[1:] == sides(changed, c)[1:]
    assert changed.n_train.tolist() == [4 * int(0.25 * (n // (stages or 1))) * (stages or 1) for n in plain.n_train]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from(("none", "px", "pyx", "pxy")))
@settings(max_examples=40)
def test_copies_before_the_images_are_dealt(clients: int, copies: int, seed: int, shift: str) -> None:
    """Every image, on either side, so many times over all clients, and a client that many times as many images."""
    own: dict[str, Any] = {"clients": clients, "seed": seed, "shift": shift, "level": None if shift == "none" else 3}
    p = partitions.make(spec(**own, copies=copies), OF)
    assert np.bincount(p.sample).tolist() == [copies] * 800
    assert (OF.split[p.sample] == p.test).all()
    assert (p.n_train + p.n_validation).tolist()[:-1] == [600 * copies // clients] * (clients - 1)
    assert p.n_test.tolist()[:-1] == [200 * copies // clients] * (clients - 1)
    plain = partitions.make(spec(**own), OF)
    assert p.groups == plain.groups
    assert p.distributions == plain.distributions
    assert (p.id == plain.id) == (copies == 1)
    assert len(p.distinct(OF)[0]) <= 800 * len(p.distributions or (0,))  # an image is stored once, however many copies


def test_copies_reach_other_clients_where_duplicates_stay() -> None:
    dealt = partitions.make(spec(copies=4, validation=None), OF)
    stay = partitions.make(spec(duplicates=4, validation=None), OF)
    assert dealt.n_train.tolist() == stay.n_train.tolist() == [600] * 4
    assert [len(set(sides(stay, c)[0])) for c in range(4)] == [150] * 4
    shared = [set(sides(dealt, c)[0]) for c in range(4)]
    assert all(len(mine) > 350 for mine in shared)  # 600 (1 - (3/4)^4) = 410 are expected
    assert shared[0] & shared[1]
    assert (dealt.n_test.tolist(), stay.n_test.tolist()) == ([200] * 4, [50] * 4)


def test_smaller_cuts_lie_in_larger_ones() -> None:
    held = [sides(partitions.make(spec(subsample=share), OF), 1)[0] for share in (0.04, 0.08, 0.5, 1)]
    for small, large in itertools.pairwise(held):
        assert small == large[: len(small)]
    assert [len(mine) for mine in held] == [4, 9, 60, 120]


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


# -- data sets without an official split, natural groups, other schemes ---------------------------------------


def test_without_official_test_images_a_fifth_of_each_class_stands_in(store: Store) -> None:
    digits = data.load("digits", store)
    p = partitions.make(partition_spec(digits.spec, "equal", 10, 1, shift="px", level=5, validation=0.2), digits)
    tests = p.sample[p.test]
    assert np.bincount(digits.labels[tests]).tolist() == [n // 5 for n in np.bincount(digits.labels)]
    assert sorted(p.sample.tolist()) == list(range(len(digits.labels)))


@given(st.integers(3, 11), st.integers(0, 1000))
@settings(max_examples=30)
def test_domains_are_dealt_in_turn_and_shared_out(clients: int, seed: int) -> None:
    of = partition_spec(MADE, "natural", clients, seed, 0.8, by="domain", round_robin=True, validation=0.2)
    p = partitions.make(of, OF)
    domain = OF.columns["domain"][p.sample]
    assert sorted(p.sample.tolist()) == list(range(800))  # disjoint, and whole
    mine = [set(domain[p.rows(c)]) for c in range(clients)]
    assert all(len(names) == 1 for names in mine)
    counts = sorted(sum(names == {one} for names in mine) for one in ("Art", "Clip", "Real"))
    assert counts[-1] - counts[0] <= 1
    assert [p.distributions[g].name for g in p.groups] == [f"domain {min(names)}" for names in mine]
    for one in ("Art", "Clip", "Real"):
        sizes = [p.rows(c).stop - p.rows(c).start for c in range(clients) if mine[c] == {one}]
        assert max(sizes) - min(sizes) <= 1
    held = p.n_train + p.n_validation
    assert held.tolist() == [int(0.8 * n) for n in (held + p.n_test)]
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]


def test_the_seed_deals_the_domains() -> None:
    of = {"by": "domain", "round_robin": True}
    made = [partitions.make(partition_spec(MADE, "natural", 6, seed, 0.8, **of), OF) for seed in range(8)]
    dealt = {str([p.distributions[g].name for g in p.groups]) for p in made}
    assert len(dealt) > 3


@pytest.mark.parametrize(
    "own", [{"scheme": "iid"}, {"scheme": "dirichlet", "alpha": 1.0, "unseen": 1, "unseen_as": ("fog-3",)}]
)
def test_other_schemes_hold_validation_images_back_too(own: dict[str, Any]) -> None:
    whole = partitions.make(partition_spec(MADE, clients=4, seed=1, train_fraction=0.5, shift="high", **own), OF)
    asked = partition_spec(
        MADE, clients=4, seed=1, train_fraction=0.5, shift="high", validation=0.25, subsample=0.5, **own
    )
    p = partitions.make(asked, OF)
    for c in range(p.clients):
        train, back, test = sides(p, c)
        before = sides(whole, c)
        assert test == before[2]
        assert len(back) == math.ceil(0.25 * len(before[0]) - 1e-9)
        assert set(back) <= set(before[0])
        assert set(train) <= set(before[0]) - set(back)
        assert len(train) == int(0.5 * (len(before[0]) - len(back)))
    seen = p.transformed_images(OF)
    assert np.array_equal(seen[p.validation_rows(0)], apply(OF.images[p.sample[p.validation_rows(0)]], p.transforms[0]))


# -- the artifact ---------------------------------------------------------------------------------------------


def same(a: Partition, b: Partition) -> bool:
    names = ("client", "sample", "test", "label", "validation", "phase")
    for name in names:
        one, other = getattr(a, name), getattr(b, name)
        if (one is None) != (other is None) or (
            one is not None and (one.dtype != other.dtype or one.tolist() != other.tolist())
        ):
            return False
    return (a.spec, a.classes, a.groups, a.phase_groups, a.test_groups, a.distributions) == (
        b.spec, b.classes, b.groups, b.phase_groups, b.test_groups, b.distributions
    )  # fmt: skip


@given(asked())
@settings(max_examples=25)
def test_artifacts_round_trip(tmp_path_factory: pytest.TempPathFactory, of: PartitionSpec) -> None:
    p = partitions.make(of, OF)
    store = Store(tmp_path_factory.mktemp("store"))
    with store.writing(of) as writer:
        tables.write(writer, p)
    back = partitions.read(store.open("partition", of.id))
    assert same(p, back)
    assert np.array_equal(p.transformed_images(OF), back.transformed_images(OF))


def test_tables_say_who_draws_from_what(tmp_path: Path) -> None:
    store, of = Store(tmp_path), spec(shift="px", level=5, clients=6)
    p = partitions.make(of, OF)
    with store.writing(of) as writer:
        tables.write(writer, p)
    artifact = store.open("partition", of.id)
    samples, clients = artifact.table("samples"), artifact.table("clients").to_pylist()
    told = samples["split"].to_pylist()
    assert {s: told.count(s) for s in set(told)} == {"train": 480, "validation": 120, "test": 200 - 200 % 6 + 200 % 6}
    for c, row in enumerate(clients):
        one = p.distributions[p.groups[c]]
        assert (row["group"], row["distribution"]) == (p.groups[c], one.described(p.classes))
        assert (row["n_train"], row["n_validation"], row["n_test"]) == (80, 20, 200 // 6 + (200 % 6) * (c == 5))
        assert (row["stage_groups"], row["test_group"]) == ([p.groups[c]], p.groups[c])
    described = artifact.table("distributions").to_pylist()
    assert [row["group"] for row in described] == list(range(len(p.distributions)))


# -- errors, and the real thing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "fields", "says"),
    [
        (OF, {"clients": 201}, "200 test images cannot serve 201 clients (each needs 1 at least); ask for at most 200"),
        (OF, {"clients": 190, "shift": "px", "level": 1, "phases": 2}, "600 training images cannot serve 190 clients"),
        (dataset(classes=6), {"shift": "py", "level": 1}, "P(Y) at level 1 needs 10 classes, and made has 6"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(of: data.Dataset, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        partitions.make(spec(**fields), of)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_clients_for_the_domains() -> None:
    with pytest.raises(FedbenchError, match="2 clients are too few for the 3 groups by domain"):
        partitions.make(partition_spec(MADE, "natural", 2, 1, 0.8, by="domain", round_robin=True), OF)
    tiny = dataset(6, 3)
    with pytest.raises(FedbenchError, match=r"samples of domain .* cannot serve 4 clients"):
        partitions.make(partition_spec(MADE, "natural", 12, 1, 0.8, by="domain", round_robin=True), tiny)


@pytest.mark.data
def test_real_mnist_has_the_papers_sizes(real_images: RealImages) -> None:
    mnist = real_images.load("mnist")

    def made(**fields: Any) -> Partition:
        return partitions.make(partition_spec(mnist.spec, "equal", seed=42, validation=0.2, **fields), mnist)

    p = made(clients=10, shift="px", level=8)
    assert (set(p.n_train), set(p.n_validation), set(p.n_test)) == ({4800}, {1200}, {1000})
    for clients, copies, each in ((5, 1, 9600), (25, 2, 3840), (50, 4, 3840), (100, 8, 3840)):
        p = made(clients=clients, shift="px", level=3, duplicates=copies)
        assert set(p.n_train) == {each}
        assert len(p.distinct(mnist)[0]) == 70_000
    for clients, copies, tests in ((25, 1, 400), (50, 2, 400), (100, 4, 400)):
        p = made(clients=clients, shift="px", level=3, copies=copies)
        assert (set(p.n_train), set(p.n_test)) == ({1920}, {tests})
        assert all(len(set(p.sample[p.rows(c)])) > 2700 for c in range(clients))  # of 2,800: few of them twice
    p = made(clients=1200, shift="px", level=3, copies=120)
    assert (set(p.n_train), set(p.n_validation), set(p.n_test)) == ({4800}, {1200}, {1000})
    assert len(p.distinct(mnist)[0]) == 4 * 70_000  # of 8.4 million
    p = made(clients=20, shift="pxy", level=6, data_share=0.01)
    assert 400 < p.n_train.mean() < 560
