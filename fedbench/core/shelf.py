"""Clients' personal states: in memory, and beyond a limit in files of the run's work folder.

    work/ID/personal-ROUND-K.safetensors    clients [n], and each tensor of their states [n, ...]

A file is written once. Who trains again is in memory from then on, until it is put by in a new file; a file of whose
clients more than half have gone on is given up with the next one, and stays on disk while a checkpoint lists it. Files
are mapped into memory to read a client's rows; a thread does so ahead of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fedbench.core.state import State, names_of, size_in_bytes, write
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, sha256_of
from fedbench.machine import memory

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

    def copy(self) -> Shelf:
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
