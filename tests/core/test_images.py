"""Crops resized back, padding and flips, pixels to network input, and pieces of images for a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbench import models
from fedbench.core.federation import padded_flip, resized_crop, to_input
from fedbench.core.plan import CropStream
from fedbench.core.worker import CHUNK, CPU_CHUNK, Piece, pieces
from fedbench.partitions.transforms import apply, of_clients
from fedbench.rng import stream
from tests.support.lab import digits
from tests.support.real_images import RealImages


def noise(n: int, height: int, width: int, channels: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (n, height, width, channels), np.uint8)


def off_pillow(images: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """How far ours are from Pillow's."""
    ours = resized_crop(torch.from_numpy(images), torch.from_numpy(windows)).numpy()
    theirs = []
    for image, (top, left, h, w) in zip(images, windows.tolist(), strict=True):
        source = Image.fromarray(image.squeeze())
        out = source.crop((left, top, left + w, top + h)).resize(source.size, Image.Resampling.BILINEAR)
        theirs.append(np.asarray(out).reshape(image.shape))
    return np.abs(ours - np.stack(theirs))


@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (28, 28, 1), (24, 26, 3), (8, 8, 1)])
def test_same_as_pillow(height: int, width: int, channels: int) -> None:
    images = noise(200, height, width, channels)
    windows = CropStream(np.random.default_rng(1), (height, width)).draw(len(images))
    difference = off_pillow(images, windows)
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
    assert off_pillow(images, windows).max() <= 1


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


@given(st.data(), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 3]), st.integers(0, 4))
def test_padded_flip_is_numpys(data: st.DataObject, n: int, h: int, w: int, channels: int, padding: int) -> None:
    images = np.random.default_rng(n).integers(0, 256, (n, h, w, channels), dtype=np.uint8)
    offset = st.integers(0, 2 * padding)
    places = np.array([(data.draw(offset), data.draw(offset), data.draw(st.booleans()), 0) for _ in range(n)])
    got = padded_flip(torch.from_numpy(images), torch.from_numpy(places.astype(np.int64)), padding)
    assert got.dtype == torch.uint8
    for i, (top, left, flip, _) in enumerate(places):
        padded = np.pad(images[i], ((padding, padding), (padding, padding), (0, 0)))
        cut = padded[top : top + h, left : left + w]
        np.testing.assert_array_equal(got[i].numpy(), cut[:, ::-1] if flip else cut)


@pytest.mark.slow
def test_the_order_of_crop_and_colour_hardly_matters(real_images: RealImages) -> None:
    """Colours are shifted once, then cropped; FedDRM's code crops first. How far apart the pixels are."""
    images = real_images.load("cifar10").images[:200]
    windows = torch.from_numpy(CropStream(stream(1, "order"), (32, 32)).draw(len(images)))
    for shift in of_clients("high", 8):
        ours = resized_crop(torch.from_numpy(apply(images, shift)), windows).numpy()
        cropped = resized_crop(torch.from_numpy(images), windows).numpy().astype(np.uint8)
        theirs = apply(cropped, shift).astype(np.float32)
        gap = np.abs(ours - theirs)
        assert gap.mean() < 1.0, f"{shift}: {gap.mean():.2f} grey levels on average"
        assert gap.mean() > 0, "the orders do differ; if not, this test compares nothing"


@pytest.mark.parametrize("n", [0, 1, CPU_CHUNK, CPU_CHUNK + 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_pieces_are_small_and_of_like_length_and_change_no_window(n: int) -> None:
    rows = torch.arange(100, 100 + n)
    parts = pieces(rows, CropStream(stream(0, "windows"), (8, 8)))
    assert max(len(part.rows) for part in parts) <= CPU_CHUNK
    of_a_draw = [len(part.rows) for part in parts[: -(-min(n, CHUNK) // CPU_CHUNK)]]
    assert sum(of_a_draw) == min(n, CHUNK)
    assert not of_a_draw or 2 * min(of_a_draw) >= max(of_a_draw)
    whole = Piece.joined(parts)
    assert torch.equal(whole.rows, rows)
    drawn = CropStream(stream(0, "windows"), (8, 8))
    windows = [torch.from_numpy(drawn.draw(min(CHUNK, n - at))) for at in range(0, n, CHUNK)]
    assert whole.windows is not None
    assert torch.equal(whole.windows, torch.cat(windows) if windows else whole.windows[:0])


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (28, 28, 1)), ("cifar_cnn", (32, 32, 3))])
def test_a_network_puts_out_for_the_pieces_what_it_does_for_all(name: str, shape: tuple[int, int, int]) -> None:
    network = models.build(name, shape=shape, classes=10, seed=0).eval().to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (CHUNK, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for n in (CPU_CHUNK + 1, 3 * CPU_CHUNK - 1, 301, CHUNK):
            parts = [network(to_input(images[part.rows])) for part in pieces(torch.arange(n), None)]
            torch.testing.assert_close(torch.cat(parts), network(to_input(images[:n])), rtol=1e-6, atol=1e-6)
