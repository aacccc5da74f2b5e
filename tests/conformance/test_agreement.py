"""What two executors may differ by: tensor for tensor of the network, model for model of what stands beside it."""

from __future__ import annotations

import pytest
import torch

from fedbench.conformance.agreement import TOLERANCE, gaps

SMALL, ROUNDING = 5e-5, 2e-7


@pytest.mark.parametrize(
    ("place", "agree"),
    [
        ("shared", False), ("memory", False), ("personal/3", False), ("model/0", False),
        ("shared/control", True), ("memory/h", True), ("personal/3/own", True), ("model/0/control", True),
    ],
)  # fmt: skip
def test_rounding_of_a_small_tensor_counts_by_its_model(place: str, agree: bool) -> None:
    large, small = f"{place}/head.weight", f"{place}/backbone.conv.bias"
    reference = {large: torch.tensor([0.5, -2.0]), small: torch.tensor([SMALL])}
    ours = {**reference, small: reference[small] + ROUNDING}
    assert (gaps(ours, reference)[small] <= TOLERANCE) is agree
    assert gaps({**reference, small: reference[small] + 1e-3}, reference)[small] > TOLERANCE
    assert gaps({**reference, large: reference[large] + 1e-3}, reference)[large] > TOLERANCE


def test_running_statistics_count_for_themselves() -> None:
    counter, bias = "personal/3/own/norm.num_batches_tracked", "personal/3/own/head.bias"
    reference = {counter: torch.tensor(5000), bias: torch.tensor([SMALL])}
    assert gaps({**reference, bias: reference[bias] + ROUNDING}, reference)[bias] > TOLERANCE
    assert gaps({**reference, counter: torch.tensor(5001)}, reference)[counter] > TOLERANCE
