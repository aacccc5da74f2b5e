"""The base of all partitioners: who holds which sample, in which split, with options that are part of the spec.

A partitioner is a frozen dataclass in a file of its own (`partitions/schemes/NAME.py`, or a user's FILE.py:Class). Most
override `deal` alone, which gives each client its samples; their split is then random. One whose training and test
samples are drawn apart overrides `draw`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedbench import options
from fedbench.errors import FedbenchError, unknown
from fedbench.partitions.distribution import Drawn
from fedbench.partitions.transforms import SHIFTS, Transform
from fedbench.specs import PartitionSpec, require
from fedbench.specs.base import coerce, type_hints

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbench.data import Dataset
    from fedbench.partitions.artifact import Partition
    from fedbench.partitions.distribution import Densities


# -- split -----------------------------------------------------------------------------------------------------
# Random splits of what clients hold.


#: Rows of a data set.
Indices = NDArray[np.int64]


def split(
    clients: Sequence[Indices],
    spec: PartitionSpec,
    rng: np.random.RandomState,
    as_it_comes: bool = False,
    remedy: str = "",
) -> list[tuple[Indices, Indices]]:
    """Shuffle each client's samples, in client order: the first floor(share x n) are for training, the rest for tests.

    With `as_it_comes` the floor gives way to one sample at least for either. Raises FedbenchError for a client that is
    left without a training or without a test sample; `remedy` says what else would help.
    """
    assert spec.train_fraction is not None
    sides = []
    for client, samples in enumerate(clients):
        mixed = samples.copy()
        rng.shuffle(mixed)
        n_train = int(spec.train_fraction * len(mixed))
        if as_it_comes:
            n_train = min(max(n_train, 1), len(mixed) - 1)
        if not 0 < n_train < len(mixed):
            side = "test" if n_train else "training"
            raise FedbenchError(
                f"client {client} holds {len(mixed)} samples: a training share of {spec.train_fraction:g} "
                f"leaves it without a {side} sample",
                f"fewer clients, another --split{remedy}",
            )
        sides.append((mixed[:n_train], mixed[n_train:]))
    return sides


def shards(samples: Indices, clients: int) -> list[Indices]:
    """Equal consecutive pieces, one a client; the last one takes what is left over."""
    return cut(samples, [len(samples) // clients] * (clients - 1) + [len(samples)])


def cut(samples: Indices, sizes: Sequence[int]) -> list[Indices]:
    """Consecutive pieces of these sizes (np.split takes ten times as long for so many)."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [samples[a:b] for a, b in pairwise(ends)]


#: What a partitioner takes that splits samples at random, and one that draws training and test samples apart.
AT_RANDOM = ("train_fraction", "subsample", "unseen", "unseen_as", "validation", "duplicates")
APART = ("subsample", "validation", "duplicates")
#: ... and one whose clients and splits are given, not drawn.
GIVEN = ("validation", "duplicates", "unseen", "unseen_as")


@dataclass(frozen=True, eq=False)
class Assignment:
    """Who holds which sample, as rows of the data set, for each of M clients."""

    train: Sequence[tuple[Indices, ...]]  #: [M] training samples, drift phase after drift phase; one where none drifts
    test: Sequence[Indices]  #: [M]
    #: Labels and colours that were drawn with the samples, as the samples stand: client after client, its training
    #: samples before its test samples. None: the data set's own labels, and no colours.
    label: NDArray[np.int32] | None = None
    colour: NDArray[np.int8] | None = None
    classes: tuple[str, ...] | None = None  #: names of the labels' classes; None: the data set's
    drawn: Drawn | None = None  #: the clients' true distributions, where the partitioner knows them
    transforms: Sequence[Transform] | None = None  #: [M] how each sees its images, before what the shift adds
    #: [M] how many of each client's training samples, the last ones, are validation samples. None: the spec's share.
    held_back: Sequence[int] | None = None

    @classmethod
    def of(cls, sides: Iterable[tuple[Indices, Indices]], **more: Any) -> Assignment:
        """That of the (training, test) samples of each client."""
        train, test = zip(*sides, strict=True)
        return cls([(one,) for one in train], test, **more)


@dataclass(frozen=True)
class Scheme:
    """A partitioner. Its fields, made by `fedbench.options.option`, are its options."""

    name: ClassVar[str] = ""  #: in specs; the file's name, or a user's class with its source's digest
    version: ClassVar[int] = 1  #: raise it when the same options should give other clients (tests/golden says when)
    #: Options of `fedbench partition` that stand for it -> its own option that they give a value to ("": none).
    short: ClassVar[Mapping[str, str]] = {}
    shifts: ClassVar[tuple[str, ...]] = SHIFTS  #: values of --shift that it takes
    modifiers: ClassVar[tuple[str, ...]] = AT_RANDOM  #: fields of a PartitionSpec that it takes beside its own
    by_class: ClassVar[bool] = True  #: whether it looks at classes, so that images cannot have several labels
    #: Whether a client's samples are taken as they come, however few: one at least is then for either split.
    as_it_comes: ClassVar[bool] = False
    leaks: ClassVar[bool] = False  #: whether images may be trained on and tested on, on purpose
    remedy: ClassVar[str] = ""  #: what else helps where a client is left without samples

    def __post_init__(self) -> None:
        """Types and bounds. Raises FedbenchError."""
        hints = type_hints(type(self))
        for option, field in self.options().items():
            value = coerce(f"{option} of {self.title()}", hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            choices = field.metadata.get("choices")
            if choices and value is not None and value not in choices:
                raise unknown(f"{option} of {self.title()}", str(value), choices)
            if isinstance(value, int | float):
                options.check_bounds(self.title(), option, field, value)

    # -- what a partitioner does ---------------------------------------------------------------------------

    def check(self, spec: PartitionSpec) -> None:
        """Raise FedbenchError if the options do not fit each other or the rest of the spec."""
        return

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        """The samples of each client before the split, as rows of the data set."""
        raise NotImplementedError

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Who holds which sample. By default what `deal` gives each client is split at random.

        All draws come one after another from one NumPy legacy generator (Mersenne Twister) seeded with the spec's
        seed, because the papers' partitions do: the same seed gives their very clients. Raises FedbenchError if the
        data cannot serve as many clients, or a client is left without a training or without a test sample.
        """
        rng, count = np.random.RandomState(spec.seed), len(dataset.labels)
        require(
            self.as_it_comes or count >= 2 * spec.clients,
            f"{count} samples cannot serve {spec.clients} clients (each needs one to train on and one to test on)",
            f"ask for at most {count // 2} clients",
        )
        clients = self.deal(dataset, spec, rng)
        return Assignment.of(split(clients, spec, rng, self.as_it_comes, self.remedy))

    def densities(self, partition: Partition) -> Densities | None:
        """The probability of each stratum under the clients' training and test distributions, where it knows them."""
        return None

    def groups(self, partition: Partition) -> list[int] | None:
        """The true group of each client, where that is more than who shares a transform."""
        return None

    # -- what is said of it --------------------------------------------------------------------------------

    def label(self, spec: PartitionSpec) -> str:
        """Its short name in tables, such as Dir-0.3: by default its own and its options."""
        values = {option: getattr(self, field.name) for option, field in self.options().items()}
        own = [f"{option.replace('_', ' ')} {value}" for option, value in values.items() if value not in (None, False)]
        return " ".join([self.title(), ", ".join(own)]).strip()

    def details(self, spec: PartitionSpec) -> list[str]:
        """What else a person should know of it, in a few words each."""
        return []

    def view(self, partition: Partition, width: int) -> Iterable[RenderableType] | None:
        """What `fedbench partition` prints of it; None: its clients and their classes."""
        return None

    def true_groups(self, spec: PartitionSpec, classes: int) -> int:
        """How many true groups there are on data of so many classes, as far as the spec alone tells."""
        return 1

    def needs_classes(self, spec: PartitionSpec) -> bool:
        """Whether images cannot have several labels."""
        return self.by_class

    @classmethod
    def title(cls) -> str:
        """Its name without a digest."""
        return (cls.name or cls.__name__).partition("@")[0]

    @classmethod
    def called(cls) -> str:
        """A partition of its, such as "an iid partition"."""
        return f"{'an' if cls.title()[0] in 'aeiouAEIOU' else 'a'} {cls.title()} partition"

    # -- options -------------------------------------------------------------------------------------------

    @classmethod
    def options(cls) -> dict[str, dataclasses.Field[Any]]:
        """Its options by name."""
        return options.of(cls)

    @classmethod
    def kind(cls, option: str) -> Any:
        """The type of an option's value on the command line, of options.VALUES; None if it cannot be given there."""
        hint = type_hints(cls)[cls.options()[option].name]
        kinds = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
        return next((one for one in kinds if one in options.VALUES), None)

    @classmethod
    def takes(cls, name: str, values: Mapping[str, Any]) -> bool:
        """Whether a protocol's default of this name, among these values, says something to the partitioner."""
        if cls.modifiers == GIVEN:  # the partition is as it comes unless the user says more
            return name in ("scheme", "clients", "seed") or name in cls.options()
        if name == "shift":
            return values[name] in cls.shifts
        return name in cls.modifiers or name in cls.options() or name in ("scheme", "clients", "seed")

    @classmethod
    def count(cls, values: Mapping[str, Any]) -> int | None:
        """How many clients there are where nobody says it, if these options tell."""
        return None

    @classmethod
    def create(cls, values: Mapping[str, Any]) -> Self:
        """The partitioner with these options, by their names. Raises FedbenchError for one that is missing."""
        known = cls.options()
        for option, field in known.items():
            if field.default is dataclasses.MISSING and values.get(option) is None:
                raise FedbenchError(
                    f"{cls.called()} needs {option.replace('_', ' ')}: {field.metadata['help']}", cls._example(option)
                )
        return cls(**{known[option].name: value for option, value in values.items()})

    @classmethod
    def _example(cls, option: str) -> str:
        """An option as it is written on the command line, if it can be."""
        if cls.kind(option) is None:
            return "for example --counts FILE.csv" if "counts" in cls.short else ""
        short = next((one for one, own in cls.short.items() if own == option), option.replace("_", "-"))
        return f"for example --{short} " + {int: "2", float: "0.5", str: "NAME"}.get(cls.kind(option), "")

    @classmethod
    def stored(cls) -> dict[str, str]:
        """Key in stored specs -> option."""
        return {field.metadata.get("stored") or option: option for option, field in cls.options().items()}

    @property
    def values(self) -> dict[str, Any]:
        """Its options under their stored keys. What is left at a default of None or False changes nothing and is left
        out, so that a partition has one id."""
        own = {}
        for key, option in self.stored().items():
            field = self.options()[option]
            value = getattr(self, field.name)
            if value is not None and not (value is False and field.default is False):
                own[key] = value
        return own
