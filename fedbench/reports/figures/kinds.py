"""All kinds of figures by name, and a figure as CSV, JSON or picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbench import resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.reports.figures import style
from fedbench.reports.figures.beta import Beta
from fedbench.reports.figures.bubbles import Bubbles
from fedbench.reports.figures.clients import Clients
from fedbench.reports.figures.confusion import Confusion
from fedbench.reports.figures.descriptors import Descriptors
from fedbench.reports.figures.drift import Drift
from fedbench.reports.figures.epochs import Epochs
from fedbench.reports.figures.kind import Kind
from fedbench.reports.figures.learning import Learning
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.ranks import Ranking
from fedbench.reports.figures.rounds import Rounds
from fedbench.reports.figures.series import Series, Sweep
from fedbench.reports.figures.spec import FigureSpec, of_papers, of_user
from fedbench.reports.figures.spectra import Ratio, Spectra
from fedbench.reports.figures.style import COLOURS, FORMATS
from fedbench.reports.figures.views import Images
from fedbench.reports.render.data import cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_HOLDINGS = "Samples of each class that each client holds"
#: Figures of any partitions or runs, by name.
FREE = {
    figure.id: figure
    for figure in (
        FigureSpec("curves", "Learning curves of runs", "curves"),
        FigureSpec("clients", "Accuracies of single clients", "clients"),
        FigureSpec("confusion", "Which classes are taken for which", "confusion"),
        FigureSpec("ranks", "Average ranks over data sets and partitions", "ranks"),
        FigureSpec("partition", _HOLDINGS, "bubbles"),
        FigureSpec("bubbles", _HOLDINGS, "bubbles"),
        FigureSpec("images", "Images as clients see them", "images"),
        FigureSpec("ratio", "Test against training eigenvalues of every client", "ratio"),
        FigureSpec("spectrum", "Singular values of training and test images", "spectrum"),
    )
}

KINDS: dict[str, Kind[Any]] = {
    "ratio": Ratio(),
    "spectrum": Spectra(),
    "beta": Beta(),
    "bubbles": Bubbles(),
    "images": Images(),
    "epochs": Epochs(),
    "series": Series(),
    "sweep": Sweep(),
    "rounds": Rounds(),
    "descriptors": Descriptors(),
    "drift": Drift(),
    "curves": Learning(),
    "clients": Clients(),
    "confusion": Confusion(),
    "ranks": Ranking(),
}


def load(name: str) -> FigureSpec:
    """The figure of a name: a paper's ('ftw_erm/2'), a user file's ('./figures.toml:2'), or one of FREE.

    Raises FedbenchError for an unknown name, with the nearest known ones, and for a faulty file.
    """
    if name in FREE:
        return FREE[name]
    if ".toml" in name:
        return of_user(name)
    name, figures = resources.named(name), of_papers()
    if name not in figures:
        raise unknown("figure", name, (*figures, *FREE))
    return figures[name]


def kind_of(figure: FigureSpec) -> Kind[Any]:
    """The figure's kind. Raises FedbenchError for an unknown one, and for a figure without what its kind needs."""
    check_known(f"kind of figure {figure.id}", figure.kind, KINDS)
    kind = KINDS[figure.kind]
    if kind.needs and not getattr(figure, kind.needs):
        raise FedbenchError(f"figure {figure.id} lacks '{kind.needs}'", f"a figure of kind {figure.kind} needs it")
    return kind


def words(figure: FigureSpec, content: Content[Any]) -> Iterable[str]:
    """Lines of text that describe what the figure shows, and how many cells are measured if most are missing."""
    yield from kind_of(figure).words(figure, content)
    if content.sparse:
        yield content.sparse


def as_csv(figure: FigureSpec, content: Content[Any]) -> str:
    """The CSV: the figure's id, then the kind's columns; unknown values are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["figure", *kind_of(figure).columns], lineterminator="\n")
    writer.writeheader()
    for row in rows(figure, content):
        writer.writerow({"figure": figure.id, **{name: cell(value) for name, value in row.items()}})
    return out.getvalue()


def rows(figure: FigureSpec, content: Content[Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of the CSV: the kind's columns, where a list becomes words and an unknown value is None."""
    kind = kind_of(figure)
    for panel in content.panels:
        about = {**content.about, "panel": panel.title, **panel.about}
        for row in kind.rows(panel.marks):
            values = {**about, **row}
            yield {name: _words(values.get(name)) for name in kind.columns}


def _words(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def as_json(figure: FigureSpec, content: Content[Any]) -> str:
    """The JSON: facts about the figure and each panel, the panels' rows, and the verdict on each claim."""
    kind = kind_of(figure)
    panels = [
        {"title": panel.title, **panel.about, **kind.summary(panel.marks), "rows": list(kind.rows(panel.marks))}
        for panel in content.panels
    ]
    claims = [{"text": v.claim.text, "state": v.state, "detail": v.detail} for v in content.claims]
    cells = {"cells": dict(zip(("measured", "all"), content.cells, strict=True))} if content.cells else {}
    document = {"figure": figure.id, "title": figure.title, **content.about, **cells, "panels": panels}
    return json.dumps(document | ({"claims": claims} if claims else {}), indent=1, allow_nan=False) + "\n"


__all__ = ["COLOURS", "FORMATS", "draw", "render"]


def draw(figure: FigureSpec, content: Content[Any]) -> Figure:
    """Draw what the figure's kind gathered, with a note if most of its cells are missing."""
    with style.applied():
        picture = kind_of(figure).paint(figure, content)
        if content.sparse:
            picture.suptitle("\n".join(filter(None, (picture.get_suptitle(), content.sparse))), fontsize=9)
        return style.fitted(style.literal(picture))


def render(figure: FigureSpec, content: Content[Any], format: str) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file."""
    return style.saved(draw(figure, content), format)
