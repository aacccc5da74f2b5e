"""Fog and frost."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedbench.partitions.transforms.corruption.pixels import Images, Values, to_levels

#: By severity: thickness of the fog, and how much smoother its map becomes with each halving of the distance.
_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
#: Weights of the image and of the frost.
_FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))

#: Mean colour and standard deviation, in levels, of the photographs of frost at a fifth of their size.
_PHOTOGRAPHS = (((78, 149, 166), 16), ((201, 205, 214), 18), ((138, 153, 165), 21), ((112, 123, 135), 35))
#: Two of the five files hold the same photograph.
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
    """a x + b F, F a random crop of one of the textures, their grey mean for grey images.

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
    """The 4 textures of frost [4, S, S, channels], in levels; their edges match, so that a crop may run over them."""
    maps = fractal(len(_PHOTOGRAPHS), _TEXTURE_SIZE, _TEXTURE_DECAY, np.random.default_rng(_TEXTURE_SEED))
    maps -= maps.mean(axis=(1, 2), keepdims=True)
    maps /= maps.std(axis=(1, 2), keepdims=True)
    colour = np.array([mean for mean, _ in _PHOTOGRAPHS], np.float32)[:, None, None]
    spread = np.array([sd for _, sd in _PHOTOGRAPHS], np.float32)[:, None, None]
    out = np.clip(colour + (spread * maps)[..., None], 0, 255)
    return out if channels == 3 else out.mean(axis=-1, keepdims=True)


def fractal(n: int, size: int, decay: float, rng: np.random.Generator) -> Values:
    """Random maps [n, size, size] in [0, 1] by the diamond-square rule on a torus; size is a power of two.

    The grid is refined by halves. A new point is the mean of its four neighbours (first those in the middle of four
    old points, then those between two old and two new ones) and w U(-w, w); w starts at 100 and is divided by `decay`
    at each halving. A map's draws stand together: per halving the middles, those to the right, and those below.
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
