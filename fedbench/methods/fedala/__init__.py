"""FedALA: each client begins a round from a mixture of its own model and the shared one, learned entry by entry."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedbench.core.client import MEMBER, UNLABELLED, Client, ClientUpdate, Context, Train
from fedbench.core.state import State, as_model
from fedbench.methods.base import (
    AFTER_AGGREGATE,
    AFTER_LOCAL,
    Method,
    check,
    cross_entropy,
    hyperparameter,
    score_hyperparameter,
)
from fedbench.methods.fedala.entrywise import LAST, learned_weights, mixture
from fedbench.methods.parts.split_steps import check_split, remaining
from fedbench.specs import Setting

#: What a client keeps of its top: as it was at the end of its last training, and the weights of the mixture.
OWN, WEIGHTS = "own", "weights"


@dataclass(frozen=True)
class FedALA(Method):
    """Adaptive local aggregation (Zhang et al., AAAI 2023, Algorithm 1).

    A client begins a round at Θ̂ = own + (shared - own) W, entry by entry, in the `top` of the network, and below it at
    the shared model; its own model is what it last trained. W begins as ones and is learned before each training: on
    a batch, W <- clip(W - η dL/dW, 0, 1), in one pass over `share` of the images; while W is still all ones, in passes
    until the loss has settled. Then the whole network trains, and is averaged by training sizes. In the first round
    there is nothing to mix. The logged loss is that of the training.

    With `score` after_aggregate a client answers, as in the authors' code, with the Θ̂ that it makes of the new shared
    model, before training; with after_local, one of the round with what it has trained and others with the shared one.

    FedDRM's comparison gives `weight_steps` of the local steps to W, its 5 of 10, and its code cuts W off from the
    loss: FedAvg with the other steps, evaluated before averaging. That is `weight_steps` 5, `rate` 0 (no such steps are
    taken) and `score` after_local; with another rate W learns within that budget.

    deviates: `share` of the images is drawn anew in every pass, where the code takes a run of the training list; passes
    end when their mean losses have settled (the code: those of last batches), at the latest after 100.

    deviates: the Θ̂ that answers is learned for that, and once more when the client trains: the paper has one of both.
    """

    name = "fedala"
    title = "FedALA"
    personal = (f"{OWN}/", f"{WEIGHTS}/")
    serves = (MEMBER, UNLABELLED)

    top: int = hyperparameter(
        2, "tensors that are mixed, counted from the last", "p", "code; the paper counts layers: 1", least=1
    )
    rate: float = hyperparameter(
        1.0, "learning rate of W; 0: W stays at ones", "η", "code; FedDRM, in effect: 0", least=0
    )
    share: float = hyperparameter(0.8, "share of the training images that a pass over them learns W from", "s", "code")
    weight_steps: int = hyperparameter(
        0, "of the setting's local steps, those of W; 0: passes", source="FedDRM, code: 5", least=0
    )
    score: str = score_hyperparameter("code; FedDRM: after_local", AFTER_AGGREGATE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 < self.share <= 1, self.name, "share", self.share, "above 0 and at most 1")

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "weight-steps", self.weight_steps, setting)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        top = {n: p.detach().clone() for n, p in list(model.named_parameters())[-self.top :]}
        return {**as_model(top, OWN), **as_model({n: torch.ones_like(p) for n, p in top.items()}, WEIGHTS)}

    @property
    def answers_after_local(self) -> bool:
        return self.score == AFTER_LOCAL

    def local(self, client: Client) -> ClientUpdate:
        yield from self.mix(client)
        trained = yield Train(cross_entropy, steps=remaining(client.setting, self.weight_steps))
        client.logged = trained.loss
        client.put({n: client.state[n] for n in client.model(OWN)}, OWN)

    def mix(self, client: Client) -> Generator[Train, Any, None]:
        """Learn W, and lay the mixture over the top of the network that the client has received."""
        shared, own, weights = client.model(), client.model(OWN), client.model(WEIGHTS)
        if not self.rate or all(torch.equal(shared[n], t) for n, t in own.items()):
            return
        first = not self.weight_steps and all(bool((w == 1).all()) for w in weights.values())
        whole_batches = int(self.share * client.n_train) // min(client.setting.batch_size, client.n_train)
        steps = self.weight_steps or max(1, whole_batches)
        weights = yield from learned_weights(client, own, weights, self.rate, steps, to_the_end=first)
        client.put({**shared, **mixture(own, shared, weights)})
        client.put(weights, WEIGHTS)

    def personalise(self, client: Client) -> ClientUpdate:
        if client.kind == MEMBER and not self.answers_after_local:
            yield from self.mix(client)

    def relative_compute(self, setting: Setting) -> float:
        if self.weight_steps:
            return 1.0 if self.rate else 1 - self.weight_steps / (setting.steps or self.weight_steps)
        passes = (LAST + setting.rounds - 1) / setting.rounds if self.rate and setting.rounds > 1 else 0
        return 1 + passes * self.share / (setting.epochs or 1)  # local steps count as an epoch
