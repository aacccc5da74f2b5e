"""Image transforms of clients, for training and test images alike: colour steps, a corruption, or both.

Colour steps (FedDRM, section 5.2) repeat the arithmetic of torchvision 0.19 on Pillow images, with 8-bit rounding
between the steps. A corruption (pFedFDA, section 5.1) draws its noise once for all epochs. A mean and a standard
deviation change no pixel: the trainer normalises the network's input by them (FedDRM's centres of RETINA).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError, check_known
from fedbench.partitions.transforms.corruption import CORRUPTIONS, SEVERITIES, Images, check, check_name, corrupt
from fedbench.specs import require

PAINTS = ("red", "green")


def paint(grey: NDArray[np.uint8], colour: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Turn grey images [N, H, W, 1] into [N, H, W, 3]: each in the channel of its colour [N], other channels black."""
    out = np.zeros((*grey.shape[:3], 3), np.uint8)
    for channel in range(len(PAINTS)):
        chosen = colour == channel
        out[chosen, :, :, channel] = grey[chosen, :, :, 0]
    return out


#: Seed of the random streams of all corruptions.
_SEED = 5

#: Images processed at once: enough to be fast, few enough to stay in the processor's cache.
_BLOCK = 2048


@dataclass(frozen=True)
class Transform:
    """Colour steps, then a corruption at a severity, then a normalisation; a step that is None is skipped.

    A hue of 0.0 differs from None: conversion to 8-bit HSV and back changes colours by a few levels, and the clients
    of the pool with hue 0.0 do go through it.
    """

    gamma: float | None = None  #: exponent of brightness: below 1 is lighter, above 1 darker
    hue: float | None = None  #: turn of the colour circle, in whole turns (-0.5 .. 0.5)
    saturation: float | None = None  #: 0 is grey, 1 leaves the colours, above 1 is more colourful
    posterize: int | None = None  #: bits that are left of each 8-bit value
    corruption: str | None = None  #: one of CORRUPTIONS
    severity: int | None = None  #: 1 to SEVERITIES
    #: For each channel of pixels in 0..1; None is 0.5 for all channels, which maps pixels to [-1, 1].
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check_normalisation()
        require(self.gamma is None or self.gamma > 0, f"gamma must be above 0, not {self.gamma}")
        require(self.hue is None or -0.5 <= self.hue <= 0.5, f"hue must lie in -0.5..0.5, not {self.hue}")
        require(self.saturation is None or self.saturation >= 0, f"saturation cannot be negative: {self.saturation}")
        require(
            self.posterize is None or 1 <= self.posterize <= 8, f"posterize keeps 1 to 8 bits, not {self.posterize}"
        )
        if self.corruption is None:
            require(self.severity is None, f"severity {self.severity} of which corruption?")
            return
        if self.severity is None:
            raise FedbenchError(f"corruption {self.corruption} has no severity", f"1 to {SEVERITIES}")
        check_name(self.corruption, self.severity)

    def _check_normalisation(self) -> None:
        for name in ("mean", "std"):
            if getattr(self, name) is not None:  # stored tables hold lists
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        mean, std = self.mean or (), self.std or ()
        require(len(mean) == len(std), f"a mean of {len(mean)} channels and a standard deviation of {len(std)}")
        require(all(0 < value < math.inf for value in std), f"a standard deviation must be above 0, not {list(std)}")
        require(all(map(math.isfinite, mean)), f"a mean must be a number, not {list(mean)}")

    @property
    def alters(self) -> bool:
        """Whether the transform changes pixels."""
        return replace(self, mean=None, std=None) != Transform()

    def __or__(self, other: Transform) -> Transform:
        """Combine both transforms; if both have a step, that of `other` counts."""
        own = {f.name: getattr(other, f.name) for f in fields(other) if getattr(other, f.name) is not None}
        return replace(self, **own)

    def on_grey(self) -> Transform:
        """Return the transform for images of one channel, which have neither hue nor saturation."""
        return replace(self, hue=None, saturation=None)

    def __str__(self) -> str:
        parts = [f"gamma {self.gamma:g}"] if self.gamma is not None else []
        parts += [f"hue {self.hue:+g}"] if self.hue is not None else []
        parts += [f"saturation {self.saturation:g}"] if self.saturation is not None else []
        parts += [f"{self.posterize} bits"] if self.posterize is not None else []
        parts += [f"{self.corruption} {self.severity}"] if self.corruption is not None else []
        if self.mean is not None and self.std is not None:
            parts += [f"normalised by {' '.join(f'{m:g}±{s:g}' for m, s in zip(self.mean, self.std, strict=True))}"]
        return ", ".join(parts) or "none"


def apply(images: Images, transform: Transform, key: int = 0) -> Images:
    """Apply saturation, then hue, gamma, posterize and the corruption to images [N, H, W, 3 or 1].

    Saturation and hue leave images of one channel unchanged. A corruption uses a random stream that depends on its
    name, its severity and `key`, and draws image by image: the first k images of a stack do not depend on the others.
    It uses one thread, because callers process many clients in parallel. Always returns a new array.
    """
    check(images, "a transform")
    out = _steps(images, transform)
    if transform.corruption is None or transform.severity is None:
        return out
    stream = np.random.SeedSequence([_SEED, crc32(transform.corruption.encode()), transform.severity, key])
    return corrupt(out, transform.corruption, transform.severity, np.random.default_rng(stream), threads=1)


def _steps(images: Images, transform: Transform) -> Images:
    """Apply the colour steps; if there are none but a corruption follows, return the images themselves."""
    steps = (transform.gamma, transform.hue, transform.saturation, transform.posterize)
    if steps == (None,) * 4 and transform.corruption is not None:
        return images
    curve = _curve(transform)
    coloured = images.shape[-1] == 3 and images.size
    if not coloured or (transform.saturation is None and transform.hue is None):
        return curve[images]
    out = np.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        out[start : start + _BLOCK] = curve[_recolour(block, transform)]
    return out


def _recolour(block: Images, transform: Transform) -> Images:
    """Change saturation and hue of RGB images, stacked into one tall picture."""
    from PIL import Image, ImageEnhance

    n, height, width, _ = block.shape
    picture = Image.fromarray(np.ascontiguousarray(block).reshape(n * height, width, 3))
    if transform.saturation is not None:
        picture = ImageEnhance.Color(picture).enhance(transform.saturation)
    if transform.hue is not None:
        turn = int(transform.hue * 255)  # rounds towards zero; modulo 256 below, where torchvision 0.19 uses a C cast
        h, s, v = picture.convert("HSV").split()
        picture = Image.merge("HSV", (h.point([(i + turn) % 256 for i in range(256)]), s, v)).convert("RGB")
    return np.asarray(picture).reshape(block.shape)


def _curve(transform: Transform) -> Images:
    """Return gamma and posterize as one lookup table of 256 values."""
    values = np.arange(256)
    if transform.gamma is not None:
        values = np.floor(255.999 * (values / 255) ** transform.gamma).astype(np.int64)
    if transform.posterize is not None:
        values = values >> (8 - transform.posterize) << (8 - transform.posterize)
    return values.astype(np.uint8)


SHIFTS = ("none", "low", "mid", "high", "pool", "corrupted", "corrupted_code")
#: The two values of gamma, hue and saturation of each level; bits 0, 1 and 2 of the client's number select one.
_LEVELS = {
    "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
    "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
    "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
#: The pool of FedDRM's study of the number of clients (Table 3); base-3 digits of the client's number select values.
_POOL = ((0.6, 1.0, 1.4), (-0.15, 0.0, 0.15), (0.4, 1.0, 1.6))
_POOL_SIZE, _POOL_BITS = 54, 2


def of_clients(shift: str, clients: int) -> list[Transform]:
    """Return the transform of each client under a shift of SHIFTS.

    low, mid and high have 8 combinations; client c gets number c mod 8. The pool has 54, one per client; more clients
    raise FedbenchError.

    corrupted and corrupted_code corrupt the images of the first half of the clients, in the order of CORRUPTIONS.
    corrupted, the paper's rule, changes the severity after each cycle through all corruptions, so each client i < 50
    has a different pair. corrupted_code follows the official code: the severity changes with each client, so each
    corruption occurs at one severity only, and there are 10 pairs.
    """
    check_known("shift", shift, SHIFTS)
    if shift == "none":
        return [Transform()] * clients
    if shift == "pool":
        require(
            clients <= _POOL_SIZE,
            f"the pool has {_POOL_SIZE} shifts, too few for {clients} clients",
            "fewer clients, or --shift low, mid or high, whose 8 shifts clients get in turn",
        )
        return [
            Transform(
                gamma=_POOL[0][c % 3],
                hue=_POOL[1][c // 3 % 3],
                saturation=_POOL[2][c // 9 % 3],
                posterize=_POOL_BITS if c >= 27 else None,
            )
            for c in range(clients)
        ]
    if shift in ("corrupted", "corrupted_code"):
        kinds, every = len(CORRUPTIONS), 1 if shift == "corrupted_code" else len(CORRUPTIONS)
        half = clients // 2
        corrupted = [
            Transform(corruption=CORRUPTIONS[c % kinds], severity=1 + c // every % SEVERITIES) for c in range(half)
        ]
        return corrupted + [Transform()] * (clients - half)
    gamma, hue, saturation = _LEVELS[shift]
    return [Transform(gamma[c & 1], hue[c >> 1 & 1], saturation[c >> 2 & 1]) for c in range(clients)]
