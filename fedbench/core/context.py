"""What a method may know of the federation that it works in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedbench import models
from fedbench.core.federation import Federation
from fedbench.core.state import State, state_of
from fedbench.core.task import Task
from fedbench.specs import Setting


@dataclass(frozen=True, eq=False)
class Context:
    """Facts of a run, the same for server and clients. No image, label or group of a client is among them."""

    setting: Setting
    clients: int  #: M, those that join after training included
    trainees: int  #: clients that may take part in rounds: the first so many
    classes: int  #: K; with multi-label images, of these
    task: Task  #: whether images have one class or several labels (multi-label), and what follows from that
    shape: tuple[int, int, int]  #: (height, width, channels) of an image
    n_train: tuple[int, ...]  #: [M] training images
    groups: int  #: distinct distributions among the clients (where data drift, in the last stage), for who is told
    fresh: Callable[[int], State]  #: the state of a network from the k-th seed after the run's own
    strata: tuple[NDArray[np.float64], NDArray[np.float64]]  #: [M, S] each: declared training and test densities
    device: torch.device

    def stage(self, t: int) -> int:
        """The drift phase of the training data in round t, from 0."""
        return sum(t >= drift for drift in self.setting.drifts or ())

    def share_of(self, images: int) -> float:
        """|S| / N: what part so many training images are of those of all clients that train."""
        return images / self._trained_on

    @cached_property
    def _trained_on(self) -> int:
        return sum(self.n_train[: self.trainees])

    @classmethod
    def of(cls, federation: Federation, setting: Setting, network: Callable[[int], nn.Module] | None = None) -> Context:
        """The facts of this federation; `network` makes the k-th further network, by default one of the setting's."""
        build = network or partial(models.initial, setting, federation.shape, federation.classes)
        device = federation.images.device  # the federation itself must not come along
        return cls(
            fresh=lambda k: {n: t.to(device) for n, t in state_of(build(k)).items()},
            setting=setting,
            clients=federation.clients,
            trainees=federation.clients - setting.partition.outsiders,
            classes=federation.classes,
            task=federation.task,
            shape=federation.shape,
            n_train=tuple(federation.n_train),
            groups=len(set(federation.groups)),
            strata=(federation.densities.train, federation.densities.test),
            device=device,
        )
