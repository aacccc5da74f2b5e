"""APFL as FLUX compares with it: a personal model that is mixed with the shared one after every local epoch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.client import (
    MEMBER,
    UNLABELLED,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Context,
    Gradient,
    Loss,
    Train,
)
from fedbench.core.network import OfEach
from fedbench.core.state import State, as_model
from fedbench.core.task import task_of
from fedbench.measure import Measure
from fedbench.methods.base import FORWARD, Method, check, cross_entropy, hyperparameter
from fedbench.methods.parts.clustered import probabilities
from fedbench.specs import Setting

#: Name of the client's share of the shared model's copy.
ALPHA = "alpha"


@dataclass(frozen=True)
class APFLFlux(Method):
    """What FLUX's comparison (NeurIPS 2025) calls APFL, after Deng, Kamani and Mahdavi, arXiv:2003.13461.

    In every local epoch a client trains a copy of the shared model w, then its personal model v, each on cross-entropy
    only, and then mixes: v <- (1 - alpha) v + alpha w, including running statistics of batch norms. The copies are
    averaged by training images; v is not sent. Predictions are the mean of the class probabilities of the averaged w
    and of v. A client without labels has no v and predicts with w. In each epoch each model starts with a reset
    optimiser and a new shuffle. If the setting counts local steps, all steps of a round are one epoch. The logged loss
    is w's in the first epoch. (`apfl` is the method of pFedFDA's comparison.)

    With `adaptive`, a client takes one step on alpha at the end of each of its rounds: gradient descent on the loss of
    (1 - alpha) v + alpha w on one additional batch (APFL, Eq. 10, where alpha is v's share), clipped to [0, 1].

    deviates: APFL's paper trains v on the loss of the mixture; here, as in the code that FLUX names, v has its own loss
    and is moved towards w afterwards.

    deviates: in that code (FedRC's; `variant` fedrc) the two models are an ensemble of equal shares, so that each
    learns from half of the loss, and a round is as many passes as it has local epochs, of so many epochs each. Both
    models' momentum lives on between rounds (`--momentum-lives`).

    deviates: FLUX's own was run in that code, whose mixing has no effect, as it writes into a copy, and whose own model
    begins with other weights (`separate`): a shared model and an own one that never meet. Here the own one's are those
    of the seed after the run's.

    deviates: alpha is fixed unless `adaptive`, as in that code; FLUX's paper describes it as learned and gives no
    formula.
    """

    name = "apfl_flux"
    title = "APFL (FLUX's)"
    personalised = True
    personal = (ALPHA,)
    personal_models = ("own",)
    serves = (MEMBER, UNLABELLED)
    takes_votes = False
    measures = (
        Measure("alpha", "share of the shared model's copy that a client has learned", "fraction", of="client"),
    )

    alpha: float = hyperparameter(
        0.5, "share of the shared model's copy in the mixture", "α", "the code that FLUX names", least=0, most=1
    )
    adaptive: bool = hyperparameter(False, "whether clients learn their share", source="FLUX's text; APFL, Eq. 10")

    variant: str = hyperparameter(
        "paper",
        "a round, and the share of the loss that a model learns from",
        source="FedRC's code: fedrc",
        choices=("paper", "fedrc"),
        later=True,
    )

    separate: bool = hyperparameter(
        False,
        "whether the own model begins with weights of its own and is never mixed",
        source="FedRC's code",
        later=True,
    )

    def check_setting(self, setting: Setting) -> None:
        check(not (self.separate and self.adaptive), self.name, "separate", self.separate, "False with --adaptive")

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        own = as_model(context.fresh(1), "own") if self.separate else {}
        return {ALPHA: torch.tensor(self.alpha), **own}

    def local(self, client: Client) -> ClientUpdate:
        epochs, fedrc = client.setting.epochs, self.variant == "fedrc"
        loss, length = (half, epochs) if fedrc else (cross_entropy, epochs and 1)  # None: the setting's number of steps
        for _ in range(epochs or 1):
            yield Train(loss, epochs=length)
            yield Train(loss, epochs=length, model="own")
            if not self.separate:
                client.put(self.mixture(client), "own")
        if self.adaptive:  # at the end, so that the batches are the same as with a fixed share
            yield from self.learn_alpha(client)

    def learn_alpha(self, client: Client) -> Generator[Gradient, Any, None]:
        """Take one SGD step on the client's share, with the round's learning rate."""
        before, shared, own = client.state, client.model(), client.model("own")
        client.put(self.mixture(client))
        answer = yield Gradient(cross_entropy)
        slope = sum(((shared[n] - own[n]) * g).sum() for n, g in answer.gradient.items())
        client.state = {**before, ALPHA: (before[ALPHA] - client.lr * slope).clamp(0, 1)}

    def mixture(self, client: Client) -> State:
        """Move the personal model towards the copy of the shared one (without counters of norm layers)."""
        shared, own, alpha = client.model(), client.model("own"), client.state[ALPHA]
        return {n: torch.lerp(t, shared[n], alpha) if t.is_floating_point() else t for n, t in own.items()}

    def relative_compute(self, setting: Setting) -> float:
        return 2.0 * ((setting.epochs or 1) if self.variant == "fedrc" else 1)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return n_test * FORWARD if kind != UNLABELLED else 0.0  # by a second model

    def personalise(self, client: Client) -> None:
        if client.kind == UNLABELLED:  # it has no personal model
            return
        if self.adaptive:
            client.metrics["alpha"] = float(client.state[ALPHA])
        client.answers_by = Collect(mean_probability, model=("", "own"))


def half(model: Any, batch: Batch) -> Loss:
    """Return half of the cross-entropy."""
    whole = cross_entropy(model, batch)
    return Loss(whole.total / 2, logged=whole.total)


def mean_probability(models: Any, batch: Batch) -> Tensor:
    """Return the mean [B, K] of the models' class probabilities."""
    return task_of(batch.y).outputs(OfEach(probabilities)(models, batch).mean(1))
