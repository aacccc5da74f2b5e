"""Clients' requests, answered plainly: one client after another, one module, plain autograd, updates in place.

This is the reference: whatever runs many clients at once must agree with it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.augment import padded_flip, resized_crop, to_input
from fedbench.core.client import (
    Answer,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Collected,
    Differentiated,
    Gradient,
    Loss,
    Request,
    Train,
    Trained,
    logits,
)
from fedbench.core.federation import Federation
from fedbench.core.gradients import apply, check_finite, follow, to_train
from fedbench.core.momentum import recall, remember
from fedbench.core.network import Networks
from fedbench.core.optimizer import optimizer
from fedbench.core.pieces import Piece, on_device, on_host, pieces, windows_of
from fedbench.core.plan import PADDING, Ints
from fedbench.core.precision import autocast, layout
from fedbench.core.rules import beside
from fedbench.core.state import State, plain
from fedbench.core.update import following, loss_of, opened, output_of
from fedbench.core.waiting import fetch, put_by
from fedbench.core.work import NO_LABEL, known
from fedbench.errors import FedbenchError
from fedbench.specs import Setting

#: What answers for a client that says nothing else.
LOGITS = Collect(logits)


class Cancelled(Exception):
    """The run was interrupted while a worker was busy."""


class Worker:
    """Answers requests with its own copy of the model."""

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        setting: Setting,
        cancel: threading.Event,
        convert: Callable[[nn.Module], nn.Module] = lambda module: module,
    ) -> None:
        self.federation, self.setting, self.cancel = federation, setting, cancel
        self.device = federation.images.device
        self.layout = layout(setting.precision, self.device)
        self.model: nn.Module = copy.deepcopy(model).to(memory_format=self.layout)  # type: ignore[call-overload]
        self.networks = Networks(self.model, convert)

    def serve(self, clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        """Run each client's update to its end."""
        for client in clients:
            started = time.perf_counter()
            fetch([client], self.device)
            generator = opened(update, client)
            answer: Answer | None = None
            while generator is not None and (request := following(update, generator, answer, client)) is not None:
                client.work.counted(draws=not isinstance(request, Collect))
                with client.work.timed("network"):
                    answer = self.answer_one(client, request)
            put_by([client])
            client.work.seconds += time.perf_counter() - started

    def answer_one(self, client: Client, request: Request) -> Answer:
        """The answer to one client's request."""
        if isinstance(request, Train):
            return self.train(client, request)
        return self.gradient(client, request) if isinstance(request, Gradient) else self.collect(client, request)

    def answers(self, clients: Sequence[Client], pieces: Sequence[Sequence[Piece]]) -> list[np.ndarray]:
        """What each client's model answers the images of that client's pieces: see `answer_to` and `on_host`."""
        return [on_host([answers]) for answers in self.of_scores(clients, pieces, self.answer_to)]

    @torch.no_grad()
    def of_scores(
        self, clients: Sequence[Client], pieces: Sequence[Sequence[Piece]], what: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """[n, ...] a client: `what` follows, image by image, from the scores [B, K] that it answers by to the images of
        its pieces."""
        out = []
        for client, own in zip(clients, pieces, strict=True):
            request = client.answers_by or LOGITS
            model = self.networks.of(request.model).load(client.state).eval()
            out.append(torch.cat([what(self.scores(model, request, piece)) for piece in own]))
        return out

    def scores(self, model: nn.Module, request: Collect, piece: Piece) -> Tensor:
        """[B, K]: what a client answers by to the piece's images, in the run's precision."""
        self.stop_if_cancelled()
        y = torch.full_like(self.federation.labels[piece.rows], NO_LABEL)
        batch = Batch(self.batch(*piece), y, torch.zeros_like(piece.rows), request.extras)
        with self.autocast():
            return output_of(request.output, model, batch)

    def answer_to(self, logits: Tensor) -> Tensor:
        """The class of each image [B] by logits [B, K], or with multi-label images each one's probability. Raises
        FedbenchError for other logits, which would answer with classes that there are not."""
        if logits.shape[1:] != (self.federation.classes,):
            raise FedbenchError(
                f"a client answers an image by scores {list(logits.shape[1:])}, not {[self.federation.classes]}",
                "let client.answers_by put out a score for each class",
            )
        if not self.federation.multi_label:
            return logits.argmax(1)
        return self.federation.task.probabilities(logits.float())

    def load(self, state: State) -> nn.Module:
        """The network with this state."""
        return self.networks.of("").load(state)

    def batch(self, rows: Tensor, windows: Tensor | None = None) -> Tensor:
        """Network input [B, C, H, W] of these rows, cropped to the windows [B, 4] if given."""
        image, scaling = self.federation.image, self.federation.scaling
        at = rows if image is None else image[rows]
        images = self.federation.images.index_select(0, at)  # a fifth of the time of images[rows] on a CPU
        if windows is not None:
            if self.setting.augment == "pad_flip":
                images = padded_flip(images, windows, PADDING)
            else:
                images = resized_crop(images, windows)
        x = to_input(images)
        if scaling is not None:
            factor, offset = scaling[rows, :, :, None, None].unbind(1)
            x.mul_(factor).add_(offset)
        return x.contiguous(memory_format=self.layout)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass and its loss."""
        return autocast(self.setting.precision, self.device)

    def stop_if_cancelled(self) -> None:
        """Raise Cancelled if the run was interrupted."""
        if self.cancel.is_set():
            raise Cancelled

    def batches(self, client: Client, request: Train) -> list[Ints]:
        """Positions in the client's training set of every batch that the request asks for."""
        length = (request.epochs, request.steps)
        epochs, steps = (self.setting.epochs, self.setting.steps) if length == (None, None) else length
        return list(client.work.plan.batches(client.index, client.round, client.work.phase, epochs, steps))

    def train(self, client: Client, request: Train) -> Trained:
        """Minibatch training as the request says; updates `client.state`."""
        network = self.networks.of(request.model)
        model = network.load(client.state).train()
        trained = to_train(network, request.trains)
        centre = [client.received[plain(n)].to(p.device).clone() for n, p in trained.items()] if request.prox else []
        besides = beside(request.rules, client.state, trained)
        parameters = list(trained.values())
        rule = optimizer(self.setting, request.momentum)
        memory = rule.memory(trained, stacked=False)
        recall(client, request, memory)
        lr = client.lr if request.lr is None else request.lr
        crops = client.work.plan.crops("train", client.round, client.index, client.work.phase)
        collected: list[Tensor] = []
        labels: list[Tensor] = []
        total, images, steps = torch.zeros((), dtype=torch.float64, device=self.device), 0, 0
        a_pass = client.work.plan.batches_a_pass(client.index)
        for k, position in enumerate(on_device(self.batches(client, request), self.device)):
            self.stop_if_cancelled()
            if self.setting.momentum_restarts and k % a_pass == 0:
                for remembered in memory.values():
                    remembered.zero_()
            rows = client.work.rows[position]
            y = self.federation.labels[rows]
            batch = Batch(self.batch(rows, windows_of(crops, rows)), y, position, request.extras)

            def backward(batch: Batch = batch) -> tuple[Loss, Tensor]:
                with self.autocast():
                    loss = loss_of(request.loss, model, batch)
                objective = loss.total
                if centre:
                    objective = objective + request.prox / 2 * sum(
                        (p - a).square().sum() for p, a in zip(parameters, centre, strict=True)
                    )
                torch.autograd.backward(objective)
                return loss, objective

            for _ in range(request.repeat):
                loss, objective = backward()
                for change in request.rules:
                    apply(change, trained, besides, backward)
                rule.descend(trained, memory, lr)
                steps += 1
                logged = objective if loss.logged is None else loss.logged
                total += logged.detach().double() * len(rows)
                images += len(rows)
                if loss.collected is not None:
                    collected.append(loss.collected.detach().float())
                labels.append(y)
            if request.follow:
                follow(centre, parameters, request.follow)
        client.state = {
            **client.state,
            # In one memory layout, whatever the model's: a state that was saved and loaded must compute the same bits.
            **{
                name: t.detach().clone(memory_format=torch.contiguous_format)
                for name, t in network.tensors.items()
                if name in trained or name in network.buffers
            },
        }
        remember(client, request, memory)
        mean = float(total) / max(images, 1)
        sums = [p.detach().sum() for p in parameters]  # of what is not finite neither is the sum
        check_finite(client, mean, not sums or bool(torch.stack(sums).isfinite().all()))
        client.work.losses.append((mean, images))
        return Trained(
            loss=mean,
            collected=torch.cat(collected) if collected else None,
            labels=torch.cat(labels) if labels else client.work.rows[:0],
            images=images,
            pass_rows=client.work.plan.pass_rows(client.index) * request.repeat,
            centre=dict(zip(trained, centre, strict=True)) if request.follow else {},
            steps=steps,
        )

    def batch_of(self, client: Client, request: Gradient) -> Ints:
        """Positions in a split of the client's data of the batch that a gradient is asked on."""
        if request.part is not None:
            return np.arange(*request.part)
        return next(client.work.plan.batches(client.index, client.round, client.work.phase, None, 1))

    def labels(self, rows: Tensor, split: str) -> Tensor:
        """The labels that a request may see."""
        return known(self.federation.labels[rows], split)

    def gradient(self, client: Client, request: Gradient) -> Differentiated:
        """The gradient on one batch; running statistics in `client.state` move on."""
        network = self.networks.of(request.model)
        model = network.load(client.state).train()
        trained = to_train(network, request.trains)
        crops = client.work.plan.crops("train", client.round, client.index, client.work.phase)
        (position,) = on_device([self.batch_of(client, request)], self.device)
        self.stop_if_cancelled()
        rows = client.work.rows_of(request.split)[position]
        y = self.labels(rows, request.split)
        batch = Batch(self.batch(rows, windows_of(crops, rows)), y, position, request.extras)
        with self.autocast():
            loss = loss_of(request.loss, model, batch)
        gradients = torch.autograd.grad(loss.total, list(trained.values()), allow_unused=True)
        gradient = {
            name: torch.zeros_like(p) if g is None else g.contiguous()
            for (name, p), g in zip(trained.items(), gradients, strict=True)
        }
        client.state = {**client.state, **{name: network.tensors[name].detach().clone() for name in network.buffers}}
        logged = float((loss.total if loss.logged is None else loss.logged).detach())
        sums = torch.stack([g.sum() for g in gradient.values()])
        check_finite(client, logged, bool(sums.isfinite().all()))
        client.work.losses.append((logged, len(rows)))
        return Differentiated(logged, gradient, len(rows))

    @torch.no_grad()
    def collect(self, client: Client, request: Collect) -> Collected:
        """The request's output for every image of a split of the client's data, or of a part of it."""
        model = self.networks.of(request.model).load(client.state).eval()
        rows = client.work.rows_of(request.split, request.part)
        crops = client.work.plan.crops("collect", client.round, client.index, client.work.collects)
        parts, done = [], request.part[0] if request.part else 0
        for piece in pieces(rows, crops):
            self.stop_if_cancelled()
            position = torch.arange(done, done + len(piece.rows), device=self.device)
            done += len(piece.rows)
            batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
            with self.autocast():
                parts.append(output_of(request.output, model, batch))
        return Collected(torch.cat(parts).float(), self.labels(rows, request.split))
