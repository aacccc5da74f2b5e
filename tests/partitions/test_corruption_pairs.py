"""Which client of a corrupted federation sees its images under which corruption, written out in full.

A partition's identity holds the name of the rule ("corrupted"), not the pairs that come out of it. So whoever changes
anything that this file writes out must raise `version` of PartitionSpec: the same id would stand for other images.
"""

from __future__ import annotations

import pytest

from fedbench.partitions.transforms import CORRUPTIONS, SEVERITIES, Transform, of_clients

# Do not bring these literals up to date after a change of the code without raising PartitionSpec.version.
NAMES = (
    "motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise",
    "frost", "fog", "jpeg", "brightness", "contrast",
)  # fmt: skip
PAPER = [
    ("motion_blur", 1), ("defocus_blur", 1), ("gaussian_noise", 1), ("shot_noise", 1), ("impulse_noise", 1),
    ("frost", 1), ("fog", 1), ("jpeg", 1), ("brightness", 1), ("contrast", 1),
    ("motion_blur", 2), ("defocus_blur", 2), ("gaussian_noise", 2), ("shot_noise", 2), ("impulse_noise", 2),
    ("frost", 2), ("fog", 2), ("jpeg", 2), ("brightness", 2), ("contrast", 2),
    ("motion_blur", 3), ("defocus_blur", 3), ("gaussian_noise", 3), ("shot_noise", 3), ("impulse_noise", 3),
    ("frost", 3), ("fog", 3), ("jpeg", 3), ("brightness", 3), ("contrast", 3),
    ("motion_blur", 4), ("defocus_blur", 4), ("gaussian_noise", 4), ("shot_noise", 4), ("impulse_noise", 4),
    ("frost", 4), ("fog", 4), ("jpeg", 4), ("brightness", 4), ("contrast", 4),
    ("motion_blur", 5), ("defocus_blur", 5), ("gaussian_noise", 5), ("shot_noise", 5), ("impulse_noise", 5),
    ("frost", 5), ("fog", 5), ("jpeg", 5), ("brightness", 5), ("contrast", 5),
]  # fmt: skip
CODE = [
    ("motion_blur", 1), ("defocus_blur", 2), ("gaussian_noise", 3), ("shot_noise", 4), ("impulse_noise", 5),
    ("frost", 1), ("fog", 2), ("jpeg", 3), ("brightness", 4), ("contrast", 5),
]  # fmt: skip


def test_the_order_of_the_corruptions() -> None:
    """Catches a corruption that is renamed, moved, added or dropped: others then meet other clients."""
    assert CORRUPTIONS == NAMES
    assert SEVERITIES == 5


@pytest.mark.parametrize(("level", "pairs"), [("corrupted", PAPER), ("corrupted_code", CODE * 5)])
def test_the_pairs_of_a_hundred_clients(level: str, pairs: list[tuple[str, int]]) -> None:
    """Catches severities that run faster or slower than the corruptions, or from 0; the wrong half of the clients; and
    the two rules swapped."""
    of = of_clients(level, 100)
    assert len(of) == 100
    assert of == [Transform(corruption=name, severity=severity) for name, severity in pairs] + [Transform()] * 50
