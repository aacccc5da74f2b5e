"""APFL as FLUX compares with it: an own model that is mixed with the shared one after every local epoch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedbench.core.client import Box, Client, Collect, Gradient, Train
from fedbench.core.federation import Federation
from fedbench.core.state import State
from fedbench.core.who import MEMBER, UNLABELLED
from fedbench.methods.base import Method, check, cross_entropy, knob
from fedbench.methods.parts.clustered import answer_of, probabilities
from fedbench.methods.parts.own_model import OWN, own_copy, swapped
from fedbench.spec import Setting

#: The share that a client holds.
ALPHA = "alpha"


@dataclass(frozen=True)
class APFLFlux(Method):
    """What FLUX's comparison (NeurIPS 2025) calls APFL, after Deng, Kamani and Mahdavi, arXiv:2003.13461.

    In every local epoch a client trains a copy of the shared model w, then its own model v, each on the cross-entropy
    alone, and then mixes: v <- (1 - alpha) v + alpha w, running statistics of batch norms too. The copies are averaged
    by training images; v stays. The mean of the averaged w's and v's class probabilities answers. A client without
    labels has no v and is answered by w. Each epoch of each model begins with the optimiser at rest and a shuffle of
    its own. Where the setting counts local steps, all of a round's are one epoch. The logged loss is w's in the first
    epoch. (`apfl` is the method of pFedFDA's comparison.)

    With `adaptive`, a client takes one step on alpha at the end of each of its rounds, down the gradient of the loss of
    (1 - alpha) v + alpha w on a batch more (APFL, Eq. 10, where alpha is v's share), and stays within [0, 1].

    deviates: APFL's paper trains v on the loss of the mixture; here, as in the code that FLUX names, v has its own loss
    and is moved towards w afterwards.

    deviates: alpha is fixed unless `adaptive`, as in that code; FLUX's paper describes it as learned and gives no
    formula.
    """

    name = "apfl_flux"
    title = "APFL (FLUX's)"
    personal = (OWN, ALPHA)
    serves = (MEMBER, UNLABELLED)
    takes_votes = False

    alpha: float = knob(0.5, "share of the shared model's copy in the mixture", "α", "the code that FLUX names")
    adaptive: bool = knob(False, "whether clients learn their share", source="FLUX's text; APFL, Eq. 10")

    def __post_init__(self) -> None:
        check(0 <= self.alpha <= 1, self.name, "alpha", self.alpha, "in [0, 1]")

    def variables(self, model: nn.Module, federation: Federation, generator: torch.Generator) -> State:
        return {**own_copy(model), ALPHA: torch.tensor(self.alpha)}

    def local(self, client: Client) -> Box:
        epochs = client.plan.setting.epochs
        epoch = Train(cross_entropy, epochs=epochs and 1)  # None: the setting's steps
        for _ in range(epochs or 1):
            yield epoch
            client.state = swapped(client.state)
            yield epoch
            client.state = self.mixed(swapped(client.state))
        if self.adaptive:  # at the end, so that the rounds' batches stay those of a fixed share
            yield from self.learn_alpha(client)

    def learn_alpha(self, client: Client) -> Generator[Gradient, Any, None]:
        """One SGD step on the client's share, at the round's learning rate."""
        before = client.state
        client.state = swapped(self.mixed(before))
        found = yield Gradient(cross_entropy)
        slope = sum(((before[n] - before[OWN + n]) * g).sum() for n, g in found.gradient.items())
        client.state = {**before, ALPHA: (before[ALPHA] - client.lr * slope).clamp(0, 1)}

    def mixed(self, state: State) -> State:
        """The state with the own model moved towards the copy (counters of norm layers stay its own)."""
        own = {n: t for n, t in state.items() if n.startswith(OWN) and t.is_floating_point()}
        return {**state, **{n: torch.lerp(t, state[n.removeprefix(OWN)], state[ALPHA]) for n, t in own.items()}}

    def effort(self, setting: Setting) -> float:
        return 2.0

    def personalise(self, client: Client) -> Box:
        if client.kind == UNLABELLED:  # it has no model of its own
            return
        shared = yield Collect(probabilities, split="test")
        client.state = swapped(client.state)
        own = yield Collect(probabilities, split="test")
        if self.adaptive:
            client.notes["alpha"] = float(client.state[ALPHA])
        client.answer = answer_of((shared.rows + own.rows) / 2, own.labels)
