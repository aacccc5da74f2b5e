"""Words that several formats share."""

from __future__ import annotations

from fedbench.report.claims import Verdict
from fedbench.report.grid import Entry, Grid, Line, legend


def shown(line: Line, entry: Entry) -> str:
    """What stands in a cell without a value: the sign of its state, or nothing where nobody asks for one."""
    return entry.symbol if line.asked else ""


def remarks(grid: Grid) -> list[str]:
    """Everything said under a table but footnotes and claims."""
    meant = "; ".join(f"{symbol} {meaning}" for symbol, meaning in legend(grid))
    ranked = any(e.rank for line in grid.lines for e in line.entries)
    signs = [x for x in ("bold: best, underlined: second" if ranked else "", meant) if x]
    return [*grid.about, *grid.notes, *([f"{'; '.join(signs)}."] if signs else [])]


def verdict(ours: Verdict, theirs: Verdict) -> str:
    """How a claim stands on our numbers, and on the paper's own."""
    return f"{ours.state}: {how(ours, theirs)}"


def how(ours: Verdict, theirs: Verdict) -> str:
    """What a verdict rests on."""
    of = f"{ours.held} of {ours.made}" + (f" comparisons, {ours.asked} in all" if ours.asked > ours.made else "")
    parts = [of if ours.made else "", ours.detail, f"on the paper's numbers: {theirs.state}"]
    return "; ".join(part for part in parts if part)
