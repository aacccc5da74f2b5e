"""What the trainer asks of a method: the base class of all, each hook with its default, which together are FedAvg."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedbench import options
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Batch, Client, ClientUpdate, Context, Loss, Train
from fedbench.core.federation import task_of
from fedbench.core.server import Server
from fedbench.core.state import State, matches, weighted_mean
from fedbench.declaration import of_class
from fedbench.errors import FedbenchError
from fedbench.measure import Measure
from fedbench.options import check_bounds
from fedbench.options import option as hyperparameter
from fedbench.specs import Plain, Setting

#: Share of a training step's time that a forward pass takes (backward costs about twice the forward).
FORWARD = 1 / 3

#: Name prefixes of the parts of a network: the body is what makes the features, the head the last linear layer.
BODY, HEAD = ("backbone.", "projection."), ("head.",)


def cross_entropy(model: Any, batch: Batch) -> Loss:
    """Mean cross-entropy of the model's logits (as float32 whatever the run's precision).

    With classes [B] it is that of the softmax, with 0 or 1 for each of several labels [B, U] the binary one, a mean
    over the labels.
    """
    return Loss(task_of(batch.y).loss(model(batch.x).float(), batch.y))


def features(model: Any, batch: Batch) -> Tensor:
    """[B, d]: what the network's head reads."""
    z: Tensor = model.features(batch.x)
    return z


@dataclass(frozen=True)
class Method:
    """A federated-learning method. Subclasses override only the hooks they need.

    The defaults are FedAvg: everything is shared, each client of the cohort runs SGD on the cross-entropy, and
    the server takes the mean weighted by training-set sizes.
    """

    name: ClassVar[str] = ""  #: on the command line; the file's name
    title: ClassVar[str] = ""  #: in tables
    version: ClassVar[int] = 1  #: raise it when results should change
    personal: ClassVar[tuple[str, ...]] = ()  #: name prefixes of what a client keeps to itself; the rest is shared
    personal_models: ClassVar[
        tuple[str, ...]
    ] = ()  #: further models of each client's own, which begin where the shared one does
    trains: ClassVar[bool] = True  #: whether the network moves at all (a method may merely measure the clients' data)
    serves: ClassVar[tuple[str, ...]] = (MEMBER, UNSEEN, UNLABELLED)  #: whom it has a model for
    #: Of `personal`, the parts of the network that an UNLABELLED client has too: by `serve`, or as they began.
    unlabelled_has: ClassVar[tuple[str, ...]] = ()
    routes: ClassVar[bool] = False  #: whether it says which client should answer an image
    #: Whether a client's answer is that of one model, which can be asked about others' images too.
    takes_votes: ClassVar[bool] = True
    #: Whether images may be multi-label (CheXpert), 0 or 1 each, instead of one class. A method that works with
    #: classes itself, not by `cross_entropy` alone, cannot take them.
    takes_multi_label: ClassVar[bool] = True
    takes_vectors: ClassVar[bool] = True  #: whether images may be vectors: a method of colours or grey levels says no
    #: The metrics that it reports of its rounds (`round_metrics`) and clients (`client.metrics`): metrics of its runs.
    measures: ClassVar[tuple[Measure, ...]] = ()
    clusters_by: ClassVar[str] = ""  #: one of declaration.CLUSTERS_BY, if it clusters clients
    made_for: ClassVar[tuple[str, ...]] = ()  #: the kinds of shift that its paper sets out to handle: px, py, pyx, pxy
    adapts: ClassVar[bool] = False  #: whether a client without labels is served by what its own images are like
    personalised: ClassVar[bool] = False  #: whether a client's images are answered by a model that is its own
    one_step: ClassVar[bool] = False  #: whether clients send a gradient of one batch, so that every step is a round

    def __post_init__(self) -> None:
        """Types and bounds of the hyper-parameters. Raises FedbenchError."""
        for option, field in self.hyperparameters().items():
            value, kind = getattr(self, field.name), type(field.default)
            if kind in options.VALUES:
                value = options.parse(self.name, option, kind, value, field.metadata.get("choices", ()))
                object.__setattr__(self, field.name, value)
            check_bounds(self.name, option, field, value)

    def __init_subclass__(cls, **more: Any) -> None:
        """Raise FedbenchError for a hyper-parameter that goes by the name of a hook."""
        super().__init_subclass__(**more)
        for name in inspect.get_annotations(cls):
            if inspect.isfunction(getattr(Method, name, None)):
                raise FedbenchError(
                    f"the hyper-parameter {name} of {cls.__name__} takes the place of the hook {name}",
                    f"call it {name}_; its option is --{name} all the same",
                )

    def check_setting(self, setting: Setting) -> None:
        """Raise FedbenchError if the method cannot work in the setting (before anything is trained)."""
        return

    # -- what exists -------------------------------------------------------------------------------------

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        """The network that the method trains, made from the setting's model (FedDRM adds a branch)."""
        return model

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        """Tensors beside the network's parameters, such as class means; shared unless `personal` names them."""
        return {}

    def start(self, server: Server) -> None:
        """The server's own state before the first round: several models, and what it remembers (`server.memory`, a
        dataclass). It comes again at a resume, where what was saved takes its place."""
        return

    # -- a round -----------------------------------------------------------------------------------------

    def communicates(self, t: int, rounds: int) -> bool:
        """Whether round t communicates. In a round that does not, each client goes on with its own copy."""
        return True

    def broadcast(self, server: Server, client: Client) -> None:
        """What a client of the cohort starts the round from, beyond what it holds (`client.state`): other tensors
        there, and a message in `client.inbox`."""
        return

    def local(self, client: Client) -> ClientUpdate | None:
        """The client's update: a generator of requests, or None for a client that asks for nothing."""
        return _sgd()

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """The server's step on all that the cohort has uploaded: by default the mean weighted by training sizes, and
        `step`. Where it is left as it is, uploads are added up as they come and none is held (`streams`)."""
        before, context = server.shared, cohort[0].context
        server.shared = weighted_mean([c.state for c in cohort], [c.n_train for c in cohort], server.shared)
        self.step(server, before, context.share_of(sum(c.n_train for c in cohort)))

    def step(self, server: Server, before: State, share: float) -> None:
        """The server's step from the mean of the uploads, which `server.shared` now is; `before` is what it was,
        `share` |S|/N the cohort's part of the training images of all that train. By default it stays there."""
        return

    def ask(self, server: Server, t: int, k: int) -> Any:
        """The server's k-th question (from 0) after round t to that round's cohort, before the first (t = 0) to all
        that train: a message, which they find in their `inbox`; None for no further question."""
        return None

    def reply(self, client: Client) -> ClientUpdate | None:
        """What a client finds out for the server, by what it holds now; its answer is its `upload`. What it changes of
        its personal state stays with it."""
        return None

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """What the server makes of the replies."""
        return

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def streams(self) -> bool:
        """Whether the server needs no more of the uploads than their mean: those of a cohort of any size then take no
        memory. So it is unless `aggregate` is the method's own."""
        return type(self).aggregate is Method.aggregate

    @property
    def answers_after_local(self) -> bool:
        """Whether a client of the cohort answers with what it held at the end of its own training in the round, before
        the server's step. Others answer from what the server gives."""
        return False

    def serve(self, server: Server, client: Client) -> None:
        """What a client is given when the federation is asked for answers, beyond what it holds, or if it is
        UNLABELLED, and so nobody the server knows, beyond the shared model."""
        return

    def personalise(self, client: Client) -> ClientUpdate | None:
        """Turn what a client was given into what answers for it: its `state`, or `client.answers_by`.

        `client.kind` says how it stands to the federation: an UNLABELLED one has its test images alone.
        """
        return None

    def route(self, model: nn.Module, features: Tensor, log_shares: Tensor) -> Mapping[str, Tensor]:
        """Rule -> client [B] that should answer, from backbone features [B, d] and log n_i/N [M]. No labels."""
        return {}

    # -- what is told of a run -----------------------------------------------------------------------------

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        """Numbers of the federation after a round, as `measures` declares them: by default the count of clusters."""
        return {"clusters": float(len(server.models))} if server.models else {}

    def described(self, server: Server) -> tuple[Tensor, Tensor] | None:
        """(clients [k], a descriptor of each [k, L]) that the server has grouped them by, kept with the run."""
        return None

    def relative_compute(self, setting: Setting) -> float:
        """The passes of a client's local work as a multiple of FedAvg's, to tell beforehand how long a run takes."""
        return 1.0

    def is_personal(self, name: str) -> bool:
        """Whether the tensor of that name stays with its client."""
        return matches(name, self.personal) or ("/" in name and name.split("/", 1)[0] in self.personal_models)

    # -- hyper-parameters --------------------------------------------------------------------------------

    @classmethod
    def hyperparameters(cls) -> dict[str, dataclasses.Field[Any]]:
        """Hyper-parameters by their name on the command line."""
        return options.of(cls)

    @classmethod
    def create(cls, overrides: Mapping[str, Any]) -> Method:
        """The method with these hyper-parameters (values or their text). Raises FedbenchError on a wrong one."""
        fields = cls.hyperparameters()
        return cls(**{fields[name].name: value for name, value in of_class(cls).values(overrides).items()})

    @property
    def params(self) -> dict[str, Plain]:
        """Every hyper-parameter with its value."""
        return {name: getattr(self, f.name) for name, f in self.hyperparameters().items()}

    @classmethod
    def deviations(cls) -> list[str]:
        """Where this differs from the paper, and why: by default what the docstring says."""
        return of_class(cls).deviations


#: The address by which its users know it.
Method.__module__ = "fedbench.methods.base"

#: The values of `score`.
AFTER_LOCAL, AFTER_AGGREGATE = "after_local", "after_aggregate"


def score_hyperparameter(source: str = "not given by pFedFDA", default: str = AFTER_LOCAL, later: bool = False) -> Any:
    """The hyper-parameter of methods that are `Scored`."""
    choices = (AFTER_LOCAL, AFTER_AGGREGATE)
    return hyperparameter(default, "which of a client's models answers", source=source, choices=choices, later=later)


@dataclass(frozen=True)
class Scored(Method):
    """A method that leaves open which model answers for a client of the round: with `score` after_local that at the end
    of its own training, with after_aggregate the one that the server then gives it."""

    score: str = score_hyperparameter()

    @property
    def answers_after_local(self) -> bool:
        return self.score == AFTER_LOCAL


def _sgd() -> ClientUpdate:
    """FedAvg's update."""
    yield Train(cross_entropy)
