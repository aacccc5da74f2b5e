"""Convolution and pooling of a stack of clients with the clients among the channels, innermost in memory.

torch's own rules for vmap put the clients into the batch for pooling and lay convolutions out channels-first. With
memory ordered [image, height, width, client, channel] a layer's C convolutions are one grouped convolution, pooling
runs over C times as many channels at once, and nothing is copied between the two: on a CPU half the time for LeNet-5.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.core.convolution import is_plain, twin

Dims = tuple[int | None, ...]


def with_clients_among_channels(model: nn.Module) -> nn.Module:
    """A model with the same parameters (the same tensors), to be called under vmap over clients."""
    other = twin(model)
    for module in other.modules():
        if is_plain(module):
            module.forward = MethodType(_convolve, module)  # type: ignore[method-assign]
        if type(module) is nn.AvgPool2d or (type(module) is nn.MaxPool2d and not module.return_indices):
            module.forward = MethodType(_pool, module)  # type: ignore[method-assign]
    return other


def _convolve(self: nn.Conv2d, x: Tensor) -> Tensor:
    out: Tensor = _Convolution.apply(x, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
    return out


def _pool(self: nn.MaxPool2d | nn.AvgPool2d, x: Tensor) -> Tensor:
    out: Tensor = _Pool.apply(x, self)  # type: ignore[no-untyped-call]
    return out


class _UnderVmap(torch.autograd.Function):
    """An operator of which only the rule for vmap is ours; gradients are those of the operators that the rule calls."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return


class _Convolution(_UnderVmap):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d) -> Tensor:
        return _conv(x, weight, bias, layer)

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d
    ) -> tuple[Tensor, int]:
        clients: int = info.batch_size
        if dims[1] is None and dims[2] is None and dims[0] is not None:
            # One layer for all: the clients' images are one batch.
            out = _conv(x.movedim(dims[0], 0).flatten(0, 1), weight, bias, layer)
            return out.view(clients, -1, *out.shape[1:]), 0
        weight = _each(weight, dims[1], clients).flatten(0, 1)
        bias = None if bias is None else _each(bias, dims[2], clients).flatten()
        if dims[0] is None:  # the same images for all
            out = _conv(x.contiguous(memory_format=torch.channels_last), weight, bias, layer)
        else:
            out = _conv(_among_channels(x, dims[0]), weight, bias, layer, clients)
        return _apart(out, clients), 1


class _Pool(_UnderVmap):
    @staticmethod
    def forward(x: Tensor, layer: nn.MaxPool2d | nn.AvgPool2d) -> Tensor:
        return _pooled(x, layer)

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, layer: nn.MaxPool2d | nn.AvgPool2d) -> tuple[Tensor, int]:
        assert dims[0] is not None  # or vmap would not have called
        return _apart(_pooled(_among_channels(x, dims[0]), layer), info.batch_size), 1


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, groups: int = 1) -> Tensor:
    padding: Any = layer.padding  # a name or numbers; torch's stubs know no "either"
    return F.conv2d(x, weight, bias, layer.stride, padding, layer.dilation, groups)


def _pooled(x: Tensor, layer: nn.MaxPool2d | nn.AvgPool2d) -> Tensor:
    out: Tensor = type(layer).forward(layer, x)  # type: ignore[arg-type]  # the class's own, not the one laid over it
    return out


def _each(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """[clients, ...], whether all have the same or each its own."""
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)


def _among_channels(x: Tensor, dim: int) -> Tensor:
    """[..., client at `dim`, ...] to [images, clients x channels, height, width], channels-last in memory."""
    return x.movedim(dim, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _apart(x: Tensor, clients: int) -> Tensor:
    """[images, clients x channels, height, width] to [images, clients, channels, height, width]."""
    if len(x) == 1:
        x = x.contiguous()  # of a single image, torch's batch norm on a CPU misreads the other order (backward)
    return x.view(len(x), clients, -1, *x.shape[2:])
