"""The checks of a kind of figure, one function per check, on the shipped runs that its request selects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.plugins import reported
from fedbench.reports.figures.kind import Kind, Request, Row
from fedbench.reports.figures.output import Look, as_csv, as_json, render
from fedbench.reports.figures.style import FORMATS
from fedbench.reports.widths import COLUMN, PAGE
from fedbench.results.frame import Frame
from fedbench.store import Store


@dataclass
class FigureSubject:
    """A kind of figure, asked for the runs that the filters select."""

    kind: Kind
    frame: Frame
    empty: Store  #: a store without a run
    filters: Sequence[str]

    def request(self, frame: Frame | None = None) -> Request:
        """A request for these runs, or for all of another frame."""
        chosen = None if frame or "filters" not in self.kind.options else self.filters
        return Request(frame or self.frame, filters=chosen)

    @cached_property
    def rows(self) -> list[Row]:
        with reported():
            return self.kind.rows(self.request())


def some_runs(frame: Frame) -> list[str]:
    """The ids of a few shipped runs on one partition, of different methods."""
    from fedbench.planner.runs import select

    by_setting = by_key((run.spec.setting.id, run) for run in select(frame, ["shipped=yes"]))
    largest = max(by_setting.values(), key=lambda runs: len({run.spec.method for run in runs}))
    return [run.id for run in {run.spec.method: run for run in largest}.values()][:_RUNS]


#: So many runs are drawn, if no filters name others.
_RUNS = 4


def rows_are_plain_values(it: FigureSubject) -> None:
    """Its rows are a list of dictionaries of plain values (text, finite numbers, booleans, None, lists, dictionaries),
    so that they can be CSV and JSON."""
    if not isinstance(it.rows, list) or not all(isinstance(row, dict) for row in it.rows):
        raise FedbenchError("rows returns no list of dictionaries", "return [{'panel': ..., 'x': ...}, ...]")
    if not it.rows:
        raise FedbenchError("rows returns nothing for these runs", "give filters of runs that it shows")
    for i, row in enumerate(it.rows, 1):
        for name, value in row.items():
            if (fault := _fault(value)) or not isinstance(name, str):
                raise FedbenchError(f"row {i} has {fault or 'a name that is no text'} in {name!r}", "give plain values")
    unknown = {*it.kind.columns, *it.kind.of_panel, *it.kind.of_figure} - {name for row in it.rows for name in row}
    if unknown:
        raise FedbenchError(f"no row has {', '.join(sorted(unknown))}, which the kind declares", "leave it out")
    as_csv(it.kind, it.rows)
    as_json(it.kind, it.rows)


def _fault(value: Any) -> str:
    """What is not plain in a value; "" if nothing is."""
    if value is None or type(value) in (str, int, bool):
        return ""
    if type(value) is float:
        return "" if value == value and abs(value) != float("inf") else f"a number that is not finite ({value})"
    if type(value) in (list, tuple):
        return next(filter(None, map(_fault, value)), "")
    if type(value) is dict:
        return next(filter(None, map(_fault, value.values())), "")
    return f"a value of type {type(value).__module__}.{type(value).__name__}"


def the_same_rows_again(it: FigureSubject) -> None:
    """A second call returns the same rows."""
    with reported():
        again = it.kind.rows(it.request())
    if again != it.rows:
        raise FedbenchError("the rows of two calls differ", "draw random numbers from a fixed seed, and keep no state")


def the_painter_draws(it: FigureSubject) -> None:
    """Its painter draws these rows as wide as a column and as a page, in every format."""
    for width in (COLUMN, PAGE):
        for form in FORMATS:
            with reported():
                picture = render(it.kind, deepcopy(it.rows), form, Look(width))
            if len(picture) < _LEAST:
                raise FedbenchError(f"a {form} file of {len(picture)} bytes holds no picture")


#: Smallest file of a picture with a mark.
_LEAST = 1500


def the_rows_are_all_that_is_drawn(it: FigureSubject) -> None:
    """The picture is the same when it is drawn from the rows as JSON has them, and painting changes no row."""
    own = deepcopy(it.rows)
    with reported():
        pictures = [render(it.kind, rows, "svg") for rows in (own, json.loads(json.dumps(it.rows)))]
    if own != it.rows:
        raise FedbenchError("paint changes the rows", "copy what it changes")
    if pictures[0] != pictures[1]:
        raise FedbenchError("the picture of the same rows differs", "draw the rows alone, and nothing random")


def an_empty_request_is_one_line(it: FigureSubject) -> None:
    """Where no run is there, it says so in one line."""
    try:
        with reported():
            rows = it.kind.rows(it.request(Frame(it.empty)))
    except FedbenchError as error:
        if "\n" in str(error):
            raise FedbenchError("what it says of an empty store has more than one line") from error
        return
    if rows:
        raise FedbenchError(f"an empty store has no run, and yet {len(rows)} rows", "take the runs of the request")


#: Each check, and those that must hold before it.
CHECKS: tuple[tuple[Callable[[Any], None], tuple[Callable[[Any], None], ...]], ...] = (
    (rows_are_plain_values, ()),
    (the_same_rows_again, (rows_are_plain_values,)),
    (the_painter_draws, (rows_are_plain_values,)),
    (the_rows_are_all_that_is_drawn, (rows_are_plain_values, the_painter_draws)),
    (an_empty_request_is_one_line, ()),
)
