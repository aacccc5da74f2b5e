"""Covariate shifts: how a client sees its images, on both sides of its split.

Either through colours (FedDRM, section 5.2): the arithmetic is that of torchvision 0.19 on Pillow images, with 8-bit
rounding between the steps. Or under a corruption (pFedFDA, section 5.1), whose noise is drawn once and stays.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from fedbench.errors import FedbenchError, unknown
from fedbench.partition.corruption import check_name, corrupt
from fedbench.partition.corruption.pixels import Images, check
from fedbench.specs import CORRUPTIONS, SEVERITIES, SHIFTS, require

#: Gamma, hue and saturation of the two sides of each level; bits 0, 1 and 2 of the client's number choose the side.
_LEVELS = {
    "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
    "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
    "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
#: The pool of FedDRM's study of the number of clients (Table 3): digits to base 3 of the client's number choose.
_POOL = ((0.6, 1.0, 1.4), (-0.15, 0.0, 0.15), (0.4, 1.0, 1.6))
_POOL_SIZE, _POOL_BITS = 54, 2

#: Of the random streams of all corruptions.
_SEED = 5

#: Images shifted at once: enough to be fast, few enough to stay in the processor's cache.
_BLOCK = 2048


@dataclass(frozen=True)
class Shift:
    """One covariate shift: a corruption at a severity, or steps of colour; one that is None is not done at all.

    A hue of 0.0 is not the same as None: the way to 8-bit HSV and back moves colours by a few levels, and the
    clients of the pool whose hue is 0.0 do go that way.
    """

    gamma: float | None = None  #: exponent of brightness: below 1 is lighter, above 1 darker
    hue: float | None = None  #: turn of the colour circle, in whole turns (-0.5 .. 0.5)
    saturation: float | None = None  #: 0 is grey, 1 leaves the colours, above 1 is more colourful
    posterize: int | None = None  #: bits kept of each 8-bit value
    corruption: str | None = None  #: one of CORRUPTIONS
    severity: int | None = None  #: 1 to SEVERITIES

    def __post_init__(self) -> None:
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
        steps = (self.gamma, self.hue, self.saturation, self.posterize)
        require(steps == (None,) * 4, f"corruption {self.corruption} cannot be joined with gamma, hue and the like")

    def on_grey(self) -> Shift:
        """What is left of the shift on images of one channel, which have neither hue nor saturation."""
        return replace(self, hue=None, saturation=None)

    def __str__(self) -> str:
        parts = [f"gamma {self.gamma:g}"] if self.gamma is not None else []
        parts += [f"hue {self.hue:+g}"] if self.hue is not None else []
        parts += [f"saturation {self.saturation:g}"] if self.saturation is not None else []
        parts += [f"{self.posterize} bits"] if self.posterize is not None else []
        parts += [f"{self.corruption} {self.severity}"] if self.corruption is not None else []
        return ", ".join(parts) or "none"


def shifts(level: str, clients: int) -> list[Shift]:
    """The shift of each client at a level of SHIFTS.

    low, mid and high have 8 combinations; client c sees number c mod 8. The pool has 54, one a client; more clients
    raise FedbenchError.

    corrupted and corrupted_code corrupt the images of the first half of the clients, in the order of CORRUPTIONS.
    corrupted, the paper's rule, goes through the severities once all corruptions have had their turn: client i < 50
    has a pair of its own. corrupted_code is what the official code does: the severity changes with each client, so
    that a corruption only ever meets one of them, and there are 10 pairs.
    """
    if level not in SHIFTS:
        raise unknown("shift", level, SHIFTS)
    if level == "none":
        return [Shift()] * clients
    if level == "pool":
        require(
            clients <= _POOL_SIZE,
            f"the pool has {_POOL_SIZE} shifts, too few for {clients} clients",
            "fewer clients, or --shift low, mid or high, whose 8 shifts are dealt out in turn",
        )
        return [
            Shift(
                gamma=_POOL[0][c % 3],
                hue=_POOL[1][c // 3 % 3],
                saturation=_POOL[2][c // 9 % 3],
                posterize=_POOL_BITS if c >= 27 else None,
            )
            for c in range(clients)
        ]
    if level in ("corrupted", "corrupted_code"):
        kinds, every = len(CORRUPTIONS), 1 if level == "corrupted_code" else len(CORRUPTIONS)
        half = clients // 2
        corrupted = [
            Shift(corruption=CORRUPTIONS[c % kinds], severity=1 + c // every % SEVERITIES) for c in range(half)
        ]
        return corrupted + [Shift()] * (clients - half)
    gamma, hue, saturation = _LEVELS[level]
    return [Shift(gamma[c & 1], hue[c >> 1 & 1], saturation[c >> 2 & 1]) for c in range(clients)]


def groups(of: Sequence[Hashable]) -> list[int]:
    """The true group of each client: those with equal shifts share a number, counted in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(shift, len(numbers)) for shift in of]


def apply(images: Images, shift: Shift, key: int = 0) -> Images:
    """The images [N, H, W, 3 or 1] seen through `shift`: saturation, then hue, then gamma, then posterize.

    On images of one channel saturation and hue do nothing. A corruption draws from a stream of its own for its name,
    its severity and `key`, image after image: the first k images of a stack come out as they would alone. It runs in
    one thread, as callers treat many clients at once. Always a new array.
    """
    check(images, "a shift")
    if shift.corruption is not None and shift.severity is not None:
        stream = np.random.SeedSequence([_SEED, crc32(shift.corruption.encode()), shift.severity, key])
        return corrupt(images, shift.corruption, shift.severity, np.random.default_rng(stream), threads=1)
    curve = _curve(shift)
    coloured = images.shape[-1] == 3 and images.size and (shift.saturation is not None or shift.hue is not None)
    if not coloured:
        return curve[images]
    out = np.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        out[start : start + _BLOCK] = curve[_recolour(block, shift)]
    return out


def _recolour(block: Images, shift: Shift) -> Images:
    """Saturation and hue of RGB images, laid on one tall picture."""
    from PIL import Image, ImageEnhance

    n, height, width, _ = block.shape
    picture = Image.fromarray(np.ascontiguousarray(block).reshape(n * height, width, 3))
    if shift.saturation is not None:
        picture = ImageEnhance.Color(picture).enhance(shift.saturation)
    if shift.hue is not None:
        turn = int(shift.hue * 255)  # towards zero; then modulo 256, where torchvision 0.19 relies on a C cast
        h, s, v = picture.convert("HSV").split()
        picture = Image.merge("HSV", (h.point([(i + turn) % 256 for i in range(256)]), s, v)).convert("RGB")
    return np.asarray(picture).reshape(block.shape)


def _curve(shift: Shift) -> Images:
    """Gamma and posterize as one table of 256 values."""
    values = np.arange(256)
    if shift.gamma is not None:
        values = np.floor(255.999 * (values / 255) ** shift.gamma).astype(np.int64)
    if shift.posterize is not None:
        values = values >> (8 - shift.posterize) << (8 - shift.posterize)
    return values.astype(np.uint8)
