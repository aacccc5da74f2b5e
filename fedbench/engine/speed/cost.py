"""How long a run will take here, told before it is started: images to process, over measured images a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import models
from fedbench.engine.place import choose_device
from fedbench.plugins.mistakes import reported
from fedbench.specs import Setting
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.methods.base import Method


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
    return work / _speed(setting.model, shape, len(part.classes), device, batch, setting.precision)


def images_to_process(setting: Setting, n_train: Sequence[int], n_test: int, relative_compute: float = 1.0) -> float:
    """Training images of the whole run plus test images of its evaluations, in training-image equivalents.

    `relative_compute` is that of the method's local work, as a multiple of FedAvg's. Assumes that every model answers
    where the setting asks for votes; a shared body costs less.
    """
    from fedbench.core.plan import Plan
    from fedbench.methods.base import FORWARD

    plan = Plan(setting, n_train, (1, 1))
    a_round = 0.0
    for i, n in enumerate(n_train[: plan.trainees]):
        if setting.steps is not None:
            a_round += setting.steps * min(setting.batch_size, n)
        else:
            a_round += (setting.epochs or 0) * plan.pass_rows(i)
    share = setting.participation if setting.cohort is None else setting.cohort / plan.trainees
    rounds = (setting.rounds - 1) * share + 1 if setting.full_last_round else setting.rounds * share
    training = rounds * relative_compute * a_round
    answers = n_test * (len(n_train) if setting.votes else 1)
    return training + len(setting.evaluated_rounds()) * answers * FORWARD


@cache
def _speed(model: str, shape: tuple[int, int, int], classes: int, device: str, batch: int, precision: str) -> float:
    """Images a second, measured once a process."""
    from fedbench.engine.speed.probe import images_per_second

    network = models.build(model, shape=shape, classes=classes, seed=0)
    with reported():
        return images_per_second(network, shape, choose_device(device), batch, precision)
