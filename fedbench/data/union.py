"""Several data sets as one: images brought to one shape, and a column that says which data set each came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedbench.data.dataset import Dataset
from fedbench.data.images import fit
from fedbench.data.part import Part
from fedbench.data.recipe import SPLITS, Recipe
from fedbench.specs import require


def read_union(recipe: Recipe, parts: Iterable[Dataset]) -> Iterator[Part]:
    """The images of `parts`; column domain: the part's position.

    Images are brought to the union's shape by bilinear interpolation, grey replicated to RGB. Every image keeps its
    official split. Raises FedbenchError for a part with other classes.
    """
    for code, part in enumerate(parts):
        name = part.spec.name
        require(part.classes == recipe.classes, f"{name}, a part of {recipe.name}, has other classes than that")
        for number, split in enumerate(SPLITS):
            rows = part.split == number
            if not rows.any():  # not every data set has an official test set
                continue
            images, domain = fit(part.images[rows], recipe.shape), np.full(int(rows.sum()), code, np.int64)
            yield Part(f"{name} ({split})", split, images, {"label": part.labels[rows], "domain": domain})
