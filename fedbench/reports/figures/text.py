"""Curves in a terminal, for remote machines that cannot show pictures: Braille dots, each line with a colour and, for
readers who cannot see colours, a number at its end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fedbench.reports.figures.style import COLOURS

#: (x, y), sorted by x; a line breaks where y is NaN.
Points = Sequence[tuple[float, float]]
#: Bits of a Braille character's dots, by row (from the top) and column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800
#: Largest width in characters, including the axis; a wider chart only stretches the lines.
_WIDEST = 90


def text_curves(lines: Mapping[str, Points], x: str, y: str, height: int = 12) -> RenderableType:
    """A chart of curves, as wide as the terminal (up to a limit).

    Arguments:
        lines: name -> its points by x, with y in the printed unit; a line of one point is drawn as its number.
        x, y: labels of the axes, such as "round" and "average accuracy (%)".
        height: rows of the chart, without axis and legend.

    Raises ValueError if there is no point.
    """
    drawn = {name: points for name, points in lines.items() if points}
    if not drawn:
        raise ValueError("a chart needs a point")
    return _Chart(drawn, x, y, height)


@dataclass(frozen=True)
class _Chart:
    lines: Mapping[str, Points]
    x: str
    y: str
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        xs, ys = zip(*(point for points in self.lines.values() for point in points if _there(point)), strict=True)
        low, high, last = min(ys), max(ys), self.height - 1
        thirds = {round(i * last / 3) for i in range(4)} if low < high else {last // 2}
        ticks = {row: f"{high - (high - low) * row / last:.4g}" for row in thirds}
        margin = max(map(len, ticks.values()))
        width = max(10, min(options.max_width, _WIDEST) - margin - 3 - len(str(len(self.lines))))
        bar = "│" if _can(console.encoding, "│") else "|"
        yield Text(self.y, style="bold")
        for row, cells in enumerate(self._rows(width, (min(xs), max(xs)), (low, high), console.encoding)):
            yield Text().append(f"{ticks.get(row, ''):>{margin}} {bar}", "dim").append_text(cells)
        ends = f"{min(xs):.4g}", f"{max(xs):.4g}"
        yield Text(" " * (margin + 2) + f"{self.x:^{max(0, width - len(''.join(ends)))}}".join(ends), style="dim")
        for i, (name, points) in enumerate(self.lines.items()):
            yield Text().append(f"{i + 1} {name}", _style(i)).append(f"  {points[-1][1]:.4g} at the end", "dim")

    def _rows(self, width: int, x: tuple[float, float], y: tuple[float, float], encoding: str) -> list[Text]:
        """The chart's rows from the top; a character is 4 x 2 dots, or a star if the encoding has no Braille."""
        dots: dict[tuple[int, int], int] = defaultdict(int)  # cell -> its dots as bits
        marks: dict[tuple[int, int], str] = {}
        owner: dict[tuple[int, int], int] = {}  # cell -> the last line drawn there
        rows, plain = [Text() for _ in range(self.height)], not _can(encoding, chr(_BRAILLE))
        ends: dict[int, list[int]] = defaultdict(list)
        for line, points in enumerate(self.lines.values()):
            strokes = [
                [
                    (round(_share(a, *x) * (2 * width - 1)), round((1 - _share(b, *y)) * (4 * self.height - 1)))
                    for a, b in stroke
                ]
                for there, stroke in groupby(points, _there)
                if there
            ]
            places = [place for stroke in strokes for place in stroke]
            pairs = [pair for stroke in strokes for pair in pairwise(stroke if len(stroke) > 1 else 2 * stroke)]
            for (left, top), (to_x, to_y) in pairs:
                steps = max(abs(to_x - left), abs(to_y - top), 1)
                for i in range(steps + 1):
                    down, across = round(top + (to_y - top) * i / steps), round(left + (to_x - left) * i / steps)
                    dots[down // 4, across // 2] |= _BITS[down % 4][across % 2]
                    owner[down // 4, across // 2] = line
            end = places[-1][1] // 4, places[-1][0] // 2
            if len(places) == 1:
                marks[end], owner[end] = str(line + 1), line
            else:
                ends[end[0]].append(line)
        for i, row in enumerate(rows):
            for at in ((i, column) for column in range(width)):
                dot = ("*" if plain else chr(_BRAILLE + dots[at])) if at in dots else " "
                row.append(marks.get(at, dot), style=_style(owner[at]) if at in owner else "")
            for line in ends[i]:
                row.append(f" {line + 1}", style=_style(line))
        return rows


def _there(point: tuple[float, float]) -> bool:
    return not math.isnan(point[1])


def _share(value: float, low: float, high: float) -> float:
    """The position of a value from 0 (`low`) to 1 (`high`); 0.5 if these are equal."""
    return (value - low) / (high - low) if high > low else 0.5


def _style(line: int) -> str:
    colour = COLOURS[line % len(COLOURS)]
    return "" if colour == "#000000" else colour  # black: the terminal's text colour


def _can(encoding: str, letter: str) -> bool:
    """Whether an encoding has a letter."""
    try:
        letter.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
