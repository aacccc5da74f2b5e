"""What several formats share: texts made harmless in one place, and words."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from fedbench.plain import plain
from fedbench.reports.layout.grid import Entry, Grid, Line, legend
from fedbench.reports.table.claims import FAILS, HOLDS, OPEN, SO_FAR, Verdict

#: Fields of a grid's parts that hold no text but words of our own, which renderers compare.
_WORDS = ("kind", "state")

_PLURAL = {HOLDS: "hold", SO_FAR: "hold so far", FAILS: "fail"}


def harmless(grid: Grid, escape: Callable[[str], str] = str) -> Grid:
    """The grid with every text in it as a format takes it literally, whatever field it stands in.

    Titles, labels, notes and paths may hold anything. Renderers add their own commands to what comes from here, and
    use no text that does not.
    """
    made: Grid = _mapped(grid, lambda text: escape(plain(text)))
    return made


def _mapped(part: Any, escape: Callable[[str], str]) -> Any:
    if isinstance(part, str) and not isinstance(part, Enum):
        return escape(part)
    if isinstance(part, tuple | list):
        return type(part)(_mapped(one, escape) for one in part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = [f.name for f in dataclasses.fields(part) if f.name not in _WORDS]
        return dataclasses.replace(part, **{name: _mapped(getattr(part, name), escape) for name in fields})
    return part


def shown(line: Line, entry: Entry) -> str:
    """What stands in a cell without a value: the sign of its state, or nothing where nobody asks for one."""
    return entry.symbol if line.asked else ""


def signs(grid: Grid) -> list[str]:
    """What the signs in a table mean; these are words of our own, not yet escaped."""
    meant = "; ".join(f"{symbol} {meaning}" for symbol, meaning in legend(grid))
    ranked = [e for line in grid.lines for e in line.entries if e.rank]
    marks = "bold: best, underlined: second" if ranked else ""
    if any(e.value and e.value.noise for e in ranked):
        marks = (
            "bold: best and all within two standard errors of it over the seeds, underlined: second if none is as near"
        )
    said = [x for x in (marks, meant) if x]
    return [f"{'; '.join(said)}."] if said else []


def brief(grid: Grid, escape: Callable[[str], str] = str) -> list[str]:
    """What stands below every table, of a grid that is `harmless` already; `escape` is for words of our own."""
    stand = Counter(_PLURAL.get(ours.state, ours.state) for ours, _ in grid.verdicts)
    tally = [f"Claims: {', '.join(f'{n} {state}' for state, n in stand.items())}."] if stand else []
    return [*map(escape, signs(grid)), *grid.about, *map(escape, tally)]


def filling(grid: Grid) -> list[str]:
    """The command that makes the missing cells, if any are."""
    return [f"To fill them: {grid.command}"] if grid.command else []


def pointer(grid: Grid) -> list[str]:
    """Where there is more than the brief notes, how to see it."""
    n = len(grid.notes) + len(grid.footnotes) + len(grid.verdicts)
    return [f"{n} more notes: --notes full."] if n > 1 else ["One more note: --notes full."] * n


def claims(grid: Grid) -> list[tuple[str, str]]:
    """Each claim, and how it stands on our numbers and on the paper's own."""
    return [
        (ours.claim.text, ": ".join(part for part in (ours.state, how(ours, theirs)) if part))
        for ours, theirs in grid.verdicts
    ]


def how(ours: Verdict, theirs: Verdict) -> str:
    """What a verdict rests on."""
    of = f"{ours.held} of {ours.made}" + (f" comparisons, {ours.asked} in all" if ours.asked > ours.made else "")
    of += f", {ours.unsure} undecided" if ours.unsure else ""
    reported = "" if theirs.state == OPEN else f"on the paper's numbers: {theirs.state}"
    parts = [of if ours.made else "", ours.detail, reported]
    return "; ".join(part for part in parts if part)
