"""Prints grids (`layout.grid.Grid`) in each format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.errors import FedbenchError, check_known
from fedbench.reports.layout.grid import Grid

FORMATS = ("console", "latex", "markdown", "csv", "html", "json")
_SUFFIXES = {
    ".tex": "latex",
    ".md": "markdown",
    ".csv": "csv",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".txt": "console",
}


def choose(format: str | None, output: Path | None) -> str:
    """The format: `format`, else that of the output's suffix, else console. Raises FedbenchError for an unknown one."""
    if format is not None:
        check_known("format", format, FORMATS)
        return format
    if output is None:
        return "console"
    if output.suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise FedbenchError(f"cannot tell the format from the name {output}", f"use --format, or end it in {known}")
    return _SUFFIXES[output.suffix]


def render(
    grids: Sequence[Grid], format: str, *, full: bool = False, standalone: bool = False, appendix: bool = False
) -> str:
    """The grids in a format, with `full` including all notes. For LaTeX only: `standalone` returns a complete document,
    `appendix` the sections of a paper's appendix instead of the tables."""
    for option, given in (("standalone", standalone), ("appendix", appendix)):
        if given and format != "latex":
            raise FedbenchError(f"--{option} says nothing of {format}", "it goes with --format latex")
    if format in ("csv", "json"):  # complete with and without `full`
        from fedbench.reports.render import data

        return {"csv": data.as_csv, "json": data.as_json}[format](grids)
    grids = [grid if full or format == "html" else grid.unmarked() for grid in grids]
    if format == "latex":
        from fedbench.reports.render import latex

        return latex.appendix(grids, standalone) if appendix else latex.document(grids, full, standalone)
    if format == "markdown":
        from fedbench.reports.render import text

        return text.document(grids, full)
    if format == "html":
        from fedbench.reports.render import html

        return html.document(grids, full)
    from fedbench.reports.render import console

    return console.plain(grids, full)
