"""A worker's networks: one or several models of a client."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.client import Batch
from fedbench.core.plan import Plan
from fedbench.core.state import State, name_in
from fedbench.core.usage import CPU_BLOCK
from fedbench.core.variants import with_clients_among_channels
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded


def has_no_variance(error: Exception) -> bool:
    """Whether the error is torch's about a batch norm in training mode that sees a single value per channel."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)


def takes_single_images(model: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Whether the model trains on a batch of one image (of shape height, width, channels). It does not if one of its
    batch norms then sees one value per channel."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return True
    image = torch.zeros(1, shape[2], *shape[:2], device=next(model.parameters()).device)
    try:
        with torch.no_grad(), seeded(0, None):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        if not has_no_variance(error):
            raise
        return False
    return True


def single_image(plan: Plan, client: int, sizes: Sequence[int], split: str = "train") -> FedbenchError:
    """The error that this client trains on a batch of a single image, which the network does not take. `sizes`: images
    of each client in the split from which the batch is."""
    size, images = plan.setting.batch_size, sizes[client]
    others = range(max(size, 2), max(sizes) + 1)
    other = next((str(one) for one in others if not any(plan.leaves_one(n, one) for n in sizes)), None)
    kind = {"train": "training", "validation": "validation", "test": "test"}[split]
    return FedbenchError(
        f"client {client}, of {images} {kind} image{'s' * (images > 1)} in batches of {size}, has a batch of a "
        "single image, of which the network's batch norm finds no variance",
        f"choose {f'--batch-size {other}' if other else 'a partition of larger clients'}, or a network without it",
    )


def check_batches(model: nn.Module, plan: Plan, shape: tuple[int, int, int]) -> None:
    """Raise FedbenchError if some batch of the setting's local work has a single image and the model does not take it,
    because training would fail in the round with that batch."""
    client = plan.lone()
    if client is not None and not takes_single_images(model, shape):
        raise single_image(plan, client, plan.n_train)


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
