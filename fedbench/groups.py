"""Group values by key, in their original order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def by_key(pairs: Iterable[tuple[K, V]], *, once: bool = False) -> dict[K, list[V]]:
    """Key -> list of its values, keys and values in the order of the pairs; `once` removes repeated values."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: list(dict.fromkeys(values)) for key, values in groups.items()} if once else groups
