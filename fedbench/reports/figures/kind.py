"""What every kind of figure must say: whence its numbers come, how they are drawn, and their other forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from fedbench.errors import FedbenchError
from fedbench.reports.figures.panel import Content, Marks
from fedbench.reports.figures.spec import FigureSpec
from fedbench.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from fedbench.reports.runs import Run
    from fedbench.results.shelf import Shelf
    from fedbench.store import Artifact


@dataclass(frozen=True)
class Ask:
    """Where a figure's numbers may come from, and what the user asks for. None: as the figure has it."""

    store: Store
    roots: Sequence[Path] = ()
    notify: Callable[[str], None] | None = None  #: gets remarks, a line each
    partition: str | None = None  #: id of a partition in place of the figure's own
    run: str | None = None  #: id of a run in place of the figure's own
    client: Sequence[int] | None = None  #: of that partition, from 0
    image: Sequence[int] | None = None  #: rows of the data set, from 0
    budget: str | None = None
    seed: int | None = None
    ridge: float | None = None
    compare: bool | None = None  #: draw what the paper reports too
    filters: Sequence[str] | None = None  #: which runs of the store, as `reports.runs.select` takes them
    metric: str | None = None
    against: str | None = None  #: what curves lie along
    by: Sequence[str] | None = None  #: keys that group runs
    view: str | None = None  #: of the test images
    mine: bool = False  #: leave out shipped results

    @cached_property
    def shelf(self) -> Shelf:
        """The shipped results that it may show; packs that cannot be read are remarked."""
        from fedbench.results.shelf import Shelf

        return Shelf([]) if self.mine else Shelf.of(self.store, lambda problem: self.remark(str(problem)))

    def runs(self) -> list[Run]:
        """The runs that its filters name; who made the shipped ones among them is remarked."""
        from fedbench.reports.layout.shipped import of_runs
        from fedbench.reports.runs import select

        runs = select(self.store, self.filters or (), self.shelf, self.roots)
        for line in of_runs(run.shipped for run in runs if run.shipped):
            self.remark(line)
        self.remark_code(run.artifact for run in runs)
        return runs

    def run_itself(self) -> Artifact:
        """The run that is named in the place of the figure's own."""
        run = self.store.find(str(self.run), ("run",))
        self.remark_code([run])
        return run

    def remark_code(self, runs: Iterable[Artifact]) -> None:
        """Remark on those of the runs that other code than today's made."""
        from fedbench.reports.status.versions import by_other_code

        for line in by_other_code(runs):
            self.remark(line)

    def remark(self, text: str) -> None:
        if self.notify is not None:
            self.notify(text)

    @property
    def options(self) -> Mapping[str, Any]:
        """What the user chose."""
        names = (
            "filters", "partition", "run", "client", "image", "metric", "against", "by", "view", "budget", "seed",
            "ridge", "compare",
        )  # fmt: skip
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Kind(ABC, Generic[Marks]):
    """One kind of figure."""

    options: ClassVar[tuple[str, ...]] = ()  #: those of `Ask` that it heeds
    columns: ClassVar[tuple[str, ...]]  #: of the CSV form

    def check(self, figure: FigureSpec, ask: Ask) -> None:
        """Raise FedbenchError for an option that would change nothing."""
        given = ask.options
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
                raise FedbenchError(f"figure {figure.id} shows a partition of yours", "name it: --partition ID")
        for name in ("budget", "seed"):
            if theirs and name in given:
                named = _written(theirs[0])
                raise FedbenchError(f"{_written(name)} does not go with {named}, which has its own", "leave it out")

    @abstractmethod
    def gather(self, figure: FigureSpec, ask: Ask) -> Content[Marks]:
        """The figure's numbers. Raises FedbenchError where they are not to be had, saying what makes them."""

    @abstractmethod
    def paint(self, figure: FigureSpec, content: Content[Marks]) -> Figure:
        """The picture, under our style."""

    @abstractmethod
    def rows(self, marks: Marks) -> Iterator[Mapping[str, Any]]:
        """A panel's lines of the CSV form: those of `columns` that neither the panel nor the figure says of itself."""

    @abstractmethod
    def values(self, marks: Marks) -> Mapping[str, Any]:
        """A panel's JSON form, behind its title and what is said about it."""

    def words(self, figure: FigureSpec, content: Content[Marks]) -> Iterable[str]:
        """A few plain lines that say what is seen."""
        return ()

    def details(self, figure: FigureSpec, content: Content[Marks]) -> Iterable[RenderableType]:
        """More of it, for a terminal."""
        return ()


def _written(option: str) -> str:
    """An option of `Ask` as the command line has it."""
    return {"filters": "FILTER", "view": "--test-augmentation"}.get(option, f"--{option}")
