"""A worker's end: an executor of its own, which does what parcels ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedbench.core.executors import Executor
from fedbench.engine.engines.order import sendable
from fedbench.engine.workers.message import Done, Traveller, clients_in
from fedbench.engine.workers.post import Flat, Parcel, Post
from fedbench.plugins.mistakes import reported


class Host:
    """Works for one run. `same` is what it has as the driver does (post.SAME)."""

    def __init__(
        self, executor: Executor, same: Mapping[str, Any], fetch: Callable[[list[Flat]], list[Flat]] = lambda f: f
    ) -> None:
        self.executor, self.fetch = executor, fetch
        self.post = Post(same, lasts=True, device=executor.federation.images.device)

    def work(self, parcel: Parcel) -> Parcel:
        """A parcel with the Done of a parcel's (job, items), or with what went wrong."""
        try:
            with reported():
                job, items = self.post.open(parcel, self.fetch)
                results = self.executor.map(job, items)
                return self.post.pack(Done(results, [Traveller.of(client) for client in clients_in(items)]))
        except Exception as error:
            return self.post.pack(sendable(error))
