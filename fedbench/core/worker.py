"""The reference for clients' requests: one client at a time, one module, plain autograd, in-place updates.

Workers that run many clients in one batch must agree with it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import (
    Answer,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Collected,
    Differentiated,
    Gradient,
    Request,
    Train,
    Trained,
    known,
    logits,
)
from fedbench.core.federation import Federation
from fedbench.core.hooks import following, loss_of, opened, output_of
from fedbench.core.images import Piece, padded_flip, pieces, resized_crop, stored_to_input, to_input, windows_of
from fedbench.core.local_update import LocalUpdate, all_finite, check_finite, to_train
from fedbench.core.network import Networks
from fedbench.core.plan import PADDING, CropStream, Ints
from fedbench.core.precision import autocast, layout
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.specs import Setting


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device, copied in one transfer."""
    if not arrays:
        return []
    flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))
    if device.type == "cuda":  # a copy from pageable memory would block the host
        flat = flat.pin_memory()
    flat = flat.to(device, non_blocking=True)
    return [part.view(a.shape) for part, a in zip(torch.split(flat, [a.size for a in arrays]), arrays, strict=True)]


def on_host(tensor: Tensor) -> np.ndarray:
    """Predictions on the host: classes as uint16 [T], scores of several labels as float32 [T, U]."""
    answers: np.ndarray = tensor.cpu().numpy()
    return answers.astype(np.float32 if answers.dtype.kind == "f" else np.uint16)


def load_to_device(clients: Sequence[Client], device: torch.device) -> None:
    """Copy the clients' tensors to the device."""
    for client in clients:
        client.work.host_state = client.state
        # A tensor in both `state` and `received` stays one object, which marks it as unchanged.
        brought = {id(t): on(t, device) for s in (client.state, client.received) for t in s.values()}
        client.state = {name: brought[id(t)] for name, t in client.state.items()}
        client.received = {name: brought[id(t)] for name, t in client.received.items()}


def offload(clients: Sequence[Client]) -> None:
    """Move the tensors that `offloads` selects to host memory; unchanged ones reuse their old host tensors."""
    for client in clients:
        if (offloaded := client.work.offloads) is not None:
            same = {n for n, t in client.state.items() if n in client.work.host_state and t is client.received.get(n)}
            client.state = {
                n: (client.work.host_state[n] if n in same else _to_host(t)) if offloaded(n) else t
                for n, t in client.state.items()
            }
            client.received = {n: t for n, t in client.received.items() if not offloaded(n)}


def on(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; the same object if it exists already."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """The tensor in pinned host memory, from which a GPU can load it quickly."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor


#: How a client predicts by default.
LOGITS = Collect(logits, split="test")


def answering(client: Client) -> Collect:
    """The request with which a client predicts test images."""
    return LOGITS if client.answers_by is None else replace(client.answers_by, split="test")


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
            load_to_device([client], self.device)
            generator = opened(update, client)
            answer: Answer | None = None
            while generator is not None and (request := following(update, generator, answer, client)) is not None:
                client.work.counted(request)
                with client.work.timed("network"):
                    answer = self.answer_one(client, request)
            offload([client])
            client.work.seconds += time.perf_counter() - started

    def answer_one(self, client: Client, request: Request) -> Answer:
        if isinstance(request, Train):
            return self.train(client, request)
        return self.gradient(client, request) if isinstance(request, Gradient) else self.collect(client, request)

    def answers(self, clients: Sequence[Client], images: Sequence[Sequence[Piece]]) -> list[np.ndarray]:
        """Predictions of each client's model for its pieces of images: see `answer_to` and `on_host`."""
        return [on_host(self.answer_to(scores)) for scores in self.scores(clients, images)]

    def scores(self, clients: Sequence[Client], images: Sequence[Sequence[Piece]]) -> list[Tensor]:
        """[n, ...] per client: outputs of its `answering` request for its pieces of images, without labels."""
        requests = [answering(client) for client in clients]
        return [self.outputs(c.state, r, own) for c, r, own in zip(clients, requests, images, strict=True)]

    @torch.no_grad()
    def outputs(self, state: State, request: Collect, images: Sequence[Piece], first: int = 0) -> Tensor:
        """[n, ...]: the request's output for these images; they start at position `first` of the request's split."""
        self.load(state, request.model)
        positions = torch.arange(first, first + sum(len(piece.rows) for piece in images), device=self.device)
        each = torch.split(positions, [len(piece.rows) for piece in images])
        return torch.cat([self.output(request, *one) for one in zip(images, each, strict=True)])

    def output(self, request: Collect, piece: Piece, position: Tensor) -> Tensor:
        """[B, ...]: output of the loaded model for the images at these positions, in the run's precision."""
        self.stop_if_cancelled()
        batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
        with self.autocast():
            return output_of(request.output, self.networks.of(request.model).module, batch)

    def answer_to(self, logits: Tensor) -> Tensor:
        """Predictions from logits [B, K]: classes [B], or for multi-label images probabilities [B, K]. Raises
        FedbenchError for logits of another width, which could give classes that do not exist."""
        if logits.shape[1:] != (self.federation.classes,):
            raise FedbenchError(
                f"a client answers an image by scores {list(logits.shape[1:])}, not {[self.federation.classes]}",
                "let client.answers_by put out a score for each class",
            )
        if not self.federation.multi_label:
            return logits.argmax(1)
        return self.federation.task.probabilities(logits.float())

    def load(self, state: State, model: str | tuple[str, ...] = "") -> nn.Module:
        """Load this state into the model's network; returns its module in evaluation mode."""
        return self.networks.of(model).load(state).eval()

    def batch(self, rows: Tensor, windows: Tensor | None = None) -> Tensor:
        """Network input [B, C, H, W] of these rows, cropped to the windows [B, 4] if given."""
        at, scaling = self.federation.image_at(rows), self.federation.scaling
        images = self.federation.images.index_select(0, at)  # on a CPU five times as fast as images[rows]
        if windows is not None:
            if self.setting.augment == "pad_flip":
                images = padded_flip(images, windows, PADDING)
            else:
                images = resized_crop(images, windows)
        x = stored_to_input(images) if windows is None else to_input(images)
        if scaling is not None:
            factor, offset = scaling[rows, :, :, None, None].unbind(1)
            x.mul_(factor).add_(offset)
        return x.contiguous(memory_format=self.layout)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for a forward pass and its loss."""
        return autocast(self.setting.precision, self.device)

    def stop_if_cancelled(self) -> None:
        """Raise Cancelled if the run was interrupted."""
        if self.cancel.is_set():
            raise Cancelled

    def batches(self, client: Client, request: Train) -> list[Ints]:
        """Positions in the client's training set, for every batch of the request."""
        length = (request.epochs, request.steps)
        epochs, steps = (self.setting.epochs, self.setting.steps) if length == (None, None) else length
        return list(client.work.plan.batches(client.index, client.round, client.work.phase, epochs, steps))

    @staticmethod
    def crops(client: Client) -> CropStream | None:
        """Crop windows for the training images of a request."""
        return client.work.plan.crops("train", client.round, client.index, client.work.phase)

    def train(self, client: Client, request: Train) -> Trained:
        """Train on minibatches; updates `client.state`."""
        update = self.local_update(request)
        update.load(client, request)
        crops = self.crops(client)
        for position in on_device(self.batches(client, request), self.device):
            self.stop_if_cancelled()
            update.take(position, windows_of(crops, position))
        return update.leave()()

    def local_update(self, request: Train) -> LocalUpdate:
        return LocalUpdate(self, self.networks.of(request.model), request)

    def batch_of(self, client: Client, request: Gradient) -> Ints:
        """Positions of a gradient's batch in a split of the client's data."""
        if request.part is not None:
            return np.arange(*request.part)
        return next(client.work.plan.batches(client.index, client.round, client.work.phase, None, 1))

    def labels(self, rows: Tensor, split: str) -> Tensor:
        """The labels that a request may see (`known`)."""
        return known(self.federation.labels[rows], split)

    def gradient(self, client: Client, request: Gradient) -> Differentiated:
        """The gradient on one batch; updates running statistics in `client.state`."""
        network = self.networks.of(request.model)
        model = network.load(client.state).train()
        trained = to_train(network, request.trains)
        crops = self.crops(client)
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
        check_finite(client, logged, bool(all_finite(list(gradient.values()))))
        client.work.losses.append((logged, len(rows)))
        return Differentiated(logged, gradient, len(rows))

    def collect(self, client: Client, request: Collect) -> Collected:
        """The request's output for all images of a split, or part of a split, of the client's data."""
        rows = client.work.rows_of(request.split, request.part)
        crops = client.work.plan.crops("collect", client.round, client.index, client.work.collects)
        outputs = self.outputs(client.state, request, pieces(rows, crops), request.part[0] if request.part else 0)
        return Collected(outputs.float(), self.labels(rows, request.split))
