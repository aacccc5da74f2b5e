"""How long a setting would take here: images to process, over images a second of a short probe."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from fedbench.core.executors import available_cores
from fedbench.core.plan import Plan
from fedbench.core.precision import autocast
from fedbench.specs import Setting

#: Share of a training step's time that a forward pass takes (backward costs about twice the forward).
FORWARD = 1 / 3


def images_to_process(setting: Setting, n_train: Sequence[int], n_test: int, effort: float = 1.0) -> float:
    """Training images of the whole run plus test images of its evaluations, in training-image equivalents.

    `effort` is that of the method's local work, as a multiple of FedAvg's. Assumes that every model answers where the
    setting asks for votes; a shared body costs less.
    """
    plan = Plan(setting, n_train, (1, 1))
    a_round = 0.0
    for i, n in enumerate(n_train[: plan.trainees]):
        if setting.steps is not None:
            a_round += setting.steps * min(setting.batch_size, n)
        else:
            a_round += (setting.epochs or 0) * plan.pass_rows(i)
    share = setting.participation if setting.cohort is None else setting.cohort / plan.trainees
    rounds = (setting.rounds - 1) * share + 1 if setting.full_last_round else setting.rounds * share
    training = rounds * effort * a_round
    answers = n_test * (len(n_train) if setting.votes else 1)
    return training + len(setting.evaluated_rounds()) * answers * FORWARD


def images_per_second(
    model: nn.Module, shape: tuple[int, int, int], device: torch.device, batch: int, precision: str
) -> float:
    """Training images a second with one client a core (CPU) or one after another (GPU), from a probe of a second
    or so on random images. An estimate for a remark to the user, not a benchmark."""
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    h, w, c = shape
    x = torch.rand(batch, c, h, w, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(batch, dtype=torch.long, device=device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        started, steps = time.perf_counter(), 0
        while steps < 2 or (time.perf_counter() - started < 0.3 and steps < 20):
            if steps == 1:
                started = time.perf_counter()  # the first step warms up
            with autocast(precision, device):
                loss = F.cross_entropy(model(x).float(), y)
            torch.autograd.backward(loss)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            steps += 1
        a_step = (time.perf_counter() - started) / (steps - 1)
    finally:
        torch.set_num_threads(before)
    return batch / a_step * (available_cores() if device.type == "cpu" else 1)
