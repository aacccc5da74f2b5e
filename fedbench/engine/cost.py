"""What a run would cost here, told before it is started."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedbench import models
from fedbench.specs import Setting
from fedbench.store import Store


def seconds(setting: Setting, store: Store, roots: Sequence[Path], device: str = "auto", effort: float = 1.0) -> float:
    """Estimated seconds of a run of the setting on this machine, its method's local work being so many times FedAvg's;
    its partition is made if need be.

    Raises FedbenchError if the images do not suit the model, or are not at hand.
    """
    from fedbench import data, partition
    from fedbench.core.estimate import images_to_process

    part = partition.build(setting.partition, store, roots)
    facts = data.info(setting.partition.dataset, store)
    n_train = [int(n) // (setting.partition.stages or 1) for n in part.n_train]
    work = images_to_process(setting, n_train, int(part.n_test.sum()), effort)
    # ResNets are probed at a small batch: a step at a full one takes seconds on a CPU.
    batch = 8 if setting.model.startswith("resnet") else min(setting.batch_size, max(n_train))
    return work / _speed(
        setting.model, part.image_shape(facts.shape), len(part.classes), device, batch, setting.precision
    )


@cache
def _speed(model: str, shape: tuple[int, int, int], classes: int, device: str, batch: int, precision: str) -> float:
    """Images a second, measured once a process."""
    from fedbench.core.estimate import images_per_second
    from fedbench.engine.local import choose_device

    network = models.build(model, shape=shape, classes=classes, seed=0)
    return images_per_second(network, shape, choose_device(device), batch, precision)
