"""The corruptions against plain re-tellings of their rules, image by image, and against Pillow, SciPy and colorsys."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import convolve

from fedbench.errors import FedbenchError
from fedbench.partitions.transforms import CORRUPTIONS, SEVERITIES, corruption
from fedbench.partitions.transforms.corruption import SMALLEST, blur, corrupt, digital, weather

LEVELS = range(1, SEVERITIES + 1)
#: Corruptions that draw nothing at random.
PLAIN = ("defocus_blur", "jpeg", "brightness", "contrast")
each_severity = pytest.mark.parametrize("severity", LEVELS)
#: Grey images and colour images in turn.
each_depth = pytest.mark.parametrize(("severity", "channels"), [(s, 1 + 2 * (s % 2)) for s in LEVELS] + [(4, 3)])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def smooth(n: int = 4, size: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Images with the falling spectrum of photographs, over the whole range of levels."""
    maps = weather.fractal(n * channels, 1 << (size - 1).bit_length(), 1.3, rng(seed))[:, :size, :size]
    return (255 * maps).astype(np.uint8).reshape(n, channels, size, size).transpose(0, 2, 3, 1).copy()


def levels(values: np.ndarray) -> np.ndarray:
    """Clipped and truncated; a hair below a whole level counts as that level."""
    return np.floor(np.clip(values, 0, 255) + 1e-6).astype(int)


def assert_close(seen: np.ndarray, told: np.ndarray) -> None:
    """Equal, but for the few values on the edge between two levels that single precision puts on the other side."""
    apart = np.abs(seen.astype(int) - told)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.005


@each_depth
def test_defocus_is_a_smoothed_disk(severity: int, channels: int) -> None:
    radius, alias = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)][severity - 1]
    y, x = np.mgrid[-8:9, -8:9]
    disk = (x**2 + y**2 <= radius**2).astype(float)
    line = np.exp(-0.5 * (np.arange(-1, 2) / alias) ** 2)
    line /= line.sum()
    kernel = convolve(disk / disk.sum(), np.outer(line, line), mode="constant")
    kernel = np.round(kernel, 4) if radius == 1 else kernel  # else fifths fall short of a whole level by a hair
    images = smooth(channels=channels)
    seen = corrupt(images, "defocus_blur", severity, rng())
    told = [[convolve(image[..., c].astype(float), kernel, mode="mirror") for c in range(channels)] for image in images]
    assert_close(seen, levels(np.moveaxis(np.array(told), 1, -1)))


@each_severity
def test_motion_blur_is_a_one_sided_mean_along_a_line(severity: int) -> None:
    radius, sigma = [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)][severity - 1]
    images = smooth(3, 24)
    seen = blur.motion_blur(images, severity, rng(5))
    told = np.zeros(images.shape)
    weights = [math.exp(-(j**2) / (2 * sigma**2)) for j in range(2 * radius + 1)]
    for n, angle in enumerate(rng(5).uniform(-math.pi / 4, math.pi / 4, len(images))):
        for j, weight in enumerate(weights):
            right, down = math.ceil(j * math.cos(angle) - 0.5), math.ceil(j * math.sin(angle) - 0.5)
            for y in range(24):
                for x in range(24):
                    told[n, y, x] += weight * images[n, min(max(y + down, 0), 23), min(x + right, 23)]
    assert_close(seen, levels(told / sum(weights)))


@each_severity
def test_gaussian_noise_moments(severity: int) -> None:
    grey = np.full((20, 32, 32, 3), 128, np.uint8)
    moved = corrupt(grey, "gaussian_noise", severity, rng()).astype(float) - 128
    sigma = 255 * (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    assert moved.std() == pytest.approx(sigma, rel=0.02)
    assert moved.mean() == pytest.approx(-0.5, abs=0.4)  # truncated, not rounded
    assert abs(np.corrcoef(moved[..., 0].ravel(), moved[..., 1].ravel())[0, 1]) < 0.03


@each_severity
def test_shot_noise_moments(severity: int) -> None:
    events = (500, 250, 100, 75, 50)[severity - 1]
    for level in (20, 80, 150):
        seen = corrupt(np.full((20, 32, 32, 3), level, np.uint8), "shot_noise", severity, rng()).astype(float)
        assert seen.var() == pytest.approx(level * 255 / events, rel=0.05)
        assert seen.mean() == pytest.approx(level - 0.5, abs=0.6)
        counts = np.unique(seen)
        assert np.abs(counts - np.floor(np.ceil(counts * events / 255 - 1e-6) * 255 / events)).max() <= 1


@each_severity
def test_impulse_noise_shares(severity: int) -> None:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    images = smooth(40)
    images = np.clip(images, 1, 254)
    seen = corrupt(images, "impulse_noise", severity, rng())
    for value in (0, 255):
        assert (seen == value).mean() == pytest.approx(share / 2, rel=0.1)
    kept = (seen != 0) & (seen != 255)
    assert np.array_equal(seen[kept], images[kept])
    assert (~kept).all(axis=-1).mean() < 0.3 * share  # channels are hit apart


def plasma(size: int, decay: float, draws: list[float]) -> np.ndarray:
    """One map of the diamond-square rule on a torus, point by point."""
    grid = np.zeros((size, size))
    step, swing, at = size, 100.0, iter(draws)
    while step >= 2:
        half = step // 2
        ends = range(0, size, step)
        for top, left, reach in ((half, half, "x"), (0, half, "+"), (half, 0, "+")):
            ways = [(-1, -1), (-1, 1), (1, -1), (1, 1)] if reach == "x" else [(-1, 0), (1, 0), (0, -1), (0, 1)]
            for y in ends:
                for x in ends:
                    near = [grid[(y + top + a * half) % size, (x + left + b * half) % size] for a, b in ways]
                    grid[y + top, x + left] = sum(near) / 4 + swing * swing * (2 * next(at) - 1)
        step, swing = half, swing / decay
    assert next(at, None) is None
    return (grid - grid.min()) / (grid.max() - grid.min())


@each_severity
def test_fog_by_its_formula(severity: int) -> None:
    thickness, decay = [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)][severity - 1]
    images = smooth(3, 20) // 2
    seen = weather.fog(images, severity, rng(4))
    for image, got, draws in zip(images, seen, rng(4).random((3, 32 * 32 - 1), np.float32), strict=True):
        x, top = image / 255, image.max() / 255
        told = (x + thickness * plasma(32, decay, draws.tolist())[:20, :20, None]) * top / (top + thickness)
        assert_close(got, levels(255 * told))


def test_textures_of_frost() -> None:
    textures = weather.textures(3)
    means = [(78, 149, 166), (201, 205, 214), (138, 153, 165), (112, 123, 135)]
    assert np.abs(textures.mean(axis=(1, 2)) - means).max() < 0.5
    assert np.abs(textures.std(axis=(1, 2)).T - [16, 18, 21, 35]).max() < 0.5
    for axis in (1, 2):  # smooth, over the edges too
        steps = np.abs(textures - np.roll(textures, 1, axis)).mean(axis=(1, 2))
        assert (steps < textures.std(axis=(1, 2)) / 3).all()
        edge = np.abs(textures.take(0, axis) - textures.take(-1, axis)).mean(axis=1)
        assert (edge < 2 * steps).all()
    assert np.allclose(weather.textures(1)[..., 0], textures.mean(axis=-1))


@each_depth
def test_frost_is_a_crop_of_a_texture_over_the_image(severity: int, channels: int) -> None:
    image_share, ice = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)][severity - 1]
    images = smooth(12, 16, channels)
    seen = weather.frost(images, severity, rng(8))
    for image, got, (file, top, left) in zip(images, seen, rng(8).random((12, 3)), strict=True):
        texture = weather.textures(channels)[[0, 1, 1, 2, 3][int(5 * file)]]
        crop = np.roll(texture, (-int(256 * top), -int(256 * left)), (0, 1))[:16, :16]
        assert_close(got, levels(image_share * image.astype(float) + ice * crop.astype(float)))


@each_severity
def test_brightness_is_the_value_of_hsv(severity: int) -> None:
    lighter = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    images = np.concatenate([smooth(1, 24), np.zeros((1, 24, 24, 3), np.uint8)])
    seen = corrupt(images, "brightness", severity, rng())
    told = []
    for pixel in images.reshape(-1, 3) / 255:
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        told.append(colorsys.hsv_to_rgb(h, s, min(v + lighter, 1)))
    assert_close(seen, levels(255 * np.reshape(told, images.shape)))


def test_brightness_of_grey_images() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    assert corrupt(grey, "brightness", 4, rng()).ravel().tolist() == [min(v + 51, 255) for v in range(256)]


@each_severity
def test_contrast_is_about_the_mean_of_each_channel(severity: int) -> None:
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    images = smooth(3)
    images[..., 2] //= 3
    seen = corrupt(images, "contrast", severity, rng())
    for image, got in zip(images, seen, strict=True):
        mean = np.array([image[..., c].mean() for c in range(3)])
        assert_close(got, levels((image - mean) * kept + mean))
    flat = np.full((1, 9, 9, 3), 77, np.uint8)
    assert np.array_equal(corrupt(flat, "contrast", severity, rng()), flat)


@each_depth
def test_jpeg_is_pillows(severity: int, channels: int) -> None:
    images = smooth(3, 21, channels)
    seen = corrupt(images, "jpeg", severity, rng())
    for image, got in zip(images, seen, strict=True):
        file = io.BytesIO()
        picture = Image.fromarray(image.squeeze()).convert("L" if channels == 1 else "RGB")
        picture.save(file, "JPEG", quality=(80, 65, 58, 50, 40)[severity - 1])
        assert np.array_equal(got.squeeze(), np.asarray(Image.open(file)))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_same_stream_same_images_whatever_the_threads_and_what_follows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruption, "_BLOCK", 7 * 16 * 16 * 3)
    images = smooth(24, 16)
    before = images.copy()
    whole = corrupt(images, name, 3, rng(2), threads=1)
    assert np.array_equal(images, before)
    assert whole.dtype == np.uint8
    assert whole.shape == images.shape
    assert not np.shares_memory(whole, images)
    for threads in (None, 2, 5):
        assert np.array_equal(corrupt(images, name, 3, rng(2), threads=threads), whole)
    for k in (0, 1, 6, 7, 8, 23):
        assert np.array_equal(corrupt(images[:k], name, 3, rng(2)), whole[:k])
    other = corrupt(images, name, 3, rng(3))
    assert np.array_equal(other, whole) == (name in PLAIN)
    if name not in PLAIN:  # neither two images of a block nor two blocks share their draws
        same = corrupt(np.repeat(images[:1], 24, axis=0), name, 3, rng(2))
        assert len({image.tobytes() for image in same}) > 12  # close angles are the same blur
        assert not np.array_equal(same[:7], same[7:14])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_generator_moves_on(name: str) -> None:
    stream = rng(2)
    first, second = (corrupt(smooth(2, 16), name, 3, stream) for _ in range(2))
    assert np.array_equal(first, second) == (name in PLAIN)


@settings(max_examples=40)
@given(
    name=st.sampled_from(CORRUPTIONS),
    severity=st.sampled_from(LEVELS),
    n=st.integers(0, 3),
    height=st.integers(SMALLEST, 40),
    width=st.integers(SMALLEST, 40),
    channels=st.sampled_from([1, 3]),
)
def test_any_shape(name: str, severity: int, n: int, height: int, width: int, channels: int) -> None:
    images = rng(n).integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    images.flags.writeable = False
    seen = corrupt(images, name, severity, rng())
    assert seen.shape == images.shape
    assert seen.dtype == np.uint8
    strided = np.repeat(images, 2, axis=2)[:, :, ::2]
    assert np.array_equal(corrupt(strided, name, severity, rng()), seen)
    if n:
        assert not np.array_equal(seen, images)


@pytest.mark.parametrize(
    ("name", "severity", "shape", "said"),
    [
        ("snow", 1, (1, 32, 32, 3), "unknown corruption 'snow'"),
        ("frots", 1, (1, 32, 32, 3), "did you mean 'frost'"),
        ("fog", 0, (1, 32, 32, 3), "1 to 5, not 0"),
        ("fog", 6, (1, 32, 32, 3), "1 to 5, not 6"),
        ("fog", 2.0, (1, 32, 32, 3), "1 to 5, not 2.0"),
        ("fog", 1, (1, 32, 32, 4), r"not uint8 \[1, 32, 32, 4\]"),
        ("fog", 1, (32, 32, 3), r"not uint8 \[32, 32, 3\]"),
        ("fog", 1, (1, 7, 32, 3), "8x8 pixels at least, not 7x32"),
    ],
)
def test_bad_calls_are_refused(name: str, severity: int, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(FedbenchError, match=said):
        corrupt(np.zeros(shape, np.uint8), name, severity, rng())


def test_other_types_are_refused() -> None:
    with pytest.raises(FedbenchError, match="needs uint8 images"):
        corrupt(np.zeros((1, 32, 32, 3)), "fog", 1, rng())


def test_every_corruption_of_the_specs_has_its_function_and_constants() -> None:
    assert tuple(corruption._OF) == CORRUPTIONS
    assert len(digital._QUALITY) == SEVERITIES
