"""The shifts by name: which client sees its images through which transform."""

from __future__ import annotations

from fedbench.errors import unknown
from fedbench.partitions.transforms.corruption import CORRUPTIONS, SEVERITIES
from fedbench.partitions.transforms.transform import Transform
from fedbench.specs import require

SHIFTS = ("none", "low", "mid", "high", "pool", "corrupted", "corrupted_code")
#: Gamma, hue and saturation of the two sides of each level; bits 0, 1 and 2 of the client's number choose the side.
_LEVELS = {
    "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
    "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
    "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
#: The pool of FedDRM's study of the number of clients (Table 3): digits to base 3 of the client's number choose.
_POOL = ((0.6, 1.0, 1.4), (-0.15, 0.0, 0.15), (0.4, 1.0, 1.6))
_POOL_SIZE, _POOL_BITS = 54, 2


def of_clients(shift: str, clients: int) -> list[Transform]:
    """The transform of each client under a shift of SHIFTS.

    low, mid and high have 8 combinations; client c sees number c mod 8. The pool has 54, one a client; more clients
    raise FedbenchError.

    corrupted and corrupted_code corrupt the images of the first half of the clients, in the order of CORRUPTIONS.
    corrupted, the paper's rule, goes through the severities once all corruptions have had their turn: client i < 50
    has a pair of its own. corrupted_code is what the official code does: the severity changes with each client, so
    that a corruption only ever meets one of them, and there are 10 pairs.
    """
    if shift not in SHIFTS:
        raise unknown("shift", shift, SHIFTS)
    if shift == "none":
        return [Transform()] * clients
    if shift == "pool":
        require(
            clients <= _POOL_SIZE,
            f"the pool has {_POOL_SIZE} shifts, too few for {clients} clients",
            "fewer clients, or --shift low, mid or high, whose 8 shifts are dealt out in turn",
        )
        return [
            Transform(
                gamma=_POOL[0][c % 3],
                hue=_POOL[1][c // 3 % 3],
                saturation=_POOL[2][c // 9 % 3],
                posterize=_POOL_BITS if c >= 27 else None,
            )
            for c in range(clients)
        ]
    if shift in ("corrupted", "corrupted_code"):
        kinds, every = len(CORRUPTIONS), 1 if shift == "corrupted_code" else len(CORRUPTIONS)
        half = clients // 2
        corrupted = [
            Transform(corruption=CORRUPTIONS[c % kinds], severity=1 + c // every % SEVERITIES) for c in range(half)
        ]
        return corrupted + [Transform()] * (clients - half)
    gamma, hue, saturation = _LEVELS[shift]
    return [Transform(gamma[c & 1], hue[c >> 1 & 1], saturation[c >> 2 & 1]) for c in range(clients)]
