"""Blurs: a lens out of focus, a camera that moves."""

from __future__ import annotations

import math

import numpy as np

from fedbench.partitions.transforms.corruption.pixels import Images, to_levels

#: By severity: radius of the disk and standard deviation of the 3x3 Gaussian that smooths its edge.
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
#: Radius and standard deviation of the trace of a moving point.
_MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
#: A tap of less weight cannot be seen in 8 bits.
_LIGHTEST = 1e-7


def defocus_blur(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """A symmetric 3x3 kernel; at the border images are mirrored about their outermost pixel. Draws nothing."""
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
    """Weights of the pixel, of its 4 nearest and of its 4 diagonal neighbours.

    A disk of radius below 1 is one pixel, and smoothing makes it a Gaussian. The larger disks are smoothed with a
    sigma so small that nothing of it is left in 8 bits.
    """
    if radius < 1:
        side = math.exp(-0.5 / sigma**2)
        side, middle = side / (1 + 2 * side), 1 / (1 + 2 * side)
        return np.float32(middle * middle), np.float32(middle * side), np.float32(side * side)
    corner = radius**2 >= 2
    one = np.float32(1 / (5 + 4 * corner))
    return one, one, one * corner


def motion_blur(block: Images, severity: int, rng: np.random.Generator) -> Images:
    """Each pixel is a one-sided Gaussian mean along a line from it, at an angle of its image in -45..45 degrees.

    The border pixels go on outside. Draws one angle an image.
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
