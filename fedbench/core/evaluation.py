"""Evaluation: test predictions of a round's models (or of the best round's), and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedbench.core import tables
from fedbench.core.answers import Answers, SharedAnswers, let_go, own_answers, vote
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Collect, logits
from fedbench.core.federation import task_of
from fedbench.core.message import size
from fedbench.core.server import Best, Server
from fedbench.core.simulation import PERSONALISING, Simulation
from fedbench.core.state import State
from fedbench.core.tables import Keeper, Models
from fedbench.errors import FedbenchError

# -- validation ------------------------------------------------------------------------------------------------


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
        sums = _sums(run, server, who, t, trained, True)
        if sums is None:
            return None
        right += sum(one.total for one in sums)
        images += sum(one.images for one in sums)
    return right / images if images else None


def consider(run: Simulation, server: Server, who: Sequence[int]) -> int:
    """Make this the best round if its mean loss on the cohort's validation images is the lowest so far. A client
    without any uses its training images. Returns bytes up. Raises FedbenchError if a client predicts without scores."""
    t = server.round
    sums = _sums(run, server, who, t, {}, False)
    if sums is None:
        raise FedbenchError(
            "no round can be selected by a loss: the method's clients answer without scores", "leave --select out"
        )
    loss = float(sum(one.total for one in sums) / sum(one.images for one in sums))
    if server.best is None or loss < server.best.loss:
        server.best = None
        server.best = Best(loss, server.tensors())
    return sum(map(size, sums))


def _sums(
    run: Simulation, server: Server, who: Sequence[int], t: int, trained: Mapping[int, State], right: bool
) -> list[Sum] | None:
    """The uploads of these clients after personalising; None if a client predicts without scores."""
    clients = [run.answering(server, i, MEMBER, t, trained.get(i)) for i in who]
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


#: Maps each client's cluster, if it has one, to the cluster whose model the client receives for evaluation.
Associate = Callable[[Mapping[int, int]], Mapping[int, int]]
#: Client, as text -> its metrics at the last evaluation.
Notes = dict[str, dict[str, float]]


class Evaluated(NamedTuple):
    answers: dict[str, Answers]  #: by view
    notes: Notes
    validation: float | None  #: accuracy on validation images, if there are any
    models: Models | None  #: the evaluated models, if they are to be stored


def evaluate(
    run: Simulation,
    server: Server,
    t: int,
    trained: Mapping[int, State],
    associate: Associate,
    keep: bool = False,
) -> Evaluated:
    """Predict test images with the personalised models, by view; after the last round also without cropping. Also
    returns metrics, validation accuracy, and the models if they are to be stored (`keep`) and this is the last round.

    A client in `trained` uses that state; the others use what the method serves them. `associate` chooses the cluster
    whose model a client receives.
    """
    if run.setting.select:
        server, trained = server.answering(), {}
    served, assigned = server, associate(server.assigned)
    if assigned != server.assigned:
        served = server.copy(server.round)
        served.assigned = dict(assigned)
    everybody = range(run.federation.clients)

    def clients(who: Sequence[int]) -> list[Client]:
        return [run.answering(served, i, MEMBER if i < run.plan.trainees else UNSEEN, t, trained.get(i)) for i in who]

    usual = "crop" if run.setting.augment == "crop" else "plain"
    views = (usual,) if t < run.setting.rounds else tuple(dict.fromkeys((usual, "plain")))
    keeper = Keeper(served, run.executor.model.state_dict(), run.method)
    keeps, where = keep and t == run.setting.rounds, f"{run.method.name}: client.metrics"
    notes: Notes = {}

    def answered(some: Sequence[Client]) -> None:
        for client in some:
            if keeps:
                keeper.note(client)
            if client.metrics:
                notes[str(client.index)] = {k: tables.number(f"{where}['{k}']", v) for k, v in client.metrics.items()}
        let_go(some)

    if run.setting.votes:

        def personalised() -> Iterator[list[Client]]:
            for block in run.blocks(everybody):
                some = clients(block)
                run.executor.run(some, run.method.personalise)
                yield some
                answered(some)

        owners = [run.client(i, {}, t, PERSONALISING) for i in everybody]
        router = run.method.route if run.method.routes else None
        answers = vote(owners, personalised(), run.executor, views, router)
    else:
        parts, shared = [], SharedAnswers(served, run.executor)
        for block in run.blocks(everybody):
            some = clients(block)
            parts.append(own_answers(some, run.executor, views, run.method.personalise, holds=keeps, shared=shared))
            answered(some)
        answers = {view: Answers.joined([part[view] for part in parts]) for view in views}
    if run.setting.test_phase and t == run.setting.rounds and UNLABELLED in run.method.serves:
        answers["plain"] = replace(answers["plain"], test_phase=_answers_without_labels(run, server, t))
    models = keeper.models() if keeps else None
    return Evaluated(answers, notes, held_back_accuracy(run, served, t, trained), models)


def _answers_without_labels(run: Simulation, server: Server, t: int) -> np.ndarray:
    """[T] predictions for each client's test images if the client has no labels."""
    parts = []
    for block in run.blocks(range(run.federation.clients)):
        clients = [run.answering(server, i, UNLABELLED, t) for i in block]
        parts.append(own_answers(clients, run.executor, ("plain",), run.method.personalise)["plain"])
    return Answers.joined(parts).own
