"""Clients that are served the very same tensors answer alike: an image of theirs goes through the network once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import Client
from fedbench.core.executors import Executor
from fedbench.core.pieces import Piece, on_host, pieces
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.core.worker import LOGITS, Worker

#: A model by the identities of its tensors.
Model = tuple[int, ...]


class Alike:
    """What the server's models answer to whole images, image by image as clients with them come."""

    def __init__(self, server: Server, executor: Executor) -> None:
        self.executor = executor
        states = (server.initial, server.shared, *server.models)
        #: By name, the network's tensors that are no single client's.
        self.common = {n: [s[n] for s in states if n in s] for n in executor.model.state_dict()}
        self.answers_of: dict[Model, _Answers] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The network's tensors."""
        return tuple(self.common)

    def models(self, clients: Sequence[Client]) -> dict[int, Model]:
        """client -> its model, of those that hold tensors of the server alone (the same objects). There are none where
        clients see images in ways of their own."""
        if self.executor.federation.scaling is not None:
            return {}
        return {
            client.index: tuple(id(client.state[n]) for n in self.common)
            for client in clients
            if all(any(client.state.get(n) is t for t in tensors) for n, tensors in self.common.items())
        }

    def answers(self, clients: Sequence[Client], models: dict[int, Model]) -> list[np.ndarray]:
        """What clients with these models answer to their test images."""
        members: dict[Model, list[int]] = {}
        for k, client in enumerate(clients):
            members.setdefault(models[client.index], []).append(k)
        out: list[np.ndarray] = [np.zeros(0)] * len(clients)
        for model, where in members.items():
            if model not in self.answers_of:
                self.answers_of[model] = _Answers(self.executor, clients[where[0]].received)
            rows = [clients[k].work.test_rows for k in where]
            ends = [*accumulate(map(len, rows))]
            own = np.split(self.answers_of[model].to(torch.cat(rows)), ends[:-1])
            for k, answers in zip(where, own, strict=True):
                out[k] = answers
        return out


class _Answers:
    """One model's."""

    def __init__(self, executor: Executor, state: State) -> None:
        self.executor, self.state = executor, state
        self.there = np.zeros(len(executor.federation.images), bool)
        self.values = np.zeros(0)  #: [U, ...] by image

    def to(self, rows: Tensor) -> np.ndarray:
        """[n, ...] to the images of these rows [n]."""
        image, state = self.executor.federation.image, self.state
        images = (rows if image is None else image[rows]).cpu().numpy()
        distinct, at = np.unique(images, return_index=True)
        new = ~self.there[distinct]

        @torch.no_grad()
        def job(worker: Worker, piece: Piece) -> np.ndarray:
            worker.load(state)
            return on_host([worker.answer_to(worker.scores(LOGITS, piece))])

        if new.any():
            unanswered = pieces(rows[torch.from_numpy(at[new]).to(rows.device)], None)
            answers = np.concatenate(self.executor.map(job, unanswered))
            if not self.there.any():
                self.values = np.zeros((len(self.there), *answers.shape[1:]), answers.dtype)
            self.values[distinct[new]], self.there[distinct[new]] = answers, True
        of_rows: np.ndarray = self.values[images]
        return of_rows
