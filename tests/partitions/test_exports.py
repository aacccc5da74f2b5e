"""Clients' images in the folders of PFLlib and LEAF, as those tools read them, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench import data, partitions, protocol
from fedbench.errors import FedbenchError
from fedbench.partition_options import spec_of
from fedbench.partitions import Partition, exports, schemes
from fedbench.store import Store


@pytest.fixture
def digits(store: Store) -> data.Dataset:
    return data.load("digits", store)


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


def test_what_folders_cannot_say(tmp_path: Path, digits: data.Dataset) -> None:
    drifting = partitions.make(
        schemes.spec(digits.spec, "equal", 3, 1, shift="px", level=2, phases=2, train_fraction=None), digits
    )
    with pytest.raises(FedbenchError, match="drift, which no folder of clients can say"):
        exports.write(drifting, "leaf", tmp_path / "out", lambda: digits)
    assert not (tmp_path / "out").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    with pytest.raises(FedbenchError, match="is there already, and pflib is a new folder; choose another --output"):
        exports.write(made(digits), "pflib", tmp_path / "taken", lambda: digits)


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
    with pytest.raises(FedbenchError, match=r"2 of the 3 groups by client have training and test images, .* --clients"):
        back(tmp_path / "out", store)
    assert back(tmp_path / "out", store, clients=2)[0].clients == 2


def test_a_folder_is_data_set_and_partition(tmp_path: Path, digits: data.Dataset, store: Store) -> None:
    exports.write(made(digits), "pflib", tmp_path / "out", lambda: digits)
    rules = protocol.load("feddrm")
    with pytest.raises(FedbenchError, match="is a data set with its clients; leave digits out"):
        spec_of("digits", {"from": str(tmp_path / "out")}, rules, store)
    with pytest.raises(FedbenchError, match=r"is dealt out already, so it takes no --dir; deal its images out anew"):
        spec_of(None, {"from": str(tmp_path / "out"), "dir": 0.3}, rules, store)
    with pytest.raises(FedbenchError, match="a partition of which data set"):
        spec_of(None, {}, rules, store)
    with pytest.raises(FedbenchError, match=r"there is no file or folder \./NOPE; --from takes a folder of PFLlib"):
        spec_of(None, {"from": "./NOPE"}, rules, store)
    dealt = spec_of(str(tmp_path / "out"), {"dir": "0.3", "clients": "2"}, rules, store)
    assert (dealt.scheme, dealt.clients) == ("dirichlet", 2)


def test_from_python(tmp_path: Path, digits: data.Dataset, store: Store) -> None:
    from fedbench import api

    exports.write(made(digits), "pflib", tmp_path / "out", lambda: digits)
    exports.write(made(digits), "csv", tmp_path / "rows.csv", lambda: digits)
    assert api.partition(from_=tmp_path / "out", store=store.home).spec.scheme == "presplit"
    assert api.partition("digits", from_=tmp_path / "rows.csv", store=store.home).spec.clients == 3
