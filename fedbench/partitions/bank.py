"""FLUX's four shifts at eight levels, mixed and drifting shifts: the distributions from which clients draw.

Appendix F.1 and Table 9 (static), F.3 (mixed), D.3 and Table 6 (phases); choices that the paper leaves open are in
flux/protocol.md#levels, #mixed-shifts and #drifting-data. Draws come from counter-based streams keyed by (seed,
client, phase), so a seed's clients follow the paper's law but are not the paper's (`schemes/equal.py` draws those).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.rng import stream
from fedbench.specs import PartitionSpec, require

#: The shifts and what differs between clients. Static shifts have LEVELS levels, drifting ones DRIFT_LEVELS.
LEVELLED = {
    "px": "P(X)",
    "py": "P(Y)",
    "pyx": "P(Y|X)",
    "pxy": "P(X|Y)",
    "px+py": "P(X) and P(Y)",
    "pxy+py": "P(X|Y) and P(Y)",
    "pyx+py": "P(Y|X) and P(Y)",
}
LEVELS, DRIFT_LEVELS = 8, 3

#: Draws one client's distribution.
Bank = Callable[[np.random.Generator], Distribution]

#: Number of entries in the bank of P(Y) and of the mixed shifts.
BANK = 5
_COLOURS = ("red", "blue", "green")
_ROTATIONS = (2, 3, 4, 5)  #: angles of P(X) at levels 1 to 4; levels 5 to 8 repeat them in three colours
_MIXED_CLASSES = 4
#: With at least this many classes, the levels are those of CIFAR-100.
_MANY = 100

# Parameters of the drifting shifts by level.
_DRIFTING_X = ((4, (None,)), (2, _COLOURS), (4, _COLOURS))
_DRIFTING_BANK = (4, 6, 8)
_DRIFTING_POOL = (3, 4, 5)
_DRIFTING_CLASSES, _DRIFTING_TURNED = 2, 8


@dataclass(frozen=True)
class Level:
    """A shift of LEVELLED at a level, on data of K classes."""

    spec: PartitionSpec  #: gives the shift, seed, clients and drift phases
    level: int  #: from 1, the mildest
    classes: int  #: K
    strict: bool = False  #: under P(X|Y) all rotated classes of a client share one angle
    fewer_classes: bool = False  #: mixed with P(Y), a client keeps 11 - level classes (default: 4 at every level)

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def pool(self) -> int:
        """Number of classes whose labels are permuted under P(Y|X)."""
        return self.level if self.classes < _MANY else 10 * self.level + 20

    @property
    def angles(self) -> tuple[int, ...]:
        """Possible angles of a class under P(X|Y)."""
        return (0, 90, 180, 270) if self.classes < _MANY else (0, 120, 240)

    @property
    def colours(self) -> tuple[str, ...]:
        """Possible colours of a class under P(X|Y); empty unless there are many classes."""
        return () if self.classes < _MANY else _COLOURS

    def check(self, number: int) -> None:
        """Raise FedbenchError if the data have fewer than `number` classes."""
        require(
            number <= self.classes,
            f"{LEVELLED[self.spec.shift]} at level {self.level} needs {number} classes, and {self.spec.dataset.name} "
            f"has {self.classes}",
            "choose another level or another data set",
        )

    def some(self, purpose: str, number: int, *key: int) -> tuple[int, ...]:
        """Draw `number` distinct classes, in ascending order."""
        self.check(number)
        chosen = stream(self.seed, purpose, *key).choice(self.classes, number, replace=False)
        return tuple(sorted(int(k) for k in chosen))

    def scaled(self, number: int) -> int:
        """Return a number of classes, multiplied by ten on CIFAR-100."""
        return 10 * number if self.classes >= _MANY else number


def draw(at: Level) -> Drawn:
    """Draw the distributions of the clients.

    Static: each client draws one, for both splits. In drift phases: each client draws one per phase from the bank with
    replacement. Its test distribution is drawn from those that any client has in the last phase (the paper: one drift
    at test time), but with 2 phases, as in the released code, from those that the client itself has had.
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


def _px(at: Level) -> Bank:
    """One angle and one colour for all images of a client."""
    return _uniform(of_images(at.level))


def of_images(level: int) -> list[Distribution]:
    """Return the bank of P(X) at a level."""
    return _pairs(_ROTATIONS[(level - 1) % 4], _COLOURS if level > 4 else (None,))


def _pairs(angles: int, colours: Sequence[str | None]) -> list[Distribution]:
    rotations = [Rotation(360 * i // angles, colour) for i in range(angles) for colour in colours]
    return [Distribution(rotation=one) for one in rotations]


def _py(at: Level) -> Bank:
    """One of five subsets, each of 11 - level classes."""
    return _subsets(at, BANK, at.scaled(11 - at.level))


def _subsets(at: Level, entries: int, number: int) -> Bank:
    return _uniform([subset(i, at.some("subset", number, i)) for i in range(entries)])


def subset(number: int, classes: Sequence[int]) -> Distribution:
    """Return one entry of the bank of P(Y)."""
    return Distribution(number=number, classes=tuple(sorted(classes)))


def _pyx(at: Level) -> Bank:
    """A permutation of the labels of `pool` classes."""
    return _permutations(at.some("pool", at.pool))


def _permutations(pool: Sequence[int]) -> Bank:
    def one(rng: np.random.Generator) -> Distribution:
        given = rng.permutation(pool).tolist()
        return Distribution(labels=tuple(zip(pool, given, strict=True)))

    return one


def _pxy(at: Level) -> Bank:
    """An angle for each of `level` classes; with many classes also a colour for each of as many independent ones."""
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
    """One of five fixed pairs of a class subset and a draw of the other shift."""
    number = 11 - at.level if at.fewer_classes else _MIXED_CLASSES
    subsets = [at.some("subset", at.scaled(number), i) for i in range(BANK)]
    others = [bank(stream(at.seed, "mixed", i)) for i in range(BANK)]
    pairs = enumerate(zip(others, subsets, strict=True))
    return _uniform([replace(other, number=i, classes=subset) for i, (other, subset) in pairs])


def _drifting_px(at: Level) -> Bank:
    return _uniform(_pairs(*_DRIFTING_X[at.level - 1]))


def _drifting_py(at: Level) -> Bank:
    return _subsets(at, _DRIFTING_BANK[at.level - 1], _DRIFTING_CLASSES)


def _drifting_pyx(at: Level) -> Bank:
    return _permutations(at.some("pool", _DRIFTING_POOL[at.level - 1]))


def _drifting_pxy(at: Level) -> Bank:
    """One of a few patterns; each rotates and colours eight classes in the same way."""
    entries = []
    for i in range(_DRIFTING_BANK[at.level - 1]):
        turned = at.some("turned", _DRIFTING_TURNED, i)
        rotation = _uniform(_pairs(4, _COLOURS))(stream(at.seed, "pattern", i)).rotation
        entries.append(Distribution(number=i, rotations=tuple((k, rotation) for k in turned)))
    return _uniform(entries)


_STATIC = {"px": _px, "py": _py, "pyx": _pyx, "pxy": _pxy}
_DRIFTING = {"px": _drifting_px, "py": _drifting_py, "pyx": _drifting_pyx, "pxy": _drifting_pxy}
