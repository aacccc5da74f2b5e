"""Where clients' states wait while others are at work: on the device, or where not all fit in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbench.core.client import Client


def fetch(clients: Sequence[Client], device: torch.device) -> None:
    """Bring what the clients hold to the device."""
    for client in clients:
        client.work.home = client.state
        # A tensor that a client holds as it was received stays one tensor.
        brought = {id(t): fetched(t, device) for s in (client.state, client.received) for t in s.values()}
        client.state = {name: brought[id(t)] for name, t in client.state.items()}
        client.received = {name: brought[id(t)] for name, t in client.received.items()}


def put_by(clients: Sequence[Client]) -> None:
    """Send what is to wait in host memory there; what has not changed is still where it was."""
    for client in clients:
        if (waits := client.work.puts_by) is not None:
            same = {n for n, t in client.state.items() if n in client.work.home and t is client.received.get(n)}
            client.state = {
                n: (client.work.home[n] if n in same else _to_host(t)) if waits(n) else t
                for n, t in client.state.items()
            }
            client.received = {n: t for n, t in client.received.items() if not waits(n)}


def fetched(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; one that lies there already stays the same."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def _to_host(tensor: Tensor) -> Tensor:
    """The tensor in host memory, pinned, so that a GPU can fetch it quickly when its client is next at work."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor
