"""Clients' data in LEAF's JSON (FEMNIST also in Parquet) and in PFLlib's folders, whose pickles are refused."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench import protocol
from fedbench.data import load
from fedbench.data.clients import _EITHER, _SIGNED, _pixels, _signed, read_pflib
from fedbench.data.recipe import File, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.partition_options import spec_of
from fedbench.partitions import build
from fedbench.store import Store
from tests.support.data_makers import encoded as png
from tests.support.data_makers import holds, pixels, recipe_file
from tests.support.frames import few, refused

BODY = """
[[source]]
name = "leaf"
kind = "leaf"
columns = { writer = "writer" }
[[source.file]]
path = "leaf"
"""


def held(sizes: dict[str, int], seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    """One LEAF file's content for users with so many images of 4 x 5, and the pixels it means."""
    images = pixels(sum(sizes.values()), 4, 5, seed=seed)
    rows, at, data = (images.reshape(-1, 20) / 255).tolist(), 0, {}
    for user, size in sizes.items():
        data[user] = {"x": rows[at : at + size], "y": [(at + i) % 3 for i in range(size)]}
        at += size
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}, images


def write(folder: Path, name: str, content: Any) -> Path:
    """A file of this text, or of this content as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def leaf(folder: Path, *contents: Any, names: Sequence[str] = ("all_data_0.json",)) -> str:
    """The path of a recipe of LEAF's files with these contents."""
    for name, content in zip(names, contents, strict=True):
        write(folder / "leaf", name, content)
    return recipe_file(folder, BODY)


def test_files_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    names = ["all_data_0.json", "all_data_2.json", "all_data_10.json"]
    contents, images = zip(*(held({f"f{i}_a": 2, f"f{i}_none": 0, f"f{i}_b": 3}, i) for i in range(3)), strict=True)
    toy = leaf(tmp_path, *contents, names=names)
    (tmp_path / "leaf/notes.json").write_text("not one of them")
    got = load(toy, store)
    writers = [f"f{i}_{who}" for i in range(3) for who in "aabbb"]
    holds(got, np.concatenate(images), labels=[0, 1, 2, 0, 1] * 3, writer=writers)
    assert got.split.max() == 0  # a partition splits each client's own images


def test_a_folder_is_data_set_and_clients(tmp_path: Path, store: Store) -> None:
    """LEAF's own train/ and test/, of square images: a user is a client with its own split."""
    levels = {"train": np.arange(80).reshape(5, 16), "test": np.arange(100, 164).reshape(4, 16)}
    for side, sizes in {"train": {"f_a": 2, "f_b": 3}, "test": {"f_a": 1, "f_b": 3}}.items():
        rows, ends = (levels[side] / 255).tolist(), {"f_a": sizes["f_a"], "f_b": sum(sizes.values())}
        data = {u: {"x": rows[ends[u] - n : ends[u]], "y": [0, 1, 1][:n]} for u, n in sizes.items()}
        content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}
        write(tmp_path / "fed" / side, "all_data_0.json", content)
    spec = spec_of(None, {"from": str(tmp_path / "fed")}, protocol.load("feddrm"), store)
    p, images = build(spec, store), load(spec.dataset, store).images
    assert (spec.scheme, p.n_train.tolist(), p.n_test.tolist()) == ("presplit", [2, 3], [1, 3])
    for client, rows in ((0, slice(0, 2)), (1, slice(2, 5))):
        mine = images[p.sample[p.rows(client, test=False)]].reshape(-1, 16).tolist()
        assert sorted(mine) == levels["train"][rows].tolist()


def leaf_folder(place: Path, **sides: dict[str, tuple[list[list[float]], list[float]]]) -> str:
    """A folder of LEAF: side -> user -> x and y."""
    for side, users in sides.items():
        data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
        sizes = [len(y) for _, y in users.values()]
        write(place / side, "all_data.json", {"users": [*users], "num_samples": sizes, "user_data": data})
    return str(place)


def test_rows_of_numbers_are_vectors(tmp_path: Path, store: Store) -> None:
    """As LEAF's synthetic(1, 1): sixty values, and classes as 0.0 and 1.0. What is no vector among them is named."""
    rows = np.random.default_rng(0).normal(size=(12, 60)).round(3)
    users = {f"f_{i}": (rows[4 * i : 4 * i + 4].tolist(), [0.0, 1.0, 2.0, 1.0]) for i in range(3)}
    place = leaf_folder(tmp_path / "synthetic", train=users, test=users)
    spec = spec_of(None, {"from": place}, protocol.load("plain"), store)
    got = load(spec.dataset, store)
    assert (spec.scheme, spec.clients, got.classes) == ("presplit", 3, ("0", "1", "2"))
    assert got.images.dtype == np.float32
    np.testing.assert_array_equal(got.images.reshape(24, 60), np.tile(rows.astype(np.float32), (2, 1)))
    assert got.labels.tolist() == [0, 1, 2, 1] * 6
    users["f_2"][0][3][7] = float("nan")
    refused(
        "user f_2: column x has no number in row 4", load, leaf_folder(tmp_path / "nan", train=users, test=users), store
    )
    users["f_2"][0][3].pop()
    refused(
        "user f_2: the vectors are not rows of 60", load, leaf_folder(tmp_path / "few", train=users, test=users), store
    )


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (np.linspace(0, 1, 64), (8, 8, 1)),
        (np.linspace(-0.5, 2, 64), (1, 1, 64)),  # as many values as a square image, and no grey levels
        (np.linspace(0, 1, 60), (1, 1, 60)),  # the reverse
        (np.linspace(0, 1, 48), (4, 4, 3)),
    ],
)
def test_which_rows_are_images(tmp_path: Path, store: Store, row: np.ndarray, shape: tuple[int, ...]) -> None:
    users = {"a": ([row.tolist()] * 2, [0.0, 1.0])}
    got = load(leaf_folder(tmp_path / "fed", train=users, test=users), store)
    assert got.images.shape == (4, *shape)
    assert bool(got.spec.vectors) == (shape[0] == 1)


def test_text_is_not_read(tmp_path: Path, store: Store) -> None:
    """As LEAF's Shakespeare and Sent140."""
    users: Any = {"a": (["to be or", "not to be"], [0, 1])}
    says = "its rows are no lists of numbers; text is not read"
    refused(says, load, leaf_folder(tmp_path / "fed", train=users, test=users), store)


def test_grey_levels_that_nobody_scaled_are_refused_and_a_recipe_makes_them_vectors(
    tmp_path: Path, store: Store
) -> None:
    users = {"a": ([list(range(16)), list(range(16, 32))], [0.0, 1.0])}
    place = leaf_folder(tmp_path / "fed", train=users, test=users)
    says = r"grey levels must lie in 0\.\.1; divide bytes by 255; of vectors, a recipe of kind leaf says shape = \[16\]"
    refused(says, load, place, store)
    toy = leaf(tmp_path, {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": users["a"][0], "y": [0, 1]}}})
    text = Path(toy).read_text()
    Path(toy).write_text(re.sub(r"shape = .*", "shape = [16]", text))
    got = load(toy, store)
    assert (got.images.shape, got.images.sum()) == ((2, 1, 1, 16), sum(range(32)))


def test_users_of_the_test_side_are_unseen(tmp_path: Path, store: Store) -> None:
    """LEAF's split by user. Who has a single image is left out; some of each side, if fewer are asked for."""

    def users(*sizes: int, first: int) -> dict[str, tuple[list[list[float]], list[float]]]:
        return {
            f"u{first + i}": ([[0.1 * (first + i)] * 16] * n, [0.0, 1.0] * (n // 2) or [1.0])
            for i, n in enumerate(sizes)
        }

    # Their names do not tell the sides apart: u2 and u3 are tests, u4 to u6 train.
    place = leaf_folder(tmp_path / "fed", test=users(4, 6, first=2), train=users(10, 1, 8, first=4))
    lines: list[str] = []
    spec = spec_of(None, {"from": place}, protocol.load("plain"), store, remark=lines.append)
    assert lines[-1].startswith("No client of fed is in both train and test: the 2 of test are unseen clients, and")
    assert (spec.scheme, spec.clients, spec.unseen) == ("natural", 4, 2)
    p, writer = build(spec, store), load(spec.dataset, store).column("client")
    assert [sorted({*writer[p.sample[p.client == i]].tolist()}) for i in range(4)] == [["u4"], ["u6"], ["u2"], ["u3"]]
    assert (p.n_train + p.n_test).tolist() == [10, 8, 4, 6]
    assert min(*p.n_train, *p.n_test) >= 1
    some = spec_of(None, {"from": place, "unseen": "u3", "split": 0.5}, protocol.load("plain"), store)
    assert (some.clients, some.unseen, some.options["order"]) == (4, 1, ("u2", "u4", "u6", "u3"))
    says = "--clients draws some clients, and those of test in .* are unseen; leave it out"
    refused(says, spec_of, None, {"from": place, "clients": 3}, protocol.load("plain"), store)


def test_natural_groups_are_the_clients(tmp_path: Path, store: Store) -> None:
    """Of a data set of one's own, where the user says natural; one with a single image cannot be one."""
    toy = leaf(tmp_path, held({"a": 4, "b": 1, "c": 2, "d": 3})[0])
    rules = protocol.load(protocol.default_for(toy))
    assert rules.name == "plain"
    assert [spec_of(toy, {"by": "writer", **own}, rules, store).clients for own in ({}, {"clients": "2"})] == [3, 2]
    assert build(spec_of(toy, {"by": "writer"}, rules, store), store).class_counts().sum(1).tolist() == [4, 2, 3]
    refused("unknown column of toy 'writers'; did you mean 'writer'", spec_of, toy, {"by": "writers"}, rules, store)


def test_white_paper_stays_white_and_greys_are_rounded(tmp_path: Path, store: Store) -> None:
    """... and every level survives four digits."""
    content, _ = held({"a": 14})
    some = [1.0, 0.0, 1, 0, 0.5, 0.499, 0.0019, 0.002, 254.4 / 255, 254.6 / 255] * 2
    every = [float(f"{level % 256 / 255:.4g}") for level in range(260)]
    content["user_data"]["a"]["x"] = np.reshape([*some, *every], (14, 20)).tolist()
    got = load(leaf(tmp_path, content), store).images.ravel().tolist()
    assert got == [255, 0, 255, 0, 128, 127, 0, 1, 254, 255] * 2 + [level % 256 for level in range(260)]


def user(**change: object) -> Any:
    return lambda content: content["user_data"]["a"].update(change)


ROW = [0.5] * 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("users"), "it lacks 'users'"),
        (lambda c: c.pop("num_samples"), "it lacks 'num_samples'"),
        (lambda c: c.update(user_data=[1]), "it lacks 'user_data' or that is no dict"),
        (lambda c: c.update(users=[], num_samples=[]), "there are no users"),
        (lambda c: c.update(users=[3, 4]), "the name of a user must be text, not 3"),
        (lambda c: c.update(users=["\ud800", "b"]), "not Unicode"),
        (lambda c: c["user_data"].pop("b"), "user b has no x and y in user_data"),
        (lambda c: c["user_data"]["b"].pop("y"), "user b has no x and y in user_data"),
        (lambda c: c["users"].append("c"), "3 users but 2 num_samples"),
        (lambda c: c.update(num_samples=[2, 3]), "user b has 2 images, 2 labels, num_samples 3"),
        (lambda c: c.update(held({"a": 0})[0]), "no user has an image"),
        (user(y=[0]), "user a has 2 images, 1 labels, num_samples 2"),
        (user(x=[ROW]), "user a has 1 images, 2 labels, num_samples 2"),
        (user(x=[ROW, [*ROW[1:], 1.01]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, [*ROW[1:], float("nan")]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, ROW[1:]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [*ROW[1:], "white"]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [10**400] * 20]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW[1:]] * 2), r"user a: images of shape \[19\], not 20 numbers a row"),
        (user(x=[0.5, 0.5]), r"user a: images of shape \[\], not 20 numbers a row"),
        (user(y=[0, 3]), r"labels must lie in 0\.\.2"),
        (user(y=[0, -1]), r"labels must lie in 0\.\.2"),
        (user(y=[0, 1.5]), "user a: labels must be whole numbers"),
        (user(y=[0, float("inf")]), "user a: labels must be whole numbers"),
        (user(y=[0, True]), "user a: labels must be whole numbers"),
        (user(y=[0, 10**30]), "user a: labels must be whole numbers"),
        ("[]", "is not a LEAF file"),
        pytest.param("[" * 100_000, "is truncated or not JSON", id="deep"),
        pytest.param("9" * 10_000, "is truncated or not JSON", id="long"),
        *((keep, "is truncated or not JSON") for keep in (0, 1, 40, 300, -1)),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, store: Store, change: Any, message: str) -> None:
    content, _ = held({"a": 2, "b": 2})
    if callable(change):
        change(content)
    text = json.dumps(content)[:change] if isinstance(change, int) else change if isinstance(change, str) else content
    toy = leaf(tmp_path, text)
    for says in (message, re.escape(str(tmp_path / "leaf/all_data_0.json"))):
        refused(says, load, toy, store)


def test_folders_that_are_not_one_of_leafs(tmp_path: Path, store: Store) -> None:
    toy = leaf(tmp_path, held({"a": 2})[0], names=["data_0.json"])
    refused(r"leaf has no file like all_data\*\.json", load, toy, store)
    # LEAF's sampled and split files hold the same images again: together they would count twice.
    write(tmp_path / "leaf/all_data", "all_data_0.json", held({"a": 2, "b": 1})[0])
    write(tmp_path / "leaf/sampled_data", "all_data_0_niid_0.json", held({"b": 1})[0])
    refused(r"user b is in all_data/all_data_0\.json too; give one of LEAF's folders", load, toy, store)


def test_both_forms_of_femnist_give_the_same_images(tmp_path: Path, store: Store) -> None:
    images, labels = pixels(4, 28, 28), [61, 0, 10, 36]
    writers = ["f0001_41", "f0001_41", "f0002_11", "f0002_11"]
    (tmp_path / "one/femnist").mkdir(parents=True)
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in images],
        "writer_id": writers,
        "hsf_id": [0] * 4,
        "character": labels,
    }
    pq.write_table(pa.table(columns), tmp_path / "one/femnist/train-00000-of-00001.parquet")
    rows = (images.reshape(4, -1) / 255).tolist()
    data = {w: {"x": rows[i : i + 2], "y": labels[i : i + 2]} for i, w in ((0, writers[0]), (2, writers[2]))}
    content = {"users": list(data), "num_samples": [2, 2], "user_data": data}
    write(tmp_path / "two/femnist/all_data", "all_data_0.json", content)
    one, two = (load("femnist", store, [tmp_path / root]) for root in ("one", "two"))
    assert (one.spec.source, two.spec.source) == ("parquet", "leaf")
    for got in (one, two):
        holds(got, images, writer=writers)
        assert [got.classes[label] for label in got.labels] == ["z", "0", "A", "a"]


Clients = dict[int, tuple[Any, Any]]


def fed(place: Path, train: Clients, test: Clients | None = None, config: Any = None) -> str:
    """A folder of PFLlib; of the same images on both sides if no others are given."""
    for side, clients in (("train", train), ("test", train if test is None else test)):
        (place / side).mkdir(parents=True)
        for client, (x, y) in clients.items():
            np.savez_compressed(place / side / f"{client}.npz", x=x, y=np.asarray(y))
    if config is not None:
        (place / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(place)


def grey(count: int, side: int = 4) -> np.ndarray:
    """Images as PFLlib has them: floats in [-1, 1]."""
    pixels = np.arange(count * side * side).reshape(count, 1, side, side) % 256
    return ((pixels / 255 - 0.5) / 0.5).astype(np.float32)


OWN: Clients = {0: (grey(2), [0, 1])}


def test_clients_come_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    sizes = {0: 2, 2: 3, 10: 4}
    train = {c: (grey(n), [c % 3] * n) for c, n in sizes.items()}
    test = {c: (grey(1), [0]) for c in sizes}
    got = load(fed(tmp_path / "fed", train, test, {"num_classes": 3}), store)
    assert (got.spec.name, got.classes, got.images.shape) == ("fed", ("0", "1", "2"), (12, 4, 4, 1))
    holds(got, client=[0, 0, 2, 2, 2, 10, 10, 10, 10, 0, 2, 10], split=[0] * 9 + [1] * 3)
    assert got.images[1].ravel().tolist() == list(range(16, 32))


@pytest.mark.parametrize("shape", [(5,), (9, 1, 8), (1, 1, 8), (3, 1, 128), (128, 1, 3)])
def test_series_and_features_are_vectors(tmp_path: Path, store: Store, shape: tuple[int, ...]) -> None:
    """As PFLlib's HAR and PAMAP2, [n, 9, 1, 128]: of any range, one after the other channel."""
    rows = np.random.default_rng(0).normal(size=(6, *shape)) * 10
    own = {0: (np.zeros((0, *shape)), []), 1: (rows[:4].astype(np.float32), [0, 1, 0, 1]), 2: (rows[4:], [0, 1])}
    lines: list[str] = []
    place = fed(tmp_path / "fed", own)
    got = load(place, store, notify=lines.append)
    size = int(np.prod(shape))
    assert lines[-1] == f"fed: 12 vectors of {size} values, 2 classes"
    np.testing.assert_array_equal(
        got.images.reshape(12, size), np.tile(rows.reshape(6, size), (2, 1)).astype(np.float32)
    )
    assert spec_of(None, {"from": place}, protocol.load("plain"), store).clients == 2


def test_a_folder_holds_vectors_or_images(tmp_path: Path, store: Store) -> None:
    some = {0: (np.ones((2, 5)), [0, 1]), 1: (grey(2), [0, 1])}
    says = (
        r"1\.npz: x must be vectors \[n, D\] or \[n, C, 1, T\], as that of the first client, not float32 \[2, 1, 4, 4\]"
    )
    refused(says, load, fed(tmp_path / "vectors", some), store)
    refused(r"1\.npz: x must be images", load, fed(tmp_path / "images", {0: some[1], 1: some[0]}), store)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_images_in_0_to_1_are_no_dark_ones(tmp_path: Path, store: Store, kind: Any) -> None:
    """As PFLlib's DomainNet, Camelyon17, COVIDx and kvasir; a white image of a client is of either range."""
    levels = np.arange(256).reshape(16, 4, 4)
    own = {0: ((levels / 255).astype(kind), np.arange(16) % 2), 1: (np.ones((1, 4, 4), kind), [0])}
    lines: list[str] = []
    got = load(fed(tmp_path / "fed", own), store, notify=lines.append)
    assert got.images[:17].reshape(17, 4, 4).tolist() == [*levels.tolist(), [[255] * 4] * 4]
    found = ["the values of its images lie in [0, 1]", "34 grey images of 4 x 4 pixels, 2 classes"]
    assert lines[1:] == [f"fed: {line}" for line in found]


def test_a_bright_client_among_others_in_minus_1_to_1(tmp_path: Path, store: Store) -> None:
    bright = np.arange(128, 256).reshape(8, 4, 4)
    own = {0: (grey(2), [0, 1]), 1: ((bright / 255 - 0.5) / 0.5, [0, 1] * 4)}
    assert load(fed(tmp_path / "fed", own), store).images[2:10, ..., 0].tolist() == bright.tolist()


@pytest.mark.parametrize("none", [(np.zeros((0, 1, 4, 4), np.float32), []), ([], [])])
@pytest.mark.parametrize("without", [["train"], ["test"], ["train", "test"]])
def test_a_client_may_have_no_row(tmp_path: Path, store: Store, none: Any, without: list[str]) -> None:
    own = {0: (grey(2), [0, 1]), 1: (grey(2), [0, 1])}
    sides = [{**own, 0: none} if side in without else own for side in ("train", "test")]
    lines: list[str] = []
    got = load(fed(tmp_path / "fed", *sides), store, notify=lines.append)
    named = ", ".join(f"{side}/0.npz" for side in without)
    assert lines[1].endswith(f"[-1, 1]; no row in {named}: a client without any is left out")
    assert len(got.labels) == 8 - 2 * len(without)
    assert set(got.column("client")) == ({1} if without[1:] else {0, 1})


def test_names_of_classes_are_the_configs(tmp_path: Path, store: Store) -> None:
    of_mnist = {"num_clients": 1, "non_iid": True, "partition": "pat", "Size of samples for labels in clients": []}
    for name, config in (("a", {"classes": ["no", "yes"]}), ("b", None), ("c", of_mnist)):
        classes = load(fed(tmp_path / name, OWN, config=config), store).classes
        assert classes == (("no", "yes") if name == "a" else ("0", "1"))


@given(st.integers(0, 255), st.sampled_from([np.float16, np.float32, np.float64, np.uint8]))
def test_eight_bits_come_back_from_any_form(level: int, kind: Any) -> None:
    value = level if kind is np.uint8 else (level / 255 - 0.5) / 0.5
    for shape in ((2, 3, 4, 5), (2, 4, 5, 3), (2, 4, 5)):
        pixels, values = _pixels(np.full(shape, value, kind), "here")
        assert values in ("", _SIGNED, _EITHER)
        pixels = _signed(pixels) if values == _EITHER else pixels
        assert pixels.shape == (2, 4, 5, 1 if len(shape) == 3 else 3)
        assert (pixels == level).all()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_is_refused_and_never_run(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, bomb = fed(tmp_path / "fed", OWN), np.empty(1, object)
    bomb[0] = _Bomb()
    file, as_pflib = Path(place) / "train/0.npz", np.array({"x": grey(2), "y": np.array([0, 1])}, object)
    for arrays, says in (
        ({"data": as_pflib}, r"0\.npz holds a pickled object, .*; save the arrays x and y as such"),
        ({"x": bomb, "y": np.array([0])}, r"0\.npz holds an array of Python objects, which could run any program"),
    ):
        np.savez_compressed(file, **arrays)
        refused(says, load, place, store)
    file.write_bytes(pickle.dumps(_Bomb()))
    refused("is damaged or not an npz file", load, place, store)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("x", "y", "config", "message"),
    [
        (grey(2), [0], None, "2 rows of x but 1 of y"),
        (np.float64(3), [0], None, "x must hold a row for each of y, not one float64"),
        (grey(2), [0.0, 1.0], None, "y must be whole numbers"),
        (grey(2) * 2, [0, 1], None, r"must lie in \[-1, 1\], as PFLlib normalises them, .* lie in \[-2, -1\.5137"),
        (np.full((2, 4, 4), 255.0), [0, 1], None, r"or in \[0, 1\]; they lie in \[255, 255\]"),
        ((grey(2) + 1) / 2, [0, 1], None, r"1\.npz holds images in \[0, 1\] and .*0\.npz in \[-1, 1\]; bring all"),
        (grey(2) * np.nan, [0, 1], None, r"the images must lie in \[-1, 1\]"),
        (grey(2).reshape(2, 16), [0, 1], None, r"images \[n, C, H, W\] of 1 or 3 channels, not float32 \[2, 16\]"),
        (np.zeros((2, 4, 4), int), [0, 1], None, "x must be images"),
        (np.zeros((2, 2, 4, 4), np.uint8), [0, 1], None, "x must be images"),
        (grey(2), [0, 7], None, r"labels must lie in 0\.\.1"),
        (grey(2), [0, 10**9], {}, "fed has class 1000000000, and 65,535 is the largest"),
        (grey(2, 5), [0, 1], None, r"images of shape \[5, 5, 1\]; the recipe says \[4, 4, 1\]"),
        *(
            (grey(2), [0, 1], config, message)
            for config, message in (
                ("{", "config.json is not JSON"),
                ("[" * 10_000, "config.json is not JSON"),
                ("[]", "config.json must hold an object of JSON"),
                ({"num_classes": None}, "num_classes must be a number of classes, 2 at least, not None"),
                ({"num_classes": True}, "not True"),
                ({"num_classes": 1}, "not 1"),
            )
        ),
    ],
)
def test_wrong_arrays_and_configs_are_one_line(
    tmp_path: Path, store: Store, x: Any, y: Any, config: Any, message: str
) -> None:
    place = fed(tmp_path / "fed", {**OWN, 1: (x, y)}, OWN, {"num_classes": 2} if config is None else config)
    refused(message, load, place, store)


def test_folders_that_cannot_be_it(tmp_path: Path, store: Store) -> None:
    refused(r"none .* holds no image", load, fed(tmp_path / "none", {0: ([], [])}), store)
    named = fed(tmp_path / "fed", OWN)
    (tmp_path / "fed/train/train0.npz").write_bytes(b"")
    refused(r"train0\.npz should be called by its client's number; such as 0\.npz", load, named, store)
    (tmp_path / "other/train").mkdir(parents=True)
    refused("is a folder neither of PFLlib .*; it holds no file; images in class", load, str(tmp_path / "other"), store)
    (tmp_path / "other/train/1.png").write_bytes(png(pixels(1, 4, 5)[0]))
    refused(r"it holds train/1\.png; images in class folders", load, str(tmp_path / "other"), store)


def _parts(path: Path) -> list[Any]:
    own = Source("pflib", "pflib", file=(File("train"),))
    return list(read_pflib(Recipe("fed", "", "", "", (), (), (own,)), own, [path]))


@few(st.data(), examples=40)
def test_any_bytes_end_in_one_line_or_in_images(tmp_path: Path, drawn: st.DataObject) -> None:
    """Anything, or a good file of which one byte is another."""
    whole = io.BytesIO()
    np.savez_compressed(whole, x=grey(2), y=np.array([0, 1]))
    content = bytearray(whole.getvalue())
    content[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    (tmp_path / "0.npz").write_bytes(drawn.draw(st.just(bytes(content)) | st.binary(max_size=300)))
    with contextlib.suppress(FedbenchError):  # which makes one line of anything
        (part,) = _parts(tmp_path)
        assert part.images.dtype == np.uint8


def test_an_archive_that_says_less_than_it_unpacks_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.data.guard.LIMIT", 1 << 20)
    np.savez_compressed(tmp_path / "0.npz", x=np.zeros((64, 1, 256, 256), np.uint8), y=np.zeros(64, int))
    refused("would take", _parts, tmp_path)
