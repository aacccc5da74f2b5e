"""PFLlib's folders: plain arrays are read, pickles are refused, and whatever a file holds ends in one line."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench import data
from fedbench.data.pflib import _EITHER, _SIGNED, _pixels, _signed, read_pflib
from fedbench.data.recipe import File, Recipe, Source
from fedbench.errors import FedbenchError
from fedbench.store import Store

Clients = dict[int, tuple[Any, Any]]
PATIENT = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def folder(place: Path, train: Clients, test: Clients, config: Any = None) -> Path:
    for side, clients in (("train", train), ("test", test)):
        (place / side).mkdir(parents=True)
        for client, (x, y) in clients.items():
            np.savez_compressed(place / side / f"{client}.npz", x=x, y=np.asarray(y))
    if config is not None:
        (place / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return place


def grey(count: int, side: int = 4) -> np.ndarray:
    """Images as PFLlib has them: floats in [-1, 1]."""
    pixels = np.arange(count * side * side).reshape(count, 1, side, side) % 256
    return ((pixels / 255 - 0.5) / 0.5).astype(np.float32)


OWN: Clients = {0: (grey(2), [0, 1])}


def test_clients_come_in_the_order_of_their_numbers(tmp_path: Path, store: Store) -> None:
    sizes = {0: 2, 2: 3, 10: 4}
    train = {c: (grey(n), [c % 3] * n) for c, n in sizes.items()}
    test = {c: (grey(1), [0]) for c in sizes}
    loaded = data.load(str(folder(tmp_path / "fed", train, test, {"num_classes": 3})), store)
    assert (loaded.spec.name, loaded.classes, loaded.images.shape) == ("fed", ("0", "1", "2"), (12, 4, 4, 1))
    assert loaded.column("client").tolist() == [0, 0, 2, 2, 2, 10, 10, 10, 10, 0, 2, 10]
    assert loaded.split.tolist() == [0] * 9 + [1] * 3
    assert loaded.images[1].ravel().tolist() == list(range(16, 32))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_images_in_0_to_1_are_no_dark_ones(tmp_path: Path, store: Store, kind: Any) -> None:
    """As PFLlib's DomainNet, Camelyon17, COVIDx and kvasir; a white image of a client is of either range."""
    levels = np.arange(256).reshape(16, 4, 4)
    own = {0: ((levels / 255).astype(kind), np.arange(16) % 2), 1: (np.ones((1, 4, 4), kind), [0])}
    lines: list[str] = []
    loaded = data.load(str(folder(tmp_path / "fed", own, own)), store, notify=lines.append)
    assert loaded.images[:17].reshape(17, 4, 4).tolist() == [*levels.tolist(), [[255] * 4] * 4]
    found = ["the values of its images lie in [0, 1]", "34 grey images of 4 x 4 pixels, 2 classes"]
    assert lines[1:] == [f"fed: {line}" for line in found]


def test_a_bright_client_among_others_in_minus_1_to_1(tmp_path: Path, store: Store) -> None:
    bright = np.arange(128, 256).reshape(8, 4, 4)
    own = {0: (grey(2), [0, 1]), 1: ((bright / 255 - 0.5) / 0.5, [0, 1] * 4)}
    loaded = data.load(str(folder(tmp_path / "fed", own, own)), store)
    assert loaded.images[2:10, ..., 0].tolist() == bright.tolist()


@pytest.mark.parametrize("none", [(np.zeros((0, 1, 4, 4), np.float32), []), ([], [])])
@pytest.mark.parametrize("without", [["train"], ["test"], ["train", "test"]])
def test_a_client_may_have_no_row(tmp_path: Path, store: Store, none: Any, without: list[str]) -> None:
    own = {0: (grey(2), [0, 1]), 1: (grey(2), [0, 1])}
    sides = [{**own, 0: none} if side in without else own for side in ("train", "test")]
    lines: list[str] = []
    loaded = data.load(str(folder(tmp_path / "fed", *sides)), store, notify=lines.append)
    named = ", ".join(f"{side}/0.npz" for side in without)
    assert lines[1].endswith(f"[-1, 1]; no row in {named}: a client without any is left out")
    assert len(loaded.labels) == 8 - 2 * len(without)
    assert set(loaded.column("client")) == ({1} if without[1:] else {0, 1})


def test_names_of_classes_are_the_configs(tmp_path: Path, store: Store) -> None:
    of_mnist = {"num_clients": 1, "non_iid": True, "partition": "pat", "Size of samples for labels in clients": []}
    for name, config in (("a", {"classes": ["no", "yes"]}), ("b", None), ("c", of_mnist)):
        loaded = data.load(str(folder(tmp_path / name, OWN, OWN, config)), store)
        assert loaded.classes == (("no", "yes") if name == "a" else ("0", "1"))


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
    place = folder(tmp_path / "fed", {0: (grey(2), [0, 1])}, {0: (grey(2), [0, 1])})
    as_pflib = np.array({"x": grey(2), "y": np.array([0, 1])}, object)
    np.savez_compressed(place / "train/0.npz", data=as_pflib)
    with pytest.raises(FedbenchError, match=r"0\.npz holds a pickled object, .*; save the arrays x and y as such"):
        data.load(str(place), store)
    bomb = np.empty(1, object)
    bomb[0] = _Bomb()
    np.savez_compressed(place / "train/0.npz", x=bomb, y=np.array([0]))
    with pytest.raises(FedbenchError, match="is damaged or not an npz file"):
        data.load(str(place), store)
    (place / "train/0.npz").write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(FedbenchError, match="is damaged or not an npz file"):
        data.load(str(place), store)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("x", "y", "config", "message"),
    [
        (grey(2), [0], None, "2 images but 1 classes"),
        (grey(2), [0.0, 1.0], None, "y must be whole numbers"),
        (grey(2) * 2, [0, 1], None, r"must lie in \[-1, 1\], as PFLlib normalises them, .* lie in \[-2, -1\.5137"),
        (np.full((2, 4, 4), 255.0), [0, 1], None, r"or in \[0, 1\]; they lie in \[255, 255\]"),
        ((grey(2) + 1) / 2, [0, 1], None, r"1\.npz holds images in \[0, 1\] and .*0\.npz in \[-1, 1\]; bring all"),
        (grey(2) * np.nan, [0, 1], None, r"the images must lie in \[-1, 1\]"),
        (grey(2).reshape(2, 16), [0, 1], None, r"images \[n, C, H, W\] of 1 or 3 channels, not float32 \[2, 16\]"),
        (np.zeros((2, 4, 4), int), [0, 1], None, "x must be images"),
        (np.zeros((2, 2, 4, 4), np.uint8), [0, 1], None, "x must be images"),
        (grey(2), [0, 7], None, r"labels must lie in 0\.\.1"),
        (grey(2, 5), [0, 1], None, r"images of shape \[5, 5, 1\]; the recipe says \[4, 4, 1\]"),
        *(
            (grey(2), [0, 1], config, message)
            for config, message in (
                ("{", "config.json is not JSON"),
                ("[" * 10_000, "config.json is not JSON"),
                ("[]", "config.json must hold an object of JSON"),
                ({"num_classes": None}, "num_classes must be a number of classes, 2 at least, not None"),
                ({"num_classes": 1}, "not 1"),
                ({"num_classes": True}, "not True"),
                ({"classes": ["a", "a"], "num_classes": "2"}, "not 2"),
            )
        ),
    ],
)
def test_wrong_arrays_and_configs_are_one_line(
    tmp_path: Path, store: Store, x: Any, y: Any, config: Any, message: str
) -> None:
    place = folder(tmp_path / "fed", {**OWN, 1: (x, y)}, OWN, {"num_classes": 2} if config is None else config)
    with pytest.raises(FedbenchError, match=message):
        data.load(str(place), store)


def test_folders_that_cannot_be_it(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FedbenchError, match=r"none .* holds no image"):
        data.load(str(folder(tmp_path / "none", {0: ([], [])}, {0: ([], [])})), store)
    (folder(tmp_path / "fed", OWN, OWN) / "train/train0.npz").write_bytes(b"")
    with pytest.raises(FedbenchError, match=r"train0\.npz should be called by its client's number; such as 0\.npz"):
        data.load(str(tmp_path / "fed"), store)
    (tmp_path / "other/train").mkdir(parents=True)
    with pytest.raises(FedbenchError, match="is a folder neither of PFLlib"):
        data.load(str(tmp_path / "other"), store)


def _parts(path: Path) -> list[Any]:
    own = Source("pflib", "pflib", file=(File("train"),))
    return list(read_pflib(Recipe("fed", "", "", "", (), (), (own,)), own, [path]))


@given(st.binary(max_size=300))
@PATIENT
def test_any_bytes_end_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.npz").write_bytes(content)
    with pytest.raises(FedbenchError) as error:
        _parts(tmp_path)
    assert "\n" not in str(error.value)


@given(st.data())
@PATIENT
def test_a_changed_byte_ends_in_one_line_or_in_images(tmp_path: Path, drawn: st.DataObject) -> None:
    whole = io.BytesIO()
    np.savez_compressed(whole, x=grey(2), y=np.array([0, 1]))
    content = bytearray(whole.getvalue())
    content[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    (tmp_path / "0.npz").write_bytes(content)
    with contextlib.suppress(FedbenchError):  # which makes one line of anything
        (part,) = _parts(tmp_path)
        assert part.images.dtype == np.uint8


def test_an_archive_that_says_less_than_it_unpacks_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.data.guard.LIMIT", 1 << 20)
    np.savez_compressed(tmp_path / "0.npz", x=np.zeros((64, 1, 256, 256), np.uint8), y=np.zeros(64, int))
    assert zipfile.ZipFile(tmp_path / "0.npz").fp is not None
    with pytest.raises(FedbenchError, match="would take"):
        _parts(tmp_path)
