"""Covariate shifts against the protocol's check vectors, torchvision and Pillow; FLUX's
rotations and colours against Pillow; which client sees its images under which corruption."""

from __future__ import annotations

import colorsys
import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import convolve

from fedbench.partitions.artifact import numbered as groups
from fedbench.partitions.transforms import CORRUPTIONS, SEVERITIES, SHIFTS, Transform, apply, corruption, of_clients
from fedbench.partitions.transforms.corruption import SMALLEST, corrupt
from fedbench.partitions.transforms.rotation import COLOURS, Rotation, rotate, rotated
from tests.support.frames import few, refused

#: Corruptions that draw nothing at random.
PLAIN = ("defocus_blur", "jpeg", "brightness", "contrast")
#: A few of each kind of shift.
ALL = [*of_clients("low", 8)[::7], *of_clients("mid", 8)[::7], *of_clients("high", 8), *of_clients("pool", 54)[::4]]


def noise(n: int = 3, seed: int = 0, channels: int = 3, height: int = 9, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def test_check_vectors_and_the_bits_of_the_main_setting() -> None:
    main = of_clients("high", 8)
    pixel = np.array([[[[200, 100, 50]]]], np.uint8)
    assert [apply(pixel, main[c]).ravel().tolist() for c in (0, 7)] == [[194, 134, 150], [232, 206, 3]]
    assert [s.gamma for s in main] == [0.6, 1.4] * 4
    assert [s.hue for s in main] == [-0.1, -0.1, 0.1, 0.1] * 2
    assert [s.saturation for s in main] == [0.5] * 4 + [1.5] * 4


@pytest.mark.parametrize(("level", "step"), [("low", (0.1, 0.01, 0.1)), ("mid", (0.25, 0.05, 0.3))])
def test_milder_levels(level: str, step: tuple[float, float, float]) -> None:
    of, (gamma, hue, saturation) = of_clients(level, 8), step
    assert of[0] == Transform(1 - gamma, -hue, 1 - saturation)
    assert of[7] == Transform(1 + gamma, hue, 1 + saturation)
    assert len(set(of)) == 8


def test_pool() -> None:
    pool = of_clients("pool", 54)
    assert len(set(pool)) == 54
    assert [{s.saturation for s in pool[:n]} for n in (8, 16, 24)] == [{0.4}, {0.4, 1.0}, {0.4, 1.0, 1.6}]
    assert [c for c in range(32) if pool[c].posterize] == [27, 28, 29, 30, 31]
    assert pool[5] == Transform(gamma=1.4, hue=0.0, saturation=0.4)
    assert pool[53] == Transform(gamma=1.4, hue=0.15, saturation=1.6, posterize=2)


@few(level=st.sampled_from(SHIFTS), clients=st.integers(1, 54), examples=40)
def test_every_client_has_a_shift_and_a_group(level: str, clients: int) -> None:
    of = of_clients(level, clients)
    assert len(of) == clients
    if level.startswith("corrupted"):
        assert [s.corruption is not None for s in of] == [c < clients // 2 for c in range(clients)]
        pairs = 50 if level == "corrupted" else 10
        assert len({s for s in of if s.corruption}) == min(clients // 2, pairs)
        return
    kinds = {"none": 1, "pool": 54}.get(level, 8)
    assert groups(of) == [c % kinds for c in range(clients)]
    assert len({*of}) == min(clients, kinds)


# Do not bring these literals up to date after a change of the code without raising PartitionSpec.version: a partition's
# identity holds the name of the rule ("corrupted"), not the pairs that come out of it.
NAMES = (
    "motion_blur",
    "defocus_blur",
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "frost",
    "fog",
    "jpeg",
    "brightness",
    "contrast",
)


@pytest.mark.parametrize(
    ("level", "pairs", "kinds"),
    [
        ("corrupted", [(name, severity) for severity in (1, 2, 3, 4, 5) for name in NAMES], 50),
        ("corrupted_code", list(zip(NAMES, (1, 2, 3, 4, 5) * 2, strict=True)) * 5, 10),
    ],
)
def test_the_pairs_of_a_hundred_clients(level: str, pairs: list[tuple[str, int]], kinds: int) -> None:
    """Catches a corruption that is renamed, moved, added or dropped; severities that run faster or slower than the
    corruptions, or from 0; the wrong half of the clients; and the two rules swapped."""
    assert (CORRUPTIONS, SEVERITIES) == (NAMES, 5)
    of = of_clients(level, 100)
    assert of == [Transform(corruption=name, severity=severity) for name, severity in pairs] + [Transform()] * 50
    assert groups(of) == [*range(kinds)] * (50 // kinds) + [kinds] * 50
    assert str(of[1]) == f"defocus_blur {pairs[1][1]}"


@pytest.mark.parametrize("shift", ALL, ids=str)
def test_against_torchvision(shift: Transform) -> None:
    pytest.importorskip("fedbench.vision").torchvision()  # makes it importable beside any build of torch
    from torchvision.transforms import functional as F

    for image in noise(4, seed=2):
        picture = Image.fromarray(image)
        picture = F.adjust_saturation(picture, shift.saturation)
        picture = F.adjust_hue(picture, shift.hue)
        picture = F.adjust_gamma(picture, shift.gamma)
        if shift.posterize is not None:
            picture = F.posterize(picture, shift.posterize)
        assert np.array_equal(apply(image[None], shift)[0], np.asarray(picture))


def test_neutral_steps() -> None:
    images = noise()
    for neutral in (Transform(), Transform(gamma=1.0), Transform(saturation=1.0), Transform(posterize=8)):
        seen = apply(images, neutral)
        assert np.array_equal(seen, images)
        assert not np.shares_memory(seen, images)
    moved = np.abs(apply(images, Transform(hue=0.0)).astype(int) - images)
    assert 0 < moved.max() <= 8  # the way to 8-bit HSV and back is not quite the identity


def test_grey_images_take_gamma_and_posterize_only() -> None:
    images = noise(channels=1)
    shift = of_clients("pool", 54)[53]
    seen = apply(images, shift)
    assert np.array_equal(seen, apply(images, shift.on_grey()))
    assert shift.on_grey() == Transform(gamma=1.4, posterize=2)
    expected = [math.floor(255.999 * (int(v) / 255) ** 1.4) & 0b11000000 for v in images.ravel()]
    assert seen.ravel().tolist() == expected


def test_images_do_not_depend_on_their_neighbours() -> None:
    # More than two blocks: each image must come out as it does alone.
    images = noise(4200, 3, height=4, width=4)
    shift = of_clients("high", 8)[4]
    seen = apply(images, shift)
    for i in (0, 2047, 2048, 4199):
        assert np.array_equal(seen[i], apply(images[i : i + 1], shift)[0])
    assert np.array_equal(apply(images[:9:2, :, ::-1], shift), seen[:9:2, :, ::-1])
    assert apply(images[:0], shift).shape == (0, 4, 4, 3)


@pytest.mark.parametrize(("name", "channels"), [(name, 1 + 2 * (i % 2)) for i, name in enumerate(CORRUPTIONS)])
def test_a_corrupted_client_sees_the_corruption(name: str, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 12, channels), dtype=np.uint8)
    shift = Transform(corruption=name, severity=2)
    seen = apply(images, shift, key=4)
    assert not np.array_equal(seen, images)
    assert np.array_equal(apply(images[:2], shift, key=4), seen[:2])
    drawn = not np.array_equal(apply(images, shift, key=5), seen)
    assert drawn == (name not in PLAIN)
    if not drawn:
        assert np.array_equal(corrupt(images, name, 2, np.random.default_rng()), seen)
    assert shift.on_grey() == shift


def test_streams_of_corruptions_differ_by_severity_and_stay_for_ever() -> None:
    grey = np.full((1, 32, 32, 1), 128, np.uint8)
    mild, strong = (apply(grey, Transform(corruption="gaussian_noise", severity=s)) - 128.0 for s in (1, 5))
    assert abs(np.corrcoef(mild.ravel(), strong.ravel())[0, 1]) < 0.2
    # Stored runs rest on it: the streams behind a name, a severity and a key must not change with the code.
    seen = apply(grey[:, :8, :8], Transform(corruption="gaussian_noise", severity=5), key=7).ravel()[:6]
    assert seen.tolist() == [128, 154, 95, 130, 154, 117]


def test_transforms_compose() -> None:
    """Steps of colour come before the corruption; of two that have the same step the latter's holds."""
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 12, 3), np.uint8)
    colour, fog = Transform(gamma=0.6, posterize=3), Transform(corruption="fog", severity=2)
    assert np.array_equal(apply(images, colour | fog, key=7), apply(apply(images, colour), fog, key=7))
    assert fog | Transform(corruption="jpeg", severity=1) == Transform(corruption="jpeg", severity=1)
    assert colour | Transform() == Transform() | colour == colour


#: All angles of all levels.
ANGLES = sorted({360 * i // r for r in (2, 3, 4, 5) for i in range(r)})
SIZES = st.integers(1, 33)


@few(SIZES, SIZES, st.sampled_from((1, 3)), st.one_of(st.sampled_from(ANGLES), st.integers(0, 359)), examples=50)
def test_rotation_is_pillows_pixel_for_pixel(height: int, width: int, channels: int, angle: int) -> None:
    images = noise(3, angle, channels, height, width)
    before = images.copy()
    for image, found in zip(images, rotate(images, angle), strict=True):
        picture = Image.fromarray(image[..., 0] if channels == 1 else image)
        assert np.array_equal(found, np.asarray(picture.rotate(angle)).reshape(image.shape))
    assert np.array_equal(images, before)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("colour", [None, *COLOURS])
def test_a_colour_lights_its_channel(channels: int, colour: str | None) -> None:
    images = noise(2, 0, channels, 5, 5)
    before = images.copy()
    seen = rotated(images, Rotation(90, colour), 3)
    assert seen.shape == (2, 5, 5, 3)
    for channel, name in enumerate(("red", "green", "blue")):
        turned = rotate(images, 90)[..., channel if channels == 3 else 0]
        assert np.array_equal(seen[..., channel], np.full_like(turned, 255) if name == colour else turned)
    rotated(images, Rotation(0, colour), 3)[:] = 0
    assert np.array_equal(images, before)


# -- the corruptions themselves, image by image ---------------------------------------------------------------


LEVELS = range(1, SEVERITIES + 1)
each_severity = pytest.mark.parametrize("severity", LEVELS)
#: Grey images and colour images in turn.
each_depth = pytest.mark.parametrize(("severity", "channels"), [(s, 1 + 2 * (s % 2)) for s in LEVELS] + [(4, 3)])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def smooth(n: int = 4, size: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Images with the falling spectrum of photographs, over the whole range of levels."""
    maps = corruption.fractal(n * channels, 1 << (size - 1).bit_length(), 1.3, rng(seed))[:, :size, :size]
    return (255 * maps).astype(np.uint8).reshape(n, channels, size, size).transpose(0, 2, 3, 1).copy()


def assert_close(seen: np.ndarray, told: np.ndarray) -> None:
    """Equal when clipped and truncated (a hair below a whole level counts as that level), but for the few values on the
    edge between two levels that single precision puts on the other side."""
    apart = np.abs(seen.astype(int) - np.floor(np.clip(told, 0, 255) + 1e-6).astype(int))
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
    assert_close(seen, np.moveaxis(np.array(told), 1, -1))


@each_severity
def test_motion_blur_is_a_one_sided_mean_along_a_line(severity: int) -> None:
    radius, sigma = [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)][severity - 1]
    images = smooth(3, 24)
    seen = corruption.motion_blur(images, severity, rng(5))
    told = np.zeros(images.shape)
    weights = [math.exp(-(j**2) / (2 * sigma**2)) for j in range(2 * radius + 1)]
    for n, angle in enumerate(rng(5).uniform(-math.pi / 4, math.pi / 4, len(images))):
        for j, weight in enumerate(weights):
            right, down = math.ceil(j * math.cos(angle) - 0.5), math.ceil(j * math.sin(angle) - 0.5)
            for y in range(24):
                for x in range(24):
                    told[n, y, x] += weight * images[n, min(max(y + down, 0), 23), min(x + right, 23)]
    assert_close(seen, told / sum(weights))


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
    seen = corruption.fog(images, severity, rng(4))
    for image, got, draws in zip(images, seen, rng(4).random((3, 32 * 32 - 1), np.float32), strict=True):
        x, top = image / 255, image.max() / 255
        told = (x + thickness * plasma(32, decay, draws.tolist())[:20, :20, None]) * top / (top + thickness)
        assert_close(got, 255 * told)


def test_textures_of_frost() -> None:
    textures = corruption.textures(3)
    means = [(78, 149, 166), (201, 205, 214), (138, 153, 165), (112, 123, 135)]
    assert np.abs(textures.mean(axis=(1, 2)) - means).max() < 0.5
    assert np.abs(textures.std(axis=(1, 2)).T - [16, 18, 21, 35]).max() < 0.5
    for axis in (1, 2):  # smooth, over the edges too
        steps = np.abs(textures - np.roll(textures, 1, axis)).mean(axis=(1, 2))
        assert (steps < textures.std(axis=(1, 2)) / 3).all()
        edge = np.abs(textures.take(0, axis) - textures.take(-1, axis)).mean(axis=1)
        assert (edge < 2 * steps).all()
    assert np.allclose(corruption.textures(1)[..., 0], textures.mean(axis=-1))


@each_depth
def test_frost_is_a_crop_of_a_texture_over_the_image(severity: int, channels: int) -> None:
    image_share, ice = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)][severity - 1]
    images = smooth(12, 16, channels)
    seen = corruption.frost(images, severity, rng(8))
    for image, got, (file, top, left) in zip(images, seen, rng(8).random((12, 3)), strict=True):
        texture = corruption.textures(channels)[[0, 1, 1, 2, 3][int(5 * file)]]
        crop = np.roll(texture, (-int(256 * top), -int(256 * left)), (0, 1))[:16, :16]
        assert_close(got, image_share * image.astype(float) + ice * crop.astype(float))


@each_severity
def test_brightness_is_the_value_of_hsv(severity: int) -> None:
    lighter = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    images = np.concatenate([smooth(1, 24), np.zeros((1, 24, 24, 3), np.uint8)])
    seen = corrupt(images, "brightness", severity, rng())
    told = []
    for pixel in images.reshape(-1, 3) / 255:
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        told.append(colorsys.hsv_to_rgb(h, s, min(v + lighter, 1)))
    assert_close(seen, 255 * np.reshape(told, images.shape))


def test_brightness_of_grey_images_and_contrast_of_flat_ones() -> None:
    grey, flat = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), np.full((1, 9, 9, 3), 77, np.uint8)
    assert corrupt(grey, "brightness", 4, rng()).ravel().tolist() == [min(v + 51, 255) for v in range(256)]
    for severity in LEVELS:
        assert np.array_equal(corrupt(flat, "contrast", severity, rng()), flat)


@each_severity
def test_contrast_is_about_the_mean_of_each_channel(severity: int) -> None:
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    images = smooth(3)
    images[..., 2] //= 3
    for image, got in zip(images, corrupt(images, "contrast", severity, rng()), strict=True):
        mean = np.array([image[..., c].mean() for c in range(3)])
        assert_close(got, (image - mean) * kept + mean)


@each_depth
def test_jpeg_is_pillows(severity: int, channels: int) -> None:
    images = smooth(3, 21, channels)
    for image, got in zip(images, corrupt(images, "jpeg", severity, rng()), strict=True):
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
    assert (whole.dtype, whole.shape) == (np.uint8, images.shape)
    assert not np.shares_memory(whole, images)
    for threads in (None, 2, 5):
        assert np.array_equal(corrupt(images, name, 3, rng(2), threads=threads), whole)
    for k in (0, 1, 6, 7, 8, 23):
        assert np.array_equal(corrupt(images[:k], name, 3, rng(2)), whole[:k])
    stream = rng(3)
    for other in (corrupt(images, name, 3, stream), corrupt(images, name, 3, stream)):  # a generator moves on
        assert np.array_equal(other, whole) == (name in PLAIN)
        whole = other
    if name not in PLAIN:  # neither two images of a block nor two blocks share their draws
        same = corrupt(np.repeat(images[:1], 24, axis=0), name, 3, rng(2))
        assert len({image.tobytes() for image in same}) > 12  # close angles are the same blur
        assert not np.array_equal(same[:7], same[7:14])


@few(
    name=st.sampled_from(CORRUPTIONS),
    severity=st.sampled_from(LEVELS),
    n=st.integers(0, 3),
    height=st.integers(SMALLEST, 40),
    width=st.integers(SMALLEST, 40),
    channels=st.sampled_from([1, 3]),
    examples=40,
)
def test_any_shape(name: str, severity: int, n: int, height: int, width: int, channels: int) -> None:
    images = rng(n).integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    images.flags.writeable = False
    seen = corrupt(images, name, severity, rng())
    assert (seen.dtype, seen.shape) == (np.uint8, images.shape)
    strided = np.repeat(images, 2, axis=2)[:, :, ::2]
    assert np.array_equal(corrupt(strided, name, severity, rng()), seen)
    if n:
        assert not np.array_equal(seen, images)


def black(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("call", "values", "says"),
    [
        (corrupt, (black(1, 32, 32, 3), "frots", 1, rng()), "did you mean 'frost'"),
        *((corrupt, (black(1, 32, 32, 3), "fog", level, rng()), f"1 to 5, not {level}") for level in (0, 6, 2.0)),
        (corrupt, (black(1, 32, 32, 4), "fog", 1, rng()), r"not uint8 \[1, 32, 32, 4\]"),
        (corrupt, (black(32, 32, 3), "fog", 1, rng()), r"not uint8 \[32, 32, 3\]"),
        (corrupt, (black(1, 7, 32, 3), "fog", 1, rng()), "8x8 pixels at least, not 7x32"),
        (corrupt, (black(1, 32, 32, 3, dtype=float), "fog", 1, rng()), "needs uint8 images"),
        (apply, (black(2, 4, 4, 3, dtype=float), Transform(gamma=0.5)), "uint8 images"),
        *((apply, (black(*shape), Transform(gamma=0.5)), "uint8 images") for shape in ((2, 4, 4, 4), (4, 4, 3))),
        (of_clients, ("pool", 55), "54 shifts, too few for 55 clients"),
        (of_clients, ("hihg", 8), "did you mean 'high'"),
        (Transform, {"gamma": 0.0}, "gamma"),
        (Transform, {"hue": 0.6}, "hue"),
        (Transform, {"saturation": -1.0}, "saturation"),
        (Transform, {"posterize": 9}, "posterize"),
        (Transform, {"corruption": "fogg", "severity": 1}, "did you mean 'fog'"),
        (Transform, {"corruption": "fog", "severity": 6}, "1 to 5, not 6"),
        (Transform, {"corruption": "fog"}, "fog has no severity"),
        (Transform, {"severity": 2}, "severity 2 of which corruption"),
        *((Rotation, (angle, None), "0 to 359") for angle in (360, -90)),
        (Rotation, (0, "pink"), "pink"),
    ],
)
def test_bad_calls_are_refused(call: Any, values: Any, says: str) -> None:
    refused(says, call, **values) if isinstance(values, dict) else refused(says, call, *values)
