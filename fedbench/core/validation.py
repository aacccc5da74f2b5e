"""How well the answering models do on images that clients hold back from training: what a choice may be made by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from fedbench.core.by_client import sizes
from fedbench.core.client import Batch, Client, ClientUpdate, Collect, logits
from fedbench.core.message import size
from fedbench.core.server import Best, Server
from fedbench.core.simulation import Simulation
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.core.who import MEMBER
from fedbench.errors import FedbenchError


@dataclass(frozen=True)
class Sum:
    """What a client tells: a sum over so many images."""

    total: float
    images: int


def held_back_accuracy(run: Simulation, server: Server, t: int, trained: Mapping[int, State]) -> float | None:
    """The share of all held back images that are answered rightly, each by the model that answers for its client (of
    several labels: the share of labels). Clients answer from `trained` if they stand there.

    None where no client that trains holds images back, or clients answer without scores.
    """
    holding = [i for i, n in enumerate(sizes(run.federation.validation)[: run.plan.trainees]) if n]
    right, images = 0.0, 0
    for who in run.blocks(holding):
        block = [run.answering(server, i, MEMBER, t, trained.get(i)) for i in who]
        run.executor.run(block, _tells(run.method.personalise, True))
        if any(client.answer is not None for client in block):
            return None
        right += sum(client.upload.total for client in block)
        images += sum(client.upload.images for client in block)
    return right / images if images else None


def consider(run: Simulation, server: Server, who: Sequence[int]) -> int:
    """Make this the round whose models answer, if their mean loss on the cohort's validation images (or where a client
    has none on its training images) is less than that of all rounds before (since the data last drifted: models of
    other data do not compete). Returns bytes up. Raises FedbenchError for answers without scores."""
    t = server.round
    clients = [run.answering(server, i, MEMBER, t) for i in who]
    run.executor.run(clients, _tells(run.method.personalise, False))
    if any(client.answer is not None for client in clients):
        raise FedbenchError(
            "no round can be selected by a loss: the method's clients answer without scores", "leave --select out"
        )
    total, images = (sum(getattr(c.upload, part) for c in clients) for part in ("total", "images"))
    loss = float(total / images)
    if server.best is None or t in (run.setting.drifts or ()) or loss < server.best.loss:
        server.best = None
        server.best = Best(loss, server.tensors())
    return sum(size(c.upload) for c in clients)


def _tells(personalise: Callable[[Client], ClientUpdate | None], right: bool) -> Callable[[Client], ClientUpdate]:
    """The update in which a client is personalised and then counts the images that it answers rightly, or sums their
    losses; nothing where it answers without scores."""

    def update(client: Client) -> ClientUpdate:
        yield from personalise(client) or ()
        if client.answer is None:
            by = client.answers_by or Collect(logits)
            split = "validation" if right else client.validates_on
            collected = yield Collect(_of_each(by.output, right), by.extras, split, model=by.model)
            client.upload = Sum(float(collected.rows.double().sum()), len(collected.rows))

    return update


@cache
def _of_each(output: Callable[[Any, Batch], Tensor], right: bool) -> Callable[[Any, Batch], Tensor]:
    """Whether each image is answered rightly [B] by that output, or its loss; one function for all clients, so that
    they can be stacked."""

    def of_each(model: Any, batch: Batch) -> Tensor:
        task = task_of(batch.y)
        return (task.right if right else task.losses)(output(model, batch).float(), batch.y)

    return of_each
