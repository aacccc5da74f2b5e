"""Known association: which cluster serves a client after its data have drifted between training and test."""

from __future__ import annotations

from fedbench.engine.association import known_association

ASSIGNED = {0: 2, 1: 2, 2: 1, 3: 0, 4: 1}


def test_where_nothing_drifts_all_stay() -> None:
    assert known_association(ASSIGNED, [0] * 5, [0] * 5) is ASSIGNED


def test_the_cluster_of_most_that_trained_on_the_test_distribution_serves() -> None:
    """Ties: the smallest number; where nobody trained on it, the client's own."""
    assert known_association(ASSIGNED, [5, 5, 5, 6, 6], [6, 5, 9, 5, 6]) == {0: 0, 1: 2, 2: 1, 3: 2, 4: 0}
