"""The server's state between rounds."""

from __future__ import annotations

import copy
import reprlib
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from fedbench.core import message
from fedbench.core.client import Context
from fedbench.core.state import State, check_state, compact
from fedbench.errors import FedbenchError

#: Fields with a restricted type when a method sets them.
_KINDS: dict[str, type] = {
    "shared": dict,
    "personal": dict,
    "models": list,
    "assigned": dict,
    "momenta": dict,
    "copies": dict,
}


@dataclass(frozen=True)
class Best:
    """The server after the best round so far (with the setting's `select`), and its mean validation loss."""

    loss: float
    server: State


@dataclass(frozen=True)
class _Saved:
    """A server in a checkpoint."""

    shared: State
    best: Best | None
    personal: dict[int, State]
    momentum: dict[int, State]
    copy: dict[int, State]
    model: list[State]
    assigned: Tensor | None  #: [n, 2]: client and cluster


@dataclass
class Server:
    """State between rounds.

    `shared`: the tensors that the method communicates; `memory`: the server's private state, a dataclass that `start`
    creates (core/message.py). `personal[i]`: tensors that client i never sends; a client without an entry has not
    trained and uses `initial`, the common initial state. `copies[i]`: the client's versions of shared tensors from
    rounds without communication, kept until the next round that communicates. With clusters, `models[m]` is the
    model of cluster m, and `assigned[i]` the cluster of client i, if it has one.
    """

    initial: State
    shared: State
    personal: dict[int, State] = field(default_factory=dict)
    round: int = 0  #: completed rounds
    memory: Any = None  #: the server's private state, such as moments of its optimiser
    models: list[State] = field(default_factory=list)  #: one per cluster
    assigned: dict[int, int] = field(default_factory=dict)  #: client -> cluster
    best: Best | None = None  #: with `select`, the server after the best round so far
    context: Context = None  # type: ignore[assignment]  # set by the trainer
    momenta: dict[int, State] = field(default_factory=dict)  #: with `momentum_lives`, per client (core/optimizer.py)
    copies: dict[int, State] = field(default_factory=dict)

    def __setattr__(self, name: str, value: object) -> None:
        """Reject unknown fields, the trainer's fields, and wrong types, at the line of the method that sets them."""
        if name in ("initial", "round", "context") and name in vars(self):
            raise AttributeError(f"server.{name} is the trainer's: a method cannot set it")
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"server.{name} would not last: keep tensors in server.memory")
        if not isinstance(value, kind := _KINDS.get(name, object)):
            wanted = "list" if kind is list else "dictionary"
            raise TypeError(f"server.{name} is to be a {wanted}, not {reprlib.repr(value)}")
        super().__setattr__(name, value)

    def check(self, memory: type) -> None:
        """Raise FedbenchError unless memory, which must have this type, and clusters can be saved in a checkpoint."""
        message.check_lasting(self.memory, memory, "server.memory")
        for client, cluster in self.assigned.items():
            if not isinstance(client, Integral) or cluster not in range(len(self.models)):
                raise FedbenchError(f"server.assigned[{client!r}] is {cluster!r}, of {len(self.models)} models")

    def check_states(self, shared: State, where: str) -> None:
        """Raise FedbenchError unless `self.shared` has the tensors of the first `shared`, with their shapes and types,
        and all cluster models have the same tensors. `where` names the hook that changed them."""
        like = {n: t for n, t in self.initial.items() if n in self.shared}
        check_state(self.shared, {**like, **shared}, f"{where} leaves server.shared")
        for m, model in enumerate(self.models):
            place = f"{where} leaves server.models[{m}]"
            check_state(model, {}, place)
            if not model:
                raise FedbenchError(f"{place} without a tensor")
            check_state(model, {n: self.initial.get(n, t) for n, t in self.models[0].items()}, place)

    def copy(self, round: int) -> Server:
        """A copy of the server for work on `round`: new dictionaries with the same tensors."""
        own = ("shared", "personal", "memory", "models", "assigned", "momenta", "copies")
        return replace(self, round=round, **{name: copy.copy(getattr(self, name)) for name in own})

    def tensors(self) -> State:
        """Everything that a checkpoint must hold (the seed gives the initial state)."""
        assigned = torch.tensor([(int(i), int(m)) for i, m in self.assigned.items()]) if self.assigned else None
        saved = _Saved(self.shared, self.best, self.personal, self.momenta, self.copies, self.models, assigned)
        return {**message.tensors(self.memory, "memory"), **message.tensors(saved)}

    def restore(self, tensors: State) -> None:
        """Inverse of `tensors`; `memory` keeps its current type."""
        if self.memory is not None:
            self.memory = message.restored(type(self.memory), tensors, "memory")
        saved: _Saved = message.restored(_Saved, tensors)
        self.shared, self.best, self.models = saved.shared, saved.best, saved.model
        self.personal, self.momenta, self.copies = saved.personal, saved.momentum, saved.copy
        self.assigned = {} if saved.assigned is None else dict(saved.assigned.tolist())

    def answering(self) -> Server:
        """The server to evaluate: this one, or with `select` as it was after the best round."""
        if self.best is None:
            return self
        earlier = self.copy(self.round)
        earlier.restore(self.best.server)
        return earlier

    def keep(self, client: int, personal: State, copies: State | None = None) -> None:
        """Store a client's personal state and its copies of shared tensors. Skips tensors that it received unchanged
        (the same objects)."""
        common = {**self.initial, **self.shared, **self.model(client)}
        for states, held in ((self.personal, personal), (self.copies, copies or {})):
            own = {name: compact(t) for name, t in held.items() if t is not common.get(name)}
            if own:
                states[client] = own
            else:
                states.pop(client, None)

    def model(self, client: int) -> State:
        """The model of the client's cluster; empty if it has none."""
        return self.models[self.assigned[client]] if client in self.assigned else {}

    def view(self, client: int) -> State:
        """The state of client i: initial, overridden by shared, its cluster's model, its personal state and copies.

        The dictionary is new, the tensors are not: clients that share a body hold the same tensor objects.
        """
        own = {**self.personal.get(client, {}), **self.copies.get(client, {})}
        return {**self.initial, **self.shared, **self.model(client), **own}
