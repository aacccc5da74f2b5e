"""Drawing: curves to a matplotlib figure, and that to a file, the same bytes every time."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.report.figures.curves import Panel
from fedbench.report.figures.spec import FigureSpec
from fedbench.theory.spectrum import LARGEST_BOUND, LEAST_BOUND

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
#: Okabe and Ito's colours, told apart by the colour-blind; their yellow is too faint for a line.
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
    "savefig.dpi": 250,
    "svg.hashsalt": "fedbench",  # else the ids in an SVG are random
}
_DASHES = (0, (3, 1.5))
_RATIO = r"$s_i=\sqrt{\lambda'_i/\lambda_i}$"
_RAW: dict[str, Any] = {"alpha": 0.55, "linewidth": 0.9, "linestyle": _DASHES}
_DOT: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "clip_on": False}
_TRAINING: dict[str, Any] = {"linestyle": _DASHES}
_LEGENDS: dict[str, list[dict[str, Any]]] = {
    "ratio": [{"label": "normalised"}, {"label": "raw (paper)", **_RAW}, {"label": "largest", **_DOT}],
    "spectrum": [{"label": "test"}, {"label": "training", **_TRAINING}],
}
#: Nothing in a file may tell when or by which version it was written.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def draw(figure: FigureSpec, panels: Sequence[Panel]) -> Figure:
    """The figure: one panel beside the other, one legend below them."""
    clients = sorted({curve.client for panel in panels for curve in panel.curves})
    colours = {client: COLOURS[i % len(COLOURS)] for i, client in enumerate(clients)}
    paint, y_label = (_ratio, _RATIO) if figure.kind == "ratio" else (_spectrum, "singular value $S_i$")
    with _style():
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        drawn = Figure(figsize=(0.6 + 3.3 * len(panels), 3.3), layout="constrained")
        row = drawn.subplots(1, len(panels), squeeze=False, sharey=figure.kind == "ratio")[0]
        for axes, panel in zip(row, panels, strict=True):
            paint(axes, panel, colours)
            axes.set_title(panel.title)
            axes.set_xlabel("rank $i$")
            axes.margins(x=0.015)
        row[0].set_ylabel(y_label)
        if figure.kind == "ratio":
            largest = [curve.comparison.largest for panel in panels for curve in panel.curves if curve.comparison.rank]
            row[0].set_ylim(0, 1.06 * max([1.1 * LARGEST_BOUND, *largest]))
        handles = [Line2D([], [], color=colour, label=f"client {client}") for client, colour in colours.items()]
        handles += [Line2D([], [], **{"color": "0.2", **look}) for look in _LEGENDS[figure.kind]]
        drawn.legend(handles=handles, loc="outside lower center", ncols=4 * len(panels), columnspacing=1.1)
        return drawn


def render(figure: FigureSpec, panels: Sequence[Panel], format: str) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    out = io.BytesIO()
    drawn = draw(figure, panels)
    with _style():
        drawn.savefig(out, format=format, metadata=_METADATA[format])
    return out.getvalue()


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """matplotlib as it comes, whatever the user's own settings are, with our style over it."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def _ratio(axes: Axes, panel: Panel, colours: dict[int, str]) -> None:
    """s_i by rank: normalised by n, and as the paper's code computes it. The largest is often the first: a dot."""
    for bound, name, dash in ((LEAST_BOUND, "1", "-"), (LARGEST_BOUND, "1.618", ":")):
        axes.axhline(bound, color="0.45", linewidth=0.8, linestyle=dash, zorder=0)
        axes.annotate(
            name, (1, bound), xycoords=("axes fraction", "data"), xytext=(-1, 2), textcoords="offset points",
            ha="right", va="bottom", color="0.35", fontsize=7,
        )  # fmt: skip
    for curve in panel.curves:
        c, colour = curve.comparison, colours[curve.client]
        ranks = np.arange(1, c.rank + 1)
        axes.plot(ranks, c.raw, color=colour, **_RAW)
        axes.plot(ranks, c.normalised, color=colour)
        if c.rank:
            axes.plot(1 + c.normalised.argmax(), c.largest, color=colour, **_DOT)


def _spectrum(axes: Axes, panel: Panel, colours: dict[int, str]) -> None:
    """Singular values by rank."""
    least = []
    for curve in panel.curves:
        for side, look in ((curve.train, _TRAINING), (curve.test, {})):
            values = np.where(side.values > 0, side.values, np.nan)
            axes.plot(np.arange(1, len(values) + 1), values, color=colours[curve.client], **look)
            least.append(side.values[: side.rank].min(initial=1.0))
    axes.set_yscale("log")
    axes.set_ylim(min(least) / 30, None)  # rounding errors beyond the rank leave the picture
