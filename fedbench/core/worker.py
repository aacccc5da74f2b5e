"""The reference for clients' requests: one client at a time, one module, plain autograd, in-place updates.

Workers that run many clients in one batch must agree with it.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

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
    Loss,
    Request,
    Rule,
    Train,
    Trained,
    beside,
    following,
    known,
    logits,
    loss_of,
    opened,
    output_of,
)
from fedbench.core.federation import Federation, padded_flip, resized_crop, stored_to_input, to_input
from fedbench.core.network import Network, Networks
from fedbench.core.optimizer import optimizer, recall, remember
from fedbench.core.plan import PADDING, CropStream, Ints
from fedbench.core.precision import autocast, layout
from fedbench.core.state import State, matches, plain
from fedbench.errors import DivergedError, FedbenchError
from fedbench.specs import Setting

# -- pieces ----------------------------------------------------------------------------------------------------
# Images for a forward pass: selecting rows and crop windows, and transfers to the device and back.


#: Images per draw of crop windows, and per forward pass without gradients. Changing it changes draws and rounding.
CHUNK = 512
#: Images per forward pass of one model on a CPU, at most; larger passes need more memory and are hardly faster.
CPU_CHUNK = 64


class Piece(NamedTuple):
    """Images of one forward pass: rows [B] of the federation, crop windows [B, 4] or None."""

    rows: Tensor
    windows: Tensor | None

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        windows = [piece.windows for piece in pieces if piece.windows is not None]
        return cls(torch.cat([piece.rows for piece in pieces]), torch.cat(windows) if windows else None)

    def split(self, size: int) -> list[Piece]:
        """Split into pieces of `size` images; the last may be smaller."""
        rows = torch.split(self.rows, size)
        windows = torch.split(self.windows, size) if self.windows is not None else (None,) * len(rows)
        return [Piece(*both) for both in zip(rows, windows, strict=True)]


def pieces(rows: Tensor, crops: CropStream | None) -> list[Piece]:
    """Split the rows into pieces for one model, with crop windows if the images are cropped."""
    drawn = [Piece(part, windows_of(crops, part)) for part in torch.split(rows, CHUNK)]
    if rows.device.type != "cpu":
        return drawn
    return [part for piece in drawn for part in piece.split(_even(len(piece.rows)))]


def _even(n: int) -> int:
    """Size of the parts if n images are split evenly into as few parts of at most CPU_CHUNK as possible; a last part of
    one image would use another kernel."""
    return -(-n // max(1, -(-n // CPU_CHUNK)))


def windows_of(crops: CropStream | None, rows: Tensor) -> Tensor | None:
    return None if crops is None else torch.from_numpy(crops.draw(len(rows))).to(rows.device)


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


# -- offloading ------------------------------------------------------------------------------------------------
# Where clients' states are between their updates: on the device, or if they do not fit, in host memory.


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
    """The tensor on the device; the same object if it is there already."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """The tensor in pinned host memory, from which a GPU can load it quickly."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor


# -- gradients -------------------------------------------------------------------------------------------------


def to_train(network: Network, prefixes: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters with these prefixes, which require gradients from now on; freezes the others."""
    for name, p in network.parameters.items():
        p.requires_grad_(matches(name, prefixes))
        p.grad = None  # may be left from an interrupted step
    return {name: p for name, p in network.parameters.items() if p.requires_grad}


def apply(
    rule: Rule,
    weights: Mapping[str, Tensor],
    besides: Mapping[str, State],
    again: Callable[[], Any],
    lift: Callable[[Callable[..., State]], Callable[..., State]] = lambda of_one: of_one,
) -> None:
    """Apply a rule to the gradients of the weights. `lift` converts the rule's functions of one client to those of a
    stack; `again` computes the gradients at the current weights."""
    touched = {n: w for n, w in weights.items() if w.grad is not None}
    with torch.no_grad():
        at = {n: w.detach() for n, w in touched.items()}
        gradient = {n: g.detach() for n, w in touched.items() if (g := w.grad) is not None}
        if rule.two_passes:
            gradient = gradients_at(lift(rule.elsewhere)(at, gradient, besides), touched, again)
        for n, g in lift(rule.direction)(at, gradient, besides).items():
            touched[n].grad = laid_as(touched[n], g)


def laid_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the strides of its weight, because torch's fused optimisers pair elements by address and on a
    CPU do not check the strides."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def gradients_at(place: State, weights: Mapping[str, Tensor], again: Callable[[], Any]) -> State:
    """The gradients at `place`, computed by `again`; restores the weights bitwise."""
    home = {n: w.detach().clone() for n, w in weights.items()}
    for n, w in weights.items():
        w.data.copy_(place[n])
        w.grad = None
    with torch.enable_grad():
        again()
    for n, w in weights.items():
        w.data.copy_(home[n])
    return {n: g if (g := w.grad) is not None else torch.zeros_like(w) for n, w in weights.items()}


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether all numbers are finite, as a tensor [] on the device."""
    if not tensors:
        return torch.ones((), dtype=torch.bool)
    sums = [t.detach().sum() for t in tensors]  # a sum is not finite if a summand is not
    return torch.stack(sums).isfinite().all()


def check_finite(client: Client, loss: float, finite: bool) -> None:
    """Raise DivergedError if training diverged, before the method uses the results."""
    if not (finite and math.isfinite(loss)):
        raise DivergedError(
            f"training diverged: client {client.index} in round {client.round} has a loss or weights not finite",
            "a smaller --lr may help",
        )


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


class LocalUpdate:
    """Training of one client on a network: `load` it, `take` each batch, `leave`.

    Tensors that a step uses in addition to the network's are attributes under the network's names: the optimiser's
    memory, the proximal centre, tensors for rules, the request's extras.
    """

    def __init__(self, worker: Worker, network: Network, request: Train) -> None:
        self.worker, self.network, self.request = worker, network, request
        self.optimizer = optimizer(worker.setting, request.momentum)
        self.total = torch.zeros((), dtype=torch.float64, device=worker.device)

    def load(self, client: Client, request: Train) -> None:
        """Start with a client and its request, which may differ from the previous request only in tensors."""
        self.client, self.request = client, request
        self.total.zero_()
        self.network.load(client.state).train()
        self.trained = to_train(self.network, request.trains)
        self.parameters = list(self.trained.values())
        received = {n: client.received[plain(n)].to(p.device).clone() for n, p in self.trained.items() if request.prox}
        self.centre = list(self.placed("centre", received).values())
        read = beside(request.rules, client.state, self.trained)
        self.besides = {model: self.placed(f"beside {model}", state) for model, state in read.items()}
        self.extras = self.placed("extras", request.extras)
        self.memory = self.placed("memory", self.optimizer.memory(self.trained, stacked=False))
        recall(client, request, self.memory)
        self.lr: float | Tensor = client.lr if request.lr is None else request.lr
        self.rows = client.work.rows
        self.images, self.steps, self.batches = 0, 0, 0
        self.collected: list[Tensor] = []
        self.positions: list[Tensor] = []

    def placed(self, kind: str, tensors: Mapping[str, Tensor]) -> State:
        """The client's tensors of this kind, at the addresses that the steps use."""
        return dict(tensors)

    def take(self, position: Tensor, windows: Tensor | None) -> None:
        """Take the steps on one batch: positions [B] in the client's training set, crop windows [B, 4] or None."""
        self.rest()
        if (collected := self.step(position, windows)) is not None:
            self.collected.append(collected)
        self.count(position)

    def rest(self) -> None:
        """With `momentum_restarts`, reset the optimiser at the start of a pass."""
        if self.worker.setting.momentum_restarts and self.batches % self.client.batches_a_pass == 0:
            for remembered in self.memory.values():
                remembered.zero_()

    def count(self, position: Tensor) -> None:
        self.batches += 1
        self.positions += [position] * self.request.repeat
        self.steps += self.request.repeat
        self.images += len(position) * self.request.repeat

    def step(self, position: Tensor, windows: Tensor | None) -> Tensor | None:
        """Compute the steps on one batch; returns the rows that the loss collects, or None."""
        worker, request = self.worker, self.request
        rows = self.rows[position]
        batch = Batch(worker.batch(rows, windows), worker.federation.labels[rows], position, self.extras)
        collected: list[Tensor] = []
        for _ in range(request.repeat):
            loss, objective = self.backward(batch)
            for change in request.rules:
                apply(change, self.trained, self.besides, lambda: self.backward(batch))
            self.optimizer.descend(self.trained, self.memory, self.lr)
            logged = objective if loss.logged is None else loss.logged
            self.total += logged.detach().double() * len(position)
            if loss.collected is not None:
                collected.append(loss.collected.detach().float())
        if request.follow:
            with torch.no_grad():
                for centre, p in zip(self.centre, self.parameters, strict=True):
                    centre.lerp_(p, request.follow)
        return torch.cat(collected) if collected else None

    def backward(self, batch: Batch) -> tuple[Loss, Tensor]:
        """The loss of a batch, and the objective that is minimised; adds gradients to the parameters'."""
        with self.worker.autocast():
            loss = self.loss(batch)
        objective = loss.total
        if self.centre:
            far = [(p - a).square().sum() for p, a in zip(self.parameters, self.centre, strict=True)]
            objective = objective + self.request.prox / 2 * sum(far)
        torch.autograd.backward(objective)
        return loss, objective

    def loss(self, batch: Batch) -> Loss:
        return loss_of(self.request.loss, self.network.module, batch)

    def leave(self) -> Callable[[], Trained]:
        """Write the trained tensors to `client.state`. Returns a function that waits for the device and gives the
        answer to the request, Trained."""
        client, request, images, steps = self.client, self.request, self.images, self.steps
        client.state = {
            **client.state,
            # In a fixed memory layout, so that a state from a checkpoint gives bitwise the same results.
            **{
                name: t.detach().clone(memory_format=torch.contiguous_format)
                for name, t in self.network.tensors.items()
                if name in self.trained or name in self.network.buffers
            },
        }
        remember(client, request, self.memory)
        total, finite = self.total.clone(), all_finite(self.parameters)
        visited = client.work.rows[torch.cat(self.positions)] if self.positions else client.work.rows[:0]
        collected, labels = self.collected, self.worker.federation.labels[visited]
        centre = {n: t.clone() for n, t in zip(self.trained, self.centre, strict=True)} if request.follow else {}

        def answer() -> Trained:
            mean = float(total) / max(images, 1)
            check_finite(client, mean, bool(finite))
            client.work.losses.append((mean, images))
            return Trained(
                loss=mean,
                collected=torch.cat(collected) if collected else None,
                labels=labels,
                images=images,
                pass_rows=client.work.plan.pass_rows(client.index) * request.repeat,
                centre=centre,
                steps=steps,
            )

        return answer
