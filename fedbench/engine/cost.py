"""Estimate the time of a run before it starts: images to process, divided by measured images per second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import models
from fedbench.engine.run import choose_device
from fedbench.plugins import reported
from fedbench.specs import Setting
from fedbench.store import Store

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedbench.methods.base import Method

#: Number of measurements; the fastest counts, because other processes can only slow one down.
REPEATS = 2
#: Speed of the GPU executors as a multiple of sequential eager steps (core/README.md): captured stacks of small
#: networks, and single clients on streams by precision.
STACKED, STREAMED = 15.0, {"fp32": 1.3, "tf32": 2.0, "bf16": 4.3}
#: Batch size of the first, short measurement, which decides the batch size and steps of the next ones.
FEW = 8
#: Seconds that one step of a network may take in a measurement; slower ones are measured on FEW images.
PATIENCE = 0.3


def seconds(setting: Setting, method: Method, store: Store, roots: Sequence[Path], device: str = "auto") -> float:
    """Estimated seconds of the method's run in the setting on this machine; the partition is made if missing.

    Raises FedbenchError if the model does not take such images, or if the images are not available.
    """
    from fedbench import data, partitions

    part = partitions.build(setting.partition, store, roots)
    facts = data.info(setting.partition.dataset, store)
    n_train = [int(n) // (setting.partition.phases or 1) for n in part.n_train]
    with reported():
        work = images_to_process(setting, method, n_train, part.n_test.tolist(), part.n_validation.tolist())
    batch = min(setting.batch_size, max(n_train))  # measuring must not need more memory than the run
    shape = part.image_shape(facts.shape)
    return work / speed(setting.model, shape, len(part.classes), device, batch, setting.precision)


def images_to_process(
    setting: Setting, method: Method, n_train: Sequence[int], n_test: Sequence[int], n_validation: Sequence[int]
) -> float:
    """Training images of the whole run plus the work of its evaluations, in training-image equivalents. The numbers of
    images are of each client, unseen clients and their copies last.

    With votes, assumes that every client's model predicts every test image; models that share a body cost less.
    """
    from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN
    from fedbench.core.plan import Plan
    from fedbench.methods.base import FORWARD

    plan = Plan(setting, n_train, (1, 1))
    kinds = [MEMBER] * plan.trainees + [UNSEEN] * (len(n_train) - plan.trainees)
    clients = list(zip(kinds, n_train, n_test, n_validation, strict=True))
    answers = sum(n_test) * (len(clients) if setting.votes else 1)

    def evaluation(final: bool) -> float:
        """Personalised clients answer their test images, and those that train also images that they hold back."""
        views = 2 if final and setting.augment == "crop" else 1
        own = sum(method.personalising(setting, kind, final, n, m) for kind, n, m, _ in clients)
        held_back = sum(
            method.personalising(setting, kind, final, n, v) + v * FORWARD
            for kind, n, _, v in clients
            if kind == MEMBER and v
        )
        return own + views * answers * FORWARD + held_back

    def test_phase() -> float:
        """Every client answers once more as one without labels."""
        return sum(method.personalising(setting, UNLABELLED, True, 0, m) + m * FORWARD for m in n_test)

    def selection() -> float:
        """Every round's cohort is judged on the images that it holds back, or else on its training images."""
        judged = ((n, v or n) for _, n, _, v in clients[: plan.trainees])
        a_round = sum(method.personalising(setting, MEMBER, True, n, v) + v * FORWARD for n, v in judged)
        return setting.rounds * plan.share * a_round

    work = method.relative_compute(setting) * plan.training_images()
    work += (len(setting.evaluated_rounds()) - 1) * evaluation(False) + evaluation(True)
    work += test_phase() if setting.test_phase and UNLABELLED in method.serves else 0
    return work + (selection() if setting.select else 0)


@cache
def speed(model: str, shape: tuple[int, int, int], classes: int, device: str, batch: int, precision: str) -> float:
    """Images per second, measured once per process."""
    import torch

    from fedbench.core.executors import RULES
    from fedbench.core.usage import flop_of_step

    network = models.build(model, shape=shape, classes=classes, seed=0)
    with reported():
        place = choose_device(device)
        images = images_per_second(network, shape, place, batch, precision)
        if place.type == "cpu":
            return images
        flop = batch * flop_of_step(network, torch.zeros(1, shape[2], *shape[:2], device=place))
        return images * (STACKED if flop <= RULES["cuda"].flop else STREAMED[precision])


def images_per_second(
    model: nn.Module, shape: tuple[int, int, int], device: torch.device, batch: int, precision: str
) -> float:
    """Training images per second with one client per core (CPU) or one after another (GPU), measured for about a second
    on random images [batch, C, H, W], or on FEW of them if a step is slow.

    This is an estimate for a remark to the user, not a benchmark. On a CPU it counts CPU time, because the load by
    other processes now does not predict the load during the run.
    """
    from fedbench.core.executors import available_cores, one_thread
    from fedbench.core.precision import layout
    from fedbench.core.usage import keep_freed_pages

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
    """Seconds of `steps` forward and backward passes on a batch of random images."""
    import torch
    from torch.nn import functional as F

    from fedbench.core.precision import autocast, layout

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
    import torch

    torch.cuda.synchronize(device)
    return time.perf_counter()
