"""What every model answers for every test image: the predictions that all accuracies are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core.alike import Alike
from fedbench.core.client import Client, ClientUpdate
from fedbench.core.executors import Executor
from fedbench.core.pieces import CHUNK, Piece, on_host, pieces
from fedbench.core.task import Task
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError

R = TypeVar("R")

#: Log-probabilities are kept no further from 0 than this: float16 holds it, and less than e^-100 is nothing.
FURTHEST = 100.0


class Votes(Protocol):
    """Answers [T, M] uint16 in memory, an array, or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> np.ndarray:
        """[B, M] of these rows."""


@dataclass(frozen=True)
class Answers:
    """Answers for all test rows in federation order; column names are those of the run's `predictions` table."""

    rows: np.ndarray  #: [T] row of the federation
    own: np.ndarray  #: [T] uint16: the owner's model; with multi-label images their scores [T, U] float32
    votes: Votes | None  #: [T, M]: every client's model
    routes: Mapping[str, np.ndarray]  #: rule -> [T] int32 client chosen
    test_phase: np.ndarray | None = None  #: as `own`: what the owner is served with when it has no labels
    #: [T, K] float16: log-probabilities of the classes (log-odds of labels) by the owner's model, where asked for.
    logits: np.ndarray | None = None

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Own answers of clients after clients."""
        logits = [part.logits for part in parts if part.logits is not None]
        rows, own = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "own"))
        return cls(rows, own, None, {}, logits=np.concatenate(logits) if len(logits) == len(parts) else None)


def own_answers(
    clients: Sequence[Client],
    executor: Executor,
    views: Iterable[str],
    personalise: Callable[[Client], ClientUpdate | None],
    *,
    logits: bool = False,
    note: Callable[[Client], Any] | None = None,
    alike: Alike | None = None,
) -> dict[str, Answers]:
    """Personalise each client and ask its model for its own test images: view -> answers.

    Block by block, so that no more personal models are alive than the workers are busy with, unless these clients are
    to be `note`d with theirs. A client that has set its `answer` is not asked; it has seen whole images. With
    `logits` the answers have them, unless a client has given classes alone; without, clients that stay with one model
    of the server's are answered `alike`.
    """
    task, lets_go, views = executor.federation.task, note is None, tuple(views)
    served = alike.models(clients) if alike is not None and not logits and "plain" in views else {}
    stay, names = frozenset(served), () if alike is None else alike.names

    def later(client: Client, view: str) -> bool:
        if view != "plain" or client.index not in stay or client.answer is not None or client.answers_by:
            return False
        return all(client.state[n] is client.received[n] for n in names)

    def job(worker: Worker, block: list[Client]) -> list[list[_Own | None]]:
        worker.serve(block, personalise)
        for client in block:
            if client.answer is not None and len(client.answer) != len(client.work.test_rows):
                raise FedbenchError(
                    f"client.answer of client {client.index} holds {len(client.answer)} answers to its "
                    f"{len(client.work.test_rows)} test images"
                )
            if client.answer is not None and not _is_answer(client.answer, executor.federation.classes):
                raise FedbenchError(
                    f"client.answer of client {client.index} is {client.answer.dtype} {list(client.answer.shape)}, "
                    f"neither classes nor probabilities of {executor.federation.classes} classes"
                )
        by_view = []
        for view in views:
            by_model = [client for client in block if client.answer is None and not later(client, view)]
            images = [pieces_of(c, view) for c in by_model]
            if logits:
                scores = worker.of_scores(by_model, images, lambda s: s)
                each = [_Own(on_host([worker.answer_to(s)]), _kept(task.normalised(s.float()))) for s in scores]
            else:
                each = [_Own(one) for one in worker.answers(by_model, images)]
            of = dict(zip(map(id, by_model), each, strict=True))
            by_view.append([of.get(id(c)) if c.answer is None else _given(c.answer, task, logits) for c in block])
        if lets_go:
            let_go([client for client in block if not any(later(client, view) for view in views)])
        return by_view

    blocks = together(executor.blocks(clients))
    parts = executor.map(job, blocks)
    if note is not None:
        for client in clients:
            note(client)
    out = {}
    for k, view in enumerate(views):
        by_client = in_order(clients, blocks, [part[k] for part in parts])
        waiting = [client for client, one in zip(clients, by_client, strict=True) if one is None]
        rest = iter([] if alike is None else alike.answers(waiting, served))
        own = [_Own(next(rest)) if one is None else one for one in by_client]
        logs = [one.logits for one in own if one.logits is not None]
        whole = np.concatenate(logs) if len(logs) == len(own) else None
        out[view] = Answers(rows_of(clients), np.concatenate([one.answers for one in own]), None, {}, logits=whole)
    let_go(clients)
    return out


def together(blocks: Sequence[list[Client]]) -> list[list[Client]]:
    """Blocks of single clients with few images in blocks of CHUNK images: a job for each costs more than its images."""
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
    """Let personal models that have answered go."""
    for client in clients:
        client.state, client.answer, client.answers_by = {}, None, None


class _Own(NamedTuple):
    """What one client answers its own test images, as in `Answers`."""

    answers: np.ndarray
    logits: np.ndarray | None = None


def _is_answer(answer: Tensor, classes: int) -> bool:
    """Whether these may be classes [m], or probabilities [m, K]."""
    if answer.dim() != 1:
        return answer.shape[1:] == (classes,)
    return not answer.is_floating_point() and bool(((answer >= 0) & (answer < classes)).all())


def _given(answer: Tensor, task: Task, logits: bool) -> _Own:
    """What follows from a client's own `answer`: classes [m], or probabilities [m, K]."""
    if answer.dim() == 1:
        return _Own(on_host([answer]))
    return _Own(on_host([task.answer(answer)]), _kept(task.outputs(answer)) if logits else None)


def _kept(normalised: Tensor) -> np.ndarray:
    """Normalised outputs [n, K] as they are kept."""
    return normalised.clamp(-FURTHEST, FURTHEST).half().cpu().numpy()


def pieces_of(owner: Client, view: str) -> list[Piece]:
    """A client's test images; the same windows whoever answers."""
    return pieces(
        owner.work.test_rows, owner.work.plan.crops("test", owner.round, owner.index, 0) if view == "crop" else None
    )


def rows_of(clients: Sequence[Client]) -> np.ndarray:
    return torch.cat([c.work.test_rows for c in clients]).cpu().numpy()


def in_order(clients: Sequence[Client], blocks: Sequence[Sequence[Client]], parts: Iterable[Iterable[R]]) -> list[R]:
    """What was answered block by block, in the order of the clients."""
    of = {c.index: x for block, part in zip(blocks, parts, strict=True) for c, x in zip(block, part, strict=True)}
    return [of[c.index] for c in clients]
