"""One client's requests, answered plainly: one module, plain autograd, updates in place.

This is the reference: whatever runs many clients at once must agree with it.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedbench.core.augment import resized_crop, to_input
from fedbench.core.client import Batch, Box, Client, Collect, Collected, Request, Train, Trained
from fedbench.core.federation import Federation
from fedbench.core.plan import CropStream, Plan
from fedbench.core.state import State, matches
from fedbench.errors import FedbenchError

#: Images a forward pass takes at once where no gradient is needed. Fixed: it shapes float rounding.
CHUNK = 512


class Cancelled(Exception):
    """The run was interrupted while a worker was busy."""


class Worker:
    """Answers requests with its own copy of the model; one worker serves one client at a time."""

    def __init__(self, model: nn.Module, federation: Federation, plan: Plan, cancel: threading.Event) -> None:
        self.model: nn.Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.tensors = dict(self.model.state_dict(keep_vars=True))
        self.federation, self.plan, self.cancel = federation, plan, cancel

    def serve(self, client: Client, box: Callable[[Client], Box | None]) -> None:
        """Run the client's box to its end."""
        started = time.perf_counter()
        generator = box(client)
        answer: Trained | Collected | None = None
        while generator is not None:
            try:
                request: Request = generator.send(answer)
            except StopIteration:
                break
            client.phase += 1
            answer = self.train(client, request) if isinstance(request, Train) else self.collect(client, request)
        client.seconds += time.perf_counter() - started

    def load(self, state: State) -> nn.Module:
        """The model with this state. Variables of the method that are no part of the model are skipped."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state[name])
        return self.model

    def batch(self, rows: Tensor, crops: CropStream | None) -> Tensor:
        """Network input [B, C, H, W] of these rows, cropped at random if a stream of windows is given."""
        images = self.federation.images[rows]
        if crops is not None:
            windows = torch.from_numpy(crops.draw(len(rows))).to(images.device)
            images = resized_crop(images, windows)
        return to_input(images)

    def train(self, client: Client, request: Train) -> Trained:
        """Minibatch SGD as the request says; updates `client.state`."""
        setting = self.plan.setting
        model = self.load(client.state).train()
        trained = {}
        for name, p in model.named_parameters():
            p.requires_grad_(matches(name, request.trains))
            if p.requires_grad:
                trained[name] = p
        anchor = [client.received[name].to(p.device) for name, p in trained.items()] if request.anchor else []
        parameters = list(trained.values())
        optimiser = torch.optim.SGD(
            parameters,
            lr=client.lr if request.lr is None else request.lr,
            momentum=setting.momentum,
            weight_decay=setting.weight_decay,
            fused=True,
        )
        epochs, steps = (
            (setting.epochs, setting.steps)
            if request.epochs is None and request.steps is None
            else (request.epochs, request.steps)
        )
        rows_of_client = self.federation.train[client.index]
        crops = self.plan.crops("train", client.round, client.index, client.phase)
        kept: list[Tensor] = []
        labels: list[Tensor] = []
        total, images = torch.zeros((), dtype=torch.float64, device=rows_of_client.device), 0
        for positions in self.plan.batches(client.index, client.round, client.phase, epochs, steps):
            if self.cancel.is_set():
                raise Cancelled
            index = torch.from_numpy(positions).to(rows_of_client.device)
            rows = rows_of_client[index]
            y = self.federation.labels[rows]
            loss = request.loss(model, Batch(self.batch(rows, crops), y, index, request.extras))
            optimiser.zero_grad(set_to_none=True)
            objective = loss.total
            if anchor:
                objective = objective + request.anchor / 2 * sum(
                    (p - a).square().sum() for p, a in zip(parameters, anchor, strict=True)
                )
            torch.autograd.backward(objective)
            optimiser.step()
            shown = objective if loss.shown is None else loss.shown
            total += shown.detach().double() * len(rows)
            images += len(rows)
            if loss.kept is not None:
                kept.append(loss.kept.detach())
            labels.append(y)
        buffers = {name for name, _ in model.named_buffers()}
        client.state = {
            **client.state,
            # In one memory layout, whatever the model's: a state that was saved and loaded must compute the same bits.
            **{
                name: t.detach().clone(memory_format=torch.contiguous_format)
                for name, t in self.tensors.items()
                if name in trained or name in buffers
            },
        }
        mean = float(total) / max(images, 1)
        _check_finite(mean, trained, client)
        client.losses.append((mean, images))
        return Trained(
            loss=mean,
            kept=torch.cat(kept) if kept else None,
            labels=torch.cat(labels) if labels else rows_of_client[:0],
            images=images,
            pass_rows=self.plan.pass_rows(client.index),
        )

    @torch.no_grad()
    def collect(self, client: Client, request: Collect) -> Collected:
        """The request's output for every training image of the client."""
        model = self.load(client.state).eval()
        rows = self.federation.train[client.index]
        crops = self.plan.crops("collect", client.round, client.index, client.phase)
        parts = []
        for index in torch.split(torch.arange(len(rows), device=rows.device), CHUNK):
            if self.cancel.is_set():
                raise Cancelled
            chunk = rows[index]
            batch = Batch(self.batch(chunk, crops), self.federation.labels[chunk], index, request.extras)
            parts.append(request.output(model, batch))
        return Collected(torch.cat(parts), self.federation.labels[rows])


def _check_finite(loss: float, trained: Mapping[str, Tensor], client: Client) -> None:
    """Stop a run that has diverged, before a method works with what came out."""
    finite = [p.detach().isfinite().all() for p in trained.values()]
    if not math.isfinite(loss) or not bool(torch.stack(finite).all()):
        raise FedbenchError(
            f"training diverged: client {client.index} in round {client.round} has a loss or weights not finite",
            "a smaller --lr may help",
        )
