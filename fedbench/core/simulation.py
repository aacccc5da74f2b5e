"""One run's federation as it is simulated: its clients, and the method's hooks called with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbench.core import message
from fedbench.core.client import Client
from fedbench.core.clock import Clock
from fedbench.core.context import Context
from fedbench.core.executors import Executor
from fedbench.core.federation import Federation
from fedbench.core.hooks import Hooks
from fedbench.core.memory import fits
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.start import new_client, without_labels
from fedbench.core.state import State, check_state, size_in_bytes
from fedbench.core.update import words
from fedbench.core.who import UNLABELLED
from fedbench.errors import FedbenchError
from fedbench.specs import Setting

#: Where a client's count of requests starts when it personalises, and when the server asks it.
PERSONALISING, SURVEYING = 1000, 2000
#: What the clients that are there together may hold at their start, in bytes.
BLOCK_BYTES = 128 << 20


class Simulation:
    """The clients of a run, a method and an executor that runs its client updates."""

    def __init__(
        self,
        setting: Setting,
        method: Hooks,
        federation: Federation,
        executor: Executor,
        plan: Plan,
        initial: State,
        context: Context | None = None,
    ) -> None:
        self.setting, self.method, self.federation = setting, method, federation
        self.executor, self.plan = executor, plan
        self.device = federation.images.device
        self.clock = Clock(self.device)
        self.context = context or Context.of(federation, setting)
        self.shared: State = {}  #: what the server began with, whose names, shapes and types stay
        self.client_bytes = size_in_bytes(initial)
        personal = size_in_bytes({name: t for name, t in initial.items() if method.is_personal(name)})
        #: What of a client's state waits in host memory while others are at work, if not all fit on the device.
        self.puts_by = None if fits(personal * federation.clients, self.device) else method.is_personal

    def blocks(self, who: Sequence[int]) -> list[Sequence[int]]:
        """These clients in parts that are there together, in their order: as many as keep the workers busy, or whose
        states fit into BLOCK_BYTES if those are more."""
        size = max(4 * self.executor.width, BLOCK_BYTES // self.client_bytes)
        return [who[at : at + size] for at in range(0, len(who), size)]

    def client(self, index: int, state: State, t: int, phase: int = 0) -> Client:
        client = new_client(index, t, state, self.context, self.federation, self.plan, phase)
        client.work.puts_by = self.puts_by
        return client

    def answering(self, server: Server, index: int, kind: str, t: int, state: State | None = None) -> Client:
        """A client that is to answer from `state`, else from what the method serves it."""
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
        """Call a hook that changes what it is handed, a client or else the server. Raises FedbenchError if it returns
        something, as nobody takes it, and for a state that is none afterwards."""
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
        """What a hook returns. Raises FedbenchError unless it is of the kind that is `wanted`."""
        if not isinstance(value, kind):
            raise FedbenchError(f"{self.method.name}: {hook} returns {words(value)}, not {wanted}")
        return value

    def check_message(self, client: Client, name: str) -> None:
        """Raise FedbenchError unless the client's `inbox` or `upload` is a message."""
        message.check(getattr(client, name), f"{self.method.name}: client.{name}")
