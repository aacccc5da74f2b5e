"""The base class of all partitioners: which client holds which sample, in which split.

A partitioner is a frozen dataclass in its own file (`partitions/schemes/NAME.py`, or a user's FILE.py:Class). Its
options are part of the spec. Most partitioners override only `deal`, which gives each client its samples; the split is
then random. A partitioner that draws training and test samples separately overrides `draw`.
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
from fedbench.specs.base import coerce
from fedbench.specs.fields import type_hints

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbench.data import Dataset
    from fedbench.partitions.artifact import Partition
    from fedbench.partitions.distribution import Densities


#: Row numbers of a data set.
Indices = NDArray[np.int64]


def split(
    clients: Sequence[Indices],
    spec: PartitionSpec,
    rng: np.random.RandomState,
    as_it_comes: bool = False,
    remedy: str = "",
) -> list[tuple[Indices, Indices]]:
    """Shuffle each client's samples, in client order: the first floor(share x n) are for training, the rest for tests.

    With `as_it_comes` each side gets at least one sample. Raises FedbenchError if a client is left without a training
    or without a test sample; `remedy` is added to the error's hint.
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


#: At most so many groups of an order are named.
_NAMED = 12


def ordered(groups: Sequence[str], spec: PartitionSpec) -> str:
    """The groups of a partition in this order, in words: all, or those that never train."""
    chosen = groups[spec.trainees :] if spec.unseen else groups
    more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
    return f"{', '.join(chosen[:_NAMED])}{more}" + (" unseen" if spec.unseen else "")


def shards(samples: Indices, clients: int) -> list[Indices]:
    """Cut into consecutive pieces of equal size, one per client; the last piece also gets the remainder."""
    return cut(samples, [len(samples) // clients] * (clients - 1) + [len(samples)])


def cut(samples: Indices, sizes: Sequence[int]) -> list[Indices]:
    """Cut into consecutive pieces of these sizes (np.split takes ten times as long for this many)."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [samples[a:b] for a, b in pairwise(ends)]


#: Modifiers of partitioners that split samples at random, and of those that draw training and test samples separately.
AT_RANDOM = ("train_fraction", "subsample", "unseen", "unseen_as", "validation", "duplicates")
APART = ("subsample", "validation", "duplicates")
#: Modifiers of partitioners whose clients and splits are given, not drawn.
GIVEN = ("validation", "duplicates", "unseen", "unseen_as")


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of each of M clients by split, as rows of the data set."""

    train: Sequence[tuple[Indices, ...]]  #: [M] training samples of each drift phase; one phase without drift
    test: Sequence[Indices]  #: [M]
    #: Labels and colours that were drawn with the samples, for all samples in this order: by client, training samples
    #: before test samples. None: the data set's labels, and no colours.
    label: NDArray[np.int32] | None = None
    colour: NDArray[np.int8] | None = None
    classes: tuple[str, ...] | None = None  #: names of the labels' classes; None: those of the data set
    drawn: Drawn | None = None  #: true distributions of the clients, if the partitioner knows them
    transforms: Sequence[Transform] | None = None  #: [M] transform of each client's images, applied before the shift's
    #: [M] number of validation samples: the last ones of each client's training samples. None: the spec's share.
    held_back: Sequence[int] | None = None

    @classmethod
    def of(cls, sides: Iterable[tuple[Indices, Indices]], **more: Any) -> Assignment:
        """Build the assignment from the (training, test) samples of each client."""
        train, test = zip(*sides, strict=True)
        return cls([(one,) for one in train], test, **more)


@dataclass(frozen=True)
class Scheme(options.Recorded):
    """A partitioner. Its fields, made by `fedbench.options.option`, are its options."""

    name: ClassVar[str] = ""  #: in specs: the file's name, or for a user's class also its source's digest
    version: ClassVar[int] = 1  #: increase it when the same options give other clients (tests/golden explains when)
    #: Options of `fedbench partition` that select this partitioner -> the option that they set ("": none).
    short: ClassVar[Mapping[str, str]] = {}
    shifts: ClassVar[tuple[str, ...]] = SHIFTS  #: accepted values of --shift
    modifiers: ClassVar[tuple[str, ...]] = AT_RANDOM  #: accepted fields of a PartitionSpec besides its options
    by_class: ClassVar[bool] = True  #: whether it uses classes; it then rejects multi-label data
    #: Whether clients may be of any size; each split then gets at least one sample.
    as_it_comes: ClassVar[bool] = False
    leaks: ClassVar[bool] = False  #: whether it deliberately allows test images among the training images
    remedy: ClassVar[str] = ""  #: additional hint for the error that a client is left without samples

    def __post_init__(self) -> None:
        """Convert and check the options. Raises FedbenchError."""
        hints = type_hints(type(self))
        for option, field in self.options().items():
            value = coerce(f"{option} of {self.title()}", hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            choices = field.metadata.get("choices")
            if choices and value is not None and value not in choices:
                raise unknown(f"{option} of {self.title()}", str(value), choices)
            if isinstance(value, int | float):
                options.check_bounds(self.title(), option, field, value)

    def check(self, spec: PartitionSpec) -> None:
        """Raise FedbenchError if the options do not fit each other or the rest of the spec."""
        return

    def deal(self, dataset: Dataset, spec: PartitionSpec, rng: np.random.RandomState) -> Sequence[Indices]:
        """Return the samples of each client before the split, as rows of the data set."""
        raise NotImplementedError

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Assign samples to clients and splits. By default the samples that `deal` gives a client are split at random.

        All draws come in order from one NumPy legacy generator (Mersenne Twister) seeded with the spec's seed. The
        papers' partitions are drawn in the same way, so the same seed gives the papers' clients. Raises FedbenchError
        if there are too few samples for the clients, or a client is left without a training or without a test sample.
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
        """Return the probability of each stratum under the clients' training and test distributions, if known."""
        return None

    def groups(self, partition: Partition) -> list[int] | None:
        """Return the true group of each client; None: clients with the same transform form a group."""
        return None

    def label(self, spec: PartitionSpec) -> str:
        """Return the short name for tables, such as Dir-0.3; by default the partitioner's name and options."""
        values = {option: getattr(self, field.name) for option, field in self.options().items()}
        own = [f"{option.replace('_', ' ')} {value}" for option, value in values.items() if value not in (None, False)]
        return " ".join([self.title(), ", ".join(own)]).strip()

    def details(self, spec: PartitionSpec) -> list[str]:
        """Return additional facts for the reader, in a few words each."""
        return []

    def view(self, partition: Partition, width: int) -> Iterable[RenderableType] | None:
        """Render the output of `fedbench partition`; None: print the table of clients and their classes."""
        return None

    def true_groups(self, spec: PartitionSpec, classes: int) -> int:
        """Return the number of true groups on data with `classes` classes, as far as the spec determines it."""
        return 1

    def needs_classes(self, spec: PartitionSpec) -> bool:
        """Whether the data must have one class per image, not several labels."""
        return self.by_class

    @classmethod
    def title(cls) -> str:
        """Return the name without the digest."""
        return (cls.name or cls.__name__).partition("@")[0]

    @classmethod
    def called(cls) -> str:
        """Return the partition's name with its article, such as "an iid partition"."""
        return f"{'an' if cls.title()[0] in 'aeiouAEIOU' else 'a'} {cls.title()} partition"

    @classmethod
    def options(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the options by name."""
        return options.of(cls)

    @classmethod
    def kind(cls, option: str) -> Any:
        """Return the type of an option on the command line, from options.VALUES; None if it cannot be given there."""
        hint = type_hints(cls)[cls.options()[option].name]
        kinds = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
        return next((one for one in kinds if one in options.VALUES), None)

    @classmethod
    def takes(cls, name: str, values: Mapping[str, Any]) -> bool:
        """Whether the partitioner uses a protocol's default of this name, given all defaults in `values`."""
        if cls.modifiers == GIVEN:  # a given partition stays unchanged unless the user asks for modifiers
            return name in ("scheme", "clients", "seed") or name in cls.options()
        if name == "shift":
            return values[name] in cls.shifts
        return name in cls.modifiers or name in cls.options() or name in ("scheme", "clients", "seed")

    @classmethod
    def count(cls, values: Mapping[str, Any]) -> int | None:
        """Return the number of clients that the options determine, if any."""
        return None

    @classmethod
    def create(cls, values: Mapping[str, Any]) -> Self:
        """Build the partitioner from options by name. Raises FedbenchError if one is missing."""
        known = cls.options()
        for option, field in known.items():
            if field.default is dataclasses.MISSING and values.get(option) is None:
                raise FedbenchError(
                    f"{cls.called()} needs {option.replace('_', ' ')}: {field.metadata['help']}", cls._example(option)
                )
        return cls(**{known[option].name: value for option, value in values.items()})

    @classmethod
    def _example(cls, option: str) -> str:
        """Return an example of an option on the command line; empty if it cannot be given there."""
        if cls.kind(option) is None:
            return "for example --counts FILE.csv" if "counts" in cls.short else ""
        short = next((one for one, own in cls.short.items() if own == option), option.replace("_", "-"))
        return f"for example --{short} " + {int: "2", float: "0.5", str: "NAME"}.get(cls.kind(option), "")

    @classmethod
    def stored(cls) -> dict[str, str]:
        """Map the key in stored specs to the option."""
        return {field.metadata.get("stored") or option: option for option, field in cls.options().items()}

    @property
    def values(self) -> dict[str, Any]:
        """The options under their stored keys. Options at a default of None or False are left out, so that adding such
        an option changes no partition's id."""
        own = {}
        for key, option in self.stored().items():
            field = self.options()[option]
            value = getattr(self, field.name)
            if value is not None and not (value is False and field.default is False):
                own[key] = value
        return own
