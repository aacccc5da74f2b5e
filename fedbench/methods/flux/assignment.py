"""How a client that comes after FLUX's clustering finds its cluster: a late one with labels, or one without any."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any

import numpy as np
from torch import Tensor

from fedbench.core.client import Client, Collect
from fedbench.core.server import Server
from fedbench.methods.flux.clustering import nearest
from fedbench.methods.flux.messages import Assignment
from fedbench.methods.parts.clustered import each_model, probabilities, side_by_side
from fedbench.methods.parts.description import scaled
from fedbench.rng import stream


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


def answer_at_random(client: Client) -> Generator[Collect, Any, None]:
    """Let each test image be answered by one of the models that the client was sent, drawn for it."""
    count = len(client.inbox.centroids)
    each = yield from each_model(client, count, probabilities, "test")
    images = np.arange(len(each.rows))
    rng = stream(client.setting.seed, "random cluster", client.index)
    client.answer = each.rows[images, rng.integers(count, size=len(images))]
