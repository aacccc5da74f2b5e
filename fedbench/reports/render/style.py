"""The options of LaTeX."""

from __future__ import annotations

from dataclasses import dataclass

#: How LaTeX prints a ±: 63.85 ± 0.12, with a small ±, .763(.07), or not at all.
SPREADS = ("pm", "small", "paren", "none")


@dataclass(frozen=True)
class Style:
    """How LaTeX sets tables."""

    standalone: bool = False  #: a complete document
    appendix: bool = False  #: the sections of an appendix instead of the tables
    all_cells: bool = False  #: with rows and columns that have no number
    width: str = ""  #: column, page, or inches; "": a column where the table fits it as it is, else a page
    cite: bool = False  #: labels of rows cite their methods
    spread: str = ""  #: one of SPREADS; "": the table's own


PLAIN = Style()
