"""How well the answering models do on images that clients hold back from training: what a choice may be made by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from fedbench.core.by_client import sizes
from fedbench.core.client import Batch, Client, ClientUpdate, Collect, logits
from fedbench.core.server import Server
from fedbench.core.simulation import Simulation
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.core.who import MEMBER


def accuracy(run: Simulation, server: Server, t: int, trained: Mapping[int, State]) -> float | None:
    """The share of all held back images that are answered rightly, each by the model that answers for its client (of
    several labels: the share of labels). Clients answer from `trained` if they stand there.

    None where no client that trains holds images back, or clients answer without scores.
    """
    holding = [i for i, n in enumerate(sizes(run.federation.validation)[: run.plan.trainees]) if n]
    right, images = 0.0, 0
    for who in run.blocks(holding):
        block = [run.answering(server, i, MEMBER, t, trained.get(i)) for i in who]
        run.executor.run(block, _update(run.method.personalise))
        if any(client.answer is not None for client in block):
            return None
        right += sum(client.upload for client in block)
        images += sum(client.count("validation") for client in block)
    return right / images if images else None


def _update(personalise: Callable[[Client], ClientUpdate | None]) -> Callable[[Client], ClientUpdate]:
    """The update in which a client is personalised and then counts the images that it answers rightly."""

    def update(client: Client) -> ClientUpdate:
        yield from personalise(client) or ()
        if client.answer is None:
            by = client.answers_by or Collect(logits)
            right = yield Collect(_right(by.output), by.extras, "validation", model=by.model)
            client.upload = float(right.rows.double().sum())

    return update


@cache
def _right(output: Callable[[Any, Batch], Tensor]) -> Callable[[Any, Batch], Tensor]:
    """Whether each image is answered rightly [B] by that output; one function for all clients, to be stacked."""

    def right(model: Any, batch: Batch) -> Tensor:
        return task_of(batch.y).right(output(model, batch).float(), batch.y)

    return right
