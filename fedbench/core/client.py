"""What a client's update works with: the client, and the requests that the executor answers.

A method writes its client's update once, for ONE client, as a generator:

    def local(self, client):
        trained = yield Train(cross_entropy)
        client.state[...] = ...

What is between two `yield`s is ordinary Python on one client's small tensors. What is yielded is the heavy
part, and the executor may run it for one client or for a stack of clients at once.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch import Tensor

from fedbench.core.context import Context
from fedbench.core.rules import Rule
from fedbench.core.state import State, as_model, model_in
from fedbench.core.who import MEMBER
from fedbench.core.work import SPLITS, Work
from fedbench.specs import Setting


class Batch(NamedTuple):
    """One client's minibatch: x [B, C, H, W] float32, y [B] int64 (with multi-label images, 0 or 1 for each
    [B, U] float32), position [B] int64 (in the client's training set, for per-image weights or targets), and the
    request's extra tensors."""

    x: Tensor
    y: Tensor
    position: Tensor
    extras: Mapping[str, Tensor]


class Loss(NamedTuple):
    """A training loss: `total` is minimised; `logged` goes to the log (default: what is minimised, a proximal term
    included); `collected` [B, ...] comes with the answer."""

    total: Tensor
    logged: Tensor | None = None
    collected: Tensor | None = None


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _words(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


#: What a request's argument must be, and that in words.
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
    """A request: what it says is checked where a method says it, so that the method's line is told."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            right, wanted = _ARGUMENTS.get(name, (lambda _: True, ""))
            if not right(value):
                raise TypeError(f"{name} of {type(self).__name__} is {wanted}, not {reprlib.repr(value)}")


#: A loss of one client: pure tensor code. It may not branch on tensor values, call .item(), draw random
#: numbers, or write to captured tensors: it may run under vmap or in a captured graph. One function for all clients
#: (a method of the method's, say, with the client's own tensors as extras): a lambda made anew is stacked with none.
LossFunction = Callable[[Any, Batch], Loss]


@dataclass(frozen=True)
class Train(_Checked):
    """Request: minibatch training on the client's training set, starting from and updating `client.state`.

    Every request starts a fresh shuffled pass, and a fresh optimiser unless the setting has momentum that lives. None
    means the setting's value. The optimiser is
    the setting's (SGD or AdamW); a request with a momentum of its own, be it 0, is SGD in every setting. A proximal
    term is part of the gradient, and with `follow` the centre moves, whichever optimiser takes the steps. The centre of
    every model is the network as the client received it.
    """

    loss: LossFunction
    trains: tuple[str, ...] = ("",)  #: prefixes of the names, in the state, of the parameters that train
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None  #: overrides the round's scheduled rate
    momentum: float | None = None  #: of SGD, whatever the setting's optimiser
    model: str | tuple[str, ...] = ""  #: which of the client's models; of several the loss is given a list of them
    prox: float = 0.0  #: mu of a proximal term (mu/2)||w - centre||^2 on what trains; the centre begins as received
    repeat: int = 1  #: steps on each batch
    follow: float = 0.0  #: after the steps on a batch, the share of its way to the weights that the centre moves
    rules: tuple[Rule, ...] = ()  #: what each step's gradient is changed by, in this order
    #: Whose momentum goes on, where momentum lives: that of the model of this name (default: of `model`). As `extras`,
    #: it may differ between clients that are stacked.
    momentum_of: str | None = field(default=None, compare=False)
    #: This client's tensors for the loss. No part of equality: equal requests of many clients can be stacked.
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Collect(_Checked):
    """Request: one pass over a split of the client's data in its stored order, without gradients.

    `output(model, batch)` gives a tensor [B, ...]; the answer holds all rows and their labels. Test images come
    without labels: all of them are `NO_LABEL`.
    """

    output: Callable[[Any, Batch], Tensor]
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    split: str = "train"  #: one of SPLITS
    part: tuple[int, int] | None = None  #: only the images from the first position up to, not with, the second
    model: str | tuple[str, ...] = ""  #: which of the client's models; of several the output is given a list of them


@dataclass(frozen=True)
class Gradient(_Checked):
    """Request: the gradient of the loss on one batch at `client.state`, which stays but for running statistics.

    The batch is a minibatch of the training set, drawn as the plan says, or `part` of a split in its stored order.
    """

    loss: LossFunction
    trains: tuple[str, ...] = ("",)  #: prefixes of the names of the parameters to differentiate by
    extras: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    split: str = "train"  #: one of SPLITS; of another than "train" the part must be given
    part: tuple[int, int] | None = None  #: the images from the first position up to, not with, the second
    model: str | tuple[str, ...] = ""  #: which of the client's models; of several the loss is given a list of them


def logits(model: Any, batch: Batch) -> Tensor:
    """[B, K]: what a network answers by."""
    out: Tensor = model(batch.x)
    return out


class Trained(NamedTuple):
    """Answer to Train: mean logged loss over the images, collected rows [R, ...] with labels [R], images processed.

    With local epochs the last `pass_rows` rows are the last epoch's (as often as batches are repeated). `centre` is
    where a centre that follows has come to.
    """

    loss: float
    collected: Tensor | None
    labels: Tensor
    images: int
    pass_rows: int
    centre: State = {}  # noqa: RUF012 - a NamedTuple's default, never written to
    steps: int = 0  #: optimiser steps taken


class Collected(NamedTuple):
    """Answer to Collect: rows [n, ...] and labels [n], or where images have many of them [n, U]."""

    rows: Tensor
    labels: Tensor


class Differentiated(NamedTuple):
    """Answer to Gradient: the logged loss on the batch, d loss / d parameter by name, images of the batch."""

    loss: float
    gradient: State
    images: int


Request = Train | Collect | Gradient
Answer = Trained | Collected | Differentiated
ClientUpdate = Generator[Request, Any, None]

#: What a method may set, where that is not anything: its type, and that in words.
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
    """A client as a method's hooks see it, during one round, one survey or one evaluation."""

    index: int
    round: int  #: 1-based; 0 before the first
    lr: float  #: the round's learning rate
    context: Context
    class_counts: Tensor  #: [K] float32: training images of each class
    work: Work  #: the executor's
    state: State  #: what the client holds now; Train replaces what it trained
    received: State  #: the state as the client received it
    kind: str = MEMBER  #: how it stands to the federation (core/who.py); another than MEMBER only where it answers
    inbox: Any = None  #: what the server sent beside the state: a message
    upload: Any = None  #: what the client sends beside what it has changed of the shared state: a message
    #: What answers for the client: the scores [B, K] that this puts out for any images; else the network of `state`.
    answers_by: Collect | None = None
    #: [m, K] probabilities that the client gives its test images' classes (or labels), or [m] only the classes; set by
    #: an update whose answers are not those of one request, or to an image depend on the others.
    answer: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)  #: metrics a client, such as beta, stored with the run
    logged: float | None = None  #: the round's loss as the method wants it logged (default: that of the first Train)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to have a client answer as another, and what nobody would read, where a method does it."""
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
        """The tensors of one of its models, under the network's names; of the unnamed one all that has no model's."""
        return model_in(self.state, name) if name else {n: t for n, t in self.state.items() if "/" not in n}

    def put(self, model: State, name: str = "") -> None:
        """Make this model (tensors under the network's names) the one that goes by that name."""
        self.state = {**self.state, **as_model(model, name)}

    @property
    def setting(self) -> Setting:
        return self.context.setting

    @property
    def rounds(self) -> int:
        return self.setting.rounds

    @property
    def final(self) -> bool:
        """Whether this is the last round."""
        return self.round == self.rounds

    @property
    def n_train(self) -> int:
        """Training images."""
        return len(self.work.rows)

    @property
    def batches_a_pass(self) -> int:
        """Batches of one pass over its training images."""
        return self.work.plan.batches_a_pass(self.index)

    @property
    def pass_rows(self) -> int:
        """Images of one pass over its training images: all, or whole batches only."""
        return self.work.plan.pass_rows(self.index)

    def count(self, split: str) -> int:
        """Images of a split (one of SPLITS) of its data."""
        return len(self.work.rows_of(split))

    def images(self, split: str = "train") -> Tensor:
        """Its images of a split as they are stored, [n, H, W, C] uint8; a Collect sees them as the network does."""
        return self.work.images(split)

    def labels(self, split: str = "train") -> Tensor:
        """Labels of its images of a split; test images come without."""
        return self.work.labels(split)

    @property
    def first_alike(self) -> int:
        """The first client that holds the very same training images, be it this one: what is found for it is for all
        of them. To tell, everyone's images are read, once a run."""
        return self.work.federation.first_alike[self.index]

    @property
    def strata(self) -> Tensor:
        """[n] int64: the stratum of each training image (partitions/density.py)."""
        return self.work.strata()

    @property
    def validates_on(self) -> str:
        """The split that tells how good a model is: validation, or where the client has no such images its training."""
        return "validation" if self.count("validation") else "train"

    @property
    def loss(self) -> float:
        """The round's training loss, for the log."""
        return self.work.first_loss if self.logged is None else self.logged

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Count the block's seconds as a part of the client's work, such as "estimation", in the run's `rounds`."""
        return self.work.timed(part)
