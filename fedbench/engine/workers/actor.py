"""Workers as actors of a Ray cluster: what such a process does, and how the driver reaches them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from fedbench.engine.engines.order import Order, sendable
from fedbench.engine.workers.host import Host
from fedbench.engine.workers.post import Flat, Parcel
from fedbench.engine.workers.spread import LostError
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from fedbench.engine.inputs import Data

#: The executor of a worker, by its device.
INSIDE = {"cpu": "sequential", "cuda": "stacked"}


class Actor:
    """A process with a core or a GPU of its own, for one run after another."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.run = contextlib.ExitStack()

    def name(self) -> str:
        """The name of its device."""
        import torch

        return torch.cuda.get_device_name(0) if self.device == "cuda" else "cpu"

    def begin(self, order: Order, data: Data) -> int | Exception:
        """Get ready for the run of an order, which Ray has brought its images for: how many clients it is busy with at
        a time, or what is wrong."""
        import torch

        from fedbench.core import executors
        from fedbench.core import precision as precisions
        from fedbench.core.context import Context
        from fedbench.core.plan import Plan
        from fedbench.engine.inputs import federation_of
        from fedbench.engine.training import start_of

        self.end()
        try:
            (job,) = order.opened()
            setting, device = job.spec.setting, torch.device(self.device)
            precisions.check(setting.precision, device)
            federation = federation_of(data, device)
            model, _ = start_of(job, federation)
            same = {
                "method": job.method,
                "federation": federation,
                "plan": Plan(setting, federation.n_train, federation.shape[:2]),
                "context": Context.of(federation, setting),
            }
            self.run.enter_context(precisions.arithmetic(setting.precision, device))
            executor = executors.make(INSIDE[self.device], model, federation, setting)
            self.run.callback(executor.close)
            self.host = Host(executor, same, fetched)
            self.run.callback(delattr, self, "host")
            return executor.width
        except Exception as error:
            return sendable(error)

    def work(self, parcel: Parcel) -> Parcel:
        """See Host."""
        return self.host.work(parcel)

    def end(self) -> None:
        """The run is over."""
        self.run.close()


def fetched(flats: list[Flat]) -> list[Flat]:
    """The arrays that lie in the object store, from there."""
    there = [flat.bytes for flat in flats if isinstance(flat.bytes, ray.ObjectRef)]
    arrays = iter(ray.get(there) if there else [])
    return [flat._replace(bytes=next(arrays)) if isinstance(flat.bytes, ray.ObjectRef) else flat for flat in flats]


class Actors:
    """The Crew of a run: actors that have begun it, each busy with so many clients at a time."""

    def __init__(self, actors: Sequence[Any], width: int) -> None:
        self.actors, self.width, self.count = list(actors), width, len(actors)
        self.under_way: set[Any] = set()

    def send(self, worker: int, parcel: Parcel) -> Any:
        ticket = self.actors[worker].work.remote(parcel)
        self.under_way.add(ticket)
        return ticket

    def first(self, tickets: Sequence[Any]) -> Any:
        (ticket,), _ = ray.wait(tickets, num_returns=1)
        self.under_way.discard(ticket)
        return ticket

    def answer(self, ticket: Any) -> Parcel:
        try:
            parcel: Parcel = ray.get(ticket)
            return parcel
        except RayTaskError as error:
            why = next(iter(str(error).strip().splitlines()[::-1]), "")
            raise FedbenchError(f"a worker cannot answer ({why})", "take --executor cores") from error
        except RayError as error:
            raise LostError(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}") from error

    def put(self, array: np.ndarray) -> Any:
        return ray.put(array)

    def end(self) -> None:
        """Workers that are still at something (after an interrupt) end with the run."""
        for actor in self.actors:
            if self.under_way:
                ray.kill(actor)
            else:
                actor.end.remote()
