"""Layers of a stack of clients (convolutions and pools with clients among the channels, norms) and of
several networks side by side: each computes what it does alone, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedbench.core.network import Several, twin, with_clients_among_channels, with_norms_for_vmap
from fedbench.core.precision import CPU_BLOCK, autocast
from fedbench.core.state import state_of
from fedbench.models import registry

Lay = Callable[[nn.Module], nn.Module]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def call(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.func.functional_call(net, state, (x,))


def stacked(clients: int, make: Callable[[], nn.Module]) -> tuple[list[nn.Module], dict[str, Tensor]]:
    """So many networks, and their parameters and buffers, [C, ...]."""
    nets = [seeded(seed, make) for seed in range(clients)]
    return nets, {n: torch.stack([state_of(net)[n] for net in nets]) for n in state_of(nets[0])}


def gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    slope = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * slope).sum(), of)


def with_pool(
    kernel: int = 3, stride: int = 1, padding: int = 1, bias: bool = True, pool: int = 2, kind: Any = nn.MaxPool2d
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, kernel, stride, padding, bias=bias), kind(pool), nn.ReLU(), nn.Conv2d(3, 4, 1)
    ).double()


@settings(max_examples=25)
@given(
    clients=st.integers(1, 4), images=st.integers(1, 3), kernel=st.integers(1, 3), stride=st.integers(1, 2),
    padding=st.integers(0, 1), bias=st.booleans(), pool=st.integers(1, 2),
    kind=st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]), same_images=st.booleans(),
    common=st.sets(st.sampled_from(["0.weight", "0.bias", "3.weight"])),
)  # fmt: skip
def test_values_and_gradients_are_those_of_each_client(
    clients: int, images: int, same_images: bool, common: set[str], **form: Any
) -> None:
    """Where images or some parameters are the same for all, too."""
    nets, state = stacked(clients, lambda: with_pool(**form))
    other, x = with_clients_among_channels(nets[0]), drawn(clients, images, 2, 7, 8, seed=1)
    if same_images:
        x = x[:1].expand_as(x)
    state = {n: t.requires_grad_() for n, t in state.items()}
    inputs, axis = (x[0], None) if same_images else (x, 0)
    each = {n: t for n, t in state.items() if n not in common}
    shared = {n: t[0] for n, t in state.items() if n in common}
    got = torch.func.vmap(lambda s, i: call(other, {**s, **shared}, i), in_dims=(0, axis))(each, inputs)
    alone = ({**{n: t[i] for n, t in each.items()}, **shared} for i in range(clients))
    expected, of = torch.stack([call(nets[0], one, x[i]) for i, one in enumerate(alone)]), list(each.values())
    for a, b in zip((got, *gradients(got, of)), (expected, *gradients(expected, of)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_the_parameters_are_the_same_tensors_and_other_layers_stay() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1),
        nn.MaxPool2d(2, return_indices=True), nn.Conv2d(2, 2, 1), nn.LPPool2d(2, 2),
    )  # fmt: skip
    other = with_clients_among_channels(net)
    assert all(a is b for a, b in zip(net.parameters(), other.parameters(), strict=True))
    own = [vars(layer).get("forward") is not None for layer in other]
    assert own == [False, False, False, True, False]


def test_pooled_maps_lie_clients_and_channels_innermost() -> None:
    """The layout that it is all about: pooling gets many channels, and the next layer copies nothing."""
    nets, state = stacked(4, with_pool)
    other = with_clients_among_channels(nets[0][:2])
    own = {n: t for n, t in state.items() if n.startswith("0")}
    out = torch.func.vmap(lambda s, i: call(other, s, i), out_dims=1)(own, drawn(4, 5, 2, 8, 8))  # [image, client, ...]
    assert out.permute(0, 3, 4, 1, 2).is_contiguous()


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_behind_a_convolution(clients: int, images: int, bias: bool) -> None:
    """A stack of single images, and a convolution without a bias: what torch's own rule once got wrong."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3, bias=bias), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Tanh())

    nets, state = stacked(clients, make)
    other = with_clients_among_channels(nets[0].to(memory_format=torch.channels_last)).train()
    x, names = drawn(clients, images, 2, 8, 8, seed=1, dtype=torch.float32), [n for n, _ in other.named_parameters()]
    leaves = {n: state[n].clone().requires_grad_() for n in names}
    buffers = {n: t.clone() for n, t in state.items() if n not in names}
    got = torch.func.vmap(lambda s, b, i: call(other, {**s, **b}, i))(leaves, buffers, x)
    ours = torch.autograd.grad(got.square().sum(), list(leaves.values()))
    for i, net in enumerate(nets):
        net.double()(x[i].double()).square().sum().backward()
        for n, g in zip(leaves, ours, strict=True):
            if n != "0.bias":  # which the norm takes away again
                torch.testing.assert_close(g[i].double(), net.get_parameter(n).grad, rtol=1e-4, atol=1e-5)


def normed(kind: str = "batch") -> nn.Module:
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
def test_norms_of_a_stack_are_each_alone(precision: str, kind: str, lay: Lay) -> None:
    """Output, gradients and running statistics, in short numbers too."""
    images, aims = drawn(3, 8, 2, 6, 6, dtype=torch.float32), drawn(8, 5, seed=1, dtype=torch.float32)
    alone, state = stacked(3, lambda: normed(kind))
    model = seeded(0, lambda: normed(kind))
    shared = with_norms_for_vmap(lay(model))
    assert lay is not twin or all("forward" not in vars(module) for module in model.modules()), "it is left as it was"
    for name, _ in shared.named_parameters():
        state[name].requires_grad_()
    with autocast(precision, torch.device("cpu")):
        out = torch.func.vmap(lambda s, x: call(shared, s, x))(state, images)
        theirs = [model(x) for model, x in zip(alone, images, strict=True)]
    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "fp32" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(out.float(), torch.stack(theirs).float(), **close)
    torch.autograd.backward([(out.float() * aims).sum()])
    for i, (model, its) in enumerate(zip(alone, theirs, strict=True)):
        torch.autograd.backward([(its.float() * aims).sum()])
        for name, p in model.named_parameters():
            gap = (state[name].grad[i] - p.grad).norm() / (1 + p.grad.norm())
            assert gap < (1e-3 if precision == "fp32" else 0.05), name
        for name, b in model.named_buffers():
            torch.testing.assert_close(state[name][i], b, **close)


SHAPES = {"lenet5_flux": (28, 28, 1), "lenet5": (32, 32, 3), "lenet_tanh": (28, 28, 1), "digits_cnn": (8, 8, 1)}


def networks(name: str, count: int) -> list[nn.Module]:
    made = [seeded(k, lambda: registry.class_of(name)(SHAPES.get(name, (32, 32, 3)), 10)) for k in range(count)]
    return [network.to(memory_format=torch.channels_last) for network in made]


def images(name: str) -> Tensor:
    height, width, channels = SHAPES.get(name, (32, 32, 3))
    return torch.rand(7, height, width, channels).permute(0, 3, 1, 2) * 2 - 1


@pytest.mark.parametrize(("name", "count"), [*((name, 3) for name in SHAPES), ("digits_cnn", CPU_BLOCK + 1)])
def test_at_once_they_are_what_they_are_one_by_one(name: str, count: int) -> None:
    alone, together, x = networks(name, count), Several(networks(name, count)), images(name)
    assert together.plain, "or this compares one thing with itself"
    out, expected = together.scores(x), torch.stack([network(x) for network in alone])
    torch.testing.assert_close(out, expected)
    ours, its = (gradients(z, [*nets.parameters()]) for z, nets in ((out, together), (expected, nn.ModuleList(alone))))
    for a, b in zip(ours, its, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_running_statistics_move_each_in_its_own_network() -> None:
    alone, together = networks("cifar_cnn_bn", 2), Several(networks("cifar_cnn_bn", 2))
    x = images("cifar_cnn_bn")
    assert torch.equal(together.scores(x), torch.stack([network(x) for network in alone]))
    for network, other in zip(together, alone, strict=True):
        for name, t in other.state_dict().items():
            assert torch.equal(network.state_dict()[name], t), name


def test_dropout_is_drawn_for_each() -> None:
    several = Several([nn.Sequential(nn.Linear(50, 10), nn.Dropout(0.5)) for _ in range(2)])
    several[1].load_state_dict(several[0].state_dict())
    first, second = several.scores(torch.ones(1, 50))
    assert not torch.equal(first, second)
