"""Evaluation: test predictions of a round's models (or of the best round's), and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedbench.core import tables
from fedbench.core.answers import Answers, SharedAnswers, let_go, own_answers
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Client
from fedbench.core.kept import Keeper, Models
from fedbench.core.server import Server
from fedbench.core.simulation import PERSONALISING, Simulation
from fedbench.core.state import State
from fedbench.core.validation import held_back_accuracy
from fedbench.core.votes import vote

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
