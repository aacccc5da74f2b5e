"""Figures 2 and 3 of FTW-ERM: spectra of the clients' training and test images, of which test against training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.partition import schemes
from fedbench.report.figures import source
from fedbench.report.figures.curves import RIDGE, Curve, Panel, curves, findings
from fedbench.report.figures.kind import Ask, Kind
from fedbench.report.figures.spec import FigureSpec
from fedbench.report.figures.style import COLOURS
from fedbench.theory.spectrum import LARGEST_BOUND, LEAST_BOUND

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.text import Text

    from fedbench.partition import Partition

#: More curves than this cannot be told apart.
MOST = 8

_TERMS = (
    "s = sqrt(λ'/λ) of the eigenvalues of XᵀX/n, up to the numerical rank; raw leaves out the 1/n, as the paper's "
    "figures do. bound = (1 + sqrt(1 + 4ξ))/2 with ξ = λ/(λ + S²), λ = {ridge:g}."
)


class Spectra(Kind[Sequence[Panel]]):
    """Singular values by rank."""

    options = ("partition", "client", "seed", "ridge")
    columns = (
        "panel", "dataset", "partition", "client", "rank", "train_singular_value", "test_singular_value", "raw_ratio",
        "ratio", "bound",
    )  # fmt: skip

    def gather(self, figure: FigureSpec, ask: Ask) -> list[Panel]:
        """All panels of a figure, or that of one partition. Raises FedbenchError without images."""
        if ask.partition is not None:
            return [of_partition(source.chosen_partition(ask.partition, ask), ask, clients=ask.client)]
        # The paper counts its clients from 1.
        return [
            of_partition(source.partition(figure, panel, ask), ask, title=panel.title, clients=panel.clients, first=1)
            for panel in figure.panels
        ]

    def paint(self, figure: FigureSpec, shown: Sequence[Panel]) -> Figure:
        return _spectrum_figure(shown)

    def lines(self, shown: Sequence[Panel]) -> Iterator[Sequence[Any]]:
        """One line a client and rank; ratios are empty beyond the numerical rank."""
        for panel in shown:
            for curve in panel.curves:
                for line in _lines(curve):
                    yield [panel.title, panel.dataset, panel.partition, curve.client, *line]

    def told(self, shown: Sequence[Panel]) -> dict[str, Any]:
        """The findings of each client, and its curves as lists from rank 1 on."""
        return {
            "panels": [
                {
                    "title": panel.title,
                    "dataset": panel.dataset,
                    "partition": panel.partition,
                    "clients": [{**findings(curve), "ridge": curve.ridge, **_lists(curve)} for curve in panel.curves],
                }
                for panel in shown
            ]
        }

    def details(self, figure: FigureSpec, shown: Sequence[Panel]) -> Iterable[RenderableType]:
        """The findings, client by client."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        yield Text.assemble((figure.id, "bold cyan"), "  ", (figure.title, "bold"))
        heads = ("client", "train", "test", "rank", "max raw", "max s", "s < 1", "s < bound", "s < 1.618")
        for panel in shown:
            table = Table(
                *heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title_justify="left"
            )
            table.title = Text(f"{panel.title}  (partition {panel.partition})", "bold")
            for column in table.columns:
                column.justify = "right"
            for told in map(findings, panel.curves):
                table.add_row(*_cells(told))
            yield table
            yield ""
        yield Text(_TERMS.format(ridge=shown[0].curves[0].ridge), "dim")


class Ratio(Spectra):
    """Test against training eigenvalues by rank."""

    def paint(self, figure: FigureSpec, shown: Sequence[Panel]) -> Figure:
        return _ratio_figure(shown)


def of_partition(
    partition: Partition, ask: Ask, *, title: str = "", clients: Sequence[int] | None = None, first: int = 0
) -> Panel:
    """The panel of a partition's clients (all if None), printed as counted from `first`.

    Raises FedbenchError for a client that is not there, and for more clients than can be told apart.
    """
    from fedbench import data

    chosen = range(partition.clients) if clients is None else sorted(set(clients))
    for client in chosen:
        if not 0 <= client < partition.clients:
            raise FedbenchError(
                f"partition {partition.id} has no client {client}", f"it has 0..{partition.clients - 1}"
            )
    if len(chosen) > MOST:
        raise FedbenchError(
            f"{len(chosen)} clients cannot be told apart in one panel", f"choose up to {MOST}: --client"
        )
    seen = partition.transformed_images(data.load(partition.spec.dataset, ask.store, ask.roots, ask.notify))
    sides = {"train": False, "test": True}
    images = {(c + first, s): seen[partition.rows(c, test=t)] for c in chosen for s, t in sides.items()}
    name, ridge = partition.spec.dataset.name, RIDGE if ask.ridge is None else ask.ridge
    return Panel(title or f"{name}, {schemes.label(partition.spec)}", name, partition.id, curves(images, ridge))


def _lines(curve: Curve) -> Iterator[list[Any]]:
    c = curve.comparison
    for i, (train, test) in enumerate(zip(curve.train.values, curve.test.values, strict=False)):
        inside = i < c.rank
        ratios = [float(v[i]) for v in (c.raw, c.normalised, c.bound)] if inside else [None] * 3
        yield [i + 1, float(train), float(test), *ratios]


def _lists(curve: Curve) -> dict[str, list[float]]:
    c = curve.comparison
    return {
        "train_singular_values": curve.train.values.tolist(),
        "test_singular_values": curve.test.values.tolist(),
        "raw_ratio": c.raw.tolist(),
        "ratio": c.normalised.tolist(),
        "bound": c.bound.tolist(),
    }


def _cells(told: dict[str, Any]) -> list[Text]:
    """One client's findings as the cells of a line."""
    from rich.text import Text

    rank = min(told["rank_train"], told["rank_test"])
    plain = [str(told["client"]), f"{told['n_train']:,}", f"{told['n_test']:,}", f"{rank:,}"]
    plain += ["-" if told[k] is None else f"{told[k]:.3f}" for k in ("largest_raw", "largest")]
    cells = [Text(text) for text in plain]
    for key in ("below_1", "below_bound", "below_1.618"):
        share = told[key]
        cells.append(Text("-") if share is None else Text(_percent(share), "green" if share == 1 else "yellow"))
    return cells


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{int(1000 * share) / 10:.1f} %"


# -- drawing ------------------------------------------------------------------------------------------

_DASHES = (0, (3, 1.5))
_RAW: dict[str, Any] = {"alpha": 0.55, "linewidth": 0.9, "linestyle": _DASHES}
_DOT: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "clip_on": False}
_TRAINING: dict[str, Any] = {"linestyle": _DASHES}


def _ratio_figure(panels: Sequence[Panel]) -> Figure:
    """s_i by rank, on one axis in all panels."""
    looks = [{"label": "normalised"}, {"label": "raw (paper)", **_RAW}, {"label": "largest", **_DOT}]
    drawn = _panels(panels, _ratio, r"$s_i=\sqrt{\lambda'_i/\lambda_i}$", looks, sharey=True)
    largest = [curve.comparison.largest for panel in panels for curve in panel.curves if curve.comparison.rank]
    drawn.axes[0].set_ylim(0, 1.06 * max([1.1 * LARGEST_BOUND, *largest]))
    return drawn


def _spectrum_figure(panels: Sequence[Panel]) -> Figure:
    """Singular values by rank."""
    return _panels(panels, _spectrum, "singular value $S_i$", [{"label": "test"}, {"label": "training", **_TRAINING}])


def _panels(
    panels: Sequence[Panel],
    paint: Callable[[Axes, Panel, dict[int, str]], None],
    y_label: str,
    looks: list[dict[str, Any]],
    sharey: bool = False,
) -> Figure:
    """All panels; the legend shows the clients' colours and then the `looks` of lines."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    clients = sorted({curve.client for panel in panels for curve in panel.curves})
    colours = {client: COLOURS[i % len(COLOURS)] for i, client in enumerate(clients)}
    drawn = Figure(figsize=(0.6 + 3.3 * len(panels), 3.3), layout="constrained")
    row = drawn.subplots(1, len(panels), squeeze=False, sharey=sharey)[0]
    for axes, panel in zip(row, panels, strict=True):
        paint(axes, panel, colours)
        axes.set_title(panel.title)
        axes.set_xlabel("rank $i$")
        axes.margins(x=0.015)
    row[0].set_ylabel(y_label)
    handles = [Line2D([], [], color=colour, label=f"client {client}") for client, colour in colours.items()]
    handles += [Line2D([], [], **{"color": "0.2", **look}) for look in looks]
    drawn.legend(handles=handles, loc="outside lower center", ncols=4 * len(panels), columnspacing=1.1)
    return drawn


def _ratio(axes: Axes, panel: Panel, colours: dict[int, str]) -> None:
    """s_i by rank: normalised by n, and as the paper's code computes it. The largest is often the first: a dot."""
    for bound, name, dash in ((LEAST_BOUND, "1", "-"), (LARGEST_BOUND, "1.618", ":")):
        axes.axhline(bound, color="0.45", linewidth=0.8, linestyle=dash, zorder=0)
        axes.annotate(
            name, (1, bound), xycoords=("axes fraction", "data"), xytext=(-1, 2), textcoords="offset points",
            ha="right", va="bottom", color="0.35", fontsize=7,
        )  # fmt: skip
    for curve in panel.curves:
        c, colour = curve.comparison, colours[curve.client]
        ranks = np.arange(1, c.rank + 1)
        axes.plot(ranks, c.raw, color=colour, **_RAW)
        axes.plot(ranks, c.normalised, color=colour)
        if c.rank:
            axes.plot(1 + c.normalised.argmax(), c.largest, color=colour, **_DOT)


def _spectrum(axes: Axes, panel: Panel, colours: dict[int, str]) -> None:
    """Singular values by rank."""
    least = []
    for curve in panel.curves:
        for side, look in ((curve.train, _TRAINING), (curve.test, {})):
            values = np.where(side.values > 0, side.values, np.nan)
            axes.plot(np.arange(1, len(values) + 1), values, color=colours[curve.client], **look)
            least.append(side.values[: side.rank].min(initial=1.0))
    axes.set_yscale("log")
    axes.set_ylim(min(least) / 30, None)  # rounding errors beyond the rank leave the picture
