"""The partition and its artifact: what it holds, that it comes back the same, and that damage is noticed."""

from __future__ import annotations

import dataclasses
import shutil
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fedbench import data, partitions
from fedbench.partitions import Partition, tables
from fedbench.partitions.counts import class_counts
from fedbench.partitions.density import realised
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import named as corruption
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support import partitions_lab as lab
from tests.support.frames import few, refused
from tests.support.partitions_lab import MADE, draw, same
from tests.support.real_images import RealImages

MADE_UP = Callable[[data.Dataset], data.Dataset]


def dataset(channels: int = 3, **fields: Any) -> data.Dataset:
    """240 images of noise in 6 classes, with 12 fine labels; the last 40 are official test images."""
    labels, n = np.arange(240) % 6, np.arange(240)
    columns = {"fine": 2 * labels + n // 6 % 2}
    return lab.noise(labels, (n >= 200).astype(np.uint8), (8, 8, channels), columns=columns, **fields)


spec = partial(lab.spec, clients=9, train_fraction=0.6)


def test_rows_are_those_of_the_draw() -> None:
    made, drawn = partitions.make(spec(shift="high"), dataset()), draw(dataset().labels, spec(shift="high"))
    for client, (train, test) in enumerate(drawn):
        assert made.sample[made.rows(client, test=False)].tolist() == train.tolist()
        assert made.sample[made.rows(client, test=True)].tolist() == test.tolist()
        assert made.sample[made.rows(client)].tolist() == [*train, *test]
        assert set(made.client[made.rows(client)]) == {client}
        assert (made.n_train[client], made.n_test[client]) == (len(train), len(test))


MIX = {"train_mix": [[4, 1, 1, 1, 1, 1], [1, 4, 1, 1, 1, 1]], "test_mix": [[1, 1, 4, 1, 1, 1], [1, 1, 1, 4, 1, 1]]}
MIXTURE = lab.spec("mixture", **MIX, keep=(0.5, 1))
COLORED = lab.spec(
    "colored", 2, blocks=[(0, 50, 100, 150), (50, 100, 150, 200)], flips=[(0.5, 0.2), (0.2, 0.8)], label_noise=0.25
)


@pytest.mark.parametrize("asked", [spec("shards", shards=2), MIXTURE], ids=["shards", "mixture"])
def test_class_counts(asked: PartitionSpec) -> None:
    """Each client has its own rows, training first, whoever else holds the same samples."""
    made = partitions.make(asked, dataset())
    for c in range(made.clients):
        assert made.test[made.rows(c)].tolist() == [False] * made.n_train[c] + [True] * made.n_test[c]
        for test in (None, False, True):
            counts = np.bincount(made.label[made.rows(c, test)], minlength=6)
            assert made.class_counts(test)[c].tolist() == counts.tolist()
    assert np.array_equal(made.class_counts(), made.class_counts(False) + made.class_counts(True))


def test_trains_on_labels_but_parts_by_the_partition_labels() -> None:
    fine, asked = (
        dataset(partition_label="fine", _partition_classes=12),
        spec("dirichlet", alpha=0.3, min_size=4),
    )
    made, drawn = partitions.make(asked, fine), draw(fine.columns["fine"], asked)
    assert made.sample[made.rows(3, test=False)].tolist() == drawn[3][0].tolist()
    assert np.array_equal(made.label, fine.labels[made.sample])


def test_images_are_seen_through_their_clients_shift() -> None:
    of = dataset()
    made = partitions.make(spec(shift="high"), of)
    images = made.transformed_images(of)
    told = of_clients("high", 9)
    for row in range(len(made.sample)):
        sample, client = made.sample[row], made.client[row]
        assert np.array_equal(images[row], apply(of.images[sample : sample + 1], told[client])[0])
    assert made.groups == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    refused("is of dataset", made.transformed_images, dataset(spec=DatasetSpec("made", "elsewhere", "now")))
    grey = partitions.make(spec(shift="high"), dataset(channels=1))  # has as many groups as gammas
    assert grey.groups == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert {(s.hue, s.saturation) for s in grey.transforms} == {(None, None)}


@few(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40), examples=25)
def test_realised_densities_are_class_shares(rows: list[tuple[int, int]]) -> None:
    client, label = (np.array(column) for column in zip(*rows, strict=True))
    known = realised(label, client, 3, 4)
    for c in range(3):
        mine = [k for who, k in rows if who == c]
        expected = [mine.count(k) / len(mine) if mine else 0 for k in range(4)]
        np.testing.assert_allclose(known.train[c], expected)
    assert np.array_equal(known.train, known.test)
    assert known.strata.tolist() == label.tolist()


def test_densities_of_a_dirichlet_partition_are_those_it_drew() -> None:
    made = partitions.make(spec("dirichlet", clients=4, alpha=0.5, min_size=10), dataset())
    counts = made.class_counts()
    for table in (made.densities.train, made.densities.test):  # a random split is no shift
        np.testing.assert_allclose(table, counts / counts.sum(axis=1, keepdims=True))


KINDS = ("fog-3", "gaussian_noise-1")
AGAIN = {"unseen": 2, "unseen_as": KINDS, "shift": "corrupted"}
USUAL = ["client", "n_train", "n_test", "gamma", "hue", "saturation", "posterize", "group"]


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        (spec(), []),
        (spec(shift="pool"), []),
        (spec("dirichlet", alpha=0.3, min_size=4, shift="high"), []),
        (spec("limited", alpha=0.5, size=20, subsample=0.5), []),
        (spec(unseen=2), ["newcomer"]),
        (spec(shift="corrupted"), ["corruption", "severity"]),
        (spec(**AGAIN), ["corruption", "severity", "newcomer"]),
        (lab.equal(shift="px", level=5), ["n_validation", "distribution", "stage_groups", "test_group"]),
        (MIXTURE, []),
        (lab.spec("mixture", **MIX, disjoint=True), []),
        (COLORED, []),
    ],
)
def test_comes_back_as_it_was_made(
    store: Store, made_up: MADE_UP, tmp_path: Path, asked: PartitionSpec, columns: list[str]
) -> None:
    """The same bytes in another store. Columns of corruptions, of who never trains, ... are there only where there are
    any: others keep their bytes."""
    of = made_up(lab.equals_of() if asked.scheme == "equal" else dataset(channels=1 if asked is COLORED else 3))
    built = partitions.build(asked, store)
    artifact = store.open("partition", built.id)
    for again in (partitions.make(asked, of), partitions.read(artifact), partitions.build(asked, store)):
        assert same(built, again)
    samples, clients = artifact.table("samples"), artifact.table("clients")
    assert samples.column_names == ["client", "sample", "split", "label", *(["colour"] if asked is COLORED else [])]
    assert clients.column_names == USUAL + columns
    assert clients["gamma"].to_pylist() == [s.gamma for s in built.transforms]
    if "corruption" in columns:
        assert clients["corruption"].to_pylist() == [s.corruption for s in built.transforms]
        assert clients["severity"].to_pylist() == [s.severity for s in built.transforms]
        assert [str(clients.schema.field(n).type) for n in ("corruption", "severity")] == ["string", "int8"]
    if "newcomer" in columns:
        assert clients["newcomer"].to_pylist() == built.unseen.tolist()
    assert clients["group"].to_pylist() == built.groups
    assert artifact.manifest["inputs"] == {"dataset": MADE.id}
    second = Store(tmp_path / "second")
    partitions.build(PartitionSpec.from_dict(asked.to_dict()), second)
    assert second.open("partition", asked.id).manifest["files"] == artifact.manifest["files"]


@few(st.one_of(lab.equals(), lab.unseens()), examples=25)
def test_any_partition_round_trips(tmp_path_factory: pytest.TempPathFactory, asked: PartitionSpec) -> None:
    of = lab.equals_of()
    made = partitions.make(asked, of)
    store = Store(tmp_path_factory.mktemp("store"))
    with store.writing(asked) as writer:
        tables.write(writer, made)
    back = partitions.read(store.open("partition", asked.id))
    assert same(made, back)
    assert np.array_equal(made.transformed_images(of), back.transformed_images(of))


def test_tables_say_who_draws_from_what(store: Store) -> None:
    of = lab.equal(shift="px", level=5, clients=6)
    p = partitions.make(of, lab.equals_of())
    with store.writing(of) as writer:
        tables.write(writer, p)
    artifact = store.open("partition", of.id)
    samples, clients = artifact.table("samples"), artifact.table("clients").to_pylist()
    told = samples["split"].to_pylist()
    assert {s: told.count(s) for s in set(told)} == {"train": 480, "validation": 120, "test": 200}
    for c, row in enumerate(clients):
        one = p.distributions[p.groups[c]]
        assert (row["group"], row["distribution"]) == (p.groups[c], one.described(p.classes))
        assert (row["n_train"], row["n_validation"], row["n_test"]) == (80, 20, 33 + 2 * (c == 5))
        assert (row["stage_groups"], row["test_group"]) == ([p.groups[c]], p.groups[c])
    described = artifact.table("distributions").to_pylist()
    assert [row["group"] for row in described] == list(range(len(p.distributions)))


def test_older_partitions_are_read() -> None:
    """One that was written before there were corruptions and newcomers."""
    (artifact,) = Store(Path(__file__).parents[1] / "fixtures" / "schema1").list("partition")
    read = partitions.read(artifact)
    assert "corruption" not in artifact.table("clients").column_names
    assert {s.corruption for s in read.transforms} == {None}
    assert not read.unseen.any()


def test_damage_is_one_clear_error(store: Store, made_up: MADE_UP, digits: data.Dataset) -> None:
    made_up(dataset())
    artifact = store.open("partition", partitions.build(spec(), store).id)
    samples, clients = artifact.table("samples"), artifact.table("clients")
    path = artifact.path / "samples.parquet"
    whole = path.read_bytes()
    for damaged, says in ((whole[:-10], "truncated"), (whole[:100] + b"?" + whole[101:], "altered")):
        path.write_bytes(damaged)
        refused(says, partitions.build, spec(), store)
    shutil.rmtree(artifact.path)
    with store.writing(spec()) as writer:
        writer.table("samples", samples.slice(1))
        writer.table("clients", clients)
    refused("disagree", partitions.build, spec(), store)
    refused("cannot serve 200 clients", partitions.build, spec(clients=200), store)
    assert not store.has(spec(clients=200))
    with store.writing(digits.spec):
        pass
    refused("is not a partition", partitions.read, store.open("dataset", digits.spec.id))


@pytest.mark.parametrize("several", [False, True])
def test_class_counts_without_the_rest_of_it(store: Store, several: bool) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (40, 3)).astype(np.uint8) if several else rng.integers(0, 3, 40).astype(np.int32)
    asked, rows = lab.spec("dirichlet", train_fraction=0.7, alpha=0.3, min_size=2), np.arange(40, dtype=np.int32)
    client, test = rows // 10, rows % 10 > 6
    part = Partition(asked, ("a", "b", "c"), client, rows, test, labels, (Transform(),) * 4, [0] * 4)
    with store.writing(asked) as writer:
        tables.write(writer, part)
    artifact = store.open("partition", asked.id)
    classes, counts, multi_label = class_counts(artifact)
    assert (classes, multi_label) == (part.classes, several)
    np.testing.assert_array_equal(counts, part.class_counts())
    path = artifact.file("samples.parquet")
    path.write_bytes(b"x" * path.stat().st_size)
    refused(r"samples\.parquet", class_counts, artifact)


def test_real_mnist_by_writer(real_images: RealImages) -> None:
    images = real_images.load("mnist_writers")
    asked = partition_spec(images.spec, "natural", 836, 1, 0.6, by="writer")
    made = partitions.make(asked, images)
    assert len(made.sample) == 70_000  # 539 writers of the training and 297 of the test images
    assert min(made.n_train.min(), made.n_test.min()) >= 1


# -- clients that never train ------------------------------------------------------------------------------------
newcomers = partial(lab.spec, clients=6, train_fraction=0.75)
ASKED = newcomers(unseen=2, unseen_as=KINDS, shift="corrupted")


@few(lab.unseens(), examples=30)
def test_newcomers_come_last_and_again_with_the_same_samples(asked: PartitionSpec) -> None:
    of = dataset()
    made = partitions.make(asked, of)
    alone = partitions.make(PartitionSpec.from_dict({**asked.to_dict(), "newcomers": None, "newcomers_as": None}), of)
    new, again = asked.unseen or 0, asked.unseen_as or ()
    assert made.clients == asked.clients + new * len(again) == len(made.transforms) == len(made.groups)
    assert made.unseen.tolist() == [False] * (asked.clients - new) + [True] * (new * (1 + len(again)))
    for c in range(asked.clients):  # they change nothing of what all others hold and see
        assert made.sample[made.rows(c)].tolist() == alone.sample[alone.rows(c)].tolist()
        assert made.transforms[c] == alone.transforms[c]
    for k in range(asked.clients, made.clients):
        kind, who = divmod(k - asked.clients, new)
        first = asked.clients - new + who
        name, severity = corruption(again[kind])
        assert made.transforms[k] == Transform(corruption=name, severity=severity)
        for test in (False, True):
            assert made.sample[made.rows(k, test)].tolist() == made.sample[made.rows(first, test)].tolist()
            assert made.label[made.rows(k, test)].tolist() == made.label[made.rows(first, test)].tolist()
    assert made.class_counts().shape == (made.clients, 6)
    assert made.class_counts().sum() == len(made.sample) == (made.n_train + made.n_test).sum()
    assert made.densities.train.shape == (made.clients, 6)
    np.testing.assert_allclose(made.densities.train.sum(axis=1), 1)


def test_a_copy_sees_its_images_under_its_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """By streams of its own: two newcomers, and both sides of a split, do not share their noise."""
    of = dataset()
    made = partitions.make(ASKED, of)
    seen = made.transformed_images(of)
    assert seen.shape == (len(made.sample), 8, 8, 3)
    for c, shift in enumerate(made.transforms):
        for test in (False, True):
            plain = of.images[made.sample[made.rows(c, test)]]
            expected = apply(plain, shift, key=2 * c + test) if shift != Transform() else plain
            assert np.array_equal(seen[made.rows(c, test)], expected)
    assert np.array_equal(seen[made.rows(5)], of.images[made.sample[made.rows(5)]])
    noisy = made.transformed_images(dataclasses.replace(of, images=np.full_like(of.images, 128)))
    # 8 and 9 are newcomers 4 and 5 under Gaussian noise
    assert len({noisy[made.rows(c, test)][:5].tobytes() for c in (8, 9) for test in (False, True)}) == 4
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # the same in every process and thread
    assert np.array_equal(partitions.make(ASKED, of).transformed_images(of), seen)


def test_grey_newcomers_see_corruptions_too() -> None:
    of = dataset(channels=1)
    made = partitions.make(newcomers(unseen=2, unseen_as=KINDS, shift="high"), of)
    assert made.transforms[:6] == tuple(s.on_grey() for s in of_clients("high", 6))
    assert [str(s) for s in made.transforms[6:]] == ["fog 3"] * 2 + ["gaussian_noise 1"] * 2
    seen = made.transformed_images(of)
    assert not np.array_equal(seen[made.rows(6)], seen[made.rows(4)])


def test_images_take_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of clients: those that are at work, beside the images themselves."""
    of = lab.noise(np.arange(3000) % 6, shape=(16, 16, 3))
    made = partitions.make(newcomers(clients=100, unseen=99, unseen_as=[f"contrast-{s}" for s in range(1, 6)]), of)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    tracemalloc.start()
    seen = made.transformed_images(of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == 3000 + 5 * 99 * 30
    assert peak < 1.3 * seen.nbytes
