"""Values that a table's cells choose for themselves, such as the learning rate: every combination is trained under the
first seed, and what does best on images that clients hold back is taken for all seeds. Test images choose nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.reports.status.index import Index, Record, State

#: What the values are chosen by.
METRIC = "validation_accuracy"


def points(tune: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values."""
    return [dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values())]


def best(trials: Sequence[Record | None], index: Index) -> int | None:
    """The place of the run with the highest validation accuracy after its last round, of equal ones the first; the
    first one that is there, if its method answers without scores, so that nothing can be chosen.

    None while one is neither done nor failed, as one that diverges does, and where all have failed.
    """
    scores: dict[int, float] = {}
    for place, record in enumerate(trials):
        if record is None or (record.artifact is None and record.state is not State.FAILED):
            return None
        if record.artifact is not None:
            by_round = index.metrics(record).series(METRIC)
            scores[place] = by_round[max(by_round)] if by_round else -1.0
    return max(scores, key=scores.__getitem__, default=None)
