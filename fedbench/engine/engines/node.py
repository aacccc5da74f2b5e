"""What is done on a node of Ray: it tells about itself, and makes the runs of an order."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.engine.engines import own
from fedbench.engine.engines.order import Order, Result, executed
from fedbench.engine.engines.own import Own
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, scratch
from fedbench.imports import closure
from fedbench.machine import CORES
from fedbench.store import Store
from fedbench.store.provenance import fingerprint, libraries

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.inputs import Data

#: What must be the same on all nodes.
DECISIVE = ("python", "torch", "fedbench", "code")


def versions() -> dict[str, str]:
    """Of what decides a run's numbers, in this process."""
    of = libraries()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": of.get("torch", "none").partition("+")[0],  # not for which GPU it was built
        "fedbench": of["fedbench"],
        "code": fingerprint(*closure("engine/training.py")),
    }


@dataclass(frozen=True)
class Token:
    """A file in the driver's store: who reads the same text there sees the same store."""

    path: Path
    text: str

    @classmethod
    def laid(cls, store: Store) -> Token:
        """A new one."""
        store.prepare()
        token = cls(scratch(store.home / "engine"), uuid.uuid4().hex)
        with disk_errors("marking the store for other nodes", store.home):
            try:
                token.path.write_text(token.text)
            except OSError:
                token.path.unlink(missing_ok=True)
                raise
        return token

    def seen(self) -> bool:
        """Whether this process sees it."""
        try:
            return self.path.read_text() == self.text
        except OSError:
            return False

    @property
    def home(self) -> Path:
        return self.path.parent


@dataclass(frozen=True)
class About:
    """What a node tells of itself."""

    host: str
    versions: Mapping[str, str]
    shares: bool  #: it sees the driver's store
    trouble: str = ""  #: why it can make no runs


def about(token: Token, files: Sequence[Own]) -> About:
    """Look at the node of this process: its versions, whether it sees the driver's store and can write there (else into
    a folder of its own), and whether it can load users' files."""
    trouble, shares = "", token.seen()
    try:
        with tempfile.TemporaryFile(dir=token.home if shares else None):
            pass
    except OSError as error:
        where = f"the store {token.home}" if shares else f"its folder {tempfile.gettempdir()}"
        trouble = f"cannot write into {where} ({error.strerror})"
    for one in files if not trouble else ():
        try:
            own.taken(one)
        except FedbenchError as error:
            trouble = error.message
    return About(socket.gethostname(), versions(), shares, trouble)


class Mailbox:
    """An actor between the nodes and the driver: how far runs are, by the keys of their tasks."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Progress]] = []

    def put(self, key: str, now: Progress | None) -> None:
        """Leave a note; None: nothing (who waits for that has delivered all before it)."""
        if now is not None:
            self.notes.append((key, now))

    def take(self) -> list[tuple[str, Progress]]:
        """The notes since the last time."""
        notes, self.notes = self.notes, []
        return notes


@dataclass(frozen=True)
class Delivery:
    """A result, and where the driver's store is not shared the files of what was made: kind and id -> name -> bytes."""

    result: Result
    files: Mapping[tuple[str, str], Mapping[str, bytes]] = field(default_factory=dict)


def train(
    order: Order, token: Token, shared: bool, cores: int, tell: Callable[[Progress], Any], data: Mapping[str, Data]
) -> Delivery:
    """Make the runs of an order in this process: in the driver's store if it is `shared`, else in one that is given up
    afterwards."""
    os.environ[CORES] = str(cores)
    if shared:
        if token.seen():
            return Delivery(executed(order, Store(token.home), tell, data=data))
        error = FedbenchError(f"node {socket.gethostname()} does not see the store {token.home}", "mount it there")
        return Delivery(Result("", error=error))
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        store = Store(Path(folder))
        store.prepare()
        result = executed(order, store, tell, data=data)
        paths = [store.path("run", id) for id in result.ids] + [one.path for one in store.list("metrics")]
        return Delivery(
            result, {(path.parent.name, path.name): {f.name: f.read_bytes() for f in path.iterdir()} for path in paths}
        )
