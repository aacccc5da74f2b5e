"""Padding, cutting and flipping, against NumPy one image at a time."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.augment import padded_flip


@given(st.data(), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 3]), st.integers(0, 4))
def test_padded_flip_is_numpys(data: st.DataObject, n: int, h: int, w: int, channels: int, padding: int) -> None:
    images = np.random.default_rng(n).integers(0, 256, (n, h, w, channels), dtype=np.uint8)
    offset = st.integers(0, 2 * padding)
    places = np.array([(data.draw(offset), data.draw(offset), data.draw(st.booleans()), 0) for _ in range(n)])
    got = padded_flip(torch.from_numpy(images), torch.from_numpy(places.astype(np.int64)), padding)
    assert got.dtype == torch.uint8
    for i, (top, left, flip, _) in enumerate(places):
        padded = np.pad(images[i], ((padding, padding), (padding, padding), (0, 0)))
        cut = padded[top : top + h, left : left + w]
        np.testing.assert_array_equal(got[i].numpy(), cut[:, ::-1] if flip else cut)
