"""What every kind of figure implements: it gathers numbers, draws them, and writes them as rows and words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from fedbench.errors import FedbenchError, check_known
from fedbench.metrics.read import VIEW
from fedbench.planner.table.spec import VIEWS
from fedbench.reports.figures.panel import Content, Marks
from fedbench.reports.figures.spec import FigureSpec
from fedbench.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from fedbench.results.frame import Frame
    from fedbench.results.run import Run
    from fedbench.store import Artifact


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
        """Remark on the runs that were made by another version of the code."""
        from fedbench.results.run import by_other_code

        for line in by_other_code(runs):
            self.remark(line)

    def seen(self) -> str:
        """The requested view of the test images; default: unchanged images, which every run has after its last round.
        Raises FedbenchError for an unknown view."""
        check_known("test augmentation", self.view, VIEWS)
        return self.view or VIEW

    def remark(self, text: str) -> None:
        if self.notify is not None:
            self.notify(text)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the user set."""
        names = (f.name for f in fields(self) if f.default is None and f.name != "notify")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Kind(ABC, Generic[Marks]):
    """One kind of figure."""

    needs: ClassVar[str] = ""  #: the field of `FigureSpec` without which it shows nothing
    options: ClassVar[tuple[str, ...]] = ()  #: the fields of `Request` that it uses
    columns: ClassVar[tuple[str, ...]]  #: of the CSV form

    def check(self, figure: FigureSpec, request: Request) -> None:
        """Raise FedbenchError for an option that would change nothing."""
        given = request.options
        takes = ", ".join(_written(name) for name in self.options) or "no options"
        for name in given:
            if name not in self.options:
                raise FedbenchError(f"{_written(name)} does not go with {figure.id}", f"it takes {takes}")
        theirs = [name for name in ("partition", "run", "filters") if name in given]
        if len(theirs) > 1:
            raise FedbenchError(f"{_written(theirs[0])} and {_written(theirs[1])} exclude each other", "choose one")
        if "partition" in self.options and not theirs:
            for name in ("client", "image"):
                if name in given:
                    raise FedbenchError(f"--{name} goes with --partition only", "leave it out")
            if not figure.shows:
                raise FedbenchError(
                    f"figure {figure.id} shows a partition of yours",
                    "make one: fedbench partition, or name it: --partition ID",
                )
        for name in ("budget", "seed"):
            if theirs and name in given:
                named = _written(theirs[0])
                raise FedbenchError(f"{_written(name)} does not go with {named}, which has its own", "leave it out")

    @abstractmethod
    def gather(self, figure: FigureSpec, request: Request) -> Content[Marks]:
        """The figure's numbers. Raises FedbenchError if they are missing, with a hint at how to make them."""

    @abstractmethod
    def paint(self, figure: FigureSpec, content: Content[Marks]) -> Figure:
        """The picture; called within `style.applied`."""

    @abstractmethod
    def rows(self, marks: Marks) -> Iterator[Mapping[str, Any]]:
        """A panel's numbers, a row per mark, by names from `columns`, without those in `Panel.about` and
        `Content.about`. The CSV (where a list becomes words) and the JSON consist of these rows."""

    def summary(self, marks: Marks) -> Mapping[str, Any]:
        """Facts about a panel as a whole, for the JSON."""
        return {}

    def words(self, figure: FigureSpec, content: Content[Marks]) -> Iterable[str]:
        """A few lines of text that describe what the figure shows."""
        return ()

    def charts(self, figure: FigureSpec, content: Content[Marks]) -> Iterable[RenderableType]:
        """The figure drawn in letters, for a terminal, which else gets its rows."""
        return ()


def room_for(count: int, most: int, what: str, hint: str) -> None:
    """Raise FedbenchError if `count` is above `most`, the number that a picture can hold."""
    if count > most:
        raise FedbenchError(f"{count} {what}", hint)


def quantity(content: Content[Any]) -> str:
    """The metric of a figure of runs, with its unit, and a note if test images are cropped as in training."""
    crop = "cropped images" if content.about["test_images"] == "crop" else ""
    notes = ", ".join(filter(None, (content.about["unit"], crop)))
    return str(content.about["metric"]).replace("_", " ") + (f" ({notes})" if notes else "")


def _written(option: str) -> str:
    """The spelling of a field of `Request` on the command line."""
    return {"filters": "FILTER", "view": "--test-augmentation"}.get(option, f"--{option}")
