"""Natural groups with the data set's official split: a ready-made federation (PFLlib's and LEAF's folders)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedbench.data.dataset import belongs
from fedbench.errors import check_known
from fedbench.options import option
from fedbench.partitions.scheme import GIVEN, Assignment, Scheme, ordered
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True)
class Presplit(Scheme):
    """One client a group, such as a writer, in the order of their names. A client trains on the group's official
    training images and is tested on its official test images, in their order: nothing is drawn.

    If there are fewer clients than groups, groups with both sides are drawn in the same way as `natural` does.
    """

    short: ClassVar[Mapping[str, str]] = {"by": "by"}
    modifiers: ClassVar[tuple[str, ...]] = GIVEN
    by_class: ClassVar[bool] = False

    by: str = option(help="column of the natural groups, such as client")
    order: tuple[str, ...] | None = option(None, "the groups that are clients, in this order (default: all, by name)")

    def check(self, spec: PartitionSpec) -> None:
        require(bool(self.by), "a presplit partition needs the column to part by", "for example --by client")
        named = len(self.order or ())
        require(not named or spec.clients == named, f"{spec.clients} clients, but {named} groups are named in order")
        require(len(set(self.order or ())) == named, "order names a group twice")

    def label(self, spec: PartitionSpec) -> str:
        return f"by {self.by}, own split" + (f" ({ordered(self.order, spec)})" if self.order else "")

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Raises FedbenchError for an unknown column, and for more clients than groups with images on both sides."""
        named, group = np.unique(dataset.column(self.by), return_inverse=True)
        sides = [np.bincount(group[dataset.split == side], minlength=group.max() + 1) for side in (0, 1)]
        fit = np.flatnonzero((sides[0] > 0) & (sides[1] > 0) & belongs(named))
        require(
            spec.clients <= len(fit),
            f"{len(fit)} of the {len(sides[0])} groups by {self.by} have training and test images, too few for "
            f"{spec.clients} clients",
            f"ask for {len(fit)} with --clients" if len(fit) else "--scheme natural splits them at random",
        )
        chosen = fit
        if self.order:
            number = {str(named[g]): g for g in fit}
            for name in self.order:
                check_known(f"{self.by} with training and test images", name, number)
            chosen = np.array([number[name] for name in self.order])
        elif spec.clients < len(fit):
            chosen = np.sort(np.random.RandomState(spec.seed).permutation(fit)[: spec.clients])
        order = np.lexsort((dataset.split, group))  # stable, so each side of a group stays in the data set's order
        ends = np.bincount(group * 2 + dataset.split, minlength=2 * len(sides[0])).cumsum()
        pieces = np.split(order, ends[:-1])
        return Assignment.of([(pieces[2 * g], pieces[2 * g + 1]) for g in chosen])
