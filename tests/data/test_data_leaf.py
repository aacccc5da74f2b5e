"""FEMNIST by writer: LEAF's JSON files, and the same images in Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import protocol
from fedbench.data import Dataset, load, recipe, resolve
from fedbench.data.leaf import read_leaf
from fedbench.errors import FedbenchError
from fedbench.partition_options import spec_of
from fedbench.partitions import build
from fedbench.store import Store
from tests.support.data_makers import encoded, pixels, recipe_text

BODY = """
[[source]]
name = "leaf"
kind = "leaf"
columns = { writer = "writer" }
[[source.file]]
path = "leaf"
"""
Held = dict[str, Any]


def held(sizes: dict[str, int], seed: int = 0) -> tuple[Held, np.ndarray]:
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


def loaded(folder: Path, store: Store) -> Dataset:
    (folder / "toy.toml").write_text(recipe_text(BODY))
    return load(str(folder / "toy.toml"), store)


def test_files_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    names = ["all_data_0.json", "all_data_2.json", "all_data_10.json"]
    contents = [held({f"f{i}_a": 2, f"f{i}_b": 3}, seed=i) for i in range(3)]
    for name, (content, _) in zip(names, contents, strict=True):
        write(tmp_path / "leaf", name, content)
    (tmp_path / "leaf/notes.json").write_text("not one of them")
    got = loaded(tmp_path, store)
    np.testing.assert_array_equal(got.images[..., 0], np.concatenate([images for _, images in contents]))
    assert got.labels.tolist() == [0, 1, 2, 0, 1] * 3
    assert got.columns["writer"].tolist() == [f"f{i}_{who}" for i in range(3) for who in "aabbb"]
    assert got.split.max() == 0  # a partition splits each client's own images


def test_natural_groups_are_the_clients(tmp_path: Path, store: Store) -> None:
    """Of a data set of one's own, where the user says natural; one with a single image cannot be one."""
    content, _ = held({"a": 4, "b": 1, "c": 2, "d": 3})
    write(tmp_path / "leaf", "all_data_0.json", content)
    (tmp_path / "toy.toml").write_text(recipe_text(BODY))
    toy, rules = str(tmp_path / "toy.toml"), protocol.load(protocol.default_for(str(tmp_path / "toy.toml")))
    assert rules.name == "plain"
    assert spec_of(toy, {"by": "writer"}, rules, store).clients == 3
    assert spec_of(toy, {"by": "writer", "clients": "2"}, rules, store).clients == 2
    assert build(spec_of(toy, {"by": "writer"}, rules, store), store).class_counts().sum(1).tolist() == [4, 2, 3]
    with pytest.raises(FedbenchError, match="unknown column of toy 'writers'; did you mean 'writer'"):
        spec_of(toy, {"by": "writers"}, rules, store)


def test_white_paper_stays_white_and_greys_are_rounded(tmp_path: Path, store: Store) -> None:
    content, _ = held({"a": 1})
    content["user_data"]["a"]["x"] = [[1.0, 0.0, 1, 0, 0.5, 0.499, 0.0019, 0.002, 254.4 / 255, 254.6 / 255] * 2]
    write(tmp_path / "leaf", "all_data_0.json", content)
    got = loaded(tmp_path, store)
    assert got.images.ravel().tolist() == [255, 0, 255, 0, 128, 127, 0, 1, 254, 255] * 2


@given(levels=st.lists(st.integers(0, 255), min_size=20, max_size=20), digits=st.integers(4, 17))
@settings(max_examples=30)
def test_every_grey_level_survives(levels: list[int], digits: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("leaf")
    x = [float(f"{level / 255:.{digits}g}") for level in levels]
    content: Held = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [x], "y": [0]}}}
    write(folder, "all_data_0.json", content)
    (folder / "toy.toml").write_text(recipe_text(BODY))
    found = recipe(str(folder / "toy.toml"))
    (part,) = read_leaf(found, found.sources[0], [folder])
    assert part.images.ravel().tolist() == levels


def test_users_without_images_are_left_out(tmp_path: Path, store: Store) -> None:
    content, images = held({"a": 2, "b": 0, "c": 1})
    write(tmp_path / "leaf", "all_data_0.json", content)
    got = loaded(tmp_path, store)
    np.testing.assert_array_equal(got.images[..., 0], images)
    assert got.columns["writer"].tolist() == ["a", "a", "c"]


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
        (lambda c: c.update(users=[["u"], "b"]), "the name of a user must be text, not"),
        (lambda c: c.update(users=["\ud800", "b"]), "not Unicode"),
        (lambda c: c["user_data"].pop("b"), "user b has no x and y in user_data"),
        (lambda c: c["user_data"]["b"].pop("y"), "user b has no x and y in user_data"),
        (lambda c: c["users"].append("c"), "3 users but 2 num_samples"),
        (lambda c: c.update(num_samples=[2, 3]), "user b has 2 images, 2 labels, num_samples 3"),
        (lambda c: c.update(held({"a": 0})[0]), "no user has an image"),
        (user(y=[0]), "user a has 2 images, 1 labels, num_samples 2"),
        (user(x=[ROW]), "user a has 1 images, 2 labels, num_samples 2"),
        (user(x=[ROW, [*ROW[1:], 1.01]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, [*ROW[1:], -0.01]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, [*ROW[1:], float("nan")]]), r"user a: grey levels must lie in 0\.\.1"),
        (user(x=[ROW, ROW[1:]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [*ROW[1:], "white"]]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW, [10**400] * 20]), "user a: the images are not rows of 20 numbers"),
        (user(x=[ROW[1:]] * 2), r"user a: images of shape \[19\]; the recipe says 20 numbers a row"),
        (user(x=[0.5, 0.5]), r"user a: images of shape \[\]; the recipe says 20 numbers a row"),
        (user(y=[0, 3]), r"labels must lie in 0\.\.2"),
        (user(y=[0, -1]), r"labels must lie in 0\.\.2"),
        (user(y=[0, 1.0]), "user a: labels must be whole numbers"),
        (user(y=[0, 10**30]), "user a: labels must be whole numbers"),
        ("[]", "is not a LEAF file"),
        ("3", "is not a LEAF file"),
        ("null", "is not a LEAF file"),
        ("[" * 100_000, "is truncated or not JSON"),
        ("9" * 10_000, "is truncated or not JSON"),
        *((keep, "is truncated or not JSON") for keep in (0, 1, 40, 300, -1)),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, store: Store, change: Any, message: str) -> None:
    content, _ = held({"a": 2, "b": 2})
    if callable(change):
        change(content)
    text = json.dumps(content)[:change] if isinstance(change, int) else change if isinstance(change, str) else content
    path = write(tmp_path / "leaf", "all_data_0.json", text)
    with pytest.raises(FedbenchError, match=message) as caught:
        loaded(tmp_path, store)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_folders_that_are_not_one_of_leafs(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "leaf", "data_0.json", held({"a": 2})[0])
    with pytest.raises(FedbenchError, match=r"leaf has no file like all_data\*\.json"):
        loaded(tmp_path, store)
    # LEAF's sampled and split files hold the same images again: together they would count twice.
    write(tmp_path / "leaf/all_data", "all_data_0.json", held({"a": 2, "b": 1})[0])
    write(tmp_path / "leaf/sampled_data", "all_data_0_niid_0.json", held({"b": 1})[0])
    with pytest.raises(FedbenchError, match=r"user b is in all_data/all_data_0\.json too; give one of LEAF's folders"):
        loaded(tmp_path, store)


def test_both_forms_of_femnist_give_the_same_images(tmp_path: Path, store: Store) -> None:
    images, labels = pixels(4, 28, 28), [61, 0, 10, 36]
    writers = ["f0001_41", "f0001_41", "f0002_11", "f0002_11"]
    (tmp_path / "one/femnist").mkdir(parents=True)
    columns = {
        "image": [{"bytes": encoded(image), "path": None} for image in images],
        "writer_id": writers, "hsf_id": [0] * 4, "character": labels,
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "one/femnist/train-00000-of-00001.parquet")
    rows = (images.reshape(4, -1) / 255).tolist()
    data = {w: {"x": rows[i : i + 2], "y": labels[i : i + 2]} for i, w in ((0, writers[0]), (2, writers[2]))}
    content = {"users": list(data), "num_samples": [2, 2], "user_data": data}
    write(tmp_path / "two/femnist/all_data", "all_data_0.json", content)
    one, two = (load("femnist", store, [tmp_path / root]) for root in ("one", "two"))
    assert (one.spec.source, two.spec.source) == ("parquet", "leaf")
    for got in (one, two):
        np.testing.assert_array_equal(got.images[..., 0], images)
        assert [got.classes[label] for label in got.labels] == ["z", "0", "A", "a"]
        assert got.columns["writer"].tolist() == writers


def test_the_files_are_the_identity(tmp_path: Path, store: Store) -> None:
    content, _ = held({"a": 2})
    write(tmp_path / "leaf", "all_data_0.json", content)
    (tmp_path / "toy.toml").write_text(recipe_text(BODY))
    before = resolve(str(tmp_path / "toy.toml"), store)
    content["user_data"]["a"]["y"] = [2, 2]
    write(tmp_path / "leaf", "all_data_0.json", content)
    assert resolve("toy", store) != before
