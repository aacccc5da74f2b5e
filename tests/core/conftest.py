"""One intra-op thread (small tensors on a busy machine are many times slower with more); no deadlines an example."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
