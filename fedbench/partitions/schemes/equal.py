"""Equal shards for each client: FLUX's federations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.options import option
from fedbench.partitions import anda, bank, modifiers
from fedbench.partitions import distribution as official
from fedbench.partitions.bank import DRIFT_LEVELS, LEVELLED, LEVELS
from fedbench.partitions.distribution import Drawn
from fedbench.partitions.scheme import APART, Assignment, Indices, Scheme, shards
from fedbench.rng import stream
from fedbench.specs import PartitionSpec, require
from fedbench.specs.partition import MOST_COPIES

if TYPE_CHECKING:
    from fedbench.data import Dataset


#: Standard deviation of drawn training shares, relative to their mean; shares are truncated to (0, 2 x mean).
SPREAD = 0.5


@dataclass(frozen=True)
class Equal(Scheme):
    """The official training and the official test images are each shuffled once and cut into consecutive shards, one a
    client; what the client's distribution asks for is then done to each side by itself, so no image is on both (FLUX,
    Appendices F.1 and F.2; flux/protocol.md#shards-and-images).

    All draws come from counter-based streams keyed by (seed, purpose, client, ...), so a seed gives the same shards
    under every shift and level. With `draws` anda they come in the order of the paper's generator instead
    (see `draw` in this file), so the seeds 42 to 46 give the paper's clients.

    With `copies` all images are multiplied before they are assigned, so clients share images. With `duplicates`, as in
    Appendix F.2, a client's training images are multiplied afterwards (flux/protocol.md#larger-federations).
    """

    short: ClassVar[Mapping[str, str]] = {"equal": ""}
    shifts: ClassVar[tuple[str, ...]] = ("none", *LEVELLED)
    modifiers: ClassVar[tuple[str, ...]] = (*APART, "phases")

    level: int | None = option(None, f"of the shift: 1 to {LEVELS}, in drift phases 1 to {DRIFT_LEVELS}")
    strict: bool = option(False, "under pxy all classes that a client sees turned share one angle")
    fewer_classes: bool = option(False, "mixed shifts keep 11 - level classes instead of 4")
    data_share: float | None = option(None, "clients hold shares of all training images drawn around this mean")
    copies: int | None = option(
        None, "copies of every image, test images too, before the partition", least=1, most=MOST_COPIES
    )
    draws: str | None = option(
        None, "order of all draws: anda is that of the paper's generator", choices=("fedbench", "anda")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, nothing in (("copies", 1), ("draws", "fedbench")):  # defaults, which must not change the id
            if getattr(self, name) == nothing:
                object.__setattr__(self, name, None)

    def check(self, spec: PartitionSpec) -> None:
        levelled, mixed = spec.shift in LEVELLED, "+" in spec.shift
        top = LEVELS if spec.phases is None else DRIFT_LEVELS
        require(
            not levelled or (self.level is not None and 1 <= self.level <= top),
            f"shift {spec.shift} has levels 1 to {top}{' in drift phases' if spec.phases else ''}, "
            + ("and none is given" if self.level is None else f"not {self.level}"),
            "for example --level 1",
        )
        require(
            levelled or self.level is None,
            f"level {self.level} of which shift?",
            f"these have levels: {', '.join(LEVELLED)}",
        )
        require(not self.strict or "pxy" in spec.shift, "strict is of P(X|Y) only", "choose shift pxy, or leave it out")
        require(not self.fewer_classes or mixed, "fewer_classes is of mixed shifts only", "for example shift px+py")
        require(
            self.data_share is None or 0 < self.data_share * spec.clients <= 1,
            f"{spec.clients} clients cannot hold {self.data_share} of all training samples each",
            "their shares must lie above 0 and make 1 at most",
        )
        require(
            spec.phases is None or (levelled and not mixed),
            f"{spec.phases} drift phases need one of the shifts px, py, pyx and pxy",
        )
        require(spec.phases is None or not self.strict, "drift phases have a P(X|Y) of their own", "leave strict out")
        require(
            self.draws is None or self._is_anda(spec.shift, spec.phases, self.strict, self.data_share),
            f"the paper's generator draws {', '.join(anda.SHIFTS)} in a known order, without drift phases, strict and "
            "data share",
            "leave --draws anda out",
        )

    @classmethod
    def takes(cls, name: str, values: Mapping[str, Any]) -> bool:
        if name == "level" and values.get("shift") not in LEVELLED:
            return False
        if name == "draws" and not cls._is_anda(*(values.get(n) for n in ("shift", "phases", "strict", "data_share"))):
            return False
        return super().takes(name, values)

    @staticmethod
    def _is_anda(shift: str | None, phases: int | None, strict: bool | None, data_share: float | None) -> bool:
        """Whether the draw order of the paper's generator is known."""
        return shift in anda.SHIFTS and phases is None and not strict and data_share is None

    def needs_classes(self, spec: PartitionSpec) -> bool:
        return spec.shift not in ("none", "px")

    def label(self, spec: PartitionSpec) -> str:
        return f"{LEVELLED[spec.shift]} level {self.level}" if self.level else "equal shards"

    def details(self, spec: PartitionSpec) -> list[str]:
        own = [f"level {self.level}"] if self.level else []
        own += ["one angle for all classes of a client"] if self.strict else []
        own += [f"{11 - self.level} classes a client"] if self.fewer_classes and self.level else []
        own += [f"training shares drawn around {100 * self.data_share:g} %"] if self.data_share else []
        own += [f"{self.copies} copies of every image before the partition"] if self.copies else []
        own += ["drawn in the order of the paper's generator"] if self.draws else []
        return own

    def at(self, spec: PartitionSpec, classes: int) -> bank.Level | None:
        """Return the shift at its level, on data with `classes` classes; None: no shift."""
        return None if self.level is None else bank.Level(spec, self.level, classes, self.strict, self.fewer_classes)

    def drawn(self, spec: PartitionSpec, classes: int) -> Drawn | None:
        """Draw the clients' distributions on data with `classes` classes; None: all are that of the data set. With
        `draws` anda under P(Y) the draw needs the images, so these are other draws from the same law."""
        at = self.at(spec, classes)
        if at is not None and self.draws == "anda" and spec.shift != "py":
            return anda.without_images(at)
        return None if at is None else bank.draw(at)

    def true_groups(self, spec: PartitionSpec, classes: int) -> int:
        drawn = self.drawn(spec, classes)
        return 1 if drawn is None else len(set(drawn.groups))

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """For each side of a client, take its shard or the drawn number of its first images (`data_share`); cut it into
        equal parts for the drift phases; under P(Y) filter the classes and pad. In drift phases P(Y) filters the whole
        shard for each phase, as ANDA does, and gives every phase the size of its part. Test shards are not cut.

        Raises FedbenchError if there are fewer images than the clients need.
        """
        is_test = official.test_images(dataset, stream(spec.seed, "official split"))
        pools = [np.tile(np.flatnonzero(side), self.copies or 1) for side in (~is_test, is_test)]
        phases = spec.phases or 1
        for pool, side, least in zip(pools, ("training", "test"), (phases * modifiers.least(spec), 1), strict=True):
            require(
                len(pool) >= least * spec.clients,
                f"{len(pool)} {side} images cannot serve {spec.clients} clients (each needs {least} at least)",
                f"ask for at most {len(pool) // least} clients",
            )
        at = self.at(spec, len(dataset.classes))
        if at is not None and self.draws == "anda":
            return anda.draw(at, dataset, pools)
        drawn = None if at is None else bank.draw(at)
        shards = [_shards(pool, spec, side) for pool, side in zip(pools, ("train", "test"), strict=True)]
        sizes = self._sizes(spec, len(pools[0]), phases * modifiers.least(spec), [len(shard) for shard in shards[0]])
        trains, tests = [], []
        for c, (train, test, size) in enumerate(zip(*shards, sizes, strict=True)):
            # The classes that occur in each phase, and last in the test data; None: all.
            left: list[Sequence[int] | None] = [None] * (phases + 1)
            if drawn is not None:
                left = [drawn.distributions[g].classes for g in drawn.of_phase[:, c]]
            mine, length = train[:size], size // phases
            parts: list[Indices] = []
            for s, classes in enumerate(left[:-1]):
                part = mine[s * length : (s + 1) * length] if spec.phases else mine
                if classes is not None:
                    wanted = length if spec.phases else None
                    part = restricted(mine, classes, dataset, pools[0], wanted, (spec.seed, "padding", c, s))
                parts.append(part)
            if (classes := left[-1]) is not None:
                test = restricted(test, classes, dataset, pools[1], None, (spec.seed, "test padding", c))
            trains.append(tuple(parts))
            tests.append(test)
        return Assignment(trains, tests, drawn=drawn)

    def _sizes(self, spec: PartitionSpec, total: int, least: int, shards: Sequence[int]) -> list[int]:
        """Return the number of training images of each client, including validation images, at most its shard's size.

        Shares of all training images are normal with mean `data_share` and relative standard deviation SPREAD,
        truncated to (0, 2 x mean), which keeps the mean.
        """
        if self.data_share is None:
            return list(shards)
        sizes = []
        for c, shard in enumerate(shards):
            rng = stream(spec.seed, "data share", c)
            factor = rng.normal(1, SPREAD)
            while not 0 < factor < 2:
                factor = rng.normal(1, SPREAD)
            sizes.append(min(max(round(factor * self.data_share * total), least), shard))
        return sizes


def restricted(
    shard: Indices,
    classes: Sequence[int],
    dataset: Dataset,
    pool: Indices,
    wanted: int | None,
    key: tuple[int, str, *tuple[int, ...]],
) -> Indices:
    """Keep the shard's images of these classes, and append draws from them with replacement.

    The result has `wanted` images, or grows by the factor (all classes / these classes), to about the shard's size if
    its classes are balanced. A tiny shard without any such image draws `wanted` (or as many as it has) images from the
    whole `pool` of its side. Raises FedbenchError if the pool has none either.
    """
    rng = stream(*key)
    mine = shard[np.isin(dataset.labels[shard], classes)]
    if not len(mine):
        mine = pool[np.isin(dataset.labels[pool], classes)]
        if not len(mine):
            raise FedbenchError(f"{dataset.spec.name} has no image of classes {list(classes)} on one side of its split")
        return np.asarray(rng.choice(mine, wanted or len(shard)))
    size = wanted or round(len(mine) * len(dataset.classes) / len(classes))
    return np.concatenate([mine[:size], rng.choice(mine, max(size - len(mine), 0))])


def _shards(pool: Indices, spec: PartitionSpec, side: str) -> list[Indices]:
    """Shuffle the pool and cut it into shards."""
    return shards(stream(spec.seed, "shards", int(side == "test")).permutation(pool), spec.clients)
