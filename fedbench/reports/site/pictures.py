"""What runs' pages show: pictures, which are figures of `reports.figures` as SVG files, and the numbers of clients. The
pages of several runs share a picture, which takes far longer than a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports.compare.comparison import Comparison, Group
from fedbench.reports.site.page import Picture
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs
from fedbench.results.run import Run
from fedbench.specs import PartitionSpec
from fedbench.store import Store

#: Most lines in a picture of curves: more have no colour of their own.
LINES = 8


@dataclass(frozen=True)
class _Request(figures.Request):
    """A request for given runs, which need not be selected."""

    given: Sequence[Run] = ()

    def runs(self) -> list[Run]:
        return [*self.given]


def shared(side: Comparison) -> Iterator[tuple[list[Group], list[Picture]]]:
    """All groups of runs, in parts of one data set and partition that share these pictures: the curves of accuracy and,
    if there is any, training loss, with a line per group. Groups of similar accuracy are in one part."""
    for groups in side.places.values():
        ranked, parts = sorted(groups, key=lambda group: -_accuracy(side, group)), -(-len(groups) // LINES)
        for k in range(parts):
            first, end = k * len(groups) // parts, (k + 1) * len(groups) // parts
            which = f": places {first + 1} to {end} of {len(groups)} by accuracy" if parts > 1 else ""
            runs = [run for group in ranked[first:end] for run in group if run.id in side.metrics]
            yield ranked[first:end], list(_curves(runs, which))


def _accuracy(side: Comparison, group: Group) -> float:
    """The first number of the comparison, accuracy or AUC; below all if the group has none."""
    value = side.value(group, side.numbers[0]) if side.numbers else None
    return value.mean if value else -math.inf


def _curves(runs: Sequence[Run], which: str) -> Iterator[Picture]:
    for title, metric in (("Learning", None), ("Loss", "train_loss")) if runs else ():
        file = f"curve-{runs[0].id}{'-loss' if metric else ''}.svg"
        yield _picture("curves", file, title + which, _request(runs[0].store, given=runs, metric=metric))


def of_partition(spec: PartitionSpec, store: Store) -> Picture:
    """The samples of each class that each client holds."""
    file, title = f"partition-{spec.id}.svg", "Partition"
    if store.get(spec) is None:  # as for a shipped run, whose data are not in its pack
        return Picture(file, title, words=f"Partition {spec.id} is not in this store.")
    return _picture("partition", file, title, _request(store, partition=spec.id))


def clients(run: Run) -> tuple[list[figures.Row], str]:
    """The accuracy (else the AUC) of each client of a run, the worst first, and all of them in words. Raises
    FedbenchError if the run has neither."""
    request = _request(run.store, given=[run])
    rows = figures.kind_of(figures.load("clients")).rows(request)
    return sorted(rows, key=lambda row: row["value"]), _sentence(request.said)


def _request(store: Store, **options: object) -> _Request:
    return _Request(Frame(store, Packs([])), **options)  # type: ignore[arg-type]


def _picture(figure: str, file: str, title: str, request: _Request) -> Picture:
    kind = figures.kind_of(figures.load(figure))
    try:
        rows = kind.rows(request)
        points = Counter(row["line"] for row in rows if "line" in row)
        if points and max(points.values()) == 1:
            once = f"{title}: measured after one round only; 'fedbench train --every 1' gives a curve."
            return Picture(file, title, words=once)
        content = figures.render(kind, rows, "svg", figures.Look(title=False)).decode()
    except FedbenchError as error:
        return Picture(file, title, words=str(error))
    return Picture(file, title, content, _sentence(request.said))


def _sentence(said: Sequence[str]) -> str:
    first, *rest = map(str.strip, said)
    return ": ".join(filter(None, (first, "; ".join(rest))))
