"""The pictures of a run: its learning curve, its clients' accuracies, and its partition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.partitions import names
from fedbench.partitions.names import called
from fedbench.partitions.view import class_counts
from fedbench.reports.figures.kinds.clients import DEFAULTS as OF_CLIENTS
from fedbench.reports.figures.kinds.learning import DEFAULTS, VIEWS, by_round
from fedbench.reports.site.page import e
from fedbench.reports.site.svg import Points, bars, lines, svg_cells

if TYPE_CHECKING:
    from fedbench.specs import PartitionSpec
    from fedbench.store import Store


#: Maximal number of non-empty cells in a picture of a partition, which limits the size of the page.
CELLS = 3000
#: At most so many clients are named below a picture.
NAMED = 40


def learning(own: Metrics, others: Sequence[Metrics], left: int = 0) -> str:
    """The learning curve of a run in front of those of its other seeds, as HTML; a text if none was measured. `left`:
    how many more seeds there are."""
    metric = next((name for name in DEFAULTS if name in own.names), DEFAULTS[0])
    view = max(VIEWS, key=lambda one: len(own.series(metric, one)))
    label = f"{metric.replace('_', ' ')}, %"
    drawn = _curve(own, others, metric, view, 100, label)
    if not drawn:
        return f"<p>No {e(metric.replace('_', ' '))} was measured by round.</p>"
    few = len(_points(own, metric, view, 100)) < 3
    notes = ["Test images are cropped as in training; the numbers above are of whole ones."] * (view != "plain")
    notes += ["fedbench train --every 1 evaluates every round."] * few
    grey = f"{len(others)} of the {len(others) + left:,} other seeds" if left else "the other seeds"
    notes += [f"Grey: {grey}."] * bool(others)
    return f"<h3>{e(label)}</h3>{drawn}" + (f"<p>{e(' '.join(notes))}</p>" if notes else "")


def loss(own: Metrics, others: Sequence[Metrics]) -> str:
    """The curve of the training loss as HTML; "" if the run has none."""
    drawn = _curve(own, others, "train_loss", "", 1, "training loss")
    return f"<h3>training loss, nats</h3>{drawn}" if drawn else ""


def _curve(own: Metrics, others: Sequence[Metrics], metric: str, view: str, factor: float, label: str) -> str:
    line = _points(own, metric, view, factor)
    rest = [points for other in others if (points := _points(other, metric, view, factor))]
    return lines(f"{label}, by round", line, rest, "round") if line else ""


def _points(metrics: Metrics, metric: str, view: str, factor: float) -> Points:
    return [(t, factor * value) for t, value in by_round(metrics, metric, view).items() if math.isfinite(value)]


def clients(metrics: Metrics, trainees: int, groups: Sequence[str] = ()) -> str:
    """The accuracy (else the AUC) of each client on its test images as HTML; bars of clients after the first `trainees`
    are hollow; `groups`: names of clients that are natural ones. "" if not measured."""
    metric = next((name for name in OF_CLIENTS if name in metrics.names), "")
    values = 100 * metrics.per_client(metric, "plain") if metric else np.zeros(0)
    if not np.isfinite(values).any():
        return ""
    unseen = [client >= trainees for client in range(len(values))]
    titles = [
        f"{called(groups, c)}{', never trains' * out}: {v:.2f} %"
        for (c, v), out in zip(enumerate(values), unseen, strict=True)
    ]
    trained = values[np.isfinite(values) & ~np.array(unseen)]
    what = metric.replace("_", " ").replace("auc", "AUC")
    drawn = bars(f"{what} of each client, %", values.tolist(), titles, unseen, "client")
    words = [*_spread(trained, any(unseen)), *_numbers(groups)]
    return f"<h3>{e(what)}, %</h3>{drawn}<p>{e(' '.join(words))}</p>"


def _numbers(groups: Sequence[str]) -> list[str]:
    """Which client is which group; of many the first ones."""
    shown = ", ".join(f"{client} {name}" for client, name in enumerate(groups[:NAMED]))
    return [f"Clients: {shown}{f' and {len(groups) - NAMED:,} more' if len(groups) > NAMED else ''}."] * bool(groups)


def _spread(values: np.ndarray, unseen: bool) -> list[str]:
    if not len(values):
        return []
    std = f" ± {values.std(ddof=1):.2f} over clients" if len(values) > 1 else ""
    words = [f"Unweighted mean (dashed) {values.mean():.2f}{std}, worst {values.min():.2f}, best {values.max():.2f}."]
    return words + ["Hollow: clients that never train."] * unseen


def partition(spec: PartitionSpec, store: Store) -> str:
    """The number of samples per client and class as HTML; a text if the partition is missing or damaged."""
    artifact = store.whole(spec)
    try:
        if artifact is None:
            return f"<p>Partition {e(spec.id)} is not in this store.</p>"
        classes, counts, labels = class_counts(artifact)
    except FedbenchError as error:
        return f"<p>{e(error)}</p>"
    sizes, several = counts.sum(axis=1), (counts > 0).sum(axis=1)
    cells = list(itertools.accumulate(several.tolist()))
    first = max(1, sum(total <= CELLS for total in cells))
    image = svg_cells("samples of each class by client", counts[:first].tolist(), classes, "client")
    held = f"{_range(sizes)} {'labels' if labels else 'samples'} of {_range(several)} classes a client"
    words = [f"{held}; the stronger a cell, the more, up to {counts.max():,}."]
    words += [f"Clients 0 to {first - 1} of {len(counts)}."] * (first < len(counts)) + _numbers(names.of(spec, store))
    return f"<h3>class</h3>{image}<p>{e(' '.join(words))}</p>"


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
