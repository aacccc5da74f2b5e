"""Validation: accuracy on images that clients hold back, and the best round by their losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from fedbench.core.client import MEMBER, Batch, Client, ClientUpdate, Collect, logits
from fedbench.core.message import size
from fedbench.core.server import Best, Server
from fedbench.core.simulation import Simulation, learning_rate
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.errors import FedbenchError


@dataclass(frozen=True)
class Sum:
    """A client's upload: a sum over this number of images."""

    total: float
    images: int


def held_back_accuracy(run: Simulation, server: Server, t: int, trained: Mapping[int, State]) -> float | None:
    """Accuracy over all validation images, each predicted by its client's personalised model (multi-label: share of
    correct labels). A client in `trained` uses that state.

    None if no client that trains has validation images, or if a client predicts without scores.
    """
    holding = [i for i, n in enumerate(run.federation.validation.sizes[: run.plan.trainees]) if n]
    right, images = 0.0, 0
    for who in run.blocks(holding):
        sums = _sums(run, [run.answering(server, i, MEMBER, t, trained.get(i)) for i in who], True)
        if sums is None:
            return None
        right += sum(one.total for one in sums)
        images += sum(one.images for one in sums)
    return right / images if images else None


def consider(run: Simulation, server: Server, who: Sequence[int]) -> int:
    """Make this the best round if its mean loss on the cohort's validation images is the lowest so far. A client
    without any uses its training images. Returns bytes up. Raises FedbenchError if a client predicts without scores.

    The clients are judged by the models with which they would answer after the last round: a method that fine-tunes
    them there fine-tunes them here, at the last round's learning rate. A loss that is no number is infinite.
    """
    clients = [run.answering(server, i, MEMBER, server.round) for i in who]
    for client in clients:
        client.work.as_last, client.lr = True, learning_rate(run.setting, run.setting.rounds)
    sums = _sums(run, clients, False)
    if sums is None:
        raise FedbenchError(
            "no round can be selected by a loss: the method's clients answer without scores", "leave --select out"
        )
    loss = float(sum(one.total for one in sums) / sum(one.images for one in sums))
    loss = math.inf if math.isnan(loss) else loss
    if server.best is None or loss < server.best.loss:
        server.best = None
        server.best = Best(loss, server.tensors())
    return sum(map(size, sums))


def _sums(run: Simulation, clients: Sequence[Client], right: bool) -> list[Sum] | None:
    """The uploads of these clients after personalising; None if a client predicts without scores."""
    run.executor.run(clients, _summing(run.method.personalise, right))
    return None if any(c.answer is not None for c in clients) else [c.upload for c in clients]


def _summing(personalise: Callable[[Client], ClientUpdate | None], right: bool) -> Callable[[Client], ClientUpdate]:
    """An update that personalises a client and uploads the number of correct images or the sum of losses; it uploads
    nothing if the client predicts without scores."""

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
    """Output [B]: whether each image is correct, or its loss. Cached, so that all clients have the same function and
    can be stacked."""

    def of_each(model: Any, batch: Batch) -> Tensor:
        task = task_of(batch.y)
        return (task.right if right else task.losses)(output(model, batch).float(), batch.y)

    return of_each
