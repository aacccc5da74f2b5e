"""A worker's modules for one or several of a client's models, and where their tensors stand in a client's state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.several import Several
from fedbench.core.state import State, name_in

#: Names of a client's models: "" is the one under the network's own names.
Models = tuple[str, ...]


class Scope(nn.Module):
    """Calls a function with the model, so that `functional_call` can lay other tensors under all of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        return function(self.model, batch)


@dataclass
class Network:
    """The module of these models: the network itself, or of several models a list of networks in their order
    (several.py).

    All names are those of a client's state. The module's tensors are written to whenever a client's are loaded.
    """

    module: nn.Module
    models: Models
    convert: Callable[[nn.Module], nn.Module] = lambda module: module  #: to the module that a stack calls
    tensors: dict[str, Tensor] = field(init=False)
    parameters: dict[str, nn.Parameter] = field(init=False)
    buffers: list[str] = field(init=False)

    def __post_init__(self) -> None:
        # Walked through once: on small networks that takes as long as a layer.
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
        """The module with this state. Other tensors of the state are skipped."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state[name])
        return self.module

    def call(self, state: State, function: Callable[[Any, Any], Any], batch: Any) -> Any:
        """function(module, batch) with this state in it. Running statistics move in `state`'s tensors."""
        return torch.func.functional_call(
            self.scope, {f"model.{self._paths[n]}": t for n, t in state.items()}, (function, batch)
        )


class Networks:
    """The networks of one worker: modules are made once for as many models as a request names."""

    def __init__(self, model: nn.Module, convert: Callable[[nn.Module], nn.Module] = lambda module: module) -> None:
        self._modules = [model]
        self._convert = convert
        self._networks: dict[Models, Network] = {}

    def of(self, models: str | Models) -> Network:
        """The network of one model, or of several."""
        names = (models,) if isinstance(models, str) else models
        if names not in self._networks:
            while len(self._modules) < len(names):
                self._modules.append(copy.deepcopy(self._modules[0]))
            module = self._modules[0] if len(names) == 1 else Several(self._modules[: len(names)])
            self._networks[names] = Network(module, names, self._convert)
        return self._networks[names]
