"""FedALA: each client starts a round with a mixture of its own model and the shared one, learned per entry.

The mixture of the two models is elementwise; its weights are learned by projected gradient descent.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbench.core.client import MEMBER, UNLABELLED, Batch, Client, ClientUpdate, Context, Loss, Rule, Train
from fedbench.core.state import State, as_model
from fedbench.methods.base import (
    AFTER_AGGREGATE,
    AFTER_LOCAL,
    Method,
    cross_entropy,
    hyperparameter,
    score_hyperparameter,
)
from fedbench.methods.parts.steps import check_split, remaining, steps_hyperparameter
from fedbench.specs import Setting

#: Learning "to the end" stops when the standard deviation of the mean losses of the last LAST passes is below CALM (the
#: authors' code uses last batches), or after MOST_PASSES.
LAST, CALM, MOST_PASSES = 10, 0.1, 100
#: Prefix of the extras that hold shared - own for each mixed tensor.
GAP = "gap"


@dataclass(frozen=True)
class Projected(Rule):
    """Turn the optimiser's plain step with rate 1 into the projected step w <- clip(w - rate g, 0, 1)."""

    rate: float
    weight_decay: float  #: the optimiser adds this times w, which the rule compensates

    def direction(self, weights: State, gradient: State, beside: Any) -> State:
        ends = {n: (w - self.rate * gradient[n]).clamp(0, 1) for n, w in weights.items()}
        return {n: w - ends[n] - self.weight_decay * w for n, w in weights.items()}


def mixture(own: State, shared: State, weights: State) -> State:
    """Return own + (shared - own) W for all tensors of the client's personal model."""
    return {n: t + (shared[n] - t) * weights[n] for n, t in own.items()}


def learned_weights(
    client: Client, own: State, weights: State, rate: float, steps: int, to_the_end: bool
) -> Generator[Train, Any, State]:
    """Return W after `steps` steps on the cross-entropy of the client's network with the mixture in it, or `to_the_end`
    after passes of `steps` steps until the loss has settled. Leaves W in the place of the network's mixed tensors."""
    shared = client.model()
    gaps = {n: shared[n] - t for n, t in own.items()}
    a_pass = Train(
        mixed_cross_entropy,
        trains=tuple(own),
        steps=steps,
        lr=1.0,
        momentum=0.0,
        rules=(Projected(rate, client.setting.weight_decay),),
        extras={**as_model(own, OWN), **as_model(gaps, GAP)},
    )
    losses: list[float] = []
    client.put(weights)
    while not losses or (to_the_end and not settled(losses)):
        losses.append((yield a_pass).loss)
    return {n: client.state[n].clamp(0, 1) for n in own}


def mixed_cross_entropy(model: Any, batch: Batch) -> Loss:
    """Return the cross-entropy of the network in which the mixture replaces W."""
    mixed: dict[str, Tensor] = {
        name: batch.extras[f"{OWN}/{name}"] + gap * weights
        for name, weights in model.named_parameters()
        if (gap := batch.extras.get(f"{GAP}/{name}")) is not None
    }
    return cross_entropy(partial(functional_call, model, mixed), batch)


def settled(losses: list[float]) -> bool:
    """Whether learning should stop after passes with these mean losses."""
    return len(losses) > LAST and (len(losses) == MOST_PASSES or statistics.pstdev(losses[-LAST:]) < CALM)


#: Prefixes of the client's personal top layers, as of the end of its last training, and of the mixture's weights.
OWN, WEIGHTS = "own", "weights"


@dataclass(frozen=True)
class FedALA(Method):
    """Adaptive local aggregation (Zhang et al., AAAI 2023, Algorithm 1).

    A client starts a round at Θ̂ = own + (shared - own) W, elementwise, in the `top` of the network, and at the shared
    model below; "own" is the model that it last trained. W starts as ones and is learned before each training: on a
    batch, W <- clip(W - η dL/dW, 0, 1), in one pass over `share` of the images; as long as W is all ones, in passes
    until the loss has settled. Then the whole network trains, and is averaged by training sizes. In the first round
    there is nothing to mix. The logged loss is that of the training.

    With `score` after_aggregate a client predicts, as in the authors' code, with the Θ̂ from the new shared model,
    before training; with after_local, one of the round with its trained model and others with the shared model.

    FedDRM's comparison uses `weight_steps` of the local steps for W, 5 of 10, and its code detaches W from the loss:
    it is FedAvg with the other steps, evaluated before averaging. This is `weight_steps` 5, `rate` 0 (no such steps are
    taken) and `score` after_local; with another rate W learns within that budget.

    deviates: `share` of the images is drawn anew in every pass, where the code takes a run of the training list; passes
    end when their mean losses have settled (the code: those of last batches), at the latest after 100.

    deviates: the Θ̂ that answers is learned for that, and once more when the client trains: the paper has one of both.
    """

    name = "fedala"
    title = "FedALA"
    personalised = True
    personal = (f"{OWN}/", f"{WEIGHTS}/")
    serves = (MEMBER, UNLABELLED)

    top: int = hyperparameter(
        2, "tensors that are mixed, counted from the last", "p", "code; the paper counts layers: 1", least=1
    )
    rate: float = hyperparameter(
        1.0, "learning rate of W; 0: W stays at ones", "η", "code; FedDRM, in effect: 0", least=0
    )
    share: float = hyperparameter(
        0.8, "share of the training images that a pass over them learns W from", "s", "code", above=0, most=1
    )
    weight_steps: int = steps_hyperparameter("W; 0: passes", 5)
    score: str = score_hyperparameter("code; FedDRM: after_local", AFTER_AGGREGATE)

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
        """Learn W, and put the mixture into the top of the network that the client has received."""
        shared, own, weights = client.model(), client.model(OWN), client.model(WEIGHTS)
        if not self.rate or all(torch.equal(shared[n], t) for n, t in own.items()):
            return
        first = not self.weight_steps and all(bool((w == 1).all()) for w in weights.values())
        whole_batches = int(self.share * client.n_train) // min(client.setting.batch_size, client.n_train)
        steps = self.weight_steps or max(1, whole_batches)
        weights = yield from learned_weights(client, own, weights, self.rate, steps, to_the_end=first)
        client.put({**shared, **mixture(own, shared, weights)})
        client.put(weights, WEIGHTS)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return n_train * self.share if kind == MEMBER and not self.answers_after_local else 0.0

    def personalise(self, client: Client) -> ClientUpdate:
        if client.kind == MEMBER and not self.answers_after_local:
            yield from self.mix(client)

    def relative_compute(self, setting: Setting) -> float:
        if self.weight_steps:
            return 1.0 if self.rate else 1 - self.weight_steps / (setting.steps or self.weight_steps)
        passes = (LAST + setting.rounds - 1) / setting.rounds if self.rate and setting.rounds > 1 else 0
        return 1 + passes * self.share / (setting.epochs or 1)  # local steps count as an epoch
