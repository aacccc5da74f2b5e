"""What is checked: a method with its hyper-parameters, or a network, trained as often as the checks need it."""

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
    Recorder,
    Requests,
    Run,
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

# -- small -----------------------------------------------------------------------------------------------------
# A small network of 8x8 images for much training in little time, with or without running statistics.


class Small(FLModel):
    """One convolution and one hidden layer, 16 features; `norm` puts a BatchNorm after the convolution."""

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
    """The network with its weights drawn from the seed."""
    with seeded(seed, "model"):
        model = Small(channels, norm)
        model.initialise(model)
    return model


# -- subject ---------------------------------------------------------------------------------------------------


#: Five clients of 30 to 70 digits, each with a few classes, in two groups, and with images held back for validation.
DATA = federation((70, 40, 55, 30, 40), groups=(0, 1, 0, 1, 0), validation=0.2)
#: Four rounds in which clients come and go, and then clients that nobody knows.
FEW: dict[str, Any] = {"rounds": 4, "window": 3, "participation": 0.7, "seed": 11, "test_phase": True}
#: Networks that cannot take digits of 8x8 pixels see them 32x32.
LARGER = 4
#: For methods that take one gradient a client and round.
ONE_STEP: dict[str, Any] = {"steps": 1, "passes": "endless", "momentum": 0.0}


@dataclass
class Reference:
    """A run by the sequential executor, and what was written down while it was trained."""

    run: Run
    plan: Recorder
    #: "round/name" -> what the server held after that round ("initial": before the first), and a copy made then
    snapshots: dict[str, tuple[Tensor, Tensor]]
    requests: Requests  #: of all updates

    def after(self, t: int) -> dict[str, np.ndarray]:
        """What the server held after round t."""
        start = f"{t}/"
        return {
            key.removeprefix(start): then.numpy() for key, (_, then) in self.snapshots.items() if key.startswith(start)
        }


@dataclass
class Subject:
    """A method (by name, or FILE.py:Class) with these hyper-parameters, in a network of the small images' size.

    A method that is a user's file is loaded anew for every run, as a new process would: what it keeps in itself, its
    class or its modules is lost between runs, and at a stop.
    """

    folder: Path  #: for the runs' checkpoints
    name: str = "fedavg"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None  #: the network that is checked, if it is not the method
    kind: type[Method] = field(init=False)

    @classmethod
    def of(cls, name: str, folder: Path) -> Subject:
        """The subject of a name or a file, hyper-parameters at their defaults. Raises FedbenchError for others."""
        if not is_model(name):
            return cls(folder, name)
        return cls(folder, model=models.named(name))

    def __post_init__(self) -> None:
        self.kind, _ = methods.load(self.name)
        self.kind.create(self.overrides)
        self._numbers = itertools.count()

    def method(self) -> Method:
        """The method, its file loaded anew."""
        forget(self.kind)
        self.kind, _ = methods.load(self.name)
        return self.kind.create(self.overrides)

    def few(self, **changes: Any) -> Setting:
        """The setting of FEW; the last client joins after the last round, where the method has a model for it."""
        s = self.setting(**{**FEW, **changes})
        return self.with_unseen_client(s)

    def with_unseen_client(self, s: Setting) -> Setting:
        """The setting with the last client as one that never trains, where the method has a model for it."""
        if UNSEEN not in self.kind.serves:
            return s
        return dataclasses.replace(s, partition=dataclasses.replace(s.partition, unseen=1))

    def setting(self, **changes: Any) -> Setting:
        """A short setting that the method takes: with local epochs, or else with one step a round."""
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
        """The network that is checked, or a small one with or without a batch norm."""
        if self.model is None:
            return small(data.shape[2], norm)
        return models.build(self.model, shape=data.shape, classes=data.classes, seed=0)

    @cached_property
    def scale(self) -> int:
        """How many times as large the digits are shown: as they are, unless the network wants more pixels."""
        try:
            self.network(DATA)
        except FedbenchError:
            return LARGER
        return 1

    def sized(self, data: Federation) -> Federation:
        """The same images in the size that the network takes."""
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
        """A trainer of the method, made anew, on images of the network's size; `network` makes another one for them.
        `more` as for lab.trainer."""
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
    ) -> Run:
        """Train to the end, or on from the checkpoint in `where`."""
        with strange_generators():
            return finish(self.trainer(data, where or self.place(), s, **more), observe)

    def stopped(self, data: Federation, s: Setting, t: int, where: Path, **more: Any) -> Trainer:
        """The trainer of a run that the user has stopped after round t; `where` keeps the checkpoint."""
        with strange_generators():
            it = self.trainer(data, where, s, **more)
            with contextlib.suppress(Interrupted):
                finish(it, stop_after(t))
        return it

    @cached_property
    def reference(self) -> Reference:
        """The run that most checks share."""
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
    """Whether that is a network; else it is a method. Raises FedbenchError where it is neither."""
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
    """Every block finds the process's own random generators in another state, and leaves them as they were: what the
    surrounding program draws must not matter."""
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
