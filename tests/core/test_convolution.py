"""Convolutions as matrix products against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.convolution import as_products, convolution


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of a convolution whose kernel fits into its padded image."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(st.tuples(st.integers(1, 4), st.integers(1, 4))), draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = tuple(draw(st.integers(max(1, r - 2 * p), 11)) for r, p in zip(reach, padding, strict=True))
    return {
        "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "size": size,
        "batch": draw(st.integers(1, 3)), "inputs": draw(st.integers(1, 3)), "outputs": draw(st.integers(1, 4)),
        "bias": draw(st.booleans()), "seed": draw(st.integers(0, 99)),
    }  # fmt: skip


def tensors(layer: dict[str, Any], lead: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(layer["seed"])

    def draw(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, dtype=torch.float64, generator=generator).requires_grad_()

    x = draw(layer["batch"], layer["inputs"], *layer["size"])
    weight = draw(layer["outputs"], layer["inputs"], *layer["kernel"])
    return x, weight, draw(layer["outputs"]) if layer["bias"] else None


def gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    slope = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * slope).sum(), of)


@hypothesis_settings(max_examples=80)
@given(layers())
def test_values_and_gradients_are_those_of_torch(layer: dict[str, Any]) -> None:
    x, weight, bias = tensors(layer)
    where = (layer["stride"], layer["padding"], layer["dilation"])
    ours, its = convolution(x, weight, bias, *where), F.conv2d(x, weight, bias, *where)
    assert ours.shape == its.shape
    torch.testing.assert_close(ours, its, rtol=1e-10, atol=1e-10)
    leaves = [x, weight, *([] if bias is None else [bias])]
    for a, b in zip(gradients(ours, leaves), gradients(its, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@hypothesis_settings(max_examples=30)
@given(layers(), st.integers(1, 3))
def test_a_stack_of_layers_is_layer_after_layer(layer: dict[str, Any], clients: int) -> None:
    x, weight, bias = tensors(layer, (clients,))
    where = (layer["stride"], layer["padding"], layer["dilation"])
    if bias is None:
        ours = torch.func.vmap(lambda x, w: convolution(x, w, None, *where))(x, weight)
    else:
        ours = torch.func.vmap(lambda x, w, b: convolution(x, w, b, *where))(x, weight, bias)
    one_by_one = [F.conv2d(x[i], weight[i], None if bias is None else bias[i], *where) for i in range(clients)]
    torch.testing.assert_close(ours, torch.stack(one_by_one), rtol=1e-10, atol=1e-10)
    for a, b in zip(gradients(ours, [x, weight]), gradients(torch.stack(one_by_one), [x, weight]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_norm_behind_it_has_the_right_gradient(clients: int, batch: int) -> None:
    """torch's CPU kernel of batch norm goes wrong on some layouts of a single image: ours must not be one."""
    layer = {"kernel": (3, 3), "size": (5, 6), "inputs": 2, "outputs": 4, "batch": batch, "bias": True, "seed": 1}
    x, weight, bias = tensors(layer, (clients,))
    assert bias is not None

    def normed(convolve: Any) -> Any:
        def one(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.batch_norm(convolve(x, w, b, (1, 1), (1, 1), (1, 1)), None, None, training=True).tanh()

        return one

    ours = torch.func.vmap(normed(convolution))(x, weight, bias)
    its = torch.stack([normed(F.conv2d)(x[i], weight[i], bias[i]) for i in range(clients)])
    for a, b in zip(gradients(ours, [x, weight]), gradients(its, [x, weight]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_the_twin_has_the_same_tensors_and_answers() -> None:
    model = small(channels=3, norm=True)
    twin = as_products(model)
    assert twin is not model
    ours, its = twin.state_dict(keep_vars=True), model.state_dict(keep_vars=True)
    assert ours.keys() == its.keys()
    assert all(t is its[name] for name, t in ours.items())
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(twin.eval()(x), model.eval()(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.backbone[0].weight.mul_(2)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-4, atol=1e-5)
    assert model.backbone[0].forward.__func__ is nn.Conv2d.forward, "the model itself has been changed"


def test_only_what_it_can_compute_is_replaced() -> None:
    """Groups, other paddings than zeros and paddings by name are left to torch."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, (1, 5), stride=(2, 1), padding=(0, 2), dilation=1, bias=False)]
    others = [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding="same"),
    ]
    for layer in (*plain, *others):
        twin = as_products(nn.Sequential(layer))
        assert (twin[0].forward.__func__ is not nn.Conv2d.forward) is (layer in plain)  # type: ignore[index]
        torch.testing.assert_close(twin(x), layer(x), rtol=1e-4, atol=1e-5)
