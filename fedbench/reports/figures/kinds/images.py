"""Figures 8 and 10 to 12 of FedDRM, for any partition: images as each client sees them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row, room_for
from fedbench.reports.figures.style import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.data import Dataset
    from fedbench.partitions import Partition

#: Most clients: more would be too small on a page.
MOST = 64
#: Images per client if each client shows its first training images.
OWN = 4
#: White pixels between the images of a client.
_GAP = 2


@dataclass(frozen=True, eq=False)
class View:
    """What one client sees."""

    client: int
    transform: str  #: in words; empty if images are unchanged
    samples: tuple[int, ...]  #: [n] rows of the data set
    images: NDArray[np.uint8]  #: [n, H, W, C]


class Images(Kind):
    """Images as clients see them: a cell per client, titled by its transform."""

    names = ("images",)
    title = "Images as clients see them"
    options = ("partition", "filters", "client", "image", "seed")
    columns = ("panel", "dataset", "partition", "client", "transform", "sample", "class", "red", "green", "blue")
    of_panel = ("dataset", "partition", "common")
    one_column = False

    def rows(self, request: Request) -> list[Row]:
        """A row per client and image, with the mean of each channel (equal for grey images), in JSON also pixels."""
        rows = []
        for seen in source.of_partitions(self.spec, request):
            views, common, labels = _seen(seen, request)
            for view in views:
                for sample, image in zip(view.samples, view.images, strict=True):
                    mean = np.broadcast_to(image.mean(axis=(0, 1)), 3).tolist()
                    row = {**seen.about, "common": common, "client": view.client, "transform": view.transform}
                    names = seen.partition.names
                    row |= {"client_name": names[view.client]} if names else {}
                    row |= {"sample": sample, "class": labels[sample]}
                    row |= dict(zip(("red", "green", "blue"), mean, strict=True))
                    rows.append(row | {"pixels": image.tolist()})
            dataset, looks = seen.about["dataset"], len({view.transform for view in views})
            named = ", ".join(f"image {sample} ({labels[sample]})" for sample in views[0].samples)
            shown = f"{named} of {dataset}" if common else f"images of {dataset} of their own"
            through = f" through {looks} transforms" if looks > 1 else ""
            clients = f"{seen.about['panel']}: {len(views)} clients"
            request.say(f"{clients} see {shown}{through}; partition {seen.partition.id}")
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Stack the panels, each a grid of its clients."""
        panels = [[*by_key((row["client"], row) for row in panel).values()] for panel in self.panels(rows)]
        shapes = [_grid(len(clients)) for clients in panels]
        across = max(columns for _, columns in shapes)
        strips = [[_side_by_side(client) for client in clients] for clients in panels]
        wide = max(strip.shape[1] / strip.shape[0] for of in strips for strip in of)  # width / height of a cell
        cell = min(figure.get_figwidth() / across, 1.5 * wide)
        side = (cell - 0.1) / wide
        titles = [[_title(client[0], int((cell - 0.1) * _LETTERS)) for client in clients] for clients in panels]
        lines = max(title.count("\n") + 1 for of_panel in titles for title in of_panel)
        tall = [0.3 + rows * (side + 0.05 + 0.13 * lines) for rows, _ in shapes]
        figure.set_figheight(sum(tall))
        parts = figure.subfigures(len(tall), 1, height_ratios=tall, squeeze=False)[:, 0]
        for part, clients, labels, images, shape in zip(parts, panels, titles, strips, shapes, strict=True):
            part.suptitle(clients[0][0]["panel"])
            grid = part.subplots(*shape, squeeze=False)
            for axes, image, title in zip_longest(chain(*grid), images, labels):
                axes.set_axis_off()
                if image is not None:
                    axes.imshow(image, interpolation="nearest")
                    axes.set_title(title, fontsize="small", pad=2)


def _seen(seen: source.Seen, request: Request) -> tuple[list[View], bool, dict[int, str]]:
    """What the clients of a partition see, whether all see the same images, and the class of each image's row.

    If transforms alter pixels or the user names images, all clients show the same ones: the user's, else the panel's
    samples, else the first image. Otherwise each shows its first training images."""
    from fedbench import data

    _, partition, clients, panel = seen
    room_for(len(clients), MOST, "clients are too many to be seen", f"choose up to {MOST}: --client")
    if partition.spec.dataset.vectors:
        raise FedbenchError(
            f"{partition.spec.dataset.name} has vectors, which cannot be drawn as images",
            "a figure of images takes a data set of images",
        )
    dataset = data.load(partition.spec.dataset, request.store, request.roots, request.notify)
    alike = partition.drawn is None and partition.colour is None
    if request.image and not alike:
        raise FedbenchError(
            f"in partition {partition.id} every client has its own transform for each image", "leave --image out"
        )
    common = alike and bool(request.image or any(transform.alters for transform in partition.transforms))
    wanted = tuple(request.image or (panel and panel.samples) or (0,))
    views = _common(partition, dataset, clients, wanted) if common else _own(partition, dataset, clients)
    rows = sorted({row for view in views for row in view.samples})
    return views, common, _labels(dataset, rows)


def _common(partition: Partition, dataset: Dataset, clients: Iterable[int], samples: tuple[int, ...]) -> list[View]:
    """The same images through each client's transform, with the random draws of its first training images."""
    from fedbench.partitions.transforms import apply

    for row in samples:
        if not 0 <= row < len(dataset.images):
            raise FedbenchError(f"{dataset.spec.name} has no image {row}", f"it has 0..{len(dataset.images) - 1}")
    images = dataset.images[list(samples)]
    transforms = {c: partition.transforms[c] for c in clients}
    return [View(c, str(look), samples, apply(images, look, key=2 * c)) for c, look in transforms.items()]


def _own(partition: Partition, dataset: Dataset, clients: Iterable[int]) -> list[View]:
    """The first images that each client trains on, as it sees them."""
    from fedbench.partitions.transforms import Transform

    images, index = partition.distinct(dataset)
    views = []
    for c in clients:
        rows = partition.rows(c, test=False)
        first = slice(rows.start, min(rows.stop, rows.start + OWN))
        transform = partition.transforms[c]
        look = "" if transform == Transform() else str(transform)
        if partition.distributions:
            look = partition.distributions[partition.groups[c]].described(partition.classes)
        views.append(View(c, look, tuple(partition.sample[first].tolist()), images[index[first]]))
    return views


def _labels(dataset: Dataset, rows: Sequence[int]) -> dict[int, str]:
    """Row -> its class, or all its labels in a multi-label data set."""
    if not dataset.multi_label:
        return {row: dataset.classes[int(dataset.labels[row])] for row in rows}
    return {row: ", ".join(np.array(dataset.classes)[dataset.labels[row] > 0]) or "none" for row in rows}


#: Letters of a title per inch.
_LETTERS = 19
#: A space at which a line is not broken.
_NO_BREAK = "\xa0"


def _grid(cells: int) -> tuple[int, int]:
    """Rows and columns for so many cells: about twice as many columns as rows at most, without gaps if possible."""
    columns = min(cells, math.ceil(math.sqrt(2 * cells)))
    even = next((wide for wide in range(columns, 0, -1) if cells % wide == 0), 1)
    columns = even if 2 * even > columns else columns
    return -(-cells // columns), columns


def _side_by_side(rows: list[Row]) -> NDArray[np.uint8]:
    """A client's images [H, W, C] as one RGB image [H, n * W + gaps, 3]."""
    images = np.array([row["pixels"] for row in rows], np.uint8)
    n, height, width, _ = images.shape
    out = np.full((height, n * (width + _GAP) - _GAP, 3), 255, np.uint8)
    for i, image in enumerate(images):
        out[:, i * (width + _GAP) :][:, :width] = image
    return out


def _title(row: Row, room: int) -> str:
    """Client and transform, wrapped to lines of `room` letters; a step of the transform is not broken."""
    parting = "; " if "; " in row["transform"] else ", "
    steps = parting.join(step.replace(" ", _NO_BREAK) for step in row["transform"].split(parting))
    lines = textwrap.wrap(steps, max(room, 1), break_long_words=False, break_on_hyphens=False)
    who = str(row.get("client_name", f"client {row['client']}"))
    return "\n".join([*textwrap.wrap(named(who), max(room, 1)), *lines]).replace(_NO_BREAK, " ")
