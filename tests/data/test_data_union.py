"""Several data sets as one: order, shape, identity, and what is said when a part is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedbench.cli import context
from fedbench.cli.data import data_app
from fedbench.data import check, class_counts, declared, fetchable, load, locate, places, recipe, resolve
from fedbench.data.images import fit
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import IDX, pixels, recipe_text, write_idx

UNION = """
[[source]]
name = "union"
kind = "union"
parts = {parts}
columns = {{ domain = "domain" }}
"""
SHAPE = (6, 6, 3)


def part(folder: Path, name: str, size: tuple[int, ...], seed: int, source: str = "idx") -> np.ndarray:
    """A recipe and IDX files of 6 training and 3 test images; returns the images."""
    images, labels = pixels(9, *size, seed=seed), np.arange(seed, seed + 9).astype(np.uint8) % 3
    for split, rows in (("train", slice(0, 6)), ("test", slice(6, 9))):
        write_idx(folder / f"{name}/{split}-images.gz", images[rows])
        write_idx(folder / f"{name}/{split}-labels.gz", labels[rows])
    shape = size if len(size) == 3 else (*size, 1)
    (folder / f"{name}.toml").write_text(recipe_text(IDX.format(folder=name, source=source), shape))
    return images


def union(folder: Path, *parts: str) -> str:
    path = folder / "all.toml"
    path.write_text(recipe_text(UNION.format(parts=list(parts)), SHAPE))
    return str(path)


@pytest.fixture
def both(tmp_path: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """A union of a grey and a colour data set that lie beside it, and their images."""
    return union(tmp_path, "grey", "colour"), part(tmp_path, "grey", (4, 5), 0), part(tmp_path, "colour", (6, 6, 3), 1)


Both = tuple[str, np.ndarray, np.ndarray]


def test_parts_in_their_order_at_one_shape(both: Both, store: Store) -> None:
    name, grey, colour = both
    got = load(name, store)
    assert got.images.shape == (18, *SHAPE)
    assert got.split.tolist() == [0] * 12 + [1] * 6
    assert got.columns["domain"].tolist() == [0] * 6 + [1] * 6 + [0] * 3 + [1] * 3
    first, second = (got.images[got.columns["domain"] == code] for code in (0, 1))
    np.testing.assert_array_equal(second, colour)
    for channel in range(3):
        np.testing.assert_array_equal(first[..., channel], fit(grey[..., None], (6, 6, 1))[..., 0])
    for code, seed in ((0, 0), (1, 1)):
        own = (np.arange(9) + seed) % 3
        assert got.labels[got.columns["domain"] == code].tolist() == own.tolist()
    assert class_counts(got.spec, store) == {"a": (4, 2), "b": (4, 2), "c": (4, 2)}


def test_parts_their_order_and_their_sources_are_the_identity(both: Both, tmp_path: Path, store: Store) -> None:
    before = resolve(both[0], store)
    assert resolve(both[0], store) == before
    assert resolve(union(tmp_path, "colour", "grey"), store).id != before.id
    union(tmp_path, "grey", "colour")
    part(tmp_path, "grey", (4, 5), 0, source="copy")  # the same images
    recipe(str(tmp_path / "grey.toml"))
    renamed = resolve(both[0], store)
    assert renamed != before
    write_idx(tmp_path / "grey/test-labels.gz", np.array([1, 1, 1], np.uint8))
    assert resolve(both[0], store) not in (before, renamed)


def test_a_union_says_what_it_was_made_from(both: Both, store: Store) -> None:
    heard: list[str] = []
    spec = load(both[0], store, notify=heard.append).spec
    artifact = store.get(spec)
    assert artifact is not None
    assert artifact.provenance["inputs"] == [resolve(name, store).id for name in ("grey", "colour")]
    assert len(heard) == 3  # the union and each part, once
    load(both[0], store, notify=heard.append)
    assert len(heard) == 3


def test_parts_that_are_only_in_the_store_will_do(both: Both, tmp_path: Path, store: Store) -> None:
    load(both[0], store)
    for artifact in list(store.list("dataset")):
        if artifact.manifest["spec"]["name"] == "all":
            store.remove(artifact.kind, artifact.id)
    (tmp_path / "grey/train-images.gz").unlink()
    got = load(both[0], store)
    assert np.bincount(got.columns["domain"]).tolist() == [9, 9]
    (tmp_path / "colour/train-images.gz").unlink()
    assert resolve(both[0], store) == got.spec


def test_a_missing_part_is_named_with_the_way_to_get_it(both: Both, tmp_path: Path, store: Store) -> None:
    (tmp_path / "colour/test-labels.gz").unlink()
    with pytest.raises(FedbenchError) as caught:
        load(both[0], store)
    text = str(caught.value)
    assert text.startswith("all lacks its part colour: the images of colour are not at hand: no colour/test-labels.gz")
    assert "--data" in text
    assert "\n" not in text
    with pytest.raises(FedbenchError) as caught:
        resolve(union(tmp_path, "grey", "svhn"), store)
    assert "lacks its part svhn" in str(caught.value)
    assert "'fedbench data fetch svhn'" in str(caught.value)
    assert list(store.list("dataset")) == []


def test_a_part_that_vanished_since_or_is_damaged(both: Both, tmp_path: Path, store: Store) -> None:
    spec = resolve(both[0], store)
    (tmp_path / "grey/train-images.gz").unlink()
    with pytest.raises(FedbenchError, match="all lacks its part grey"):
        load(spec, store)
    part(tmp_path, "grey", (4, 5), 7)
    with pytest.raises(FedbenchError, match="made from other files or by another recipe"):
        load(spec, store)
    path = tmp_path / "colour/train-images.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FedbenchError, match=r"colour/train-images\.gz is truncated or damaged"):
        load(both[0], store)
    assert [a.spec.name for a in store.list("dataset")] == ["grey"]  # type: ignore[union-attr]


def test_wrong_parts(both: Both, tmp_path: Path, store: Store) -> None:
    for other, told in (
        ("gray", "unknown dataset 'gray'; did you mean 'grey'"),
        ("digit3", "digit3 is a union and cannot be a part of another"),
        ("digits", "digits, a part of all, has other classes"),
    ):
        with pytest.raises(FedbenchError, match=told):
            load(union(tmp_path, "grey", other), store)
    part(tmp_path, "mnist", (4, 5), 0)  # a user's recipe beside the union does not hide one of ours
    with pytest.raises(FedbenchError, match=r"the images of mnist are not at hand: no mnist/train-images-idx3"):
        resolve(union(tmp_path, "mnist", "digits"), store)


def test_what_is_at_hand_is_told_from_the_parts(both: Both, tmp_path: Path, store: Store) -> None:
    found = recipe(both[0])
    folders = places(found, store, [])
    paths = locate(found.sources[0], folders)
    assert paths is not None
    assert [path.parent.name for path in paths] == ["grey"] * 4 + ["colour"] * 4
    assert declared(found, folders) == 18
    assert declared(recipe("femnist"), folders) == 0
    assert declared(recipe(union(tmp_path, "grey", "femnist")), folders) == 0  # one of them does not say
    (tmp_path / "grey/test-images.gz").unlink()
    assert locate(found.sources[0], folders) is None
    assert not fetchable(found.sources[0])
    assert fetchable(recipe(union(tmp_path, "svhn", "mnist_m")).sources[0])


def test_check_looks_at_every_part(both: Both, tmp_path: Path, store: Store) -> None:
    load(both[0], store)
    (tmp_path / "grey/train-images.gz").unlink()
    found = check(both[0], store)
    states = [(f.dataset, f.state) for f in found]
    assert states.count(("grey", "missing")) == 1
    assert states.count(("grey", "no checksum")) == 3
    assert states.count(("colour", "no checksum")) == 4
    artifacts = [(f.dataset, f.state) for f in found if f.what.startswith("artifact")]
    assert artifacts == [("grey", "good"), ("colour", "good"), ("all", "good")]


def command(store: Store, *arguments: str, root: Path | None = None) -> str:
    context.configure(store.home, str(root or ""), False)
    return CliRunner().invoke(data_app, list(arguments)).stdout


def test_the_command_line_knows_unions(both: Both, tmp_path: Path, store: Store) -> None:
    rows = {row["name"]: row for row in json.loads(command(store, "list", "--json"))}
    for told in (rows["digit5"], json.loads(command(store, "show", "digit5", "--json"))):
        assert (told["at_hand"], told["fetchable"], told["built"]) == (None, False, [])
    parts = ("mnist", "svhn", "usps", "synth_digits", "mnist_m")
    assert rows["digit5"]["images"] == sum(rows[part]["images"] for part in parts) == 735542
    (tmp_path / "grey/test-images.gz").unlink()
    lines = command(store, "show", union(tmp_path, "grey", "colour", "svhn")).splitlines()
    assert [" ".join(line.split()) for line in lines[-3:]] == [
        "grey not at hand: bring your own",
        "colour at hand (idx)",
        "svhn not at hand: 'fedbench data fetch svhn'",
    ]


def test_the_fetch_command_looks_for_parts_in_the_data_folders(both: Both, tmp_path: Path, store: Store) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("grey.toml", "colour.toml"):
        (tmp_path / name).rename(elsewhere / name)
    told = command(store, "fetch", union(elsewhere, "grey", "colour"), "--json", root=tmp_path)
    assert list(json.loads(told).values()) == [[]]
