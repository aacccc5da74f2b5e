"""Norms of a stack of clients compute what each does alone, in short numbers too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.conformance.lab import finish
from fedbench.conformance.small import small
from fedbench.core.network import twin, with_clients_among_channels, with_norms_for_vmap
from fedbench.core.precision import autocast
from fedbench.core.state import state_of
from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel
from tests.support.lab import federation, method, setting, trainer


class Flat(FLModel):
    """A network whose last batch norm sees one value a channel of each image."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4)]
        super().__init__(nn.Sequential(*layers), nn.Identity(), nn.Linear(4, 10), backbone_size=4)


@pytest.mark.parametrize(
    ("sizes", "batch", "who", "way_out"),
    [
        ((30, 47), 16, "client 1, of 33 training images in batches of 16,", "--batch-size 17"),
        ((30, 47), 1, "client 0, of 21 training images in batches of 1,", "--batch-size 3"),
        ((30, 1), 16, "client 1, of 1 training image in batches of 16,", "a partition of larger clients"),
        ((30, 47), 17, "", ""),
    ],
)
def test_a_batch_of_a_single_image_is_refused_before_training(
    tmp_path: Path, sizes: tuple[int, ...], batch: int, who: str, way_out: str
) -> None:
    data, s = federation(sizes), setting(rounds=1, window=1, batch_size=batch)
    if who:
        with pytest.raises(FedbenchError) as caught:
            trainer(method("fedavg"), data, tmp_path, s, network=Flat)
        told = "has a batch of a single image, of which the network's batch norm finds no variance"
        assert str(caught.value) == f"{who} {told}; choose {way_out}, or a network without it"
    else:
        assert finish(trainer(method("fedavg"), data, tmp_path, s, network=Flat)).tensors


def test_a_batch_norm_over_many_pixels_takes_a_single_image(tmp_path: Path) -> None:
    s, network = setting(rounds=1, window=1, batch_size=16), partial(small, norm=True)
    assert finish(trainer(method("fedavg"), federation((30, 47)), tmp_path, s, network=network)).tensors


CPU = torch.device("cpu")


def net(seed: int, kind: str = "batch") -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norms = nn.BatchNorm2d(3), nn.BatchNorm1d(5)
        if kind == "group":
            norms = nn.GroupNorm(3, 3), nn.GroupNorm(1, 5)
        # Autocast reaches a product without a bias under vmap, and none with one.
        head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(48, 5, bias=False))
        return nn.Sequential(nn.Conv2d(2, 3, 3), norms[0], head, norms[1]).train()


@pytest.mark.parametrize(
    ("precision", "kind", "lay"),
    [
        *(("fp32", kind, lay) for kind in ("batch", "group") for lay in (twin, with_clients_among_channels)),
        ("bf16", "batch", twin),
    ],
)
def test_a_stack_is_each_alone(precision: str, kind: str, lay: Callable[[nn.Module], nn.Module]) -> None:
    """Output, gradients and running statistics."""
    clients = range(3)
    images = torch.randn(3, 8, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    aims = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    shared = with_norms_for_vmap(lay(net(0, kind)))
    alone = [net(i, kind) for i in clients]
    each = [state_of(model) for model in alone]
    state = {n: torch.stack([s[n] for s in each]) for n in each[0]}
    trained = [n for n, _ in shared.named_parameters()]
    for name in trained:
        state[name].requires_grad_()

    def call(state: dict[str, Tensor], x: Tensor) -> Any:
        return torch.func.functional_call(shared, state, (x,))

    with autocast(precision, CPU):
        out = torch.func.vmap(call)(state, images)
        theirs = [model(x) for model, x in zip(alone, images, strict=True)]
    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "fp32" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(out.float(), torch.stack(theirs).float(), **close)
    torch.autograd.backward([(out.float() * aims).sum()])
    for i, (model, its) in enumerate(zip(alone, theirs, strict=True)):
        torch.autograd.backward([(its.float() * aims).sum()])
        for name, p in model.named_parameters():
            assert p.grad is not None
            gap = (state[name].grad[i] - p.grad).norm() / (1 + p.grad.norm())  # type: ignore[index]
            assert gap < (1e-3 if precision == "fp32" else 0.05), name
        for name, b in model.named_buffers():
            torch.testing.assert_close(state[name][i], b, **close)


def test_the_model_given_to_a_twin_stays_as_it_was() -> None:
    model = net(0)
    with_norms_for_vmap(twin(model))
    assert all("forward" not in vars(module) for module in model.modules())
