"""The style of all figures: colours, matplotlib's settings, layout, and files with reproducible bytes."""

from __future__ import annotations

import contextlib
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.words import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from fedbench.reports.figures.kind import Row

FORMATS = ("png", "svg", "pdf")
#: Okabe and Ito's colours, which suit the colour-blind, without the yellow, which is too faint for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
#: Sizes of texts are 8 points, as in the captions of papers; painters name others in words ("small").
_STYLE = {
    "font.size": 8,
    "axes.titlesize": "medium",
    "axes.labelsize": "medium",
    "figure.titlesize": "medium",
    "legend.fontsize": "medium",
    "xtick.labelsize": "medium",
    "ytick.labelsize": "medium",
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.2,
    "grid.color": "0.92",
    "grid.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 250,
    "pdf.fonttype": 42,  # TrueType: venues refuse Type 3
    "svg.fonttype": "none",  # text is text
    "svg.hashsalt": "fedbench",  # else the ids in an SVG are random
}
#: One per line, so that lines are distinguishable in grey.
MARKERS = "os^DvPX*<>ph"
#: Seven, so that of lines beyond the number of colours those of one dash differ in lightness.
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (9, 2)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (2, 3)),
)
#: Length of a dash of lines that coincide, in line widths.
_DASH = 6
#: Style of a dot that shows one item, such as a client.
DOT: dict[str, Any] = {"linestyle": "none", "marker": "o", "markeredgecolor": "white", "markeredgewidth": 0.3}
#: Where a format has a place for the figure's facts.
_FACTS = {"png": "Description", "svg": "Description", "pdf": "Subject"}
#: A file contains neither the time nor the version that wrote it.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of a matplotlib style file. Raises FedbenchError for a missing or faulty one."""
    import logging

    import matplotlib as mpl

    if not path.is_file():
        raise FedbenchError(f"no style file {path}", "--style takes one of matplotlib, such as my.mplstyle")
    faults: list[str] = []
    log = logging.getLogger("matplotlib")
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: faults.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(heard)
    try:
        own: dict[Any, Any] = {**mpl.rc_params_from_file(path, fail_on_error=False, use_default_template=False)}
    except (OSError, UnicodeDecodeError, ValueError, KeyError) as error:
        faults.append(str(error))
    finally:
        log.removeHandler(heard)
    if faults:
        raise FedbenchError(f"{path} is no style of matplotlib: {' '.join(faults[0].split())}")
    return own


@contextlib.contextmanager
def applied(own: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Use matplotlib's defaults and our style instead of the user's settings; `own` settings go before ours."""
    from matplotlib import style

    with style.context(["default", _STYLE, dict(own or {})]):
        yield


def empty(width: float) -> Figure:
    """An empty figure of a width in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, width))


def colour(i: int) -> str:
    """The i-th colour of lines, cyclically: of COLOURS, or of the user's style."""
    import matplotlib as mpl

    colours = mpl.rcParams["axes.prop_cycle"].by_key().get("color", COLOURS)
    return str(colours[i % len(colours)])


def ink(shade: Any) -> str:
    """Black or white, whichever contrasts more with a colour (WCAG 2.2, relative luminance)."""
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(shade)]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05
    return "white" if 1.05 / light > light / 0.05 else "black"


def line_looks(names: Sequence[str], bold: Sequence[str] = (), dashed: bool = False) -> dict[str, dict[str, Any]]:
    """Name -> its matplotlib style, distinguishable in colour and in grey: by markers, or (`dashed`, for lines of many
    points) by dashes. The lines that the figure is about come first and are thick; beyond the number of colours lines
    are hollow and dashed."""
    import matplotlib as mpl

    first = [name for name in bold if name in names]
    thin, looks = float(mpl.rcParams["lines.linewidth"]), {}
    rest = max(1, len(COLOURS) - len(first))  # colours for lines that are not thick
    for i, name in enumerate([*first, *(name for name in names if name not in first)]):
        thick = i < len(first)
        turn, nth = (0, i) if thick else divmod(i - len(first), rest)
        shade = colour(nth if thick else len(first) + nth)
        looks[name] = {
            "color": shade,
            "linewidth": 1.8 * thin if thick else thin,
            "linestyle": _DASHES[(i + turn if dashed else turn) % len(_DASHES)],
            "zorder": 3 if thick else 4,  # a thick line would hide a thin one
        }
        if not dashed:
            looks[name] |= {
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 5 if thick else 3.8,
                "markerfacecolor": "white" if turn else shade,
                "markeredgewidth": 0.8,
            }
    return looks


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


def across(figure: Figure, panels: int, least: float = 1.8) -> int:
    """How many of these panels stand side by side, each at least so many inches wide: all, or about as many as rows."""
    most = max(1, int(figure.get_figwidth() / least))
    return panels if panels <= most else min(most, math.ceil(math.sqrt(panels)))


def subplots(figure: Figure, rows: int, columns: int, tall: float = 0.0, **options: Any) -> list[list[Axes]]:
    """A grid of axes on an empty figure, a list per row; a row is `tall` inches high (0: as fits its panels' width)."""
    tall = tall or min(2.6, max(1.8, 0.5 + 0.65 * figure.get_figwidth() / columns))
    figure.set_figheight(rows * tall)
    axes: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **options).tolist()
    return axes


def titled(grid: Iterable[Iterable[Axes]], panels: Iterable[list[Row]]) -> Iterator[tuple[Axes, list[Row]]]:
    """Yield each panel with its axes, which get its title; hide axes without a panel."""
    for axes, panel in zip_longest(chain(*grid), panels):
        if panel is None:
            axes.set_visible(False)
        else:
            axes.set_title(panel[0].get("panel", ""))
            yield axes, panel


def legend(figure: Figure, handles: Sequence[Any], columns: int = 0, **options: Any) -> None:
    """A legend below all panels, for which the figure becomes higher; 0 columns: as many as there is room for. Names
    that are longer than the figure is wide are wrapped."""
    width = figure.get_figwidth()
    for one in handles:
        one.set_label(wrapped(str(one.get_label()), int((width - _INCHES_A_HANDLE) / INCHES_A_LETTER)))
    columns = columns or abreast(handles, width)
    below = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **options)
    rows = -(-len(below.get_texts()) // columns)
    lines = [1 + text.get_text().count("\n") for text in below.get_texts()]
    tall = max(sum(lines[i : i + rows]) for i in range(0, len(lines), rows))
    figure.set_figheight(figure.get_figheight() + _INCHES_A_LINE * tall + 0.08)


def name_ends(figure: Figure, grid: Sequence[Sequence[Axes]], handles: Sequence[Any]) -> None:
    """Name lines at their ends, where the last panel of a single row has all and there is room, else in a legend."""
    axes = grid[0][-1]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    names = [str(one.get_label()) for one in handles]
    wide = max(map(len, names), default=0) * INCHES_A_LETTER
    there = len(grid) == 1 and all(name in lines and math.isfinite(_end(lines[name])[1]) for name in names)
    if not there or len(names) > _NAMED or wide > _SHARE * figure.get_figwidth() / len(grid[0]):
        legend(figure, handles)
        return
    points = 72 / figure.dpi
    above: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    ink = {name: lines[name].get_color() for name in names}
    texts = {name: axes.annotate(name, _end(lines[name]), (5, 0), color=ink[name], **above) for name in names}
    if len(names) > 1:  # else nothing can be in the way
        _lay_out(figure, {})
    at = {name: axes.transData.transform(_end(lines[name]))[1] * points for name in names}
    moved = _apart(at)
    if max((abs(moved[name] - at[name]) for name in names), default=0) > _MOVED * _POINTS_A_LINE:
        for text in texts.values():
            text.remove()
        legend(figure, handles)
        return
    for name, text in texts.items():
        text.xyann = (5, moved[name] - at[name])


def _apart(at: Mapping[str, float]) -> dict[str, float]:
    """The nearest heights, in points, at which names do not overlap."""
    groups: list[list[str]] = []  # names that touch, from below

    def lowest(group: list[str]) -> float:
        return sum(at[name] - _POINTS_A_LINE * i for i, name in enumerate(group)) / len(group)

    for name in sorted(at, key=lambda name: at[name]):
        groups.append([name])
        while len(groups) > 1 and lowest(groups[-1]) < lowest(groups[-2]) + _POINTS_A_LINE * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return {name: lowest(group) + _POINTS_A_LINE * i for group in groups for i, name in enumerate(group)}


def _end(line: Line2D) -> tuple[float, float]:
    """The last point of a line."""
    x, y = line.get_data()
    return float(np.asarray(x, float)[-1]), float(np.asarray(y, float)[-1])


#: Most lines that are named at their ends; the largest share of a panel's width for a name; how far a name may be moved
#: from its line's end, in lines of text.
_NAMED, _SHARE, _MOVED = 7, 0.25, 1.6
#: Width of a letter of a label, and height of a line of labels.
INCHES_A_LETTER, _POINTS_A_LINE = 0.062, 9.5
#: Width of a legend's line and of the space around it.
_INCHES_A_HANDLE = 0.6
#: Height of a line of a legend or a title.
_INCHES_A_LINE = 0.16


def headed(figure: Figure, text: str) -> None:
    """Write lines above all panels, for which the figure becomes higher; "" takes away what stands there."""
    figure.suptitle(text).set_in_layout(bool(text))
    if text:
        figure.set_figheight(figure.get_figheight() + _INCHES_A_LINE * (1 + text.count("\n")) + 0.04)


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
    if not _too_long(picture):
        return picture
    texts: dict[Text, str] = {}
    for _ in range(_LAYOUTS):
        _lay_out(picture, texts)
        if not _too_long(picture):
            break
    return picture


#: So many times at most, because a wrapped title leaves less room for a label.
_LAYOUTS = 3
#: Words are not torn apart for lines of so many letters or fewer.
_WHOLE = 16
#: Titles are not wrapped to fewer letters than this, even if they do not fit.
_FEWEST = 8
_NO_BREAK = "\N{NO-BREAK SPACE}"  #: a space at which a line is not broken


def wrapped(text: str, letters: int) -> str:
    """The text wrapped to lines of at most `letters` letters and of similar length. A number stays on the line of the
    word before it, and brackets stay on one line if they fit."""
    letters = max(letters, _FEWEST)
    bound = re.sub(r"\([^()]*\)", lambda m: m[0].replace(" ", _NO_BREAK) if len(m[0]) <= letters else m[0], text)
    bound = re.sub(r"(?<=[^,]) (?=[\d.+-])", _NO_BREAK, bound)

    def lines(letters: int) -> list[str]:
        tear = letters > _WHOLE
        wrapped = (textwrap.wrap(line, letters, break_on_hyphens=False, break_long_words=tear) for line in parts)
        return [line for part in wrapped for line in part]

    parts = bound.split("\n")
    fewest, count = max(_FEWEST, *map(len, re.split("[ \n]", bound))), len(lines(letters))
    while letters > fewest and len(lines(letters - 1)) == count:
        letters -= 1
    return "\n".join(lines(letters)).replace(_NO_BREAK, " ")


def _too_long(picture: Figure) -> list[tuple[Text, float, float]]:
    return [(text, length, room) for text, length, room in _lengths(picture) if length > room]


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


def _lay_out(picture: Figure, whole: dict[Text, str]) -> None:
    """Wrap what is too long, for which the figure becomes higher, and give axes their places, and so texts their room:
    what matplotlib does as it draws, without drawing. `whole` gets the texts as they were."""
    literal(picture)
    before = _lines(picture)
    for text, length, room in _too_long(picture):
        own = whole.setdefault(text, text.get_text())
        letters = max(map(len, text.get_text().split("\n")))
        while length > room and letters > _FEWEST:
            letters = max(_FEWEST, min(letters - 1, int(letters * room / length)))
            text.set_text(wrapped(own, letters))
            length = _length(text)
    more = max(0, _lines(picture) - before)
    picture.set_figheight(picture.get_figheight() + _INCHES_A_LINE * more)
    if engine := picture.get_layout_engine():
        square = [axes for axes in picture.axes if axes.get_aspect() != "auto"]
        for _ in range(_LAYOUTS if more and square else 1):  # matplotlib places square panels nearer each time
            engine.execute(picture)
        for axes in square:
            axes.apply_aspect()  # else labels are measured beside the place, not the square within it
    else:
        picture.draw_without_rendering()


def _lines(picture: Figure) -> int:
    """How many more lines than one the texts above and below the rows of panels have."""
    rows = {("", 0): picture.get_suptitle().count("\n")}
    for axes in picture.axes:
        if place := axes.get_subplotspec():
            row = str(id(place.get_gridspec())), place.rowspan.start
            rows[row] = max(rows.get(row, 0), axes.get_title().count("\n") + axes.get_xlabel().count("\n"))
    return sum(rows.values())


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


def short(text: str, most: int = 24) -> str:
    """A name for an axis: of more than `most` letters those in the middle are left out."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half].rstrip()}…{text[1 - half :].lstrip()}"


def saved(picture: Figure, format: str, title: str, facts: str, own: Mapping[str, Any] | None = None) -> bytes:
    """The figure as the bytes of a file of one of FORMATS, with its title and facts as metadata."""
    out = io.BytesIO()
    about = {"Title": plain(title), _FACTS[format]: plain(facts, keep="\n")}
    with applied(own):
        picture.savefig(out, format=format, metadata=_METADATA[format] | about)
    return out.getvalue()
