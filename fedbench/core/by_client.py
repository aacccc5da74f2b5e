"""Rows of a federation, client by client: one tensor, and where each client's part of it lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor


class ByClient(Sequence[Tensor]):
    """[M] int64 rows of each client, cut when they are asked for: a hundred thousand tensors take seconds to make, and
    much more memory than what is in them."""

    def __init__(self, rows: Tensor, ends: np.ndarray) -> None:
        self.rows = rows  #: [n] of all clients, client after client
        self.ends = ends  #: [M + 1] client i's are those from ends[i] up to ends[i + 1]

    @classmethod
    def of(cls, chosen: np.ndarray, client: np.ndarray, clients: int, device: torch.device | str) -> ByClient:
        """The rows [R] that are chosen; `client` [R] rises."""
        rows = np.flatnonzero(chosen)
        ends = np.searchsorted(client[rows], np.arange(clients + 1))
        return cls(torch.from_numpy(rows).to(device), ends)

    def moved(self, by: int) -> ByClient:
        """The same clients where their federation begins at row `by`."""
        return ByClient(self.rows + by, self.ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        return self.rows[self.ends[i] : self.ends[i + 1]]


def moved(clients: Iterable[Tensor], by: int) -> Sequence[Tensor]:
    """The rows of each client where their federation begins at row `by`."""
    return clients.moved(by) if isinstance(clients, ByClient) else [rows + by for rows in clients]


def sizes(clients: Iterable[Tensor]) -> list[int]:
    """[M] how many rows each client has."""
    if isinstance(clients, ByClient):
        of_each: list[int] = np.diff(clients.ends).tolist()
        return of_each
    return [len(rows) for rows in clients]
