"""The server: what it holds and remembers, and where clients' personal states lie."""

from __future__ import annotations

import copy
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.core import message
from fedbench.core.client import Context
from fedbench.core.state import State, check_state, compact, names_of, size_in_bytes, write
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, sha256_of
from fedbench.machine import memory

# -- shelf -----------------------------------------------------------------------------------------------------
# Clients' personal states: in memory, and beyond a limit in files of the run's work folder.
#
#     work/ID/personal-ROUND-K.safetensors    clients [n], and each tensor of their states [n, ...]
#
# A file is written once. Who trains again is in memory from then on, until it is put by in a new file; a file of whose
# clients more than half have gone on is given up with the next one, and stays on disk while a checkpoint lists it.
# Files are mapped into memory to read a client's rows; a thread does so ahead of time.


#: Share of the machine's memory that all clients' personal states may take.
SHARE = 1 / 16
#: Bytes of states that are laid in one file.
FILE_BYTES = 256 << 20
CLIENTS = "clients"


@dataclass(frozen=True)
class Place:
    """Where a client's state lies."""

    file: str
    row: int


class Shelf(MutableMapping[int, State]):
    """Client -> its state. A copy shares the states, and the files."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder  #: of the files; without one all stay in memory
        self.near: dict[int, State] = {}
        self.far: dict[int, Place] = {}  #: of clients that are not in memory, or older than what is there
        self.digests: dict[str, str] = {}  #: file -> checksum
        self.bytes = 0  #: in memory
        self.coming: dict[Place, Future[State]] = {}

    def __getitem__(self, client: int) -> State:
        if client in self.near:
            return self.near[client]
        place = self.far[client]
        coming = self.coming.pop(place, None)
        return self._read(place) if coming is None else coming.result()

    def __setitem__(self, client: int, state: State) -> None:
        self.bytes += size_in_bytes(state) - size_in_bytes(self.near.get(client, {}))
        self.near[client] = state

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self.bytes -= size_in_bytes(self.near.pop(client, {}))
        self.far.pop(client, None)

    def __contains__(self, client: object) -> bool:
        return client in self.near or client in self.far

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self.far, *self.near}))  # who is in memory depends on the machine, and on a resume

    def __len__(self) -> int:
        return len(self.near) + sum(client not in self.near for client in self.far)

    def __copy__(self) -> Shelf:
        other = Shelf(self.folder)
        other.near, other.far, other.digests = dict(self.near), dict(self.far), dict(self.digests)
        other.bytes, other.coming = self.bytes, self.coming
        return other

    def ahead(self, clients: Iterable[int]) -> None:
        """Begin to read what these clients hold, in a thread."""
        self.coming.clear()  # of those that have trained again since
        for client in clients:
            if client in self.far and client not in self.near:
                self.coming[self.far[client]] = _reader().submit(self._read, self.far[client])

    @property
    def full(self) -> bool:
        """Whether memory holds too many."""
        return self.folder is not None and self.bytes > SHARE * memory()

    def put_by(self, t: int) -> None:
        """After round t: lay all states of memory in files."""
        self._drop_old()
        alike: dict[tuple[object, ...], list[int]] = {}
        for client, state in self.near.items():
            alike.setdefault(tuple((n, x.dtype, x.shape) for n, x in state.items()), []).append(client)
        for clients in alike.values():
            many = max(1, FILE_BYTES // max(size_in_bytes(self.near[clients[0]]), 1))
            for at in range(0, len(clients), many):
                self._write(t, clients[at : at + many])
        self.digests = self.used()

    def used(self) -> dict[str, str]:
        """The files that hold someone's state, with their checksums."""
        files = {place.file for client, place in self.far.items() if client not in self.near}
        return {name: self.digests[name] for name in sorted(files)}

    def places(self) -> State:
        """file -> [n, 2] int64: client and row, of the clients that are not in memory."""
        lines: dict[str, list[tuple[int, int]]] = {}
        for client, place in self.far.items():
            if client not in self.near:
                lines.setdefault(place.file, []).append((client, place.row))
        return {name: torch.tensor(rows) for name, rows in lines.items()}

    def place(self, file: str, rows: Tensor) -> None:
        """Inverse of `places`, a file at a time."""
        self.far.update({client: Place(file, row) for client, row in rows.tolist()})

    def _drop_old(self) -> None:
        """Bring who is left in files of which half has gone on into memory."""
        live = Counter(place.file for client, place in self.far.items() if client not in self.near)
        rows = Counter(place.file for place in self.far.values())
        old = {file for file, n in rows.items() if 2 * live[file] < n}
        for client, place in list(self.far.items()):
            if place.file in old:
                if client not in self.near:
                    self[client] = self._read(place)
                del self.far[client]

    def _write(self, t: int, clients: list[int]) -> None:
        assert self.folder is not None
        states = [self.near[client] for client in clients]
        stacks = {name: torch.stack([state[name].cpu() for state in states]) for name in states[0]}
        numbers = (k for k in range(len(self.digests) + 1))
        name = next(f for k in numbers if (f := f"personal-{t:06d}-{k}.safetensors") not in self.digests)
        with disk_errors("putting personal states by", self.folder):
            write(self.folder / name, {CLIENTS: torch.tensor(clients), **stacks})
            self.digests[name] = sha256_of(self.folder / name)
        for row, client in enumerate(clients):
            self.far[client] = Place(name, row)  # before it leaves memory: an interrupt finds it in either
            self.bytes -= size_in_bytes(self.near.pop(client))

    def _read(self, place: Place) -> State:
        from safetensors import SafetensorError, safe_open

        assert self.folder is not None
        try:
            with safe_open(self.folder / place.file, "pt") as file:
                names = [name for name in names_of(file) if name != CLIENTS]
                return {name: file.get_tensor(name)[place.row].clone() for name in names}
        except (SafetensorError, OSError, KeyError) as error:
            raise FedbenchError(f"cannot read the personal states {self.folder / place.file} ({error})") from error


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "shelf")


# -- server ----------------------------------------------------------------------------------------------------


#: What a method may set, where that is not anything.
_KINDS: dict[str, type] = {
    "shared": dict, "personal": Mapping, "models": list, "assigned": dict, "momenta": dict, "copies": dict,
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
    far: State  #: file of personal states -> [n, 2]: who is there, and in which row
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
    personal: Shelf = field(default_factory=Shelf)
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
        if name == "personal" and not isinstance(value, Shelf):
            states, value = value, Shelf(vars(self)[name].folder if name in vars(self) else None)
            value.update(states)  # type: ignore[call-overload]
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

    def tensors(self, files: bool = False) -> State:
        """Everything that a checkpoint must hold (the initial state comes again from the seed); with `files` beside
        the files of personal states, of which it is said who is in which."""
        near, far = (self.personal.near, self.personal.places()) if files else (dict(self.personal), {})
        assigned = torch.tensor([(int(i), int(m)) for i, m in self.assigned.items()]) if self.assigned else None
        saved = _Saved(self.shared, self.best, far, near, self.momenta, self.copies, self.models, assigned)
        return {**message.tensors(self.memory, "memory"), **message.tensors(saved)}

    def restore(self, tensors: State) -> None:
        """Inverse of `tensors`; what the server remembers has the type of what it began with."""
        if self.memory is not None:
            self.memory = message.restored(type(self.memory), tensors, "memory")
        saved: _Saved = message.restored(_Saved, tensors)
        self.shared, self.best, self.models = saved.shared, saved.best, saved.model
        self.momenta, self.copies = saved.momentum, saved.copy
        self.assigned = {} if saved.assigned is None else dict(saved.assigned.tolist())
        self.personal = Shelf(self.personal.folder)
        for file, rows in saved.far.items():
            self.personal.place(file, rows)
        self.personal.update(saved.personal)

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
        places: tuple[MutableMapping[int, State], ...] = (self.personal, self.copies)
        for place, state in zip(places, (personal, copies or {}), strict=True):
            own = {name: compact(t) for name, t in state.items() if t is not common.get(name)}
            if own:
                place[client] = own
            elif client in place:
                del place[client]

    def model(self, client: int) -> State:
        """The model of client i's cluster; empty if it has none."""
        return self.models[self.assigned[client]] if client in self.assigned else {}

    def view(self, client: int) -> State:
        """What client i holds: shared laid over initial, its cluster's model, its personal state and copies over both.

        The dictionary is new, the tensors are not: clients that share a body hold the same tensor objects.
        """
        own = {**self.personal.get(client, {}), **self.copies.get(client, {})}
        return {**self.initial, **self.shared, **self.model(client), **own}
