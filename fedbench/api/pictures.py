"""What notebooks show: terminal views in colour, and small tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fedbench.plain import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Columns of a terminal's view.
WIDTH = 120
_FORMAT = '<pre style="line-height:1.25;font-family:monospace;background:none;color:inherit">{code}</pre>'


def coloured(parts: Iterable[RenderableType]) -> str:
    """What a terminal would show, as HTML."""
    from fedbench.screen import Screen

    # In a notebook rich would show every part as an output of the cell's own.
    shape: dict[str, Any] = {"width": WIDTH, "force_terminal": True, "force_jupyter": False}
    console = Screen(record=True, file=io.StringIO(), color_system="truecolor", **shape)
    for part in parts:
        console.print(part, soft_wrap=False)
    return console.export_html(code_format=_FORMAT, inline_styles=True)


def card(title: str, rows: Mapping[str, str]) -> str:
    """A title over names and values."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(plain(name))}</th>'
        f'<td style="text-align:left">{escape(plain(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="text-align:left;font-weight:bold">{escape(plain(title))}</caption>{cells}</table>'
