"""Which figures there are, and what stands in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbench.errors import unknown
from fedbench.report.claims import Claim


@dataclass(frozen=True)
class PanelSpec:
    """One panel: the clients of one partition."""

    title: str
    dataset: str
    partition: Mapping[str, Any]  #: over the protocol's values, such as a layout or a scheme
    clients: tuple[int, ...] | None = None  #: counted from 0; None is all


@dataclass(frozen=True)
class CellSpec:
    """Cells of a table: one of them, or all (no row and no column)."""

    table: str
    row: str = ""  #: label
    column: str = ""  #: key


@dataclass(frozen=True)
class SeriesSpec:
    """Tables whose cells are points of lines, and what these lie along."""

    tables: Mapping[str, str]  #: heading of the panels ("" where there is one table) -> table
    #: What a column's partition ("level", "clients"; kind "series") or a row's hyper-parameters (kind "sweep") have.
    x: str
    label: str  #: of the axis
    scale: str = "linear"  #: or "log", or "even": as far from each to the next
    bold: tuple[str, ...] = ()  #: the lines that the figure is about


@dataclass(frozen=True)
class FigureSpec:
    """One figure of a paper. It shows partitions (`panels`) or runs (`cells`, `series`, `runs`)."""

    id: str
    title: str
    kind: str  #: one of `kinds.KINDS`, which gathers and draws it
    panels: tuple[PanelSpec, ...] = ()
    cells: CellSpec | None = None
    series: SeriesSpec | None = None
    runs: Mapping[str, CellSpec] = field(default_factory=dict)  #: title of a panel -> the cell whose run it shows
    claims: tuple[Claim, ...] = field(default=())  #: what the paper says of it, where no table claims it

    @property
    def protocol(self) -> str:
        """Whose partitions the panels are: the paper's."""
        return self.id.partition("/")[0]


_FASHION = PanelSpec("Fashion-MNIST", "fashion_mnist", {"layout": "five"})
#: With all of client 1's images: the 500 that it trains on in Table 3 have fewer rows than pixels.
_COLORED = PanelSpec("Colored MNIST", "mnist", {"layout": "colored_whole"})
_COLORED_1 = PanelSpec(_COLORED.title, _COLORED.dataset, _COLORED.partition, clients=(0,))


def _dirichlet(dataset: str, alpha: float) -> PanelSpec:
    return PanelSpec(f"{dataset.upper()}, α = {alpha:g}", dataset, {"scheme": "dirichlet", "alpha": alpha})


#: Data set in print -> the table of its levels.
_LEVELS = {"MNIST": "mnist", "FMNIST": "fashion_mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}


def _levels(tables: Mapping[str, str]) -> SeriesSpec:
    named = {heading: f"flux/levels_{dataset}" for heading, dataset in tables.items()}
    return SeriesSpec(named, "level", "level of heterogeneity", bold=("FLUX", "FLUX-prior"))


def _under_px(dataset: str, table: str) -> dict[str, CellSpec]:
    """Banks of three, four and five looks: levels 2 to 4 of P(X)."""
    return {
        f"{dataset}, {level + 1} distributions": CellSpec(table, "FLUX", f"Known association/Level {level}")
        for level in (2, 3, 4)
    }


FIGURES = {
    figure.id: figure
    for figure in (
        FigureSpec(
            "ftw_erm/2", "Test against training eigenvalues of every client", "ratio", panels=(_FASHION, _COLORED)
        ),
        FigureSpec(
            "ftw_erm/3", "Singular values of training and test images", "spectrum", panels=(_FASHION, _COLORED_1)
        ),
        FigureSpec(
            "pfedfda/2",
            "β of the clients by the corruption of their images",
            "beta",
            cells=CellSpec("pfedfda/1", "pFedFDA", "CIFAR10-S/100 %"),
            claims=(
                Claim("mean β(clean) < mean β(corrupted)", "below", rows=["clean"], than=["corrupted"]),
            ),
        ),
        FigureSpec(
            "pfedfda/3",
            "Samples of each class that each client holds",
            "bubbles",
            panels=(_dirichlet("cifar10", 0.1), _dirichlet("cifar10", 0.5)),
        ),
        FigureSpec(
            "pfedfda/4", "Local test accuracy by local epochs", "epochs", cells=CellSpec("pfedfda/figure4")
        ),
        FigureSpec("flux/4", "MNIST by level of heterogeneity", "series", series=_levels({"": "mnist"})),
        FigureSpec(
            "flux/5",
            "Accuracy and time by number of clients, MNIST",
            "series",
            series=SeriesSpec({"": "flux/51"}, "clients", "clients $K$", "log", bold=("FLUX", "FLUX-prior")),
        ),
        FigureSpec(
            "flux/8",
            "FLUX by the round in which it clusters",
            "sweep",
            series=SeriesSpec({"": "flux/figure8"}, "start", "round of the clustering"),
        ),
        FigureSpec(
            "flux/10",
            "FLUX by the threshold of the warm-up",
            "sweep",
            series=SeriesSpec({"": "flux/figure10"}, "threshold", "threshold $T$", "even"),
        ),
        FigureSpec(
            "flux/11",
            "Descriptors of the clients in two dimensions",
            "descriptors",
            runs={**_under_px("MNIST", "flux/12"), **_under_px("CIFAR-100", "flux/42")},
        ),
        FigureSpec("flux/12", "Accuracy by level of heterogeneity, each data set", "series", series=_levels(_LEVELS)),
    )
}  # fmt: skip


def load(name: str) -> FigureSpec:
    """The figure of that name, such as 'ftw_erm/2'. Raises FedbenchError for an unknown one, offering the nearest."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]
