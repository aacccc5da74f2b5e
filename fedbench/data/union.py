"""Several data sets as one: images brought to one shape, and a column that says which data set each came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedbench.data.catalogue import recipe
from fedbench.data.images import fit
from fedbench.data.part import Part
from fedbench.data.recipe import SPLITS, Recipe, Source
from fedbench.specs import require
from fedbench.store import Artifact


def parts_of(source: Source) -> list[Recipe]:
    """The recipes that a source of kind union joins, in its order; none for other kinds.

    Raises FedbenchError for an unknown name, and for a part that is a union itself.
    """
    found = [recipe(part) for part in source.parts]
    for part in found:
        require(not any(s.parts for s in part.sources), f"{part.name} is a union and cannot be a part of another")
    return found


def fetchable(source: Source) -> bool:
    """Whether an address is known for every file of a source, or for all parts of a union."""
    if source.parts:
        return all(any(map(fetchable, part.sources)) for part in parts_of(source))
    return all(file.urls for file in source.file)


def read_union(chosen: Recipe, parts: Sequence[Artifact]) -> Iterator[Part]:
    """The images of `parts`, artifacts of data sets; column domain: the part's position.

    Images are brought to the union's shape by bilinear interpolation, grey replicated to RGB. Every image keeps its
    official split. Raises FedbenchError for a part with other classes.
    """
    from fedbench.data.dataset import from_artifact  # whose module builds data sets, and so imports this one

    for code, artifact in enumerate(parts):
        part = from_artifact(artifact)
        name = part.spec.name
        require(part.classes == chosen.classes, f"{name}, a part of {chosen.name}, has other classes than that")
        for number, split in enumerate(SPLITS):
            rows = part.split == number
            if not rows.any():  # not every data set has an official test set
                continue
            images, domain = fit(part.images[rows], chosen.shape), np.full(int(rows.sum()), code, np.int64)
            yield Part(f"{name} ({split})", split, images, {"label": part.labels[rows], "domain": domain})
