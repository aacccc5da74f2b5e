"""Figures 2 and 3 of FTW-ERM: spectra of the clients' training and test images, and the ratios of test to training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.reports.figures import source
from fedbench.reports.figures.eigenvalues import LARGEST_BOUND, LEAST_BOUND, Spectrum, SpectrumRatio, compare, spectrum
from fedbench.reports.figures.kind import Request, room_for
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec, PanelSpec
from fedbench.reports.figures.style import colour, handle, subplots, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.partitions import Partition

#: λ of the bound on s_i, in squared pixels of [0, 1]; the paper does not give it.
RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class ClientSpectra:
    """One client's training and test spectra."""

    client: int  #: as printed
    train: Spectrum
    test: Spectrum
    ridge: float = RIDGE

    @cached_property
    def comparison(self) -> SpectrumRatio:
        return compare(self.train, self.test, self.ridge)


def curves(images: Mapping[tuple[int, str], NDArray[np.uint8]], ridge: float = RIDGE) -> list[ClientSpectra]:
    """The curves of all clients, in order of the clients.

    Arguments:
        images: (client, "train" or "test") -> images [n, ...], uint8 or floats in [0, 1].
        ridge: λ > 0 of the bound on s_i (`eigenvalues.compare`).

    Raises FedbenchError if a client lacks training or test images, or these differ in image size.
    """
    out = []
    for client in sorted({client for client, _ in images}):
        sides = [images.get((client, side)) for side in ("train", "test")]
        if any(side is None or not len(side) for side in sides):
            raise FedbenchError(f"client {client} lacks training or test images", "both spectra are compared")
        train, test = (spectrum(side) for side in sides if side is not None)
        curve = ClientSpectra(client, train, test, ridge)
        _ = curve.comparison  # so that bad input fails here, not when drawing
        out.append(curve)
    return out


def findings(curve: ClientSpectra) -> dict[str, Any]:
    """One client's s_i up to the smaller numerical rank: the largest, raw and normalised, and shares below bounds."""
    c = curve.comparison
    return {
        "client": curve.client,
        "n_train": curve.train.n,
        "n_test": curve.test.n,
        "rank_train": curve.train.rank,
        "rank_test": curve.test.rank,
        "largest_raw": float(c.raw.max()) if c.rank else None,
        "largest": c.largest if c.rank else None,
        "below_1": c.share_below(LEAST_BOUND) if c.rank else None,
        "below_bound": c.share_below(c.bound) if c.rank else None,
        "below_1.618": c.share_below(LARGEST_BOUND) if c.rank else None,
    }


#: Most clients in one panel: more curves are not distinguishable.
MOST = 8

_TERMS = (
    "s = sqrt(λ'/λ) of the eigenvalues of XᵀX/n, up to the numerical rank; raw leaves out the 1/n, as the paper's "
    "figures do. bound = (1 + sqrt(1 + 4ξ))/2 with ξ = λ/(λ + S²), λ = {ridge:g}."
)


class Spectra(source.OfPartitions[Sequence[ClientSpectra]]):
    """Singular values by rank."""

    options = ("partition", "filters", "client", "seed", "ridge")
    columns = (
        "panel",
        "dataset",
        "partition",
        "client",
        "rank",
        "train_singular_value",
        "test_singular_value",
        "raw_ratio",
        "ratio",
        "bound",
    )

    def see(
        self, partition: Partition, clients: Sequence[int], request: Request, panel: PanelSpec | None
    ) -> Sequence[ClientSpectra]:
        """The curves of these clients. A paper's panels count clients from 1, as the paper does."""
        from fedbench import data

        room_for(len(clients), MOST, "clients cannot be told apart in one panel", f"choose up to {MOST}: --client")
        arrays = partition.transformed_images(
            data.load(partition.spec.dataset, request.store, request.roots, request.notify)
        )
        sides, first = {"train": False, "test": True}, 0 if panel is None else 1
        images = {(c + first, s): arrays[partition.rows(c, test=t)] for c in clients for s, t in sides.items()}
        return curves(images, RIDGE if request.ridge is None else request.ridge)

    def paint(self, figure: FigureSpec, content: Content[Sequence[ClientSpectra]]) -> Figure:
        looks = [{"label": "test"}, {"label": "training", **_TRAINING}]
        return _panels(content.panels, _spectrum, "singular value $S_i$", looks)

    def rows(self, marks: Sequence[ClientSpectra]) -> Iterator[Mapping[str, Any]]:
        """One row per client and rank; ratios are empty beyond the numerical rank."""
        for curve in marks:
            lists = _lists(curve)
            columns = [name.replace("values", "value") for name in lists]
            ranks = min(len(curve.train.values), len(curve.test.values))
            lines = islice(zip_longest(*lists.values()), ranks)
            for rank, line in enumerate(lines, 1):
                yield {"client": curve.client, "rank": rank, **dict(zip(columns, line, strict=True))}

    def summary(self, marks: Sequence[ClientSpectra]) -> Mapping[str, Any]:
        """The findings of each client."""
        return {"clients": [{**findings(curve), "ridge": curve.ridge} for curve in marks]}

    def words(self, figure: FigureSpec, content: Content[Sequence[ClientSpectra]]) -> Iterable[str]:
        """The findings, client by client."""
        for panel in content.panels:
            yield f"{panel.title}, partition {panel.about['partition']}"
            for curve in panel.marks:
                found = findings(curve)
                ranks = min(found["rank_train"], found["rank_test"])
                says = [f"{curve.train.n:,} training and {curve.test.n:,} test images", f"{ranks:,} ranks"]
                if ranks:
                    limits = {"1": "below_1", "its bound": "below_bound", "1.618": "below_1.618"}
                    says.append(f"largest s {found['largest']:.3f} (raw {found['largest_raw']:.3f})")
                    says += [f"{_percent(found[key])} below {limit}" for limit, key in limits.items()]
                yield f"  client {curve.client}: {', '.join(says)}"
        yield _TERMS.format(ridge=content.panels[0].marks[0].ridge)


class Ratio(Spectra):
    """Test against training eigenvalues by rank."""

    def paint(self, figure: FigureSpec, content: Content[Sequence[ClientSpectra]]) -> Figure:
        """Draw all panels with the same y axis."""
        looks = [{"label": "normalised"}, {"label": "raw (paper)", **_RAW}, {"label": "largest", **_DOT}]
        picture = _panels(content.panels, _ratio, r"$s_i=\sqrt{\lambda'_i/\lambda_i}$", looks, sharey=True)
        every = [curve for panel in content.panels for curve in panel.marks]
        largest = [curve.comparison.largest for curve in every if curve.comparison.rank]
        picture.axes[0].set_ylim(0, 1.06 * max([1.1 * LARGEST_BOUND, *largest]))
        return picture


def _lists(curve: ClientSpectra) -> dict[str, list[float]]:
    c = curve.comparison
    return {
        "train_singular_values": curve.train.values.tolist(),
        "test_singular_values": curve.test.values.tolist(),
        "raw_ratio": c.raw.tolist(),
        "ratio": c.normalised.tolist(),
        "bound": c.bound.tolist(),
    }


def _percent(share: float) -> str:
    """A share in percent, rounded down so that 100 % means all."""
    return f"{int(1000 * share) / 10:.1f} %"


_DASHES = (0, (3, 1.5))
_RAW: dict[str, Any] = {"alpha": 0.55, "linewidth": 0.9, "linestyle": _DASHES}
_DOT: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "clip_on": False}
_TRAINING: dict[str, Any] = {"linestyle": _DASHES}


def _panels(
    panels: Sequence[Panel[Sequence[ClientSpectra]]],
    paint: Callable[[Axes, Sequence[ClientSpectra], dict[int, str]], None],
    y_label: str,
    looks: list[dict[str, Any]],
    sharey: bool = False,
) -> Figure:
    """Draw all panels in a row; the legend shows the clients' colours, then `looks`, the styles of lines."""
    clients = sorted({curve.client for panel in panels for curve in panel.marks})
    colours = {client: colour(i) for i, client in enumerate(clients)}
    picture, (row,) = subplots((0.6 + 3.3 * len(panels), 3.3), 1, len(panels), sharey=sharey)
    for axes, panel in titled([row], panels):
        paint(axes, panel.marks, colours)
        axes.set_xlabel("rank $i$")
        axes.margins(x=0.015)
    row[0].set_ylabel(y_label)
    handles = [handle(f"client {client}", color=colours[client]) for client in clients]
    handles += [handle(**{"color": "0.2", **look}) for look in looks]
    picture.legend(handles=handles, loc="outside lower center", ncols=4 * len(panels), columnspacing=1.1)
    return picture


def _ratio(axes: Axes, marks: Sequence[ClientSpectra], colours: dict[int, str]) -> None:
    """Draw s_i by rank, normalised by n and as the paper's code computes it. A dot marks the largest."""
    for bound, name, dash in ((LEAST_BOUND, "1", "-"), (LARGEST_BOUND, "1.618", ":")):
        axes.axhline(bound, color="0.45", linewidth=0.8, linestyle=dash, zorder=0)
        axes.annotate(
            name,
            (1, bound),
            xycoords=("axes fraction", "data"),
            xytext=(-1, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color="0.35",
            fontsize=7,
        )
    for curve in marks:
        c, shade = curve.comparison, colours[curve.client]
        ranks = np.arange(1, c.rank + 1)
        axes.plot(ranks, c.raw, color=shade, **_RAW)
        axes.plot(ranks, c.normalised, color=shade)
        if c.rank:
            axes.plot(1 + c.normalised.argmax(), c.largest, color=shade, **_DOT)


def _spectrum(axes: Axes, marks: Sequence[ClientSpectra], colours: dict[int, str]) -> None:
    """Draw singular values by rank."""
    least = []
    for curve in marks:
        for side, look in ((curve.train, _TRAINING), (curve.test, {})):
            values = np.where(side.values > 0, side.values, np.nan)
            axes.plot(np.arange(1, len(values) + 1), values, color=colours[curve.client], **look)
            least.append(side.values[: side.rank].min(initial=1.0))
    axes.set_yscale("log")
    axes.set_ylim(min(least) / 30, None)  # cut off the rounding errors beyond the rank
