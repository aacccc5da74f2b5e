"""A worker's networks: one or several models of a client, and the variants of a network that stacks use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.client import Batch
from fedbench.core.plan import Plan
from fedbench.core.precision import CPU_BLOCK
from fedbench.core.state import State, name_in
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded


def twin(model: nn.Module) -> nn.Module:
    """A copy of the modules that shares the parameters and buffers (the same tensor objects)."""
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


# -- grouped ---------------------------------------------------------------------------------------------------
# Convolution and pooling for a stack of clients, with the clients among the channels, innermost in memory.
#
# torch's vmap rules move the clients into the batch for pooling and use channels-first for convolutions. With the order
# [image, height, width, client, channel] a layer's C convolutions are one grouped convolution, pooling sees C times as
# many channels, and nothing is copied between the two. That halves the time of LeNet-5 on a CPU.


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


# -- norms -----------------------------------------------------------------------------------------------------


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


def check_batches(model: nn.Module, plan: Plan, shape: tuple[int, int, int]) -> None:
    """Raise FedbenchError if some batch has a single image (of shape height, width, channels) and a batch norm of the
    model then sees one value per channel, because training would fail in the round with that batch."""
    size = plan.setting.batch_size
    client = plan.lone(size)
    if client is None or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    image = torch.zeros(1, shape[2], *shape[:2], device=next(model.parameters()).device)
    try:
        with torch.no_grad(), seeded(0, None):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        images = plan.n_train[client]
        others = range(max(size, 2), max(plan.n_train) + 1)
        other = next((str(one) for one in others if plan.lone(one) is None), None)
        raise FedbenchError(
            f"client {client}, of {images} training image{'s' * (images > 1)} in batches of {size}, has a batch of a "
            "single image, of which the network's batch norm finds no variance",
            f"choose {f'--batch-size {other}' if other else 'a partition of larger clients'}, or a network without it",
        ) from None


class Several(nn.ModuleList):
    """Several models of one client. A loss or output may call them one by one, or all at once with `scores`."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__(models)
        first = self[0]
        #: False with running statistics, which would have to be written back.
        self.plain = first.state_dict().keys() == dict(first.named_parameters()).keys()
        self._form = (with_clients_among_channels(first),)  # the tuple prevents registration as a submodule

    def scores(self, x: Tensor) -> Tensor:
        """[M, B, ...]: outputs of the M models for images x [B, C, H, W].

        On a CPU the models are stacked among the channels, like clients of a stack: they read the same images,
        and small layers use the CPU better. A step of five LeNet-5 takes 0.6 to 0.7 of the time of five steps. On
        other devices, and within a stack of clients, it calls one model after another. Both agree up to rounding.
        """
        if not self._at_once(x):
            return torch.stack([model(x) for model in self])
        each = [dict(model.named_parameters()) for model in self]
        return torch.cat([self._side_by_side(each[i : i + CPU_BLOCK], x) for i in range(0, len(each), CPU_BLOCK)])

    def _side_by_side(self, each: Sequence[Mapping[str, Tensor]], x: Tensor) -> Tensor:
        stack = {name: torch.stack([one[name] for one in each]) for name in each[0]}

        def of_one(parameters: dict[str, Tensor]) -> Tensor:
            out: Tensor = torch.func.functional_call(self._form[0], parameters, (x,))
            return out

        out: Tensor = torch.func.vmap(of_one, randomness="different")(stack)
        return out

    def _at_once(self, x: Tensor) -> bool:
        """Whether to stack the models. Not within a stack of clients, whose tensors are no Parameters."""
        own = isinstance(next(self.parameters()), nn.Parameter)
        return len(self) > 1 and self.plain and own and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def scores(models: nn.Module, x: Tensor) -> Tensor:
    """`Several.scores`; for a single network [1, B, ...]."""
    out: Tensor = models.scores(x) if isinstance(models, Several) else models(x)[None]
    return out


@dataclass(frozen=True)
class OfEach:
    """Output of a request to several models, rows [B, M, ...]: `of` maps one model's scores [B, K], in float32, and the
    labels to [B, ...]."""

    of: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, models: Any, batch: Batch) -> Tensor:
        return torch.stack([self.of(out.float(), batch.y) for out in scores(models, batch.x)], 1)


#: Names of a client's models; "" is the model without a name prefix.
Models = tuple[str, ...]


class Scope(nn.Module):
    """Calls a function with the model as argument, so that `functional_call` can replace the model's tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        return function(self.model, batch)


@dataclass
class Network:
    """The module for these models: the network itself, or for several models a list of networks (`Several`).

    Tensor names are those of a client's state. Loading a client overwrites the module's tensors.
    """

    module: nn.Module
    models: Models
    convert: Callable[[nn.Module], nn.Module] = lambda module: module  #: makes the variant for stacks
    tensors: dict[str, Tensor] = field(init=False)
    parameters: dict[str, nn.Parameter] = field(init=False)
    buffers: list[str] = field(init=False)

    def __post_init__(self) -> None:
        # Cached, because traversing a small network takes as long as computing a layer.
        self._paths = {self._name(path): path for path in self.module.state_dict()}
        self.tensors = {self._name(path): t for path, t in self.module.state_dict(keep_vars=True).items()}
        self.parameters = {self._name(path): p for path, p in self.module.named_parameters()}
        self.buffers = [name for name in self.tensors if name not in self.parameters]
        self.scope = Scope(self.convert(self.module))

    def _name(self, path: str) -> str:
        if len(self.models) == 1:
            return name_in(self.models[0], path)
        index, name = path.split(".", 1)
        return name_in(self.models[int(index)], name)

    def load(self, state: Mapping[str, Tensor]) -> nn.Module:
        """Copy this state into the module and return it. Ignores other tensors of the state."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state[name])
        return self.module

    def call(self, state: State, function: Callable[[Any, Any], Any], batch: Any) -> Any:
        """Call function(module, batch) with this state; updates running statistics in `state`'s tensors."""
        return torch.func.functional_call(
            self.scope, {f"model.{self._paths[n]}": t for n, t in state.items()}, (function, batch)
        )


class Networks:
    """The networks of one worker; builds as many modules as the largest request needs, once."""

    def __init__(self, model: nn.Module, convert: Callable[[nn.Module], nn.Module] = lambda module: module) -> None:
        self._modules = [model]
        self._convert = convert
        self._networks: dict[Models, Network] = {}

    def of(self, models: str | Models) -> Network:
        names = (models,) if isinstance(models, str) else models
        if names not in self._networks:
            while len(self._modules) < len(names):
                self._modules.append(copy.deepcopy(self._modules[0]))
            module = self._modules[0] if len(names) == 1 else Several(self._modules[: len(names)])
            self._networks[names] = Network(module, names, self._convert)
        return self._networks[names]
