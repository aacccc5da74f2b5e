"""Before round 1: whether a request of some client trains on a batch of one image that the network does not take.

The setting's own local work is checked from the plan (`network.check_batches`). What else a method's clients ask for
(own phases, passes and gradients, fine-tuning, replies, clients that join later) only its hooks know: clients at risk
run them once, in copies that change nothing, and of every Train take one step, on its smallest batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Answer, Client, ClientUpdate, Request, Train
from fedbench.core.executors import one_thread
from fedbench.core.network import has_no_variance, single_image, takes_single_images
from fedbench.core.plan import Ints
from fedbench.core.server import Server
from fedbench.core.simulation import SURVEYING, Simulation
from fedbench.core.worker import Worker
from fedbench.models.base import seeded

#: A client in some moment of the run (None: the moment does not come), and the hook that it runs then.
Act = tuple[Callable[[], Client | None], Callable[[Client], ClientUpdate | None]]


def rehearse(run: Simulation, server: Server) -> None:
    """Raise FedbenchError if a client's request has a batch of one image that the network does not take. `server` is
    as before round 1, and stays so."""
    federation, plan = run.federation, run.plan
    if takes_single_images(run.executor.model, federation.shape):
        return
    sizes = {"train": plan.n_train, "validation": federation.validation.sizes, "test": federation.n_test}
    worker = RehearsingWorker(run.executor.model, federation, run.setting, threading.Event())
    with seeded(0, None), one_thread():
        for index in _at_risk(run, list(sizes.values())):
            for make, hook in _acts(run, server, index):
                # A hook may lack what the server learns in later rounds: its own errors are the run's to raise.
                with contextlib.suppress(Exception):
                    if (client := make()) is not None:
                        worker.serve([client], hook)
                if worker.found is not None:
                    raise single_image(plan, index, sizes[worker.found], worker.found)


class RehearsingWorker(Worker):
    """The reference, which of every Train takes one step, on its smallest batch."""

    found: str | None = None  #: the split of a batch of one image that the network did not take

    def batches(self, client: Client, request: Train) -> list[Ints]:
        return sorted(super().batches(client, request), key=len)[:1]

    def answer_one(self, client: Client, request: Request) -> Answer:
        try:
            return super().answer_one(client, request)
        except ValueError as error:
            if has_no_variance(error):
                self.found = "train" if isinstance(request, Train) else request.split
            raise


def _at_risk(run: Simulation, sizes: Sequence[Sequence[int]]) -> list[int]:
    """Of the clients for which passes over the same splits (of these sizes) leave one image, the smallest one."""
    plan, chosen = run.plan, dict[tuple[bool, ...], int]()
    for i in sorted(range(run.federation.clients), key=plan.n_train.__getitem__):
        leaves = [plan.leaves_one(images[i], run.setting.batch_size) for images in sizes]
        if any(leaves):
            chosen.setdefault((i < plan.trainees, *leaves), i)
    return sorted(chosen.values())


def _acts(run: Simulation, server: Server, index: int) -> Iterator[Act]:
    """What the client does in the first and the last round, and when it predicts."""
    method, last = run.method, run.setting.rounds
    kinds = [UNSEEN]
    if index < run.plan.trainees:
        kinds = [MEMBER]
        for t in dict.fromkeys((1, last)):
            yield partial(run.entering, server.copy(t), index), method.local
            yield partial(_asked, run, server.copy(t), index), method.reply
    if run.setting.test_phase and UNLABELLED in method.serves:
        kinds.append(UNLABELLED)
    for kind in kinds:
        yield partial(run.answering, server.copy(last), index, kind, last), method.personalise


def _asked(run: Simulation, server: Server, index: int) -> Client | None:
    """The client with the server's first question after its round; None if there is none."""
    question = run.method.ask(server, server.round, 0)
    if question is None:
        return None
    client = run.client(index, server.view(index), server.round, SURVEYING)
    client.inbox = question
    return client
