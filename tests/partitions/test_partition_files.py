"""Partitions in files and folders: what is read is what was written, in the forms of PFLlib and LEAF as those tools
read them; and a file that says no partition ends in one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fedbench import api, data, partitions, protocol
from fedbench.partition_options import spec_of
from fedbench.partitions import Partition, exports, rows, schemes
from fedbench.specs import PartitionSpec
from fedbench.store import Store
from tests.support import partitions_lab as lab
from tests.support.frames import few, refused

HEAD = "client,sample,split\n"
GOOD = HEAD + "0,5,train\n0,7,test\n1,5,train\n1,2,validation\n1,0,test\n"


def dataset(count: int = 40) -> data.Dataset:
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
def tables(draw: st.DrawFn) -> list[tuple[int, int, str]]:
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


@few(tables())
def test_rows_are_the_same_in_any_order_form_and_count(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    client, sample, split = (list(column) for column in zip(*table, strict=True))
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    csv = rows.read(file(tmp_path, HEAD + text))
    from_one = "".join(f"{side},{c + 1} , {s}\r\n" for c, s, side in table)
    other = rows.read(file(tmp_path, f"\ufeffsplit,client,sample\r\n{from_one}", "other.csv"))
    quoted = "".join(f'"{c}",{s},"{side}"\n' for c, s, side in table)
    assert rows.read(file(tmp_path, f'"client",sample,"split"\n{quoted}', "quoted.csv")).digest == csv.digest
    kinds = {"sample": pa.array(sample, pa.uint16()), "client": pa.array(client, pa.int8())}
    pq.write_table(pa.table({"split": pa.array(split).dictionary_encode(), **kinds}), tmp_path / "rows.parquet")
    parquet = rows.read(tmp_path / "rows.parquet")
    assert csv.digest == other.digest == parquet.digest == hashlib.sha256(csv.text).hexdigest()
    back = [f"{c},{s},{rows.SPLITS[k]}" for c, s, k in zip(csv.client, csv.sample, csv.split, strict=True)]
    assert sorted(back) == sorted(text.split())


@few(tables())
def test_a_partition_comes_back_as_it_was_written(tmp_path: Path, table: list[tuple[int, int, str]]) -> None:
    text = "".join(f"{c},{s},{side}\n" for c, s, side in table)
    p = partitions.make(from_file(file(tmp_path, HEAD + text)), dataset())
    assert held(p) == set(table)
    for name in ("again.csv", "again.parquet"):
        exports.write(p, exports.format_of(Path(name), None), tmp_path / name, dataset)
        again = partitions.make(from_file(tmp_path / name), dataset())
        assert again.id == p.id
        assert np.array_equal(again.sample, p.sample)


def test_the_partition_has_what_its_rows_say(tmp_path: Path) -> None:
    p = partitions.make(from_file(file(tmp_path, GOOD)), dataset())
    assert [p.n_train.tolist(), p.n_validation.tolist(), p.n_test.tolist()] == [[1, 1], [0, 1], [1, 1]]
    assert p.sample.tolist() == [5, 7, 5, 2, 0]
    assert p.label.tolist() == [1, 1, 1, 0, 0]
    assert p.spec.options == {"rows": rows.read(tmp_path / "rows.csv").digest}


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
        (HEAD + "0,,train\n", r"line 2: sample must be a whole number, not ''"),
        (HEAD + "0,9999999999,train\n", r"line 2: sample must be below 2,147,483,648"),
        (HEAD + "0,1,train\n0,2,tset\n", r"unknown split in .*line 3: 'tset'; did you mean 'test'\?"),
        (GOOD + "0,7,train\n", r"rows\.csv, line 7: client 0 has sample 7 already"),
        (GOOD + "3,7,train\n3,8,test\n", "counted from 0 or 1 without gaps, and client 2 has no row"),
        (HEAD + "2,1,train\n2,2,test\n", "counted from 0 or 1 without gaps, and client 0 has no row"),
        (GOOD + "2,7,test\n", "client 2 has no training sample"),
        (GOOD + "2,7,train\n", "client 2 has no test sample"),
        ('"clent",sample,split\n0,1,train\n', r"unknown column in .*rows\.csv 'clent'; did you mean 'client'\?"),
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
        (lab.spec("file", 2, rows="0" * 64), "are a file that is not at hand; give it with --from FILE"),
    ):
        refused(says, partitions.make, asked, dataset())


def test_modifiers_are_said_beside_the_file(tmp_path: Path) -> None:
    images, more = dataset(), {"duplicates": 2, "unseen": 1, "unseen_as": ("fog-3",), "shift": "low"}
    p = partitions.make(lab.spec("iid", train_fraction=0.5, **more), images)
    (line,) = exports.write(p, "csv", tmp_path / "rows.csv", dataset)
    assert line.endswith("rows.csv --shift low --duplicates 2 --unseen 1 --unseen-as fog-3")
    again = partitions.make(from_file(tmp_path / "rows.csv", **more), images)
    assert again.transforms == p.transforms
    assert held(again) == held(p)
    assert np.array_equal(again.n_train, p.n_train)


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


@pytest.mark.parametrize("form", ["pflib", "leaf"])
def test_clients_see_again_what_they_saw(tmp_path: Path, store: Store, digits: data.Dataset, form: str) -> None:
    p = made(digits, shift="high")
    lines = exports.write(p, form, tmp_path / "out", lambda: digits)
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
        assert train["x"].dtype == np.float32
        assert train["x"].shape == (p.n_train[client], 1, 8, 8)
        assert -1 <= train["x"].min() < train["x"].max() <= 1
        assert train["y"].tolist() == p.label[p.rows(client, False)].tolist()
    config = json.loads((tmp_path / "out/config.json").read_text())
    keys = {"num_clients", "num_classes", "non_iid", "balance", "partition", "alpha", "batch_size"}
    assert keys <= set(config)
    assert (config["num_clients"], config["num_classes"], config["alpha"]) == (3, 10, 0.5)
    sizes = config["Size of samples for labels in clients"]
    assert [sum(count for _, count in one) for one in sizes] == (p.n_train + p.n_test).tolist()


def test_leaf_reads_it(tmp_path: Path, digits: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What LEAF's read_data asks: .json files, users, user_data; as many files as their size asks for."""
    monkeypatch.setattr("fedbench.partitions.exports.images._USERS", 2)
    p = made(digits)
    exports.write(p, "leaf", tmp_path / "out", lambda: digits)
    for side, sizes in (("train", p.n_train), ("test", p.n_test)):
        files = sorted((tmp_path / "out" / side).iterdir())
        assert [path.name for path in files] == ["all_data_0.json", "all_data_1.json"]
        merged: dict[str, Any] = {}
        for path in files:
            parsed = json.loads(path.read_text())
            assert parsed["num_samples"] == [len(parsed["user_data"][user]["y"]) for user in parsed["users"]]
            merged |= parsed["user_data"]
        assert list(merged) == ["f_0", "f_1", "f_2"]
        assert [len(one["x"]) for one in merged.values()] == sizes.tolist()
        assert all(len(row) == 64 and 0 <= min(row) <= max(row) <= 1 for one in merged.values() for row in one["x"])


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
    out, taken, many = tmp_path / "out", tmp_path / "taken", dataset(400)
    taken.mkdir()
    (taken / "file").touch()
    drifting, turned = (
        partitions.make(lab.spec("equal", 4, shift="px", level=2, phases=phases), many) for phases in (2, None)
    )
    for p, form, place, says in (
        (drifting, "leaf", out, "drift, which no folder of clients can say"),
        (turned, "csv", out, "more than who holds which sample .* csv says no more"),
        (made(digits), "pflib", taken, "is there already, and pflib is a new folder; choose another --output"),
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
        (None, {"from": str(out), "dir": 0.3}, r"is dealt out already, so it takes no --dir; deal its images out anew"),
        (None, {}, "a partition of which data set"),
        (None, {"from": "./NOPE"}, r"there is no file or folder \./NOPE; --from takes a folder of PFLlib"),
    ):
        refused(says, spec_of, of, options, rules, store)
    dealt = spec_of(str(out), {"dir": "0.3", "clients": "2"}, rules, store)
    assert (dealt.scheme, dealt.clients) == ("dirichlet", 2)
    assert api.partition(from_=out, store=store.home).spec.scheme == "presplit"
    assert api.partition("digits", from_=tmp_path / "rows.csv", store=store.home).spec.clients == 3
