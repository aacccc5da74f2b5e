"""Convolutions and pools of a stack, clients among the channels: against one client after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedbench.core.grouped import with_clients_among_channels


def layers(
    kernel: int, stride: int, padding: int, bias: bool, pool: int, seed: int = 0, kind: Any = nn.MaxPool2d
) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 3, kernel, stride, padding, bias=bias), kind(pool), nn.ReLU(), nn.Conv2d(3, 4, 1)
        ).double()


def stacked(clients: int, make: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network and the parameters of so many others, [C, ...]."""
    nets = [make(seed) for seed in range(clients)]
    names = dict(nets[0].named_parameters())
    return nets[0], {n: torch.stack([dict(net.named_parameters())[n].detach() for net in nets]) for n in names}


def call(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.func.functional_call(net, state, (x,))


@settings(max_examples=25)
@given(
    clients=st.integers(1, 4), images=st.integers(1, 3), kernel=st.integers(1, 3), stride=st.integers(1, 2),
    padding=st.integers(0, 1), bias=st.booleans(), pool=st.integers(1, 2),
    kind=st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]), same_images=st.booleans(),
)  # fmt: skip
def test_values_and_gradients_are_those_of_each_client(
    clients: int,
    images: int,
    kernel: int,
    stride: int,
    padding: int,
    bias: bool,
    pool: int,
    kind: Any,
    same_images: bool,
) -> None:
    net, state = stacked(clients, lambda seed: layers(kernel, stride, padding, bias, pool, seed, kind))
    twin = with_clients_among_channels(net)
    x = torch.randn(clients, images, 2, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if same_images:
        x = x[:1].expand_as(x)
    state = {n: t.requires_grad_() for n, t in state.items()}
    given_x = (x[0], None) if same_images else (x, 0)
    got = torch.func.vmap(lambda s, i: call(twin, s, i), in_dims=(0, given_x[1]))(state, given_x[0])
    expected = torch.stack([call(net, {n: t[i] for n, t in state.items()}, x[i]) for i in range(clients)])
    torch.testing.assert_close(got, expected)
    weights = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((got * weights).sum(), list(state.values()))
    theirs = torch.autograd.grad((expected * weights).sum(), list(state.values()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("frozen", [("0.weight",), ("0.bias",), ("0.weight", "0.bias"), ("3.weight",)])
def test_parameters_that_all_share(frozen: tuple[str, ...]) -> None:
    net, state = stacked(3, lambda seed: layers(3, 1, 1, True, 2, seed))
    twin = with_clients_among_channels(net)
    own = {n: t for n, t in state.items() if n not in frozen}
    common = {n: state[n][0] for n in frozen}
    x = torch.randn(3, 2, 2, 6, 6, dtype=torch.float64)
    got = torch.func.vmap(lambda s, i: call(twin, {**s, **common}, i))(own, x)
    for i in range(3):
        mine = {**{n: t[i] for n, t in own.items()}, **common}
        torch.testing.assert_close(got[i], call(net, mine, x[i]))


def test_the_parameters_are_the_same_tensors_and_other_layers_stay() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1),
        nn.MaxPool2d(2, return_indices=True), nn.Conv2d(2, 2, 1), nn.LPPool2d(2, 2),
    )  # fmt: skip
    twin = with_clients_among_channels(net)
    assert all(a is b for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    own = [vars(layer).get("forward") is not None for layer in twin]  # type: ignore[attr-defined]
    assert own == [False, False, False, True, False]


def test_pooled_maps_lie_clients_and_channels_innermost() -> None:
    """The layout that it is all about: pooling gets many channels, and the next layer copies nothing."""
    net, state = stacked(4, lambda seed: layers(3, 1, 1, True, 2, seed))
    twin = with_clients_among_channels(net[:2])  # type: ignore[index]
    own = {n: t for n, t in state.items() if n.startswith("0")}
    x = torch.randn(4, 5, 2, 8, 8, dtype=torch.float64)
    out = torch.func.vmap(lambda s, i: call(twin, s, i), out_dims=1)(own, x)  # [image, client, channel, h, w]
    assert out.permute(0, 3, 4, 1, 2).is_contiguous()


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_behind_a_convolution(clients: int, images: int, bias: bool) -> None:
    """A stack of single images, and a convolution without a bias: what torch's own rule once got wrong."""

    def make(seed: int) -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(nn.Conv2d(2, 3, 3, bias=bias), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Tanh())

    net, state = stacked(clients, make)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin = with_clients_among_channels(net).train()
    buffers = {n: torch.stack([t.clone() for _ in range(clients)]) for n, t in net.named_buffers()}
    x = torch.randn(clients, images, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    leaves = {n: t.clone().requires_grad_() for n, t in state.items()}
    got = torch.func.vmap(lambda s, b, i: call(twin, {**s, **b}, i))(leaves, buffers, x)
    ours = torch.autograd.grad(got.square().sum(), list(leaves.values()))
    for i in range(clients):
        alone = make(i).double()
        alone(x[i].double()).square().sum().backward()
        for n, g in zip(leaves, ours, strict=True):
            reference = dict(alone.named_parameters())[n].grad
            if n != "0.bias":  # which the norm takes away again
                torch.testing.assert_close(g[i].double(), reference, rtol=1e-4, atol=1e-5)
