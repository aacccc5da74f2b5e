"""A figure's numbers for programs: a tidy CSV (one line a mark of the picture) and JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from fedbench.reports.figures.kinds import kind_of
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.render.data import cell


def as_csv(figure: FigureSpec, content: Content[Any]) -> str:
    """The kind's columns behind the figure's name; what is not known stays empty."""
    kind, out = kind_of(figure), io.StringIO()
    writer = csv.DictWriter(out, ["figure", *kind.columns], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for panel in content.panels:
        about = {"figure": figure.id, **content.about, "panel": panel.title, **panel.about}
        for row in kind.rows(panel.marks):
            writer.writerow({name: cell(value) for name, value in {**about, **row}.items()})
    return out.getvalue()


def as_json(figure: FigureSpec, content: Content[Any]) -> str:
    """What is said of the figure and of each panel, and how it stands with each claim."""
    kind = kind_of(figure)
    panels = [{"title": panel.title, **panel.about, **kind.values(panel.marks)} for panel in content.panels]
    claims = [{"text": v.claim.text, "state": v.state, "detail": v.detail} for v in content.claims]
    document = {"figure": figure.id, "title": figure.title, **content.about, "panels": panels}
    return json.dumps(document | ({"claims": claims} if claims else {}), indent=1, allow_nan=False) + "\n"
