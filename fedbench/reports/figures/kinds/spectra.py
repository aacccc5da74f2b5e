"""Figures 2 and 3 of FTW-ERM: spectra of the clients' training and test images, and the ratios of test to training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.reports.figures import source
from fedbench.reports.figures.eigenvalues import LARGEST_BOUND, LEAST_BOUND, Spectrum, SpectrumRatio, compare, spectrum
from fedbench.reports.figures.kind import Kind, Request, Row, room_for
from fedbench.reports.figures.style import MARKERS, across, colour, handle, legend, subplots, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


class Spectra(Kind):
    """Singular values by rank."""

    names = ("spectrum",)
    title = "Singular values of training and test images"
    options = ("partition", "filters", "client", "seed", "ridge")
    _NUMBERS: ClassVar[tuple[str, ...]] = (
        "train_singular_value",
        "test_singular_value",
        "raw_ratio",
        "ratio",
        "bound",
    )
    columns = ("panel", "dataset", "partition", "client", "rank", *_NUMBERS)
    of_panel = ("dataset", "partition", "clients")

    def rows(self, request: Request) -> list[Row]:
        """A row per client and rank; ratios are empty beyond the numerical rank. A paper's panels count clients from 1,
        as the paper does."""
        from fedbench import data

        rows: list[Row] = []
        ridge = RIDGE if request.ridge is None else request.ridge
        for about, partition, clients, panel in source.of_partitions(self.spec, request):
            room_for(len(clients), MOST, "clients cannot be told apart in one panel", f"choose up to {MOST}: --client")
            arrays = partition.transformed_images(
                data.load(partition.spec.dataset, request.store, request.roots, request.notify)
            )
            sides, first = {"train": False, "test": True}, 0 if panel is None else 1
            images = {(c + first, s): arrays[partition.rows(c, test=t)] for c in clients for s, t in sides.items()}
            drawn = curves(images, ridge)
            request.say(f"{about['panel']}, partition {partition.id}")
            for curve in drawn:
                request.say(_words(findings(curve)))
            rows += self.of_curves(about, drawn)
        request.say(_TERMS.format(ridge=ridge))
        return rows

    def of_curves(self, about: Row, curves: list[ClientSpectra]) -> list[Row]:
        """The rows of a panel."""
        about = {**about, "clients": [{**findings(curve), "ridge": curve.ridge} for curve in curves]}
        rows = []
        for curve in curves:
            c, ranks = curve.comparison, min(len(curve.train.values), len(curve.test.values))
            numbers = (curve.train.values, curve.test.values, c.raw, c.normalised, c.bound)
            lines = islice(zip_longest(*(of.tolist() for of in numbers)), ranks)
            for rank, line in enumerate(lines, 1):
                row = {**about, "client": curve.client, "rank": rank}
                rows.append(row | dict(zip(self._NUMBERS, line, strict=True)))
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw all panels in a row. The legend shows the clients' colours and markers, then the styles of lines."""
        ratio, panels = isinstance(self, Ratio), self.panels(rows)
        clients = sorted({row["client"] for row in rows})
        looks = {c: {"color": colour(i), "marker": MARKERS[i], "markersize": 3.5} for i, c in enumerate(clients)}
        wide = across(figure, len(panels))
        grid = subplots(figure, -(-len(panels) // wide), wide, sharey=ratio)
        for axes, panel in titled(grid, panels):
            (_ratio if ratio else _spectrum)(axes, by_key((row["client"], row) for row in panel), looks)
            axes.set_xlabel("rank $i$")
            axes.margins(x=0.015)
        for line in grid:
            line[0].set_ylabel(r"$s_i=\sqrt{\lambda'_i/\lambda_i}$" if ratio else "singular value $S_i$")
        if ratio:
            largest = [one["largest"] for panel in panels for one in panel[0]["clients"] if one["largest"] is not None]
            grid[0][0].set_ylim(0, 1.06 * max([1.1 * LARGEST_BOUND, *largest]))
        handles = [handle(f"client {client}", **look) for client, look in looks.items()]
        lines = _OF_RATIO if ratio else _OF_SPECTRUM
        handles += [handle(name, **{"color": "0.2", **look}) for name, look in lines.items()]
        legend(figure, handles)


class Ratio(Spectra):
    """Test against training eigenvalues by rank; all panels have the same y axis."""

    names = ("ratio",)
    title = "Test against training eigenvalues of every client"


def _words(found: Mapping[str, Any]) -> str:
    """A client's findings in words."""
    ranks = min(found["rank_train"], found["rank_test"])
    says = [f"{found['n_train']:,} training and {found['n_test']:,} test images", f"{ranks:,} ranks"]
    if ranks:
        limits = {"1": "below_1", "its bound": "below_bound", "1.618": "below_1.618"}
        says.append(f"largest s {found['largest']:.3f} (raw {found['largest_raw']:.3f})")
        says += [f"{_percent(found[key])} below {limit}" for limit, key in limits.items()]
    return f"  client {found['client']}: {', '.join(says)}"


def _percent(share: float) -> str:
    """A share in percent, rounded down so that 100 % means all."""
    return f"{int(1000 * share) / 10:.1f} %"


_DASHED = (0, (3, 1.5))
_RAW: dict[str, Any] = {"alpha": 0.55, "linewidth": 0.9, "linestyle": _DASHED}
_DOT: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "clip_on": False}
_TRAINING: dict[str, Any] = {"linestyle": _DASHED}
_OF_RATIO: Mapping[str, dict[str, Any]] = {"normalised": {}, "raw (paper)": _RAW, "largest": _DOT}
_OF_SPECTRUM: Mapping[str, dict[str, Any]] = {"test": {}, "training": _TRAINING}
#: So many markers along a line.
_MARKS = 8


def _values(rows: list[Row], name: str) -> NDArray[np.float64]:
    """The numbers of a client by rank, up to the last rank that has one."""
    return np.array([row[name] for row in rows if row[name] is not None])


def _line(axes: Axes, values: NDArray[np.float64], look: Mapping[str, Any], nth: int) -> None:
    """Draw numbers by rank, with a few markers, which are shifted against those of other clients."""
    step = max(1, len(values) // _MARKS)
    axes.plot(np.arange(1, len(values) + 1), values, **look, markevery=(nth * step // 8, step))


def _ratio(axes: Axes, clients: Mapping[int, list[Row]], looks: Mapping[int, Mapping[str, Any]]) -> None:
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
            fontsize="small",
        )
    for i, (client, rows) in enumerate(clients.items()):
        raw, normalised = _values(rows, "raw_ratio"), _values(rows, "ratio")
        axes.plot(np.arange(1, len(raw) + 1), raw, color=looks[client]["color"], **_RAW)
        _line(axes, normalised, looks[client], i)
        if len(normalised):
            axes.plot(1 + normalised.argmax(), normalised.max(), color=looks[client]["color"], **_DOT)


def _spectrum(axes: Axes, clients: Mapping[int, list[Row]], looks: Mapping[int, Mapping[str, Any]]) -> None:
    """Draw singular values by rank."""
    least, of_client = [], {one["client"]: one for rows in clients.values() for one in rows[0]["clients"]}
    for i, (client, rows) in enumerate(clients.items()):
        for side, look in (("train", _TRAINING), ("test", {})):
            values = _values(rows, f"{side}_singular_value")
            _line(axes, np.where(values > 0, values, np.nan), {**looks[client], **look}, i)
            least.append(values[: of_client[client][f"rank_{side}"]].min(initial=1.0))
    axes.set_yscale("log")
    axes.set_ylim(min(least) / 30, None)  # cut off the rounding errors beyond the rank
