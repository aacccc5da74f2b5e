"""What a run keeps, as tables."""

from __future__ import annotations

import torch

from fedbench.core import tables


def test_descriptors_are_a_line_each() -> None:
    table = tables.descriptors(torch.tensor([4, 1]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert table.to_pylist() == [
        {"client": 4, "descriptor": [1.0, 2.0, 3.0]},
        {"client": 1, "descriptor": [4.0, 5.0, 6.0]},
    ]
