"""Grids in print: one function a format, all from the same `grid.Grid`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.errors import FedbenchError, unknown
from fedbench.report.grid import Grid

FORMATS = ("console", "latex", "markdown", "csv", "html", "json")
_SUFFIXES = {
    ".tex": "latex", ".md": "markdown", ".csv": "csv", ".html": "html", ".htm": "html", ".json": "json",
    ".txt": "console",
}  # fmt: skip


def choose(format: str | None, output: Path | None) -> str:
    """The format: as given, else as the output's suffix says, else console. Raises FedbenchError for an unknown one."""
    if format is not None:
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        return format
    if output is None:
        return "console"
    if output.suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise FedbenchError(f"cannot tell the format from the name {output}", f"use --format, or end it in {known}")
    return _SUFFIXES[output.suffix]


def render(grids: Sequence[Grid], format: str, *, fragment: bool = False) -> str:
    """The grids as one document of that format; `fragment` (LaTeX only) leaves out the document around them."""
    if format == "latex":
        from fedbench.report.render import latex

        return latex.document(grids, fragment)
    if fragment:
        raise FedbenchError(f"a fragment of {format} makes no sense", "--fragment goes with --format latex")
    if format == "markdown":
        from fedbench.report.render import markdown

        return markdown.document(grids)
    if format == "html":
        from fedbench.report.render import html

        return html.document(grids)
    from fedbench.report.render import console, data

    return {"console": console.plain, "csv": data.as_csv, "json": data.as_json}[format](grids)
