"""The engine `ray`: runs are tasks of a Ray cluster of one or more machines, which return the artifacts as bytes."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.order import Order, Result, executed
from fedbench.engine.job import record_failure
from fedbench.engine.run import Observer, ProgressFiles, claimed, under_way
from fedbench.engine.training import data_of
from fedbench.errors import FedbenchError
from fedbench.imports import closure
from fedbench.machine import CORES
from fedbench.store import Store, default_home
from fedbench.store.provenance import fingerprint, libraries

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.engine.training import Data
    from fedbench.specs import PartitionSpec
    from fedbench.store import Artifact


# Code that is executed on a node of the cluster.


SAME = "install the same fedbench, Python and torch on all nodes"


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on, in this process."""
    of = libraries()
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": of.get("torch", "none").partition("+")[0],  # without the CUDA version
        "fedbench": of["fedbench"],
        "code of fedbench": fingerprint(*closure("engine/training.py")),
    }


class Mailbox:
    """A Ray actor that collects the progress of tasks for the driver, by the tasks' keys."""

    def __init__(self) -> None:
        self.notes: dict[str, list[Progress]] = {}

    def put(self, key: str, *now: Progress) -> None:
        """Add progress of a task. Waiting for this call ensures that the task's earlier calls have ended."""
        self.notes.setdefault(key, []).extend(now)

    def take(self, key: str) -> list[Progress]:
        """Return a task's progress since the last call."""
        return self.notes.pop(key, [])


@dataclass(frozen=True)
class Delivery:
    """A result and the files of its artifacts, runs and metrics: (kind, id) -> file name -> bytes."""

    result: Result
    files: Mapping[tuple[str, str], Mapping[str, bytes]]


def train(
    order: Order, expected: Mapping[str, str], cores: int, mailbox: Any, key: str, ids: Sequence[str], *data: Data
) -> Delivery:
    """The Ray task: train the runs of an order in a temporary store.

    `expected`: the driver's versions; `data`: the inputs of the partitions `ids`, which Ray has copied to this node;
    `key`: this task's for the mailbox. All exceptions are returned in the result, also one about other versions here.
    """
    for what, own in versions().items():
        if own != expected[what]:
            line = f"node {socket.gethostname()} has {what} {own}, and here it is {expected[what]}"
            return Delivery(Result("", error=FedbenchError(line, SAME)), {})
    os.environ[CORES] = str(cores)
    # Compiled code must outlive the temporary store, where the trainer would put it.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(default_home() / "compiled"))
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        store = Store(folder)
        inputs = dict(zip(ids, data, strict=True))
        result = executed(order, store, lambda now: mailbox.put.remote(key, now), data=inputs)
        made = [*store.list("run"), *store.list("metrics")]
        files = {(one.kind, one.id): {file.name: file.read_bytes() for file in one.path.iterdir()} for one in made}
    with contextlib.suppress(RayError):  # the mailbox's node may be lost
        ray.get(mailbox.put.remote(key))
    return Delivery(result, files)


#: Address that means: start a cluster on this machine, for this command only.
LOCAL = "local"
#: Seconds: timeout for the cluster's answer.
ANSWER = 10.0


def connected(address: str) -> bool:
    """Connect to ray://HOST:PORT or HOST:PORT, or start a cluster on this machine (LOCAL), which other machines cannot
    reach. Returns False if the process was connected before, for example in a notebook. Raises FedbenchError if no
    cluster answers."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    if address == LOCAL:
        from fedbench.core.executors import available_cores

        os.environ.setdefault("RAY_worker_niceness", "0")  # usual priority: the runs are the main work here
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():
            socket.create_connection((host, int(port)), ANSWER).close()
        with _signals_as_they_are(), _on_loopback() if address == LOCAL else contextlib.nullcontext():
            ray.init(**options)
    except (OSError, RuntimeError, ValueError, ImportError, AssertionError) as error:
        raise FedbenchError(
            f"no Ray cluster to work with at {address} ({error})",
            "'ray status' shows one; if it asks for a token, set RAY_AUTH_MODE=token",
        ) from error
    return True


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Context in which Ray uses 127.0.0.1 as this machine's address, so that its processes listen only there. With the
    option _node_ip_address=127.0.0.1 Ray would use another address instead, and listen on all interfaces."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces: SIGTERM must stop a command like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def places(cpus: float, gpus: float | None, device: str) -> tuple[float, int]:
    """(GPUs per run, number of runs that fit into the cluster). If `gpus` is None, a run gets one GPU if the cluster
    has GPUs and the device allows it. Raises FedbenchError if no node has room for a run."""
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    if gpus is None:
        gpus = float(device == "cuda" or (device == "auto" and any(one.get("GPU") for one in nodes)))
    for kind, number, what in (("CPU", cpus, "core"), ("GPU", gpus, "GPU")):
        most = max((one.get(kind, 0.0) for one in nodes), default=0.0)
        if number > most:
            option = f"--{kind.lower()}s-per-run"
            raise FedbenchError(
                f"a run is to have {number:g} {what}{'s' * (number != 1)}, and no node of the cluster has more than "
                f"{most:g}",
                f"see {option}",
            )
    room = (min(one.get(kind, 0.0) / n for kind, n in (("CPU", cpus), ("GPU", gpus)) if n) for one in nodes)
    return gpus, max(sum(map(int, room)), 1)


#: How many times Ray starts a run again after its node or its process is lost.
LIVES = 3
#: Seconds between two looks at a task.
LOOK = 0.5


class Ray(Engine):
    """Trains each run as a task with `cpus` cores and `gpus` GPUs. `address`: ray://HOST:PORT, HOST:PORT, or local."""

    goes_on = "The same command starts incomplete runs again."

    def __init__(
        self,
        store: Store,
        roots: list[Path],
        address: str,
        cpus: float = 1.0,
        gpus: float | None = None,
        device: str = "auto",
        executor: str = "auto",
    ) -> None:
        self.store, self.roots, self.address, self.cpus, self.gpus = store, roots, address, cpus, gpus
        self.device, self.executor = device, executor
        self.connected = self.stopping = False
        self.lock = threading.Lock()
        self.mailbox: Any = None
        self.data: dict[tuple[str, bool], Any] = {}  #: (partition id, again) -> reference in Ray's object store
        self.tasks: set[Any] = set()  #: active tasks
        self.processes: set[str] = set()

    def get_ready(self, runs: int) -> None:
        """Connect to the cluster. Raises FedbenchError if there is none, or none with room for a run."""
        if runs and self.mailbox is None:
            self.connected = connected(self.address)
            # No more tasks than places: Ray starts a worker process for each waiting task, and ends it unused.
            self.gpus, self.slots = places(self.cpus, self.gpus, self.device)
            self.mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        from fedbench.core.trainer import Interrupted

        if len(done := self.complete(jobs)) == len(jobs):
            return done
        with contextlib.ExitStack() as stack:
            ours = claimed(jobs, self.store, stack)
            jobs = [job for job, _ in ours]
            if not jobs:
                return done
            stack.enter_context(under_way(ours, self.store))
            notes = ProgressFiles([self.store.work(job.spec.id) for job in jobs], {})

            def noted(now: Progress) -> None:
                notes.hear(now)
                observe(now)

            try:
                delivery = self._delivered(jobs, noted)
                result = delivery.result.checked()
                replaces = {job.spec.id: job.replaces for job in jobs}
                for (kind, id), files in delivery.files.items():
                    self.store.take_in(kind, id, files, replaces.get(id))
            except Interrupted:
                raise
            except Exception as error:
                if len(jobs) == 1 and ours[0][1].held():
                    record_failure(jobs[0], self.store, error)
                raise
        self.processes.add(result.process)
        return [self.store.open("run", id) for id in result.ids]

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            for task in self.tasks:
                ray.cancel(task)

    def close(self) -> None:
        self.data, self.mailbox = {}, None
        if self.connected:
            ray.shutdown()
            self.connected = False

    def _delivered(self, jobs: Sequence[Job], observe: Observer) -> Delivery:
        """Execute the jobs as a task, which Ray starts again elsewhere if its node is lost."""
        from fedbench.core.trainer import Interrupted

        order = Order.of(jobs, [], "cuda" if self.gpus else "cpu", self.executor)
        again = any(job.replaces is not None for job in jobs)
        partitions = {job.spec.setting.partition.id: job.spec.setting.partition for job in jobs}
        data = {id: self._shared(spec, again) for id, spec in partitions.items()}
        key, cores = uuid.uuid4().hex, max(int(self.cpus), 1)
        with self.lock:
            if self.stopping:
                raise Interrupted(0)
            place = ray.remote(train).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=LIVES)
            task = place.remote(order, versions(), cores, self.mailbox, key, [*data], *data.values())
            self.tasks.add(task)
        try:
            while not ray.wait([task], timeout=LOOK)[0]:
                self._hear(key, observe)
            delivery: Delivery = ray.get(task)
            self._hear(key, observe)
            return delivery
        except KeyboardInterrupt:
            ray.cancel(task)
            ray.wait([task])
            raise
        except TaskCancelledError:
            raise Interrupted(0) from None
        except RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            why = lines[-1 if isinstance(error, RayTaskError) else 0]
            hint = "its node may have another fedbench, or too little memory or disk space"
            raise FedbenchError(f"Ray could not run it ({why})", hint) from error
        finally:
            with self.lock:
                self.tasks.discard(task)

    def _hear(self, key: str, observe: Observer) -> None:
        """Pass a task's new progress to its observer."""
        with contextlib.suppress(RayError):  # progress may be lost with a node; results are not
            for now in ray.get(self.mailbox.take.remote(key)):
                observe(now)

    def _shared(self, spec: PartitionSpec, again: bool) -> Any:
        """Reference to a partition and its images in Ray's object store; each node has one copy for all its workers."""
        with self.lock:
            if (spec.id, again) not in self.data:
                while len(self.data) >= 4:  # active tasks have their own references
                    self.data.pop(next(iter(self.data)))
                self.data[spec.id, again] = ray.put(data_of(spec, self.store, self.roots, again))
            return self.data[spec.id, again]
