"""Rotations of FLUX's images by an angle, with one colour channel set to its maximum (Appendix F.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedbench.partitions.transforms.corruption import Images
from fedbench.specs import require

#: Colour -> the channel of an RGB image that is set to 255.
COLOURS = {"red": 0, "green": 1, "blue": 2}

#: Pillow's nearest-neighbour transform uses 16.16 fixed point.
_ONE = 1 << 16

#: Images rotated at once: few enough to stay in the processor's cache.
_ROTATED = 1024


@dataclass(frozen=True)
class Rotation:
    """An angle in whole degrees, counter-clockwise, and a colour of COLOURS or None; the default changes nothing."""

    angle: int = 0
    colour: str | None = None

    def __post_init__(self) -> None:
        require(0 <= self.angle < 360, f"an angle must be 0 to 359 degrees, not {self.angle}")
        require(self.colour is None or self.colour in COLOURS, f"'{self.colour}' is not one of {', '.join(COLOURS)}")

    def __str__(self) -> str:
        parts = [f"rotated {self.angle}°"] if self.angle else []
        return ", ".join([*parts, *([self.colour] if self.colour else [])]) or "as they are"


def rotated(images: Images, rotation: Rotation, channels: int) -> Images:
    """Rotate images [N, H, W, C] and set their colour, as [N, H, W, channels]; grey ones are copied to all channels."""
    turned = rotate(images, rotation.angle)
    if channels == turned.shape[-1]:
        out = turned.copy() if turned is images else turned
    else:
        out = np.repeat(turned, channels, axis=-1)
    if rotation.colour is not None:
        out[..., COLOURS[rotation.colour]] = 255
    return out


def rotate(images: Images, angle: int) -> Images:
    """Rotate images [N, H, W, C] counter-clockwise about their centre, on a canvas of the same size, with black gaps.

    Nearest neighbour. The result equals Pillow's `Image.rotate` of 8-bit images in every pixel, because this repeats
    its fixed-point arithmetic. For angle 0 it returns the images themselves, not a copy.
    """
    if angle % 360 == 0:
        return images
    n, height, width, channels = images.shape
    source = sources(height, width, angle % 360)
    flat = images.reshape(n, height * width, channels)
    out = np.empty_like(flat)
    for start in range(0, n, _ROTATED):
        block = slice(start, start + _ROTATED)
        np.take(flat[block], np.maximum(source, 0), axis=1, out=out[block], mode="clip")
    out[:, source < 0] = 0
    return out.reshape(images.shape)


@lru_cache(maxsize=64)
def sources(height: int, width: int, angle: int) -> NDArray[np.intp]:
    """Return, for each pixel [H * W] of the rotated image, the index of its source pixel; -1 for none."""
    rows, columns = np.mgrid[:height, :width]
    # Pillow rotates by these angles by transposition; its general formula would differ in a few pixels.
    if angle == 180:
        return np.asarray(np.arange(height * width)[::-1])
    if angle in (90, 270) and height == width:
        return np.asarray(np.rot90(np.arange(height * width).reshape(height, width), angle // 90).ravel())
    turn = -math.radians(angle)
    cos, sin = round(math.cos(turn), 15), round(math.sin(turn), 15)
    x, y = width / 2, height / 2
    left, top = -cos * x - sin * y + x, sin * x - cos * y + y
    a, b, d, e = (math.floor(v * _ONE + 0.5) for v in (cos, sin, -sin, cos))
    c, f = (math.floor(v * _ONE + 0.5) for v in (left + cos * 0.5 + sin * 0.5, top - sin * 0.5 + cos * 0.5))
    column = (c + a * columns + b * rows) >> 16
    row = (f + d * columns + e * rows) >> 16
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return np.asarray(np.where(inside, row * width + column, -1).ravel(), np.intp)
