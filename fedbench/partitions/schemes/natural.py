"""Natural groups such as writers, centres and domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.data.dataset import belongs
from fedbench.errors import unknown
from fedbench.options import option
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.scheme import Assignment, Indices, Scheme, ordered, split
from fedbench.partitions.transforms import Transform
from fedbench.specs import PartitionSpec, require

if TYPE_CHECKING:
    from fedbench.data import Dataset


@dataclass(frozen=True)
class Natural(Scheme):
    """One client a group (a writer, a centre): `clients` of those with two samples or more, in order of their names; or
    those that `order` names. Then each may be normalised by numbers of its own, as FedDRM does with RETINA's centres.

    With `round_robin` groups (domains) are assigned to the clients in turn and shuffled, and a group's samples are
    divided evenly among its clients: FLUX on Office-Home (flux/protocol.md#chexpert-and-office-home). Groups are in the
    order of their first appearance in the data set.
    """

    short: ClassVar[Mapping[str, str]] = {"by": "by"}
    by_class: ClassVar[bool] = False
    as_it_comes: ClassVar[bool] = True

    by: str = option(help="column of the natural groups, such as writer")
    round_robin: bool = option(False, "give the groups to the clients in turn, and split their samples")
    order: tuple[str, ...] | None = option(None, "the groups that are clients, in this order (default: all, by name)")
    means: tuple[tuple[float, ...], ...] | None = option(
        None, "of each client's channels, to normalise by (default: 0.5)"
    )
    stds: tuple[tuple[float, ...], ...] | None = option(
        None, "of each client's channels, to normalise by (default: 0.5)"
    )

    def check(self, spec: PartitionSpec) -> None:
        require(bool(self.by), "a natural partition needs the column to part by", "for example --by writer")
        require(not (self.order and self.round_robin), "groups with an order are not given in turn")
        named = len(self.order or ())
        require(not named or spec.clients == named, f"{spec.clients} clients, but {named} groups are named in order")
        require(len(set(self.order or ())) == named, "order names a group twice")
        for name in ("means", "stds"):
            rows = len(getattr(self, name) or ())
            require(not rows or rows == named, f"{name} has {rows} rows, and order names {named} groups")
        require(bool(self.means) == bool(self.stds), "means and stds go together")
        self._transforms()

    def label(self, spec: PartitionSpec) -> str:
        how = f" ({ordered(self.order, spec)})" if self.order else ", in turn" if self.round_robin else ""
        return f"by {self.by}{how}"

    def details(self, spec: PartitionSpec) -> list[str]:
        return [f"each {self.by} normalised by its own mean and standard deviation"] if self.means else []

    def _transforms(self) -> list[Transform] | None:
        sides = zip(self.means or (), self.stds or (), strict=True)
        return [Transform(mean=mean, std=std) for mean, std in sides] or None

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        rng = np.random.RandomState(spec.seed)
        clients = self.deal(dataset, spec, rng)
        drawn = None
        if self.round_robin:  # several clients can then have the same group, so groups are distributions
            column = dataset.column(self.by)
            named = [Distribution(name=f"{self.by} {column[mine[0]]}") for mine in clients]
            drawn = Drawn.of([named, named])
        sides, transforms = split(clients, spec, rng, as_it_comes=True), self._transforms()
        channels = dataset.images.shape[-1]
        for transform in transforms or ():
            require(
                len(transform.mean or ()) == channels,
                f"means has {len(transform.mean or ())} numbers a client, and images of {spec.dataset.name} have "
                f"{channels} channels",
            )
        return Assignment.of(sides, drawn=drawn, transforms=transforms)

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        groups = dataset.column(self.by)
        if self.round_robin:
            return self._in_turn(groups, spec, rng)
        if self.order:
            return [self._group(groups, name) for name in self.order]
        named, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
        fit = np.flatnonzero((counts >= 2) & belongs(named))
        require(
            spec.clients <= len(fit),
            f"there are {len(fit)} groups by {self.by} with at least 2 samples, too few for {spec.clients} clients",
            f"ask for at most {len(fit)} with --clients",
        )
        chosen = np.sort(rng.permutation(fit)[: spec.clients])
        pieces = np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1])
        return [pieces[g] for g in chosen]

    def _group(self, groups: NDArray[np.generic], name: str) -> Indices:
        rows = np.flatnonzero(groups.astype(str) == name)
        if not len(rows):
            raise unknown(f"{self.by}", name, np.unique(groups).astype(str).tolist())
        require(
            len(rows) >= 2, f"{self.by} {name} has one sample, and each client needs one to train on and one to test on"
        )
        return rows

    def _in_turn(
        self, groups: NDArray[np.generic], spec: PartitionSpec, rng: np.random.RandomState
    ) -> Sequence[Indices]:
        names, first, group = np.unique(groups, return_index=True, return_inverse=True)
        order = np.argsort(first)
        order = order[belongs(names[order])]
        require(
            spec.clients >= len(order),
            f"{spec.clients} clients are too few for the {len(order)} groups by {self.by}: each group needs one",
            f"ask for {len(order)} at least with --clients",
        )
        of = rng.permutation(order[np.arange(spec.clients) % len(order)])
        clients: list[Indices] = [np.empty(0, np.int64)] * spec.clients
        for g in order:
            members = np.flatnonzero(of == g)
            rows = rng.permutation(np.flatnonzero(group == g))
            require(
                len(rows) >= 2 * len(members),
                f"the {len(rows)} samples of {self.by} {names[g]} cannot serve {len(members)} clients "
                "(each needs one to train on and one to test on)",
                "fewer clients",
            )
            for client, piece in zip(members, np.array_split(rows, len(members)), strict=True):
                clients[client] = piece
        return clients
