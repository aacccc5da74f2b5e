"""What the models of a block of clients put out for images, without gradients: one pass of a stack of models."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedbench.core.client import Batch, Client, Collect, Collected, Request
from fedbench.core.pieces import CHUNK, Piece, pieces
from fedbench.core.stack import Tick, padded, stacked
from fedbench.core.state import State
from fedbench.core.update import output_of
from fedbench.core.waiting import fetched
from fedbench.core.worker import LOGITS, Worker


class StackedCollector(Worker):
    """Answers Collect requests of a block of clients at once, and what their models answer for test images."""

    def collect_stack(self, clients: Sequence[Client], requests: Sequence[Collect]) -> list[Collected]:
        """Each request's output for every image of a split of its client's data, or of a part of it."""
        request = requests[0]
        crops = [c.work.plan.crops("collect", c.round, c.index, c.work.collects) for c in clients]
        rows = [c.work.rows_of(request.split, request.part) for c in clients]
        images = [Piece.joined(pieces(r, crop)) for r, crop in zip(rows, crops, strict=True)]
        first = request.part[0] if request.part else 0
        if self.hold_the_same(clients, requests):
            outputs = self.sweep_shared(clients[0], images, request, first)
        else:
            extras = {n: stacked([r.extras[n] for r in requests]) for n in request.extras}
            outputs = self.sweep(clients, images, request, extras, first)
        return [Collected(o.float(), self.labels(r, request.split)) for o, r in zip(outputs, rows, strict=True)]

    def hold_the_same(self, clients: Sequence[Client], requests: Sequence[Collect]) -> bool:
        """Whether all clients hold one model and send the same tensors along (the same objects)."""
        state, extras = clients[0].state, requests[0].extras
        names = self.networks.of(requests[0].model).tensors
        return all(c.state[n] is state[n] for c in clients for n in names) and all(
            r.extras[n] is extras[n] for r in requests for n in extras
        )

    @torch.no_grad()
    def sweep_shared(self, client: Client, images: Sequence[Piece], request: Collect, first: int) -> list[Tensor]:
        """The output of one model for the images of several clients, one pass over all of them: [n, ...] a client."""
        model = self.networks.of(request.model).load(client.state).eval()
        counts = [len(piece.rows) for piece in images]
        places = torch.cat([torch.arange(first, first + n, device=self.device) for n in counts])
        positions, parts = torch.split(places, CHUNK), []
        for piece, position in zip(Piece.joined(images).split(CHUNK), positions, strict=True):
            self.stop_if_cancelled()
            batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
            with self.autocast():
                parts.append(output_of(request.output, model, batch))
        return list(torch.split(torch.cat(parts), counts))

    def of_scores(
        self, clients: Sequence[Client], pieces: Sequence[Sequence[Piece]], what: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        images = [Piece.joined(own) for own in pieces]
        requests = [c.answers_by or LOGITS for c in clients]
        # A model with a whole chunk of images of its own fills the device by itself.
        alike = all(kind(r) == kind(requests[0]) for r in requests)
        if len(clients) == 1 or not alike or all(len(piece.rows) >= CHUNK for piece in images):
            return super().of_scores(clients, pieces, what)
        request = replace(requests[0], split="test")
        extras = {n: stacked([r.extras[n] for r in requests]) for n in request.extras}
        return [what(scores) for scores in self.sweep(clients, images, request, extras)]

    @torch.no_grad()
    def sweep(
        self,
        clients: Sequence[Client],
        images: Sequence[Piece],
        request: Collect,
        extras: State,
        first: int = 0,
    ) -> list[Tensor]:
        """The request's output for each client's own images, without gradients: [n, ...] a client.

        The images are those from position `first` on of a split of the clients' data; extras [C, ...] are the clients'.
        """
        network = self.networks.of(request.model)
        network.scope.eval()
        order = sorted(range(len(clients)), key=lambda i: -len(images[i].rows))
        clients, images = [clients[i] for i in order], [images[i] for i in order]
        state = {n: stacked([fetched(c.state[n], self.device) for c in clients]) for n in network.tensors}
        extras = {n: t[order] for n, t in extras.items()}
        counts = [len(piece.rows) for piece in images]
        rows = padded([piece.rows for piece in images])
        crops = [piece.windows for piece in images if piece.windows is not None]
        windows = padded(crops) if crops else None
        parts: list[list[Tensor]] = [[] for _ in clients]
        done = 0
        while active := sum(n > done for n in counts):
            self.stop_if_cancelled()
            who, cut = slice(0, active), slice(done, min(done + max(1, CHUNK // active), counts[0]))
            position = torch.arange(cut.start, cut.stop, device=self.device).expand(active, -1)
            tick = Tick(who, rows[who, cut], position, None if windows is None else windows[who, cut])
            batch = self.stacked_batch(tick, {n: t[who] for n, t in extras.items()})
            batch = batch._replace(y=self.labels(tick.rows, request.split), position=position + first)
            with self.autocast():
                out = torch.func.vmap(lambda s, b: network.call(s, partial(output_of, request.output), b))(
                    {n: t[who] for n, t in state.items()}, batch
                )
            for i in range(active):
                parts[i].append(out[i, : counts[i] - done])
            done = cut.stop
        whole = [torch.cat(p) for p in parts]
        return [whole[order.index(i)] for i in range(len(order))]

    def stacked_batch(self, tick: Tick, extras: State) -> Batch:
        """The tick's batch, all of it [k, B, ...]."""
        x = self.batch(tick.rows.flatten(), None if tick.windows is None else tick.windows.flatten(0, 1))
        return Batch(x.view(*tick.rows.shape, *x.shape[1:]), self.federation.labels[tick.rows], tick.positions, extras)


def kind(request: Request) -> Hashable:
    """Requests of one kind can be stacked: equal, with extra tensors of the same names and shapes."""
    return request, tuple(sorted((n, t.shape, t.dtype) for n, t in request.extras.items()))
