"""The style of all figures: colours, matplotlib's settings, layout, and files with reproducible bytes."""

from __future__ import annotations

import contextlib
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from fedbench.groups import by_key
from fedbench.words import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from fedbench.reports.figures.panel import Panel

FORMATS = ("png", "svg", "pdf")
#: Okabe and Ito's colours, which suit the colour-blind, without the yellow, which is too faint for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 1.7,
    "grid.color": "0.92",
    "grid.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 250,
    "svg.hashsalt": "fedbench",  # else the ids in an SVG are random
}
#: One per line, so that lines are distinguishable in grey.
MARKERS = "os^DvP*X"
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))
#: Length of a dash of lines that coincide, in line widths.
_DASH = 6
#: Style of a dot that shows one item, such as a client.
DOT: dict[str, Any] = {"linestyle": "none", "marker": "o", "markeredgecolor": "white", "markeredgewidth": 0.3}
#: A file contains neither the time nor the version that wrote it.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """Use matplotlib's defaults and our style instead of the user's settings."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def colour(i: int) -> str:
    """The i-th of COLOURS, cyclically."""
    return COLOURS[i % len(COLOURS)]


def look(i: int) -> dict[str, Any]:
    """The style of the i-th line, distinguishable in colour and in grey."""
    turn = i // len(COLOURS)
    marker = MARKERS[(i + turn) % len(MARKERS)]
    return {"color": colour(i), "marker": marker, "markersize": 4.0, "linestyle": _DASHES[turn % len(_DASHES)]}


def distinct_looks(
    lines: Mapping[str, Iterable[Sequence[float]]], looks: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Styles by which lines with equal points (x, y, ...) are all visible: the first line is solid, the dashes of the
    others alternate on it, and earlier lines have larger markers."""
    equal = by_key((tuple(f"{v:.5g}" for point in points for v in point[:2]), name) for name, points in lines.items())
    new = {name: dict(looks[name]) for name in lines}
    for names in equal.values():
        for i, name in enumerate(names):
            new[name]["markersize"] = looks[name].get("markersize", 6) + 2.5 * min(3, len(names) - 1 - i)
            if i:
                new[name]["linestyle"] = (_DASH * (len(names) - i), (_DASH, _DASH * (len(names) - 1)))
    return new


def shape(panels: int, widest: int = 3) -> tuple[int, int]:
    """Rows and columns for `panels` panels: one row of up to `widest`, else as square as possible within that width."""
    columns = min(widest, panels, math.ceil(math.sqrt(panels)) if panels > widest else panels)
    return -(-panels // columns), columns


def subplots(size: tuple[float, float], rows: int, columns: int, **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure of a size (width, height) in inches, and its axes, a list per row."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=size)
    return picture, picture.subplots(rows, columns, squeeze=False, **options).tolist()


def titled(grid: Iterable[Iterable[Axes]], panels: Iterable[Panel[Any]]) -> Iterator[tuple[Axes, Panel[Any]]]:
    """Yield each panel with its axes, which get its title; hide axes without a panel."""
    for axes, panel in zip_longest(chain(*grid), panels):
        if panel is None:
            axes.set_visible(False)
        else:
            axes.set_title(panel.title)
            yield axes, panel


def handle(label: str, **look: Any) -> Line2D:
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def abreast(handles: Sequence[Line2D], width: float) -> int:
    """The number of columns of a legend that is at most `width` inches wide."""
    wide = [0.45 + 0.062 * len(str(entry.get_label())) for entry in handles]

    def total(columns: int) -> float:
        """The legend's width. matplotlib fills column by column; the first ones may have an extra entry."""
        rows, more = divmod(len(wide), columns)
        ends = [rows * i + min(i, more) for i in range(columns + 1)]
        return sum(max(wide[a:b]) for a, b in pairwise(ends))

    most = next((n for n in range(len(wide), 1, -1) if total(n) <= width), 1)
    return math.ceil(len(wide) / math.ceil(len(wide) / most))  # the fewest columns with this number of rows


def fitted(picture: Figure) -> Figure:
    """The figure, with titles and labels wrapped that are longer than their axes or the picture."""
    if any(length > room for _, length, room in _lengths(picture)):
        picture.draw_without_rendering()  # computes the layout, and so the room
        for text, length, room in list(_lengths(picture)):
            whole = text.get_text()
            letters = max(map(len, whole.split("\n")))
            while length > room and letters > _FEWEST:
                letters = min(letters - 1, int(letters * room / length))
                text.set_text(_wrapped(whole, letters))
                length = _length(text)
    return picture


#: Titles are not wrapped to fewer letters than this, even if they do not fit.
_FEWEST = 8
_NO_BREAK = "\N{NO-BREAK SPACE}"  #: a space at which a line is not broken


def _wrapped(text: str, letters: int) -> str:
    """The text wrapped to lines of at most `letters` letters and of similar length. A number stays on the line of the
    word before it, and brackets stay on one line if they fit."""
    bound = re.sub(r"\([^()]*\)", lambda m: m[0].replace(" ", _NO_BREAK) if len(m[0]) <= letters else m[0], text)
    bound = re.sub(r"(?<=[^,]) (?=[\d.+-])", _NO_BREAK, bound)

    def lines(letters: int) -> list[str]:
        return [part for line in bound.split("\n") for part in textwrap.wrap(line, letters, break_on_hyphens=False)]

    fewest, count = max(_FEWEST, *map(len, re.split("[ \n]", bound))), len(lines(letters))
    while letters > fewest and len(lines(letters - 1)) == count:
        letters -= 1
    return "\n".join(lines(letters)).replace(_NO_BREAK, " ")


def _lengths(picture: Figure) -> Iterator[tuple[Text, float, float]]:
    """Titles and labels with their length and the room for them, in pixels."""
    inch, width = picture.dpi, picture.bbox.width
    rooms = [(text, width - 0.1 * inch) for text in picture.texts]
    rooms += [(text, width - 0.6 * inch) for legend in picture.legends for text in legend.get_texts()]
    for axes in picture.axes:
        box = axes.get_window_extent()
        rooms += [(axes.title, box.width), (axes.xaxis.label, box.width), (axes.yaxis.label, box.height)]
    for text, room in rooms:
        if text.get_text():
            yield text, _length(text), room


def _length(text: Text) -> float:
    box = text.get_window_extent()
    return box.height if text.get_rotation() == 90 else box.width


def literal(picture: Figure) -> Figure:
    """The figure, with all texts printed literally: a $ does not start a formula.

    Texts along axes may contain formulae, because fedbench writes them (for other names see `named`).
    """
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    along_axes = {id(text) for axis in picture.findobj(Axis) for text in axis.findobj(Text)}
    for text in picture.findobj(Text):
        if id(text) not in along_axes and isinstance(text, Text):
            text.set_parse_math(False)
            text.set_text(plain(text.get_text(), keep="\n"))
    return picture


def named(text: str) -> str:
    """A name from outside fedbench, such as a class, escaped for an axis, where a $ would start a formula."""
    return plain(text).replace("$", r"\$")


def saved(picture: Figure, format: str) -> bytes:
    """The figure as the bytes of a file of one of FORMATS."""
    out = io.BytesIO()
    with applied():
        picture.savefig(out, format=format, metadata=_METADATA[format])
    return out.getvalue()
