"""Momentum that lives: what an optimiser remembers of a client's model goes on in the client's next round.

It stays with the client beside its personal state (`Server.momenta`), apart from what methods see, and nobody sends it.
"""

from __future__ import annotations

from fedbench.core.client import Client, Train
from fedbench.core.state import State, name_in


def recall(client: Client, request: Train, memory: State) -> None:
    """Fill the optimiser's memory [...] with what it held after the client's last steps on this model."""
    kept = client.work.momenta or {}
    for name, place in memory.items() if kept else ():
        if (before := kept.get(_key(request, name))) is not None:
            place.copy_(before)


def remember(client: Client, request: Train, memory: State) -> None:
    """Keep what the optimiser holds after the client's steps, if momentum lives."""
    if client.work.momenta is not None:
        client.work.momenta |= {_key(request, name): t.detach().clone() for name, t in memory.items()}


def _key(request: Train, name: str) -> str:
    """Under which name it is kept what is remembered under `name` in a request's own models."""
    if request.momentum_of is None:
        return name
    assert isinstance(request.model, str), "several models have their own momenta"
    return name_in(request.momentum_of, name.removeprefix(f"{request.model}/"))
