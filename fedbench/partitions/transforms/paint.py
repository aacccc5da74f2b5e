"""Grey images in colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

COLOURS = ("red", "green")


def paint(grey: NDArray[np.uint8], colour: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Grey images [N, H, W, 1] as [N, H, W, 3]: each in the channel of its colour [N], the other two channels dark."""
    out = np.zeros((*grey.shape[:3], 3), np.uint8)
    for channel in range(len(COLOURS)):
        chosen = colour == channel
        out[chosen, :, :, channel] = grey[chosen, :, :, 0]
    return out
