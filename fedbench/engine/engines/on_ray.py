"""The engine `ray`: runs as tasks of a Ray cluster, on any number of machines, with or without a shared disk."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedbench.engine.engines import cluster, node
from fedbench.engine.engines.cluster import SAME
from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.node import Delivery, Mailbox, Token
from fedbench.engine.engines.order import Order
from fedbench.engine.engines.own import of_runs
from fedbench.engine.inputs import data_of
from fedbench.engine.progress import Notes
from fedbench.engine.run import Observer, claimed, under_way
from fedbench.engine.work import record_failure
from fedbench.errors import FedbenchError
from fedbench.store.claim import STALE_SECONDS, HeldError

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.specs import PartitionSpec, RunSpec
    from fedbench.store import Artifact, Store

#: So often a run whose node is lost is begun again.
LIVES = 3
#: Seconds between two looks at a task, and at a claim that a dead node has left.
LOOK, WAIT = 0.5, 5.0


class Ray(Engine):
    """Tasks of so many cores and GPUs each. `address`: ray://HOST:PORT, HOST:PORT of a cluster, or local."""

    def __init__(
        self, store: Store, roots: list[Path], address: str, cpus: float = 1.0, gpus: float | None = None,
        device: str = "auto", executor: str = "auto",
    ) -> None:  # fmt: skip
        self.store, self.roots, self.address, self.cpus, self.gpus = store, roots, address, cpus, gpus
        self.device, self.executor = device, executor
        self.token: Token | None = None
        self.shared = self.connected = self.stopping = False
        self.lock, self.mail = threading.Lock(), threading.Lock()
        self.looked = 0.0
        self.data: dict[tuple[str, bool], Any] = {}  #: the last partitions in the object store
        self.tasks: dict[str, Any] = {}  #: what is under way, by keys
        self.hear: dict[str, Observer] = {}
        self.processes: set[str] = set()

    @property
    def goes_on(self) -> str:  # type: ignore[override]
        saved = "goes on from the rounds that are saved" if self.shared else "begins anew what was not complete"
        return f"The same command {saved}."

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Connect, and look at every node."""
        if not runs or self.token:
            return
        self.connected = cluster.connected(self.address)
        # Ray starts a worker process for each task that waits, and ends it again: no more tasks than places.
        self.gpus, self.slots = cluster.places(self.cpus, self.gpus, self.device)
        self.token = Token.laid(self.store)
        alone = self.connected and self.address == cluster.LOCAL  # nothing there is unlike here
        self.shared = alone or cluster.checked(self.token, of_runs(runs))
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        if all(done := [job.done(self.store) for job in jobs]):
            return [one for one in done if one]
        with contextlib.ExitStack() as stack:
            if not self.shared:  # else the worker claims them itself
                ours = claimed(jobs, self.store, stack)
                jobs = [job for job, _ in ours]
                if not jobs:
                    return [one for one in done if one]
                stack.enter_context(under_way(ours, self.store))
                observe = _noting(Notes([self.store.work(job.spec.id) for job in jobs], {}), observe)
            try:
                delivery = self._with_lives(jobs, observe)
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

    def ours(self, artifact: Artifact) -> bool:
        return super().ours(artifact) or artifact.provenance.get("process") in self.processes

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
            cluster.leave()
            self.connected = False

    # -- a task ----------------------------------------------------------------------------------------

    def _with_lives(self, jobs: Sequence[Job], observe: Observer) -> Delivery:
        """What comes of the jobs, on another node where theirs is lost."""
        from fedbench.core.trainer import Progress

        order = Order.of(jobs, self.roots, "cuda" if self.gpus else "cpu", self.executor)
        data = {spec.id: self._in_store(spec, again) for spec, again in _partitions(jobs)}
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
                observe(Progress(0, jobs[0].spec.setting.rounds, 0.0, None, "its node was lost; it goes on elsewhere"))
                continue
            held = lost and isinstance(delivery.result.error, HeldError)
            if not held or time.monotonic() - since > 1.5 * STALE_SECONDS:
                return delivery
            time.sleep(WAIT)  # the dead node's claim is soon too old

    def _task(self, order: Order, data: dict[str, Any], observe: Observer) -> Delivery:
        from fedbench.core.trainer import Interrupted

        key = uuid.uuid4().hex
        with self.lock:
            if self.stopping:
                raise Interrupted(0)
            task = self.tasks[key] = (
                ray.remote(_train)
                .options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)
                .remote(
                    order,
                    self.token,
                    self.shared,
                    max(int(self.cpus), 1),
                    self.mailbox,
                    key,
                    [*data],
                    *data.values(),
                )
            )
            self.hear[key] = observe
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
                del self.tasks[key], self.hear[key]

    def _deliver(self, at_once: bool = False) -> None:
        """Tell observers what has come; one thread looks for all."""
        if not at_once and time.monotonic() - self.looked < LOOK:
            return
        with self.mail:
            self.looked = time.monotonic()
            with contextlib.suppress(RayError):  # notes may be lost with a node, results not
                for key, now in ray.get(self.mailbox.take.remote()):
                    if (observe := self.hear.get(key)) is not None:
                        observe(now)

    def _in_store(self, spec: PartitionSpec, again: bool) -> Any:
        """A partition and its images in Ray's object store, which each node has once, for all of its workers."""
        with self.lock:
            if (spec.id, again) not in self.data:
                while len(self.data) >= 4:  # tasks that need them still have them
                    self.data.pop(next(iter(self.data)))
                self.data[spec.id, again] = ray.put(data_of(spec, self.store, self.roots, again))
            return self.data[spec.id, again]


class _LostError(Exception):
    """The worker or the node of a task is gone."""


def _train(
    order: Order,
    token: Token,
    shared: bool,
    cores: int,
    mailbox: Any,
    key: str,
    ids: list[str],
    *data: Any,
) -> Delivery:
    """The task: Ray has fetched the `data` of the partitions `ids` onto its node."""
    delivery = node.train(
        order, token, shared, cores, lambda now: mailbox.put.remote(key, now), dict(zip(ids, data, strict=True))
    )
    with contextlib.suppress(RayError):  # the notes' node may be the lost one
        ray.get(mailbox.put.remote(key, None))
    return delivery


def _partitions(jobs: Sequence[Job]) -> Iterator[tuple[PartitionSpec, bool]]:
    again = any(job.replaces is not None for job in jobs)
    yield from ((job.spec.setting.partition, again) for job in jobs)


def _noting(notes: Notes, observe: Observer) -> Observer:
    def both(now: Any) -> None:
        notes.hear(now)
        observe(now)

    return both
