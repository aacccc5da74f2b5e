"""What all corruptions share: the check of their input and the way back to 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError

Images = NDArray[np.uint8]
Values = NDArray[np.float32]

#: Added before truncation: what exact arithmetic makes a whole level must not fall to the one below by rounding.
_HAIR = np.float32(2**-12)


def check(images: Images, what: str) -> None:
    """Raise FedbenchError unless `images` are uint8 [N, H, W, 1 or 3]; `what` needs them."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise FedbenchError(f"{what} needs uint8 images [N, H, W, 1 or 3], not {images.dtype} {list(images.shape)}")


def to_levels(values: Values) -> Images:
    """Values in 0..255 clipped and cut to whole levels, as the official code casts. Overwrites `values`."""
    values += _HAIR
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)
