"""What the server of a federation knows: the shared state, and each client's personal state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedbench.core.state import State, compact


@dataclass
class Server:
    """State between rounds.

    `shared`: one copy of what the method sends around; `memory`: what the server keeps to itself. `personal[i]`: what
    client i keeps and never sends; a client that has not trained yet has no entry and stands at `initial`, the start
    that all have in common.
    """

    initial: State
    shared: State
    personal: dict[int, State] = field(default_factory=dict)
    round: int = 0  #: completed rounds
    memory: State = field(default_factory=dict)  #: what the server alone knows, such as moments of its optimiser

    def copy(self, round: int) -> Server:
        """The server at the end of `round`, to be worked on: new dictionaries, the same tensors."""
        return Server(self.initial, dict(self.shared), dict(self.personal), round, dict(self.memory))

    def forget(self, is_personal: Callable[[str], bool]) -> None:
        """Drop what clients hold beyond their personal state: their copies from rounds that did not communicate."""
        kept = {i: {n: t for n, t in state.items() if is_personal(n)} for i, state in self.personal.items()}
        self.personal = {i: state for i, state in kept.items() if state}

    def tensors(self) -> State:
        """Everything that a checkpoint must hold (the initial state comes again from the seed)."""
        out = {f"shared/{name}": t for name, t in self.shared.items()}
        out.update({f"memory/{name}": t for name, t in self.memory.items()})
        for i, state in self.personal.items():
            out.update({f"personal/{i}/{name}": t for name, t in state.items()})
        return out

    def restore(self, tensors: State) -> None:
        """Inverse of `tensors`."""
        self.shared, self.personal, self.memory = {}, {}, {}
        for key, tensor in tensors.items():
            slot, rest = key.split("/", 1)
            if slot in ("shared", "memory"):
                getattr(self, slot)[rest] = tensor
            else:
                index, name = rest.split("/", 1)
                self.personal.setdefault(int(index), {})[name] = tensor

    def keep(self, client: int, state: State) -> None:
        """Make this client i's personal state. What it merely received (the same tensor objects) is left out."""
        common = {**self.initial, **self.shared}
        own = {name: compact(t) for name, t in state.items() if t is not common.get(name)}
        if own:
            self.personal[client] = own
        else:
            self.personal.pop(client, None)

    def view(self, client: int) -> State:
        """What client i holds: shared laid over initial, its personal state over both.

        The dictionary is new, the tensors are not: clients that share a body hold the same tensor objects.
        """
        return {**self.initial, **self.shared, **self.personal.get(client, {})}
