"""Measured speeds: of an executor on a run's own clients, and of a network on random images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fedbench.core.client import Batch, Client, ClientUpdate, Gradient, Loss, Train
from fedbench.core.executors import Executor, available_cores, one_thread
from fedbench.core.memory import keep_freed_pages
from fedbench.core.precision import autocast, layout

#: Steps of a client in one measurement.
STEPS = 3
#: Measurements; the fastest counts, since whatever else the machine does only slows one down.
REPEATS = 2
#: Images of a network's first step, by which it is told how many images a longer look may take.
FEW = 8
#: Seconds that one step of a network may take in a measurement; slower ones are measured on FEW images.
PATIENCE = 0.3


def steps_per_second(executor: Executor, clients: Sequence[Client]) -> float:
    """Client-steps a second of SGD on cross-entropy, after one round of warm-up (in which an executor captures its
    graphs). The clients' states are left as they were."""
    best, device = 0.0, executor.federation.images.device
    for repeat in range(1 + REPEATS):
        copies = [replace(c, metrics={}, work=replace(c.work, losses=[])) for c in clients]
        started = _now(device)
        executor.run(copies, _update)
        seconds = _now(device) - started
        if repeat:
            best = max(best, STEPS * len(clients) / seconds)
    return best


def _update(client: Client) -> ClientUpdate:
    """The work of a round is measured: local steps, or (where the setting has one step) gradients."""
    if client.setting.steps == 1:
        for _ in range(STEPS):
            yield Gradient(_cross_entropy)
    else:
        yield Train(_cross_entropy, steps=STEPS)


def _cross_entropy(model: Any, batch: Batch) -> Loss:
    return Loss(F.cross_entropy(model(batch.x), batch.y))


def images_per_second(
    model: nn.Module, shape: tuple[int, int, int], device: torch.device, batch: int, precision: str
) -> float:
    """Training images a second with one client a core (CPU) or one after another (GPU), from a probe of a second or so
    on random images [batch, C, H, W], or on FEW of them where a step takes long.

    An estimate for a remark to the user, not a benchmark. On a CPU it is what the processor takes for it: what other
    processes are busy with now says nothing of the hours to come.
    """
    keep_freed_pages()  # as the executors do
    model = model.to(device=device, memory_format=layout(precision, device))  # type: ignore[call-overload]
    few = min(FEW, batch)
    with one_thread():
        _seconds_of_steps(model, shape, device, few, precision, 1)  # warms up
        a_step = _seconds_of_steps(model, shape, device, few, precision, 1)
        images = batch if a_step * batch / few < PATIENCE else few
        steps = max(1, min(20, int(PATIENCE / (a_step * images / few))))
        seconds = min(_seconds_of_steps(model, shape, device, images, precision, steps) for _ in range(REPEATS)) / steps
    return images / seconds * (available_cores() if device.type == "cpu" else 1)


def _seconds_of_steps(
    model: nn.Module, shape: tuple[int, int, int], device: torch.device, batch: int, precision: str, steps: int
) -> float:
    """What so many forward and backward passes on a batch of random images take."""
    height, width, channels = shape
    x = torch.rand(batch, channels, height, width, device=device).contiguous(memory_format=layout(precision, device))
    y = torch.zeros(batch, dtype=torch.long, device=device)
    now = time.thread_time if device.type == "cpu" else partial(_now, device)
    started = now()
    for _ in range(steps):
        with autocast(precision, device):
            loss = F.cross_entropy(model(x).float(), y)
        torch.autograd.backward(loss)
    return now() - started


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
