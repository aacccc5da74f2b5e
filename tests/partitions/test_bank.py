"""FLUX's levels: the banks, what clients draw from them, and which are true groups (Appendices D.3, F.1, F.3)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.specs import DatasetSpec

MADE = DatasetSpec("made", "here", "now")
seeds, levels = st.integers(0, 2**32 - 1), st.integers(1, 8)


def drawn(shift: str, level: int, clients: int = 10, seed: int = 42, classes: int = 10, **fields: Any) -> Drawn:
    spec = partition_spec(MADE, "equal", clients, seed, shift=shift, level=level, **fields)
    return schemes.of(spec).drawn(spec, classes)


def met(of: Drawn, side: int = 0) -> list[Distribution]:
    """The distribution of each client."""
    return [of.distributions[g] for g in of.of_phase[side]]


@given(st.sampled_from(sorted(LEVELLED)), levels, seeds, st.integers(1, 30))
@settings(max_examples=100)
def test_groups_count_distinct_distributions_in_order_of_appearance(
    shift: str, level: int, seed: int, clients: int
) -> None:
    of = drawn(shift, level, clients, seed)
    assert of.of_phase.shape == (2, clients)
    assert of.of_phase[0].tolist() == of.of_phase[1].tolist()  # the same on both sides
    first = [of.of_phase[0].tolist().index(g) for g in range(len(of.distributions))]
    assert all(a < b for a, b in pairwise(first))
    assert len(set(of.distributions)) == len(of.distributions)
    again = drawn(shift, level, clients, seed)
    assert again.of_phase.tolist() == of.of_phase.tolist()
    assert again.distributions == of.distributions
    more = drawn(shift, level, clients + 3, seed)  # more clients change nothing of those before
    assert met(more)[:clients] == met(of)


@pytest.mark.parametrize(("level", "size"), list(enumerate((2, 3, 4, 5, 6, 9, 12, 15), 1)))
def test_px_bank(level: int, size: int) -> None:
    """Table 9: rotations 2 3 4 5, then the same in three colours."""
    rotations = (2, 3, 4, 5)[(level - 1) % 4]
    colours = (None,) if level < 5 else ("red", "blue", "green")
    bank = {Distribution(rotation=Rotation(i * 360 // rotations, c)) for i in range(rotations) for c in colours}
    assert len(bank) == size
    assert set(drawn("px", level, 400).distributions) == bank


@given(levels, seeds, st.sampled_from((10, 100)))
@settings(max_examples=40)
def test_py_subsets(level: int, seed: int, classes: int) -> None:
    of = drawn("py", level, 60, seed, classes)
    size = (11 - level) * (10 if classes == 100 else 1)
    assert len(of.distributions) == 5
    assert {one.number for one in of.distributions} == set(range(5))
    for one in of.distributions:
        assert one.classes is not None
        assert len(set(one.classes)) == len(one.classes) == size
        assert set(one.classes) <= set(range(classes))
        assert (one.rotation, one.rotations, one.labels) == (Rotation(), (), ())


def test_equal_subsets_of_two_entries_are_two_groups() -> None:
    """Level 1 of P(Y) keeps all classes in each of its five distributions."""
    of = drawn("py", 1, 60)
    assert len(of.distributions) == 5
    assert {one.classes for one in of.distributions} == {tuple(range(10))}
    assert of.distributions[0].described([str(k) for k in range(10)]) == "all classes"


@given(levels, seeds, st.sampled_from((10, 100)))
@settings(max_examples=40)
def test_pyx_permutes_one_pool(level: int, seed: int, classes: int) -> None:
    of = drawn("pyx", level, 12, seed, classes)
    size = 10 * level + 20 if classes == 100 else level
    pools = {tuple(k for k, _ in one.labels) for one in of.distributions}
    assert len(pools) == 1
    (pool,) = pools
    assert len(set(pool)) == size
    assert all(sorted(given for _, given in one.labels) == sorted(pool) for one in of.distributions)
    assert (len(of.distributions) == 1) or size > 1


@given(levels, seeds, st.booleans())
@settings(max_examples=40)
def test_pxy_turns_the_same_classes_by_angles_of_their_own(level: int, seed: int, strict: bool) -> None:
    of = drawn("pxy", level, 40, seed, strict=strict)
    assert len({tuple(k for k, _ in one.rotations) for one in of.distributions}) == 1
    for one in of.distributions:
        assert len(one.rotations) == level
        assert {look.angle for _, look in one.rotations} <= {0, 90, 180, 270}
        assert {look.colour for _, look in one.rotations} == {None}
        assert not strict or len({look for _, look in one.rotations}) == 1
    assert not strict or len(of.distributions) <= 4
    if level == 8 and not strict:
        assert len(of.distributions) > 35  # of 4^8


@given(levels, seeds)
@settings(max_examples=20)
def test_pxy_of_a_hundred_classes_turns_and_colours_apart(level: int, seed: int) -> None:
    of = drawn("pxy", level, 40, seed, 100)
    angles, colours = set(), set()
    turned, lit = set(), set()
    for one in of.distributions:
        for k, look in one.rotations:
            angles.add(look.angle)
            colours.add(look.colour)
            turned |= {k} if look.angle else set()
            lit |= {k} if look.colour else set()
    assert angles == {0, 120, 240}
    assert colours - {None} == {"red", "blue", "green"}
    assert len(turned) == len(lit) == 10 * level
    assert level == 8 or turned != lit


EXPECTED = {  # flux/protocol.md#levels: distinct distributions among 10 clients
    "px": {1: 2.0, 2: 3.0, 3: 3.8, 4: 4.5, 5: 5.0, 6: 6.2, 7: 7.0, 8: 7.5},
    "py": {1: 4.5, 8: 4.5},
    "pyx": {1: 1, 2: 2, 3: 5.0, 4: 8.3, 5: 9.6},
    "pxy": {1: 3.8, 2: 7.6, 3: 9.3},
    "px+py": {3: 4.5, 6: 4.5},
}


@pytest.mark.parametrize(("shift", "level", "told"), [(s, k, m) for s, ls in EXPECTED.items() for k, m in ls.items()])
def test_expected_number_of_true_groups(shift: str, level: int, told: float) -> None:
    runs = 300
    found = [len(drawn(shift, level, seed=seed).distributions) for seed in range(runs)]
    bank = {
        "px": (2, 3, 4, 5, 6, 9, 12, 15)[level - 1],
        "py": 5,
        "px+py": 5,
        "pyx": math.factorial(level),
        "pxy": 4**level,
    }
    b = bank[shift]  # 10 uniform draws from b meet b (1 - (1 - 1/b)^10) on average
    exact = b * (1 - (1 - 1 / b) ** 10)
    assert abs(exact - told) < 0.06
    assert abs(np.mean(found) - exact) <= 5 * np.std(found) / math.sqrt(runs) + 0.003


@given(st.sampled_from(("px+py", "pxy+py", "pyx+py")), levels, seeds, st.booleans())
@settings(max_examples=60)
def test_mixed_shifts_come_as_one_unit_from_a_bank_of_five(shift: str, level: int, seed: int, fewer: bool) -> None:
    of = drawn(shift, level, 60, seed, fewer_classes=fewer)
    alone = drawn(shift.partition("+")[0], level, 60, seed).distributions
    assert {one.number for one in of.distributions} == set(range(5))
    for one in of.distributions:
        assert one.classes is not None
        assert len(one.classes) == (11 - level if fewer else 4)
        assert (one.rotation != Rotation()) <= (shift == "px+py")
        assert bool(one.rotations) == (shift == "pxy+py")
        assert bool(one.labels) == (shift == "pyx+py")
        # The classes that are turned or permuted are those of the single shift.
        assert [k for k, _ in one.rotations] == [k for k, _ in alone[0].rotations]
        assert [k for k, _ in one.labels] == [k for k, _ in alone[0].labels]


# -- in stages ------------------------------------------------------------------------------------------------


@given(st.sampled_from(("px", "py", "pyx", "pxy")), st.integers(1, 3), seeds, st.integers(2, 4), st.integers(1, 12))
@settings(max_examples=80)
def test_stages_draw_anew_and_tests_draw_what_was_met(
    shift: str, level: int, seed: int, stages: int, clients: int
) -> None:
    of = drawn(shift, level, clients, seed, phases=stages)
    assert of.of_phase.shape == (stages + 1, clients)
    for c in range(clients):
        seen = set(of.of_phase[:-1, c]) if stages == 2 else set(of.of_phase[-2])
        assert of.of_phase[-1, c] in seen


DRIFTING = {"px": (4, 6, 12), "py": (4, 6, 8), "pyx": (6, 24, 120), "pxy": (4, 6, 8)}


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("shift", sorted(DRIFTING))
def test_drifting_banks(shift: str, level: int) -> None:
    of = drawn(shift, level, 1000, phases=3)
    assert len(of.distributions) == DRIFTING[shift][level - 1]
    for one in of.distributions:
        assert one.classes is None or len(one.classes) == 2
        if shift == "pxy":
            assert len(one.rotations) == 8
            assert len({look for _, look in one.rotations}) == 1
            assert one.rotations[0][1].angle in (0, 90, 180, 270)
            assert one.rotations[0][1].colour in ("red", "blue", "green")
    assert len({tuple(stage) for stage in of.of_phase.tolist()}) == 4  # every stage, and the test, is a draw of its own


def test_the_bank_is_the_same_in_two_and_in_three_stages() -> None:
    two, three = (set(drawn("py", 2, 500, phases=s).distributions) for s in (2, 3))
    assert two == three


# -- words and errors -----------------------------------------------------------------------------------------

NAMES = tuple("abcdefghijklmnop")


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Distribution(), "as it is"),
        (Distribution(rotation=Rotation(90, "red")), "rotated 90°, red"),
        (Distribution(number=1, classes=(0, 2)), "classes a, c"),
        (Distribution(labels=((0, 1), (1, 0), (2, 2))), "a as b, b as a"),
        (Distribution(labels=((0, 0),)), "as it is"),
        (
            Distribution(rotations=((0, Rotation(90)), (1, Rotation()), (2, Rotation(90)), (3, Rotation(180)))),
            "a, c rotated 90°; d rotated 180°",
        ),
        (Distribution(classes=(0, 1), rotations=((0, Rotation(90)), (2, Rotation(90)))), "classes a, b; a rotated 90°"),
        (Distribution(classes=tuple(range(14))), "classes a, b, c, d, e, f, g, h, i, j and 4 more"),
        (Distribution(name="domain Art"), "domain Art"),
    ],
)  # fmt: skip
def test_distributions_in_words_and_back_from_json(one: Distribution, says: str) -> None:
    assert one.described(NAMES) == says
    assert Distribution.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("shift", "level", "classes", "says"),
    [
        ("py", 1, 6, "P(Y) at level 1 needs 10 classes, and made has 6"),
        ("pyx", 8, 6, "P(Y|X) at level 8 needs 8 classes, and made has 6"),
        ("pxy", 7, 6, "P(X|Y) at level 7 needs 7 classes, and made has 6"),
        ("px+py", 1, 3, "P(X) and P(Y) at level 1 needs 4 classes, and made has 3"),
    ],
)
def test_too_few_classes(shift: str, level: int, classes: int, says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        drawn(shift, level, classes=classes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
