"""A round under way, and what is counted of it client by client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.state import Mean, State


@dataclass
class Tally:
    """Sums over the clients of a round that are through with their local work, in the order of the cohort."""

    images: int = 0  #: processed
    n_train: int = 0  #: training images
    loss: float = 0.0  #: times training images
    seconds: float = 0.0
    up: int = 0  #: bytes that they sent
    down: int = 0  #: ... and were sent
    parts: dict[str, float] = field(default_factory=lambda: {"network": 0.0})  #: seconds by part of the work

    def count(self, client: Client, up: int) -> None:
        """Count a client and the bytes that it sends."""
        self.images += client.work.processed
        self.n_train += client.n_train
        self.loss += client.n_train * client.loss
        self.seconds += client.work.seconds
        self.up += up
        for part, seconds in client.work.parts.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds


@dataclass
class Round:
    """A round under way: block after block of its cohort enters, trains and leaves. Of those that have left no more is
    there than what the method needs for the server's step."""

    server: Server  #: the server's copy to be brought to the end of the round
    cohort: list[int]
    communicates: bool
    mean: Mean | None  #: of the uploads, where the server needs no more of them
    seconds: float  #: spent around the local work
    tally: Tally = field(default_factory=Tally)
    clients: list[Client] = field(default_factory=list)  #: ... else those that have left, with their uploads
    trained: dict[int, State] = field(default_factory=dict)  #: what answers for clients that answer after local work
    line: dict[str, Any] = field(default_factory=dict)  #: of the run's `rounds` table
    accuracy: float | None = None  #: average accuracy if the round was evaluated
