"""The engine `jobs`: worker processes of this machine on one store, each with its share of the cores or a GPU."""

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
from fedbench.machine import CORES
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.specs import RunSpec
    from fedbench.store import Artifact


# -- worker ----------------------------------------------------------------------------------------------------
# A worker process of the engine `jobs`: orders come over one connection, rounds and results go back.


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


# -- jobs ------------------------------------------------------------------------------------------------------


#: Seconds that a worker without work has to end when it is told to.
PATIENCE = 5.0


class DiedError(FedbenchError):
    """A worker process that is no more."""


class Jobs(Engine):
    """So many worker processes; with `devices` (numbers of GPUs) one after another on each of these in turn."""

    def __init__(
        self, store: Store, roots: list[Path], count: int, cores: int, device: str = "auto", executor: str = "auto",
        devices: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.store, self.roots, self.slots, self.cores = store, roots, count, cores
        self.device, self.executor, self.devices = device, executor, devices
        self.lock, self.inputs = threading.Lock(), threading.Lock()
        self.free = list(range(count))  #: numbers of workers that are not there
        self.idle: list[Process] = []
        self.busy: list[Process] = []
        self.processes: set[str] = set()
        self.stopping = False

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Start the workers: they load their libraries meanwhile."""
        with self.lock:
            while self.free and len(self.idle) + len(self.busy) < len(runs):
                self.idle.append(self._start())

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        if len(done := self.complete(jobs)) == len(jobs):
            return done
        with self.inputs, contextlib.suppress(FedbenchError):  # a worker says what is wrong, and records it
            for job in jobs:  # once for all workers
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
        """End the workers: those at work save what they can, unless this is called twice."""
        with self.lock:
            workers, self.idle = [*self.idle, *self.busy], []
        for worker in workers:
            worker.line.close()
        for worker in workers:
            worker.end()

    @contextlib.contextmanager
    def _worker(self, partition: str):  # type: ignore[no-untyped-def]
        """A worker for an order, best one that has the images of that partition already."""
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
    """A worker process as the driver sees it."""

    def __init__(self, number: int, home: Path, environment: dict[str, str]) -> None:
        self.number, self.partition = number, ""
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from fedbench.engine.engines.jobs import main; "
            f"main({theirs.fileno()}, {os.fspath(home)!r})"
        )
        # A session of its own: an interrupt at the terminal is the driver's, who tells the workers.
        self.child = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **environment}, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.line = Connection(ours.detach())

    def send(self, message: object) -> None:
        with self.lock, contextlib.suppress(OSError):  # one that has just died is missed when it does not answer
            self.line.send(message)

    def execute(self, order: Order, observe: Observer) -> Result:
        """Let it make an order. Raises DiedError if it dies over that; at an interrupt it is stopped first."""
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
        """Wait for it a while, then end it."""
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
