"""How long a run will take here, before it is started: images to process, over measured images a second."""

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

#: Measurements; the fastest counts, since whatever else the machine does only slows one down.
REPEATS = 2
#: What the executors take of a GPU, as a multiple of eager steps one after another (core/README.md): captured stacks of
#: small networks, and single clients on streams by precision.
STACKED, STREAMED = 15.0, {"fp32": 1.3, "tf32": 2.0, "bf16": 4.3}
#: Images of a network's first step, by which it is seen how many images a longer look may take.
FEW = 8
#: Seconds that one step of a network may take in a measurement; slower ones are measured on FEW images.
PATIENCE = 0.3


def seconds(setting: Setting, method: Method, store: Store, roots: Sequence[Path], device: str = "auto") -> float:
    """Estimated seconds of the method's run in the setting on this machine; its partition is made if need be.

    Raises FedbenchError if the images do not suit the model, or are not at hand.
    """
    from fedbench import data, partitions

    with reported():
        relative_compute = method.relative_compute(setting)
    part = partitions.build(setting.partition, store, roots)
    facts = data.info(setting.partition.dataset, store)
    n_train = [int(n) // (setting.partition.phases or 1) for n in part.n_train]
    work = images_to_process(setting, n_train, int(part.n_test.sum()), relative_compute)
    batch = min(setting.batch_size, max(n_train))  # a probe must not take more memory than a step of the run
    shape = part.image_shape(facts.shape)
    return work / speed(setting.model, shape, len(part.classes), device, batch, setting.precision)


def images_to_process(setting: Setting, n_train: Sequence[int], n_test: int, relative_compute: float = 1.0) -> float:
    """Training images of the whole run plus test images of its evaluations, in training-image equivalents.

    `relative_compute` is that of the method's local work, as a multiple of FedAvg's. Assumes that every model answers
    where the setting asks for votes; a shared body costs less.
    """
    from fedbench.core.plan import Plan
    from fedbench.methods.base import FORWARD

    training = relative_compute * Plan(setting, n_train, (1, 1)).training_images()
    answers = n_test * (len(n_train) if setting.votes else 1)
    return training + len(setting.evaluated_rounds()) * answers * FORWARD


@cache
def speed(model: str, shape: tuple[int, int, int], classes: int, device: str, batch: int, precision: str) -> float:
    """Images a second, measured once a process."""
    import torch

    from fedbench.core.executors import RULES
    from fedbench.core.precision import flop_of_step

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
    """Training images a second with one client a core (CPU) or one after another (GPU), from a probe of a second or so
    on random images [batch, C, H, W], or on FEW of them where a step takes long.

    An estimate for a remark to the user, not a benchmark. On a CPU it is what the processor takes for it: what other
    processes are busy with now says nothing of the hours to come.
    """
    from fedbench.core.executors import available_cores, one_thread
    from fedbench.core.precision import keep_freed_pages, layout

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
