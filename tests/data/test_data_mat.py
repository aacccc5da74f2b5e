"""MATLAB files in the layout of SVHN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedbench.data import Dataset, load
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import pixels, recipe_text

BODY = """
[[source]]
name = "mat"
kind = "mat"
[[source.file]]
path = "train.mat"
[[source.file]]
path = "test.mat"
split = "test"
"""
DIGITS = tuple("0123456789")


def write(path: Path, images: np.ndarray, labels: object, compressed: bool = True) -> Path:
    """X [height, width, channels, n] and y [n, 1] of images [n, height, width, channels]."""
    y = np.asarray(labels)
    savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": y[:, None]}, do_compression=compressed)
    return path


def loaded(folder: Path, store: Store) -> Dataset:
    (folder / "toy.toml").write_text(recipe_text(BODY, (4, 5, 3), DIGITS))
    return load(str(folder / "toy.toml"), store)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("compressed", [True, False])
def test_images_and_labels_with_ten_for_zero(tmp_path: Path, store: Store, dtype: type, compressed: bool) -> None:
    images = pixels(8, 4, 5, 3)
    write(tmp_path / "train.mat", images[:5], np.array([1, 10, 9, 5, 10], dtype), compressed)
    write(tmp_path / "test.mat", images[5:], np.array([3, 2, 10], dtype), compressed)
    got = loaded(tmp_path, store)
    np.testing.assert_array_equal(got.images, images)
    assert got.labels.tolist() == [1, 0, 9, 5, 0, 3, 2, 0]
    assert got.split.tolist() == [0] * 5 + [1] * 3


def test_labels_that_start_at_zero_stay(tmp_path: Path, store: Store) -> None:
    # As in SynthDigits.
    write(tmp_path / "train.mat", pixels(3, 4, 5, 3), [0, 9, 1])
    write(tmp_path / "test.mat", pixels(1, 4, 5, 3), [0])
    assert loaded(tmp_path, store).labels.tolist() == [0, 9, 1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10, 1], r"train\.mat: y holds both 0 and 10, which stands for 0"),
        ([1, 11, 1], r"train\.mat: labels must lie in 0\.\.9"),
        ([1, 2.5, 1], r"train\.mat: y must be whole numbers"),
        ([1, np.nan, 1], r"train\.mat: y must be whole numbers"),
        (["1", "2", "3"], r"train\.mat: y must be whole numbers"),
        ([1, 2], r"train\.mat: 3 images but 2 values of label"),
    ],
)
def test_wrong_labels(tmp_path: Path, store: Store, labels: list[object], message: str) -> None:
    write(tmp_path / "train.mat", pixels(3, 4, 5, 3), labels)
    write(tmp_path / "test.mat", pixels(1, 4, 5, 3), [1])
    with pytest.raises(FedbenchError, match=message):
        loaded(tmp_path, store)


def test_wrong_variables(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "test.mat", pixels(1, 4, 5, 3), [1])
    train = tmp_path / "train.mat"
    savemat(train, {"X": pixels(4, 5, 3, 2), "z": [1, 2]})
    with pytest.raises(FedbenchError, match=r"train\.mat has no variable y"):
        loaded(tmp_path, store)
    savemat(train, {"X": pixels(4, 5, 3, 2) / 255, "y": [1, 2]})
    with pytest.raises(FedbenchError, match=r"X must be bytes .* not float64 \[4, 5, 3, 2\]"):
        loaded(tmp_path, store)
    savemat(train, {"X": pixels(4, 5, 2), "y": [1, 2]})
    with pytest.raises(FedbenchError, match=r"X must be bytes .* not uint8 \[4, 5, 2\]"):
        loaded(tmp_path, store)
    write(train, pixels(2, 5, 4, 3), [1, 2])
    with pytest.raises(FedbenchError, match=r"images of shape \[5, 4, 3\]; the recipe says \[4, 5, 3\]"):
        loaded(tmp_path, store)


@pytest.mark.parametrize("keep", [0, 3, 100, 128, 140, 0.5, -1])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, store: Store, keep: float, compressed: bool) -> None:
    write(tmp_path / "test.mat", pixels(1, 4, 5, 3), [1])
    path = write(tmp_path / "train.mat", pixels(50, 4, 5, 3), [1] * 50, compressed)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep == 0.5 else int(keep)])
    with pytest.raises(FedbenchError, match=r"train\.mat (is damaged or not a MATLAB file|has no variable)") as caught:
        loaded(tmp_path, store)
    assert "\n" not in caught.value.message


def test_another_format(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "test.mat", pixels(1, 4, 5, 3), [1])
    for data in (b"<html>404</html>" * 20, b"\x89HDF\r\n\x1a\n" + bytes(600)):
        (tmp_path / "train.mat").write_bytes(data)
        with pytest.raises(FedbenchError, match=r"train\.mat is damaged or not a MATLAB file of version 5 to 7"):
            loaded(tmp_path, store)
