"""FLUX's four shifts at eight levels, their mixtures and the drifting ones: who draws which distribution.

Appendix F.1 and Table 9 (static), F.3 (mixed), D.3 and Table 6 (phases); what the paper leaves open stands in
flux/protocol.md#levels, #mixed-shifts and #drifting-data. Draws come from counter-based streams keyed by (seed,
purpose, client, phase), so the clients of a seed are not the paper's, only of the same law; `anda.py` draws those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.transforms import Rotation
from fedbench.rng import stream
from fedbench.specs import PartitionSpec, require

#: The shifts, each at LEVELS levels, or in drift phases at DRIFT_LEVELS: what differs between clients.
LEVELLED = {
    "px": "P(X)", "py": "P(Y)", "pyx": "P(Y|X)", "pxy": "P(X|Y)",
    "px+py": "P(X) and P(Y)", "pxy+py": "P(X|Y) and P(Y)", "pyx+py": "P(Y|X) and P(Y)",
}  # fmt: skip
LEVELS, DRIFT_LEVELS = 8, 3

#: A draw of one client.
Bank = Callable[[np.random.Generator], Distribution]

#: Entries of the bank of P(Y) and of the mixed shifts.
BANK = 5
_COLOURS = ("red", "blue", "green")
_ROTATIONS = (2, 3, 4, 5)  #: of P(X) at levels 1 to 4; the same again, in three colours, at 5 to 8
_MIXED_CLASSES = 4
#: From so many classes on the levels are CIFAR-100's.
_MANY = 100

# Of the levels of the drifting shifts.
_DRIFTING_X = ((4, (None,)), (2, _COLOURS), (4, _COLOURS))
_DRIFTING_BANK = (4, 6, 8)
_DRIFTING_POOL = (3, 4, 5)
_DRIFTING_CLASSES, _DRIFTING_TURNED = 2, 8


@dataclass(frozen=True)
class Level:
    """A shift of LEVELLED at a level, on data of K classes."""

    spec: PartitionSpec  #: its shift, seed, clients and drift phases
    level: int  #: from the mildest, 1
    classes: int  #: K
    strict: bool = False  #: under P(X|Y) all classes that a client sees turned share one angle
    fewer_classes: bool = False  #: mixed with P(Y), a client keeps 11 - level classes (else 4 at every level)

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def pool(self) -> int:
        """Classes whose labels are permuted under P(Y|X)."""
        return self.level if self.classes < _MANY else 10 * self.level + 20

    @property
    def angles(self) -> tuple[int, ...]:
        """Of a class under P(X|Y)."""
        return (0, 90, 180, 270) if self.classes < _MANY else (0, 120, 240)

    @property
    def colours(self) -> tuple[str, ...]:
        """Of a class under P(X|Y): none but with many classes."""
        return () if self.classes < _MANY else _COLOURS

    def check(self, number: int) -> None:
        """Raise FedbenchError if the data have fewer classes."""
        require(
            number <= self.classes,
            f"{LEVELLED[self.spec.shift]} at level {self.level} needs {number} classes, and {self.spec.dataset.name} "
            f"has {self.classes}",
            "choose another level or another data set",
        )

    def some(self, purpose: str, number: int, *key: int) -> tuple[int, ...]:
        """So many of the classes, in order."""
        self.check(number)
        chosen = stream(self.seed, purpose, *key).choice(self.classes, number, replace=False)
        return tuple(sorted(int(k) for k in chosen))

    def scaled(self, number: int) -> int:
        """A number of classes, ten times as many of CIFAR-100's."""
        return 10 * number if self.classes >= _MANY else number


def draw(at: Level) -> Drawn:
    """The distributions of the clients.

    Static: one a client, in both splits. In drift phases: one a phase, drawn from the bank with replacement; the test
    distribution is drawn from those that any client has in the last phase (the paper: one drift at test time), but
    with 2 phases, as in the released code, from those that the client itself has had.
    Raises FedbenchError if the data have too few classes.
    """
    clients, phases, seed = range(at.spec.clients), at.spec.phases or 1, at.seed
    bank = _bank(at)
    train = [[bank(stream(seed, "distribution", c, s)) for c in clients] for s in range(phases)]
    if at.spec.phases is None:
        return Drawn.of([*train, train[0]])
    last = list(dict.fromkeys(train[-1]))
    tests = []
    for c in clients:
        among = list(dict.fromkeys(phase[c] for phase in train)) if phases == 2 else last
        tests.append(among[stream(seed, "test distribution", c).integers(len(among))])
    return Drawn.of([*train, tests])


def _bank(at: Level) -> Bank:
    first, _, mixed = at.spec.shift.partition("+")
    if at.spec.phases is not None:
        return _DRIFTING[first](at)
    bank = _STATIC[first](at)
    return _mixed(at, bank) if mixed else bank


def _uniform(entries: Sequence[Distribution]) -> Bank:
    return lambda rng: entries[int(rng.integers(len(entries)))]


# -- static ---------------------------------------------------------------------------------------------------


def _px(at: Level) -> Bank:
    """Any pair of an angle and a colour, for all images of a client."""
    return _uniform(of_images(at.level))


def of_images(level: int) -> list[Distribution]:
    """The bank of P(X) at a level."""
    return _pairs(_ROTATIONS[(level - 1) % 4], _COLOURS if level > 4 else (None,))


def _pairs(angles: int, colours: Sequence[str | None]) -> list[Distribution]:
    rotations = [Rotation(360 * i // angles, colour) for i in range(angles) for colour in colours]
    return [Distribution(rotation=one) for one in rotations]


def _py(at: Level) -> Bank:
    """One of five subsets of 11 - level classes."""
    return _subsets(at, BANK, at.scaled(11 - at.level))


def _subsets(at: Level, entries: int, number: int) -> Bank:
    return _uniform([subset(i, at.some("subset", number, i)) for i in range(entries)])


def subset(number: int, classes: Sequence[int]) -> Distribution:
    """An entry of the bank of P(Y)."""
    return Distribution(number=number, classes=tuple(sorted(classes)))


def _pyx(at: Level) -> Bank:
    """A permutation of the labels of a pool of `level` classes."""
    return _permutations(at.some("pool", at.pool))


def _permutations(pool: Sequence[int]) -> Bank:
    def one(rng: np.random.Generator) -> Distribution:
        given = rng.permutation(pool).tolist()
        return Distribution(labels=tuple(zip(pool, given, strict=True)))

    return one


def _pxy(at: Level) -> Bank:
    """An angle for each of `level` classes; with many classes a colour for each of as many others, too."""
    turned = at.some("turned", at.scaled(at.level))
    angles, coloured = at.angles, at.some("coloured", at.scaled(at.level)) if at.colours else ()

    def one(rng: np.random.Generator) -> Distribution:
        by = rng.integers(len(angles), size=1 if at.strict else len(turned))
        lit = rng.integers(len(_COLOURS), size=1 if at.strict else len(coloured))
        angle = dict(zip(turned, np.broadcast_to(by, len(turned)).tolist(), strict=True))
        colour = dict(zip(coloured, np.broadcast_to(lit, len(coloured)).tolist(), strict=True))
        return Distribution(
            rotations=tuple(
                (k, Rotation(angles[angle[k]] if k in angle else 0, _COLOURS[colour[k]] if k in colour else None))
                for k in sorted({*angle, *colour})
            )
        )

    return one


def _mixed(at: Level, bank: Bank) -> Bank:
    """One of five pairs of a class subset and a draw of the other shift."""
    number = 11 - at.level if at.fewer_classes else _MIXED_CLASSES
    subsets = [at.some("subset", at.scaled(number), i) for i in range(BANK)]
    others = [bank(stream(at.seed, "mixed", i)) for i in range(BANK)]
    pairs = enumerate(zip(others, subsets, strict=True))
    return _uniform([replace(other, number=i, classes=subset) for i, (other, subset) in pairs])


# -- in drift phases ------------------------------------------------------------------------------------------------


def _drifting_px(at: Level) -> Bank:
    return _uniform(_pairs(*_DRIFTING_X[at.level - 1]))


def _drifting_py(at: Level) -> Bank:
    return _subsets(at, _DRIFTING_BANK[at.level - 1], _DRIFTING_CLASSES)


def _drifting_pyx(at: Level) -> Bank:
    return _permutations(at.some("pool", _DRIFTING_POOL[at.level - 1]))


def _drifting_pxy(at: Level) -> Bank:
    """One of a few patterns: eight classes that share an angle and a colour."""
    entries = []
    for i in range(_DRIFTING_BANK[at.level - 1]):
        turned = at.some("turned", _DRIFTING_TURNED, i)
        rotation = _uniform(_pairs(4, _COLOURS))(stream(at.seed, "pattern", i)).rotation
        entries.append(Distribution(number=i, rotations=tuple((k, rotation) for k in turned)))
    return _uniform(entries)


_STATIC = {"px": _px, "py": _py, "pyx": _pyx, "pxy": _pxy}
_DRIFTING = {"px": _drifting_px, "py": _drifting_py, "pyx": _drifting_pyx, "pxy": _drifting_pxy}
