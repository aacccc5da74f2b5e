"""Figures 8 and 10 to 12 of FedDRM, for any partition: images as each client sees them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Request, room_for
from fedbench.reports.figures.panel import Content
from fedbench.reports.figures.spec import FigureSpec, PanelSpec

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


@dataclass(frozen=True, eq=False)
class Views:
    """What some clients of a partition see: all the same images (`common`), or each its first training images."""

    views: Sequence[View]
    common: bool
    labels: Mapping[int, str]  #: row of the data set -> its class

    @property
    def looks(self) -> int:
        """Number of different transforms."""
        return len({view.transform for view in self.views})


class Images(source.OfPartitions[Views]):
    """Images as clients see them: a cell per client, titled by its transform."""

    options = ("partition", "filters", "client", "image", "seed")
    columns = ("panel", "dataset", "partition", "client", "transform", "sample", "class", "red", "green", "blue")

    def see(self, partition: Partition, clients: Sequence[int], request: Request, panel: PanelSpec | None) -> Views:
        """If transforms alter pixels or the user names images, all clients show the same ones: the user's, else the
        panel's samples, else the first image. Otherwise each shows its first training images."""
        from fedbench import data

        room_for(len(clients), MOST, "clients are too many to be seen", f"choose up to {MOST}: --client")
        if partition.spec.dataset.vectors:
            raise FedbenchError(
                f"{partition.spec.dataset.name} holds vectors, of which there is nothing to see",
                "a figure of images takes a data set of images",
            )
        dataset = data.load(partition.spec.dataset, request.store, request.roots, request.notify)
        alike = partition.drawn is None and partition.colour is None
        if request.image and not alike:
            raise FedbenchError(
                f"in partition {partition.id} a client sees each image in a way of its own", "leave --image out"
            )
        common = alike and bool(request.image or any(transform.alters for transform in partition.transforms))
        wanted = tuple(request.image or (panel and panel.samples) or (0,))
        views = _common(partition, dataset, clients, wanted) if common else _own(partition, dataset, clients)
        rows = sorted({row for view in views for row in view.samples})
        return Views(views, common, _labels(dataset, rows))

    def rows(self, marks: Views) -> Iterator[Mapping[str, Any]]:
        """One row per client and image, with the mean of each channel (equal for grey images), in JSON also pixels."""
        for view in marks.views:
            for sample, image in zip(view.samples, view.images, strict=True):
                mean = np.broadcast_to(image.mean(axis=(0, 1)), 3).tolist()
                about = {"client": view.client, "transform": view.transform, "sample": sample}
                about |= {"class": marks.labels[sample]} | dict(zip(("red", "green", "blue"), mean, strict=True))
                yield about | {"pixels": image.tolist()}

    def summary(self, marks: Views) -> Mapping[str, Any]:
        """Whether all clients see the same images."""
        return {"common": marks.common}

    def words(self, figure: FigureSpec, content: Content[Views]) -> Iterable[str]:
        for panel in content.panels:
            marks, about = panel.marks, panel.about
            shown = f"images of {about['dataset']} of their own"
            if marks.common:
                names = (f"image {sample} ({marks.labels[sample]})" for sample in marks.views[0].samples)
                shown = f"{', '.join(names)} of {about['dataset']}"
            looks = f" through {marks.looks} transforms" if marks.looks > 1 else ""
            yield f"{panel.title}: {len(marks.views)} clients see {shown}{looks}; partition {about['partition']}"

    def paint(self, figure: FigureSpec, content: Content[Views]) -> Figure:
        """Stack the panels, each a grid of its clients."""
        from matplotlib.figure import Figure

        shapes = [_grid(len(panel.marks.views)) for panel in content.panels]
        across = max(columns for _, columns in shapes)
        images = [view.images for panel in content.panels for view in panel.marks.views]
        wide = max(_side_by_side(image).shape[1] / image.shape[1] for image in images)  # width / height of a cell
        side = min(1.35, 9.0 / (across * wide))  # height of an image in inches
        room = side * wide * (_LETTERS if side > _LARGE else _SMALL_LETTERS)
        titles = [[_title(view, int(room)) for view in panel.marks.views] for panel in content.panels]
        lines = max(title.count("\n") + 1 for of_panel in titles for title in of_panel)
        tall = [0.3 + rows * (side + 0.05 + 0.11 * lines) for rows, _ in shapes]
        picture = Figure(figsize=(across * (side * wide + 0.1), sum(tall)))
        parts = picture.subfigures(len(tall), 1, height_ratios=tall, squeeze=False)[:, 0]
        for part, panel, labels, (rows, columns) in zip(parts, content.panels, titles, shapes, strict=True):
            part.suptitle(panel.title, fontsize=9)
            grid = part.subplots(rows, columns, squeeze=False)
            for axes, view, title in zip_longest(chain(*grid), panel.marks.views, labels):
                axes.set_axis_off()
                if view is not None:
                    axes.imshow(_side_by_side(view.images), interpolation="nearest")
                    axes.set_title(title, fontsize=7 if side > _LARGE else 6, pad=2)
        return picture


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


#: Images above so many inches get titles of 7 points, others of 6; letters per inch in either size.
_LARGE, _LETTERS, _SMALL_LETTERS = 1.2, 18, 21
#: A space at which a line is not broken.
_NO_BREAK = "\xa0"


def _grid(cells: int) -> tuple[int, int]:
    """Rows and columns for so many cells: about twice as many columns as rows at most, without gaps if possible."""
    columns = min(cells, math.ceil(math.sqrt(2 * cells)))
    even = next((wide for wide in range(columns, 0, -1) if cells % wide == 0), 1)
    columns = even if 2 * even > columns else columns
    return -(-cells // columns), columns


def _side_by_side(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [n, H, W, C] as one RGB image [H, n * W + gaps, 3]."""
    n, height, width, _ = images.shape
    out = np.full((height, n * (width + _GAP) - _GAP, 3), 255, np.uint8)
    for i, image in enumerate(images):
        out[:, i * (width + _GAP) :][:, :width] = image
    return out


def _title(view: View, room: int) -> str:
    """Client and transform, wrapped to lines of `room` letters; a step of the transform is not broken."""
    parting = "; " if "; " in view.transform else ", "
    steps = parting.join(step.replace(" ", _NO_BREAK) for step in view.transform.split(parting))
    lines = textwrap.wrap(steps, max(room, 1), break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"client {view.client}", *lines]).replace(_NO_BREAK, " ")
