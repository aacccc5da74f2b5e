"""The declarations of figures: tables/PAPER/figures.toml, or a user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fedbench import reader, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.planner.table.claims import Claim
from fedbench.plugins.load import is_file
from fedbench.reader import Among


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
    y: str = ""  #: label of the other axis; default: what the tables' unit says
    range: tuple[float, ...] = ()  #: (low, high): the least range of that axis, of accuracies, in the tables' unit
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
    kind: str  #: a built-in one (`registry.built_in`), or a user's: './mine.py:Mine'
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
        """The figure with paths of files ('./mine.toml', './mine.py:Mine') resolved against the folder of the user's
        file."""

        def seen(name: str) -> str:
            return str(folder / name) if ".toml" in name or is_file(name) else name

        def of_cell(cell: CellSpec) -> CellSpec:
            return replace(cell, table=seen(cell.table))

        series, cells = self.series, self.cells
        return replace(
            self,
            kind=seen(self.kind),
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
