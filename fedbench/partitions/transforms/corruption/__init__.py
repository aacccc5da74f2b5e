"""The ten corruptions of CIFAR10-S and CIFAR100-S (pFedFDA, section 5.1), on whole stacks of images.

Rules and constants are those of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019), meant for images of
32x32. Nothing scales with the size of an image: on larger ones the same constants are a milder blur, and the fog has
larger banks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedbench.errors import FedbenchError, unknown
from fedbench.partitions.transforms.corruption import blur, digital, noise, weather
from fedbench.partitions.transforms.corruption.pixels import Images, check
from fedbench.specs import require

__all__ = ["CORRUPTIONS", "SEVERITIES", "SMALLEST", "check_name", "corrupt", "named"]

#: In the order in which CIFAR-S deals them out, at severities 1 to SEVERITIES.
CORRUPTIONS = (
    "motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise",
    "frost", "fog", "jpeg", "brightness", "contrast",
)  # fmt: skip
SEVERITIES = 5
#: Rows and columns that an image needs at least.
SMALLEST = 8

#: Values of the images corrupted at once: enough to be fast, few enough to stay in the processor's cache. The random
#: streams hang on it.
_BLOCK = 2**18

_OF: dict[str, Callable[[Images, int, np.random.Generator], Images]] = {
    "motion_blur": blur.motion_blur,
    "defocus_blur": blur.defocus_blur,
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "frost": weather.frost,
    "fog": weather.fog,
    "jpeg": digital.jpeg,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
}


def corrupt(images: Images, name: str, severity: int, rng: np.random.Generator, threads: int | None = None) -> Images:
    """The images [N, H, W, 1 or 3] under corruption `name` of CORRUPTIONS at `severity` 1..5. Always a new array.

    The same state of `rng` gives the same images, whatever the number of `threads` (None: one a core). Each image is
    corrupted by draws of its own, that depend on its place in the stack and not on what follows: the first k images
    of a stack come out as they would alone. `rng` moves on by the same few draws at each call.

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
    """Raise FedbenchError unless there is such a corruption, and at such a severity."""
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    require(
        isinstance(severity, int | np.integer) and 1 <= severity <= SEVERITIES,
        f"the severity of a corruption is 1 to {SEVERITIES}, not {severity} (for {name})",
    )


def named(text: str) -> tuple[str, int]:
    """(name, severity) of a corruption as a spec writes it, such as 'fog-3'. Raises FedbenchError for others."""
    name, _, severity = text.rpartition("-")
    if not name:
        raise FedbenchError(f"corruption '{text}' has no severity", f"for example {text}-3")
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    if severity not in {str(s) for s in range(1, SEVERITIES + 1)}:
        raise FedbenchError(f"the severity of a corruption is 1 to {SEVERITIES}, not '{severity}' (in '{text}')")
    return name, int(severity)
