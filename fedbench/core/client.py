"""What a client's update uses: the client and its context, requests to the executor, and rules for gradients.

A method writes its client's update once, for ONE client, as a generator:

    def local(self, client):
        trained = yield Train(cross_entropy)
        client.state[...] = ...

Between two `yield`s, code is ordinary Python on one client's small tensors. A yielded request is the expensive part;
the executor may run it for one client or for a stack of clients.
"""

from __future__ import annotations

import contextlib
import reprlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbench import models
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.state import State, as_model, model_in, name_in, plain, state_of
from fedbench.core.task import Task
from fedbench.specs import Setting

#: Kinds of clients: takes part in training; joins after the last round, with labelled images; has no labels at all (the
#: test phase).
MEMBER, UNSEEN, UNLABELLED = "member", "unseen", "unlabelled"


@dataclass(frozen=True)
class Rule:
    """Changes the gradient of each local step. Clients with equal rules can share a stack.

    Written for ONE client as pure tensor code, like losses: no branch on a tensor's value, no `.item()`, no random
    draws, because it runs under vmap and in captured steps. `weights` and `gradient` map names in the state to the
    trained parameters that the loss depends on. `beside[model]`, for each name in `models`, holds tensors of that model
    in the client's state, such as control variates, under the names of the parameters that they belong to.
    """

    models: ClassVar[tuple[str, ...]] = ()  #: models in the client's state that the rule reads
    two_passes: ClassVar[bool] = False  #: whether the gradient is computed at the weights that `elsewhere` returns

    def elsewhere(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        """The weights at which to compute the gradient, on the same batch."""
        return weights

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        """The gradient that the optimiser uses."""
        return gradient


@dataclass(frozen=True)
class Add(Rule):
    """Add `times` * the tensors of `model` to the gradient, such as control variates or a linear term of the loss."""

    model: str
    times: float = 1.0

    @property
    def models(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.model,)

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        return {name: g + self.times * beside[self.model][name] for name, g in gradient.items()}


@dataclass(frozen=True)
class Ascend(Rule):
    """Sharpness-aware minimisation (Foret et al., ICLR 2021, Eq. 2): computes the gradient at w + rho g / |g|, with the
    norm over all trained parameters. Batch norms update their running statistics twice per batch."""

    two_passes = True

    rho: float

    def elsewhere(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        step = self.rho / (norm(gradient) + 1e-12)
        return {name: w + step * gradient[name] for name, w in weights.items()}


def beside(rules: Sequence[Rule], state: Mapping[str, Tensor], trained: Iterable[str]) -> dict[str, State]:
    """The tensors of a client's state that the rules read, for the trained parameters."""
    names = {name: plain(name) for name in trained}
    return {
        model: {name: state[key] for name, own in names.items() if (key := name_in(model, own)) in state}
        for rule in rules
        for model in rule.models
    }


def norm(state: State) -> Tensor:
    """Euclidean norm [] of all tensors, as one vector."""
    return torch.stack([t.square().sum() for t in state.values()]).sum().sqrt()


@dataclass(frozen=True, eq=False)
class Context:
    """Facts of a run, the same for the server and all clients. They contain no client's images, labels or group."""

    setting: Setting
    clients: int  #: M, including those that join after training
    trainees: int  #: number of clients that may take part in rounds; they have the first indices
    classes: int  #: K, classes or, for multi-label images, labels
    task: Task  #: one class per image or several labels (multi-label), with the loss and predictions for it
    shape: tuple[int, int, int]  #: (height, width, channels) of an image
    n_train: tuple[int, ...]  #: [M] training images
    groups: int  #: number of distinct distributions among the clients (last drift stage), for methods that need it
    fresh: Callable[[int], State]  #: k -> the state of a network initialised from the k-th seed after the run's seed
    strata: tuple[NDArray[np.float64], NDArray[np.float64]]  #: training and test densities over strata, [M, S] each
    device: torch.device

    def stage(self, t: int) -> int:
        """The drift stage of the training data in round t, from 0."""
        return sum(t >= drift for drift in self.setting.drifts or ())

    def weight(self, images: int) -> int:
        """How a client with so many training images counts in the server's mean (the setting's `weighting`)."""
        return images if self.setting.weighting is None else 1

    def share_of(self, weight: int) -> float:
        """|S| / N: the weight of some clients as a share of that of all clients that train."""
        return weight / self._weight_of_all

    @cached_property
    def _weight_of_all(self) -> int:
        return sum(map(self.weight, self.n_train[: self.trainees]))

    @classmethod
    def of(cls, federation: Federation, setting: Setting, network: Callable[[int], nn.Module] | None = None) -> Context:
        """The facts of this federation; `network(k)` builds the k-th further network (default: the setting's)."""
        build = network or partial(models.initial, setting, federation.shape, federation.classes)
        device = federation.images.device  # so that `fresh` does not hold a reference to the federation
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


#: The splits of a client's data.
SPLITS = ("train", "validation", "test")
#: The label that methods see for test images.
NO_LABEL = -1


def known(labels: Tensor, split: str) -> Tensor:
    """The labels of a split as methods may see them: test labels are masked."""
    return torch.full_like(labels, NO_LABEL) if split == "test" else labels


@dataclass
class Work:
    """The executor's record of a client. Methods do not see it."""

    federation: Federation
    plan: Plan
    rows: Tensor  #: [n] training images, as rows of the federation
    test_rows: Tensor  #: [m] test images
    validation_rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  #: [v] held-out images
    losses: list[tuple[float, int]] = field(default_factory=list)  #: (mean loss, images) of each Train and Gradient
    phase: int = 0  #: number of requests so far, without Collect; keys the random streams
    collects: int = 0  #: number of Collects so far; counted apart, so that they do not change the batches of Train
    seconds: float = 0.0  #: time spent on this client
    parts: dict[str, float] = field(default_factory=dict)  #: seconds by part: "network", and names given to `timed`
    offloads: Callable[[str], bool] | None = None  #: name -> whether to keep it in host memory between updates
    host_state: State = field(default_factory=dict)  #: its state before it was loaded to the device
    momenta: State | None = None  #: optimiser state from earlier rounds; None unless `momentum_lives`
    as_last: bool = False  #: whether the client predicts as it would after the last round, whatever the round
    failure_file: Path | None = None  #: with --debug, where core/failed_step.py writes the step that fails

    def rows_of(self, split: str, part: tuple[int, int] | None = None) -> Tensor:
        """Rows of the federation in a split (one of SPLITS) of the client's data, or in a part of that split."""
        rows = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}[split]
        return rows if part is None else rows[slice(*part)]

    def counted(self, request: Request) -> None:
        """Count a request; call this before answering it."""
        if isinstance(request, Collect):
            self.collects += 1
        else:
            self.phase += 1

    @property
    def processed(self) -> int:
        """Training images processed so far in this round."""
        return sum(n for _, n in self.losses)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the block's seconds to a part of the work."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.count(part, time.perf_counter() - started)

    def count(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the work."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds


class Batch(NamedTuple):
    """One client's minibatch: images x [B, C, H, W] float32; labels y [B] int64 (multi-label: 0 or 1, [B, U] float32);
    position [B] int64 of each image in the client's training set, for per-image weights or targets; and the request's
    extra tensors."""

    x: Tensor
    y: Tensor
    position: Tensor
    extras: Mapping[str, Tensor]


class Loss(NamedTuple):
    """A training loss: `total` is minimised; `logged` goes to the log (default: the minimised value, including the
    proximal term); `collected` [B, ...] is returned with the answer."""

    total: Tensor
    logged: Tensor | None = None
    collected: Tensor | None = None


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _words(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


#: Check of each argument of a request, and the text for the error message.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "loss": (callable, "a function of model and batch"),
    "output": (callable, "a function of model and batch"),
    "trains": (_words, 'a tuple of names, such as ("head.",)'),
    "epochs": (lambda v: v is None or _whole(v), "a whole number"),
    "steps": (lambda v: v is None or _whole(v), "a whole number"),
    "lr": (lambda v: v is None or isinstance(v, Real), "a number"),
    "momentum": (lambda v: v is None or isinstance(v, Real), "a number"),
    "prox": (lambda v: isinstance(v, Real), "a number"),
    "follow": (lambda v: isinstance(v, Real), "a number"),
    "repeat": (lambda v: _whole(v, 1), "a whole number from 1 on"),
    "model": (lambda v: isinstance(v, str) or _words(v), 'a name, or a tuple of names such as ("", "own")'),
    "rules": (lambda v: isinstance(v, tuple) and all(isinstance(one, Rule) for one in v), "a tuple of rules"),
    "extras": (
        lambda v: isinstance(v, Mapping) and all(isinstance(one, Tensor) for one in v.values()),
        "a dictionary of tensors",
    ),
    "split": (SPLITS.__contains__, f"one of {', '.join(SPLITS)}"),
    "part": (lambda v: v is None or (isinstance(v, tuple) and len(v) == 2 and all(map(_whole, v))), "two positions"),
}


class _Checked:
    """A request that checks its arguments when it is made, so that a traceback shows the line in the method."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            right, wanted = _ARGUMENTS.get(name, (lambda _: True, ""))
            if not right(value):
                raise TypeError(f"{name} of {type(self).__name__} is {wanted}, not {reprlib.repr(value)}")


#: Loss of one client, as pure tensor code: it must not branch on tensor values, call .item(), draw random numbers, or
#: write to captured tensors, because it may run under vmap or in a captured graph. Use one function for all clients,
#: such as a method of the class, with the client's tensors as extras: a new lambda per client prevents stacking.
LossFunction = Callable[[Any, Batch], Loss]


@dataclass(frozen=True)
class Train(_Checked):
    """Request: minibatch training on the client's training set, starting from and updating `client.state`.

    Every request starts a new shuffled pass, and a new optimiser unless `momentum_lives` is set. None means the
    setting's value. The optimiser is the setting's (SGD or AdamW), but a request that sets `momentum`, even to 0, uses
    SGD. The proximal term is part of the gradient; its centre is the network as the client received it (also for other
    models), and with `follow` the centre moves, for any optimiser.
    """

    loss: LossFunction
    trains: tuple[str, ...] = ("",)  #: prefixes of names in the state: the parameters to train
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None  #: overrides the round's scheduled learning rate
    momentum: float | None = None  #: if set, use SGD with this momentum
    model: str | tuple[str, ...] = ""  #: which of the client's models; for several, the loss gets a list of them
    prox: float = 0.0  #: mu of a proximal term (mu/2)||w - centre||^2 over the trained parameters
    repeat: int = 1  #: steps on each batch
    follow: float = 0.0  #: after the steps on a batch, move the centre by this share of its distance to the weights
    rules: tuple[Rule, ...] = ()  #: applied to each step's gradient, in this order
    #: With `momentum_lives`: name of the model whose momentum to continue (default: `model`). Like `extras`, it may
    #: differ between clients of a stack.
    momentum_of: str | None = field(default=None, compare=False)
    #: This client's tensors for the loss. Not compared, so that requests of different clients can share a stack.
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Collect(_Checked):
    """Request: one pass over a split of the client's data in its stored order, without gradients.

    `output(model, batch)` returns a tensor [B, ...]; the answer holds all rows and their labels. For test images every
    label is `NO_LABEL`.
    """

    output: Callable[[Any, Batch], Tensor]
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    split: str = "train"  #: one of SPLITS
    part: tuple[int, int] | None = None  #: only the images at positions first <= i < end
    model: str | tuple[str, ...] = ""  #: which of the client's models; for several, the output gets a list of them


@dataclass(frozen=True)
class Gradient(_Checked):
    """Request: the gradient of the loss on one batch at `client.state`, of which only running statistics change.

    The batch is a minibatch of the training set from the plan, or `part` of a split in its stored order.
    """

    loss: LossFunction
    trains: tuple[str, ...] = ("",)  #: prefixes of the names of the parameters to differentiate
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    split: str = "train"  #: one of SPLITS; needs `part` unless it is "train"
    part: tuple[int, int] | None = None  #: the images at positions first <= i < end
    model: str | tuple[str, ...] = ""  #: which of the client's models; for several, the loss gets a list of them


def logits(model: Any, batch: Batch) -> Tensor:
    """The network's logits [B, K]."""
    out: Tensor = model(batch.x)
    return out


class Trained(NamedTuple):
    """Answer to Train: mean logged loss over the images, collected rows [R, ...] with labels [R], images processed.

    With local epochs the last `pass_rows` rows belong to the last epoch (with each repeat counted). `centre` is the
    final proximal centre, if `follow` moves it.
    """

    loss: float
    collected: Tensor | None
    labels: Tensor
    images: int
    pass_rows: int
    centre: State = {}  # noqa: RUF012 - a NamedTuple's default, never written to
    steps: int = 0  #: optimiser steps taken


class Collected(NamedTuple):
    """Answer to Collect: rows [n, ...] and labels [n], or [n, U] for multi-label images."""

    rows: Tensor
    labels: Tensor


class Differentiated(NamedTuple):
    """Answer to Gradient: the logged loss on the batch, d loss / d parameter by name, and the batch size."""

    loss: float
    gradient: State
    images: int


Request = Train | Collect | Gradient
Answer = Trained | Collected | Differentiated
ClientUpdate = Generator[Request, Any, None]

#: Fields with a restricted type when a method sets them: the type, and the text for the error message.
_KINDS: dict[str, tuple[Any, str]] = {
    "state": (dict, "a dictionary of tensors"),
    "received": (dict, "a dictionary of tensors"),
    "metrics": (dict, "a dictionary of numbers"),
    "lr": (Real, "a number"),
    "logged": (Real | Tensor | None, "a number"),
    "answers_by": (Collect | None, "a Collect request"),
    "answer": (Tensor | None, "a tensor"),
}


@dataclass
class Client:
    """A client as a method's hooks see it, in one round, one survey or one evaluation."""

    index: int
    round: int  #: 1-based; 0 before the first
    lr: float  #: the round's learning rate
    context: Context
    class_counts: Tensor  #: [K] float32: training images of each class
    work: Work  #: for the executor only
    state: State  #: the client's current tensors; Train replaces those that it trains
    received: State  #: the state as the client received it
    kind: str = MEMBER  #: MEMBER, UNSEEN or UNLABELLED; always MEMBER except in evaluation
    inbox: Any = None  #: message from the server, in addition to the state
    upload: Any = None  #: message to the server, in addition to the changed tensors of the shared state
    #: Request whose output gives the client's scores [B, K] for any image; None: the network of `state` predicts.
    answers_by: Collect | None = None
    #: [m, K] probabilities of the classes (or labels) of the client's test images, or [m] classes. An update sets it if
    #: one request cannot give the predictions, or if the prediction for an image depends on other images.
    answer: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)  #: metrics per client, such as beta, stored with the run
    logged: float | None = None  #: the round's loss for the log (default: the loss of the first Train)

    def __setattr__(self, name: str, value: object) -> None:
        """Reject unknown fields, the trainer's fields, and wrong types, at the line of the method that sets them."""
        if name not in self.__dataclass_fields__:
            raise AttributeError(
                f"client.{name} would be lost: keep tensors in client.state, metrics in client.metrics"
            )
        if name in ("index", "round", "context", "work") and name in vars(self):
            raise AttributeError(f"client.{name} is the trainer's: a method cannot set it")
        if name in _KINDS and not isinstance(value, _KINDS[name][0]):
            raise TypeError(f"client.{name} is to be {_KINDS[name][1]}, not {reprlib.repr(value)}")
        super().__setattr__(name, value)

    def model(self, name: str = "") -> State:
        """The tensors of a named model, under the network's names; for "", all tensors outside named models."""
        return model_in(self.state, name) if name else {n: t for n, t in self.state.items() if "/" not in n}

    def put(self, model: State, name: str = "") -> None:
        """Store tensors, under the network's names, as the model of this name."""
        self.state = {**self.state, **as_model(model, name)}

    @property
    def setting(self) -> Setting:
        return self.context.setting

    @property
    def rounds(self) -> int:
        return self.setting.rounds

    @property
    def final(self) -> bool:
        """Whether this is the last round, or the client is judged as if it were (`--select`)."""
        return self.round == self.rounds or self.work.as_last

    @property
    def n_train(self) -> int:
        """Number of training images."""
        return len(self.work.rows)

    @property
    def batches_a_pass(self) -> int:
        """Batches of one pass over the training images."""
        return self.work.plan.batches_a_pass(self.index)

    @property
    def pass_rows(self) -> int:
        """Images in one pass over the training images: all, or full batches only (`--tail drop`)."""
        return self.work.plan.pass_rows(self.index)

    def count(self, split: str) -> int:
        """Number of images in a split (one of SPLITS)."""
        return len(self.work.rows_of(split))

    def images(self, split: str = "train") -> Tensor:
        """Stored images of a split, [n, H, W, C] uint8; Collect instead sees them as network input."""
        data = self.work.federation
        return data.images[data.image_at(self.work.rows_of(split))]

    def labels(self, split: str = "train") -> Tensor:
        """Labels of a split, [n] int64, or [n, K] for multi-label images; all NO_LABEL for the test split."""
        return known(self.work.federation.labels[self.work.rows_of(split)], split)

    @property
    def first_alike(self) -> int:
        """The lowest index of a client with identical training images (maybe this one), so that a method can reuse its
        results. The first call in a run reads all images."""
        return self.work.federation.first_alike[self.index]

    @property
    def strata(self) -> Tensor:
        """[n] int64: the stratum of each training image (partitions/distribution.py)."""
        rows = self.work.rows
        return torch.from_numpy(self.work.federation.densities.strata[rows.cpu().numpy()]).to(rows.device)

    @property
    def validates_on(self) -> str:
        """The split for choosing between models: validation, or training if the client has no validation images."""
        return "validation" if self.count("validation") else "train"

    @property
    def loss(self) -> float:
        """The round's training loss for the log: `logged` if set, else the loss of the first Train."""
        first, _ = self.work.losses[0] if self.work.losses else (0.0, 0)
        return first if self.logged is None else self.logged

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Add the block's seconds to a part of the work, such as "estimation", in the run's `rounds` table."""
        return self.work.timed(part)
