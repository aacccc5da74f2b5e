"""Which figures there are, and what stands in each of them: tables/PAPER/figures.toml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedbench import reader, resources
from fedbench.errors import unknown
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
    claims: tuple[Claim, ...] = ()  #: what the paper says of it, where no table claims it

    @property
    def shows(self) -> bool:
        """Whether it says itself what it shows."""
        return bool(self.panels or self.cells or self.series or self.runs)

    @property
    def protocol(self) -> str:
        """Whose partitions the panels are: the paper's."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class _File:
    """tables/PAPER/figures.toml."""

    figure: list[Mapping[str, Any]]


def names() -> list[str]:
    """The figures that there are, such as 'ftw_erm/2', in order."""
    return list(_figures(resources.TABLES))


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
