"""The engine `ray`: runs are tasks of a Ray cluster of one or more machines, with or without a shared disk."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedbench.engine.engines import order as orders
from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.order import Order, Result, UserClass, executed, of_runs
from fedbench.engine.job import record_failure
from fedbench.engine.run import Notes, Observer, claimed, under_way
from fedbench.engine.training import data_of
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, scratch
from fedbench.imports import closure
from fedbench.machine import CORES
from fedbench.store import Store
from fedbench.store.claim import STALE_SECONDS, HeldError
from fedbench.store.provenance import fingerprint, libraries

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.job import Job
    from fedbench.engine.training import Data
    from fedbench.specs import PartitionSpec, RunSpec
    from fedbench.store import Artifact


# -- node ------------------------------------------------------------------------------------------------------
# Code that is executed on a node of the cluster: a report about the node, and the runs of an order.


#: Versions that must be the same on all nodes.
DECISIVE = ("python", "torch", "fedbench", "code")


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on, in this process."""
    of = libraries()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": of.get("torch", "none").partition("+")[0],  # without the CUDA version
        "fedbench": of["fedbench"],
        "code": fingerprint(*closure("engine/training.py")),
    }


@dataclass(frozen=True)
class Token:
    """A file in the driver's store: a node that can read its text there shares the store."""

    path: Path
    text: str

    @classmethod
    def written(cls, store: Store) -> Token:
        """Write a new token into the store."""
        store.prepare()
        token = cls(scratch(store.home / "engine"), uuid.uuid4().hex)
        with disk_errors("marking the store for other nodes", store.home):
            try:
                token.path.write_text(token.text)
            except OSError:
                token.path.unlink(missing_ok=True)
                raise
        return token

    def visible(self) -> bool:
        """Whether this process can read the token in its store."""
        try:
            return self.path.read_text() == self.text
        except OSError:
            return False

    @property
    def home(self) -> Path:
        return self.path.parent


@dataclass(frozen=True)
class About:
    """A node's report about itself."""

    host: str
    versions: Mapping[str, str]
    shares: bool  #: it has access to the driver's store
    trouble: str = ""  #: why it cannot train runs; "" if it can


def about(token: Token, files: Sequence[UserClass]) -> About:
    """Report on the node of this process: versions, whether it shares the driver's store, whether it can write there
    (or else into its temporary folder), and whether it can load the users' files."""
    trouble, shares = "", token.visible()
    try:
        with tempfile.TemporaryFile(dir=token.home if shares else None):
            pass
    except OSError as error:
        where = f"the store {token.home}" if shares else f"its folder {tempfile.gettempdir()}"
        trouble = f"cannot write into {where} ({error.strerror})"
    for one in files if not trouble else ():
        try:
            orders.loaded_here(one)
        except FedbenchError as error:
            trouble = error.message
    return About(socket.gethostname(), versions(), shares, trouble)


class Mailbox:
    """A Ray actor that collects the progress of tasks for the driver."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Progress]] = []

    def put(self, key: str, now: Progress | None) -> None:
        """Add progress of the task `key`. None adds nothing; waiting for this call ensures that earlier ones ended."""
        if now is not None:
            self.notes.append((key, now))

    def take(self) -> list[tuple[str, Progress]]:
        """Return the notes (key of a task, progress) since the last call."""
        notes, self.notes = self.notes, []
        return notes


@dataclass(frozen=True)
class Delivery:
    """A result and, if the store is not shared, the files of the artifacts: (kind, id) -> file name -> bytes."""

    result: Result
    files: Mapping[tuple[str, str], Mapping[str, bytes]] = field(default_factory=dict)


def train(
    order: Order, token: Token, shared: bool, cores: int, tell: Callable[[Progress], Any], data: Mapping[str, Data]
) -> Delivery:
    """Train the runs of an order in this process, in the driver's store if it is `shared`, else in a temporary store.
    `data`: partition id -> its inputs."""
    os.environ[CORES] = str(cores)
    if shared:
        if token.visible():
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


# -- cluster ---------------------------------------------------------------------------------------------------
# Before training: connect to the cluster, check that a run fits into it, and compare its nodes with this machine.


#: Address that means: start a cluster on this machine, for this command only.
LOCAL = "local"
#: Seconds: timeout for the cluster's answer, timeout for the reports of all nodes, and interval of the checks of this
#: machine's Ray process.
ANSWER, TELL, WATCH = 10.0, 300.0, 0.5
SAME = "install the same fedbench, Python and torch on all nodes"


#: Set when this process leaves its cluster.
_left = threading.Event()


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
    _left.clear()
    if not address.startswith("ray://"):  # a Ray client has no local raylet
        here = ray.get_runtime_context().get_node_id()
        at = next((one["NodeManagerAddress"], one["NodeManagerPort"]) for one in ray.nodes() if one["NodeID"] == here)
        threading.Thread(target=_watch, args=(at,), daemon=True, name="raylet").start()
    return True


def leave() -> None:
    """Disconnect from the cluster."""
    _left.set()
    ray.shutdown()


def _watch(address: tuple[str, int]) -> None:
    """Exit with a one-line error when Ray's process on this machine (the raylet) has ended. Ray itself would kill this
    process some seconds later without a message. Saved files stay intact, as after any kill."""
    while not _left.wait(WATCH):
        try:
            socket.create_connection(address, ANSWER).close()
        except ConnectionRefusedError:
            if not _left.is_set():
                line = "Ray's process on this machine has ended; memory may be short; the same command continues"
                sys.stderr.write(f"\nfedbench: {line}\n")
                sys.stderr.flush()
                os._exit(1)
        except OSError:  # for example a timeout: the machine may be busy
            continue


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
                f"{most:g}", f"see {option}",
            )  # fmt: skip
    room = (min(one.get(kind, 0.0) / n for kind, n in (("CPU", cpus), ("GPU", gpus)) if n) for one in nodes)
    return gpus, max(sum(map(int, room)), 1)


def checked(token: Token, files: Sequence[UserClass]) -> bool:
    """Whether all nodes share the driver's store. Raises FedbenchError for a node that cannot train runs, cannot load a
    user's file, or has other versions (see DECISIVE)."""
    ours, nodes = versions(), _about(token, files)
    for one in nodes:
        for what in DECISIVE:
            if (theirs := one.versions.get(what)) != ours[what]:
                name = "code of fedbench" if what == "code" else what
                raise FedbenchError(f"node {one.host} has {name} {theirs}, and here it is {ours[what]}", SAME)
        if one.trouble:
            raise FedbenchError(f"node {one.host}: {one.trouble}", "nothing was trained")
    return all(one.shares for one in nodes)


def _about(token: Token, files: Sequence[UserClass]) -> list[About]:
    """The report of each node."""

    def look(packed: bytes) -> Any:  # pickled by value, as the node may lack fedbench
        import pickle
        import platform

        try:
            return about(*pickle.loads(packed))
        except (ImportError, AttributeError) as error:
            return platform.node(), f"{error}"

    packed = pickle.dumps((token, files))
    nodes = [NodeAffinitySchedulingStrategy(one["NodeID"], soft=False) for one in ray.nodes() if one["Alive"]]
    task = ray.remote(look)
    tasks = [task.options(num_cpus=0, max_retries=0, scheduling_strategy=node).remote(packed) for node in nodes]
    try:
        answers = ray.get(tasks, timeout=TELL)
    except RayError as error:
        why = next(iter(str(error).strip().splitlines()[::-1]), "")
        raise FedbenchError(f"a node of the Ray cluster cannot run fedbench ({why})", SAME) from error
    for answer in answers:
        if not isinstance(answer, About):
            raise FedbenchError(f"node {answer[0]} has no such fedbench ({answer[1]})", SAME)
    return list(answers)


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


# -- on ray ----------------------------------------------------------------------------------------------------


#: How many times a run is restarted after its node is lost.
LIVES = 3
#: Seconds between two checks of a task, and between two attempts to claim a run that a dead node has claimed.
LOOK, WAIT = 0.5, 5.0


class Ray(Engine):
    """Trains each run as a task with `cpus` cores and `gpus` GPUs. `address`: ray://HOST:PORT, HOST:PORT, or local."""

    def __init__(
        self, store: Store, roots: list[Path], address: str, cpus: float = 1.0, gpus: float | None = None,
        device: str = "auto", executor: str = "auto",
    ) -> None:  # fmt: skip
        self.store, self.roots, self.address, self.cpus, self.gpus = store, roots, address, cpus, gpus
        self.device, self.executor = device, executor
        self.token: Token | None = None
        self.shared = self.connected = self.stopping = False
        self.lock, self.mail_lock = threading.Lock(), threading.Lock()
        self.looked = 0.0
        self.data: dict[tuple[str, bool], Any] = {}  #: (partition id, again) -> reference in Ray's object store
        self.tasks: dict[str, Any] = {}  #: key -> active task
        self.observers: dict[str, Observer] = {}
        self.processes: set[str] = set()

    @property
    def goes_on(self) -> str:  # type: ignore[override]
        saved = "continues from the saved rounds" if self.shared else "starts incomplete runs again"
        return f"The same command {saved}."

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Connect to the cluster and check its nodes."""
        if not runs or self.token:
            return
        self.connected = connected(self.address)
        # No more tasks than places: Ray starts a worker process for each waiting task, and ends it unused.
        self.gpus, self.slots = places(self.cpus, self.gpus, self.device)
        self.token = Token.written(self.store)
        alone = self.connected and self.address == LOCAL  # the same machine, so nothing to compare
        self.shared = alone or checked(self.token, of_runs(runs))
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        if len(done := self.complete(jobs)) == len(jobs):
            return done
        with contextlib.ExitStack() as stack:
            if not self.shared:  # otherwise the worker claims them
                ours = claimed(jobs, self.store, stack)
                jobs = [job for job, _ in ours]
                if not jobs:
                    return done
                stack.enter_context(under_way(ours, self.store))
                observe = _noting(Notes([self.store.work(job.spec.id) for job in jobs], {}), observe)
            try:
                delivery = self._with_restarts(jobs, observe)
                result = delivery.result.checked()
                for (kind, id), files in delivery.files.items():
                    replaced = [job.replaces for job in jobs if job.spec.id == id]
                    self.store.take_in(kind, id, files, *replaced)
            except FedbenchError as error:
                if len(jobs) == 1 and not self.shared and not isinstance(error, HeldError):
                    record_failure(jobs[0], self.store, error)
                raise
        self.processes.add(result.process)
        return [self.store.open("run", id) for id in result.ids]

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            for task in self.tasks.values():
                ray.cancel(task)

    def close(self) -> None:
        if self.token:
            self.token.path.unlink(missing_ok=True)
        self.data, self.tasks, self.token = {}, {}, None
        if self.connected:
            leave()
            self.connected = False

    # -- a task ----------------------------------------------------------------------------------------

    def _with_restarts(self, jobs: Sequence[Job], observe: Observer) -> Delivery:
        """Execute the jobs; up to LIVES times again on another node after their node is lost."""
        from fedbench.core.trainer import Progress

        order = Order.of(jobs, self.roots, "cuda" if self.gpus else "cpu", self.executor)
        again = any(job.replaces is not None for job in jobs)
        partitions = {job.spec.setting.partition.id: job.spec.setting.partition for job in jobs}
        data = {id: self._in_store(spec, again) for id, spec in partitions.items()}
        lost, since = 0, time.monotonic()
        while True:
            try:
                delivery = self._task(order, data, observe)
            except _LostError as error:
                lost, since = lost + 1, time.monotonic()
                if lost > LIVES:
                    raise FedbenchError(
                        f"its workers were lost {lost} times ({error})", "memory may be short"
                    ) from error
                observe(Progress(0, jobs[0].spec.setting.rounds, 0.0, None, "its node was lost; another continues"))
                continue
            held = lost and isinstance(delivery.result.error, HeldError)
            if not held or time.monotonic() - since > 1.5 * STALE_SECONDS:
                return delivery
            time.sleep(WAIT)  # until the dead node's claim expires

    def _task(self, order: Order, data: dict[str, Any], observe: Observer) -> Delivery:
        from fedbench.core.trainer import Interrupted

        key = uuid.uuid4().hex
        with self.lock:
            if self.stopping:
                raise Interrupted(0)
            place = ray.remote(_train).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)
            cores = max(int(self.cpus), 1)
            task = place.remote(order, self.token, self.shared, cores, self.mailbox, key, [*data], *data.values())
            self.tasks[key] = task
            self.observers[key] = observe
        try:
            while not ray.wait([task], timeout=LOOK)[0]:
                self._deliver()
            delivery: Delivery = ray.get(task)
            self._deliver(at_once=True)
            return delivery
        except KeyboardInterrupt:
            ray.cancel(task)
            ray.wait([task])
            raise
        except TaskCancelledError:
            raise Interrupted(0) from None
        except (RayTaskError, TaskUnschedulableError) as error:
            why = next(iter(str(error).strip().splitlines()[::-1]), type(error).__name__)
            raise FedbenchError(f"Ray cannot run it ({why})", SAME) from error
        except RayError as error:
            raise _LostError(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}") from error
        finally:
            with self.lock:
                del self.tasks[key], self.observers[key]

    def _deliver(self, at_once: bool = False) -> None:
        """Pass new progress to the observers; one call in LOOK seconds serves the tasks of all threads."""
        if not at_once and time.monotonic() - self.looked < LOOK:
            return
        with self.mail_lock:
            self.looked = time.monotonic()
            with contextlib.suppress(RayError):  # progress may be lost with a node; results are not
                for key, now in ray.get(self.mailbox.take.remote()):
                    if (observe := self.observers.get(key)) is not None:
                        observe(now)

    def _in_store(self, spec: PartitionSpec, again: bool) -> Any:
        """Reference to a partition and its images in Ray's object store; each node has one copy for all its workers."""
        with self.lock:
            if (spec.id, again) not in self.data:
                while len(self.data) >= 4:  # active tasks have their own references
                    self.data.pop(next(iter(self.data)))
                self.data[spec.id, again] = ray.put(data_of(spec, self.store, self.roots, again))
            return self.data[spec.id, again]


class _LostError(Exception):
    """The worker process or the node of a task was lost."""


def _train(
    order: Order, token: Token, shared: bool, cores: int, mailbox: Any, key: str, ids: list[str], *data: Any
) -> Delivery:
    """The Ray task; Ray has copied `data`, the inputs of the partitions `ids`, to its node."""
    inputs = dict(zip(ids, data, strict=True))
    delivery = train(order, token, shared, cores, lambda now: mailbox.put.remote(key, now), inputs)
    with contextlib.suppress(RayError):  # the mailbox's node may be lost
        ray.get(mailbox.put.remote(key, None))
    return delivery


def _noting(notes: Notes, observe: Observer) -> Observer:
    def both(now: Any) -> None:
        notes.hear(now)
        observe(now)

    return both
