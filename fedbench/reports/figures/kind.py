"""What a kind of figure is: rows and a painter. The rows are the figure's CSV and JSON; the picture shows only them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedbench.errors import FedbenchError, check_known
from fedbench.groups import by_key
from fedbench.metrics.read import VIEW
from fedbench.planner.table.spec import VIEWS
from fedbench.reports.figures.spec import FigureSpec
from fedbench.store import Store
from fedbench.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from fedbench.results.frame import Frame
    from fedbench.results.run import Run
    from fedbench.store import Artifact

#: A mark of a figure, such as a point: name -> plain value (text, number, boolean, None, or lists and dictionaries).
Row = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Where a figure's numbers may come from, and the user's options. None: as the figure declares."""

    frame: Frame
    roots: Sequence[Path] = ()
    notify: Callable[[str], None] | None = None  #: called with each remark, one line
    filters: Sequence[str] | None = None  #: select runs of the store, see `planner.runs.select`
    partition: str | None = None  #: id of a partition to show instead of the figure's
    run: str | None = None  #: id of a run to show instead of the figure's
    client: Sequence[int] | None = None  #: of that partition, from 0
    image: Sequence[int] | None = None  #: rows of the data set, from 0
    metric: str | None = None
    against: str | None = None  #: x axis of curves, one of `learning.AXES`
    by: Sequence[str] | None = None  #: keys that group runs
    view: str | None = None  #: of the test images, one of `spec.VIEWS`
    budget: str | None = None
    seed: int | None = None
    ridge: float | None = None
    compare: bool | None = None  #: also draw what the paper reports
    said: list[str] = field(default_factory=list)  #: lines that describe the figure, see `say`

    @property
    def store(self) -> Store:
        return self.frame.store

    def runs(self) -> list[Run]:
        """The runs that the filters select. Remarks on who made shipped ones, and on runs of other code."""
        from fedbench.planner.runs import select
        from fedbench.reports.layout.shipped import of_runs

        runs = select(self.frame, self.filters or (), self.roots)
        for line in of_runs(run.shipped for run in runs if run.shipped):
            self.remark(line)
        self.remark_code(runs)
        return runs

    def run_itself(self) -> Artifact:
        """The run that the user named instead of the figure's."""
        run = self.store.find(str(self.run), ("run",))
        self.remark_code([run])
        return run

    def remark_code(self, runs: Iterable[Run | Artifact]) -> None:
        """Remark on runs that another version of the code made, or whose test images train other clients."""
        from fedbench.results.run import by_other_code, leaking

        runs = list(runs)
        for line in (*by_other_code(runs), *leaking(runs)):
            self.remark(line)

    def seen(self) -> str:
        """The requested view of the test images; default: unchanged images, which every run has after its last round.
        Raises FedbenchError for an unknown view."""
        check_known("test augmentation", self.view, VIEWS)
        return self.view or VIEW

    def remark(self, text: str) -> None:
        """Tell the user what the figure lacks, or what to know about its runs."""
        if self.notify is not None:
            self.notify(text)

    def say(self, text: str) -> None:
        """Describe what the figure shows, in a line of text that is printed and written beside a picture."""
        self.said.append(text)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the user set."""
        names = (f.name for f in fields(self) if f.default is None and f.name != "notify")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Kind(ABC):
    """A kind of figure. A new one is a file in `kinds/`, or a user's: './mine.py:Mine'.

    Rows that have the same `apart` are a panel. CSV prints the `columns` of each row; JSON prints what is in
    `of_figure` once, what is in `of_panel` once a panel, and all else in every row.
    """

    names: ClassVar[tuple[str, ...]] = ()  #: of a built-in kind in figures.toml
    title: ClassVar[str] = ""  #: of the figure that a name alone stands for; "": there is none
    needs: ClassVar[str] = ""  #: the field of `FigureSpec` without which it shows nothing
    options: tuple[str, ...] = ("filters",)  #: the fields of `Request` that it uses
    columns: tuple[str, ...] = ()  #: of the CSV; (): all names that rows have
    of_figure: tuple[str, ...] = ()  #: names of facts about the figure, equal in all rows
    of_panel: tuple[str, ...] = ()  #: names of facts about a panel, equal in its rows
    apart: ClassVar[tuple[str, ...]] = ("panel",)  #: names of values that tell panels apart
    one_column: ClassVar[bool] = True  #: whether a figure of one panel is as wide as a column, else as a page

    def __init__(self, spec: FigureSpec) -> None:
        self.spec = spec

    @abstractmethod
    def rows(self, request: Request) -> list[Row]:
        """The figure's numbers, a row a mark. Raises FedbenchError if they are missing, with a hint at how to make
        them. `request.say` describes them in words."""

    @abstractmethod
    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw the rows on an empty figure, which is as wide as it will be printed; its height is the painter's choice.
        matplotlib has the style of all figures then (`style`)."""

    def charts(self, rows: list[Row]) -> Iterable[RenderableType]:
        """The figure drawn in letters, for a terminal, which else gets its rows."""
        return ()

    def panels(self, rows: Iterable[Row]) -> list[list[Row]]:
        """The rows of each panel."""
        return [*by_key((tuple(row.get(name) for name in self.apart), row) for row in rows).values()]


def room_for(count: int, most: int, what: str, hint: str) -> None:
    """Raise FedbenchError if `count` is above `most`, the number that a picture can hold."""
    if count > most:
        raise FedbenchError(f"{count} {what}", hint)


def enough(points: int, figure: FigureSpec, hint: str) -> None:
    """Raise FedbenchError for fewer points than a line is worth drawing for."""
    if points < _FEWEST:
        raise FedbenchError(
            f"{figure.id} has {counted(points, 'point')}, and fewer than {_FEWEST} are no figure (--csv prints them)",
            hint,
        )


_FEWEST = 3


def by_line(rows: Iterable[Row], name: str = "line") -> dict[str, list[Row]]:
    """Name of a line -> its rows."""
    return by_key((row[name], row) for row in rows)


def broken(points: Iterable[tuple[float, ...]], gaps: Iterable[float]) -> list[tuple[float, ...]]:
    """A line's points (x, y, ...) by x, with NaN for y at each gap between them, where the drawn line breaks."""
    there = [*points]
    return sorted([*there, *((x, *[math.nan] * (len(there[0]) - 1)) for x in gaps)], key=itemgetter(0))


def quantity(row: Row) -> str:
    """The metric of a figure of runs, with its unit, and a note if test images are cropped as in training."""
    crop = "cropped images" if row["test_images"] == "crop" else ""
    notes = ", ".join(filter(None, (row["unit"], crop)))
    return str(row["metric"]).replace("_", " ") + (f" ({notes})" if notes else "")
