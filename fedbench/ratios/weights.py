"""Per-sample weights from ratios, and the check that nothing silent gets into training."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbench.errors import FedbenchError
from fedbench.ratios.exact import Floats


def weights_of(strata: npt.ArrayLike, ratios: npt.ArrayLike, client: int) -> Floats:
    """The weights [n] of a client's training samples from the number of their stratum [n] and the ratios [S].

    Raises FedbenchError for a stratum that does not exist, for one whose ratio is not defined (its training density
    is 0, and yet there is a sample of it), and as `check_weights` does.
    """
    numbers, table = np.asarray(strata, np.int64), np.asarray(ratios, np.float64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(table)):
        wrong = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise FedbenchError(
            f"client {client} has a training sample of stratum {wrong}", f"there are {len(table)} ratios"
        )
    weights = table[numbers]
    undefined = np.unique(numbers[np.isnan(weights)])
    if len(undefined):
        raise FedbenchError(
            f"client {client} has training samples of stratum {undefined[0]}, whose training density is declared 0",
            "declare the densities that the training set was drawn from",
        )
    check_weights(weights, client)
    return weights


def check_weights(weights: npt.ArrayLike, client: int) -> None:
    """Raise FedbenchError if a client's sample weights [n] hold a negative, NaN or infinite one, or are all 0."""
    values = np.asarray(weights, np.float64)
    for wrong, what in (
        (np.isnan(values), "NaN"),
        (np.isinf(values), "infinite"),
        (values < 0, "negative"),
    ):
        if wrong.any():
            at = int(wrong.argmax())
            raise FedbenchError(
                f"client {client} has {int(wrong.sum())} {what} sample weights, the first at position {at}",
                "check its densities or its ratio network",
            )
    if not values.any():
        raise FedbenchError(
            f"client {client} has no training sample of positive weight", "its data say nothing about the test data"
        )
