"""Kept models answer the test images of another federation."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedbench.core import executors
from fedbench.core.answers import Answers, own_answers
from fedbench.core.client import Client, Collect
from fedbench.core.context import Context
from fedbench.core.federation import Federation
from fedbench.core.keep import How, Models, output_of
from fedbench.core.plan import Plan
from fedbench.core.start import new_client
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.specs import Setting

#: Who answers a client of the other federation: the client of its number, or what the server holds.
BY_CLIENT, BY_SERVER = "client", "server"


def who_answers(models: Models, clients: int) -> str:
    """BY_CLIENT if there are as many clients as the models', else BY_SERVER. Raises FedbenchError if those cannot."""
    if clients == len(models.clients):
        for i, how in enumerate(models.clients):
            if how.alone:
                raise FedbenchError(f"client {i} of the run cannot answer other images: {how.alone}")
        return BY_CLIENT
    shared = models.layer("server")
    missing = [name for name in models.network if name not in shared]
    if missing:
        raise FedbenchError(
            f"the run has {len(models.clients)} clients and the partition {clients}, so that one model must answer "
            f"for all of them, and the server has no whole one (it lacks {missing[0]})",
            f"take a partition of {len(models.clients)} clients",
        )
    if models.clusters:
        raise FedbenchError(
            f"the run has {len(models.clients)} clients and the partition {clients}, and nothing says which of the "
            f"{models.clusters} clusters' models serves which of them",
            f"take a partition of {len(models.clients)} clients",
        )
    return BY_SERVER


def answers(
    models: Models, network: nn.Module, method: Callable[[], object], federation: Federation, setting: Setting
) -> Answers:
    """What every client's whole test images are answered, with logits; `setting` is the run's, `method` gives its
    method where a client answers by more than its network."""
    by = who_answers(models, federation.clients)
    plan, context = Plan(setting, federation.n_train, federation.shape[:2]), Context.of(federation, setting)
    device = federation.images.device
    shared = models.layer("server")

    def client(i: int) -> Client:
        how = models.clients[i] if by == BY_CLIENT else How(None)
        state: State = models.state(i) if by == BY_CLIENT else shared
        it = new_client(i, 0, {n: t.to(device) for n, t in state.items()}, context, federation, plan)
        model = how.models[0] if len(how.models) == 1 else how.models
        extras = {n: t.to(device) for n, t in (models.extras(i) if by == BY_CLIENT else {}).items()}
        it.answers_by = Collect(output_of(how, method), extras, model=model)
        return it

    executor = executors.make("cores", network.to(device), federation, setting)
    try:
        everybody = [client(i) for i in range(federation.clients)]
        return own_answers(everybody, executor, ("plain",), lambda _: None, logits=True)["plain"]
    finally:
        executor.close()
