"""The server: what it holds between rounds and remembers."""

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

#: What a method may set, where that is not anything.
_KINDS: dict[str, type] = {
    "shared": dict, "personal": dict, "models": list, "assigned": dict, "momenta": dict, "copies": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Best:
    """The server after the round that did best so far (with the setting's `select`), and its mean validation loss."""

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

    `shared`: one copy of what the method sends around; `memory`: what the server keeps to itself, a dataclass of which
    `start` makes the first (core/message.py). `personal[i]`: what client i keeps and never sends; a client that has
    not trained yet has no entry and stands at `initial`, the start that all have in common. `copies[i]`: what it has
    trained of the shared state in rounds that did not communicate, until the next one that does. In clustered learning
    `models[m]` is what the clients of cluster m share, and `assigned[i]` the cluster of client i, if it has one.
    """

    initial: State
    shared: State
    personal: dict[int, State] = field(default_factory=dict)
    round: int = 0  #: completed rounds
    memory: Any = None  #: what the server alone knows, such as moments of its optimiser
    models: list[State] = field(default_factory=list)  #: one a cluster
    assigned: dict[int, int] = field(default_factory=dict)  #: client -> cluster
    best: Best | None = None  #: itself after an earlier round, if that is what answers
    context: Context = None  # type: ignore[assignment]  # the trainer's
    momenta: dict[int, State] = field(default_factory=dict)  #: where momentum lives, each client's (core/optimizer.py)
    copies: dict[int, State] = field(default_factory=dict)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse what would not last or would make the run unreadable, where a method does it."""
        if name in ("initial", "round", "context") and name in vars(self):
            raise AttributeError(f"server.{name} is the trainer's: a method cannot set it")
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"server.{name} would not last: keep tensors in server.memory")
        if not isinstance(value, kind := _KINDS.get(name, object)):
            wanted = "list" if kind is list else "dictionary"
            raise TypeError(f"server.{name} is to be a {wanted}, not {reprlib.repr(value)}")
        super().__setattr__(name, value)

    def check(self, memory: type) -> None:
        """Raise FedbenchError unless what the server holds beside states can be saved; its memory is to be of that
        type."""
        message.check_lasting(self.memory, memory, "server.memory")
        for client, cluster in self.assigned.items():
            if not isinstance(client, Integral) or cluster not in range(len(self.models)):
                raise FedbenchError(f"server.assigned[{client!r}] is {cluster!r}, of {len(self.models)} models")

    def check_states(self, shared: State, where: str) -> None:
        """Raise FedbenchError unless its states have the tensors of the `shared` one that it began with, in their
        shapes and types; models of clusters all the same ones. `where` names who has changed them."""
        like = {n: t for n, t in self.initial.items() if n in self.shared}
        check_state(self.shared, {**like, **shared}, f"{where} leaves server.shared")
        for m, model in enumerate(self.models):
            place = f"{where} leaves server.models[{m}]"
            check_state(model, {}, place)
            if not model:
                raise FedbenchError(f"{place} without a tensor")
            check_state(model, {n: self.initial.get(n, t) for n, t in self.models[0].items()}, place)

    def copy(self, round: int) -> Server:
        """The server at the end of `round`, to be worked on: new dictionaries, the same tensors."""
        own = ("shared", "personal", "memory", "models", "assigned", "momenta", "copies")
        return replace(self, round=round, **{name: copy.copy(getattr(self, name)) for name in own})

    def tensors(self) -> State:
        """Everything that a checkpoint must hold (the initial state comes again from the seed)."""
        assigned = torch.tensor([(int(i), int(m)) for i, m in self.assigned.items()]) if self.assigned else None
        saved = _Saved(self.shared, self.best, self.personal, self.momenta, self.copies, self.models, assigned)
        return {**message.tensors(self.memory, "memory"), **message.tensors(saved)}

    def restore(self, tensors: State) -> None:
        """Inverse of `tensors`; what the server remembers has the type of what it began with."""
        if self.memory is not None:
            self.memory = message.restored(type(self.memory), tensors, "memory")
        saved: _Saved = message.restored(_Saved, tensors)
        self.shared, self.best, self.models = saved.shared, saved.best, saved.model
        self.personal, self.momenta, self.copies = saved.personal, saved.momentum, saved.copy
        self.assigned = {} if saved.assigned is None else dict(saved.assigned.tolist())

    def answering(self) -> Server:
        """The server whose models answer: itself, or as it was after the best round."""
        if self.best is None:
            return self
        earlier = self.copy(self.round)
        earlier.restore(self.best.server)
        return earlier

    def keep(self, client: int, personal: State, copies: State | None = None) -> None:
        """Make these client i's personal state and its copies of shared tensors. What it merely received (the same
        tensor objects) is left out."""
        common = {**self.initial, **self.shared, **self.model(client)}
        for states, held in ((self.personal, personal), (self.copies, copies or {})):
            own = {name: compact(t) for name, t in held.items() if t is not common.get(name)}
            if own:
                states[client] = own
            else:
                states.pop(client, None)

    def model(self, client: int) -> State:
        """The model of client i's cluster; empty if it has none."""
        return self.models[self.assigned[client]] if client in self.assigned else {}

    def view(self, client: int) -> State:
        """What client i holds: shared laid over initial, its cluster's model, its personal state and copies over both.

        The dictionary is new, the tensors are not: clients that share a body hold the same tensor objects.
        """
        own = {**self.personal.get(client, {}), **self.copies.get(client, {})}
        return {**self.initial, **self.shared, **self.model(client), **own}
