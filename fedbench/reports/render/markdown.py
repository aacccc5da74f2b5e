"""Grids as Markdown (pipe tables, as GitHub reads them).

Texts of a grid are escaped before anything is made of them (`text.harmless`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabulate import tabulate

from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.text import brief, claims, filling, harmless, pointer, shown


def document(grids: Sequence[Grid], full: bool) -> str:
    """All grids, each under a heading."""
    return "\n\n".join(_table(harmless(grid, escape), full) for grid in grids) + "\n"


def _table(grid: Grid, full: bool) -> str:
    heads = [f"{h.group}, {grid.heading(h)}" if h.group else grid.heading(h) for h in grid.heads]
    rows: list[list[str]] = []
    parted = False
    for line in grid.lines:
        if line.ours and not parted:
            parted = True  # pipe tables have no rules between rows
            rows.append(["*not in the paper's table*" if grid.of_paper else "*others*", *[""] * len(heads)])
        rows.append([*(line.keys or [_label(line)]), *(_cell(line, e) for e in line.entries)])
    out = [f"### {grid.id}: {grid.caption}", ""]
    stubs = grid.keys or ("",)
    align = ("left",) * len(stubs) + ("right",) * len(heads)
    out.append(tabulate(rows, [*stubs, *heads], tablefmt="pipe", colalign=align, disable_numparse=True))
    more = [] if full else map(escape, pointer(grid))
    out += ["", *(f"- {text}" for text in (*brief(grid, escape), *filling(grid), *more))]
    out += [f"- **Problem:** {text}" for text in grid.problems]
    if full:
        out += [f"- {text}" for text in grid.notes]
        out += [f"- <sup>{letters}</sup> {text}" for letters, text in grid.footnotes]
        out += [f"- {text}: **{verdict}**" for text, verdict in claims(grid)]
    return "\n".join(out)


def _label(line: Line) -> str:
    if line.kind == "reported":
        return f"*{line.label}*"
    return line.label + (f" <sup>{line.mark}</sup>" if line.mark else "")


def _cell(line: Line, entry: Entry) -> str:
    if not entry.text:
        return escape(shown(line, entry))
    text = entry.text
    if entry.rank:
        text = f"**{text}**" if entry.rank == 1 else f"<u>{text}</u>"
    text += f" {entry.ratio}" if entry.ratio else ""
    if line.kind == "reported":
        spread = f" ± {entry.spread}" if entry.spread else ""
        return f"*{text}*{spread}" + (f" ({escape(entry.delta)})" if entry.delta else "")
    return text + (f" ± {entry.spread}" if entry.spread else "") + entry.mark


def escape(text: str) -> str:
    """Text that Markdown takes literally, inside a table too."""
    out = "".join(f"\\{c}" if c in "\\`*_{}[]|~#$" else c for c in text.strip())
    out = re.sub(r"^(\d*)([-+=]|(?<=\d)[.)](?=\s|$))", r"\1\\\2", out)  # what would begin a list or a rule
    return out.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
