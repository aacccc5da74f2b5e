"""A figure's numbers for programs: a tidy CSV (one line a client and rank) and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from fedbench.report.figures.curves import Curve, Panel, findings
from fedbench.report.figures.spec import FigureSpec

COLUMNS = (
    "figure", "panel", "dataset", "partition", "client", "rank", "train_singular_value", "test_singular_value",
    "raw_ratio", "ratio", "bound",
)  # fmt: skip


def as_csv(figure: FigureSpec, panels: Sequence[Panel]) -> str:
    """One line a client and rank; ratios are empty beyond the numerical rank."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for panel in panels:
        for curve in panel.curves:
            for line in _lines(curve):
                writer.writerow([figure.id, panel.title, panel.dataset, panel.partition, curve.client, *line])
    return out.getvalue()


def _lines(curve: Curve) -> Iterator[list[Any]]:
    c = curve.comparison
    for i, (train, test) in enumerate(zip(curve.train.values, curve.test.values, strict=False)):
        inside = i < c.rank
        ratios = [float(v[i]) for v in (c.raw, c.normalised, c.bound)] if inside else [None] * 3
        yield [i + 1, float(train), float(test), *ratios]


def as_json(figure: FigureSpec, panels: Sequence[Panel]) -> str:
    """The findings of each client, and its curves as lists from rank 1 on."""
    told = {
        "figure": figure.id,
        "title": figure.title,
        "panels": [
            {
                "title": panel.title,
                "dataset": panel.dataset,
                "partition": panel.partition,
                "clients": [{**findings(curve), "ridge": curve.ridge, **_lists(curve)} for curve in panel.curves],
            }
            for panel in panels
        ],
    }
    return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _lists(curve: Curve) -> dict[str, list[float]]:
    c = curve.comparison
    return {
        "train_singular_values": curve.train.values.tolist(),
        "test_singular_values": curve.test.values.tolist(),
        "raw_ratio": c.raw.tolist(),
        "ratio": c.normalised.tolist(),
        "bound": c.bound.tolist(),
    }
