"""Variants of a network for a stack of clients: convolution and pooling with the clients among the channels, innermost
in memory, and norms that vmap supports.

torch's vmap rules move the clients into the batch for pooling and use channels-first for convolutions. With the order
[image, height, width, client, channel] a layer's C convolutions are one grouped convolution, pooling sees C times as
many channels, and nothing is copied between the two. That halves the time of LeNet-5 on a CPU.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def twin(model: nn.Module) -> nn.Module:
    """A copy of the modules that shares the parameters and buffers (the same tensor objects)."""
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


Dims = tuple[int | None, ...]


def with_clients_among_channels(model: nn.Module) -> nn.Module:
    """A variant of the model on the same parameters (the same tensor objects), to call under vmap over clients."""
    other = twin(model)
    for module in other.modules():
        if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
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
    """An operator with a custom vmap rule; gradients come from the operators that the rule calls."""

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
            # All clients share the layer, so their images form one batch.
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
        assert dims[0] is not None  # because vmap calls this only if an input is batched
        return _apart(_pooled(_among_channels(x, dims[0]), layer), info.batch_size), 1


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, groups: int = 1) -> Tensor:
    padding: Any = layer.padding  # a string or a tuple; torch's stubs do not know this union
    return F.conv2d(x, weight, bias, layer.stride, padding, layer.dilation, groups)


def _pooled(x: Tensor, layer: nn.MaxPool2d | nn.AvgPool2d) -> Tensor:
    out: Tensor = type(layer).forward(layer, x)  # type: ignore[arg-type]  # the class's method, not the instance's
    return out


def _each(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """[clients, ...], from tensors that are shared or batched at `dim`."""
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)


def _among_channels(x: Tensor, dim: int) -> Tensor:
    """[..., client at `dim`, ...] to [images, clients x channels, height, width], channels-last in memory."""
    return x.movedim(dim, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _apart(x: Tensor, clients: int) -> Tensor:
    """[images, clients x channels, height, width] to [images, clients, channels, height, width]."""
    if len(x) == 1:
        x = x.contiguous()  # torch's CPU batch norm (backward) misreads a single image in channels-last order
    return x.view(len(x), clients, -1, *x.shape[2:])


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
#: Types to which autocast rounds.
SHORT = (torch.bfloat16, torch.float16)


def with_norms_for_vmap(model: nn.Module) -> nn.Module:
    """Change the model in place, so that its batch and group norms work under vmap on every device and in every
    precision. Returns the model."""
    for module in model.modules():
        if type(module) is nn.GroupNorm:
            module.forward = MethodType(_normalise_groups, module)  # type: ignore[method-assign]
        if type(module) in BATCH_NORMS:
            module.forward = MethodType(_normalise, module)
    return model


def _normalise(self: nn.Module, x: Tensor) -> Tensor:
    # On a GPU torch queries the memory format, and under vmap it supports only contiguous tensors.
    laid = x.contiguous() if x.is_cuda else x
    # Under vmap torch does not accept bfloat16 inputs with float32 statistics; outside it does.
    exact = laid.float() if x.dtype in SHORT else laid
    out: Tensor = type(self).forward(self, exact)
    return out.to(x.dtype)


def _normalise_groups(self: nn.GroupNorm, x: Tensor) -> Tensor:
    # For other memory formats torch queries the format, which fails under vmap.
    return nn.GroupNorm.forward(self, x.contiguous())
