"""Grids for programs: a tidy CSV (one line a cell) and JSON. Full precision, in the printed unit.

JSON holds every text as it is. CSV goes into spreadsheets, which would take a text that begins as a formula does for
one: it gets an apostrophe in front, and texts are made one line (`cell`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from fedbench.plain import plain
from fedbench.reports.layout.grid import Grid

COLUMNS = (
    "table", "budget", "precision", "row", "kind", "group", "column", "metric", "unit", "state", "value", "std", "n",
    "weighted", "unweighted", "seeds", "seed_std", "per_seed", "ratio", "reported", "reported_std", "difference",
    "within", "runs", "method", "source", "shipped", "contradicted",
)  # fmt: skip


def records(grid: Grid) -> Iterator[dict[str, Any]]:
    """One dictionary a cell, keyed by COLUMNS; None where there is nothing to say. `keys` where the grid has any."""
    for line in grid.lines:
        if line.kind == "reported":  # stands beside the measured value
            continue
        for head, entry in zip(grid.heads, line.entries, strict=True):
            if line.kind == "extra" and entry.value is None:
                continue
            value, reported = entry.value, entry.reported
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
                "ratio": float(entry.ratio[:-1]) if entry.ratio else None,
                "reported": reported[0] if reported else None, "reported_std": reported[1] if reported else None,
                "difference": entry.difference, "within": entry.within, "runs": " ".join(entry.runs) or None,
                "method": line.method or None, "source": line.source or None, "shipped": entry.shipped,
                "contradicted": entry.contradicted,
                **({"keys": dict(zip(grid.keys, line.keys, strict=True))} if grid.keys else {}),
            }  # fmt: skip


def cell(value: Any) -> Any:
    """A value of a CSV file: of a text, what a spreadsheet shows and does not reckon with. Numbers stay."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def as_csv(grids: Sequence[Grid]) -> str:
    """One line a cell, with a header; all tables below each other, each of their keys in a column of its own."""
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
    """A list of tables: their cells as in the CSV, and all that is said under them."""
    tables = [
        {
            "table": g.id, "title": g.title, "budget": g.budget or None,
            "precision": g.precision or None, "counts": g.counts,
            "cells": list(records(g)), "about": g.about, "command": g.command or None, "notes": g.notes,
            "footnotes": [{"methods": letters.split(","), "text": text} for letters, text in g.footnotes],
            "problems": g.problems,
            "claims": [
                {"text": ours.claim.text, "state": ours.state, "held": ours.held, "made": ours.made,
                 "asked": ours.asked, "undecided": ours.unsure, "detail": ours.detail,
                 "reported": theirs.state if theirs.made else None}
                for ours, theirs in g.verdicts
            ],
            "deviations": {line.label: line.mark for line in g.lines if line.mark},
        }
        for g in grids
    ]  # fmt: skip
    return json.dumps(tables, indent=1, allow_nan=False) + "\n"
