"""The engine `jobs`: worker processes on this machine with one store, each with a share of the cores or a GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.order import Order, Result, executed
from fedbench.engine.job import record_failure
from fedbench.engine.run import Observer
from fedbench.engine.training import artifacts
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.machine import CORES
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.store import Artifact


# A worker process: it receives orders over a connection, and sends progress and results back.


#: Message of the driver: save and end the current order.
STOP = "stop"


class OrderServer:
    """Executes orders until the driver ends."""

    def __init__(self, line: Connection, store: Store) -> None:
        self.line, self.store = line, store
        self.orders: SimpleQueue[Order | None] = SimpleQueue()
        self.busy, self.stopped, self.lock = False, False, threading.Lock()

    def listen(self) -> None:
        """Receive the driver's messages (in a thread). STOP, or the end of the driver, interrupts the current order;
        later orders are not executed."""
        message: Any = STOP
        while message is not None:
            try:
                message = self.line.recv()
            except (EOFError, OSError):
                message = None
            if message in (STOP, None):
                with self.lock:
                    self.stopped = True
                    if self.busy:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if message != STOP:
                self.orders.put(message)

    def serve(self) -> None:
        """Execute the orders, one after another."""
        from fedbench.core.trainer import Interrupted

        while (order := self.orders.get()) is not None:
            result = Result(process(), error=Interrupted(0))
            try:
                with self.lock:
                    self.busy = not self.stopped
                if self.busy:
                    result = executed(order, self.store, self.line.send)
                with self.lock:
                    self.busy = False
            except KeyboardInterrupt:  # it arrived before the order had begun, or after it had ended
                self.busy = False
            self.line.send(result)


def main(descriptor: int, home: str) -> None:
    """Serve the driver at the other end of the socket `descriptor`; `home`: folder of the store."""

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a program may parse the driver's stdout
    import fedbench.core.trainer  # noqa: F401  (imports torch while the driver still plans)

    worker = OrderServer(Connection(descriptor), Store(Path(home)))
    threading.Thread(target=worker.listen, daemon=True, name="driver").start()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        worker.serve()


#: Seconds after which a worker that should end is killed.
PATIENCE = 5.0


class DiedError(FedbenchError):
    """A worker process has died."""


class Jobs(Engine):
    """Up to `count` worker processes with `cores` cores each; `devices` (GPU numbers) are assigned to them in turn."""

    def __init__(
        self,
        store: Store,
        roots: list[Path],
        count: int,
        cores: int,
        device: str = "auto",
        executor: str = "auto",
        devices: Sequence[int] = (),
    ) -> None:
        self.store, self.roots, self.slots, self.cores = store, roots, count, cores
        self.device, self.executor, self.devices = device, executor, devices
        self.lock, self.inputs = threading.Lock(), threading.Lock()
        self.free = list(range(count))  #: numbers of workers that are not running
        self.idle: list[Process] = []
        self.busy: list[Process] = []
        self.processes: set[str] = set()
        self.stopping = False

    def get_ready(self, runs: int) -> None:
        """Start the workers, which import their libraries meanwhile."""
        with self.lock:
            while self.free and len(self.idle) + len(self.busy) < runs:
                self.idle.append(self._start())

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        if len(done := self.complete(jobs)) == len(jobs):
            return done
        with self.inputs, contextlib.suppress(FedbenchError):  # the worker will report and record the error
            for job in jobs:  # before the workers, so that only one process makes them
                artifacts(job.spec.setting.partition, self.store, self.roots, job.replaces is not None)
        order = Order.of(jobs, self.roots, self.device, self.executor)
        with self._worker(jobs[0].spec.setting.partition.id) as worker:
            try:
                result = worker.execute(order, observe)
            except DiedError as error:
                if len(jobs) == 1:
                    record_failure(jobs[0], self.store, error)
                raise
        self.processes.add(result.process)
        return [self.store.open("run", id) for id in result.checked().ids]

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            for worker in self.busy:
                worker.send(STOP)

    def close(self) -> None:
        """End the workers; busy ones have PATIENCE seconds to save their completed rounds."""
        with self.lock:
            workers, self.idle = [*self.idle, *self.busy], []
        for worker in workers:
            worker.line.close()
        for worker in workers:
            worker.end()

    @contextlib.contextmanager
    def _worker(self, partition: str):  # type: ignore[no-untyped-def]
        """A worker for an order, preferably one that has the images of the partition in memory."""
        from fedbench.core.trainer import Interrupted

        with self.lock:
            if self.stopping:
                raise Interrupted(0)
            if not self.idle:
                self.idle.append(self._start())
            worker = next((one for one in self.idle if one.partition == partition), self.idle[0])
            self.idle.remove(worker)
            self.busy.append(worker)
        worker.partition = partition
        try:
            yield worker
        finally:
            with self.lock:
                self.busy.remove(worker)
                if worker.child.poll() is None:
                    self.idle.append(worker)
                else:
                    self.free.append(worker.number)

    def _start(self) -> Process:
        number = self.free.pop(0)
        environment = {CORES: str(self.cores), "OMP_NUM_THREADS": str(self.cores)}
        if self.devices:
            device = self.devices[number % len(self.devices)]
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = (
                visible[device] if device < len(visible) and visible[0] else str(device)
            )
        return Process(number, self.store.home, environment)


class Process:
    """The driver's handle of a worker process."""

    def __init__(self, number: int, home: Path, environment: dict[str, str]) -> None:
        self.number, self.partition = number, ""
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from fedbench.engine.engines.jobs import main; "
            f"main({theirs.fileno()}, {os.fspath(home)!r})"
        )
        # A new session: Ctrl-C in the terminal must reach only the driver, which then stops the workers.
        self.child = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.line = Connection(ours.detach())

    def send(self, message: object) -> None:
        with self.lock, contextlib.suppress(OSError):  # a dead worker is noticed when its result is read
            self.line.send(message)

    def execute(self, order: Order, observe: Observer) -> Result:
        """Execute an order. Raises DiedError if the process dies; on an interrupt it first stops the process."""
        self.send(order)
        try:
            return self._result(observe)
        except KeyboardInterrupt:
            self.send(STOP)
            self._result(lambda _: None)
            raise
        except (EOFError, OSError):
            code = self.child.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise DiedError(
                f"the worker process {self.child.pid} {how}", "if memory ran out, take fewer --jobs"
            ) from None

    def _result(self, observe: Observer) -> Result:
        while not isinstance(answer := self.line.recv(), Result):
            observe(answer)
        return answer

    def end(self) -> None:
        """Wait PATIENCE seconds for its end, then kill it."""
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
