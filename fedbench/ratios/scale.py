"""The two scales of a client's ratio: the sum over the clients' test densities, or their mean."""

from __future__ import annotations

from fedbench.errors import FedbenchError, unknown

SCALES = ("mean", "sum")


def factor(scale: str, clients: int) -> int:
    """By what a ratio against the pool's density is multiplied: 1 ("mean") or the number of clients ("sum").

    Raises FedbenchError for another scale and for less than one client.
    """
    if scale not in SCALES:
        raise unknown("scale of ratios", scale, SCALES)
    if clients < 1:
        raise FedbenchError(f"ratios need at least one client, not {clients}")
    return clients if scale == "sum" else 1
