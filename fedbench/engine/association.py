"""Which cluster serves a client whose distribution is known, after its data have drifted between training and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def known_association(
    assigned: Mapping[int, int], groups: Sequence[int], test_groups: Sequence[int]
) -> Mapping[int, int]:
    """Client -> cluster, by client -> cluster after training and each client's true group [M] in training and test.

    Client i is served by the cluster of most clients that last trained on its test distribution (ties: the smallest
    number; flux/protocol.md#drifting-data), or where nobody did by its own (where the released code has the nearest
    centroid, which not every method has).
    """
    if not assigned or test_groups == groups:
        return assigned
    votes: dict[int, Counter[int]] = {}
    for i, m in sorted(assigned.items()):
        votes.setdefault(groups[i], Counter())[m] += 1
    cluster_of = {g: min(count, key=lambda m: (-count[m], m)) for g, count in votes.items()}
    return {**assigned, **{i: cluster_of[group] for i, group in enumerate(test_groups) if group in cluster_of}}
