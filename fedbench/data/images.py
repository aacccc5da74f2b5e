"""Decoding many encoded images (JPEG, PNG, WebP, ...) into one uint8 array."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedbench.errors import FedbenchError

_BLOCK = 256


def decode(count: int, read: Callable[[int], bytes], where: Callable[[int], str], shape: tuple[int, ...]) -> np.ndarray:
    """Decode `count` images, given by `read(i)`, to uint8 [count, H, W, C] of the given (H, W, C).

    Grey images become RGB, and colour ones grey, as C says. Raises FedbenchError naming `where(i)` for an image
    that cannot be decoded or has another size.
    """
    from PIL import Image

    height, width, channels = shape
    out = np.empty((count, height, width, channels), np.uint8)

    def one(i: int) -> None:
        data = read(i)
        try:
            with Image.open(io.BytesIO(data)) as image:
                size = image.size
                if size == (width, height):
                    pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
                    out[i] = pixels.reshape(height, width, channels)
        # Pillow's decoders raise SyntaxError and struct.error too, for some damaged files.
        except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
            raise FedbenchError(f"{where(i)} is not a readable image ({error})", "get the file again") from error
        if size != (width, height):
            raise FedbenchError(f"{where(i)} is {size[0]} x {size[1]} pixels; the recipe says {width} x {height}")

    def block(start: int) -> None:
        for i in range(start, min(start + _BLOCK, count)):
            one(i)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(block, range(0, count, _BLOCK)):
            pass
    return out
