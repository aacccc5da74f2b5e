"""Escaping and wording that the formats share; Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from tabulate import tabulate

from fedbench.planner.table.claims import FAILS, HOLDS, OPEN, SO_FAR, Verdict
from fedbench.reports.layout.grid import Entry, Grid, Line, legend
from fedbench.words import plain

#: Fields with fixed words that renderers compare, which must not be escaped.
_WORDS = ("kind", "state")

_PLURAL = {HOLDS: "hold", SO_FAR: "hold so far", FAILS: "fail"}


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
        return type(part)(_mapped(one, escape) for one in part)
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
        marks = (
            "bold: best and all within two standard errors of it over the seeds, underlined: second if none is as near"
        )
    said = [x for x in (marks, meant) if x]
    return [f"{'; '.join(said)}."] if said else []


def brief(grid: Grid, escape: Callable[[str], str] = str) -> list[str]:
    """The brief notes of a grid that is already `harmless`; `escape` is for the texts that this function adds."""
    stand = Counter(ours.state for ours, _ in grid.verdicts)
    counts = [f"{n} {state if n == 1 else _PLURAL.get(state, state)}" for state, n in stand.items()]
    tally = [f"Claims: {', '.join(counts)}."] if stand else []
    return [*map(escape, signs(grid)), *grid.about, *map(escape, tally)]


def filling(grid: Grid) -> list[str]:
    """A line with the command that fills the missing cells, if any."""
    return [f"To fill them: {grid.command}"] if grid.command else []


def pointer(grid: Grid) -> list[str]:
    """A line with the number of other notes, if any, and the option that prints them."""
    n = len(grid.notes) + len(grid.footnotes) + len(grid.verdicts)
    return [f"{n} more notes: --notes full."] if n > 1 else ["One more note: --notes full."] * n


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


# -- markdown --------------------------------------------------------------------------------------------------
# Grids as Markdown, with GitHub's pipe tables. All texts of a grid are escaped first (`harmless`).


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
    text += f" {entry.times}" if entry.times else ""
    if line.kind == "reported":
        spread = f" ± {entry.spread}" if entry.spread else ""
        return f"*{text}*{spread}" + (f" ({escape(entry.delta)})" if entry.delta else "")
    return text + (f" ± {entry.spread}" if entry.spread else "") + entry.mark


def escape(text: str) -> str:
    """Text that Markdown prints literally, also in tables."""
    out = "".join(f"\\{c}" if c in "\\`*_{}[]|~#$" else c for c in text.strip())
    out = re.sub(r"^(\d*)([-+=]|(?<=\d)[.)](?=\s|$))", r"\1\\\2", out)  # the start of a list or a rule
    return out.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


# -- data ------------------------------------------------------------------------------------------------------
# Grids for programs: a tidy CSV (one row per cell) and JSON. Full precision, in the printed unit.
#
# JSON has unchanged texts. Spreadsheets, which read CSV, would evaluate a text that begins like a formula; such a text
# gets an apostrophe in front, and all texts become one line (`cell`).


COLUMNS = (
    "table", "budget", "precision", "row", "kind", "group", "column", "metric", "unit", "state", "value", "std", "n",
    "weighted", "unweighted", "seeds", "seed_std", "per_seed", "ratio", "reported", "reported_std", "difference",
    "points", "within_points", "within_errors", "near", "runs", "method", "source", "shipped", "contradicted",
)  # fmt: skip


def records(grid: Grid) -> Iterator[dict[str, Any]]:
    """One dictionary per cell with keys COLUMNS (None if unknown), and `keys` if the grid has any."""
    for line in grid.lines:
        if line.kind == "reported":  # its numbers are in the cells of the measured row
            continue
        for head, entry in zip(grid.heads, line.entries, strict=True):
            if line.kind == "extra" and entry.value is None:
                continue
            value, reported, off = entry.value, entry.reported, entry.offset
            yield {
                "table": grid.id, "budget": grid.budget or None, "precision": grid.precision or None,
                "row": line.label, "kind": line.kind,
                "group": head.group or None, "column": head.label, "metric": head.metric, "unit": head.unit or None,
                "state": entry.state.value,
                "value": value.mean if value else None, "std": value.std if value else None,
                "n": value.count if value else None, "weighted": value.weighted if value else None,
                "unweighted": value.unweighted if value else None,
                "seeds": value.seeds if value else None, "seed_std": value.seed_std if value else None,
                "per_seed": dict(value.per_seed) if value and value.per_seed else None,
                "ratio": entry.ratio,
                "reported": reported[0] if reported else None, "reported_std": reported[1] if reported else None,
                "difference": off.difference if off else None, "points": off.points if off else None,
                "within_points": off.within_points if off and off.points is not None else None,
                "within_errors": off.within_errors if off else None, "near": entry.near,
                "runs": " ".join(entry.runs) or None,
                "method": line.method or None, "source": line.source or None, "shipped": entry.shipped,
                "contradicted": entry.contradicted,
                **({"keys": dict(zip(grid.keys, line.keys, strict=True))} if grid.keys else {}),
            }  # fmt: skip


def cell(value: Any) -> Any:
    """A value for a CSV file: a text on one line, which a spreadsheet does not evaluate, or a number unchanged."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def as_csv(grids: Sequence[Grid]) -> str:
    """A header, then one row per cell of all tables, with a column for each of their keys."""
    out = io.StringIO()
    keys = {key: f"run.{key}" if key in COLUMNS else key for grid in grids for key in grid.keys}
    writer = csv.DictWriter(out, [*COLUMNS, *map(cell, keys.values())], lineterminator="\n")
    writer.writeheader()
    for grid in grids:
        for record in records(grid):
            seeds, own = record["per_seed"] or {}, record.pop("keys", {})
            line = {**record, "per_seed": " ".join(f"{seed}:{value!r}" for seed, value in seeds.items())}
            line |= {cell(keys[key]): value for key, value in own.items()}
            writer.writerow({name: cell(value) for name, value in line.items()})
    return out.getvalue()


def as_json(grids: Sequence[Grid]) -> str:
    """A JSON list of the tables, with their cells as in the CSV and all their notes."""
    tables = [
        {
            "table": g.id, "title": g.title, "budget": g.budget or None,
            "precision": g.precision or None, "counts": g.counts,
            "numbers": g.tally.document if g.tally else None,
            "cells": list(records(g)), "about": g.about, "command": g.command or None, "notes": g.notes,
            "footnotes": [{"methods": letters.split(","), "text": text} for letters, text in g.footnotes],
            "problems": g.problems,
            "claims": [
                {"text": ours.claim.text, "state": ours.state, "held": ours.held, "made": ours.made,
                 "asked": ours.total, "undecided": ours.unsure, "detail": ours.detail,
                 "reported": theirs.state if theirs.made else None}
                for ours, theirs in g.verdicts
            ],
            "deviations": {line.label: line.mark for line in g.lines if line.mark},
        }
        for g in grids
    ]  # fmt: skip
    return json.dumps(tables, indent=1, allow_nan=False) + "\n"
