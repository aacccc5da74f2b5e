"""Predictions of every model for every test image, from which all accuracies are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.executors import Executor
from fedbench.core.failed_step import Serving
from fedbench.core.federation import Federation
from fedbench.core.images import CHUNK, Piece, pieces
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.worker import LOGITS, Worker, on_host
from fedbench.errors import FedbenchError

#: A model by the identities of its tensors.
Model = tuple[int, ...]


class SharedAnswers:
    """Predictions of the server's models, cached by image. Clients that receive the same tensor objects from the server
    get the same predictions, so each image passes each model once."""

    def __init__(self, server: Server, executor: Executor) -> None:
        self.executor = executor
        states = (server.initial, server.shared, *server.models)
        #: By name: the versions of each network tensor that the server holds, so that no client trained them.
        self.common = {n: [s[n] for s in states if n in s] for n in executor.model.state_dict()}
        #: By model: whether the image was predicted, bool [U], and the predictions [U, ...].
        self.tables: dict[Model, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the network's tensors."""
        return tuple(self.common)

    def models(self, clients: Sequence[Client]) -> dict[int, Model]:
        """Client -> its model, for the clients whose tensors are all the server's (the same objects). Empty if clients
        normalise images in different ways (`Federation.scaling`)."""
        if self.executor.federation.scaling is not None:
            return {}
        return {
            client.index: tuple(id(client.state[n]) for n in self.common)
            for client in clients
            if all(any(client.state.get(n) is t for t in tensors) for n, tensors in self.common.items())
        }

    def answers(self, clients: Sequence[Client], models: dict[int, Model]) -> dict[int, np.ndarray]:
        """Client -> predictions for its test images. Every client needs an entry in `models`."""
        members: dict[Model, list[Client]] = {}
        for client in clients:
            members.setdefault(models[client.index], []).append(client)
        out: dict[int, np.ndarray] = {}
        for model, its in members.items():
            rows = [client.work.test_rows for client in its]
            answers = self._to(torch.cat(rows), model, its[0].received)
            ends = [*accumulate(map(len, rows))]
            out.update(zip((client.index for client in its), np.split(answers, ends[:-1]), strict=True))
        return out

    def _to(self, rows: Tensor, model: Model, state: State) -> np.ndarray:
        """[n, ...] predictions of one model for the images of these rows [n]."""
        federation = self.executor.federation
        images = federation.image_at(rows).cpu().numpy()
        there, values = self.tables.get(model) or (np.zeros(len(federation.images), bool), np.zeros(0))
        distinct, at = np.unique(images, return_index=True)
        new = ~there[distinct]

        def job(worker: Worker, piece: Piece) -> np.ndarray:
            return on_host(worker.answer_to(worker.outputs(state, LOGITS, [piece])))

        if new.any():
            unanswered = pieces(rows[torch.from_numpy(at[new]).to(rows.device)], None)
            answers = np.concatenate(self.executor.map(job, unanswered))
            if not there.any():
                values = np.zeros((len(there), *answers.shape[1:]), answers.dtype)
            values[distinct[new]], there[distinct[new]] = answers, True
            self.tables[model] = there, values
        of_rows: np.ndarray = values[images]
        return of_rows


@dataclass(frozen=True)
class Answers:
    """Predictions for all test rows in the federation's order; fields are columns of the run's `predictions` table."""

    rows: np.ndarray  #: [T] row of the federation
    own: np.ndarray  #: [T] uint16: class by the model of the image's client; multi-label: its scores [T, U] float32
    votes: np.ndarray | None = None  #: [T, M] uint16: class by every client's model
    routes: Mapping[str, np.ndarray] = field(default_factory=dict)  #: rule -> [T] int32 client chosen
    test_phase: np.ndarray | None = None  #: as `own`, by the model that the client receives if it has no labels

    @classmethod
    def of(cls, client: Client, answers: Tensor | np.ndarray) -> Answers:
        """From a client's predictions for its test images."""
        own = on_host(answers) if isinstance(answers, Tensor) else answers
        return cls(client.work.test_rows.cpu().numpy(), own)

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Concatenate the clients' `own` predictions."""
        return cls(np.concatenate([part.rows for part in parts]), np.concatenate([part.own for part in parts]))


def own_answers(
    clients: Sequence[Client],
    executor: Executor,
    views: Iterable[str],
    personalise: Callable[[Client], ClientUpdate | None],
    *,
    holds: bool = False,
    shared: SharedAnswers | None = None,
) -> dict[str, Answers]:
    """Personalise each client and predict its own test images. Returns view -> answers.

    Works block by block, so that only as many personal models exist as the workers process at a time, unless the caller
    needs them afterwards (`holds`). The trainer does not query a client that has set its `answer`; such a client has
    seen uncropped images. Clients that do not change the server's model use the cache `shared`.
    """
    views = tuple(views)
    served = shared.models(clients) if shared is not None and "plain" in views else {}
    names = () if shared is None else shared.names
    serving = Serving(personalise)

    def later(client: Client, view: str) -> bool:
        if view != "plain" or client.index not in served or client.answer is not None or client.answers_by:
            return False
        return all(client.state[n] is client.received[n] for n in names)

    def job(worker: Worker, block: list[Client]) -> list[dict[int, Answers]]:
        serving.serve(worker, block)
        by_view = []
        for view in views:
            own = {c.index: _given(c, executor.federation) for c in block if c.answer is not None}
            queried = [c for c in block if c.answer is None and not later(c, view)]
            for c, its in zip(queried, worker.answers(queried, [pieces_of(c, view) for c in queried]), strict=True):
                own[c.index] = Answers.of(c, its)
            by_view.append(own)
        if not holds:
            let_go([client for client in block if not any(later(client, view) for view in views)])
        return by_view

    parts = executor.map(job, merged(executor.blocks(clients)))
    out = {}
    for k, view in enumerate(views):
        own = {index: one for part in parts for index, one in part[k].items()}
        waiting = [client for client in clients if client.index not in own]
        rest = shared.answers(waiting, served) if shared is not None else {}
        own |= {client.index: Answers.of(client, rest[client.index]) for client in waiting}
        out[view] = Answers.joined([own[client.index] for client in clients])
    if not holds:
        let_go(clients)
    return out


def merged(blocks: Sequence[list[Client]]) -> list[list[Client]]:
    """Merge blocks of one client with few images up to CHUNK images: a job costs more than predicting a few images."""
    out: list[list[Client]] = []
    room = 0
    for block in blocks:
        images = sum(len(client.work.rows) + len(client.work.test_rows) for client in block)
        if len(block) == 1 and images <= room:
            out[-1] += block
            room -= images
        else:
            out.append([*block])
            room = CHUNK - images if len(block) == 1 else 0
    return out


def let_go(clients: Sequence[Client]) -> None:
    """Free the personal models of clients whose predictions are done."""
    for client in clients:
        client.state, client.answer, client.answers_by = {}, None, None


def _given(client: Client, federation: Federation) -> Answers:
    """Check and convert `client.answer`: classes [m] or probabilities [m, K]. Raises FedbenchError otherwise."""
    answer, classes, n = client.answer, federation.classes, len(client.work.test_rows)
    assert answer is not None
    where = f"client.answer of client {client.index}"
    if len(answer) != n:
        raise FedbenchError(f"{where} holds {len(answer)} answers to its {n} test images")
    if answer.dim() == 1 and not answer.is_floating_point() and bool(((answer >= 0) & (answer < classes)).all()):
        return Answers.of(client, answer)
    if answer.dim() == 1 or answer.shape[1:] != (classes,):
        raise FedbenchError(
            f"{where} is {answer.dtype} {list(answer.shape)}, neither classes nor probabilities of {classes} classes"
        )
    return Answers.of(client, federation.task.answer(answer))


def pieces_of(owner: Client, view: str) -> list[Piece]:
    """A client's test images in pieces, with the same crop windows for every model that predicts them."""
    return pieces(
        owner.work.test_rows, owner.work.plan.crops("test", owner.round, owner.index, 0) if view == "crop" else None
    )
