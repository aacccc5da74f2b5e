"""Escaping and wording that the formats share, and Markdown."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tabulate import tabulate

from fedbench.planner.table.claims import FAILS, FAILS_SO_FAR, HOLDS, OPEN, SO_FAR, Verdict
from fedbench.reports.layout.grid import Entry, Grid, Line, legend
from fedbench.words import plain

#: Fields with fixed words that renderers compare, which must not be escaped.
_WORDS = ("kind", "state")

_PLURAL = {HOLDS: "hold", SO_FAR: "hold so far", FAILS: "fail", FAILS_SO_FAR: "fail so far"}


def harmless(grid: Grid, escape: Callable[[str], str] = str) -> Grid:
    """The grid with all texts of all fields escaped for a format, so that it prints them literally.

    Titles, labels, notes and paths may contain anything. Renderers add markup only to texts that are escaped here.
    """
    made: Grid = _mapped(grid, lambda text: escape(plain(text)))
    return made


def _mapped(part: Any, escape: Callable[[str], str]) -> Any:
    if isinstance(part, str) and not isinstance(part, Enum):
        return escape(part)
    if isinstance(part, tuple | list):
        mapped = [_mapped(one, escape) for one in part]
        return type(part)(*mapped) if hasattr(part, "_fields") else type(part)(mapped)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = [f.name for f in dataclasses.fields(part) if f.name not in _WORDS]
        return dataclasses.replace(part, **{name: _mapped(getattr(part, name), escape) for name in fields})
    return part


def shown(line: Line, entry: Entry) -> str:
    """The text of a cell without a value: the symbol of its state, or empty in rows that are not in the table."""
    return entry.symbol if line.in_table else ""


def signs(grid: Grid) -> list[str]:
    """A line that explains the symbols and marks in a table, not yet escaped."""
    meant = "; ".join(f"{symbol} {meaning}" for symbol, meaning in legend(grid))
    ranked = [e for line in grid.lines for e in line.entries if e.rank]
    marks = "bold: best, underlined: second" if ranked else ""
    if any(e.value and e.value.noise for e in ranked):
        marks = "bold: best and all within two standard errors of it, underlined: second"
    said = [x for x in (marks, meant) if x]
    return [f"{'; '.join(said)}."] if said else []


def brief(grid: Grid, escape: Callable[[str], str] = str) -> list[str]:
    """The brief notes of a grid that is already `harmless`; `escape` is for the texts that this function adds."""
    return [*map(escape, signs(grid)), *grid.about, *map(escape, tally(grid))]


def tally(grid: Grid) -> list[str]:
    """A line with the number of claims by verdict, if there are any."""
    stand = Counter(ours.state for ours, _ in grid.verdicts)
    counts = [f"{n} {state if n == 1 else _PLURAL.get(state, state)}" for state, n in stand.items()]
    return [f"Claims: {', '.join(counts)}."] if stand else []


def filling(grid: Grid) -> list[str]:
    """A line with the command that fills the missing cells, if any."""
    return [f"To fill them: {grid.command}"] if grid.command else []


def pointer(grid: Grid) -> list[str]:
    """A line with the number of other notes, if any, the option that prints them, and what should not be missed in
    them."""
    n = len(grid.notes) + len(grid.footnotes) + len(grid.verdicts)
    more = f"{n} more notes: --notes full" if n > 1 else "One more note: --notes full"
    not_to_miss = f" ({'; '.join(grid.cautions)})" if grid.cautions else ""
    return [f"{more}{not_to_miss}."] if n else []


def claims(grid: Grid) -> list[tuple[str, str]]:
    """(Text, verdicts on our numbers and on the paper's) of each claim."""
    return [
        (ours.claim.text, ": ".join(part for part in (ours.state, how(ours, theirs)) if part))
        for ours, theirs in grid.verdicts
    ]


def how(ours: Verdict, theirs: Verdict) -> str:
    """The reasons for a verdict on our numbers, and the verdict on the paper's."""
    of = f"{ours.held} of {ours.made}" + (f" comparisons, {ours.total} in all" if ours.total > ours.made else "")
    of += f", {ours.unsure} undecided" if ours.unsure else ""
    reported = "" if theirs.state == OPEN else f"on the paper's numbers: {theirs.state}"
    parts = [of if ours.made else "", ours.detail, reported]
    return "; ".join(part for part in parts if part)


#: Part of a paper's table -> its heading.
PARTS = {"added": "*not in the paper's table*", "yours": "*yours*"}


def document(grids: Sequence[Grid], notes: str) -> str:
    """All grids as Markdown, with GitHub's pipe tables, each under a heading."""
    return "\n\n".join(_table(harmless(grid, escape), notes) for grid in grids) + "\n"


def _table(grid: Grid, notes: str) -> str:
    heads = [f"{h.group}, {grid.heading(h)}" if h.group else grid.heading(h) for h in grid.heads]
    rows: list[list[str]] = []
    before = ""
    for line in grid.lines:
        if line.part and line.part != before:  # pipe tables have no rules between rows
            rows.append([PARTS[line.part] if grid.of_paper else f"*{line.part}*", *[""] * len(heads)])
        before = line.part or before
        rows.append([*(line.keys or [_label(line)]), *(_cell(grid, line, e) for e in line.entries)])
    out = [f"### {grid.id}: {grid.caption}", "", *([grid.basis, ""] if grid.basis else [])]
    stubs = grid.keys or ("",)
    align = ("left",) * len(stubs) + ("right",) * len(heads)
    out.append(tabulate(rows, [*stubs, *heads], tablefmt="pipe", colalign=align, disable_numparse=True))
    more = map(escape, pointer(grid)) if notes == "brief" else []
    said = [] if notes == "none" else [*brief(grid, escape), *filling(grid), *more]
    said += [f"**Problem:** {text}" for text in grid.problems]
    out += ["" for _ in said[:1]] + [f"- {text}" for text in said]
    if notes == "full":
        out += [f"- {text}" for text in grid.notes]
        out += [f"- <sup>{letters}</sup> {text}" for letters, text in grid.footnotes]
        out += [f"- {text}: **{verdict}**" for text, verdict in claims(grid)]
    return "\n".join(out)


def _label(line: Line) -> str:
    if line.kind == "reported":
        return f"*{line.label}*"
    return line.label + (f" <sup>{line.mark}</sup>" if line.mark else "")


def _cell(grid: Grid, line: Line, entry: Entry) -> str:
    if not entry.text:
        return escape(shown(line, entry))
    text = entry.text
    if entry.rank:
        text = f"**{text}**" if entry.rank == 1 else f"<u>{text}</u>"
    text += f" {entry.times}" if entry.times else ""
    if line.kind == "reported":
        spread = f" ± {entry.spread}" if entry.spread else ""
        return f"*{text}*{spread}" + (f" ({escape(entry.delta)})" if entry.delta else "")
    return text + (f" ± {entry.spread}" if entry.spread else "") + grid.mark(entry)


def escape(text: str) -> str:
    """Text that Markdown prints literally, also in tables."""
    out = "".join(f"\\{c}" if c in "\\`*_{}[]|~#$" else c for c in text.strip())
    out = re.sub(r"^(\d*)([-+=]|(?<=\d)[.)](?=\s|$))", r"\1\\\2", out)  # the start of a list or a rule
    return out.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
