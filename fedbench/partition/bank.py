"""FLUX's four shifts at eight levels, their mixtures and the drifting ones: who draws which distribution.

Appendix F.1 and Table 9 (static), F.3 (mixed), D.3 and Table 6 (stages); what the paper leaves open stands in
flux/protocol.md#levels, #mixed-shifts and #drifting-data. Draws come from counter-based streams keyed by (seed,
purpose, client, stage). The authors draw from one NumPy generator in an order of their own, so the clients of a seed
are not theirs, only of the same law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedbench.core.rng import stream
from fedbench.partition.distribution import Distribution
from fedbench.partition.look import Look
from fedbench.specs import LEVELLED, PartitionSpec, require

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


@dataclass(frozen=True, eq=False)
class Drawn:
    """The G distributions that M clients meet, counted in order of appearance, and which of them each client does."""

    distributions: tuple[Distribution, ...]  #: [G]
    of: NDArray[np.int32]  #: [S + 1, M] that of each stage of the training data, and last that of the test data


def draw(spec: PartitionSpec, classes: int) -> Drawn:
    """The distributions of the clients under a shift of LEVELLED, on data of so many classes.

    Static: one a client, on both sides of its split. In stages: one a stage, drawn from the bank with replacement;
    the test distribution is drawn from those that any client holds in the last stage (the paper: one drift at test
    time), but with 2 stages, as in the released code, from those that the client itself has met.
    Raises FedbenchError if the data have too few classes.
    """
    clients, stages = range(spec.clients), spec.stages or 1
    bank = _bank(spec, classes)
    met = [[bank(stream(spec.seed, "distribution", c, s)) for c in clients] for s in range(stages)]
    if spec.stages is None:
        return numbered([*met, met[0]])
    held = list(dict.fromkeys(met[-1]))
    tests = []
    for c in clients:
        among = list(dict.fromkeys(stage[c] for stage in met)) if spec.stages == 2 else held
        tests.append(among[stream(spec.seed, "test distribution", c).integers(len(among))])
    return numbered([*met, tests])


def numbered(sides: Sequence[Sequence[Distribution]]) -> Drawn:
    """The distributions of the clients, stage after stage and then on the test side, numbered."""
    numbers: dict[Distribution, int] = {}
    of = [[numbers.setdefault(one, len(numbers)) for one in side] for side in sides]
    return Drawn(tuple(numbers), np.array(of, np.int32))


def _bank(spec: PartitionSpec, classes: int) -> Bank:
    assert spec.level is not None
    first, _, mixed = spec.shift.partition("+")
    if spec.stages is not None:
        return _DRIFTING[first](spec, spec.level, classes)
    bank = _STATIC[first](spec, spec.level, classes)
    return _mixed(spec, bank, spec.level, classes) if mixed else bank


def _uniform(entries: Sequence[Distribution]) -> Bank:
    return lambda rng: entries[int(rng.integers(len(entries)))]


def _scaled(number: int, classes: int) -> int:
    return 10 * number if classes >= _MANY else number


def _some(spec: PartitionSpec, purpose: str, number: int, classes: int, *key: int) -> tuple[int, ...]:
    """So many of the classes, in order."""
    require(
        number <= classes,
        f"{LEVELLED[spec.shift]} at level {spec.level} needs {number} classes, and {spec.dataset.name} has {classes}",
        "choose another level or another data set",
    )
    chosen = stream(spec.seed, purpose, *key).choice(classes, number, replace=False)
    return tuple(sorted(int(k) for k in chosen))


# -- static ---------------------------------------------------------------------------------------------------


def _px(spec: PartitionSpec, level: int, classes: int) -> Bank:
    """Any pair of an angle and a colour, for all images of a client."""
    return _pairs(_ROTATIONS[(level - 1) % 4], _COLOURS if level > 4 else (None,))


def _pairs(rotations: int, colours: Sequence[str | None]) -> Bank:
    looks = [Look(360 * i // rotations, colour) for i in range(rotations) for colour in colours]
    return _uniform([Distribution(look=look) for look in looks])


def _py(spec: PartitionSpec, level: int, classes: int) -> Bank:
    """One of five subsets of 11 - level classes."""
    return _subsets(spec, BANK, _scaled(11 - level, classes), classes)


def _subsets(spec: PartitionSpec, entries: int, number: int, classes: int) -> Bank:
    return _uniform([Distribution(number=i, classes=_some(spec, "subset", number, classes, i)) for i in range(entries)])


def _pyx(spec: PartitionSpec, level: int, classes: int) -> Bank:
    """A permutation of the labels of a pool of `level` classes."""
    return _permutations(_some(spec, "pool", level if classes < _MANY else 10 * level + 20, classes))


def _permutations(pool: Sequence[int]) -> Bank:
    def one(rng: np.random.Generator) -> Distribution:
        given = rng.permutation(pool).tolist()
        return Distribution(labels=tuple(zip(pool, given, strict=True)))

    return one


def _pxy(spec: PartitionSpec, level: int, classes: int) -> Bank:
    """An angle for each of `level` classes; with many classes a colour for each of as many others, too."""
    turned = _some(spec, "turned", _scaled(level, classes), classes)
    angles = (0, 120, 240) if classes >= _MANY else (0, 90, 180, 270)
    coloured = _some(spec, "coloured", _scaled(level, classes), classes) if classes >= _MANY else ()

    def one(rng: np.random.Generator) -> Distribution:
        by = rng.integers(len(angles), size=1 if spec.strict else len(turned))
        lit = rng.integers(len(_COLOURS), size=1 if spec.strict else len(coloured))
        angle = dict(zip(turned, np.broadcast_to(by, len(turned)).tolist(), strict=True))
        colour = dict(zip(coloured, np.broadcast_to(lit, len(coloured)).tolist(), strict=True))
        return Distribution(
            looks=tuple(
                (k, Look(angles[angle[k]] if k in angle else 0, _COLOURS[colour[k]] if k in colour else None))
                for k in sorted({*angle, *colour})
            )
        )

    return one


def _mixed(spec: PartitionSpec, bank: Bank, level: int, classes: int) -> Bank:
    """One of five pairs of a class subset and a draw of the other shift."""
    kept = 11 - level if spec.fewer_classes else _MIXED_CLASSES
    subsets = [_some(spec, "subset", _scaled(kept, classes), classes, i) for i in range(BANK)]
    others = [bank(stream(spec.seed, "mixed", i)) for i in range(BANK)]
    return _uniform(
        [replace(o, number=i, classes=kept) for i, (o, kept) in enumerate(zip(others, subsets, strict=True))]
    )


# -- in stages ------------------------------------------------------------------------------------------------


def _drifting_px(spec: PartitionSpec, level: int, classes: int) -> Bank:
    return _pairs(*_DRIFTING_X[level - 1])


def _drifting_py(spec: PartitionSpec, level: int, classes: int) -> Bank:
    return _subsets(spec, _DRIFTING_BANK[level - 1], _DRIFTING_CLASSES, classes)


def _drifting_pyx(spec: PartitionSpec, level: int, classes: int) -> Bank:
    return _permutations(_some(spec, "pool", _DRIFTING_POOL[level - 1], classes))


def _drifting_pxy(spec: PartitionSpec, level: int, classes: int) -> Bank:
    """One of a few patterns: eight classes that share an angle and a colour."""
    entries = []
    for i in range(_DRIFTING_BANK[level - 1]):
        turned = _some(spec, "turned", _DRIFTING_TURNED, classes, i)
        look = _pairs(4, _COLOURS)(stream(spec.seed, "pattern", i)).look
        entries.append(Distribution(number=i, looks=tuple((k, look) for k in turned)))
    return _uniform(entries)


_STATIC = {"px": _px, "py": _py, "pyx": _pyx, "pxy": _pxy}
_DRIFTING = {"px": _drifting_px, "py": _drifting_py, "pyx": _drifting_pyx, "pxy": _drifting_pxy}
