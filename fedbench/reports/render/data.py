"""Grids for programs: a tidy CSV (one row per cell) and JSON. Full precision, in the printed unit.

JSON has unchanged texts. Spreadsheets, which read CSV, would evaluate a text that begins like a formula; such a text
gets an apostrophe in front, and all texts become one line (`cell`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from fedbench.reports.layout.grid import Grid
from fedbench.words import plain

COLUMNS = (
    "table",
    "budget",
    "precision",
    "row",
    "kind",
    "group",
    "column",
    "metric",
    "unit",
    "state",
    "value",
    "std",
    "n",
    "weighted",
    "unweighted",
    "seeds",
    "seed_std",
    "per_seed",
    "ratio",
    "reported",
    "reported_std",
    "difference",
    "points",
    "within_points",
    "within_errors",
    "near",
    "runs",
    "method",
    "source",
    "shipped",
    "contradicted",
)


def records(grid: Grid) -> Iterator[dict[str, Any]]:
    """One dictionary per cell with keys COLUMNS (None if unknown), and `keys` if the grid has any."""
    for line in grid.lines:
        if line.kind == "reported":  # its numbers are in the cells of the measured row
            continue
        for head, entry in zip(grid.heads, line.entries, strict=True):
            if line.kind == "yours" and entry.value is None:
                continue
            value, reported, off = entry.value, entry.reported, entry.offset
            yield {
                "table": grid.id,
                "budget": grid.budget or None,
                "precision": grid.precision or None,
                "row": line.label,
                "kind": line.kind,
                "group": head.group or None,
                "column": head.label,
                "metric": head.metric,
                "unit": head.unit or None,
                "state": entry.state.value,
                "value": value.mean if value else None,
                "std": value.std if value else None,
                "n": value.count if value else None,
                "weighted": value.weighted if value else None,
                "unweighted": value.unweighted if value else None,
                "seeds": value.seeds if value else None,
                "seed_std": value.seed_std if value else None,
                "per_seed": dict(value.per_seed) if value and value.per_seed else None,
                "ratio": entry.ratio,
                "reported": reported[0] if reported else None,
                "reported_std": reported[1] if reported else None,
                "difference": off.difference if off else None,
                "points": off.points if off else None,
                "within_points": off.within_points if off and off.points is not None else None,
                "within_errors": off.within_errors if off else None,
                "near": entry.near,
                "runs": " ".join(entry.runs) or None,
                "method": line.method or None,
                "source": line.source or None,
                "shipped": entry.shipped,
                "contradicted": entry.contradicted,
                **({"keys": dict(zip(grid.keys, line.keys, strict=True))} if grid.keys else {}),
            }


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
            "table": g.id,
            "title": g.title,
            "budget": g.budget or None,
            "precision": g.precision or None,
            "counts": g.counts,
            "numbers": g.tally.document if g.tally else None,
            "cells": list(records(g)),
            "about": [*([g.basis] if g.basis else []), *g.about],
            "command": g.command or None,
            "notes": g.notes,
            "footnotes": [{"methods": letters.split(","), "text": text} for letters, text in g.footnotes],
            "problems": g.problems,
            "claims": [
                {
                    "text": ours.claim.text,
                    "state": ours.state,
                    "held": ours.held,
                    "made": ours.made,
                    "asked": ours.total,
                    "undecided": ours.unsure,
                    "detail": ours.detail,
                    "reported": theirs.state if theirs.made else None,
                }
                for ours, theirs in g.verdicts
            ],
            "deviations": {line.label: line.mark for line in g.lines if line.mark},
        }
        for g in grids
    ]
    return json.dumps(tables, indent=1, allow_nan=False) + "\n"
