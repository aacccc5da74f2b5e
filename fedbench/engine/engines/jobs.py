"""The engine `jobs`: worker processes of this machine on one store, each with its share of the cores or a GPU."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.order import Order, Result
from fedbench.engine.engines.worker import STOP
from fedbench.engine.inputs import artifacts
from fedbench.engine.run import Observer
from fedbench.engine.work import record_failure
from fedbench.errors import FedbenchError
from fedbench.machine import CORES

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.specs import RunSpec
    from fedbench.store import Artifact, Store

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
        self.idle: list[Worker] = []
        self.busy: list[Worker] = []
        self.processes: set[str] = set()
        self.stopping = False

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Start the workers: they load their libraries meanwhile."""
        with self.lock:
            while self.free and len(self.idle) + len(self.busy) < len(runs):
                self.idle.append(self._start())

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        done = [job.done(self.store) for job in jobs]
        if all(done):
            return [one for one in done if one]
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

    def ours(self, artifact: Artifact) -> bool:
        return super().ours(artifact) or artifact.provenance.get("process") in self.processes

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

    def _start(self) -> Worker:
        number = self.free.pop(0)
        environment = {CORES: str(self.cores), "OMP_NUM_THREADS": str(self.cores)}
        if self.devices:
            device = self.devices[number % len(self.devices)]
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = (
                visible[device] if device < len(visible) and visible[0] else str(device)
            )
        return Worker(number, self.store.home, environment)


class Worker:
    """A worker process as the driver sees it."""

    def __init__(self, number: int, home: Path, environment: dict[str, str]) -> None:
        self.number, self.partition = number, ""
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from fedbench.engine.engines.worker import main; "
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
