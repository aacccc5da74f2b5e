"""The partition artifact: what it holds, that it comes back the same, and that damage is noticed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from drawing import draw

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply, of_clients
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support.real_images import RealImages

RNG = np.random.default_rng(0)
DATASET = DatasetSpec("made", "here", "now")


def dataset(n: int = 240, channels: int = 3, **fields: Any) -> data.Dataset:
    """Noise in 6 classes, by 12 writers, with 12 fine labels."""
    labels = np.arange(n) % 6
    defaults: dict[str, Any] = {
        "spec": DATASET,
        "images": RNG.integers(0, 256, (n, 5, 4, channels), dtype=np.uint8),
        "labels": labels,
        "split": np.zeros(n, np.uint8),
        "columns": {"writer": np.array([f"w{i % 12}" for i in range(n)]), "fine": 2 * labels + np.arange(n) // 6 % 2},
        "classes": tuple("abcdef"),
    }
    return data.Dataset(**{**defaults, **fields})


def spec(**fields: Any) -> PartitionSpec:
    defaults = {"dataset": DATASET, "scheme": "iid", "clients": 9, "seed": 1, "train_fraction": 0.6, "shift": "high"}
    return partition_spec(**{**defaults, **fields})


@pytest.fixture
def digits(store: Store) -> PartitionSpec:
    """A partition spec of the embedded digits."""
    return spec(dataset=data.resolve("digits", store), scheme="dirichlet", clients=8, alpha=0.3, min_size=10, seed=2025)


def same(a: Partition, b: Partition) -> bool:
    arrays = ("client", "sample", "test", "label", "n_train", "n_test")
    return (
        (a.spec, a.classes, a.transforms, a.groups) == (b.spec, b.classes, b.transforms, b.groups)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        and all(getattr(a, name).dtype == getattr(b, name).dtype for name in arrays)
    )


def test_rows_are_those_of_the_draw() -> None:
    made, drawn = partitions.make(spec(), dataset()), draw(dataset().labels, spec())
    for client, (train, test) in enumerate(drawn):
        assert made.sample[made.rows(client, test=False)].tolist() == train.tolist()
        assert made.sample[made.rows(client, test=True)].tolist() == test.tolist()
        assert made.sample[made.rows(client)].tolist() == [*train, *test]
        assert set(made.client[made.rows(client)]) == {client}
        assert (made.n_train[client], made.n_test[client]) == (len(train), len(test))


def test_class_counts() -> None:
    made = partitions.make(spec(scheme="shards", shards=2), dataset())
    for test in (None, False, True):
        counts = made.class_counts(test)
        assert counts.shape == (9, 6)
        for c in range(9):
            assert counts[c].tolist() == np.bincount(made.label[made.rows(c, test)], minlength=6).tolist()
    assert np.array_equal(made.class_counts(), made.class_counts(False) + made.class_counts(True))


def test_trains_on_labels_but_parts_by_the_partition_labels() -> None:
    fine = dataset(partition_label="fine", _partition_classes=12)
    asked = spec(scheme="dirichlet", alpha=0.3, min_size=4)
    made = partitions.make(asked, fine)
    drawn = draw(fine.columns["fine"], asked)
    assert made.sample[made.rows(3, test=False)].tolist() == drawn[3][0].tolist()
    assert np.array_equal(made.label, fine.labels[made.sample])


def test_by_writer() -> None:
    of = dataset()
    made = partitions.make(spec(scheme="natural", by="writer", clients=5), of)
    assert all(len(set(of.columns["writer"][made.sample[made.rows(c)]])) == 1 for c in range(5))
    with pytest.raises(FedbenchError, match="unknown column of made 'writr'; did you mean 'writer'"):
        partitions.make(spec(scheme="natural", by="writr"), of)


def test_images_are_seen_through_their_clients_shift() -> None:
    of = dataset()
    made = partitions.make(spec(), of)
    images = made.transformed_images(of)
    told = of_clients("high", 9)
    for row in range(len(made.sample)):
        sample, client = made.sample[row], made.client[row]
        assert np.array_equal(images[row], apply(of.images[sample : sample + 1], told[client])[0])
    assert made.groups == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    other = dataset(spec=DatasetSpec("made", "elsewhere", "now"))
    with pytest.raises(FedbenchError, match="is of dataset"):
        made.transformed_images(other)


def test_grey_images_have_as_many_groups_as_gammas() -> None:
    made = partitions.make(spec(), dataset(channels=1))
    assert made.groups == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert {(s.hue, s.saturation) for s in made.transforms} == {(None, None)}


@pytest.mark.parametrize("shift", ["none", "high", "pool"])
def test_comes_back_as_it_was_made(store: Store, digits: PartitionSpec, shift: str) -> None:
    asked = PartitionSpec.from_dict({**digits.to_dict(), "shift": shift})
    made = partitions.build(asked, store)
    assert same(made, partitions.make(asked, data.load("digits", store)))
    assert same(made, partitions.build(asked, store))
    assert same(made, partitions.read(store.open("partition", made.id)))
    assert made.n_train.sum() + made.n_test.sum() == 1797
    assert made.classes == tuple("0123456789")


def test_tables(store: Store, digits: PartitionSpec) -> None:
    made = partitions.build(digits, store)
    artifact = store.open("partition", made.id)
    samples, clients = artifact.table("samples"), artifact.table("clients")
    assert samples.column_names == ["client", "sample", "split", "label"]
    assert samples["split"].to_pylist() == ["test" if t else "train" for t in made.test]
    assert clients.column_names == ["client", "n_train", "n_test", "gamma", "hue", "saturation", "posterize", "group"]
    assert clients["client"].to_pylist() == list(range(8))
    assert clients["gamma"].to_pylist() == [0.6, 1.4] * 4
    assert clients["hue"].to_pylist() == [None] * 8
    assert artifact.manifest["inputs"] == {"dataset": digits.dataset.id}


def test_same_spec_same_bytes_other_seed_other_bytes(store: Store, digits: PartitionSpec, tmp_path: Path) -> None:
    def files(asked: PartitionSpec, home: Path) -> dict[str, str]:
        there = Store(home)
        partitions.build(asked, there)
        manifest = there.open("partition", asked.id).manifest
        return {name: entry["sha256"] for name, entry in manifest["files"].items()}

    again = PartitionSpec.from_dict(digits.to_dict())
    assert files(digits, store.home) == files(again, tmp_path / "second")
    other = PartitionSpec.from_dict({**digits.to_dict(), "seed": 7})
    assert files(other, store.home)["samples.parquet"] != files(digits, store.home)["samples.parquet"]


def test_damage_is_one_clear_error(store: Store, digits: PartitionSpec) -> None:
    made = partitions.build(digits, store)
    folder = store.path("partition", made.id)
    whole = (folder / "samples.parquet").read_bytes()
    (folder / "samples.parquet").write_bytes(whole[:-10])
    with pytest.raises(FedbenchError, match="truncated"):
        partitions.build(digits, store)
    (folder / "samples.parquet").write_bytes(whole[:100] + b"?" + whole[101:])
    with pytest.raises(FedbenchError, match="altered"):
        partitions.build(digits, store)


def test_tables_that_disagree_are_noticed(store: Store, digits: PartitionSpec) -> None:
    made = partitions.build(digits, store)
    artifact = store.open("partition", made.id)
    samples, clients = artifact.table("samples"), artifact.table("clients")
    shutil.rmtree(artifact.path)
    with store.writing(digits) as writer:
        writer.table("samples", samples.slice(1))
        writer.table("clients", clients)
    with pytest.raises(FedbenchError, match="disagree"):
        partitions.build(digits, store)


def test_nothing_is_written_when_the_draw_fails(store: Store, digits: PartitionSpec) -> None:
    asked = PartitionSpec.from_dict({**digits.to_dict(), "clients": 900})
    with pytest.raises(FedbenchError, match="cannot serve 900 clients"):
        partitions.build(asked, store)
    assert list(store.list("partition")) == []


@pytest.mark.bench
@pytest.mark.parametrize("scheme", [{"scheme": "iid"}, {"scheme": "dirichlet", "alpha": 10.0, "min_size": 1}])
def test_sixty_thousand_samples_over_1200_clients_in_two_seconds(scheme: dict[str, Any]) -> None:
    large = dataset(60_000, images=np.broadcast_to(np.uint8(0), (60_000, 32, 32, 3)))
    start = time.process_time()
    made = partitions.make(spec(**scheme, clients=1200), large)
    assert time.process_time() - start < 2
    assert len(made.sample) == 60_000


def test_only_partitions_are_read(store: Store, digits: PartitionSpec) -> None:
    partitions.build(digits, store)
    with pytest.raises(FedbenchError, match="is not a partition"):
        partitions.read(store.open("dataset", digits.dataset.id))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "classes", "train"),
    [
        ("cifar10", 10, [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]),
        ("cifar100", 100, [5296, 5251, 5405, 5292, 5393, 5278, 4792, 5290]),
    ],
)
def test_real_cifar_labels_give_the_papers_clients(data_root: Path, name: str, classes: int, train: list[int]) -> None:
    parts = [pq.read_table(data_root / name / f"{side}.parquet", columns=["label"]) for side in ("train", "test")]
    labels = np.concatenate([part["label"].to_numpy() for part in parts])
    asked = spec(scheme="dirichlet", clients=8, alpha=0.3, min_size=classes, seed=2025, train_fraction=0.7)
    sides = draw(labels, asked)
    assert [len(mine) for mine, _ in sides] == train
    if name == "cifar10":
        counts = np.bincount(labels[np.concatenate(sides[0])], minlength=classes)
        assert counts.tolist() == [505, 215, 4351, 749, 1573, 0, 568, 0, 0, 0]


@pytest.mark.data
def test_real_mnist_by_writer(real_images: RealImages) -> None:
    images = real_images.load("mnist_writers")
    asked = spec(dataset=images.spec, scheme="natural", by="writer", clients=836)
    made = partitions.make(asked, images)
    assert len(made.sample) == 70_000  # 539 writers of the training and 297 of the test images
    assert min(made.n_train.min(), made.n_test.min()) >= 1
