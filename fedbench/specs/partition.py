"""Who holds which sample, in which split, seen through which shift."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from fedbench.specs.base import Spec, check_seed, frozen, option, require, thawed

# -- dataset ---------------------------------------------------------------------------------------------------
# Which images.


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """Which images (or vectors): the recipe's name, which of its sources, and what those files hold."""

    kind: ClassVar[str] = "dataset"
    name: str
    source: str  #: name of the recipe's source; the same data set may exist in exact and in re-encoded form
    content: str  #: digest of the source's checksums and of how the recipe reads them
    version: int = 1  #: of the readers
    #: Whether its "images" are float32 vectors [N, 1, 1, D] instead of pixels; None: they are not.
    vectors: bool | None = None

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "vectors", self.vectors or None)  # a data set has one id

    @property
    def samples(self) -> str:
        """What its samples are, in a word."""
        return "vectors" if self.vectors else "images"


# -- partition -------------------------------------------------------------------------------------------------


#: Clients at most: each is a row of every table, and a model of its own under most methods.
MOST_CLIENTS = 10_000_000
#: Copies of a training sample at most: each takes a place in memory (FLUX has 96).
MOST_COPIES = 10_000
#: Drift phases at most.
MOST_PHASES = 100


#: A field that any partitioner may take beside its own options, or refuse.
_modifier = partial(option, None, modifier=True)
_beside = partial(_modifier, panel="Beside any partitioner")


@dataclass(frozen=True)
class PartitionSpec(Spec):
    """What any partition has, and the options of its partitioner, which are checked where a spec is made of them
    (`fedbench.partitions.schemes.spec`). So one whose partitioner is a file that is gone can still be read and told.

    In the canonical form the partitioner's options stand beside the other fields.
    """

    kind: ClassVar[str] = "partition"
    dataset: DatasetSpec
    scheme: str  #: name of the partitioner; that of a user's file has its source's digest, such as Mine@0123456789ab
    clients: int = option(
        help="Number of clients (default: the protocol's).", least=1, limit=MOST_CLIENTS, called="the number of clients"
    )
    _: KW_ONLY
    #: Of each client's samples; the rest is its test set. None where the partitioner draws both sides apart.
    train_fraction: float | None = _modifier(
        "Each client's share of training images.",
        above=0,
        below=1,
        typed="split",
        called="the training share",
        metavar="SHARE",
        hint="0.7 gives 70 % training and 30 % test images",
    )
    #: What each client sees its images through, or FLUX's kind of shift.
    shift: str = option(
        "none", "Covariate shift: none, low, mid, high, pool, corrupted; more with --equal.", metavar="NAME"
    )
    seed: int = option(help="Seed of all draws of the partition.")
    subsample: float | None = _beside(
        "Share of its training images that a client keeps.",
        above=0,
        most=1,
        called="the share of training samples to keep",
        metavar="SHARE",
    )
    validation: float | None = _beside(
        "Share of a client's training images held back from training.",
        above=0,
        below=1,
        called="the share of training samples for validation",
        metavar="SHARE",
    )
    duplicates: int | None = _beside(
        "Number of times that every training image is there.",
        least=1,
        limit=MOST_COPIES,
        called="the number of copies of a training sample",
        metavar="N",
    )
    unseen: int | None = _beside("Number of clients, the last ones, that never train.", stored="newcomers", metavar="N")
    #: Each is a client of its own, behind all others, under each of these corruptions, on both sides of its split.
    unseen_as: tuple[str, ...] | None = _beside(
        "Corruptions that unseen clients come again under: fog-3,contrast-3 or all-3.",
        stored="newcomers_as",
        metavar="LIST",
    )
    #: Each of a distribution of its own.
    phases: int | None = _beside(
        "Number of phases that training data drift through (with --equal; FLUX has 3).",
        least=2,
        most=MOST_PHASES,
        called="the number of phases of drifting data",
        stored="stages",
        metavar="N",
    )
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  #: the partitioner's own, by the keys that are stored

    def __post_init__(self) -> None:
        self._check_types()
        own = {name: frozen(value) for name, value in sorted(self.options.items())}
        object.__setattr__(self, "options", own)
        check_seed(self.seed)
        self._check_values()
        require(
            self.unseen is None or 1 <= self.unseen < self.clients,
            f"{self.unseen} of {self.clients} clients cannot be unseen in training",
            "at least one must be, and at least one must train",
        )
        require(
            not self.unseen_as or self.unseen is not None,
            "unseen_as says how unseen clients see their images, but there are none",
            "say how many of the clients are unseen in training",
        )
        # What changes nothing is left out, so that a partition has one id.
        for name, nothing in (("subsample", 1), ("unseen_as", ()), ("duplicates", 1)):
            if getattr(self, name) == nothing:
                object.__setattr__(self, name, None)

    def __hash__(self) -> int:
        return hash(self.id)

    def _stored(self) -> dict[str, Any]:
        """The partitioner's options beside the other fields."""
        fields = super()._stored()
        own = fields.pop("options")
        return fields | {name: thawed(value) for name, value in own.items()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`: what is no field is an option of the partitioner."""
        own = {key: value for key, value in raw.items() if key not in _FIELDS}
        return super().from_dict({**{key: value for key, value in raw.items() if key in _FIELDS}, "options": own})

    @property
    def trainees(self) -> int:
        """Clients that train; those that do not come last."""
        return self.clients - (self.unseen or 0)

    @property
    def outsiders(self) -> int:
        """Clients that never train: unseen ones, and those that they are again under corruptions. They come last."""
        return (self.unseen or 0) * (1 + len(self.unseen_as or ()))

    @property
    def all_clients(self) -> int:
        """Clients of the partition: those it was dealt to, and unseen ones again under corruptions."""
        return self.trainees + self.outsiders


#: The keys of a stored partition's fields; what it has besides are options.
_FIELDS = {f.metadata.get("stored") or f.name for f in dataclasses.fields(PartitionSpec)} - {"options"}
#: Names of the modifiers: what a partitioner may take beside its own options.
MODIFIERS = tuple(f.name for f in dataclasses.fields(PartitionSpec) if f.metadata.get("modifier"))
