"""Votes: the predictions of every client's model for the test images of all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.answers import Answers, pieces_of
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.executors import Executor
from fedbench.core.images import CHUNK, Piece
from fedbench.core.state import State
from fedbench.core.worker import Worker, on_host
from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel

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
