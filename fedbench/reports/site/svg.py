"""Lines, bars and cells as SVG text in the colours of the page's theme.

With matplotlib, as in `reports.figures`, the three pictures of a run would take 0.27 s and 117 kB (all shipped runs
4 min and 100 MB); these take 2 ms and 5 kB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedbench.reports.site.page import e

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
