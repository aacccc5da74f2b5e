"""`--executor workers`: one run after another, each spread over workers of a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from fedbench.engine.engines import cluster
from fedbench.engine.engines.engine import Engine
from fedbench.engine.engines.node import Token
from fedbench.engine.engines.order import Order
from fedbench.engine.engines.own import of_runs
from fedbench.engine.inputs import Data, data_of
from fedbench.engine.place import check_place
from fedbench.engine.run import Observer, execute_all
from fedbench.engine.workers.actor import Actor, Actors
from fedbench.engine.workers.spread import Workers
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fedbench.core.executors import Executor
    from fedbench.engine.job import Job
    from fedbench.specs import RunSpec
    from fedbench.store import Artifact, Store


class OnWorkers(Engine):
    """Workers of a core or a GPU each: so many (`cpus`, `gpus`), or all that the cluster has. They stay from run to
    run. The server's part is done here, on the CPU. `address` as in on_ray.py."""

    def __init__(
        self, store: Store, roots: list[Path], address: str, cpus: int | None = None, gpus: int | None = None,
        device: str = "auto",
    ) -> None:  # fmt: skip
        self.store, self.roots, self.address, self.device = store, roots, address, device
        self.number = {"CPU": cpus, "GPU": gpus}
        self.connected = self.there = False
        self.actors: list[Any] = []
        self.data: dict[tuple[str, bool], tuple[Data, Any]] = {}  #: the last partition, here and in the object store

    def get_ready(self, runs: Sequence[tuple[str, RunSpec]]) -> None:
        """Connect, look at every node, and start the workers."""
        if not runs:
            return
        if not self.there:
            self.connected, self.there = cluster.connected(self.address), True
            self.kind, self.count = cluster.workers(self.number, self.device)
        for _, spec in runs if self.kind == "CPU" else ():
            check_place("cpu", "auto", spec.setting.precision)
        token = Token.laid(self.store)
        try:
            cluster.checked(token, of_runs(runs))
        finally:
            token.path.unlink(missing_ok=True)
        self._start()

    def make(self, jobs: Sequence[Job], observe: Observer = lambda _: None) -> list[Artifact]:
        if not self.there and not all(job.done(self.store) for job in jobs):
            self.get_ready([(job.named, job.spec) for job in jobs])
        return execute_all(jobs, self.store, self.roots, device="cpu", executor="workers", observe=observe, over=self)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors, self.data, self.there = [], {}, False
        if self.connected:
            cluster.leave()
            self.connected = False

    def inputs(self, job: Job) -> Mapping[str, Data]:
        """The job's partition and its images, which all nodes now have, too."""
        spec, again = job.spec.setting.partition, job.replaces is not None
        if (spec.id, again) not in self.data:
            self.data.clear()  # before the next one takes its memory
            data = data_of(spec, self.store, self.roots, again)
            self.data[spec.id, again] = data, ray.put(data)
        return {spec.id: self.data[spec.id, again][0]}

    def executor(self, job: Job, model: nn.Module, same: Mapping[str, Any]) -> tuple[Executor, str]:
        """As Over says. Raises FedbenchError if a worker cannot begin the run, or none is left."""
        self._start()
        _, data = self.data[job.spec.setting.partition.id, job.replaces is not None]
        order = Order.of([job], self.roots, self.device, "workers")
        ready: dict[Any, tuple[int, str]] = {}
        begun = [(actor, actor.begin.remote(order, data), actor.name.remote()) for actor in self.actors]
        for actor, width, name in begun:
            try:
                answer = ray.get(width)
                if isinstance(answer, Exception):
                    raise answer
                ready[actor] = answer, ray.get(name)
            except RayError as error:
                lost = error
        self.actors = [*ready]
        if not ready:
            raise FedbenchError(f"all workers were lost ({lost})", "memory may be short") from lost
        names = Counter(name for _, name in ready.values())
        crew = Actors(self.actors, min(width for width, _ in ready.values()))
        return Workers(crew, model, same), ", ".join(f"{n} x {name}" for name, n in names.items())

    def _start(self) -> None:
        """As many workers as there are to be, where none are. Raises FedbenchError if the cluster has no room."""
        self.actors = [actor for actor in self.actors if _lives(actor)]
        if self.actors:
            return
        gpu = self.kind == "GPU"
        kind = ray.remote(Actor).options(num_cpus=1, num_gpus=int(gpu), max_restarts=0)
        self.actors = [kind.remote("cuda" if gpu else "cpu") for _ in range(self.count)]
        try:
            ray.get([actor.name.remote() for actor in self.actors], timeout=cluster.TELL)
        except GetTimeoutError:
            raise FedbenchError(
                f"the cluster has had no room for {self.count} workers within {cluster.TELL:g} s",
                "'ray status' shows who has it; --cpus-per-run or --gpus-per-run asks for fewer",
            ) from None
        except RayError as error:
            raise FedbenchError(f"no worker can start ({next(iter(str(error).splitlines()), '')})") from error


def _lives(actor: Any) -> bool:
    """Whether an actor answers; after an interrupt or with its node it may be gone."""
    try:
        ray.get(actor.name.remote())
    except RayError:
        return False
    return True
