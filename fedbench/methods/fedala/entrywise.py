"""A mixture of two models, entry by entry, whose weights are learned by projected gradient descent (FedALA)."""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.func import functional_call

from fedbench.core.client import Batch, Client, Loss, Rule, Train
from fedbench.core.state import State, as_model
from fedbench.methods.base import cross_entropy

#: Learning to the end: until the standard deviation of the mean losses of the last LAST passes is below CALM (authors'
#: code, there of last batches), or MOST_PASSES.
LAST, CALM, MOST_PASSES = 10, 0.1, 100
#: What of a mixture the loss reads, of each of its tensors.
OWN, GAP = "own", "gap"


@dataclass(frozen=True)
class Projected(Rule):
    """What makes an optimiser's plain step of rate 1 the projected one, w <- clip(w - rate g, 0, 1)."""

    rate: float
    weight_decay: float  #: what the optimiser adds, times w, and must not

    def direction(self, weights: State, gradient: State, beside: Any) -> State:
        ends = {n: (w - self.rate * gradient[n]).clamp(0, 1) for n, w in weights.items()}
        return {n: w - ends[n] - self.weight_decay * w for n, w in weights.items()}


def mixture(own: State, shared: State, weights: State) -> State:
    """own + (shared - own) W, of all that the client's own model has."""
    return {n: t + (shared[n] - t) * weights[n] for n, t in own.items()}


def learned_weights(
    client: Client, own: State, weights: State, rate: float, steps: int, to_the_end: bool
) -> Generator[Train, Any, State]:
    """W after so many steps on the cross-entropy of the client's network with the mixture in it, or `to_the_end` after
    passes of so many steps until the loss has settled. Leaves them where the network's own tensors were."""
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
    """Cross-entropy of the network with the mixture where W stands."""
    mixed: dict[str, Tensor] = {
        name: batch.extras[f"{OWN}/{name}"] + gap * weights
        for name, weights in model.named_parameters()
        if (gap := batch.extras.get(f"{GAP}/{name}")) is not None
    }
    return cross_entropy(partial(functional_call, model, mixed), batch)


def settled(losses: list[float]) -> bool:
    """Whether the mean losses of these passes say that learning has come to its end."""
    return len(losses) > LAST and (len(losses) == MOST_PASSES or statistics.pstdev(losses[-LAST:]) < CALM)
