"""Noise on every value of an image, channels independent."""

from __future__ import annotations

import numpy as np

from fedbench.partitions.transforms.corruption.pixels import Images, to_levels

#: By severity: standard deviation of values in [0, 1].
_SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)
#: Events that a value of 1 stands for.
_EVENTS = (500, 250, 100, 75, 50)
#: Share of values replaced, half of them by 0 and half by 1.
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
