"""Evaluation: test predictions of a round's models (or of the best round's), validation, and other test sets."""

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
    keep: Collection[str] = (),
) -> Evaluated:
    """Predict test images with the personalised models, by view; after the last round also without cropping. Also
    returns metrics, validation accuracy, and the models if `keep` asks for them and this is the last round.

    A client in `trained` uses that state; the others use what the method serves them. `associate` chooses the cluster
    whose model a client receives. `keep`: also return logits and models (core/tables.py).
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
    """[T] predictions for each client's test images if the client has no labels."""
    parts = []
    for block in run.blocks(range(run.federation.clients)):
        clients = [run.answering(server, i, UNLABELLED, t) for i in block]
        parts.append(own_answers(clients, run.executor, ("plain",), run.method.personalise)["plain"])
    return Answers.joined(parts).own


# -- other test data -------------------------------------------------------------------------------------------


#: Which model predicts for client i of another federation: that of the run's client i, or the server's.
BY_CLIENT, BY_SERVER = "client", "server"


def who_answers(models: Models, clients: int) -> str:
    """BY_CLIENT if the numbers of clients are equal, else BY_SERVER. Raises FedbenchError if that is not possible."""
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
    """Predictions and logits for every client's test images, without cropping. `setting` is the run's; `method` makes
    its method, in case a client predicts with a function of it."""
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
