"""A worker process of the engine `jobs`: orders come over one connection, rounds and results go back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedbench.engine.engines.order import Order, executed
from fedbench.store import Store

#: What the driver sends in place of an order: the one under way is to end, saved.
STOP = "stop"


class Worker:
    """Serves orders until the driver is gone."""

    def __init__(self, line: Connection, store: Store) -> None:
        self.line, self.store = line, store
        self.orders: SimpleQueue[Order | None] = SimpleQueue()
        self.busy, self.lock = False, threading.Lock()

    def listen(self) -> None:
        """Hear the driver (the body of a thread); what is under way when it goes is interrupted."""
        message: Any = STOP
        while message is not None:
            try:
                message = self.line.recv()
            except (EOFError, OSError):
                message = None
            if message in (STOP, None):
                with self.lock:
                    if self.busy:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if message != STOP:
                self.orders.put(message)

    def serve(self) -> None:
        """Make what is ordered, one order after another."""
        while (order := self.orders.get()) is not None:
            with self.lock:
                self.busy = True
            result = executed(order, self.store, self.line.send)
            try:
                with self.lock:
                    self.busy = False
            except KeyboardInterrupt:  # it came too late
                self.busy = False
            self.line.send(result)


def main(descriptor: int, home: str) -> None:
    """Serve the driver at the other end of a socket."""

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the driver's standard output may be read by a program
    import fedbench.core.trainer  # noqa: F401  (torch: while the driver still plans)

    worker = Worker(Connection(descriptor), Store(Path(home)))
    threading.Thread(target=worker.listen, daemon=True, name="driver").start()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        worker.serve()
