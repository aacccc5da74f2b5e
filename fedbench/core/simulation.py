"""The simulated federation of one run: initial state, clients, checked calls of the method's hooks, and traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedbench.core import message
from fedbench.core.client import UNLABELLED, Client, Context, Work
from fedbench.core.executors import Executor, one_thread
from fedbench.core.federation import Federation
from fedbench.core.hooks import words
from fedbench.core.method import Method
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.state import State, as_model, check_state, size_in_bytes, state_of
from fedbench.core.usage import Clock, fits
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded
from fedbench.rng import stream
from fedbench.specs import Setting


def initialise(
    method: Method,
    build: Callable[[], nn.Module],
    federation: Federation,
    setting: Setting,
    context: Context | None = None,
) -> tuple[nn.Module, State]:
    """The network and the initial state of all clients, which depend only on the seed for initial weights. `context` is
    the run's; if None, it is made here.

    Keeps the global random state. Raises FedbenchError if the method does not support the data.
    """
    if federation.multi_label and not method.takes_multi_label:
        raise FedbenchError(
            f"{method.name} works with one class an image, and these images have {federation.classes} labels each",
            "choose another method ('fedavg', say) or another data set",
        )
    if federation.vectors and not method.takes_vectors:
        raise FedbenchError(
            f"{method.name} works with the pixels of images, and these data are vectors",
            "choose another method ('fedavg', say) or another data set",
        )
    model, context, seed = build(), context or Context.of(federation, setting), setting.initial_seed
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
    """Learning rate of round t (1-based): constant, or a cosine that would reach zero after the last round."""
    if setting.schedule == "constant":
        return setting.lr
    return 0.5 * setting.lr * (1 + math.cos(math.pi * (t - 1) / setting.rounds))


def new_client(
    index: int, t: int, state: State, context: Context, federation: Federation, plan: Plan, phase: int = 0
) -> Client:
    """Client `index` at the start of round t, with the state that it receives. `phase` is the start of its request
    count, which keys its random streams."""
    stage = context.stage(t)
    rows, held_back = (side[index] for side in federation.stages[stage])
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
    """Remove a client's training and validation data."""
    client.work.rows, client.work.validation_rows = client.work.rows[:0], client.work.validation_rows[:0]
    client.class_counts = torch.zeros_like(client.class_counts)


def bytes_down(server: Server, client: Client, is_personal: Callable[[str], bool]) -> int:
    """Bytes sent to a client: shared tensors of its state, models of clusters, and its message. A tensor that occurs
    twice counts once; the common initial state is not sent."""
    shared = {*server.shared, *server.model(client.index)}
    sent = {
        name: t
        for name, t in client.state.items()
        if not is_personal(name) and (name in shared or name not in server.initial)
    }
    return message.size((sent, client.inbox))


def bytes_up(server: Server, client: Client, is_personal: Callable[[str], bool]) -> int:
    """Bytes that a client sends: the shared tensors that it changed, and its message."""
    shared = {*server.shared, *server.model(client.index)}
    changed = {
        name: t
        for name, t in client.state.items()
        if name in shared and not is_personal(name) and t is not client.received.get(name)
    }
    return message.size((changed, client.upload))


#: Start of the request count when a client personalises, and when it answers the server's questions.
PERSONALISING, SURVEYING = 1000, 2000
#: Limit in bytes for the initial states of the clients that exist at the same time.
BLOCK_BYTES = 128 << 20


class Simulation:
    """A run's clients, method and executor."""

    def __init__(
        self,
        setting: Setting,
        method: Method,
        federation: Federation,
        executor: Executor,
        plan: Plan,
        initial: State,
        context: Context | None = None,
        failure_file: Path | None = None,
    ) -> None:
        self.setting, self.method, self.federation = setting, method, federation
        self.executor, self.plan = executor, plan
        self.device = federation.images.device
        self.clock = Clock(self.device)
        self.context = context or Context.of(federation, setting)
        self.failure_file = failure_file  #: with --debug, where to write the step at which a client fails
        self.shared: State = {}  #: the server's first `shared`; its names, shapes and types must stay
        self.client_bytes = size_in_bytes(initial)
        personal = size_in_bytes({name: t for name, t in initial.items() if method.is_personal(name)})
        #: Selects the tensors that stay in host memory between updates, if not all clients' fit on the device.
        self.offloads = None if fits(personal * federation.clients, self.device) else method.is_personal

    def blocks(self, who: Sequence[int]) -> list[Sequence[int]]:
        """Split these clients, in their order, into blocks that exist at the same time: enough to keep the workers
        busy, or if that is more, as many as fit into BLOCK_BYTES."""
        size = max(4 * self.executor.width, BLOCK_BYTES // self.client_bytes)
        return [who[at : at + size] for at in range(0, len(who), size)]

    def client(self, index: int, state: State, t: int, phase: int = 0) -> Client:
        client = new_client(index, t, state, self.context, self.federation, self.plan, phase)
        client.work.offloads, client.work.failure_file = self.offloads, self.failure_file
        return client

    def entering(self, server: Server, index: int) -> Client:
        """A client at the start of the server's round, with what the method sends it."""
        client = self.client(index, server.view(index), server.round)
        if self.setting.momentum_lives:
            client.work.momenta = dict(server.momenta.get(index, {}))
        self.change(self.method.broadcast, server, client)
        self.check_message(client, "inbox")
        client.received = dict(client.state)
        return client

    def answering(self, server: Server, index: int, kind: str, t: int, state: State | None = None) -> Client:
        """A client for evaluation, with `state`, or else with what the method serves it."""
        client = self.client(index, server.view(index) if state is None else state, t, PERSONALISING)
        client.kind = kind
        if kind == UNLABELLED:
            without_labels(client)
            client.state = {**server.initial, **server.shared}
        if state is None:
            self.change(self.method.serve, server, client)
            self.check_message(client, "inbox")
            client.received = dict(client.state)
        return client

    def change(self, hook: Callable[..., None], *arguments: Any) -> None:
        """Call a hook that changes the client or else the server in its arguments. Raises FedbenchError if it returns a
        value, which would be lost, or leaves an invalid state."""
        result: Any = hook(*arguments)  # type: ignore[func-returns-value]
        if result is not None:
            raise FedbenchError(
                f"{self.method.name}: {hook.__name__} returns a {type(result).__name__}, and what is returned is lost",
                "change the server or the client that it is handed, and return nothing",
            )
        where, last = f"{self.method.name}: {hook.__name__}", arguments[1] if len(arguments) > 1 else None
        server: Server = arguments[0]
        if isinstance(last, Client):
            check_state(last.state, server.initial, f"{where} leaves client.state")
        else:
            server.check_states(self.shared, where)

    def given(self, value: Any, kind: Any, hook: str, wanted: str) -> Any:
        """Return the value of a hook. Raises FedbenchError if it does not have this type."""
        if not isinstance(value, kind):
            raise FedbenchError(f"{self.method.name}: {hook} returns {words(value)}, not {wanted}")
        return value

    def check_message(self, client: Client, name: str) -> None:
        """Raise FedbenchError unless the client's `inbox` or `upload` is a message."""
        message.check(getattr(client, name), f"{self.method.name}: client.{name}")


def survey(run: Simulation, server: Server, who: Sequence[int], t: int) -> tuple[int, int]:
    """Ask these clients the server's questions after round t. Returns bytes up and down, which after the last round
    include sending the clients their state, since no later round does."""
    up = down = 0
    k = 0
    while (question := run.method.ask(server, t, k)) is not None:
        with run.clock.phase("survey"):
            clients = [run.client(i, server.view(i), t, SURVEYING + 1000 * k) for i in who]
            for client in clients:
                client.inbox = question
                run.check_message(client, "inbox")
                if t == run.setting.rounds and k == 0:
                    down += bytes_down(server, client, run.method.is_personal)
                else:
                    down += message.size(question)
            run.executor.run(clients, run.method.reply)
            with one_thread():
                for client in clients:
                    run.check_message(client, "upload")
                    up += message.size(client.upload)
                    personal = {n: t for n, t in client.state.items() if run.method.is_personal(n)}
                    server.keep(client.index, personal)
                run.change(run.method.learn, server, clients, t)
        k += 1
    return up, down
