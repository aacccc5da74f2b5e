"""How a client that comes after FLUX's clustering finds its cluster: a late one with labels, or one without any."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.methods.flux.clustering import nearest
from fedbench.methods.flux.messages import Assignment
from fedbench.methods.parts.clustered import side_by_side
from fedbench.methods.parts.description import scaled


def lead(server: Server, client: Client) -> None:
    """Send a client, which holds theta*, what it finds its cluster by."""
    memory = server.memory
    client.state = {**client.state, **side_by_side(server.models)}
    client.inbox = Assignment(memory.bounds, memory.scaling, memory.centroids)


def choose(client: Client, d: Tensor, components: int, moments: Collection[str]) -> int:
    """The cluster whose centroid is nearest to the client's descriptor, of which one without labels has the first
    entries alone (Eq. 9). The client holds that cluster's model from then on."""
    at: Assignment = client.inbox
    point = scaled(at.scaling, d.cpu().numpy()[None], components, client.context.classes, moments)
    m = int(nearest(point, at.centroids.cpu().numpy()[:, : point.shape[1]])[0])
    client.put(client.model(str(m)))
    return m
