"""What every model answers for every test image: the predictions that all accuracies are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.executors import Executor
from fedbench.core.pieces import CHUNK, Piece, on_host, pieces
from fedbench.core.task import Task
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel

R = TypeVar("R")

#: Log-probabilities are kept no further from 0 than this: float16 holds it, and less than e^-100 is nothing.
FURTHEST = 100.0

#: The router of a method: (model, backbone features [B, d], log training shares [M]) -> client chosen [B] by rule.
Router = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Answers:
    """Answers for all test rows in federation order; column names are those of the run's `predictions` table."""

    rows: np.ndarray  #: [T] row of the federation
    own: np.ndarray  #: [T] uint16: the owner's model; with multi-label images their scores [T, U] float32
    votes: np.ndarray | None  #: [T, M] uint16: every client's model
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


def answer(clients: Sequence[Client], executor: Executor, view: str, router: Router | None) -> Answers:
    """Ask every client's model (`client.state`) for its answer to every client's test images.

    view: "crop" draws a random crop for each image (one draw, the same for every model), "plain" takes it whole.
    Models that share their body run it once an image; only the heads run once a client. The work is cut in
    pieces of fixed size, so the number of workers changes nothing.
    """
    if executor.federation.multi_label:
        raise FedbenchError("models cannot vote on multi-label images", "votes = false")
    if any(client.answer is not None for client in clients):
        raise FedbenchError("a method that answers with several models at once cannot vote", "votes = false")
    if _share_body(clients, executor.model):
        return _answers_of_shared_body(clients, executor, view, router)
    if router is not None:
        raise FedbenchError("a method that routes must give all clients the same body", "route compares its features")
    return _answers_of_all(clients, executor, view)


def own_answers(
    clients: Sequence[Client],
    executor: Executor,
    views: Iterable[str],
    personalise: Callable[[Client], ClientUpdate | None],
    *,
    logits: bool = False,
    note: Callable[[Client], Any] | None = None,
) -> dict[str, Answers]:
    """Personalise each client and ask its model for its own test images: view -> answers.

    Block by block, so that no more personal models are alive than the workers are busy with, unless these clients are
    to be `note`d with theirs. A client that has set its `answer` is not asked; it has seen whole images. With
    `logits` the answers have them, unless a client has given classes alone.
    """
    task, lets_go = executor.federation.task, note is None

    def job(worker: Worker, block: list[Client]) -> list[list[_Own]]:
        worker.serve(block, personalise)
        by_model = [client for client in block if client.answer is None]
        for client in block:
            if client.answer is not None and len(client.answer) != len(client.work.test_rows):
                raise FedbenchError(
                    f"client.answer of client {client.index} holds {len(client.answer)} answers to its "
                    f"{len(client.work.test_rows)} test images"
                )
        by_view = []
        for view in views:
            asked = [_pieces(c, view) for c in by_model]
            if logits:
                scores = worker.of_scores(by_model, asked, lambda s: s)
                each = [_Own(on_host([worker.answer_to(s)]), _kept(task.normalised(s.float()))) for s in scores]
            else:
                each = [_Own(one) for one in worker.answers(by_model, asked)]
            of = dict(zip(map(id, by_model), each, strict=True))
            by_view.append([of[id(c)] if c.answer is None else _given(c.answer, task, logits) for c in block])
        if lets_go:
            _let_go(block)
        return by_view

    views, blocks = tuple(views), executor.blocks(clients)
    parts = executor.map(job, blocks)
    if note is not None:
        for client in clients:
            note(client)
        _let_go(clients)
    out = {}
    for k, view in enumerate(views):
        own = _in_order(clients, blocks, [part[k] for part in parts])
        logs = [one.logits for one in own if one.logits is not None]
        whole = np.concatenate(logs) if len(logs) == len(own) else None
        out[view] = Answers(_rows(clients), np.concatenate([one.answers for one in own]), None, {}, logits=whole)
    return out


def _let_go(clients: Sequence[Client]) -> None:
    """Let personal models that have answered go."""
    for client in clients:
        client.state, client.answer, client.answers_by = {}, None, None


class _Own(NamedTuple):
    """What one client answers its own test images, as in `Answers`."""

    answers: np.ndarray
    logits: np.ndarray | None = None


def _given(answer: Tensor, task: Task, logits: bool) -> _Own:
    """What follows from a client's own `answer`: classes [m], or probabilities [m, K]."""
    if answer.dim() == 1:
        return _Own(on_host([answer]))
    return _Own(on_host([task.answer(answer)]), _kept(task.outputs(answer)) if logits else None)


def _kept(normalised: Tensor) -> np.ndarray:
    """Normalised outputs [n, K] as they are kept."""
    return normalised.clamp(-FURTHEST, FURTHEST).half().cpu().numpy()


def _share_body(clients: Sequence[Client], model: nn.Module) -> bool:
    """Whether the clients' models differ in nothing but the linear head on common features.

    They must hold the very same tensors outside the head (the same objects, not equal values), and the network must
    answer with that head alone. A method's own variables, such as a client's beta, do not answer and do not count.
    """
    if type(model).forward is not FLModel.forward or type(model.head) is not nn.Linear:
        return False
    if any(client.answers_by for client in clients):
        return False
    first = clients[0].state
    body = [n for n in model.state_dict() if not n.startswith("head.")]
    return all(c.state[n] is first[n] for c in clients[1:] for n in body)


def _pieces(owner: Client, view: str) -> list[Piece]:
    """A client's test images; the same windows whoever answers."""
    return pieces(
        owner.work.test_rows, owner.work.plan.crops("test", owner.round, owner.index, 0) if view == "crop" else None
    )


def _all_pieces(clients: Sequence[Client], view: str) -> list[Piece]:
    """All test images, client by client; the images of small clients together."""
    return Piece.joined([piece for owner in clients for piece in _pieces(owner, view)]).split(CHUNK)


def _rows(clients: Sequence[Client]) -> np.ndarray:
    return torch.cat([c.work.test_rows for c in clients]).cpu().numpy()


def _in_order(clients: Sequence[Client], blocks: Sequence[Sequence[Client]], parts: Iterable[Iterable[R]]) -> list[R]:
    """What was answered block by block, in the order of the clients."""
    of = {c.index: x for block, part in zip(blocks, parts, strict=True) for c, x in zip(block, part, strict=True)}
    return [of[c.index] for c in clients]


def _answers_of_all(clients: Sequence[Client], executor: Executor, view: str) -> Answers:
    """Every client's model on every client's test images."""
    everything, blocks = _all_pieces(clients, view), executor.blocks(clients)
    parts = executor.map(lambda worker, block: worker.answers(block, [everything] * len(block)), blocks)
    votes = np.stack(_in_order(clients, blocks, parts), axis=1)
    return Answers(_rows(clients), _owners(clients, votes), votes, {})


def _owners(clients: Sequence[Client], votes: np.ndarray) -> np.ndarray:
    owner = np.repeat(np.arange(len(clients)), [len(c.work.test_rows) for c in clients])
    own: np.ndarray = votes[np.arange(len(votes)), owner]
    return own


def _answers_of_shared_body(clients: Sequence[Client], executor: Executor, view: str, router: Router | None) -> Answers:
    """One pass of the body over each client's test images, all heads on its features."""
    device = executor.federation.images.device
    weight = torch.stack([c.state["head.weight"].to(device) for c in clients])  # [M, K, d]
    bias = torch.stack([c.state["head.bias"].to(device) for c in clients])  # [M, K]
    n = torch.tensor([c.n_train for c in clients], dtype=torch.float32, device=weight.device)
    log_shares = (n / n.sum()).log()
    body = clients[0].state

    @torch.no_grad()
    def job(worker: Worker, piece: Piece) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        worker.stop_if_cancelled()
        model = worker.load(body).eval()
        with worker.autocast():
            h = model.backbone(worker.batch(*piece))  # type: ignore[operator]
            z = model.projection(h)  # type: ignore[operator]
            labels = (torch.einsum("bd,mkd->bmk", z, weight) + bias).argmax(2)
            routes = {} if router is None else router(model, h, log_shares)
        return on_host([labels]), {rule: chosen.cpu().numpy().astype(np.int32) for rule, chosen in routes.items()}

    parts = executor.map(job, _all_pieces(clients, view))
    answers = np.concatenate([labels for labels, _ in parts])
    routes = {rule: np.concatenate([r[rule] for _, r in parts]) for rule in parts[0][1]}
    own = _owners(clients, answers)
    return Answers(_rows(clients), own, answers, routes)
