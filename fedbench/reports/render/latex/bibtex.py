"""The references of tables as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.references import bibtex
from fedbench.reports.render.latex.characters import escape


def document(grids: Sequence[Grid]) -> str:
    """An entry for each method, data set and paper behind the tables, and for fedbench, each once."""
    keys = dict.fromkeys(key for grid in grids for key in grid.references)
    entries = []
    for kind, key, of in bibtex(keys):
        fields = "".join(f"  {name} = {{{_text(text)}}},\n" for name, text in of.items())
        entries.append(f"@{kind}{{{key},\n{fields}}}\n")
    return "\n".join(entries)


def _text(text: str) -> str:
    """A field's text, in which braces keep capitals."""
    return "".join(part if part in ("{", "}") else escape(part) for part in re.split("([{}])", text))
