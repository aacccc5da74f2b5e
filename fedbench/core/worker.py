"""Clients' requests, answered plainly: one client after another, one module, plain autograd, updates in place.

This is the reference: whatever runs many clients at once must agree with it.
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
# Images on their way through a network: which rows and crop windows a forward pass takes, to the device and back.


#: Images whose crop windows are drawn at once, and that a forward pass takes at once where no gradient is needed.
#: Fixed: it shapes the draws, and float rounding.
CHUNK = 512
#: ... of those, how many at most one model takes at once on a CPU: more take memory, and hardly less time.
CPU_CHUNK = 64


class Piece(NamedTuple):
    """Images that a forward pass takes at once: rows [B] of the federation, crop windows [B, 4] or None."""

    rows: Tensor
    windows: Tensor | None

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        """One piece of all these."""
        windows = [piece.windows for piece in pieces if piece.windows is not None]
        return cls(torch.cat([piece.rows for piece in pieces]), torch.cat(windows) if windows else None)

    def split(self, size: int) -> list[Piece]:
        """The images in pieces of `size`; the last may be shorter."""
        rows = torch.split(self.rows, size)
        windows = torch.split(self.windows, size) if self.windows is not None else (None,) * len(rows)
        return [Piece(*both) for both in zip(rows, windows, strict=True)]


def pieces(rows: Tensor, crops: CropStream | None) -> list[Piece]:
    """The rows in pieces that one model takes at once, each with its windows if they are cropped."""
    drawn = [Piece(part, windows_of(crops, part)) for part in torch.split(rows, CHUNK)]
    if rows.device.type != "cpu":
        return drawn
    return [part for piece in drawn for part in piece.split(_even(len(piece.rows)))]


def _even(n: int) -> int:
    """How many of n are in each of the fewest parts of CPU_CHUNK at most: a last image by itself would be computed by
    another kernel."""
    return -(-n // max(1, -(-n // CPU_CHUNK)))


def windows_of(crops: CropStream | None, rows: Tensor) -> Tensor | None:
    return None if crops is None else torch.from_numpy(crops.draw(len(rows))).to(rows.device)


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors there, brought in one transfer."""
    if not arrays:
        return []
    flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))
    if device.type == "cuda":  # from other memory the host would wait for the device
        flat = flat.pin_memory()
    flat = flat.to(device, non_blocking=True)
    return [part.view(a.shape) for part, a in zip(torch.split(flat, [a.size for a in arrays]), arrays, strict=True)]


def on_host(tensor: Tensor) -> np.ndarray:
    """Answers on the host: classes as [T] uint16, scores of several labels as [T, U] float32."""
    answers: np.ndarray = tensor.cpu().numpy()
    return answers.astype(np.float32 if answers.dtype.kind == "f" else np.uint16)


# -- offloading ------------------------------------------------------------------------------------------------
# Where clients' states lie while others are at work: on the device, or where not all fit in host memory.


def load_to_device(clients: Sequence[Client], device: torch.device) -> None:
    """Bring what the clients hold to the device."""
    for client in clients:
        client.work.host_state = client.state
        # A tensor that a client holds as it was received stays one tensor.
        brought = {id(t): on(t, device) for s in (client.state, client.received) for t in s.values()}
        client.state = {name: brought[id(t)] for name, t in client.state.items()}
        client.received = {name: brought[id(t)] for name, t in client.received.items()}


def offload(clients: Sequence[Client]) -> None:
    """Send what is to lie in host memory there; what has not changed is still where it was."""
    for client in clients:
        if (offloaded := client.work.offloads) is not None:
            same = {n for n, t in client.state.items() if n in client.work.host_state and t is client.received.get(n)}
            client.state = {
                n: (client.work.host_state[n] if n in same else _to_host(t)) if offloaded(n) else t
                for n, t in client.state.items()
            }
            client.received = {n: t for n, t in client.received.items() if not offloaded(n)}


def on(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; one that lies there already stays the same."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """The tensor in host memory, pinned, so that a GPU can fetch it quickly when its client is next at work."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor


# -- gradients -------------------------------------------------------------------------------------------------


def to_train(network: Network, prefixes: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that these prefixes name, made ready for gradients; the others are frozen."""
    for name, p in network.parameters.items():
        p.requires_grad_(matches(name, prefixes))
        p.grad = None  # of a step that was interrupted
    return {name: p for name, p in network.parameters.items() if p.requires_grad}


def apply(
    rule: Rule,
    weights: Mapping[str, Tensor],
    besides: Mapping[str, State],
    again: Callable[[], Any],
    lift: Callable[[Callable[..., State]], Callable[..., State]] = lambda of_one: of_one,
) -> None:
    """Change the gradients that the weights hold by a rule of one client, which `lift` makes one of a stack; `again`
    takes them where the weights are."""
    touched = {n: w for n, w in weights.items() if w.grad is not None}
    with torch.no_grad():
        at = {n: w.detach() for n, w in touched.items()}
        gradient = {n: g.detach() for n, w in touched.items() if (g := w.grad) is not None}
        if rule.two_passes:
            gradient = gradients_at(lift(rule.elsewhere)(at, gradient, besides), touched, again)
        for n, g in lift(rule.direction)(at, gradient, besides).items():
            touched[n].grad = laid_as(touched[n], g)


def laid_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, in memory in the order of its weight: torch's fused steps go by addresses, and on a CPU do not
    say when these differ."""
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def gradients_at(place: State, weights: Mapping[str, Tensor], again: Callable[[], Any]) -> State:
    """The gradients elsewhere; the weights come back to the bit."""
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
    """Whether all numbers are finite, as one [] on the device."""
    if not tensors:
        return torch.ones((), dtype=torch.bool)
    sums = [t.detach().sum() for t in tensors]  # of what is not finite neither is the sum
    return torch.stack(sums).isfinite().all()


def check_finite(client: Client, loss: float, finite: bool) -> None:
    """Stop a run that has diverged, before a method works with what came out."""
    if not (finite and math.isfinite(loss)):
        raise DivergedError(
            f"training diverged: client {client.index} in round {client.round} has a loss or weights not finite",
            "a smaller --lr may help",
        )


#: What answers for a client that says nothing else.
LOGITS = Collect(logits, split="test")


def answering(client: Client) -> Collect:
    """What a client answers by."""
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
        """The answer to one client's request."""
        if isinstance(request, Train):
            return self.train(client, request)
        return self.gradient(client, request) if isinstance(request, Gradient) else self.collect(client, request)

    def answers(self, clients: Sequence[Client], images: Sequence[Sequence[Piece]]) -> list[np.ndarray]:
        """What each client's model answers the images of that client's pieces: see `answer_to` and `on_host`."""
        return [on_host(self.answer_to(scores)) for scores in self.scores(clients, images)]

    def scores(self, clients: Sequence[Client], images: Sequence[Sequence[Piece]]) -> list[Tensor]:
        """[n, ...] a client: what it answers by puts out for the images of its pieces, without their labels."""
        requests = [answering(client) for client in clients]
        return [self.outputs(c.state, r, own) for c, r, own in zip(clients, requests, images, strict=True)]

    @torch.no_grad()
    def outputs(self, state: State, request: Collect, images: Sequence[Piece], first: int = 0) -> Tensor:
        """[n, ...]: the request's output for these images, which begin at position `first` of its split."""
        self.load(state, request.model)
        positions = torch.arange(first, first + sum(len(piece.rows) for piece in images), device=self.device)
        each = torch.split(positions, [len(piece.rows) for piece in images])
        return torch.cat([self.output(request, *one) for one in zip(images, each, strict=True)])

    def output(self, request: Collect, piece: Piece, position: Tensor) -> Tensor:
        """[B, ...]: what the loaded model puts out for images at these positions, in the run's precision."""
        self.stop_if_cancelled()
        batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
        with self.autocast():
            return output_of(request.output, self.networks.of(request.model).module, batch)

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

    def load(self, state: State, model: str | tuple[str, ...] = "") -> nn.Module:
        """The network of that model with this state, ready to answer."""
        return self.networks.of(model).load(state).eval()

    def batch(self, rows: Tensor, windows: Tensor | None = None) -> Tensor:
        """Network input [B, C, H, W] of these rows, cropped to the windows [B, 4] if given."""
        at, scaling = self.federation.image_at(rows), self.federation.scaling
        images = self.federation.images.index_select(0, at)  # a fifth of the time of images[rows] on a CPU
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

    @staticmethod
    def crops(client: Client) -> CropStream | None:
        """The crop windows of the training images that a request is answered with."""
        return client.work.plan.crops("train", client.round, client.index, client.work.phase)

    def train(self, client: Client, request: Train) -> Trained:
        """Minibatch training as the request says; updates `client.state`."""
        update = LocalUpdate(self, self.networks.of(request.model), request)
        update.load(client, request)
        crops = self.crops(client)
        for position in on_device(self.batches(client, request), self.device):
            self.stop_if_cancelled()
            update.take(position, windows_of(crops, position))
        return update.leave()()

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
        """The request's output for every image of a split of the client's data, or of a part of it."""
        rows = client.work.rows_of(request.split, request.part)
        crops = client.work.plan.crops("collect", client.round, client.index, client.work.collects)
        outputs = self.outputs(client.state, request, pieces(rows, crops), request.part[0] if request.part else 0)
        return Collected(outputs.float(), self.labels(rows, request.split))


class LocalUpdate:
    """A client's training on a network that holds its tensors: load, take batch after batch, leave.

    What is read and written lies beside the network, under its names: the optimiser's memory, the centre of a proximal
    term, what rules read, the request's extra tensors.
    """

    def __init__(self, worker: Worker, network: Network, request: Train) -> None:
        self.worker, self.network, self.request = worker, network, request
        self.optimizer = optimizer(worker.setting, request.momentum)
        self.total = torch.zeros((), dtype=torch.float64, device=worker.device)

    def load(self, client: Client, request: Train) -> None:
        """Begin with this client's tensors, whose request is equal to the update's but for what belongs to it."""
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
        """The client's tensors of this kind where the steps find them."""
        return dict(tensors)

    def take(self, position: Tensor, windows: Tensor | None) -> None:
        """The steps on one batch: positions [B] in the client's training set, crop windows [B, 4] or None."""
        self.rest()
        if (collected := self.step(position, windows)) is not None:
            self.collected.append(collected)
        self.count(position)

    def rest(self) -> None:
        """Let the optimiser begin anew where a pass begins, if it is to."""
        if self.worker.setting.momentum_restarts and self.batches % self.client.batches_a_pass == 0:
            for remembered in self.memory.values():
                remembered.zero_()

    def count(self, position: Tensor) -> None:
        """A batch was taken."""
        self.batches += 1
        self.positions += [position] * self.request.repeat
        self.steps += self.request.repeat
        self.images += len(position) * self.request.repeat

    def step(self, position: Tensor, windows: Tensor | None) -> Tensor | None:
        """The arithmetic of `take`; gives the rows that the loss collects, if it does."""
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
        """The loss of a batch and what is minimised, whose gradient is added to the parameters'."""
        with self.worker.autocast():
            loss = self.loss(batch)
        objective = loss.total
        if self.centre:
            far = [(p - a).square().sum() for p, a in zip(self.parameters, self.centre, strict=True)]
            objective = objective + self.request.prox / 2 * sum(far)
        torch.autograd.backward(objective)
        return loss, objective

    def loss(self, batch: Batch) -> Loss:
        """The request's loss."""
        return loss_of(self.request.loss, self.network.module, batch)

    def leave(self) -> Callable[[], Trained]:
        """Give the client what its training has made of its tensors; what is returned waits for the device, and gives
        the answer to its request."""
        client, request, images, steps = self.client, self.request, self.images, self.steps
        client.state = {
            **client.state,
            # In one memory layout, whatever the model's: a state that was saved and loaded must compute the same bits.
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
