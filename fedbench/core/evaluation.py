"""The models of a round answer for the test images, or stand back for those of a better round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedbench.core import tables
from fedbench.core.alike import Alike
from fedbench.core.answers import Answers, let_go, own_answers
from fedbench.core.client import Client
from fedbench.core.keep import LOGITS, MODEL, Keeper, Models, Noted
from fedbench.core.server import Server
from fedbench.core.simulation import PERSONALISING, Simulation
from fedbench.core.state import State
from fedbench.core.validation import held_back_accuracy
from fedbench.core.votes import vote
from fedbench.core.who import MEMBER, UNLABELLED, UNSEEN

#: From each client's cluster, if it has one, to the cluster whose model it is served with when it answers.
Associate = Callable[[Mapping[int, int]], Mapping[int, int]]
#: Figures noted of clients (by number, as text) when they last answered.
Notes = dict[str, dict[str, float]]


class Evaluated(NamedTuple):
    """What an evaluation gives."""

    answers: dict[str, Answers]  #: by view
    notes: Notes
    validation: float | None  #: accuracy on images held back from training, where there are any
    models: Models | None  #: that answered, if they are to be kept


def evaluate(
    run: Simulation,
    server: Server,
    t: int,
    trained: Mapping[int, State],
    associate: Associate,
    keep: Collection[str] = (),
) -> Evaluated:
    """Predictions of the personalised models by view, after the last round also on whole images; their notes; and how
    well they do on images held back from training.

    Clients answer from `trained` if they stand there, the others from what the method serves them; `associate` says by
    which cluster's model a client is served. Of what is to be kept (core/keep.py), answers have their logits, and the
    last round's evaluation has its models.
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
    noted: dict[int, Noted] = {}
    notes: Notes = {}

    def note(client: Client) -> None:
        noted[client.index] = keeper.note(client)

    to_note = note if MODEL in keep and t == run.setting.rounds else None

    def measured(some: Sequence[Client]) -> None:
        where = f"{run.method.name}: client.metrics"
        for client in some:
            if client.metrics:
                notes[str(client.index)] = {k: tables.number(f"{where}['{k}']", v) for k, v in client.metrics.items()}

    if run.setting.votes:
        logits: list[dict[str, Answers]] = []

        def personalised() -> Iterator[list[Client]]:
            for block in run.blocks(everybody):
                some = clients(block)
                run.executor.run(some, run.method.personalise)
                yield some
                for client in some if to_note else ():
                    note(client)
                measured(some)
                if LOGITS in keep:
                    logits.append(own_answers(some, run.executor, views, lambda _: None, logits=True))
                let_go(some)

        owners = [run.client(i, {}, t, PERSONALISING) for i in everybody]
        router = run.method.route if run.method.routes else None
        answers = vote(owners, personalised(), run.executor, views, router, server.personal.folder)
        if logits:
            own = {view: Answers.joined([part[view] for part in logits]) for view in views}
            answers = {view: replace(a, logits=own[view].logits) for view, a in answers.items()}
    else:
        parts, alike = [], Alike(served, run.executor)
        for block in run.blocks(everybody):
            some = clients(block)
            answered = own_answers(
                some, run.executor, views, run.method.personalise, logits=LOGITS in keep, note=to_note, alike=alike
            )
            parts.append(answered)
            measured(some)
        answers = {view: Answers.joined([part[view] for part in parts]) for view in views}
    if run.setting.test_phase and t == run.setting.rounds and UNLABELLED in run.method.serves:
        answers["plain"] = replace(answers["plain"], test_phase=_answers_without_labels(run, server, t))
    models = keeper.models([noted[i] for i in everybody]) if noted else None
    return Evaluated(answers, notes, held_back_accuracy(run, served, t, trained), models)


def _answers_without_labels(run: Simulation, server: Server, t: int) -> np.ndarray:
    """What each client's test images are answered when it comes as one without labels [T]."""
    parts = []
    for block in run.blocks(range(run.federation.clients)):
        clients = [run.answering(server, i, UNLABELLED, t) for i in block]
        parts.append(own_answers(clients, run.executor, ("plain",), run.method.personalise)["plain"])
    return Answers.joined(parts).own
