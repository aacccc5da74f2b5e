"""The models of a round answer for the test images, or stand back for those of a better round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedbench.core import executors, tables
from fedbench.core.answers import Answers, SharedAnswers, let_go, own_answers, vote
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Collect, Context, logits
from fedbench.core.federation import Federation, task_of
from fedbench.core.message import size
from fedbench.core.plan import Plan
from fedbench.core.server import Best, Server
from fedbench.core.simulation import PERSONALISING, Simulation, new_client
from fedbench.core.state import State
from fedbench.core.tables import LOGITS, MODEL, How, Keeper, Models, output_of
from fedbench.errors import FedbenchError
from fedbench.specs import Setting

# -- validation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """A client's upload: a sum over so many images."""

    total: float
    images: int


def held_back_accuracy(run: Simulation, server: Server, t: int, trained: Mapping[int, State]) -> float | None:
    """The share of all held back images that are answered rightly, each by the model that answers for its client (of
    several labels: the share of labels). Clients answer from `trained` if they stand there.

    None where no client that trains holds images back, or clients answer without scores.
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
    """Make this the round whose models answer, if their mean loss on the cohort's validation images (or where a client
    has none on its training images) is less than that of all rounds before (since the data last drifted: models of
    other data do not compete). Returns bytes up. Raises FedbenchError for answers without scores."""
    t = server.round
    sums = _sums(run, server, who, t, {}, False)
    if sums is None:
        raise FedbenchError(
            "no round can be selected by a loss: the method's clients answer without scores", "leave --select out"
        )
    loss = float(sum(one.total for one in sums) / sum(one.images for one in sums))
    if server.best is None or t in (run.setting.drifts or ()) or loss < server.best.loss:
        server.best = None
        server.best = Best(loss, server.tensors())
    return sum(map(size, sums))


def _sums(
    run: Simulation, server: Server, who: Sequence[int], t: int, trained: Mapping[int, State], right: bool
) -> list[Sum] | None:
    """The uploads of these clients, personalised; None where one answers without scores."""
    clients = [run.answering(server, i, MEMBER, t, trained.get(i)) for i in who]
    run.executor.run(clients, _summing(run.method.personalise, right))
    return None if any(c.answer is not None for c in clients) else [c.upload for c in clients]


def _summing(personalise: Callable[[Client], ClientUpdate | None], right: bool) -> Callable[[Client], ClientUpdate]:
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
    which cluster's model a client is served. Of what is to be kept (core/tables.py), answers have their logits, and the
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
    keeps, where = MODEL in keep and t == run.setting.rounds, f"{run.method.name}: client.metrics"
    notes: Notes = {}

    def answered(some: Sequence[Client]) -> None:
        for client in some:
            if keeps:
                keeper.note(client)
            if client.metrics:
                notes[str(client.index)] = {k: tables.number(f"{where}['{k}']", v) for k, v in client.metrics.items()}
        let_go(some)

    if run.setting.votes:
        logits: list[dict[str, Answers]] = []

        def personalised() -> Iterator[list[Client]]:
            for block in run.blocks(everybody):
                some = clients(block)
                run.executor.run(some, run.method.personalise)
                yield some
                if LOGITS in keep:
                    logits.append(own_answers(some, run.executor, views, lambda _: None, logits=True, holds=True))
                answered(some)

        owners = [run.client(i, {}, t, PERSONALISING) for i in everybody]
        router = run.method.route if run.method.routes else None
        answers = vote(owners, personalised(), run.executor, views, router)
        if logits:
            own = {view: Answers.joined([part[view] for part in logits]) for view in views}
            answers = {view: replace(a, logits=own[view].logits) for view, a in answers.items()}
    else:
        parts, shared = [], SharedAnswers(served, run.executor)
        for block in run.blocks(everybody):
            some = clients(block)
            update, kept = run.method.personalise, LOGITS in keep
            parts.append(own_answers(some, run.executor, views, update, logits=kept, holds=keeps, shared=shared))
            answered(some)
        answers = {view: Answers.joined([part[view] for part in parts]) for view in views}
    if run.setting.test_phase and t == run.setting.rounds and UNLABELLED in run.method.serves:
        answers["plain"] = replace(answers["plain"], test_phase=_answers_without_labels(run, server, t))
    models = keeper.models() if keeps else None
    return Evaluated(answers, notes, held_back_accuracy(run, served, t, trained), models)


def _answers_without_labels(run: Simulation, server: Server, t: int) -> np.ndarray:
    """What each client's test images are answered when it comes as one without labels [T]."""
    parts = []
    for block in run.blocks(range(run.federation.clients)):
        clients = [run.answering(server, i, UNLABELLED, t) for i in block]
        parts.append(own_answers(clients, run.executor, ("plain",), run.method.personalise)["plain"])
    return Answers.joined(parts).own


# -- elsewhere -------------------------------------------------------------------------------------------------


#: Who answers a client of the other federation: the client of its number, or what the server holds.
BY_CLIENT, BY_SERVER = "client", "server"


def who_answers(models: Models, clients: int) -> str:
    """BY_CLIENT if there are as many clients as the models', else BY_SERVER. Raises FedbenchError if those cannot."""
    if clients == len(models.clients):
        for i, how in enumerate(models.clients):
            if how.alone:
                raise FedbenchError(f"client {i} of the run cannot answer other images: {how.alone}")
        return BY_CLIENT
    shared = models.layer("server")
    missing = [name for name in models.network if name not in shared]
    if missing:
        raise FedbenchError(
            f"the run has {len(models.clients)} clients and the partition {clients}, so that one model must answer "
            f"for all of them, and the server has no whole one (it lacks {missing[0]})",
            f"take a partition of {len(models.clients)} clients",
        )
    if models.clusters:
        raise FedbenchError(
            f"the run has {len(models.clients)} clients and the partition {clients}, and nothing says which of the "
            f"{models.clusters} clusters' models serves which of them",
            f"take a partition of {len(models.clients)} clients",
        )
    return BY_SERVER


def answers(
    models: Models, network: nn.Module, method: Callable[[], object], federation: Federation, setting: Setting
) -> Answers:
    """What every client's whole test images are answered, with logits; `setting` is the run's, `method` gives its
    method where a client answers by more than its network."""
    by = who_answers(models, federation.clients)
    plan, context = Plan(setting, federation.n_train, federation.shape[:2]), Context.of(federation, setting)
    device = federation.images.device
    shared = models.layer("server")

    def client(i: int) -> Client:
        how = models.clients[i] if by == BY_CLIENT else How(None)
        state: State = models.state(i) if by == BY_CLIENT else shared
        it = new_client(i, 0, {n: t.to(device) for n, t in state.items()}, context, federation, plan)
        model = how.models[0] if len(how.models) == 1 else how.models
        extras = {n: t.to(device) for n, t in (models.extras(i) if by == BY_CLIENT else {}).items()}
        it.answers_by = Collect(output_of(how, method), extras, model=model)
        return it

    executor = executors.make("cores", network.to(device), federation, setting)
    try:
        everybody = [client(i) for i in range(federation.clients)]
        return own_answers(everybody, executor, ("plain",), lambda _: None, logits=True)["plain"]
    finally:
        executor.close()
