"""Which values of a grid did best on images held back from training. Test images choose nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedbench.engine.grid import Point
from fedbench.reports.runs import Run
from fedbench.store import Store


@dataclass(frozen=True)
class Score:
    """The validation accuracy of a point after its runs' last rounds."""

    point: Point
    seeds: int
    mean: float
    std: float | None  #: over seeds (ddof 1); None of one


def score(point: Point, store: Store) -> Score | None:
    """None where a run is not there, or held nothing back."""
    accuracies = []
    for wanted in point.runs:
        artifact = store.whole(wanted.spec)
        by_round = {} if artifact is None else Run(artifact, store).metrics.series("validation_accuracy")
        if not by_round:
            return None
        accuracies.append(by_round[max(by_round)])
    return Score(point, len(accuracies), fmean(accuracies), stdev(accuracies) if len(accuracies) > 1 else None)


def best(points: Iterable[Point], store: Store) -> list[Score]:
    """The best point of each method in each partition, as far as there are scores; of equal ones the first."""
    scores: dict[tuple[str, str], list[Score]] = {}
    for one in (score(point, store) for point in points):
        if one is not None:
            scores.setdefault((one.point.method, repr(sorted(one.point.partition.items()))), []).append(one)
    return [max(of, key=lambda one: one.mean) for of in scores.values()]


def runs(points: Sequence[Point], store: Store) -> list[Run]:
    """The runs of the points that are there."""
    artifacts = (store.whole(wanted.spec) for point in points for wanted in point.runs)
    return [Run(artifact, store) for artifact in artifacts if artifact is not None]
