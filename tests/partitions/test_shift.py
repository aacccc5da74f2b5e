"""Covariate shifts against the protocol's check vectors, torchvision and Pillow; FLUX's
rotations and colours against Pillow; which client sees its images under which corruption."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fedbench.errors import FedbenchError
from fedbench.partitions.artifact import numbered as groups
from fedbench.partitions.transforms import CORRUPTIONS, SEVERITIES, SHIFTS, Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import corrupt
from fedbench.partitions.transforms.rotation import COLOURS, Rotation, rotate, rotated

#: A few of each kind of shift.
ALL = [*of_clients("low", 8)[::7], *of_clients("mid", 8)[::7], *of_clients("high", 8), *of_clients("pool", 54)[::4]]


def noise(n: int = 3, seed: int = 0, channels: int = 3, height: int = 9, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)


# -- who sees which shift ---------------------------------------------------------------------------------------


def test_check_vectors() -> None:
    pixel = np.array([[[[200, 100, 50]]]], np.uint8)
    main = of_clients("high", 8)
    assert apply(pixel, main[0]).ravel().tolist() == [194, 134, 150]
    assert apply(pixel, main[7]).ravel().tolist() == [232, 206, 3]


def test_main_setting_is_laid_out_by_bits() -> None:
    main = of_clients("high", 8)
    assert [s.gamma for s in main] == [0.6, 1.4] * 4
    assert [s.hue for s in main] == [-0.1, -0.1, 0.1, 0.1] * 2
    assert [s.saturation for s in main] == [0.5] * 4 + [1.5] * 4


@pytest.mark.parametrize(
    ("level", "low", "high"),
    [
        ("low", Transform(0.9, -0.01, 0.9), Transform(1.1, 0.01, 1.1)),
        ("mid", Transform(0.75, -0.05, 0.7), Transform(1.25, 0.05, 1.3)),
    ],
)
def test_milder_levels(level: str, low: Transform, high: Transform) -> None:
    assert of_clients(level, 8)[0] == low
    assert of_clients(level, 8)[7] == high
    assert len(set(of_clients(level, 8))) == 8


def test_pool() -> None:
    pool = of_clients("pool", 54)
    assert len(set(pool)) == 54
    assert {s.saturation for s in pool[:8]} == {0.4}
    assert {s.saturation for s in pool[:16]} == {0.4, 1.0}
    assert {s.saturation for s in pool[:24]} == {0.4, 1.0, 1.6}
    assert [c for c in range(32) if pool[c].posterize] == [27, 28, 29, 30, 31]
    assert pool[5] == Transform(gamma=1.4, hue=0.0, saturation=0.4)
    assert pool[53] == Transform(gamma=1.4, hue=0.15, saturation=1.6, posterize=2)


@given(level=st.sampled_from(SHIFTS), clients=st.integers(1, 54))
@settings(max_examples=40)
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


def test_too_many_for_the_pool_and_unknown_levels() -> None:
    with pytest.raises(FedbenchError, match="54 shifts, too few for 55 clients"):
        of_clients("pool", 55)
    with pytest.raises(FedbenchError, match="did you mean 'high'"):
        of_clients("hihg", 8)


# Do not bring these literals up to date after a change of the code without raising PartitionSpec.version: a partition's
# identity holds the name of the rule ("corrupted"), not the pairs that come out of it.
NAMES = (
    "motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise",
    "frost", "fog", "jpeg", "brightness", "contrast",
)  # fmt: skip


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


# -- colours ----------------------------------------------------------------------------------------------------


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


@settings(max_examples=20)
@given(bits=st.integers(1, 8), seed=st.integers(0, 99))
def test_posterize_against_pillow(bits: int, seed: int) -> None:
    images = noise(2, seed)
    told = [np.asarray(ImageOps.posterize(Image.fromarray(image), bits)) for image in images]
    assert np.array_equal(apply(images, Transform(posterize=bits)), told)


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
    told = [math.floor(255.999 * (int(v) / 255) ** 1.4) & 0b11000000 for v in images.ravel()]
    assert seen.ravel().tolist() == told


def test_images_do_not_depend_on_their_neighbours() -> None:
    # More than two blocks: each image must come out as it does alone.
    images = noise(4200, 3, height=4, width=4)
    shift = of_clients("high", 8)[4]
    seen = apply(images, shift)
    for i in (0, 2047, 2048, 4199):
        assert np.array_equal(seen[i], apply(images[i : i + 1], shift)[0])
    assert np.array_equal(apply(images[:9:2, :, ::-1], shift), seen[:9:2, :, ::-1])
    assert apply(images[:0], shift).shape == (0, 4, 4, 3)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 4, 4, 3)), np.zeros((2, 4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.uint8)]
)
def test_other_arrays_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(FedbenchError, match="uint8 images"):
        apply(bad, Transform(gamma=0.5))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gamma": 0.0}, "gamma"),
        ({"hue": 0.6}, "hue"),
        ({"saturation": -1.0}, "saturation"),
        ({"posterize": 9}, "posterize"),
        ({"corruption": "fogg", "severity": 1}, "did you mean 'fog'"),
        ({"corruption": "fog", "severity": 6}, "1 to 5, not 6"),
        ({"corruption": "fog"}, "fog has no severity"),
        ({"severity": 2}, "severity 2 of which corruption"),
    ],
)
def test_bad_transforms_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(FedbenchError, match=said):
        Transform(**fields)


# -- corruptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "channels"), [(name, 1 + 2 * (i % 2)) for i, name in enumerate(CORRUPTIONS)])
def test_a_corrupted_client_sees_the_corruption(name: str, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 12, channels), dtype=np.uint8)
    before = images.copy()
    shift = Transform(corruption=name, severity=2)
    seen = apply(images, shift, key=4)
    assert np.array_equal(images, before)
    assert seen.shape == images.shape
    assert not np.array_equal(seen, images)
    assert np.array_equal(apply(images, shift, key=4), seen)
    assert np.array_equal(apply(images[:2], shift, key=4), seen[:2])
    drawn = not np.array_equal(apply(images, shift, key=5), seen)
    assert drawn == (name not in ("defocus_blur", "jpeg", "brightness", "contrast"))
    if not drawn:
        assert np.array_equal(corrupt(images, name, 2, np.random.default_rng()), seen)
    assert shift.on_grey() == shift


def test_streams_of_corruptions_differ_by_severity() -> None:
    grey = np.full((1, 32, 32, 1), 128, np.uint8)
    mild, strong = (apply(grey, Transform(corruption="gaussian_noise", severity=s)) - 128.0 for s in (1, 5))
    assert abs(np.corrcoef(mild.ravel(), strong.ravel())[0, 1]) < 0.2


def test_the_same_noise_for_ever() -> None:
    # Stored runs rest on it: the streams behind a name, a severity and a key must not change with the code.
    grey = np.full((1, 8, 8, 1), 128, np.uint8)
    seen = apply(grey, Transform(corruption="gaussian_noise", severity=5), key=7).ravel()[:6]
    assert seen.tolist() == [128, 154, 95, 130, 154, 117]


def test_transforms_compose() -> None:
    """Steps of colour come before the corruption; of two that have the same step the latter's holds."""
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 12, 3), np.uint8)
    colour, fog = Transform(gamma=0.6, posterize=3), Transform(corruption="fog", severity=2)
    assert np.array_equal(apply(images, colour | fog, key=7), apply(apply(images, colour), fog, key=7))
    assert fog | Transform(corruption="jpeg", severity=1) == Transform(corruption="jpeg", severity=1)
    assert colour | Transform() == Transform() | colour == colour


# -- rotations --------------------------------------------------------------------------------------------------

#: All angles of all levels.
ANGLES = sorted({360 * i // r for r in (2, 3, 4, 5) for i in range(r)})
SIZES = st.integers(1, 33)


def by_pillow(image: np.ndarray, angle: float) -> np.ndarray:
    """One image [H, W, C] turned by Pillow itself."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(picture.rotate(angle)).reshape(image.shape)


@given(SIZES, SIZES, st.sampled_from((1, 3)), st.one_of(st.sampled_from(ANGLES), st.integers(0, 359)))
@settings(max_examples=50)
def test_rotation_is_pillows_pixel_for_pixel(height: int, width: int, channels: int, angle: int) -> None:
    images = noise(3, angle, channels, height, width)
    before = images.copy()
    for image, found in zip(images, rotate(images, angle), strict=True):
        assert np.array_equal(found, by_pillow(image, angle))
    assert np.array_equal(images, before)


@pytest.mark.parametrize("size", [8, 28, 32, 64])
def test_the_sizes_and_angles_of_the_paper(size: int) -> None:
    images = noise(2, 0, 1, size, size)
    for angle in ANGLES:
        assert np.array_equal(rotate(images, angle)[1], by_pillow(images[1], angle))


def test_a_turn_is_counter_clockwise() -> None:
    image = np.zeros((1, 3, 3, 1), np.uint8)
    image[0, 0, 2] = 7  # top right goes to top left
    assert rotate(image, 90)[0, 0, 0] == 7
    assert rotate(image, 180)[0, 2, 0] == 7


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


@pytest.mark.parametrize(
    ("angle", "colour", "says"), [(360, None, "0 to 359"), (-90, None, "0 to 359"), (0, "pink", "pink")]
)
def test_bad_looks(angle: int, colour: str | None, says: str) -> None:
    with pytest.raises(FedbenchError, match=says):
        Rotation(angle, colour)


def test_looks_in_words() -> None:
    assert [str(look) for look in (Rotation(), Rotation(72), Rotation(0, "red"), Rotation(120, "blue"))] == [
        "as they are", "rotated 72°", "red", "rotated 120°, blue"
    ]  # fmt: skip
