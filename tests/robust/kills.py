"""A process that runs a command of fedbench and stops itself at the n-th change of the store's files.

Python tells an audit hook of every file that is opened for writing, renamed, removed or made, before it happens. Which
one is the n-th depends on the command and the store alone, not on the clock: a kill can be repeated exactly.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.utime"}
#: What takes long to import is imported once, so that a process starts at once; not fedbench: its path is the child's.
_HEAVY = ["torch._dynamo", "pyarrow.dataset", "pyarrow.parquet", "safetensors.torch", "sklearn.datasets", "typer"]
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Kill:
    """A signal at the n-th change."""

    number: signal.Signals
    at: int

    @classmethod
    def drawn(cls, rng: random.Random, changes: int) -> Kill:
        """Half of them by the signal that nobody can answer."""
        return cls(rng.choice((signal.SIGKILL, *SIGNALS, signal.SIGKILL)), rng.randint(1, changes))

    def __str__(self) -> str:
        return f"{self.number.name} at change {self.at}"


@dataclass(frozen=True)
class Life:
    """How a process ended: its exit code (negative: of a signal), what it said, and how many changes it had made."""

    code: int
    err: str
    changes: int


def live(home: Path, arguments: Sequence[str], kill: Kill | None = None) -> Life:
    """`fedbench --home HOME ARGUMENTS` in a process of its own, killed as told."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_HEAVY)
    hear, tell = context.Pipe(duplex=False)
    said = home.with_name(f"{home.name}.err")
    process = context.Process(target=_life, args=(home, list(arguments), kill, said, tell))
    process.start()
    tell.close()
    process.join()
    assert process.exitcode is not None
    return Life(process.exitcode, said.read_text(), hear.recv() if hear.poll() and kill is None else 0)


def _life(home: Path, arguments: list[str], kill: Kill | None, said: Path, tell: Connection) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(os.open(said if descriptor == 2 else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.pop("FEDBENCH_DATA", None)
    quickly(setattr)
    from fedbench.__main__ import main

    changes = _watch(home, kill)
    try:
        main(["--home", str(home), *arguments])
    finally:
        tell.send(len(changes))


def _watch(home: Path, kill: Kill | None) -> list[str]:
    """From now on, the changes of the store by this process; at the n-th it gets the signal."""
    changes: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or (event == "open" and not arguments[2] & _WRITING):
            return
        path = arguments[0]
        # Of what shutil.rmtree removes only the name is told, and the folder's descriptor.
        inside = event in ("os.remove", "os.rmdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0
        if inside or (isinstance(path, str | os.PathLike) and Path(path).is_relative_to(home)):
            changes.append(event)
            if kill is not None and len(changes) == kill.at:
                signal.raise_signal(kill.number)

    sys.addaudithook(hook)
    return changes


def quickly(replace: Callable[[Any, str, Any], Any]) -> None:
    """Budget smoke at three rounds of two small steps, a checkpoint after each."""
    from fedbench import protocol
    from fedbench.core import trainer

    load = protocol.load

    def briefly(name: str) -> protocol.Protocol:
        rules = load(name)
        less = {"rounds": 3, "steps": 2, "batch_size": 16}
        return dataclasses.replace(rules, budgets={**rules.budgets, "smoke": {**rules.budgets["smoke"], **less}})

    replace(protocol, "load", briefly)
    replace(trainer, "CHECKPOINT_SECONDS", 0.0)
    replace(trainer, "CHECKPOINT_SHARE", 1e9)
