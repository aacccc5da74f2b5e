"""Crops resized back, and pixels to network input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedbench.core.augment import resized_crop, to_input
from fedbench.core.plan import CropStream
from tests.support.lab import digits


def noise(n: int, height: int, width: int, channels: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (n, height, width, channels), np.uint8)


def pillow(image: np.ndarray, window: np.ndarray) -> np.ndarray:
    top, left, h, w = (int(v) for v in window)
    source = Image.fromarray(image.squeeze())
    out = source.crop((left, top, left + w, top + h)).resize(source.size, Image.Resampling.BILINEAR)
    return np.asarray(out).reshape(image.shape)


@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (28, 28, 1), (24, 26, 3), (8, 8, 1)])
def test_same_as_pillow(height: int, width: int, channels: int) -> None:
    images = noise(200, height, width, channels)
    windows = CropStream(np.random.default_rng(1), (height, width)).draw(len(images))
    ours = resized_crop(torch.from_numpy(images), torch.from_numpy(windows)).numpy()
    theirs = np.stack([pillow(image, window) for image, window in zip(images, windows, strict=True)])
    difference = np.abs(ours - theirs)
    # To the bit on the images of CIFAR; where a size is no power of two, Pillow's fixed point may break a tie of
    # the rounding the other way.
    assert difference.max() <= (0 if (height, width) == (32, 32) else 1)
    assert (difference > 0).mean() < 0.02
    assert (windows[:, 2:] < (height, width)).any(), "no window that crops: the test would show nothing"


def test_small_windows_too() -> None:
    images = noise(100, 16, 20, 3)
    rng = np.random.default_rng(0)
    h, w = rng.integers(1, 17, 100), rng.integers(1, 21, 100)
    windows = np.stack([rng.integers(0, 17 - h), rng.integers(0, 21 - w), h, w], axis=1)
    ours = resized_crop(torch.from_numpy(images), torch.from_numpy(windows)).numpy()
    theirs = np.stack([pillow(image, window) for image, window in zip(images, windows, strict=True)])
    assert np.abs(ours - theirs).max() <= 1


def test_the_full_window_changes_nothing() -> None:
    images = torch.from_numpy(noise(5, 32, 24, 3))
    windows = torch.tensor([[0, 0, 32, 24]]).expand(5, 4)
    assert torch.equal(resized_crop(images, windows), images.float())


def test_each_image_has_its_own_window() -> None:
    images = torch.from_numpy(np.repeat(digits()[0][:1], 3, axis=0))
    windows = torch.tensor([[0, 0, 8, 8], [0, 1, 7, 7], [1, 0, 7, 7]])
    out = resized_crop(images, windows)
    for i in range(3):
        assert torch.equal(out[i : i + 1], resized_crop(images[i : i + 1], windows[i : i + 1]))
    assert not torch.equal(out[1], out[2])


def test_input_is_centred_and_channels_first() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3).expand(2, 4, 5, 3)
    x = to_input(images)
    assert x.shape == (2, 3, 4, 5)
    assert x[0, :, 0, 0].tolist() == pytest.approx([-1.0, -0.6, 1.0], abs=1e-6)
    assert torch.equal(to_input(images.float()), x)
