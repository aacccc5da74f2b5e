"""A figure's rows as CSV, JSON, a picture, and the facts that stand beside a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbench import __version__
from fedbench.planner.table.claims import Verdict
from fedbench.reports.figures import style
from fedbench.reports.figures.kind import Kind, Row
from fedbench.reports.render.data import cell
from fedbench.reports.widths import COLUMN, PAGE

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


@dataclass(frozen=True)
class Look:
    """How a figure is printed."""

    width: float = 0.0  #: in inches; 0: of a column or a page, as its kind and its number of panels need
    title: bool = True  #: with what its painter and a lack of cells write above it
    own: Mapping[str, Any] = field(default_factory=dict)  #: the user's own settings of matplotlib


def draw(kind: Kind, rows: list[Row], look: Look = Look()) -> Figure:
    """Draw a figure's rows. The figure's label is what its painter and a lack of cells say above it, with or without
    a title."""
    with style.applied(look.own):
        one = kind.one_column and len(kind.panels(rows)) == 1
        figure = style.empty(look.width or (COLUMN if one else PAGE))
        kind.paint(figure, rows)
        heading = "\n".join(filter(None, (figure.get_suptitle(), sparse(rows))))
        figure.set_label(heading)
        if not look.title and len(kind.panels(rows)) == 1:  # then the panel's is the figure's
            for axes in figure.axes:
                if axes.get_title().startswith(str(rows[0].get("panel"))):
                    figure.set_label("\n".join(filter(None, (heading, axes.get_title()))))
                    axes.set_title("")
        style.headed(figure, heading if look.title else "")
        return style.fitted(style.literal(figure))


def picture(
    kind: Kind, rows: list[Row], format: str, look: Look, said: Iterable[str] = (), remarks: Iterable[str] = ()
) -> tuple[bytes, str]:
    """The picture as the bytes of a file of one of `style.FORMATS`, and what to know about it, line by line: what it
    shows in words (`Request.said`), which claims hold, what it lacks (`remarks`), and the runs behind it. The file's
    metadata have it, too."""
    figure = draw(kind, rows, look)
    ids = dict.fromkeys(id for row in rows for name in ("runs", "run", "ids") for id in _ids(row.get(name)))
    lines = [f"{kind.spec.id}: {kind.spec.title}", *str(figure.get_label()).splitlines(), *said]
    lines += [claim_in_words(claim) for claim in _facts(("claims",), rows).get("claims", ())]
    lines += [*remarks, f"Runs: {' '.join(ids)}" if ids else "", f"Drawn by fedbench {__version__}"]
    facts = "\n".join(dict.fromkeys(filter(None, lines))) + "\n"
    return style.saved(figure, format, kind.spec.title, facts, look.own), facts


def render(kind: Kind, rows: list[Row], format: str, look: Look = Look()) -> bytes:
    """The picture as the bytes of a file of one of `style.FORMATS`."""
    return picture(kind, rows, format, look)[0]


def _ids(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def claim_in_words(claim: Mapping[str, str]) -> str:
    """A claim and whether it holds."""
    return f"{claim['text']}: {claim['state']}" + (f" ({claim['detail']})" if claim["detail"] else "")
