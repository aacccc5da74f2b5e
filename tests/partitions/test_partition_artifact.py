"""The partition and its artifact: what it holds, that it comes back the same, and that damage is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fedbench import api, data, partitions, protocol
from fedbench.partition_options import spec_of
from fedbench.partitions import Partition, exports, rows, schemes, tables
from fedbench.partitions.distribution import realised
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import named as corruption
from fedbench.partitions.view import class_counts, leakage, render
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from fedbench.store.artifact import opened
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


def test_rows_are_those_of_the_draw_seen_through_their_clients_shift() -> None:
    of = dataset()
    made, shifts = partitions.make(spec(shift="high"), of), of_clients("high", 9)
    drawn, images = draw(of.labels, spec(shift="high")), made.transformed_images(of)
    for client, (train, test) in enumerate(drawn):
        assert lab.sides(made, client) == (train.tolist(), [], test.tolist())
        both = np.concatenate([train, test])
        assert made.sample[made.rows(client)].tolist() == both.tolist()
        assert set(made.client[made.rows(client)]) == {client}
        assert (made.n_train[client], made.n_test[client]) == (len(train), len(test))
        for image, sample in zip(images[made.rows(client)], both, strict=True):
            assert np.array_equal(image, apply(of.images[sample : sample + 1], shifts[client])[0])
    assert made.groups == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    refused("is of dataset", made.transformed_images, dataset(spec=DatasetSpec("made", "elsewhere", "now")))
    grey = partitions.make(spec(shift="high"), dataset(channels=1))  # has as many groups as gammas
    assert grey.groups == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert {(s.hue, s.saturation) for s in grey.transforms} == {(None, None)}


MIX = {"train_mix": [[4, 1, 1, 1, 1, 1], [1, 4, 1, 1, 1, 1]], "test_mix": [[1, 1, 4, 1, 1, 1], [1, 1, 1, 4, 1, 1]]}
MIXTURE = lab.spec("mixture", **MIX, keep=(0.5, 1))
COLORED = lab.spec(
    "colored", 2, blocks=[(0, 50, 100, 150), (50, 100, 150, 200)], flips=[(0.5, 0.2), (0.2, 0.8)], label_noise=0.25
)


def test_trains_on_labels_but_parts_by_the_partition_labels() -> None:
    fine, asked = (dataset(partition_label="fine", _partition_classes=12), spec("dirichlet", alpha=0.3, min_size=4))
    made, drawn = partitions.make(asked, fine), draw(fine.columns["fine"], asked)
    assert made.sample[made.rows(3, test=False)].tolist() == drawn[3][0].tolist()
    assert np.array_equal(made.label, fine.labels[made.sample])


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
#: By whether a row is one of test, or of validation.
SPLIT = {(False, False): "train", (False, True): "validation", (True, False): "test"}
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
    held_back = np.zeros_like(built.test) if built.validation is None else built.validation
    assert samples["split"].to_pylist() == [SPLIT[t, v] for t, v in zip(built.test, held_back, strict=True)]
    for name in {"n_train", "n_test", "n_validation"} & set(clients.column_names):
        assert clients[name].to_pylist() == getattr(built, name).tolist()
    if "distribution" in columns:
        told = [built.distributions[g].described(built.classes) for g in built.groups]
        assert clients["distribution"].to_pylist() == told
        assert clients["stage_groups"].to_pylist() == [[g] for g in built.groups]
        assert clients["test_group"].to_pylist() == built.groups
        assert artifact.table("distributions")["group"].to_pylist() == list(range(len(built.distributions)))
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


def test_older_partitions_are_read() -> None:
    """One that was written before there were corruptions and newcomers."""
    folder = Path(__file__).parents[1] / "fixtures" / "schema1" / "partition"
    artifact = opened(folder / "80d68cde158f", "partition", "80d68cde158f")
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
    made = partitions.make(partition_spec(images.spec, "natural", 836, 1, 0.6, by="writer"), images)
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
        assert lab.sides(made, k) == lab.sides(made, first)
        assert made.label[made.rows(k)].tolist() == made.label[made.rows(first)].tolist()
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


# -- partitions in files and folders, in the forms of PFLlib and LEAF as those tools read them ----------------


HEAD = "client,sample,split\n"
GOOD = HEAD + "0,5,train\n0,7,test\n1,5,train\n1,2,validation\n1,0,test\n"


def halves(count: int = 40) -> data.Dataset:
    """Of two classes in turn."""
    split = (np.arange(count) >= count // 2).astype(np.uint8)
    return lab.noise(np.arange(count) % 2, split, (2, 2, 1), classes=("even", "odd"))


def file(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def from_file(path: Path, **more: Any) -> PartitionSpec:
    return lab.spec("file", rows.read(path).clients, rows=str(path), **more)


@st.composite
def held_rows(draw: st.DrawFn) -> list[tuple[int, int, str]]:
    """Rows of a partition in any order: every client has a training and a test sample, none has a sample twice."""
    out = []
    for client in range(draw(st.integers(1, 5))):
        samples = draw(st.lists(st.integers(0, 39), min_size=2, max_size=12, unique=True))
        more = draw(st.lists(st.sampled_from(rows.SPLITS), min_size=len(samples) - 2, max_size=len(samples) - 2))
        out += [(client, sample, side) for sample, side in zip(samples, ["train", "test", *more], strict=True)]
    return draw(st.permutations(out))


def held(p: Partition) -> set[tuple[int, int, str]]:
    """The rows of a file of this partition."""
    back = np.zeros(len(p.test), bool) if p.validation is None else p.validation
    side = np.where(p.test, "test", np.where(back, "validation", "train"))
    return set(zip(p.client.tolist(), p.sample.tolist(), side.tolist(), strict=True))


@few(held_rows())
def test_rows_are_the_same_in_any_order_form_and_count(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    client, sample, split = (list(column) for column in zip(*table, strict=True))
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    csv = rows.read(file(tmp_path, HEAD + text))
    from_one = "".join(f"{side},{c + 1} , {s}\r\n" for c, s, side in table)
    other = rows.read(file(tmp_path, f"\ufeffsplit,client,sample\r\n{from_one}", "other.csv"))
    quoted = "".join(f'"{c}",{s},"{side}"\n' for c, s, side in table)
    assert rows.read(file(tmp_path, f'"client",sample,"split"\n{quoted}', "quoted.csv")).digest == csv.digest
    (tmp_path / "sheet.csv").write_text((HEAD + text).replace(",", ";"), "utf-16")
    assert rows.read(tmp_path / "sheet.csv").digest == csv.digest
    kinds = {"sample": pa.array(sample, pa.uint16()), "client": pa.array(client, pa.int8())}
    pq.write_table(pa.table({"split": pa.array(split).dictionary_encode(), **kinds}), tmp_path / "rows.parquet")
    parquet = rows.read(tmp_path / "rows.parquet")
    assert csv.digest == other.digest == parquet.digest == hashlib.sha256(csv.text).hexdigest()
    back = [f"{c},{s},{rows.SPLITS[k]}" for c, s, k in zip(csv.client, csv.sample, csv.split, strict=True)]
    assert sorted(back) == sorted(text.split())


@few(held_rows())
def test_a_partition_comes_back_as_it_was_written(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    p = partitions.make(from_file(file(tmp_path, HEAD + text)), halves())
    assert held(p) == set(table)
    for name in ("again.csv", "again.parquet"):
        exports.write(p, exports.format_of(Path(name), None), tmp_path / name, halves)
        again = partitions.make(from_file(tmp_path / name), halves())
        assert again.id == p.id
        assert np.array_equal(again.sample, p.sample)


def test_the_partition_has_what_its_rows_say(tmp_path: Path) -> None:
    p = partitions.make(from_file(file(tmp_path, GOOD)), halves())
    assert [p.n_train.tolist(), p.n_validation.tolist(), p.n_test.tolist()] == [[1, 1], [0, 1], [1, 1]]
    assert p.sample.tolist() == [5, 7, 5, 2, 0]
    assert p.label.tolist() == [1, 1, 1, 0, 0]
    assert p.spec.options == {"rows": rows.read(tmp_path / "rows.csv").digest}


LEAKING = HEAD + "0,1,train\n0,2,train\n0,5,test\n0,9,test\n1,5,train\n1,2,test\n2,9,train\n2,5,test\n2,8,test\n"


def test_test_images_that_train_other_clients_are_counted(tmp_path: Path) -> None:
    p = partitions.make(from_file(file(tmp_path, LEAKING)), halves())
    assert p.leaked == 4  # of client 0: 5 and 9; of client 1: 2; of client 2: 5
    assert leakage(p) == "4 of 5 test images are training images of other clients"
    assert any("4 of 5 test images are training" in str(part) for part in render(p))
    clean = partitions.make(from_file(file(tmp_path, GOOD)), halves())
    assert (clean.leaked, leakage(clean)) == (0, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a CSV file"),
        (HEAD + "", r"rows\.csv has no rows"),
        ("clent,sample,split\n0,1,train\n", r"unknown column in .*rows\.csv 'clent'; did you mean 'client'\?"),
        ("client,sample\n0,1\n", r"rows\.csv has no column 'split'; its columns are client,sample,split"),
        ("client,sample,split,split\n0,1,train,test\n", "has two columns 'split'"),
        (HEAD + "0,1,train\n0,2\n", r"rows\.csv is not a CSV file as it should be .*#3"),
        (HEAD + "0,1,train\n0,-2,test\n", r"rows\.csv, line 3: sample cannot be negative: -2"),
        (HEAD + "-1,1,train\n0,2,test\n", r"rows\.csv, line 2: client cannot be negative: -1"),
        (HEAD + "0,1,train\n0,x,test\n", r"line 3: sample must be a whole number, not 'x'"),
        (HEAD + "0,1.0,train\n", r"line 2: sample must be a whole number, not '1\.0'"),
        (HEAD + "0,9999999999,train\n", r"line 2: sample must be below 2,147,483,648"),
        (HEAD + "0,1,train\n0,2,tset\n", r"unknown split in .*line 3: 'tset'; did you mean 'test'\?"),
        (GOOD + "0,7,train\n", r"rows\.csv, line 7: client 0 has sample 7 already"),
        (GOOD + "3,7,train\n3,8,test\n", "counted from 0 or 1 without gaps, and client 2 has no row"),
        (HEAD + "2,1,train\n2,2,test\n", "counted from 0 or 1 without gaps, and client 0 has no row"),
        (GOOD + "2,7,test\n", "client 2 has no training sample"),
        (GOOD + "2,7,train\n", "client 2 has no test sample"),
        ('client,sample,split\n0,1,"train\n0,2,test"\n', r"rows\.csv"),
        (HEAD + "0,1,train\n0,2,test\n\n", "must be a whole number|is not a CSV file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    refused(message, rows.read, file(tmp_path, text))


def test_a_wrong_parquet_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for columns, message in (
        ({"client": [0, 0], "sample": [1.0, 2.0], "split": ["train", "test"]}, "must hold whole numbers, not double"),
        ({"client": [0, None], "sample": [1, 2], "split": ["train", "test"]}, "column client has empty values"),
        ({"client": [0, 0], "sample": [1, -2], "split": ["train", "test"]}, r"row 2: sample cannot be negative: -2"),
        ({"client": [0, 0], "sample": [1, 2], "split": ["train", None]}, r"unknown split in .*row 2"),
        ({"client": [0, 0], "sample": [1, 2], "split": [[1], [2]]}, "column split must hold text"),
    ):
        pq.write_table(pa.table(columns), path)
        refused(message, rows.read, path)
    path.write_bytes(b"PAR1 and no more")
    refused("is damaged or not a Parquet file", rows.read, path)


@few(st.binary(max_size=200))
def test_any_bytes_end_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    refused("", rows.read, path)


def test_what_does_not_fit_the_data(tmp_path: Path) -> None:
    beyond = from_file(file(tmp_path, HEAD + "0,1,train\n0,40,test\n", "beyond.csv"))
    good = file(tmp_path, GOOD)
    for asked, says in (
        (beyond, r"client 0 has sample 40, and made has 40 images \(0 to 39\)"),
        (lab.spec("file", 3, rows=str(good)), "has 2 clients, not 3; leave --clients out"),
        (from_file(good, validation=0.5), "has validation samples of its own; leave --validation out"),
        (lab.spec("file", 2, rows="0" * 64), "are a file that is not available; give it with --from FILE"),
    ):
        refused(says, partitions.make, asked, halves())


def test_modifiers_are_said_beside_the_file(tmp_path: Path) -> None:
    images, more = halves(), {"duplicates": 2, "unseen": 1, "unseen_as": ("fog-3",), "shift": "low"}
    p = partitions.make(lab.spec("iid", train_fraction=0.5, **more), images)
    (line,) = exports.write(p, "csv", tmp_path / "my rows.csv", halves)
    assert line.endswith("/my rows.csv' --shift low --duplicates 2 --unseen 1 --unseen-as fog-3")
    again = partitions.make(from_file(tmp_path / "my rows.csv", **more), images)
    assert again.transforms == p.transforms
    assert held(again) == held(p)
    assert np.array_equal(again.n_train, p.n_train)
    for own in ({}, {"duplicates": 2}):  # the copies of a shard are no duplicates
        shared = partitions.make(lab.spec("equal", copies=9, **own), images)
        refused("has sample .* already", exports.write, shared, "csv", tmp_path / "no.csv", halves)


def test_the_format_is_given_or_the_ending() -> None:
    assert exports.format_of(Path("a.pq"), None) == "parquet"
    assert exports.format_of(Path("a.txt"), "csv") == "csv"
    refused("does not say in which format", exports.format_of, Path("a.txt"), None)
    refused("did you mean 'parquet'", exports.format_of, Path("a"), "parqet")


def made(images: data.Dataset, scheme: str = "dirichlet", **more: Any) -> Partition:
    own = {"alpha": 0.5} if scheme == "dirichlet" else {}
    values = {"clients": 3, "seed": 1, "train_fraction": 0.7, **own, **more}
    return partitions.make(schemes.spec(images.spec, scheme, **values), images)


def back(folder: Path, store: Store, **options: Any) -> tuple[Partition, data.Dataset]:
    spec = spec_of(None, {"from": str(folder), **options}, protocol.load("feddrm"), store)
    return partitions.build(spec, store), data.load(spec.dataset, store)


def content(p: Partition, images: data.Dataset, client: int, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """What a client sees: images in an order of their own, with their labels."""
    seen, index = p.distinct(images)
    rows = np.flatnonzero((p.client == client) & (p.test == test))
    flat = seen[index[rows]].reshape(len(rows), -1)
    order = np.lexsort(flat.T)
    return flat[order], p.label[rows][order]


def test_clients_see_again_what_they_saw(tmp_path: Path, store: Store, digits: data.Dataset) -> None:
    p = made(digits, shift="high")
    lines = exports.write(p, "pflib", tmp_path / "out", lambda: digits)
    assert lines[-1] == f"read it again with: fedbench partition --from {tmp_path / 'out'}"
    again, images = back(tmp_path / "out", store)
    assert (again.clients, again.spec.shift, again.spec.dataset.name) == (3, "none", "out")
    assert (again.n_train.tolist(), again.n_test.tolist()) == (p.n_train.tolist(), p.n_test.tolist())
    for client in range(3):
        for test in (False, True):
            for mine, other in zip(content(p, digits, client, test), content(again, images, client, test), strict=True):
                assert np.array_equal(mine, other)
    assert back(tmp_path / "out", store)[0].id == again.id


def test_pflib_reads_it(tmp_path: Path, digits: data.Dataset) -> None:
    """What PFLlib's read_client_data asks of a client's file, and its check of config.json."""
    p = made(digits)
    lines = exports.write(p, "pflib", tmp_path / "out", lambda: digits)
    assert any("dict(np.load(f))" in line for line in lines)
    for client in range(3):
        with (tmp_path / f"out/train/{client}.npz").open("rb") as f:
            train = dict(np.load(f))
        assert (train["x"].dtype, train["x"].shape) == (np.float32, (p.n_train[client], 1, 8, 8))
        assert -1 <= train["x"].min() < train["x"].max() <= 1
        assert train["y"].tolist() == p.label[p.rows(client, False)].tolist()
    config = json.loads((tmp_path / "out/config.json").read_text())
    keys = {"num_clients", "num_classes", "non_iid", "balance", "partition", "alpha", "batch_size"}
    assert keys <= set(config)
    assert (config["num_clients"], config["num_classes"], config["alpha"]) == (3, 10, 0.5)
    sizes = config["Size of samples for labels in clients"]
    assert [sum(count for _, count in one) for one in sizes] == (p.n_train + p.n_test).tolist()


def test_what_is_left_out_is_said(tmp_path: Path, digits: data.Dataset, store: Store) -> None:
    p = made(digits, validation=0.2, unseen=1, unseen_as=("fog-2",))
    lines = exports.write(p, "pflib", tmp_path / "out", lambda: digits)
    assert lines[0] == "validation images are among the training images"
    assert lines[-1].endswith("--unseen 2")
    again, _ = back(tmp_path / "out", store, unseen=2)
    assert again.unseen.tolist() == p.unseen.tolist()
    assert again.n_train.tolist() == (p.n_train + p.n_validation).tolist()


def test_groups_without_both_sides_are_no_clients(tmp_path: Path, digits: data.Dataset, store: Store) -> None:
    exports.write(made(digits), "pflib", tmp_path / "out", lambda: digits)
    (tmp_path / "out/test/1.npz").unlink()
    refused(r"2 of the 3 groups by client have training and test images, .* --clients", back, tmp_path / "out", store)
    assert back(tmp_path / "out", store, clients=2)[0].clients == 2


def test_what_folders_and_rows_cannot_say(tmp_path: Path, digits: data.Dataset) -> None:
    out, taken, many = tmp_path / "out", tmp_path / "taken", halves(400)
    taken.mkdir()
    (taken / "file").touch()
    drifting, turned = (
        partitions.make(lab.spec("equal", 4, shift="px", level=2, phases=phases), many) for phases in (2, None)
    )
    for p, form, place, says in (
        (drifting, "pflib", out, "drift, which no folder of clients can say"),
        (turned, "csv", out, "more than who holds which sample .* csv says no more"),
        (made(digits), "pflib", taken, "exists already, and pflib is a new folder; choose another --output"),
    ):
        refused(says, exports.write, p, form, place, lambda: many)
    assert not out.exists()


def test_a_folder_is_data_set_and_partition(tmp_path: Path, digits: data.Dataset, store: Store) -> None:
    out = tmp_path / "out"
    exports.write(made(digits), "pflib", out, lambda: digits)
    exports.write(made(digits), "csv", tmp_path / "rows.csv", lambda: digits)
    rules = protocol.load("feddrm")
    for of, options, says in (
        ("digits", {"from": str(out)}, "is a data set with its clients; leave digits out"),
        (None, {"from": str(out), "dir": 0.3}, r"is a partition already, so it takes no --dir; partition its images"),
        (None, {}, "a partition of which data set"),
        (None, {"from": "./NOPE"}, r"there is no file or folder \./NOPE; --from takes a folder of PFLlib"),
    ):
        refused(says, spec_of, of, options, rules, store)
    dealt = spec_of(str(out), {"dir": "0.3", "clients": "2"}, rules, store)
    assert (dealt.scheme, dealt.clients) == ("dirichlet", 2)
    assert api.partition(from_=out, store=store.home).spec.scheme == "presplit"
    assert api.partition("digits", from_=tmp_path / "rows.csv", store=store.home).spec.clients == 3
