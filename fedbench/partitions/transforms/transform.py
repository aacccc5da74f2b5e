"""How a client sees its images, in both splits: through steps of colour, under a corruption, or both.

Colours (FedDRM, section 5.2): the arithmetic is that of torchvision 0.19 on Pillow images, with 8-bit rounding between
the steps. A corruption (pFedFDA, section 5.1) draws its noise once, and it stays. A mean and a standard deviation
change no pixel: the trainer normalises by them what the network gets (FedDRM's centres of RETINA).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from zlib import crc32

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.partitions.transforms.corruption import SEVERITIES, check_name, corrupt
from fedbench.partitions.transforms.corruption.pixels import Images, check
from fedbench.specs import require

#: Of the random streams of all corruptions.
_SEED = 5

#: Images treated at once: enough to be fast, few enough to stay in the processor's cache.
_BLOCK = 2048


@dataclass(frozen=True)
class Transform:
    """Steps of colour, behind them a corruption at a severity, and by what the result is normalised; what is None is
    not done at all.

    A hue of 0.0 is not the same as None: the way to 8-bit HSV and back moves colours by a few levels, and the
    clients of the pool whose hue is 0.0 do go that way.
    """

    gamma: float | None = None  #: exponent of brightness: below 1 is lighter, above 1 darker
    hue: float | None = None  #: turn of the colour circle, in whole turns (-0.5 .. 0.5)
    saturation: float | None = None  #: 0 is grey, 1 leaves the colours, above 1 is more colourful
    posterize: int | None = None  #: bits kept of each 8-bit value
    corruption: str | None = None  #: one of CORRUPTIONS
    severity: int | None = None  #: 1 to SEVERITIES
    #: Of each channel, of pixels in 0..1; None is 0.5 for all, which makes [-1, 1] of them.
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
        """Whether it changes pixels."""
        return replace(self, mean=None, std=None) != Transform()

    def __or__(self, other: Transform) -> Transform:
        """Both of them; where they have the same step, that of the other."""
        own = {f.name: getattr(other, f.name) for f in fields(other) if getattr(other, f.name) is not None}
        return replace(self, **own)

    def on_grey(self) -> Transform:
        """What is left of it on images of one channel, which have neither hue nor saturation."""
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
    """The images [N, H, W, 3 or 1] through saturation, then hue, gamma, posterize, and the corruption.

    On images of one channel saturation and hue do nothing. A corruption draws from a stream of its own for its name,
    its severity and `key`, image after image: the first k images of a stack come out as they would alone. It runs in
    one thread, as callers treat many clients at once. Always a new array.
    """
    check(images, "a transform")
    out = _steps(images, transform)
    if transform.corruption is None or transform.severity is None:
        return out
    stream = np.random.SeedSequence([_SEED, crc32(transform.corruption.encode()), transform.severity, key])
    return corrupt(out, transform.corruption, transform.severity, np.random.default_rng(stream), threads=1)


def _steps(images: Images, transform: Transform) -> Images:
    """The steps of colour; without any, under a corruption, the images themselves."""
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
    """Saturation and hue of RGB images, laid on one tall picture."""
    from PIL import Image, ImageEnhance

    n, height, width, _ = block.shape
    picture = Image.fromarray(np.ascontiguousarray(block).reshape(n * height, width, 3))
    if transform.saturation is not None:
        picture = ImageEnhance.Color(picture).enhance(transform.saturation)
    if transform.hue is not None:
        turn = int(transform.hue * 255)  # towards zero; then modulo 256, where torchvision 0.19 relies on a C cast
        h, s, v = picture.convert("HSV").split()
        picture = Image.merge("HSV", (h.point([(i + turn) % 256 for i in range(256)]), s, v)).convert("RGB")
    return np.asarray(picture).reshape(block.shape)


def _curve(transform: Transform) -> Images:
    """Gamma and posterize as one table of 256 values."""
    values = np.arange(256)
    if transform.gamma is not None:
        values = np.floor(255.999 * (values / 255) ** transform.gamma).astype(np.int64)
    if transform.posterize is not None:
        values = values >> (8 - transform.posterize) << (8 - transform.posterize)
    return values.astype(np.uint8)
