"""Networks side by side: all at once or one after another, their scores and gradients are the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedbench.core.memory import CPU_BLOCK
from fedbench.core.several import Several, scores
from fedbench.models import registry

SHAPES = {"lenet5_flux": (28, 28, 1), "lenet5": (32, 32, 3), "lenet_tanh": (28, 28, 1), "digits_cnn": (8, 8, 1)}


def networks(name: str, count: int) -> list[nn.Module]:
    """Networks that begin differently."""
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        network = registry.class_of(name)(SHAPES.get(name, (32, 32, 3)), 10)
        made.append(network.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    return made


def gradient(p: nn.Parameter) -> Tensor:
    assert p.grad is not None
    return p.grad


def images(name: str) -> Tensor:
    height, width, channels = SHAPES.get(name, (32, 32, 3))
    return torch.rand(7, height, width, channels).permute(0, 3, 1, 2) * 2 - 1


@pytest.mark.parametrize(("name", "count"), [*((name, 3) for name in SHAPES), ("digits_cnn", CPU_BLOCK + 1)])
def test_at_once_they_are_what_they_are_one_by_one(name: str, count: int) -> None:
    alone = networks(name, count)
    together = Several(networks(name, count))
    x, towards = images(name), torch.rand(count, 7, 10)
    assert together.plain, "or this compares one thing with itself"
    out, expected = together.scores(x), torch.stack([network(x) for network in alone])
    torch.testing.assert_close(out, expected)
    (out * towards).sum().backward()  # type: ignore[no-untyped-call]
    (expected * towards).sum().backward()  # type: ignore[no-untyped-call]
    for network, other in zip(together, alone, strict=True):
        for p, q in zip(network.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(gradient(p), gradient(q), rtol=1e-4, atol=1e-5)


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


def test_within_a_stack_of_clients() -> None:
    """Under vmap other tensors are laid under the networks; those count."""
    several, x = Several(networks("digits_cnn", 2)), images("digits_cnn")
    state = {name: torch.stack([p, 2 * p]).detach() for name, p in several.named_parameters()}
    out = torch.func.vmap(lambda s, b: torch.func.functional_call(_Scores(several), _under("several", s), (b,)))(
        state, torch.stack([x, x])
    )
    torch.testing.assert_close(out[0], several.scores(x))
    with torch.no_grad():
        for p in several.parameters():
            p *= 2
    torch.testing.assert_close(out[1], several.scores(x))


class _Scores(nn.Module):
    def __init__(self, several: Several) -> None:
        super().__init__()
        self.several = several

    def forward(self, x: Tensor) -> Tensor:
        return self.several.scores(x)


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": t for name, t in state.items()}


def test_one_network_is_a_row() -> None:
    (network,), x = networks("digits_cnn", 1), images("digits_cnn")
    for form in (network, Several([network])):
        assert torch.equal(scores(form, x), network(x)[None])
