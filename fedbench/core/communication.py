"""Bytes between server and clients, counted from what goes to and fro, uncompressed."""

from __future__ import annotations

from collections.abc import Callable

from fedbench.core import message
from fedbench.core.client import Client
from fedbench.core.server import Server


def bytes_down(server: Server, client: Client, is_personal: Callable[[str], bool]) -> int:
    """What a client is sent: the shared tensors of the state that it starts from, its cluster's model or several
    models, and its message. A tensor that it holds in two places is sent once; the common start is nobody's to send."""
    shared = {*server.shared, *server.model(client.index)}
    sent = {
        name: t
        for name, t in client.state.items()
        if not is_personal(name) and (name in shared or name not in server.initial)
    }
    return message.size((sent, client.inbox))


def bytes_up(server: Server, client: Client, is_personal: Callable[[str], bool]) -> int:
    """What a client sends: what it has changed of the shared tensors, and its message."""
    shared = {*server.shared, *server.model(client.index)}
    changed = {
        name: t
        for name, t in client.state.items()
        if name in shared and not is_personal(name) and t is not client.received.get(name)
    }
    return message.size((changed, client.upload))
