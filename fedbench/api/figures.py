"""Figures of runs and partitions, and those of papers, as matplotlib figures."""

from __future__ import annotations

import io
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from fedbench.api.parts import Part
from fedbench.api.shared import Home, roots, say, store_of
from fedbench.errors import FedbenchError, check_known
from fedbench.options import checked
from fedbench.results.frame import Frame
from fedbench.results.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked
def figure(name: str, *of: str | Run | Part, shipped: bool = True, store: Home = None, **options: Any) -> Figure:
    """A figure by its name, as `fedbench figure` draws it: of runs `curves`, `clients`, `confusion` or `ranks`, of a
    partition `partition`, `images`, `ratio` or `spectrum`, or a paper's, such as `flux/4`. A notebook shows it.

    Arguments:
        of: runs, or filters of runs (`method=fedavg`, an id, a table's name); or a partition, or its id.
        shipped: whether filters may name shipped runs.
        options: those of the command: metric, against, by, client, image, view, budget, seed, run, compare, ridge.
    """
    from fedbench.reports import figures

    kind = figures.kind_of(figures.load(name))
    set_here = {"frame", "roots", "notify", "filters", "partition", "said"}
    known = {field.name for field in fields(figures.Request)} - set_here
    for option, value in options.items():
        check_known("option of figure", option, known)
        if option in ("by", "client", "image") and isinstance(value, str | int):
            options[option] = [value]
    parts = [one for one in of if isinstance(one, Part)]
    words = [one.id if isinstance(one, Run) else one for one in of if not isinstance(one, Part)]
    if len(parts) > 1 or (parts and words):
        raise FedbenchError("figure: a partition is drawn alone", "draw a figure of each")
    stores = {one.store.home: one.store for one in of if isinstance(one, Run | Part)}
    home = store_of(store) if store is not None or not stores else next(iter(stores.values()))
    frame = Frame.of(home, lambda problem: say(str(problem))) if shipped else Frame(home)
    chosen = {**options, "filters": words or None, "partition": parts[0].id if parts else None}
    request = figures.Request(frame, roots(), say, **chosen)
    figures.check(kind, request)
    drawn = figures.draw(kind, kind.rows(request))
    drawn._repr_png_ = partial(_png, drawn)  # type: ignore[attr-defined]  # pyplot does not know it, and shows it not
    return drawn


def _png(drawn: Figure) -> bytes:
    """The figure as a notebook shows it."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=120, bbox_inches="tight", facecolor="white")
    return file.getvalue()
