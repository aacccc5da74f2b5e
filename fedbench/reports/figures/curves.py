"""The numbers of Figures 2 and 3 of FTW-ERM: from images to spectra, and what they say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.theory.ftw_erm.spectrum import LARGEST_BOUND, LEAST_BOUND, Comparison, Spectrum, compare, spectrum

#: λ of the bound on s_i, in squared pixels of [0, 1]; the paper names none.
RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class Curve:
    """One client's training and test spectra."""

    client: int  #: as printed
    train: Spectrum
    test: Spectrum
    ridge: float = RIDGE

    @cached_property
    def comparison(self) -> Comparison:
        return compare(self.train, self.test, self.ridge)


def curves(images: Mapping[tuple[int, str], NDArray[np.uint8]], ridge: float = RIDGE) -> list[Curve]:
    """The curves of all clients, by client.

    Arguments:
        images: (client, "train" or "test") -> images [n, ...], uint8 or floats in [0, 1].
        ridge: λ > 0 of the bound on s_i (`fedbench.theory.ftw_erm.compare`).

    Raises FedbenchError if a client lacks one side, or its sides differ in size of the image.
    """
    out = []
    for client in sorted({client for client, _ in images}):
        sides = [images.get((client, side)) for side in ("train", "test")]
        if any(side is None or not len(side) for side in sides):
            raise FedbenchError(f"client {client} lacks training or test images", "both spectra are compared")
        train, test = (spectrum(side) for side in sides if side is not None)
        curve = Curve(client, train, test, ridge)
        _ = curve.comparison  # bad input shows here, not when drawing
        out.append(curve)
    return out


def findings(curve: Curve) -> dict[str, Any]:
    """What one client's spectra say: s_i normalised by n, and shares of the ranks up to the smaller numerical rank."""
    c = curve.comparison
    return {
        "client": curve.client,
        "n_train": curve.train.n,
        "n_test": curve.test.n,
        "rank_train": curve.train.rank,
        "rank_test": curve.test.rank,
        "largest_raw": float(c.raw.max()) if c.rank else None,
        "largest": c.largest if c.rank else None,
        "below_1": c.share_below(LEAST_BOUND) if c.rank else None,
        "below_bound": c.share_below(c.bound) if c.rank else None,
        "below_1.618": c.share_below(LARGEST_BOUND) if c.rank else None,
    }
