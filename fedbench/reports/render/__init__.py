"""Prints grids (`layout.grid.Grid`) in each format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fedbench.errors import FedbenchError, check_known
from fedbench.reports.layout.grid import Grid
from fedbench.reports.render.style import PLAIN, SPREADS, Style
from fedbench.words import option_of, plain

#: What stands below a table.
NOTES = ("none", "brief", "full")
FORMATS = ("console", "latex", "markdown", "csv", "html", "json", "macros", "bibtex")
_SUFFIXES = {
    ".tex": "latex",
    ".md": "markdown",
    ".csv": "csv",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".txt": "console",
    ".bib": "bibtex",
}


def name_of(grid: Grid, format: str, style: Style = PLAIN) -> str:
    """The name of a table's own file in a folder: feddrm-1.tex."""
    suffix = {"macros": "-numbers.tex"}.get(format) or next(s for s, of in _SUFFIXES.items() if of == format)
    return re.sub("[^0-9A-Za-z_]+", "-", plain(grid.id)) + "-appendix" * style.appendix + suffix


def choose(format: str | None, output: Path | None) -> str:
    """The format: `format` (also md or tex, as a file's name ends), else that of the output's suffix, else console.
    Raises FedbenchError for an unknown one."""
    if format is not None:
        format = _SUFFIXES.get(f".{format}", format)
        check_known("format", format, FORMATS)
        return format
    if output is None:
        return "console"
    if output.suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise FedbenchError(f"cannot tell the format from the name {output}", f"use --format, or end it in {known}")
    return _SUFFIXES[output.suffix]


def render(grids: Sequence[Grid], format: str, notes: str = "brief", style: Style = PLAIN) -> str:
    """The grids in a format, with these `notes` below them; `style` is for LaTeX only."""
    check_known("notes", notes, NOTES)
    check_known("spread", style.spread or None, SPREADS)
    if style != PLAIN and format != "latex":
        option = next(field.name for field in fields(Style) if getattr(style, field.name) != field.default)
        raise FedbenchError(f"{option_of(option)} does not apply to {format}", "it needs --format latex")
    if format in ("csv", "json"):  # complete with and without notes
        from fedbench.reports.render import data

        return {"csv": data.as_csv, "json": data.as_json}[format](grids)
    if format in ("macros", "bibtex"):
        from fedbench.reports.render import latex
        from fedbench.reports.render.latex import macros

        return {"macros": macros.document, "bibtex": latex.bibtex}[format](grids)
    grids = [grid if notes == "full" or format == "html" else grid.unmarked() for grid in grids]
    if format == "latex":
        from fedbench.reports.render import latex

        return latex.appendix(grids, style.standalone) if style.appendix else latex.document(grids, notes, style)
    if format == "markdown":
        from fedbench.reports.render import text

        return text.document(grids, notes)
    if format == "html":
        from fedbench.reports.render import html

        return html.document(grids, notes)
    from fedbench.reports.render import console

    return console.plain(grids, notes)
