"""A client's SGD once more, by torch.optim on a module: what methods with models of their own are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core import executors
from fedbench.core.augment import to_input
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.start import initialise
from fedbench.core.state import state_of
from fedbench.core.trainer import Trainer
from fedbench.methods.base import Method
from fedbench.specs import Setting

State = dict[str, Tensor]


def trained(how: Method, data: Federation, s: Setting, where: Path, executor: str = "sequential") -> Trainer:
    """A run of the small network with a batch norm, to its end."""
    model, initial = initialise(how, lambda: small(norm=True), data, s)
    where.mkdir(parents=True, exist_ok=True)
    runner = executors.make(executor, model, data, s)
    it = Trainer(s, how, data, model, initial, runner, Plan(s, data.n_train, data.shape[:2]), Checkpoint(where))
    try:
        it.run()
    finally:
        runner.close()
    return it


def images(data: Federation, rows: Tensor) -> Tensor:
    """Network input of these rows."""
    return to_input(data.images[rows])


def started() -> State:
    """The network's tensors before the first round."""
    return state_of(small(norm=True))


def of(state: Mapping[str, Tensor], prefix: str = "") -> State:
    """The tensors of one network within a state."""
    return {name: state[prefix + name] for name in small(norm=True).state_dict()}


def probabilities(state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Class probabilities of the network with this state, in evaluation mode."""
    model = small(norm=True)
    model.load_state_dict(dict(state))
    with torch.no_grad():
        return model.eval()(x).softmax(1)


def descended(
    state: Mapping[str, Tensor],
    data: Federation,
    rows: Tensor,
    epochs: Sequence[Sequence[np.ndarray]],
    s: Setting,
    pull: float = 0.0,
    anchor: Mapping[str, Tensor] | None = None,
    linear: Mapping[str, Tensor] | None = None,
) -> State:
    """The network's state after these batches (positions in `rows`) of these epochs, the optimiser anew in each.
    The loss may have a proximal term, and a linear one: the product of the parameters and `linear`."""
    model = small(norm=True).train()
    model.load_state_dict(dict(state))
    for batches in epochs:
        optimiser = torch.optim.SGD(model.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
        for position in batches:
            chosen = rows[torch.from_numpy(position)]
            loss = F.cross_entropy(model(images(data, chosen)), data.labels[chosen])
            for name, p in model.named_parameters():
                if anchor is not None:
                    loss = loss + pull / 2 * (p - anchor[name]).square().sum()
                if linear is not None:
                    loss = loss + (p * linear[name]).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return state_of(model)


def averaged(states: Sequence[State], weights: Sequence[int]) -> State:
    """The weighted mean of networks (counters: the first's)."""
    total = sum(weights)
    return {
        name: sum(w / total * state[name].double() for w, state in zip(weights, states, strict=True)).float()  # type: ignore[union-attr]
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }
