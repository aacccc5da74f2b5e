"""What a captured step may do on a GPU, as far as a CPU can tell: during a capture nothing may wait for the device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.conformance.small import small
from fedbench.core.client import Trained
from fedbench.core.executors import Graphed
from fedbench.core.graph import GraphedWorker
from fedbench.core.stack import Step
from tests.support.cases import ALL, label
from tests.support.lab import federation, finish, method, setting, trainer

#: Operators that look at a tensor's values on the host, or bring new ones from there; CUDA forbids both in a capture.
WAITING = {
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "unique_consecutive", "_unique2", "lift_fresh",
    "equal", "is_nonzero", "pin_memory", "bincount", "repeat_interleave",
}  # fmt: skip
BY_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class NothingWaits(TorchDispatchMode):
    """Fails where an operator would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = [i for i in args[1] if i is not None and i.dtype == torch.bool] if name in BY_INDICES else []
        assert name not in WAITING, f"{name} waits for the device"
        assert not masks, f"{name} by a mask waits for the device"
        return func(*args, **(kwargs or {}))


class Watched(GraphedWorker):
    """Every captured step under that eye."""

    requests = steps = 0

    def train_stack(self, *values: Any) -> list[Trained]:
        Watched.requests += 1
        return super().train_stack(*values)

    def masked_step(self, *values: Any) -> Step:
        Watched.steps += 1
        with NothingWaits():
            return super().masked_step(*values)


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4.0)
    for waiting in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor(1.0), x.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), NothingWaits():
            waiting()
    with NothingWaits():
        x[torch.arange(2)].sum().mul_(2.0).where(x > 1, x)


@pytest.mark.parametrize(("name", "chosen"), ALL, ids=label)
def test_nothing_waits_in_a_captured_step(
    name: str, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any method: its losses and rules, the optimiser, crops, running statistics."""
    monkeypatch.setattr(Graphed, "kind", Watched)
    monkeypatch.setattr(Watched, "requests", 0)
    monkeypatch.setattr(Watched, "steps", 0)
    how, data = method(name, **chosen), federation((50, 50, 50, 50), groups=(0, 1, 0, 1), validation=0.2, color=True)
    s = setting(rounds=2, epochs=None, steps=2, batch_size=8, augment="crop", test_phase=True)
    finish(trainer(how, data, tmp_path, s, executor="graphed", network=partial(small, 3, True)))
    assert bool(Watched.steps) == bool(Watched.requests)  # who asks for single gradients has no captured steps
