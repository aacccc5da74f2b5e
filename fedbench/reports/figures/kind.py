"""What every kind of figure implements: it gathers numbers, draws them, and writes them as rows and words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from fedbench import reader, resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.metrics.read import VIEW
from fedbench.partitions import schemes
from fedbench.planner.table.claims import Claim, Verdict
from fedbench.planner.table.spec import VIEWS
from fedbench.reader import Among
from fedbench.reports.numbers.measured import Value
from fedbench.specs import RunSpec
from fedbench.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from fedbench.results.frame import Frame, Run
    from fedbench.store import Artifact


# -- panel -----------------------------------------------------------------------------------------------------
# What a figure of any kind shows: panels, each with its marks, and facts about all of them.


#: What a kind draws in a panel.
Marks = TypeVar("Marks")


@dataclass(frozen=True, eq=False)
class Panel(Generic[Marks]):
    """One panel: the marks that its kind draws, and where they come from."""

    title: str
    about: Mapping[str, Any]  #: data set, partition, run, ..., by column of the CSV and JSON
    marks: Marks


@dataclass(frozen=True, eq=False)
class Content(Generic[Marks]):
    """All panels of a figure."""

    panels: Sequence[Panel[Marks]]
    about: Mapping[str, Any] = field(default_factory=dict)  #: facts about all panels, as in `Panel`
    claims: Sequence[Verdict] = ()  #: verdicts on the paper's claims about the figure
    cells: tuple[int, int] | None = None  #: (measured, all) cells of the tables behind it

    @property
    def sparse(self) -> str:
        """How many cells are measured, in words; "" if that is at least half of them."""
        measured, every = self.cells or (0, 0)
        return f"{measured} of {every} cell{'' if every == 1 else 's'} measured" if 2 * measured < every else ""


def of_run(run: Artifact, marks: Marks, title: str = "") -> Panel[Marks]:
    """A panel about a run. Without a title, it is named after the run's method, data set and partition."""
    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, partition = spec.setting, spec.setting.partition
    name = partition.dataset.name
    about = {"run": run.id, "budget": setting.budget, "dataset": name, "partition": partition.id}
    title = title or f"{run.provenance.get('title', spec.method)}, {name} {schemes.label(partition)}"
    return Panel(title, about, marks)


# -- points ----------------------------------------------------------------------------------------------------
# Points of lines over an axis, measured or reported by a paper: what a panel of table cells shows.


@dataclass(frozen=True)
class Point:
    """One cell: measured, reported by the paper, or both. `x` is None for a level, which holds at every x."""

    x: float | None
    value: Value | None
    error: float | None  #: half the length of its error bar
    reported: tuple[float, float | None] | None  #: (value, ±)
    rounds: int | None  #: of its runs; None for a column that is derived from others
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Lines:
    """Lines over one axis."""

    table: str
    unit: str  #: its symbol, "" for fractions
    rounds: tuple[int, ...]  #: numbers of rounds of the table's runs
    names: tuple[str, ...]  #: of all possible lines; a line's style depends on its index here
    lines: dict[str, list[Point]] = field(default_factory=dict)  #: name -> points by x
    gaps: dict[str, list[float]] = field(default_factory=dict)  #: name -> x of missing cells

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines.values() for point in line]

    def measured(self, name: str) -> list[tuple[float, float, float]]:
        """(x, mean, half an error bar) of a line's measured points, by x. Missing cells between them have the mean NaN,
        so that the drawn line breaks there."""
        there = sorted(
            (p.x, p.value.mean, p.error or 0.0) for p in self.lines[name] if p.x is not None and p.value is not None
        )
        between = [x for x in self.gaps.get(name, ()) if there and there[0][0] < x < there[-1][0]]
        return sorted([*there, *((x, math.nan, 0.0) for x in between)], key=itemgetter(0))

    @property
    def measured_lines(self) -> dict[str, list[tuple[float, ...]]]:
        """Name -> measured points, for lines that have any."""
        return {name: points for name in self.lines if (points := self.measured(name))}


def every_name(content: Content[Lines]) -> list[str]:
    """The names of all possible lines, in the tables' order."""
    return list(dict.fromkeys(name for panel in content.panels for name in panel.marks.names))


def line_names(content: Content[Lines]) -> list[str]:
    """The names of the lines that have points in at least one panel."""
    return [name for name in every_name(content) if any(name in panel.marks.lines for panel in content.panels)]


def every_point(panels: Sequence[Panel[Lines]]) -> list[Point]:
    return [point for panel in panels for point in panel.marks.points]


# -- spec ------------------------------------------------------------------------------------------------------
# The declarations of figures: tables/PAPER/figures.toml.


@dataclass(frozen=True)
class PanelSpec:
    """One panel: the clients of one partition."""

    title: str
    dataset: str
    partition: Mapping[str, Any]  #: overrides of the protocol's values, such as a preset or a scheme
    clients: tuple[int, ...] | None = None  #: from 0; None: all
    samples: tuple[int, ...] = ()  #: kind "images": rows of the data set (from 0) that all clients see


@dataclass(frozen=True)
class CellSpec:
    """One cell of a table, whose run is shown."""

    table: str
    row: str  #: label
    column: str  #: key


@dataclass(frozen=True)
class SeriesSpec:
    """Tables whose cells are points of lines, and the axis of these lines."""

    tables: Mapping[str, str]  #: heading of the panels ("" for a single table) -> table
    #: Kind "series": an option of the columns' partitions, such as "level" or "clients". Kind "sweep":
    #: a hyper-parameter or training option of the rows. Kind "epochs": "epochs". Kind "rounds": "round".
    x: str
    label: str  #: of the axis
    #: "even": equal steps between values.
    scale: Annotated[str, Among("scale", ("linear", "log", "even"))] = "linear"
    values: Mapping[str, str] = field(default_factory=dict)  #: if x is a text: name on the axis -> the text, in order
    bold: tuple[str, ...] = ()  #: the lines that the figure is about
    changes: bool = False  #: kind "rounds": below each panel another one with the change per round

    def at(self, x: object) -> float | None:
        """The axis position of a value: a number itself, a text's index in `values`, None for anything else."""
        if isinstance(x, int | float):
            return x
        texts = list(self.values.values())
        return float(texts.index(x)) if isinstance(x, str) and x in texts else None

    def tick(self, x: float) -> str:
        """The axis label of a position."""
        return list(self.values)[int(x)] if self.values else f"{x:g}"


@dataclass(frozen=True)
class FigureSpec:
    """One figure of a paper. It shows partitions (`panels`) or runs (`cells`, `series`, `runs`)."""

    id: str  #: PAPER/NUMBER
    title: str
    kind: str  #: one of `kinds.KINDS`, which gathers and draws it
    panels: tuple[PanelSpec, ...] = ()
    cells: CellSpec | None = None
    series: SeriesSpec | None = None
    runs: Mapping[str, CellSpec] = field(default_factory=dict)  #: title of a panel -> the cell whose run it shows
    ranked: tuple[str, ...] = ()  #: kind "ranks": tables whose rows are ranked over the columns of the tables' metric
    claims: tuple[Claim, ...] = ()  #: what the paper claims about it, unless a table has that claim

    @property
    def shows(self) -> bool:
        """Whether the declaration defines what is shown."""
        return bool(self.panels or self.cells or self.series or self.runs or self.ranked)

    @property
    def protocol(self) -> str:
        """The protocol of the panels' partitions: the paper's."""
        return self.id.partition("/")[0]

    def seen_from(self, folder: Path) -> FigureSpec:
        """The figure with paths of table files ('./mine.toml') resolved against the folder of the user's file."""

        def seen(table: str) -> str:
            return str(folder / table) if ".toml" in table else table

        def of_cell(cell: CellSpec) -> CellSpec:
            return replace(cell, table=seen(cell.table))

        series, cells = self.series, self.cells
        return replace(
            self,
            series=series and replace(series, tables={name: seen(t) for name, t in series.tables.items()}),
            cells=cells and of_cell(cells),
            runs={title: of_cell(cell) for title, cell in self.runs.items()},
            ranked=tuple(map(seen, self.ranked)),
        )


@dataclass(frozen=True)
class _File:
    """tables/PAPER/figures.toml."""

    figure: list[Mapping[str, Any]]


def names() -> list[str]:
    """The ids of all papers' figures, such as 'ftw_erm/2', in order."""
    return list(of_papers())


def of_user(name: str) -> FigureSpec:
    """The figure './figures.toml:NUMBER' of a user's file; './figures.toml' is enough if the file has a single one.

    Raises FedbenchError for a faulty file, an unknown number, and a figure with panels, which only papers can have.
    """
    file, colon, number = name.rpartition(":")
    if not (colon and file.endswith(".toml")):
        file, number = name, ""
    path = Path(file)
    figures = {figure.id.rpartition("/")[2]: figure for figure in of_file(path)}
    if not number and len(figures) == 1:
        (number,) = figures
    if not figures:
        raise FedbenchError(f"{file} has no figure", "[[figure]] begins one")
    if number not in figures:
        raise (
            unknown(f"figure in {file}", number, figures)
            if number
            else FedbenchError(f"{file} has several figures", f"{file}:{next(iter(figures))} for example")
        )
    figure = figures[number]
    if figure.panels:
        raise FedbenchError(f"{file}, figure {number}: panels are of a paper's figures", "--partition ID shows yours")
    return replace(figure.seen_from(path.absolute().parent), id=f"{path.stem}/{number}")


def of_papers() -> dict[str, FigureSpec]:
    """The figures of all papers' folders, by id. Raises FedbenchError for a faulty file."""
    paths = [folder / "figures.toml" for folder in resources.papers().values()]
    return {figure.id: figure for path in paths if path.exists() for figure in of_file(path)}


@cache
def of_file(path: Path) -> list[FigureSpec]:
    """The figures that a file declares. Raises FedbenchError for a faulty one."""
    figures = []
    for i, raw in enumerate(reader.read(_File, reader.toml(path, "file of figures"), str(path)).figure, 1):
        values = dict(raw)
        id = f"{path.parent.name}/{values.pop('number', i)}"
        figures.append(reader.read(FigureSpec, values, f"{path}, figure {i}", id=id))
    return figures


# -- kind ------------------------------------------------------------------------------------------------------


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
        from fedbench.results.frame import by_other_code

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
                raise FedbenchError(f"figure {figure.id} shows a partition of yours", "name it: --partition ID")
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
