"""The ten corruptions of CIFAR10-S and CIFAR100-S (pFedFDA, section 5.1), on stacks of images.

Rules and constants are those of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019), meant for images of
32x32. Nothing scales with the image size: on larger images the same constants give a milder blur and larger fog banks.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError, check_known
from fedbench.specs import require

Images = NDArray[np.uint8]
Values = NDArray[np.float32]

#: Added before truncation, so that a whole level with a rounding error does not fall to the level below.
_HAIR = np.float32(2**-12)


def check(images: Images, what: str) -> None:
    """Raise FedbenchError unless `images` are uint8 [N, H, W, 1 or 3]; `what` names the caller in the error."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise FedbenchError(f"{what} needs uint8 images [N, H, W, 1 or 3], not {images.dtype} {list(images.shape)}")


def to_levels(values: Values) -> Images:
    """Clip values to 0..255 and truncate them to whole levels, as the official code does. Overwrites `values`."""
    values += _HAIR
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)


#: By severity: standard deviation of values in [0, 1].
_SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)
#: Expected number of events for a value of 1.
_EVENTS = (500, 250, 100, 75, 50)
#: Share of values that are replaced, half of them by 0 and half by 1.
_IMPULSES = (0.01, 0.02, 0.03, 0.05, 0.07)


def gaussian_noise(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """x + N(0, sigma^2)."""
    noise = rng.standard_normal(block.shape, np.float32)
    noise *= 255 * _SIGMA[severity - 1]
    noise += block
    return to_levels(noise)


def shot_noise(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Poisson(c x) / c."""
    events = _EVENTS[severity - 1]
    expected = np.arange(256) * (events / 255)
    counts = rng.poisson(expected[block]).astype(np.float32)
    counts *= 255 / events
    return to_levels(counts)


def impulse_noise(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Salt and pepper."""
    share = _IMPULSES[severity - 1]
    draws = rng.random(block.shape, np.float32)
    out = block.copy()
    out[draws < share] = 255
    out[draws < share / 2] = 0
    return out


#: By severity: radius of the disk and standard deviation of the 3x3 Gaussian that smooths its edge.
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
#: Radius and standard deviation of the path of a moving point.
_MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
#: Taps with a smaller weight are invisible in 8 bits.
_LIGHTEST = 1e-7


def defocus_blur(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """A symmetric 3x3 kernel; borders are mirrored about their outermost pixel. Uses no random numbers."""
    centre, edge, corner = _defocus_weights(*_DEFOCUS[severity - 1])
    x = np.pad(block, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect").astype(np.float32)
    beside = x[:, :-2] + x[:, 2:]  # the pixels above and below
    out = edge * beside[:, :, 1:-1]
    out += corner * (beside[:, :, :-2] + beside[:, :, 2:])
    middle = x[:, 1:-1]
    out += edge * (middle[:, :, :-2] + middle[:, :, 2:])
    out += centre * middle[:, :, 1:-1]
    return to_levels(out)


def _defocus_weights(radius: float, sigma: float) -> tuple[np.float32, np.float32, np.float32]:
    """Return the weights of the pixel, of its 4 nearest and of its 4 diagonal neighbours.

    A disk of radius below 1 is one pixel, which smoothing turns into a Gaussian. The larger disks are smoothed with a
    sigma so small that the effect is invisible in 8 bits.
    """
    if radius < 1:
        side = math.exp(-0.5 / sigma**2)
        side, middle = side / (1 + 2 * side), 1 / (1 + 2 * side)
        return np.float32(middle * middle), np.float32(middle * side), np.float32(side * side)
    corner = radius**2 >= 2
    one = np.float32(1 / (5 + 4 * corner))
    return one, one, one * corner


def motion_blur(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Average each pixel along a line from it with one-sided Gaussian weights, at a random angle in -45..45 degrees.

    Border pixels extend outwards. Draws one angle per image.
    """
    radius, sigma = _MOTION[severity - 1]
    weights = np.exp(-0.5 * (np.arange(2 * math.ceil(radius) + 1) / sigma) ** 2)
    weights = (weights / weights.sum())[weights > _LIGHTEST * weights.sum()]
    reach = len(weights) - 1
    angle = rng.uniform(-np.pi / 4, np.pi / 4, len(block))
    along = np.arange(reach + 1)
    right, down = (np.ceil(np.outer(turn(angle), along) - 0.5).astype(int) for turn in (np.cos, np.sin))

    padded = np.pad(block, ((0, 0), (reach, reach), (0, reach), (0, 0)), mode="edge").astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(padded, block.shape[1:3], axis=(1, 2))
    windows = windows.transpose(0, 1, 2, 4, 5, 3)  # [n, first row, first column, H, W, C]
    image = np.arange(len(block))
    out = np.zeros(block.shape, np.float32)
    for tap, weight in enumerate(weights.astype(np.float32)):
        seen = windows[image, reach + down[:, tap], right[:, tap]]
        seen *= weight
        out += seen
    return to_levels(out)


#: By severity: thickness of the fog, and the decay of its map's amplitude with each halving of the distance.
_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
#: Weights of the image and of the frost.
_FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))

#: Mean colour and standard deviation, in levels, of the official photographs of frost at a fifth of their size.
_PHOTOGRAPHS = (((78, 149, 166), 16), ((201, 205, 214), 18), ((138, 153, 165), 21), ((112, 123, 135), 35))
#: Texture of each of the official code's five files; two hold the same photograph.
_FILES = np.array([0, 1, 1, 2, 3])
_TEXTURE_SIZE, _TEXTURE_DECAY, _TEXTURE_SEED = 256, 1.25, 20190326


def fog(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """(x + c P) m / (m + c), x in [0, 1], m the image's largest value, P one fractal map for all of its channels."""
    thickness, decay = _FOG[severity - 1]
    n, height, width, _ = block.shape
    size = 1 << (max(height, width) - 1).bit_length()
    maps = fractal(n, size, decay, rng)[:, :height, :width, None]
    top = block.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    out = block + (255 * thickness) * maps
    out *= top / (top + 255 * thickness)
    return to_levels(out)


def frost(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """a x + b F, F a random crop of one of the textures (for grey images of its grey mean).

    Draws file, top and left of each image's crop.
    """
    image, ice = _FROST[severity - 1]
    n, height, width, channels = block.shape
    draws = rng.random((n, 3))
    file = _FILES[(len(_FILES) * draws[:, 0]).astype(int)]
    top, left = (_TEXTURE_SIZE * draws[:, 1:].T).astype(int)
    rows = (top[:, None] + np.arange(height)) % _TEXTURE_SIZE
    columns = (left[:, None] + np.arange(width)) % _TEXTURE_SIZE
    out = textures(channels)[file[:, None, None], rows[:, :, None], columns[:, None, :]]
    out *= np.float32(ice)
    out += np.float32(image) * block
    return to_levels(out)


@cache
def textures(channels: int) -> Values:
    """Return 4 textures of frost [4, S, S, channels], in levels; their edges match, so crops may wrap around."""
    maps = fractal(len(_PHOTOGRAPHS), _TEXTURE_SIZE, _TEXTURE_DECAY, np.random.default_rng(_TEXTURE_SEED))
    maps -= maps.mean(axis=(1, 2), keepdims=True)
    maps /= maps.std(axis=(1, 2), keepdims=True)
    colour = np.array([mean for mean, _ in _PHOTOGRAPHS], np.float32)[:, None, None]
    spread = np.array([sd for _, sd in _PHOTOGRAPHS], np.float32)[:, None, None]
    out = np.clip(colour + (spread * maps)[..., None], 0, 255)
    return out if channels == 3 else out.mean(axis=-1, keepdims=True)


def fractal(n: int, size: int, decay: float, rng: np.random.Generator) -> Values:
    """Draw random maps [n, size, size] in [0, 1] by the diamond-square rule on a torus; size is a power of two.

    Each step halves the grid spacing. A new point is the mean of its four neighbours (first the points in the middle of
    four old points, then those between two old and two new ones) plus w U(-w, w); w starts at 100 and is divided by
    `decay` at each halving. Each map's draws are consecutive: per halving the middle, the right and the lower points.
    """
    draws = 2 * rng.random((n, size * size - 1), np.float32) - 1
    maps = np.zeros((n, 1, 1), np.float32)
    swing = np.float32(100**2)
    while (k := maps.shape[1]) < size:
        middle, right, below = swing * draws[:, : 3 * k * k].reshape(n, 3, k, k).swapaxes(0, 1)
        draws = draws[:, 3 * k * k :]
        beside, under = np.roll(maps, -1, axis=2), np.roll(maps, -1, axis=1)
        middle += (maps + beside + under + np.roll(beside, -1, axis=1)) / 4
        right += (maps + beside + middle + np.roll(middle, 1, axis=1)) / 4
        below += (maps + under + middle + np.roll(middle, 1, axis=2)) / 4
        finer = np.empty((n, 2 * k, 2 * k), np.float32)
        finer[:, ::2, ::2], finer[:, 1::2, 1::2] = maps, middle
        finer[:, ::2, 1::2], finer[:, 1::2, ::2] = right, below
        maps, swing = finer, np.float32(swing / decay**2)
    maps -= maps.min(axis=(1, 2), keepdims=True)
    maps /= maps.max(axis=(1, 2), keepdims=True)
    return maps


#: By severity: value added to the HSV value in [0, 1].
_LIGHTER = (0.05, 0.1, 0.15, 0.2, 0.3)
#: Factor for the distance to the mean.
_FLATTER = (0.75, 0.5, 0.4, 0.3, 0.15)
_QUALITY = (80, 65, 58, 50, 40)


def brightness(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Add c to the HSV value, at most 1, with constant hue and saturation; for grey images to the pixel itself."""
    value = block.max(axis=-1, keepdims=True)
    out: Images = _lighter(_LIGHTER[severity - 1]).take(value * np.int32(256) + block)
    return out


@cache
def _lighter(c: float) -> Images:
    """[65536]: at 256 v + x, the new level of a channel x in a pixel whose largest channel is v.

    With constant hue and saturation, all channels are proportional to the value; black has no hue and becomes grey.
    """
    value, x = np.arange(256)[:, None], np.arange(256)
    lighter = np.minimum(value + 255 * c, 255)
    table = np.where(value > 0, x * lighter / np.maximum(value, 1), lighter)
    return to_levels(table.astype(np.float32)).ravel()


def contrast(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """(x - m) c + m, with m the mean of the image's channel."""
    c = _FLATTER[severity - 1]
    mean = block.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    out = np.float32(c) * block
    out += ((1 - c) * mean).astype(np.float32)
    return to_levels(out)


def jpeg(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Encode and decode each image by Pillow with its default subsampling; grey images in mode L."""
    from PIL import Image

    out = np.empty_like(block)
    for i, image in enumerate(block):
        buffer = io.BytesIO()
        picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
        picture.save(buffer, "JPEG", quality=_QUALITY[severity - 1])
        out[i] = np.asarray(Image.open(buffer)).reshape(image.shape)
    return out


#: In the order in which CIFAR-S assigns them to clients, at severities 1 to SEVERITIES.
_OF: dict[str, Callable[[Images, int, np.random.Generator], Images]] = {
    one.__name__: one
    for one in (
        motion_blur,
        defocus_blur,
        gaussian_noise,
        shot_noise,
        impulse_noise,
        frost,
        fog,
        jpeg,
        brightness,
        contrast,
    )
}
CORRUPTIONS = tuple(_OF)
SEVERITIES = 5
#: Minimum number of rows and columns of an image.
SMALLEST = 8

#: Values of the images corrupted at once: enough to be fast, few enough to stay in the processor's cache. The random
#: streams depend on it.
_BLOCK = 2**18


def corrupt(images: Images, name: str, severity: int, rng: np.random.Generator, threads: int | None = None) -> Images:
    """Apply corruption `name` of CORRUPTIONS at `severity` 1..5 to images [N, H, W, 1 or 3]. Returns a new array.

    The same state of `rng` gives the same images for any number of `threads` (None: one per core). The draws of an
    image depend on its place in the stack and not on later images, so the first k images of a stack come out as they
    would without the others. Each call advances `rng` by the same few draws.

    Raises FedbenchError for an unknown name, another severity, other arrays and images of fewer than 8 rows or columns.
    """
    check_name(name, severity)
    check(images, f"corruption {name}")
    n, height, width, channels = images.shape
    require(min(height, width) >= SMALLEST, f"corruptions need images of 8x8 pixels at least, not {height}x{width}")
    seed = rng.integers(2**32, size=4).tolist()
    size = max(1, _BLOCK // (height * width * channels))
    out = np.empty(images.shape, np.uint8)

    def one(start: int) -> None:
        block = images[start : start + size]
        out[start : start + size] = _OF[name](block, severity, np.random.default_rng([*seed, start // size]))

    starts = range(0, n, size)
    if threads == 1 or len(starts) < 2:
        for start in starts:
            one(start)
    else:
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            list(pool.map(one, starts))
    return out


def check_name(name: str, severity: int) -> None:
    """Raise FedbenchError unless the corruption and the severity exist."""
    check_known("corruption", name, CORRUPTIONS)
    require(
        isinstance(severity, int | np.integer) and 1 <= severity <= SEVERITIES,
        f"the severity of a corruption is 1 to {SEVERITIES}, not {severity} (for {name})",
    )


def named(text: str) -> tuple[str, int]:
    """Parse a corruption in a spec, such as 'fog-3', as (name, severity). Raises FedbenchError for others."""
    name, _, severity = text.rpartition("-")
    if not name:
        raise FedbenchError(f"corruption '{text}' has no severity", f"for example {text}-3")
    check_known("corruption", name, CORRUPTIONS)
    if severity not in {str(s) for s in range(1, SEVERITIES + 1)}:
        raise FedbenchError(f"the severity of a corruption is 1 to {SEVERITIES}, not '{severity}' (in '{text}')")
    return name, int(severity)
