"""The specs of a data set and of a partition: which client holds which sample, in which split, under which shift."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from fedbench.specs.base import Spec, check_seed, frozen, require, thawed
from fedbench.specs.fields import option


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """A data set of images or vectors: the recipe's name, its source, and a digest of the contents."""

    kind: ClassVar[str] = "dataset"
    name: str
    source: str  #: name of the recipe's source; the same data set may exist in exact and in re-encoded form
    content: str  #: digest of the source's checksums and of the recipe's reading rules
    version: int = 1  #: of the readers
    #: True: its "images" are float32 vectors [N, 1, 1, D]; None: pixels.
    vectors: bool | None = None

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "vectors", self.vectors or None)  # False and None are one id

    @property
    def samples(self) -> str:
        """The word for its samples: vectors or images."""
        return "vectors" if self.vectors else "images"


#: Most clients: each is a row of every table, and under most methods a model.
MOST_CLIENTS = 10_000_000
#: Most copies of a training sample: each needs memory (FLUX has 96).
MOST_COPIES = 10_000
#: Most drift phases.
MOST_PHASES = 100


#: A field that any partitioner may accept, in addition to its options, or refuse.
_modifier = partial(option, None, modifier=True)
_beside = partial(_modifier, panel="Beside any partitioner")


@dataclass(frozen=True)
class PartitionSpec(Spec):
    """The fields of any partition, and the options of its partitioner. `fedbench.partitions.schemes.spec` checks the
    options, so that a spec can be read even if its partitioner's file no longer exists.

    In the canonical form the partitioner's options are on the same level as the fields.
    """

    kind: ClassVar[str] = "partition"
    dataset: DatasetSpec
    scheme: str  #: name of the partitioner; with its source's digest if a user's file, such as Mine@0123456789ab
    clients: int = option(
        help="Number of clients (default: the protocol's).", least=1, limit=MOST_CLIENTS, called="the number of clients"
    )
    _: KW_ONLY
    #: Share of each client's samples; the rest is its test set. None: the partitioner draws the two sets separately.
    train_fraction: float | None = _modifier(
        "Each client's share of training images.",
        above=0,
        below=1,
        typed="split",
        called="the training share",
        metavar="SHARE",
        hint="0.7 gives 70 % training and 30 % test images",
    )
    #: Covariate shift of the clients' images, or FLUX's kind of shift.
    shift: str = option(
        "none", "Covariate shift: none, low, mid, high, pool, corrupted; others with --equal.", metavar="NAME"
    )
    seed: int = option(help="Seed of all draws of the partition.")
    subsample: float | None = _beside(
        "Share of the training images that a client keeps.",
        above=0,
        most=1,
        called="the share of training samples to keep",
        metavar="SHARE",
    )
    validation: float | None = _beside(
        "Share of a client's training images that are for validation.",
        above=0,
        below=1,
        called="the share of training samples for validation",
        metavar="SHARE",
    )
    duplicates: int | None = _beside(
        "Number of copies of every training image.",
        least=1,
        limit=MOST_COPIES,
        called="the number of copies of a training sample",
        metavar="N",
    )
    unseen: int | None = _beside(
        "Clients that never train: a number (the last ones), or groups by name: Graz,Zürich.",
        stored="newcomers",
        metavar="N|NAMES",
    )
    #: Per corruption one more client for each unseen one, after all others, with corrupted training and test images.
    unseen_as: tuple[str, ...] | None = _beside(
        "Corrupted copies of the unseen clients: fog-3,contrast-3 or all-3.",
        stored="newcomers_as",
        metavar="LIST",
    )
    #: Number of drift phases, each with another distribution.
    phases: int | None = _beside(
        "Number of phases of drifting training data (with --equal; FLUX has 3).",
        least=2,
        most=MOST_PHASES,
        called="the number of phases of drifting data",
        stored="stages",
        metavar="N",
    )
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  #: stored key -> value, of the partitioner's options

    def __post_init__(self) -> None:
        self._check_types()
        options = {name: frozen(value) for name, value in sorted(self.options.items())}
        object.__setattr__(self, "options", options)
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
            "give the number of unseen clients",
        )
        # Values without an effect become None, so that equal partitions have one id.
        for name, nothing in (("subsample", 1), ("unseen_as", ()), ("duplicates", 1)):
            if getattr(self, name) == nothing:
                object.__setattr__(self, name, None)

    def __hash__(self) -> int:
        return hash(self.id)

    def _stored(self) -> dict[str, Any]:
        """The fields and the partitioner's options on one level."""
        fields = super()._stored()
        options = fields.pop("options")
        return fields | {name: thawed(value) for name, value in options.items()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`: keys that are no fields are options of the partitioner."""
        options = {key: value for key, value in raw.items() if key not in _FIELDS}
        return super().from_dict({**{key: value for key, value in raw.items() if key in _FIELDS}, "options": options})

    @property
    def trainees(self) -> int:
        """Number of clients that train; they come first."""
        return self.clients - (self.unseen or 0)

    @property
    def outsiders(self) -> int:
        """Number of clients that never train: unseen ones, and their corrupted copies. They come last."""
        return (self.unseen or 0) * (1 + len(self.unseen_as or ()))

    @property
    def all_clients(self) -> int:
        """Number of all clients, including corrupted copies of unseen ones."""
        return self.trainees + self.outsiders


#: Stored keys of a partition's fields; other keys are options.
_FIELDS = {f.metadata.get("stored") or f.name for f in dataclasses.fields(PartitionSpec)} - {"options"}
#: Names of the modifiers: fields that a partitioner may accept or refuse.
MODIFIERS = tuple(f.name for f in dataclasses.fields(PartitionSpec) if f.metadata.get("modifier"))
