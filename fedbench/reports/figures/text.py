"""Curves in a terminal: Braille dots, each line in a colour and with a number at its end, for those who see none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fedbench.reports.figures.style import COLOURS

#: (x, y), by x.
Points = Sequence[tuple[float, float]]
#: Bits of the dots of a Braille character: by row from the top, and column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800
#: Columns of the widest chart, its axis included; a wider one only stretches the lines.
_WIDEST = 90


def text_curves(lines: Mapping[str, Points], x: str, y: str, height: int = 12) -> RenderableType:
    """A chart of curves for a terminal, as wide as it is.

    Arguments:
        lines: name -> its points by x, y in the unit in which it is printed; a line of one point is its number.
        x, y: what the axes are, such as "round" and "average accuracy (%)".
        height: rows of the chart, without axis and legend.

    Raises ValueError without a point.
    """
    return _Chart({name: points for name, points in lines.items() if points}, x, y, height)


@dataclass(frozen=True)
class _Chart:
    lines: Mapping[str, Points]
    x: str
    y: str
    height: int

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError("a chart needs a point")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        xs, ys = zip(*(point for points in self.lines.values() for point in points), strict=True)
        low, high = min(ys), max(ys)
        rows = _thirds(self.height) if low < high else [(self.height - 1) // 2]
        ticks = {row: f"{high - (high - low) * row / (self.height - 1):.4g}" for row in rows}
        margin = max(map(len, ticks.values()))
        numbers = len(str(len(self.lines))) + 1
        width = max(10, min(options.max_width, _WIDEST) - margin - 2 - numbers)
        canvas = _Canvas(width, self.height, (min(xs), max(xs)), (low, high))
        for i, points in enumerate(self.lines.values()):
            canvas.draw(i, points)
        yield Text(self.y, style="bold")
        for row, cells in enumerate(canvas.rows(console.encoding)):
            axis, bar = f"{ticks.get(row, ''):>{margin}} ", "│" if _can(console.encoding, "│") else "|"
            yield Text().append(axis + bar, "dim").append_text(cells)
        first, last = f"{min(xs):.4g}", f"{max(xs):.4g}"
        room = max(0, width - len(first) - len(last))
        yield Text(" " * (margin + 2) + first + f"{self.x:^{room}}" + last, style="dim")
        for i, (name, points) in enumerate(self.lines.items()):
            yield Text().append(f"{i + 1} {name}", _style(i)).append(f"  {points[-1][1]:.4g} at the end", "dim")


class _Canvas:
    """Cells of 4 x 2 dots each over a plane, and the line that each belongs to."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._width, self._height, self._x, self._y = width, height, x, y
        self._dots: dict[tuple[int, int], int] = {}
        self._owner: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], str] = {}
        self._ends: dict[int, list[int]] = {}  # row -> the lines that end there

    def draw(self, line: int, points: Points) -> None:
        """A line through these points, or a mark if there is one only."""
        places = [self._place(*point) for point in points]
        for (x, y), (to_x, to_y) in pairwise(places):
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for i in range(steps + 1):
                self._dot(line, round(x + (to_x - x) * i / steps), round(y + (to_y - y) * i / steps))
        x, y = places[-1]
        if len(places) == 1:
            self._marks[y // 4, x // 2] = str(line + 1)
            self._owner[y // 4, x // 2] = line
        else:
            self._ends.setdefault(y // 4, []).append(line)

    def rows(self, encoding: str) -> Iterator[Text]:
        """From the top; where the encoding has no Braille, a line is of stars."""
        plain = not _can(encoding, chr(_BRAILLE))
        for row in range(self._height):
            text = Text()
            for column in range(self._width):
                at = row, column
                dots = chr(_BRAILLE + self._dots[at]) if at in self._dots and not plain else "*"
                letter = self._marks.get(at, dots if at in self._dots else " ")
                text.append(letter, style=_style(self._owner[at]) if at in self._owner else "")
            for line in self._ends.get(row, []):
                text.append(f" {line + 1}", style=_style(line))
            yield text

    def _place(self, x: float, y: float) -> tuple[int, int]:
        """The dot at a point, from the left and from the top."""
        across = _share(x, *self._x) if self._x[0] < self._x[1] else 0.5
        return round(across * (2 * self._width - 1)), round((1 - _share(y, *self._y)) * (4 * self._height - 1))

    def _dot(self, line: int, x: int, y: int) -> None:
        at = y // 4, x // 2
        self._dots[at] = self._dots.get(at, 0) | _BITS[y % 4][x % 2]
        self._owner[at] = line


def _share(value: float, low: float, high: float) -> float:
    """How far up a value is, from 0 to 1; in the middle where there is one value only."""
    return (value - low) / (high - low) if high > low else 0.5


def _thirds(height: int) -> list[int]:
    """The rows that say their value: top, bottom and what lies evenly between."""
    return sorted({round(i * (height - 1) / 3) for i in range(4)})


def _style(line: int) -> str:
    colour = COLOURS[line % len(COLOURS)]
    return "" if colour == "#000000" else colour  # black: as the terminal writes


def _can(encoding: str, letter: str) -> bool:
    """Whether an encoding has a letter."""
    try:
        letter.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
