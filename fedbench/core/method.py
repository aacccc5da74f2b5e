"""The base class of all methods: the hooks that the trainer calls, whose defaults are FedAvg."""

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
from fedbench.core.server import Server
from fedbench.core.state import Mean, State, matches, weighted_mean
from fedbench.core.task import task_of
from fedbench.declaration import of_class
from fedbench.errors import FedbenchError
from fedbench.measure import Measure
from fedbench.options import check_bounds
from fedbench.options import option as hyperparameter
from fedbench.specs import Plain, Setting

#: Share of a training step's time that a forward pass takes (backward costs about twice the forward).
FORWARD = 1 / 3

#: Name prefixes of the parts of a network: the body computes the features, the head is the last linear layer.
BODY, HEAD = ("backbone.", "projection."), ("head.",)


def cross_entropy(model: Any, batch: Batch) -> Loss:
    """Mean cross-entropy of the model's logits, in float32 for any precision of the run.

    For classes [B] it uses the softmax; for 0 or 1 per label [B, U] it is the binary cross-entropy, averaged over the
    labels.
    """
    return Loss(task_of(batch.y).loss(model(batch.x).float(), batch.y))


def features(model: Any, batch: Batch) -> Tensor:
    """[B, d]: the inputs of the network's head."""
    z: Tensor = model.features(batch.x)
    return z


@dataclass(frozen=True)
class Method(options.Recorded):
    """A federated-learning method. Subclasses override only the hooks they need.

    The defaults are FedAvg: everything is shared, each client of the cohort runs SGD on the cross-entropy, and
    the server takes the mean weighted by training-set sizes (or evenly: the setting's `weighting`).
    """

    name: ClassVar[str] = ""  #: on the command line; also the file's name
    title: ClassVar[str] = ""  #: in tables
    version: ClassVar[int] = 1  #: increase it when results are meant to change
    personal: ClassVar[tuple[str, ...]] = ()  #: name prefixes of tensors that stay with the client; others are shared
    personal_models: ClassVar[
        tuple[str, ...]
    ] = ()  #: names of further personal models, which start from the initial network
    trains: ClassVar[bool] = True  #: False for a method that only measures the clients' data
    serves: ClassVar[tuple[str, ...]] = (MEMBER, UNSEEN, UNLABELLED)  #: kinds of clients that it has a model for
    #: Prefixes within `personal` that an UNLABELLED client has too, set by `serve` or as initialised.
    unlabelled_has: ClassVar[tuple[str, ...]] = ()
    routes: ClassVar[bool] = False  #: whether `route` chooses the client that predicts an image
    #: Whether one model of a client gives its predictions, so that it can also predict other clients' images.
    takes_votes: ClassVar[bool] = True
    #: Whether it supports multi-label images (CheXpert), 0 or 1 per label. A method that uses classes in other ways
    #: than `cross_entropy` does not.
    takes_multi_label: ClassVar[bool] = True
    takes_vectors: ClassVar[bool] = True  #: whether it supports vectors; methods that use colours or grey levels do not
    #: The metrics of its runs that it reports per round (`round_metrics`) and per client (`client.metrics`).
    measures: ClassVar[tuple[Measure, ...]] = ()
    clusters_by: ClassVar[str] = ""  #: one of declaration.CLUSTERS_BY, if it clusters clients
    personalised: ClassVar[bool] = False  #: whether each client predicts with its own model
    one_step: ClassVar[bool] = False  #: whether clients upload one batch's gradient, so that a round is one step
    #: Where the mean of the uploads is taken if the method `streams`: the trainer creates one per round, adds each
    #: upload as it arrives (`Mean.add`), and takes `Mean.result` as `server.shared` before it calls `step`.
    aggregation: ClassVar[type[Mean]] = Mean

    def __post_init__(self) -> None:
        """Parse the hyper-parameters and check their bounds. Raises FedbenchError."""
        for option, field in self.hyperparameters().items():
            value, kind = getattr(self, field.name), type(field.default)
            if kind in options.VALUES:
                value = options.parse(self.name, option, kind, value, field.metadata.get("choices", ()))
                object.__setattr__(self, field.name, value)
            check_bounds(self.name, option, field, value)

    def __init_subclass__(cls, **more: Any) -> None:
        """Raise FedbenchError for a hyper-parameter with the name of a hook."""
        super().__init_subclass__(**more)
        for name in inspect.get_annotations(cls):
            if inspect.isfunction(getattr(Method, name, None)):
                raise FedbenchError(
                    f"the hyper-parameter {name} of {cls.__name__} takes the place of the hook {name}",
                    f"call it {name}_; its option is --{name} all the same",
                )

    def check_setting(self, setting: Setting) -> None:
        """Raise FedbenchError if the method does not support the setting (before training)."""
        return

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        """The network to train, made from the setting's model (FedDRM adds a branch)."""
        return model

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        """Tensors in addition to the network's, such as class means; shared unless `personal` names them."""
        return {}

    def start(self, server: Server) -> None:
        """Set up the server before the first round: models of clusters, and `server.memory` (a dataclass). A resumed
        run calls it too, then replaces the values with the saved ones."""
        return

    def communicates(self, t: int, rounds: int) -> bool:
        """Whether round t communicates. If not, each client continues with its local copy."""
        return True

    def broadcast(self, server: Server, client: Client) -> None:
        """Change what a client of the cohort starts the round with: tensors in `client.state`, and a message in
        `client.inbox`."""
        return

    def local(self, client: Client) -> ClientUpdate | None:
        """The client's update: a generator of requests, or None if there is nothing to train."""
        return _sgd()

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """Aggregate the uploads of the whole cohort, which stay in memory until this call.

        The trainer calls it only if the method overrides it. Otherwise (`streams`), as in FedAvg, no upload is stored:
        `aggregation` sums them as they arrive, and then `step` is called. The body here is for overrides that call
        super(): bitwise the same mean, weighted by the setting's `weighting`, then `step`."""
        before, context = server.shared, cohort[0].context
        weights = [context.weight(c.n_train) for c in cohort]
        server.shared = weighted_mean([c.state for c in cohort], weights, server.shared)
        self.step(server, before, context.share_of(sum(weights)))

    def step(self, server: Server, before: State, share: float) -> None:
        """The server's step after averaging, such as a server optimiser. `server.shared` is the mean, `before` its old
        value, and `share` the cohort's share |S|/N of all clients that train, by their weights in the mean. Default:
        keep the mean."""
        return

    def ask(self, server: Server, t: int, k: int) -> Any:
        """The server's k-th question (from 0) after round t, a message; None if there are no more. Goes to the
        cohort of round t, or for t = 0, before the first round, to all clients that train, in `client.inbox`."""
        return None

    def reply(self, client: Client) -> ClientUpdate | None:
        """Answer the server's question from the client's current state: set `client.upload`. Changes of its personal
        state persist."""
        return None

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """Update the server from the replies."""
        return

    @property
    def streams(self) -> bool:
        """Whether the server needs only the mean of the uploads (`aggregation`), so that memory does not grow with the
        cohort. True unless the method overrides `aggregate`, which is called only then."""
        return type(self).aggregate is Method.aggregate

    @property
    def answers_after_local(self) -> bool:
        """Whether a client of the cohort is evaluated with its state after local training, before the server's step.
        Other clients are evaluated with what the server serves."""
        return False

    def serve(self, server: Server, client: Client) -> None:
        """Change what a client receives for evaluation (`client.state`, `client.inbox`). By default a client has its
        `Server.view`; an UNLABELLED client, which the server does not know, has the shared model."""
        return

    def personalise(self, client: Client) -> ClientUpdate | None:
        """Turn what a client received into the model that predicts: its `state`, or `client.answers_by`.

        If `client.kind` is UNLABELLED, the client has only its test images.
        """
        return None

    def route(self, model: nn.Module, features: Tensor, log_shares: Tensor) -> Mapping[str, Tensor]:
        """Rule -> client [B] that predicts each image, from backbone features [B, d] and log n_i/N [M]. No labels."""
        return {}

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        """Metrics of the federation after a round, declared in `measures`; default: the number of clusters."""
        return {"clusters": float(len(server.models))} if server.models else {}

    def described(self, server: Server) -> tuple[Tensor, Tensor] | None:
        """(clients [k], descriptors [k, L]) by which the server clustered them, stored with the run; or None."""
        return None

    def relative_compute(self, setting: Setting) -> float:
        """Forward and backward passes of a client's local work relative to FedAvg, to estimate a run's duration."""
        return 1.0

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        """Training images (forward and backward) that are worth what `personalise`, and answers by more than one model,
        take of a client of this kind beyond a forward pass of its test images; to estimate a run's duration. `final`:
        after the last round."""
        return 0.0

    def is_personal(self, name: str) -> bool:
        """Whether the tensor of this name stays with its client."""
        return matches(name, self.personal) or ("/" in name and name.split("/", 1)[0] in self.personal_models)

    @classmethod
    def hyperparameters(cls) -> dict[str, dataclasses.Field[Any]]:
        """Hyper-parameters by their name on the command line."""
        return options.of(cls)

    @classmethod
    def create(cls, overrides: Mapping[str, Any]) -> Method:
        """The method with these hyper-parameters (values or their text). Raises FedbenchError for invalid ones."""
        fields = cls.hyperparameters()
        return cls(**{fields[name].name: value for name, value in of_class(cls).values(overrides).items()})

    @property
    def params(self) -> dict[str, Plain]:
        """All hyper-parameters with their values."""
        return {name: getattr(self, f.name) for name, f in self.hyperparameters().items()}

    @classmethod
    def deviations(cls) -> list[str]:
        """Deviations from the paper, with reasons; default: those in the docstring."""
        return of_class(cls).deviations


#: The documented import path.
Method.__module__ = "fedbench.methods.base"

#: The values of `score`.
AFTER_LOCAL, AFTER_AGGREGATE = "after_local", "after_aggregate"


def score_hyperparameter(source: str = "not given by pFedFDA", default: str = AFTER_LOCAL, later: bool = False) -> Any:
    """The hyper-parameter `score` of `Scored` methods."""
    choices = (AFTER_LOCAL, AFTER_AGGREGATE)
    return hyperparameter(default, "which of a client's models answers", source=source, choices=choices, later=later)


@dataclass(frozen=True)
class Scored(Method):
    """A method whose `score` selects how a round's clients are evaluated: with the model after their local training
    (after_local), or with the model that the server serves after aggregation (after_aggregate)."""

    score: str = score_hyperparameter()

    @property
    def answers_after_local(self) -> bool:
        return self.score == AFTER_LOCAL


def _sgd() -> ClientUpdate:
    yield Train(cross_entropy)
