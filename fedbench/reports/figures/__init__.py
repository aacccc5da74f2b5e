"""Figures of the papers and of any runs: rows and a painter. The page of reports says how to draw and to add one."""

from __future__ import annotations

from fedbench.reports.figures.kind import Kind, Request, Row
from fedbench.reports.figures.output import Look, as_csv, as_json, draw, picture, render
from fedbench.reports.figures.registry import built_in, check, free, kind_of, load
from fedbench.reports.figures.spec import FigureSpec, PanelSpec, names
from fedbench.reports.figures.style import FORMATS


def svg(figure: FigureSpec, request: Request) -> str:
    """A figure as SVG text, without a title. Raises FedbenchError as `Kind.rows` and `Kind.paint` do."""
    kind = kind_of(figure)
    return render(kind, kind.rows(request), "svg", Look(title=False)).decode()


__all__ = [
    "FORMATS",
    "FigureSpec",
    "Kind",
    "Look",
    "PanelSpec",
    "Request",
    "Row",
    "as_csv",
    "as_json",
    "built_in",
    "check",
    "draw",
    "free",
    "kind_of",
    "load",
    "names",
    "picture",
    "render",
    "svg",
]
