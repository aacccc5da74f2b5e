"""Drawing: a figure's numbers to a matplotlib figure, and that to the bytes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbench.reports.figures import style
from fedbench.reports.figures.kinds import kind_of
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import COLOURS, FORMATS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "FORMATS", "draw", "render"]


def draw(figure: FigureSpec, content: Content[Any]) -> Figure:
    """The figure of what its kind gathered."""
    with style.applied():
        return style.literal(kind_of(figure).paint(figure, content))


def render(figure: FigureSpec, content: Content[Any], format: str) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    return style.saved(draw(figure, content), format)
