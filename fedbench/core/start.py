"""What clients start from: the network and the state of a run, and a client at the start of a round."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from fedbench.core.client import Client
from fedbench.core.context import Context
from fedbench.core.federation import Federation
from fedbench.core.hooks import Hooks
from fedbench.core.plan import Plan
from fedbench.core.state import State, as_model, check_state, state_of
from fedbench.core.update import words
from fedbench.core.work import Work
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded
from fedbench.rng import stream
from fedbench.specs import Setting


def initialise(
    method: Hooks, build: Callable[[], nn.Module], federation: Federation, setting: Setting
) -> tuple[nn.Module, State]:
    """The network and the state that all clients start from, from the seed of the initial weights alone.

    The global random state is left as it was. Raises FedbenchError for a method that cannot work with such labels.
    """
    if federation.multi_label and not method.takes_multi_label:
        raise FedbenchError(
            f"{method.name} works with one class an image, and these images have {federation.classes} labels each",
            "choose another method ('fedavg', say) or another data set",
        )
    model, context, seed = build(), Context.of(federation, setting), setting.initial_seed
    with seeded(seed, "method"):
        model = method.build(model, context)
    if not isinstance(model, nn.Module):
        raise FedbenchError(f"{method.name}: build returns {words(model)}, not a network", "return the nn.Module")
    generator = torch.Generator().manual_seed(int(stream(seed, "variables").integers(2**62)))
    further = {k: v for own in method.personal_models for k, v in as_model(state_of(model), own).items()}
    own = method.variables(model, context, generator)
    check_state(own, {}, f"{method.name}: variables returns its tensors")
    variables = {**further, **own}
    device = federation.images.device
    model = model.to(device)
    return model, {**state_of(model), **{name: t.to(device) for name, t in variables.items()}}


def learning_rate(setting: Setting, t: int) -> float:
    """Of round t (1-based): constant, or a cosine over the rounds that would reach zero after the last."""
    if setting.schedule == "constant":
        return setting.lr
    return 0.5 * setting.lr * (1 + math.cos(math.pi * (t - 1) / setting.rounds))


def new_client(
    index: int, t: int, state: State, context: Context, federation: Federation, plan: Plan, phase: int = 0
) -> Client:
    """Client `index` at the start of round t, with the state that it has received; `phase` is where its count of
    requests begins, which keys its random streams."""
    stage = context.stage(t)
    rows, held_back = (side[index] for side in federation.at(stage))
    counts = federation.counts(rows) if stage else federation.class_counts[index]
    return Client(
        index=index,
        round=t,
        lr=learning_rate(context.setting, t),
        context=context,
        class_counts=counts,
        work=Work(federation, plan, rows, federation.test[index], held_back, phase=phase, collects=phase),
        state=state,
        received=dict(state),
    )


def without_labels(client: Client) -> None:
    """Leave a client nothing of what it could train on."""
    client.work.rows, client.work.validation_rows = client.work.rows[:0], client.work.validation_rows[:0]
    client.class_counts = torch.zeros_like(client.class_counts)
