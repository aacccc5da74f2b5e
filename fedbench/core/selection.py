"""Which round's models answer: the last one's, or with the setting's `select` those of the lowest validation loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from fedbench.core.client import Batch, Client, ClientUpdate, Collect, logits
from fedbench.core.state import State
from fedbench.core.task import task_of
from fedbench.errors import FedbenchError


@dataclass(frozen=True)
class Best:
    """The server after the round that did best so far, and its mean loss."""

    loss: float
    server: State


@dataclass(frozen=True)
class Loss:
    """What a client tells: the sum of the losses of so many images."""

    total: float
    images: int


def validation(personalise: Callable[[Client], ClientUpdate | None]) -> Callable[[Client], ClientUpdate]:
    """The update in which a client is personalised and then tells the loss of what answers for it, on its validation
    images or where it has none on its training images. Raises FedbenchError for answers without scores."""

    def update(client: Client) -> ClientUpdate:
        yield from personalise(client) or ()
        if client.answer is not None:
            raise FedbenchError(
                "no round can be selected by a loss: the method's clients answer without scores", "leave --select out"
            )
        by = client.answers_by or Collect(logits)
        losses = yield Collect(_losses(by.output), by.extras, client.validates_on, model=by.model)
        client.upload = Loss(float(losses.rows.double().sum()), len(losses.rows))

    return update


@cache
def _losses(output: Callable[[Any, Batch], Tensor]) -> Callable[[Any, Batch], Tensor]:
    """The loss of each image [B] by that output; one function for all clients, so that they can be stacked."""

    def losses(model: Any, batch: Batch) -> Tensor:
        return task_of(batch.y).losses(output(model, batch).float(), batch.y)

    return losses


def mean_loss(cohort: Sequence[Client]) -> float:
    """Over all images of the clients."""
    total, images = (sum(getattr(c.upload, part) for c in cohort) for part in ("total", "images"))
    return float(total / images)
