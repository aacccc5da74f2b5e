"""Votes: what every client's model answers for every client's test images [T, M]."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.answers import Answers, in_order, pieces_of, rows_of
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.executors import Executor
from fedbench.core.pieces import CHUNK, Piece, on_host
from fedbench.core.state import State
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.machine import memory
from fedbench.models.base import FLModel

#: The router of a method: (model, backbone features [B, d], log training shares [M]) -> client chosen [B] by rule.
Router = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]

#: Share of the machine's memory that the votes of one view may take; beyond it they wait in a file.
SHARE = 1 / 16
#: Bytes of votes that are brought together at once, and of all heads' scores for a piece.
BYTES = 64 << 20


def vote(
    everybody: Sequence[Client],
    blocks: Iterable[Sequence[Client]],
    executor: Executor,
    views: Sequence[str],
    router: Router | None = None,
    folder: Path | None = None,
) -> dict[str, Answers]:
    """Ask every client's model for its answer to the test images of `everybody`: view -> answers.

    blocks: the same clients in their order, some at a time, with the models that answer (`client.state`). A block is
    not asked again once the next is taken, so that it can be let go.
    view: "crop" draws a random crop for each image (one draw, the same for every model), "plain" takes it whole.
    folder: of a file for votes that would take more than SHARE of the memory.

    Models that share the first one's body run it once an image; only the heads run once a client. The work is cut in
    pieces of fixed size, so the number of workers changes nothing.
    """
    if executor.federation.multi_label:
        raise FedbenchError("models cannot vote on multi-label images", "votes = false")
    counts = [len(client.work.test_rows) for client in everybody]
    place = {client.index: k for k, client in enumerate(everybody)}
    starts = [0, *accumulate(counts)]
    images = {view: _all_pieces(everybody, view) for view in views}
    votes = {view: _table(starts[-1], len(everybody), folder) for view in views}
    own = {view: np.empty(starts[-1], np.uint16) for view in views}
    routes: dict[str, dict[str, np.ndarray]] = {view: {} for view in views}
    heads: Heads | None = None

    def take(view: str, columns: Sequence[int], first: int, answers: np.ndarray) -> None:
        """[B, m] answers of the clients in these columns to the images from `first` on."""
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
    rows = rows_of(everybody)
    return {view: Answers(rows, own[view], votes[view], routes[view]) for view in views}


def _answers(clients: Sequence[Client], executor: Executor, images: Sequence[Piece]) -> np.ndarray:
    """[T, m]: what each of these clients' models answers to all images."""
    blocks = executor.blocks(clients)
    parts = executor.map(lambda worker, some: worker.answers(some, [images] * len(some)), blocks)
    return np.stack(in_order(clients, blocks, parts), axis=1)


def _features(model: Any, batch: Batch) -> Tensor:
    """[B, d] of the backbone."""
    features: Tensor = model.backbone(batch.x)
    return features


FEATURES = Collect(_features)


@dataclass
class Heads:
    """Clients' models that differ in nothing but the linear head on common features.

    They hold the very same tensors outside the head (the same objects, not equal values), and the network answers with
    that head alone. A method's own variables, such as a client's beta, do not answer and do not count.
    """

    body: State
    names: Sequence[str]  #: of the tensors outside the head
    columns: list[int] = field(default_factory=list)  #: whose heads these are
    weight: list[Tensor] = field(default_factory=list)
    bias: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, clients: Sequence[Client], model: nn.Module) -> Heads | None:
        """None yet, on the body that these clients share; None if they share none."""
        if type(model).forward is not FLModel.forward or type(model.head) is not nn.Linear:
            return None
        heads = cls(dict(clients[0].state), [n for n in model.state_dict() if not n.startswith("head.")])
        return heads if heads.fit(clients) else None

    def fit(self, clients: Sequence[Client]) -> bool:
        """Whether these clients' models stand on the same body."""
        plain = not any(client.answers_by for client in clients)
        return plain and all(client.state[n] is self.body[n] for client in clients for n in self.names)

    def add(self, columns: Sequence[int], clients: Sequence[Client]) -> None:
        """Take these clients' heads."""
        self.columns += columns
        self.weight += [client.state["head.weight"] for client in clients]
        self.bias += [client.state["head.bias"] for client in clients]

    def answers(
        self, executor: Executor, images: Sequence[Piece], router: Router | None, log_shares: Tensor
    ) -> Iterable[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """What the heads [M] answer to the images, piece by piece in their order, and where the router sends them."""
        device = executor.federation.images.device
        weight = torch.stack([w.to(device) for w in self.weight])  # [M, K, d]
        bias = torch.stack([b.to(device) for b in self.bias])  # [M, K]
        log_shares, body = log_shares.to(device), self.body
        at_once = max(1, BYTES // (CHUNK * bias.shape[1] * bias.element_size()))
        heads = list(zip(torch.split(weight, at_once), torch.split(bias, at_once), strict=True))

        @torch.no_grad()
        def job(worker: Worker, piece: Piece) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            model, h = worker.load(body), worker.scores(FEATURES, piece)
            with worker.autocast():
                z = model.projection(h)  # type: ignore[operator]
                labels = torch.cat([(torch.einsum("bd,mkd->bmk", z, w) + b).argmax(2) for w, b in heads], 1)
                routes = {} if router is None else router(model, h, log_shares)
            if not isinstance(routes, Mapping) or any(
                not isinstance(chosen, Tensor) or chosen.shape != h.shape[:1] for chosen in routes.values()
            ):
                raise FedbenchError("route returns no dictionary of clients [B] by rule", "one client for each image")
            return on_host([labels]), {rule: chosen.cpu().numpy().astype(np.int32) for rule, chosen in routes.items()}

        many = max(executor.width, BYTES // (CHUNK * len(self.columns) * np.dtype(np.uint16).itemsize))
        for at in range(0, len(images), many):
            yield from executor.map(job, images[at : at + many])


class Filed:
    """Votes [T, M] in a file without a name, a client's answers side by side."""

    def __init__(self, images: int, clients: int, folder: Path) -> None:
        self.shape = images, clients
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it goes with this object

    def __setitem__(self, at: tuple[slice, Sequence[int]], answers: np.ndarray) -> None:
        rows, columns = at
        for k, column in enumerate(columns):
            os.pwrite(self.file.fileno(), answers[:, k].tobytes(), 2 * (column * self.shape[0] + rows.start))

    def __getitem__(self, rows: slice) -> np.ndarray:
        """[B, M] uint16: everyone's answers to the images of these rows."""
        first, last, _ = rows.indices(self.shape[0])
        out = np.empty((last - first, self.shape[1]), np.uint16)
        for column in range(self.shape[1]):
            place = 2 * (column * self.shape[0] + first)
            out[:, column] = np.frombuffer(os.pread(self.file.fileno(), 2 * (last - first), place), np.uint16)
        return out


def _table(images: int, clients: int, folder: Path | None) -> np.ndarray | Filed:
    large = 2 * images * clients > SHARE * memory()
    return np.empty((images, clients), np.uint16) if folder is None or not large else Filed(images, clients, folder)


def _all_pieces(clients: Sequence[Client], view: str) -> list[Piece]:
    """All test images, client by client; the images of small clients together."""
    return Piece.joined([piece for owner in clients for piece in pieces_of(owner, view)]).split(CHUNK)
