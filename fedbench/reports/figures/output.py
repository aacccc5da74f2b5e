"""A figure's rows as CSV, JSON, a picture, and the facts that stand beside a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbench.planner.table.claims import Verdict
from fedbench.reports.figures import style
from fedbench.reports.figures.kind import Kind, Row
from fedbench.reports.render.data import cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def claims_of(verdicts: Iterable[Verdict]) -> dict[str, list[dict[str, str]]]:
    """Verdicts on the paper's claims as a fact about a figure; nothing without any."""
    claims = [{"text": v.claim.text, "state": v.state, "detail": v.detail} for v in verdicts]
    return {"claims": claims} if claims else {}


def sparse(rows: list[Row]) -> str:
    """How many cells are measured, in words; "" if that is at least half of them."""
    cells = rows[0].get("cells", {"measured": 0, "all": 0}) if rows else {"measured": 0, "all": 0}
    measured, every = cells["measured"], cells["all"]
    return f"{measured} of {every} cell{'' if every == 1 else 's'} measured" if 2 * measured < every else ""


def table(kind: Kind, rows: list[Row]) -> Iterator[Mapping[str, Any]]:
    """The rows of the CSV: the kind's columns, where a list becomes words and an unknown value is None."""
    columns = kind.columns or dict.fromkeys(name for row in rows for name in row)
    for row in rows:
        yield {name: _words(row.get(name)) for name in columns}


def _words(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def as_csv(kind: Kind, rows: list[Row]) -> str:
    """The CSV: the figure's id, then the kind's columns; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for i, row in enumerate(table(kind, rows)):
        if not i:
            writer.writerow(["figure", *row])
        writer.writerow([kind.spec.id, *map(cell, row.values())])
    return out.getvalue()


def as_json(kind: Kind, rows: list[Row]) -> str:
    """The JSON: facts about the figure and each panel, the panels' rows, and the verdict on each claim."""
    about = {*kind.of_figure, *kind.of_panel, "panel", "cells", "claims"}
    panels = [
        {
            "title": panel[0].get("panel", ""),
            **_facts(kind.of_panel, panel),
            "rows": [{name: value for name, value in row.items() if name not in about} for row in panel],
        }
        for panel in kind.panels(rows)
    ]
    document = {
        "figure": kind.spec.id,
        "title": kind.spec.title,
        **_facts((*kind.of_figure, "cells"), rows),
        "panels": panels,
        **_facts(("claims",), rows),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _facts(names: Iterable[str], rows: list[Row]) -> Row:
    return {name: rows[0][name] for name in names if rows and name in rows[0]}


def draw(kind: Kind, rows: list[Row], *, title: bool = True) -> Figure:
    """Draw a figure's rows; with `title` also what its painter and a lack of cells write above it."""
    with style.applied():
        figure = style.empty(style.COLUMN if kind.one_column and len(kind.panels(rows)) == 1 else style.PAGE)
        kind.paint(figure, rows)
        heading = "\n".join(filter(None, (figure.get_suptitle(), sparse(rows))))
        style.headed(figure, heading if title else "")
        return style.fitted(style.literal(figure))


def render(kind: Kind, rows: list[Row], format: str, *, title: bool = True) -> bytes:
    """The picture as the bytes of a file of one of `style.FORMATS`."""
    return style.saved(draw(kind, rows, title=title), format)
