"""What a client's update works with: the client, what it knows and may ask for, and what changes its gradients."""

from __future__ import annotations

import contextlib
import reprlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbench import models
from fedbench.core.federation import Federation, Task
from fedbench.core.plan import Plan
from fedbench.core.state import State, as_model, check_state, matches, model_in, name_in, plain, state_of
from fedbench.errors import FedbenchError
from fedbench.plugins import FILES, shown
from fedbench.specs import Setting

#: A client that may take part in training; one that has labelled images but joins after the last round; one whose
#: images have no labels (the test phase).
MEMBER, UNSEEN, UNLABELLED = "member", "unseen", "unlabelled"


@dataclass(frozen=True)
class Rule:
    """Changes the gradient of each local step. Rules that are equal can be stacked.

    Written for ONE client as pure tensor code, as losses are: no branch on a tensor's value, no `.item()`, no random
    draws; it runs under vmap and in captured steps. Weights and gradient hold the parameters that train and that the
    loss depends on, under their names in the state. `beside` holds, by the name of each of `models`, the tensors of
    that model in the client's state, under the names of the parameters that they belong to: control variates, say.
    """

    models: ClassVar[tuple[str, ...]] = ()  #: what of the client's state the rule reads
    two_passes: ClassVar[bool] = False  #: whether the gradient is taken at other weights, `elsewhere`

    def elsewhere(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        """Weights at which the gradient shall be taken instead, on the same batch."""
        return weights

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        """What the optimiser takes for the gradient."""
        return gradient


@dataclass(frozen=True)
class Add(Rule):
    """The gradient plus `times` what stands under the name of `model`: a control variate, a linear term of the loss."""

    model: str
    times: float = 1.0

    @property
    def models(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.model,)

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        return {name: g + self.times * beside[self.model][name] for name, g in gradient.items()}


@dataclass(frozen=True)
class Ascend(Rule):
    """Sharpness-aware minimisation (Foret et al., ICLR 2021, Eq. 2): the gradient is taken at w + rho g / |g|, with the
    norm over all parameters that train. Running statistics of batch norms see the batch twice."""

    two_passes = True

    rho: float

    def elsewhere(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        step = self.rho / (norm(gradient) + 1e-12)
        return {name: w + step * gradient[name] for name, w in weights.items()}


def beside(rules: Sequence[Rule], state: Mapping[str, Tensor], trained: Iterable[str]) -> dict[str, State]:
    """What the rules read of a client's state, for the parameters that train."""
    names = {name: plain(name) for name in trained}
    return {
        model: {name: state[key] for name, own in names.items() if (key := name_in(model, own)) in state}
        for rule in rules
        for model in rule.models
    }


def norm(state: State) -> Tensor:
    """Euclidean norm [] of all tensors together."""
    return torch.stack([t.square().sum() for t in state.values()]).sum().sqrt()


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


# -- work ------------------------------------------------------------------------------------------------------


#: The splits of a client's data.
SPLITS = ("train", "validation", "test")
#: The label that test images are given out with.
NO_LABEL = -1


def known(labels: Tensor, split: str) -> Tensor:
    """The labels of a split that anything outside of the evaluation may see."""
    return torch.full_like(labels, NO_LABEL) if split == "test" else labels


@dataclass
class Work:
    """A client's side of the executor. No method sees it."""

    federation: Federation
    plan: Plan
    rows: Tensor  #: [n] training images, as rows of the federation
    test_rows: Tensor  #: [m] test images
    validation_rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  #: [v] held back images
    losses: list[tuple[float, int]] = field(default_factory=list)  #: (mean loss, images) of each Train
    phase: int = 0  #: requests answered so far, but for Collect; keys the random streams
    collects: int = 0  #: Collects answered so far; they draw no batches, so the batches of Train stay the same
    seconds: float = 0.0  #: time spent on this client
    parts: dict[str, float] = field(default_factory=dict)  #: of it by part of the work: "network", and what was `timed`
    offloads: Callable[[str], bool] | None = None  #: what of its state lies in host memory when it is not at work
    host_state: State = field(default_factory=dict)  #: its state before it was loaded to the device
    momenta: State | None = None  #: what optimisers remember of the rounds so far; None where momentum does not live

    def rows_of(self, split: str, part: tuple[int, int] | None = None) -> Tensor:
        """Rows of the federation that are a split (one of SPLITS) of the client's data, or a part of it."""
        rows = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}[split]
        return rows if part is None else rows[slice(*part)]

    def counted(self, request: Request) -> None:
        """Count a request, before it is answered."""
        if isinstance(request, Collect):
            self.collects += 1
        else:
            self.phase += 1

    @property
    def processed(self) -> int:
        """Training images processed so far this round."""
        return sum(n for _, n in self.losses)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the block's seconds as a part of the work."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.count(part, time.perf_counter() - started)

    def count(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the work."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds


# -- client ----------------------------------------------------------------------------------------------------
# What a client's update works with: the client, and the requests that the executor answers.
#
# A method writes its client's update once, for ONE client, as a generator:
#
#     def local(self, client):
#         trained = yield Train(cross_entropy)
#         client.state[...] = ...
#
# What is between two `yield`s is ordinary Python on one client's small tensors. What is yielded is the heavy
# part, and the executor may run it for one client or for a stack of clients at once.


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
    kind: str = MEMBER  #: how it stands to the federation (core/client.py); another than MEMBER only where it answers
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
        data = self.work.federation
        return data.images[data.image_at(self.work.rows_of(split))]

    def labels(self, split: str = "train") -> Tensor:
        """[n] int64 of its images of a split, or with multi-label images [n, K]; test images come with NO_LABEL."""
        return known(self.work.federation.labels[self.work.rows_of(split)], split)

    @property
    def first_alike(self) -> int:
        """The first client that holds the very same training images, be it this one: what is found for it is for all
        of them. To tell, everyone's images are read, once a run."""
        return self.work.federation.first_alike[self.index]

    @property
    def strata(self) -> Tensor:
        """[n] int64: the stratum of each training image (partitions/distribution.py)."""
        rows = self.work.rows
        return torch.from_numpy(self.work.federation.densities.strata[rows.cpu().numpy()]).to(rows.device)

    @property
    def validates_on(self) -> str:
        """The split that tells how good a model is: validation, or where the client has no such images its training."""
        return "validation" if self.count("validation") else "train"

    @property
    def loss(self) -> float:
        """The round's training loss, for the log: that of the first Train, unless the method says another."""
        first, _ = self.work.losses[0] if self.work.losses else (0.0, 0)
        return first if self.logged is None else self.logged

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Count the block's seconds as a part of the client's work, such as "estimation", in the run's `rounds`."""
        return self.work.timed(part)


# -- update ----------------------------------------------------------------------------------------------------


REQUESTS = (Train, Gradient, Collect)


def opened(hook: Callable[[Client], ClientUpdate | None], client: Client) -> ClientUpdate | None:
    """The client's update, not yet begun. Raises FedbenchError where the hook gives neither a generator nor None."""
    update: Any = hook(client)
    if update is None or isinstance(update, Generator):
        return update
    if isinstance(update, REQUESTS):
        raise _returned(hook, update)
    raise FedbenchError(f"{_where(hook)} returns {words(update)}", "yield requests, and return nothing")


def following(
    hook: Callable[[Client], ClientUpdate | None], update: ClientUpdate, answer: Answer | None, client: Client
) -> Request | None:
    """The request that follows the answer to the one before; None at the end. Raises FedbenchError for what is none,
    and for a client's state that is none."""
    ended = False
    try:
        request: Any = update.send(answer)
    except StopIteration as end:
        ended, request = True, end.value
        if isinstance(request, REQUESTS):
            raise _returned(hook, request) from None
    check_state(client.state, client.received, f"{_where(hook)} leaves client.state")
    if ended:
        return None
    if not isinstance(request, REQUESTS):
        raise FedbenchError(f"{_where(hook)} yields {words(request)}, not a request", f"yield {_names(' or ')}")
    _check_fits(hook, request, client)
    return request


def _check_fits(hook: Callable[..., Any], request: Request, client: Client) -> None:
    """Raise FedbenchError where the client holds nothing of what a request is about."""
    where = f"{_where(hook)} asks for"
    for name in (request.model,) if isinstance(request.model, str) else request.model:
        if name and not any(tensor.startswith(f"{name}/") for tensor in client.state):
            raise FedbenchError(f"{where} the model '{name}', which no client holds", "name it in personal_models")
    if not isinstance(request, Collect) and not any(matches(name, request.trains) for name in client.state):
        raise FedbenchError(f"{where} gradients of {request.trains}, and no tensor's name begins so")
    if isinstance(request, Gradient) and (request.part is not None or request.split != "train"):
        (first, end), images = request.part or (0, 0), client.count(request.split)
        if not first < end <= images:
            wrong = f"{where} a gradient on images {first} to {end} of {images} ({request.split})"
            raise FedbenchError(wrong, "give part=(first, end)")


def loss_of(function: LossFunction, model: Any, batch: Batch) -> Loss:
    """A request's loss of a batch. Raises FedbenchError for what is none."""
    loss: Any = function(model, batch)
    if not isinstance(loss, Loss):
        raise FedbenchError(f"{_where(function)} returns {words(loss)}, not a Loss", "return Loss(total)")
    if not isinstance(loss.total, Tensor) or loss.total.dim():
        raise FedbenchError(
            f"{_where(function)} returns a Loss whose total is {words(loss.total)}, not a single number's tensor",
            "take the mean over the batch",
        )
    return loss


def output_of(function: Callable[[Any, Batch], Tensor], model: Any, batch: Batch) -> Tensor:
    """A request's output for a batch: [B, ...]. Raises FedbenchError for what is none."""
    output: Any = function(model, batch)
    if not isinstance(output, Tensor) or not output.dim() or len(output) != len(batch.x):
        raise FedbenchError(f"{_where(function)} returns {words(output)}, not a tensor with a row for each image")
    return output


def _returned(hook: Callable[..., Any], request: Request) -> FedbenchError:
    kind = type(request).__name__
    return FedbenchError(
        f"{_where(hook)} returns {kind}(...), and what is returned is not done", f"write `yield {kind}(...)`"
    )


def _where(hook: Any) -> str:
    """Such as "fedavg: local", or of a function in a user's file "mine.py, line 7: local"."""
    method, name = getattr(getattr(hook, "__self__", None), "name", ""), getattr(hook, "__name__", "an update")
    code = getattr(hook, "__code__", None)
    if not method and code is not None and code.co_filename in FILES:
        method = f"{shown(code.co_filename)}, line {code.co_firstlineno}"
    return f"{method}: {name}" if method else str(name)


def words(value: object) -> str:
    """What it is, in few words, however large."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return f"{value!r}" if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"


def _names(between: str) -> str:
    return between.join(f"{kind.__name__}(...)" for kind in REQUESTS)
