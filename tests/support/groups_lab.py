"""A federation of digits whose clients come from a few true groups, for the tests of clustered learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedbench import models
from fedbench.core.client import Client, Work
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.state import State
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, Setting
from tests.support.lab import digits, setting


def grouped_federation(
    groups: Sequence[int] = (0, 1, 0, 1, 0, 1), size: int = 100, concept: bool = False
) -> Federation:
    """Clients of so many digits: 56 % for training, 14 % for validation, 30 % for tests.

    A client's group g decides how it sees its images: turned by g times 90 degrees; with `concept`, as they are, but
    with g added to every label (modulo 10).
    """
    images, labels = digits()
    rng = np.random.default_rng(3)
    count = len(groups)
    chosen = rng.permutation(len(labels))[: size * count]
    client = np.repeat(np.arange(count), size)
    group = np.array(groups)[client]
    x, y = images[chosen], labels[chosen]
    if concept:
        y = (y + group) % 10
    else:
        x = np.stack([np.rot90(image, g) for image, g in zip(x, group, strict=True)])
    place = np.tile(np.arange(size), count)
    is_test, validation = place >= 0.7 * size, (place >= 0.56 * size) & (place < 0.7 * size)
    return Federation.of(x, y, client, chosen, is_test, 10, validation=validation, groups=list(groups))


def drifted(before: Federation, after: Federation, groups: Sequence[int], test_groups: Sequence[int]) -> Federation:
    """Clients that train on their images of `before` and then of `after`, and are tested on those of `after`."""
    whole = Federation.joined([before, after])
    stages = [(f.train, f.validation) for f in whole]
    return replace(whole[0], stages=stages, test=whole[1].test, groups=list(groups), test_groups=list(test_groups))


def bare_client(index: int, size: int, state: State, received: State, upload: Any = None) -> Client:
    """A client of no federation: what a server sees of one with so many training images in round 1."""
    work = Work(None, None, torch.arange(size), torch.zeros(0, dtype=torch.long))
    return Client(index, 1, 0.1, None, torch.ones(2), work, state, received, upload=upload)


def grouped_setting(**changes: Any) -> Setting:
    """A short setting for it with a test phase; nobody votes. With `drifts`, of data in as many phases and one."""
    values: dict[str, Any] = {
        "rounds": 6,
        "window": 1,
        "votes": False,
        "test_phase": True,
        "momentum_restarts": True,
        "lr": 0.1,
        "weight_decay": 0.0,
        "momentum": 0.9,
        "epochs": 2,
    }
    if "drifts" in changes:
        phases = len(changes["drifts"]) + 1
        values["partition"] = partition_spec(
            DatasetSpec("digits", "test", "test"), "equal", 4, 1, shift="px", level=1, validation=0.2, phases=phases
        )
    return setting(**{**values, **changes})


def moments(z: np.ndarray, members: np.ndarray | None = None) -> np.ndarray:
    """FLUX's descriptor of latents [n, l], class after class by NumPy, from which images [n, U] belong to which class;
    without them its label-free part."""
    sides = [] if members is None else [z[members[:, u]] for u in range(members.shape[1])]
    none = np.full(z.shape[1], -1.0)
    means, deviations = ([f(a, 0) if len(a) > 1 else none for a in sides] for f in (np.mean, np.std))
    return np.concatenate([z.mean(0), z.std(0), *means, *deviations])


def network(data: Federation, state: State) -> Any:
    """The federation's network with these weights."""
    net = models.build("digits_cnn", shape=data.shape, classes=10, seed=0)
    net.load_state_dict({name: state[name] for name in net.state_dict()})
    return net.eval()


def labels_by(data: Federation, state: State, rows: torch.Tensor) -> np.ndarray:
    """The classes that this network gives to these images."""
    found: np.ndarray = network(data, state)(to_input(data.images[rows])).argmax(1).numpy()
    return found
