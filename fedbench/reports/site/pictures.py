"""The pictures of a run: its learning curve, its clients' accuracies, and its partition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.metrics.read import Metrics
from fedbench.partitions.view import class_counts
from fedbench.reports.figures.clients import DEFAULTS as OF_CLIENTS
from fedbench.reports.figures.learning import DEFAULTS, VIEWS, by_round
from fedbench.reports.site.page import e

if TYPE_CHECKING:
    from fedbench.specs import PartitionSpec
    from fedbench.store import Store


# -- svg -------------------------------------------------------------------------------------------------------
# Lines, bars and cells as SVG text in the colours of the page's theme. With matplotlib, as in `reports.figures`, the
# three pictures of a run would take 0.27 s and 117 kB (all shipped runs 4 min and 100 MB); these take 2 ms and 5 kB.


#: The size of a picture and the margins around its plot, in pixels.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 220, 44, 8, 10, 34
#: Width of the plot.
ACROSS = WIDTH - LEFT - RIGHT
#: Lines are thinned to about this many points, because a plot has no more distinguishable pixels.
POINTS = 240
#: More bars than this are drawn as one path without titles.
TITLED = 150

Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers in [low, high], about `about` of them."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * of for of in (1, 2, 5, 10) if power * of >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def picture(name: str, parts: Iterable[str], x_label: str, height: float = HEIGHT) -> str:
    """An SVG element with these parts and the label of the x axis; `name` is its text for screen readers."""
    parts = [*parts, _text(LEFT + ACROSS / 2, height - 4, x_label, "middle")]
    return f'<svg viewBox="0 0 {WIDTH} {number(height)}" role="img" aria-label="{e(name)}">{"".join(parts)}</svg>'


def number(value: float) -> str:
    """A coordinate as short text, rounded to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def lines(name: str, own: Points, others: Sequence[Points], x_label: str) -> str:
    """A picture of a line (a dot if it has one point) in front of fainter `others`."""
    xs, ys = zip(*(point for line in (own, *others) for point in line), strict=True)
    x0, x1 = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
    room = 0.06 * (max(ys) - min(ys)) or max(0.05 * abs(ys[0]), 1e-9)
    y0, y1 = min(ys) - room, max(ys) + room

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return LEFT + ACROSS * (x - x0) / (x1 - x0), HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y0) / (y1 - y0)

    def drawn(line: Points, kind: str) -> str:
        pixels = [at(point) for point in (*line[: -1 : math.ceil(len(line) / POINTS)], line[-1])]
        if len(pixels) == 1:
            ((x, y),) = pixels
            return f'<circle class="{"dot" if kind == "own" else kind}" cx="{number(x)}" cy="{number(y)}" r="3.5"/>'
        way = " ".join(f"{number(x)},{number(y)}" for x, y in pixels)
        return f'<polyline class="{kind}" points="{way}"/>'

    whole = [x for x in ticks(x0, x1) if x == round(x) and (len(set(xs)) > 1 or x == xs[0])]
    parts = [*_levels(ticks(y0, y1), lambda y: at((x0, y))[1])]
    parts += [_text(at((x, y0))[0], HEIGHT - BOTTOM + 14, f"{x:g}", "middle") for x in whole]
    return picture(name, [*parts, *(drawn(line, "other") for line in others), drawn(own, "own")], x_label)


def bars(name: str, heights: Sequence[float], titles: Sequence[str], hollow: Sequence[bool], x_label: str) -> str:
    """A picture with bars of M heights in [0, 100], with titles for at most `TITLED` bars, and a dashed line at the
    mean of the bars that are not hollow."""
    width = ACROSS / len(heights)
    gap = min(2.0, 0.2 * width)
    down = HEIGHT - BOTTOM

    def at(y: float) -> float:
        return down - (down - TOP) * y / 100

    parts = list(_levels(ticks(0, 100), at))
    ways: dict[str, list[str]] = {"bar": [], "unseen": []}
    for i, (height, title, empty) in enumerate(zip(heights, titles, hollow, strict=True)):
        kind, left, top = "unseen" if empty else "bar", LEFT + i * width + gap / 2, number(at(height))
        if math.isnan(height):
            continue
        if len(heights) > TITLED:
            ways[kind].append(f"M{number(left + (width - gap) / 2)} {top}V{down}")
            continue
        place = f'x="{number(left)}" y="{top}" width="{number(width - gap)}" height="{number(down - at(height))}"'
        parts.append(f'<rect class="{kind}" {place}><title>{e(title)}</title></rect>')
    look = f'stroke-width="{width - gap:.2f}"'
    parts += [f'<path class="many {kind}" {look} d="{"".join(way)}"/>' for kind, way in ways.items() if way]
    solid = [height for height, empty in zip(heights, hollow, strict=True) if not empty and not math.isnan(height)]
    if solid:
        y = number(at(sum(solid) / len(solid)))
        parts.append(f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    return picture(name, [*parts, *numbered(len(heights), down + 14)], x_label)


def numbered(count: int, y: float) -> Iterable[str]:
    """Labels of some of `count` columns, numbered from 0."""
    width = ACROSS / count
    for i in ticks(0, count - 1, 10) if count > 1 else [0.0]:
        if i == round(i):
            yield _text(LEFT + (i + 0.5) * width, y, f"{i:g}", "middle")


def _levels(at: Sequence[float], place: object) -> Iterable[str]:
    assert callable(place)
    for y in at:
        pixel = number(place(y))
        yield f'<path class="grid" d="M{LEFT} {pixel}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 6, place(y) + 4, f"{y:.6g}", "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{e(text)}</text>'


def svg_cells(name: str, counts: Sequence[Sequence[int]], rows: Sequence[str], x_label: str) -> str:
    """A picture of counts [columns][rows] as cells, one path per shade; rows are named if there is room."""
    most = max((count for column in counts for count in column), default=0)
    tall = max(3.0, min(16.0, 320 / len(rows)))
    width = ACROSS / len(counts)
    shades: dict[int, list[str]] = {}
    for i, column in enumerate(counts):
        for k, count in enumerate(column):
            if count:
                # Square roots, so that small counts are visible next to large ones.
                place = f"M{number(LEFT + i * width)} {number(TOP + (k + 0.5) * tall)}"
                shades.setdefault(math.ceil(8 * math.sqrt(count / most)), []).append(place)
    step = f"h{width - min(1.0, 0.1 * width):.2f}"
    parts = []
    for shade, places in sorted(shades.items()):
        title = f"<title>up to {math.floor(most * (shade / 8) ** 2):,} samples</title>"
        look = f'stroke-width="{tall - min(1.0, 0.1 * tall):.2f}" opacity="{shade / 8:g}"'
        parts.append(f'<path class="cell" {look} d="{step.join([*places, ""])}">{title}</path>')
    every = math.ceil(11 / tall)
    parts += [_text(LEFT - 6, TOP + (k + 0.5) * tall + 4, row, "end") for k, row in enumerate(rows) if k % every == 0]
    bottom = TOP + tall * len(rows)
    return picture(name, [*parts, *numbered(len(counts), bottom + 14)], x_label, bottom + 34)


# -- pictures --------------------------------------------------------------------------------------------------


#: Maximal number of non-empty cells in a picture of a partition, which limits the size of the page.
CELLS = 3000


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


def clients(metrics: Metrics, trainees: int) -> str:
    """The accuracy (else the AUC) of each client on its test images as HTML; bars of clients after the first `trainees`
    are hollow. "" if not measured."""
    metric = next((name for name in OF_CLIENTS if name in metrics.names), "")
    values = 100 * metrics.per_client(metric, "plain") if metric else np.zeros(0)
    if not np.isfinite(values).any():
        return ""
    unseen = [client >= trainees for client in range(len(values))]
    titles = [
        f"client {c}{', never trains' * out}: {v:.2f} %" for (c, v), out in zip(enumerate(values), unseen, strict=True)
    ]
    trained = values[np.isfinite(values) & ~np.array(unseen)]
    what = metric.replace("_", " ").replace("auc", "AUC")
    drawn = bars(f"{what} of each client, %", values.tolist(), titles, unseen, "client")
    return f"<h3>{e(what)}, %</h3>{drawn}<p>{e(' '.join(_spread(trained, any(unseen))))}</p>"


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
    words += [f"Clients 0 to {first - 1} of {len(counts)}."] * (first < len(counts))
    return f"<h3>class</h3>{image}<p>{e(' '.join(words))}</p>"


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
