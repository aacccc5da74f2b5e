"""Predictions of every model for every test image, from which all accuracies are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, ClientUpdate, Collect
from fedbench.core.executors import Executor
from fedbench.core.failed_step import serve
from fedbench.core.federation import Federation
from fedbench.core.images import CHUNK, Piece, pieces
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.worker import LOGITS, Worker, on_host
from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel

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
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "own")))


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

    def later(client: Client, view: str) -> bool:
        if view != "plain" or client.index not in served or client.answer is not None or client.answers_by:
            return False
        return all(client.state[n] is client.received[n] for n in names)

    def job(worker: Worker, block: list[Client]) -> list[dict[int, Answers]]:
        serve(worker, block, personalise)
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


# -- votes -----------------------------------------------------------------------------------------------------


#: A method's router: (model, backbone features [B, d], log training shares [M]) -> rule -> chosen client [B].
Router = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]

#: Memory limit in bytes, for the votes collected at a time and for the scores of all heads on one piece.
BYTES = 64 << 20


def vote(
    everybody: Sequence[Client],
    blocks: Iterable[Sequence[Client]],
    executor: Executor,
    views: Sequence[str],
    router: Router | None = None,
) -> dict[str, Answers]:
    """Let every client's model predict the test images of all clients. Returns view -> answers.

    blocks: the clients of `everybody`, in the same order, with their models in `client.state`. A block is not used
    after the next one is taken, so the caller can free it.
    view: "crop" uses one random crop of each image, the same for every model; "plain" uses the whole image.

    If models share the body of the first client, the body runs once per image, and only the heads run once per client.
    Pieces have a fixed size, so the number of workers does not change the result.
    """
    if executor.federation.multi_label:
        raise FedbenchError("models cannot vote on multi-label images", "votes = false")
    counts = [len(client.work.test_rows) for client in everybody]
    place = {client.index: k for k, client in enumerate(everybody)}
    starts = [0, *accumulate(counts)]
    images = {view: _all_pieces(everybody, view) for view in views}
    votes = {view: np.empty((starts[-1], len(everybody)), np.uint16) for view in views}
    own = {view: np.empty(starts[-1], np.uint16) for view in views}
    routes: dict[str, dict[str, np.ndarray]] = {view: {} for view in views}
    heads: Heads | None = None

    def take(view: str, columns: Sequence[int], first: int, answers: np.ndarray) -> None:
        """Store predictions [B, m] of the clients in these columns for the images from `first` on."""
        last = first + len(answers)
        votes[view][first:last, columns] = answers
        for k, column in enumerate(columns):
            a, b = max(first, starts[column]), min(last, starts[column + 1])
            if a < b:
                own[view][a:b] = answers[a - first : b - first, k]

    for block in blocks:
        if any(client.answer is not None for client in block):
            raise FedbenchError("a method that answers with several models at once cannot vote", "votes = false")
        columns = [place[client.index] for client in block]
        if columns[0] == 0:
            heads = Heads.of(block, executor.model)
        if heads is not None and heads.fit(block):
            heads.add(columns, block)
            continue
        if router is not None:
            raise FedbenchError(
                "a method that routes must give all clients the same body", "route compares its features"
            )
        for view in views:
            take(view, columns, 0, _answers(block, executor, images[view]))
    if heads is not None:
        n = torch.tensor([client.n_train for client in everybody], dtype=torch.float32)
        for view in views:
            first, by_piece = 0, []
            for labels, chosen in heads.answers(executor, images[view], router, (n / n.sum()).log()):
                take(view, heads.columns, first, labels)
                first += len(labels)
                by_piece.append(chosen)
            routes[view] = {rule: np.concatenate([chosen[rule] for chosen in by_piece]) for rule in by_piece[0]}
    rows = torch.cat([client.work.test_rows for client in everybody]).cpu().numpy()
    return {view: Answers(rows, own[view], votes[view], routes[view]) for view in views}


def _answers(clients: Sequence[Client], executor: Executor, images: Sequence[Piece]) -> np.ndarray:
    """[T, m]: predictions of these clients' models for all images."""
    blocks = executor.blocks(clients)
    parts = executor.map(lambda worker, some: worker.answers(some, [images] * len(some)), blocks)
    of = {c.index: one for some, part in zip(blocks, parts, strict=True) for c, one in zip(some, part, strict=True)}
    return np.stack([of[client.index] for client in clients], axis=1)


def _features(model: Any, batch: Batch) -> Tensor:
    """[B, d] features of the backbone."""
    features: Tensor = model.backbone(batch.x)
    return features


FEATURES = Collect(_features, split="test")


@dataclass
class Heads:
    """Clients' models that differ only in the linear head.

    The clients hold the same tensor objects outside the head (equal values do not count), and they predict with the
    network itself. A method's additional variables, such as a client's beta, do not affect predictions and may differ.
    """

    body: State
    names: Sequence[str]  #: tensors outside the head
    columns: list[int] = field(default_factory=list)  #: the clients of the heads, as columns of the votes
    weight: list[Tensor] = field(default_factory=list)
    bias: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, clients: Sequence[Client], model: nn.Module) -> Heads | None:
        """No heads yet, on the body that these clients share; None if they do not share one."""
        if type(model).forward is not FLModel.forward or type(model.head) is not nn.Linear:
            return None
        heads = cls(dict(clients[0].state), [n for n in model.state_dict() if not n.startswith("head.")])
        return heads if heads.fit(clients) else None

    def fit(self, clients: Sequence[Client]) -> bool:
        """Whether these clients' models use this body."""
        plain = not any(client.answers_by for client in clients)
        return plain and all(client.state[n] is self.body[n] for client in clients for n in self.names)

    def add(self, columns: Sequence[int], clients: Sequence[Client]) -> None:
        self.columns += columns
        self.weight += [client.state["head.weight"] for client in clients]
        self.bias += [client.state["head.bias"] for client in clients]

    def answers(
        self, executor: Executor, images: Sequence[Piece], router: Router | None, log_shares: Tensor
    ) -> Iterable[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Per piece of images: predictions of the heads [M], and the client that the router chooses."""
        device = executor.federation.images.device
        weight = torch.stack([w.to(device) for w in self.weight])  # [M, K, d]
        bias = torch.stack([b.to(device) for b in self.bias])  # [M, K]
        log_shares, body = log_shares.to(device), self.body
        at_once = max(1, BYTES // (CHUNK * bias.shape[1] * bias.element_size()))
        heads = list(zip(torch.split(weight, at_once), torch.split(bias, at_once), strict=True))

        @torch.no_grad()
        def job(worker: Worker, piece: Piece) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            h = worker.outputs(body, FEATURES, [piece])
            model = worker.networks.of("").module
            with worker.autocast():
                z = model.projection(h)  # type: ignore[operator]
                labels = torch.cat([(torch.einsum("bd,mkd->bmk", z, w) + b).argmax(2) for w, b in heads], 1)
                routes = {} if router is None else router(model, h, log_shares)
            if not isinstance(routes, Mapping) or any(
                not isinstance(chosen, Tensor) or chosen.shape != h.shape[:1] for chosen in routes.values()
            ):
                raise FedbenchError("route returns no dictionary of clients [B] by rule", "one client for each image")
            return on_host(labels), {rule: chosen.cpu().numpy().astype(np.int32) for rule, chosen in routes.items()}

        many = max(executor.width, BYTES // (CHUNK * len(self.columns) * np.dtype(np.uint16).itemsize))
        for at in range(0, len(images), many):
            yield from executor.map(job, images[at : at + many])


def _all_pieces(clients: Sequence[Client], view: str) -> list[Piece]:
    """The test images of all clients, in the clients' order, in pieces of CHUNK images."""
    return Piece.joined([piece for owner in clients for piece in pieces_of(owner, view)]).split(CHUNK)
