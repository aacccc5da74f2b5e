"""Decoding many encoded images (JPEG, PNG, WebP, ...) into one uint8 array."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data.guard import explained, fits
from fedbench.data.progress import bar
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from PIL.Image import Image

_BLOCK = 256
#: What Pillow may take the bytes for; of its other formats one starts a program (EPS: Ghostscript).
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF", "JPEG2000")


def decode(
    count: int,
    read: Callable[[int], bytes | bytearray],
    where: Callable[[int], str],
    shape: tuple[int, ...],
    resize: bool = False,
) -> np.ndarray:
    """Decode `count` images, given by `read(i)`, to uint8 [count, H, W, C] of the given (H, W, C).

    Grey images become RGB, and colour ones grey, as C says; `resize` allows other sizes, brought to H x W by bilinear
    interpolation. Raises FedbenchError naming `where(i)` for an image that cannot be decoded, has another size, more
    than 8 bits a channel, or more pixels than Pillow takes for honest (89 million).
    """
    from PIL import Image

    height, width, channels = shape
    fits(count * height * width * channels, f"{where(0)} and {count - 1:,} more" if count else "the images")
    out = np.empty((count, height, width, channels), np.uint8)

    def one(i: int) -> None:
        data = read(i)
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                size = image.size
                if resize or size == (width, height):
                    out[i] = fitted(image, shape, where(i))
        except Exception as error:  # of a damaged image Pillow raises whatever its parsing stumbles over
            raise explained(error, where(i), "is not a readable image") from error
        if not resize and size != (width, height):
            raise FedbenchError(f"{where(i)} is {size[0]} x {size[1]} pixels; the recipe says {width} x {height}")

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        _each(count, one)
    return out


def fit(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 images [N, h, w, c] as [N, H, W, C]: bilinear interpolation, grey replicated to RGB or RGB made grey."""
    from PIL import Image

    if images.shape[1:] == tuple(shape):
        return images
    out = np.empty((len(images), *shape), np.uint8)

    def one(i: int) -> None:
        pixels = images[i]
        out[i] = fitted(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]), shape)

    _each(len(images), one)
    return out


def fitted(image: Image, shape: tuple[int, ...], where: str = "the image") -> np.ndarray:
    """One image as uint8 [H, W, C], or [H, W, 1] where it is grey. Raises FedbenchError for more than 8 bits."""
    from PIL import Image as pillow

    height, width, channels = shape
    if image.mode.startswith(("I", "F")):
        raise FedbenchError(
            f"{where} has pixels of more than 8 bits (mode {image.mode})", "scale it to 8 bits a channel"
        )
    if channels == 1 or image.mode not in ("L", "RGB"):
        image = image.convert("RGB" if channels == 3 else "L")
    if image.size != (width, height):
        image = image.resize((width, height), pillow.Resampling.BILINEAR)
    pixels = np.asarray(image)
    # Grey is replicated by the assignment of [H, W, 1] to [H, W, 3].
    return pixels.reshape(height, width, -1)


def _each(count: int, one: Callable[[int], None]) -> None:
    def block(start: int) -> int:
        stop = min(start + _BLOCK, count)
        for i in range(start, stop):
            one(i)
        return stop - start

    with bar("images", count) as advance, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in pool.map(block, range(0, count, _BLOCK)):
            advance(done)


def shapes_of(count: int, read: Callable[[int], bytes | bytearray], where: Callable[[int], str]) -> np.ndarray:
    """int64 [count, 3]: height, width and channels (see `channels_of`) of encoded images, none of which is decoded.

    Raises FedbenchError naming `where(i)` for what is no image.
    """
    from PIL import Image

    out = np.empty((count, 3), np.int64)

    def one(i: int) -> None:
        data = read(i)
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                out[i] = image.size[1], image.size[0], channels_of(image)
        except Exception as error:
            raise explained(error, where(i), "is not a readable image") from error

    _each(count, one)
    return out


def channels_of(image: Image) -> int:
    """1 for a grey image, else 3."""
    return 1 if image.mode.startswith(("1", "L", "I", "F")) else 3


def mixed(grey: int, count: int) -> str:
    """What to say of `count` images of which so many are grey; nothing where they are of one kind."""
    return f"{grey:,} of {count:,} images are grey and are read as colour like the others" if 0 < grey < count else ""
