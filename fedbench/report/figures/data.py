"""A figure's numbers for programs: a tidy CSV (one line a mark of the picture) and JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from fedbench.report.figures.kinds import kind_of
from fedbench.report.figures.spec import FigureSpec
from fedbench.report.render.data import cell


def as_csv(figure: FigureSpec, shown: Any) -> str:
    """The kind's columns behind the figure's name; what is not known stays empty."""
    kind = kind_of(figure)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["figure", *kind.columns])
    writer.writerows([figure.id, *map(cell, line)] for line in kind.lines(shown))
    return out.getvalue()


def as_json(figure: FigureSpec, shown: Any) -> str:
    """What the kind tells, and how it stands with each claim."""
    kind = kind_of(figure)
    claims = [
        {"text": v.claim.text, "state": v.state, "detail": v.detail} for v in kind.verdicts(figure, shown)
    ]  # fmt: skip
    told = {"figure": figure.id, "title": figure.title, **kind.told(shown), **({"claims": claims} if claims else {})}
    return json.dumps(told, indent=1, allow_nan=False) + "\n"
