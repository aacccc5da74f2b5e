"""The subject of the checks: a method with its hyper-parameters, or a network; and its training runs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench import methods, models
from fedbench.conformance.lab import (
    LabRun,
    Recorder,
    Requests,
    federation,
    finish,
    recording,
    setting,
    stop_after,
    trainer,
)
from fedbench.core.client import UNSEEN
from fedbench.core.federation import Federation
from fedbench.core.trainer import Interrupted, Progress, Trainer
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.methods.base import Method
from fedbench.models.base import FLModel, seeded
from fedbench.plugins.load import classes, forget, is_file, load, place
from fedbench.specs import Setting


class Small(FLModel):
    """One convolution and one hidden layer, 16 features; `norm` adds a BatchNorm after the convolution."""

    def __init__(self, channels: int = 1, norm: bool = False) -> None:
        between = {"norm": nn.BatchNorm2d(6)} if norm else {}
        layers = {
            "conv": nn.Conv2d(channels, 6, 3, padding=1),
            **between,
            "pool": nn.MaxPool2d(2),
            "act": nn.ReLU(),
            "flat": nn.Flatten(),
            "hidden": nn.Linear(6 * 16, 16),
            "last": nn.ReLU(),
        }
        backbone = nn.Sequential(OrderedDict(layers))
        super().__init__(backbone, nn.Identity(), nn.Linear(16, 10), backbone_size=16)


def small(channels: int = 1, norm: bool = False, seed: int = 0) -> Small:
    """The network with weights drawn from the seed."""
    with seeded(seed, "model"):
        model = Small(channels, norm)
        model.initialise(model)
    return model


#: Five clients of 30 to 70 digits, each with a few classes, in two groups, and with images held back for validation.
DATA = federation((70, 40, 55, 30, 40), groups=(0, 1, 0, 1, 0), validation=0.2)
#: Four rounds with partial participation, then a test phase with unlabelled clients.
FEW: dict[str, Any] = {"rounds": 4, "window": 3, "participation": 0.7, "seed": 11, "test_phase": True}
#: Factor by which digits are enlarged for networks that do not accept 8x8 pixels.
LARGER = 4
#: For methods with one gradient per client and round.
ONE_STEP: dict[str, Any] = {"steps": 1, "passes": "endless", "momentum": 0.0}


@dataclass
class Reference:
    """A run by the sequential executor, with records of its draws, states and requests."""

    run: LabRun
    plan: Recorder
    #: "round/name" -> the server's tensor after that round ("initial": before the first), and a copy from that time
    snapshots: dict[str, tuple[Tensor, Tensor]]
    requests: Requests  #: of all clients' updates

    def after(self, t: int) -> dict[str, np.ndarray]:
        """Name -> the server's tensor after round t, from the copies."""
        start = f"{t}/"
        return {
            key.removeprefix(start): then.numpy() for key, (_, then) in self.snapshots.items() if key.startswith(start)
        }


@dataclass
class Subject:
    """A method (name, or FILE.py:Class) with these hyper-parameters, and a network for small images.

    A user's file is loaded again for every run, as in a new process: attributes of the method, its class or its modules
    are lost between runs, and when a run is stopped.
    """

    folder: Path  #: of the runs' checkpoints
    name: str = "fedavg"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None  #: the network to check; None to check the method
    kind: type[Method] = field(init=False)

    @classmethod
    def of(cls, name: str, folder: Path) -> Subject:
        """Create a subject from a name or a file, with default hyper-parameters. Raises FedbenchError."""
        if not is_model(name):
            return cls(folder, name)
        return cls(folder, model=models.named(name))

    def __post_init__(self) -> None:
        self.kind, _ = methods.load(self.name)
        self.kind.create(self.overrides)
        self._numbers = itertools.count()

    def method(self) -> Method:
        """A new instance of the method, from its file loaded again."""
        forget(self.kind)
        self.kind, _ = methods.load(self.name)
        return self.kind.create(self.overrides)

    def few(self, **changes: Any) -> Setting:
        """The setting FEW, with an unseen client if the method has a model for it."""
        s = self.setting(**{**FEW, **changes})
        return self.with_unseen_client(s)

    def with_unseen_client(self, s: Setting) -> Setting:
        """The setting whose last client never trains (unseen), if the method has a model for it."""
        if UNSEEN not in self.kind.serves:
            return s
        return dataclasses.replace(s, partition=dataclasses.replace(s.partition, unseen=1))

    def setting(self, **changes: Any) -> Setting:
        """A short setting that the method accepts: with local epochs, or else with one step per round."""
        values = {"model": self.model or "digits_cnn", **changes}
        first = setting(**values)
        how = self.kind.create(self.overrides)
        for s in (first, setting(**{**values, "epochs": None, **ONE_STEP})):
            with contextlib.suppress(FedbenchError):
                how.check_setting(s)
                return s
        how.check_setting(first)
        return first

    def network(self, data: Federation, norm: bool = False) -> nn.Module:
        """The network to check, or a small one with or without a BatchNorm."""
        if self.model is None:
            return small(data.shape[2], norm)
        return models.build(self.model, shape=data.shape, classes=data.classes, seed=0)

    @cached_property
    def scale(self) -> int:
        """The factor by which digits are enlarged: 1 unless the network needs more pixels."""
        try:
            self.network(DATA)
        except FedbenchError:
            return LARGER
        return 1

    def sized(self, data: Federation) -> Federation:
        """The same images, in the size that the network needs."""
        if self.model is None or self.scale == 1 or data.vectors:
            return data
        images = data.images.repeat_interleave(self.scale, 1).repeat_interleave(self.scale, 2)
        return dataclasses.replace(data, images=images)

    def place(self) -> Path:
        """A new folder for a run's checkpoint."""
        return self.folder / str(next(self._numbers))

    def trainer(
        self, data: Federation, where: Path, s: Setting, network: Callable[[Federation], Any] | None = None, **more: Any
    ) -> Trainer:
        """A trainer of a new instance of the method, on images in the network's size; `network` builds another network
        for the data. `more`: see lab.trainer."""
        data = self.sized(data)
        build = None if network is None else partial(network, data)
        return trainer(self.method(), data, where, s, network=build, **more)

    def train(
        self,
        data: Federation,
        s: Setting,
        *,
        where: Path | None = None,
        observe: Callable[[Progress], None] = lambda _: None,
        **more: Any,
    ) -> LabRun:
        """Train to the last round, starting from the checkpoint in `where` if there is one."""
        with strange_generators():
            return finish(self.trainer(data, where or self.place(), s, **more), observe)

    def stopped(self, data: Federation, s: Setting, t: int, where: Path, **more: Any) -> Trainer:
        """The trainer of a run that was interrupted after round t, with its checkpoint in `where`."""
        with strange_generators():
            it = self.trainer(data, where, s, **more)
            with contextlib.suppress(Interrupted):
                finish(it, stop_after(t))
        return it

    @cached_property
    def reference(self) -> Reference:
        """The run that most checks use."""
        with strange_generators():
            it = self.trainer(DATA, self.place(), self.few(), plan=Recorder)
            assert isinstance(it.plan, Recorder)
            snapshots = {f"initial/{key}": (value, value.clone()) for key, value in it.server.initial.items()}
            requests = recording(it.executor)

            def listen(progress: Progress) -> None:
                for key, value in it.server.tensors().items():
                    snapshots[f"{progress.round}/{key}"] = (value, value.clone())

            return Reference(finish(it, listen), it.plan, snapshots, requests)


def is_model(name: str) -> bool:
    """Whether a name or a file is a network, not a method. Raises FedbenchError if it is neither."""
    if not is_file(name):
        if name in methods.names():
            return False
        if ":" not in name and name not in models.names():
            raise unknown("method or model", name, (*methods.names(), *models.names()))
        models.check(name)
        return True
    at = place(name, "method or model")
    own = classes(load(at.file)[0])
    check_known(f"class in {name}", at.name, own)
    fitting = [own[at.name]] if at.name else [c for c in own.values() if issubclass(c, Method | nn.Module)]
    if len(fitting) != 1:
        raise FedbenchError(f"{name} defines {len(fitting)} methods and models", "name one: FILE.py:Class")
    if not issubclass(fitting[0], Method | nn.Module):
        bases = "fedbench.methods.base.Method or fedbench.models.base.FLModel"
        raise FedbenchError(f"{name} is neither a method nor a model", f"derive it from {bases}")
    return issubclass(fitting[0], nn.Module)


_states = itertools.count(1)


@contextlib.contextmanager
def strange_generators() -> Iterator[None]:
    """Context in which the process's random generators have another state each time; it restores them at its end. A run
    must not depend on their state."""
    state = next(_states)
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(state)
        random.seed(state)
        np.random.seed(state)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
