"""What processing does to images: lighter, flatter, compressed. Nothing here draws random numbers."""

from __future__ import annotations

import io
from functools import cache

import numpy as np

from fedbench.partitions.transforms.corruption.pixels import Images, to_levels

#: By severity: added to the value of HSV, in [0, 1].
_LIGHTER = (0.05, 0.1, 0.15, 0.2, 0.3)
#: Factor of the distance to the mean.
_FLATTER = (0.75, 0.5, 0.4, 0.3, 0.15)
_QUALITY = (80, 65, 58, 50, 40)


def brightness(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """HSV value + c at most 1, hue and saturation kept; of grey images the value itself."""
    value = block.max(axis=-1, keepdims=True)
    out: Images = _lighter(_LIGHTER[severity - 1]).take(value * np.int32(256) + block)
    return out


@cache
def _lighter(c: float) -> Images:
    """[65536]: what becomes of a channel at level x in a pixel whose largest is v, at 256 v + x.

    With hue and saturation fixed, all channels are proportional to the value; black has none and becomes grey.
    """
    value, x = np.arange(256)[:, None], np.arange(256)
    lighter = np.minimum(value + 255 * c, 255)
    table = np.where(value > 0, x * lighter / np.maximum(value, 1), lighter)
    return to_levels(table.astype(np.float32)).ravel()


def contrast(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """(x - m) c + m, m the mean of the image's channel."""
    c = _FLATTER[severity - 1]
    mean = block.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    out = np.float32(c) * block
    out += ((1 - c) * mean).astype(np.float32)
    return to_levels(out)


def jpeg(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Each image written and read by Pillow with its default subsampling; grey images in mode L."""
    from PIL import Image

    out = np.empty_like(block)
    for i, image in enumerate(block):
        buffer = io.BytesIO()
        picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
        picture.save(buffer, "JPEG", quality=_QUALITY[severity - 1])
        out[i] = np.asarray(Image.open(buffer)).reshape(image.shape)
    return out
