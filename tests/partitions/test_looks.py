"""Rotations and colours of FLUX's clients, against Pillow image by image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbench.errors import FedbenchError
from fedbench.partitions.transforms.rotation import COLOURS, Rotation, rotate, rotated

#: All angles of all levels.
ANGLES = sorted({360 * i // r for r in (2, 3, 4, 5) for i in range(r)})


def pixels(n: int, height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (n, height, width, channels), dtype=np.uint8)


def by_pillow(image: np.ndarray, angle: float) -> np.ndarray:
    """One image [H, W, C] turned by Pillow itself."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(picture.rotate(angle)).reshape(image.shape)


@given(
    st.integers(1, 33),
    st.integers(1, 33),
    st.sampled_from((1, 3)),
    st.one_of(st.sampled_from(ANGLES), st.integers(0, 359)),
)
@settings(max_examples=150)
def test_rotation_is_pillows_pixel_for_pixel(height: int, width: int, channels: int, angle: int) -> None:
    images = pixels(3, height, width, channels, seed=angle)
    before = images.copy()
    turned = rotate(images, angle)
    for image, found in zip(images, turned, strict=True):
        assert np.array_equal(found, by_pillow(image, angle))
    assert np.array_equal(images, before)


@pytest.mark.parametrize("size", [8, 28, 32, 64])
def test_the_sizes_and_angles_of_the_paper(size: int) -> None:
    images = pixels(2, size, size, 1)
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
    images = pixels(2, 5, 5, channels)
    seen = rotated(images, Rotation(90, colour), 3)
    assert seen.shape == (2, 5, 5, 3)
    for channel, name in enumerate(("red", "green", "blue")):
        plain = rotate(images, 90)[..., channel if channels == 3 else 0]
        assert np.array_equal(seen[..., channel], np.full_like(plain, 255) if name == colour else plain)


def test_looking_leaves_the_images_alone() -> None:
    images = pixels(2, 4, 4, 3)
    before = images.copy()
    rotated(images, Rotation(0, "red"), 3)[:] = 0
    rotated(images, Rotation(), 3)[:] = 0
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
