"""Which figures there are, and what stands in each of them: tables/PAPER/figures.toml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedbench import reader, resources
from fedbench.errors import FedbenchError, unknown
from fedbench.reports.table.claims import Claim


@dataclass(frozen=True)
class PanelSpec:
    """One panel: the clients of one partition."""

    title: str
    dataset: str
    partition: Mapping[str, Any]  #: over the protocol's values, such as a preset or a scheme
    clients: tuple[int, ...] | None = None  #: counted from 0; None is all
    samples: tuple[int, ...] = ()  #: kind "images": which images all of them see, as rows of the data set from 0


@dataclass(frozen=True)
class CellSpec:
    """One cell of a table, whose run is shown."""

    table: str
    row: str  #: label
    column: str  #: key


@dataclass(frozen=True)
class SeriesSpec:
    """Tables whose cells are points of lines, and what these lie along."""

    tables: Mapping[str, str]  #: heading of the panels ("" where there is one table) -> table
    #: What a column's partition ("level", "clients"; kind "series"), a row's hyper-parameters or runs (kind "sweep") or
    #: a column's runs ("epochs"; the kind of that name) have; kind "rounds" has "round".
    x: str
    label: str  #: of the axis
    scale: str = "linear"  #: or "log", or "even": as far from each to the next
    values: Mapping[str, str] = field(
        default_factory=dict
    )  #: where x is a text: name on the axis -> the text, in order
    bold: tuple[str, ...] = ()  #: the lines that the figure is about

    def at(self, x: object) -> float | None:
        """Where a value stands: a number at itself, a text at its place among `values`. None for any other."""
        if isinstance(x, int | float):
            return x
        texts = list(self.values.values())
        return float(texts.index(x)) if isinstance(x, str) and x in texts else None

    def tick(self, x: float) -> str:
        """How that is named on the axis."""
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
    claims: tuple[Claim, ...] = ()  #: what the paper says of it, where no table claims it

    @property
    def shows(self) -> bool:
        """Whether it says itself what it shows."""
        return bool(self.panels or self.cells or self.series or self.runs or self.ranked)

    @property
    def protocol(self) -> str:
        """Whose partitions the panels are: the paper's."""
        return self.id.partition("/")[0]

    def beside(self, folder: Path) -> FigureSpec:
        """The figure of a user's file, with tables that are files ('./mine.toml') seen from its folder."""

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
    """The figures that there are, such as 'ftw_erm/2', in order."""
    return list(_figures(resources.TABLES))


def of_user(name: str) -> FigureSpec:
    """The figure './figures.toml:NUMBER' of a user's file, or './figures.toml' where that has only one.

    Raises FedbenchError for a faulty file, an unknown number, and a figure of partitions: these go by their ids.
    """
    file, colon, number = name.rpartition(":")
    if not (colon and file.endswith(".toml")):
        file, number = name, ""
    path = Path(file)
    figures = {figure.id.rpartition("/")[2]: figure for figure in of_file(path)}
    if not number and len(figures) == 1:
        (number,) = figures
    if number not in figures:
        raise (
            unknown(f"figure in {file}", number, figures)
            if number
            else FedbenchError(f"{file} has several figures", f"{file}:{next(iter(figures))} for example")
        )
    figure = figures[number]
    if figure.panels:
        raise FedbenchError(f"{file}, figure {number}: panels are of a paper's figures", "--partition ID shows yours")
    return replace(figure.beside(path.absolute().parent), id=f"{path.stem}/{number}")


def of_paper(name: str, known: Iterable[str]) -> FigureSpec:
    """The figure of that name. Raises FedbenchError for an unknown one, offering the nearest of the `known`, and for a
    faulty file."""
    figures = _figures(resources.TABLES)
    if name not in figures:
        raise unknown("figure", name, known)
    return figures[name]


@cache
def _figures(folder: Path) -> dict[str, FigureSpec]:
    return {figure.id: figure for path in sorted(folder.glob("*/figures.toml")) for figure in of_file(path)}


def of_file(path: Path) -> list[FigureSpec]:
    """The figures that a file declares. Raises FedbenchError for a faulty one."""
    figures = []
    for i, raw in enumerate(reader.read(_File, reader.toml(path, "file of figures"), str(path)).figure, 1):
        values = dict(raw)
        id = f"{path.parent.name}/{values.pop('number', i)}"
        figures.append(reader.read(FigureSpec, values, f"{path}, figure {i}", id=id))
    return figures
