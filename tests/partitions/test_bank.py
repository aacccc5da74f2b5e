"""FLUX's levels: the banks, what clients draw from them, and which are true groups (Appendices D.3, F.1, F.3); the
draws of its own generator, against its global generators asked by hand, and its known numbers of groups."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image

from fedbench import data, partitions
from fedbench.partitions import Partition, schemes
from fedbench.partitions.bank import LEVELLED
from fedbench.partitions.distribution import Distribution, Drawn
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.schemes.equal import SPREAD
from fedbench.partitions.transforms import apply
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.protocol import load
from fedbench.specs import DatasetSpec, PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.frames import SEEDS, few, refused
from tests.support.partitions_lab import MADE, SINGLE, equals, equals_of, sides, unseens
from tests.support.real_images import RealImages

levels = st.integers(1, 8)


def spec(shift: str, level: int, clients: int = 10, seed: int = 42, **own: Any) -> PartitionSpec:
    return lab.spec("equal", clients, seed, shift=shift, level=level, **own)


def drawn(shift: str, level: int, clients: int = 10, seed: int = 42, classes: int = 10, **own: Any) -> Drawn:
    of = spec(shift, level, clients, seed, **own)
    return schemes.of(of).drawn(of, classes)


def met(of: Drawn | Partition, side: int = 0) -> list[Distribution]:
    """The distribution of each client."""
    groups = of.of_phase[side] if isinstance(of, Drawn) else of.groups
    return [of.distributions[g] for g in groups]


@few(st.sampled_from(sorted(LEVELLED)), levels, SEEDS, st.integers(1, 30), examples=50)
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


RINGS = (2, 3, 4, 5, 6, 9, 12, 15)  #: distributions of P(X) by level; Table 9: rotations 2 3 4 5, then in three colours


@pytest.mark.parametrize("level", range(1, 9))
def test_px_bank(level: int) -> None:
    rotations = (2, 3, 4, 5)[(level - 1) % 4]
    colours = (None,) if level < 5 else ("red", "blue", "green")
    bank = {Distribution(rotation=Rotation(i * 360 // rotations, c)) for i in range(rotations) for c in colours}
    assert len(bank) == RINGS[level - 1]
    assert set(drawn("px", level, 400).distributions) == bank


@few(levels, SEEDS, st.sampled_from((10, 100)))
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


@few(levels, SEEDS, st.sampled_from((10, 100)))
def test_pyx_permutes_one_pool(level: int, seed: int, classes: int) -> None:
    of = drawn("pyx", level, 12, seed, classes)
    size = 10 * level + 20 if classes == 100 else level
    pools = {tuple(k for k, _ in one.labels) for one in of.distributions}
    assert len(pools) == 1
    (pool,) = pools
    assert len(set(pool)) == size
    assert all(sorted(given for _, given in one.labels) == sorted(pool) for one in of.distributions)
    assert (len(of.distributions) == 1) or size > 1


@few(levels, SEEDS, st.booleans())
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


@few(levels, SEEDS)
def test_pxy_of_a_hundred_classes_turns_and_colours_apart(level: int, seed: int) -> None:
    looks = [pair for one in drawn("pxy", level, 40, seed, 100).distributions for pair in one.rotations]
    assert {look.angle for _, look in looks} == {0, 120, 240}
    assert {look.colour for _, look in looks} - {None} == {"red", "blue", "green"}
    turned, lit = {k for k, look in looks if look.angle}, {k for k, look in looks if look.colour}
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
    runs = 100
    found = [len(drawn(shift, level, seed=seed).distributions) for seed in range(runs)]
    banks = {"px": RINGS[level - 1], "py": 5, "px+py": 5, "pyx": math.factorial(level), "pxy": 4**level}
    b = banks[shift]  # 10 uniform draws from b meet b (1 - (1 - 1/b)^10) on average
    exact = b * (1 - (1 - 1 / b) ** 10)
    assert abs(exact - told) < 0.06
    assert abs(np.mean(found) - exact) <= 5 * np.std(found) / math.sqrt(runs) + 0.003


@few(st.sampled_from(("px+py", "pxy+py", "pyx+py")), levels, SEEDS, st.booleans())
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


@few(st.sampled_from(SINGLE), st.integers(1, 3), SEEDS, st.integers(2, 4), st.integers(1, 12), examples=25)
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
    assert set(of.distributions) == set(drawn(shift, level, 1000, phases=2).distributions)
    for one in of.distributions:
        assert one.classes is None or len(one.classes) == 2
        if shift == "pxy":
            assert len(one.rotations) == 8
            (look,) = {look for _, look in one.rotations}
            assert look.angle in (0, 90, 180, 270)
            assert look.colour in ("red", "blue", "green")
    assert len({tuple(stage) for stage in of.of_phase.tolist()}) == 4  # every stage, and the test, is a draw of its own


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Distribution(), "as it is"),
        (Distribution(rotation=Rotation(90, "red")), "rotated 90°, red"),
        (Distribution(number=1, classes=(0, 2)), "classes a, c"),
        (Distribution(labels=((0, 1), (1, 0), (2, 2))), "a as b, b as a"),
        (Distribution(labels=((0, 0),)), "as it is"),
        (Distribution(rotations=tuple(enumerate(map(Rotation, (90, 0, 90, 180))))), "a, c rotated 90°; d rotated 180°"),
        (Distribution(classes=(0, 1), rotations=((0, Rotation(90)), (2, Rotation(90)))), "classes a, b; a rotated 90°"),
        (Distribution(classes=tuple(range(14))), "classes a, b, c, d, e, f, g, h, i, j and 4 more"),
        (Distribution(name="domain Art"), "domain Art"),
        (Distribution(classes=tuple(range(16))), "all classes"),
    ],
)
def test_distributions_in_words_and_back_from_json(one: Distribution, says: str) -> None:
    assert one.described(tuple("abcdefghijklmnop")) == says
    assert Distribution.from_json(one.to_json()) == one


def dataset(train: int, test: int, classes: int) -> data.Dataset:
    """Training images first."""
    labels = np.random.default_rng(3).integers(0, classes, train + test)
    split = np.repeat(np.array([0, 1], np.uint8), [train, test])
    return lab.noise(labels, split, (4, 4, 1), classes=tuple(str(k) for k in range(classes)))


FEW, MANY, SIX = dataset(600, 300, 10), dataset(4000, 2000, 100), dataset(60, 30, 6)
few_and_many = pytest.mark.parametrize("of", [FEW, MANY], ids=["few", "many"])


def made(shift: str, level: int, seed: int, clients: int, of: data.Dataset, **own: Any) -> Partition:
    return partitions.make(spec(shift, level, clients, seed, **{"draws": "anda", **own}), of)


def shards(of: data.Dataset, seed: int, clients: int, copies: int = 1) -> list[list[list[int]]]:
    """[2][clients] the generator's shards: torch's global generator permutes training images, then test images."""
    torch.manual_seed(seed)
    out = []
    for which in (0, 1):
        pool = [int(i) for _ in range(copies) for i in np.flatnonzero(of.split == which)]
        mixed = [pool[i] for i in torch.randperm(len(pool)).tolist()]
        each = len(pool) // clients
        out.append([mixed[c * each : (c + 1) * each if c < clients - 1 else None] for c in range(clients)])
    return out


@few(st.sampled_from(("px", "pyx", "pxy")), levels, SEEDS, st.integers(1, 12), st.integers(1, 3))
def test_shards_are_torchs(shift: str, level: int, seed: int, clients: int, copies: int) -> None:
    p = made(shift, level, seed, clients, FEW, copies=copies)
    for which, want in enumerate(shards(FEW, seed, clients, copies)):
        assert [lab.sides(p, c)[2 * which] for c in range(clients)] == want


@few(levels, SEEDS, st.integers(1, 12))
def test_px(level: int, seed: int, clients: int) -> None:
    colours = (None,) if level < 5 else ("red", "blue", "green")
    angles = (level - 1) % 4 + 2
    bank = [Rotation(360 * i // angles, colour) for i in range(angles) for colour in colours]
    np.random.seed(seed)
    wanted = np.random.randint(0, len(bank), size=clients)
    assert [one.rotation for one in met(made("px", level, seed, clients, FEW))] == [bank[i] for i in wanted]


@few_and_many
@few(level=levels, seed=SEEDS, examples=10)
def test_py(of: data.Dataset, level: int, seed: int) -> None:
    classes, clients = len(of.classes), 6
    number = (11 - level) * classes // 10
    halves = shards(of, seed, clients)
    np.random.seed(seed)
    subsets = {i: sorted(np.random.choice(classes, number, replace=False).tolist()) for i in range(1, 6)}
    p = made("py", level, seed, clients, of)
    for c in range(clients):
        entry = int(np.random.choice([1, 2, 3, 4, 5]))
        assert met(p)[c] == Distribution(number=entry - 1, classes=tuple(subsets[entry]))
        for which in (0, 1):
            mine = [i for i in halves[which][c] if of.labels[i] in subsets[entry]]
            more = np.random.choice(len(mine), int(len(mine) * (classes / number - 1)), replace=True)
            assert lab.sides(p, c)[2 * which] == [*mine, *(mine[i] for i in more)]


@few_and_many
@few(level=levels, seed=SEEDS, examples=10)
def test_pyx(of: data.Dataset, level: int, seed: int) -> None:
    np.random.seed(seed)
    size = level if of is FEW else 10 * level + 20
    pool = np.random.choice(range(len(of.classes)), size, replace=False).tolist()
    p = made("pyx", level, seed, 5, of)
    for c in range(5):
        np.random.uniform(1.0, 1.0)
        given = pool.copy()
        np.random.shuffle(given)
        becomes = dict(zip(pool, given, strict=True))
        assert dict(met(p)[c].labels) == becomes
        rows = p.rows(c)
        true = of.labels[p.sample[rows]].tolist()
        assert p.label[rows].tolist() == [becomes.get(k, k) for k in true]


@few_and_many
@few(level=levels, seed=SEEDS, examples=10)
def test_pxy(of: data.Dataset, level: int, seed: int) -> None:
    classes, many = len(of.classes), of is MANY
    number, angles = level * classes // 10, (0, 120, 240) if many else (0, 90, 180, 270)
    np.random.seed(seed)
    turned = np.random.choice(range(classes), number, replace=False).tolist()
    lit = np.random.choice(range(classes), number, replace=False).tolist()
    by_angle = [{k: np.random.choice(angles) for k in range(classes) if k in turned} for _ in range(5)]
    letters = ["red", "blue", "green"]
    by_colour = [{k: np.random.choice(letters) for k in range(classes) if k in lit and many} for _ in range(5)]
    for one, angle, colour in zip(met(made("pxy", level, seed, 5, of)), by_angle, by_colour, strict=True):
        assert dict(one.rotations) == {k: Rotation(int(angle.get(k, 0)), colour.get(k)) for k in {*angle, *colour}}


@pytest.mark.parametrize(
    ("level", "groups"), [(5, [4, 6, 6, 5, 5]), (6, [5, 7, 6, 7, 7]), (7, [7, 7, 7, 8, 8]), (8, [8, 7, 7, 9, 9])]
)
def test_numbers_of_groups_of_the_papers_seeds(level: int, groups: list[int]) -> None:
    """Known of the generator itself: the distinct patterns of ten clients under P(X)."""
    assert [len(set(made("px", level, seed, 10, FEW).groups)) for seed in range(42, 47)] == groups


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ({"shift": "py", "level": 1, "of": SIX}, r"P\(Y\) at level 1 needs 10 classes, and made has 6"),
        ({"shift": "pyx", "level": 8, "of": SIX}, r"P\(Y\|X\) at level 8 needs 8 classes, and made has 6"),
        ({"shift": "pxy", "level": 7, "of": SIX}, r"P\(X\|Y\) at level 7 needs 7 classes, and made has 6"),
        ({"shift": "px+py", "level": 1, "of": dataset(60, 30, 3)}, r"P\(X\) and P\(Y\) at level 1 needs 4 classes"),
        ({"shift": "py", "level": 1, "of": SIX, "draws": "anda"}, r"P\(Y\) at level 1 needs 10 classes, and made has"),
        ({"shift": "py", "clients": 200, "draws": "anda"}, r"client \d+ has no test image of classes .*; fewer clie"),
        *(
            ({"draws": "anda", **wrong}, "the paper's generator draws px, py, pyx, pxy in a known order")
            for wrong in (
                {"phases": 3, "level": 1},
                {"data_share": 0.01},
                {"shift": "px+py"},
                {"shift": "pxy", "strict": True},
            )
        ),
        ({"draws": "andy"}, "unknown draws of equal 'andy'"),
        ({"shift": "none", "level": None, "clients": 301}, "300 test images cannot serve 301 clients .*at most 300"),
        ({"shift": "px", "level": 1, "phases": 2, "validation": 0.2, "clients": 290}, "600 training images cannot ser"),
    ],
)
def test_what_cannot_be_drawn(of: dict[str, Any], says: str) -> None:
    refused(says, made, **{"shift": "pyx", "level": 8, "seed": 42, "clients": 10, "draws": None, "of": FEW, **of})


def test_too_few_images_of_a_domain() -> None:
    for of, clients, says in (
        (OF, 2, "2 clients are too few for the 3 groups by domain"),
        (equals_of(6, 3), 12, "samples of domain "),
    ):
        refused(says, partitions.make, lab.spec(clients=clients, validation=0.2, **NATURAL), of)


def test_flux_takes_them_under_pyx() -> None:
    """... at every level and number of clients, where nothing else is asked that the generator does not know."""
    rules = load("flux")
    for shift in ("px", "py", "pyx", "pxy", "pyx+py"):
        drawn = rules.partition_spec(MADE, 10, shift=shift, level=3).options.get("draws")
        assert drawn == ("anda" if shift == "pyx" else None)
    assert "draws" not in spec("px", 5, draws="fedbench").options
    for own in ({"phases": 3}, {"data_share": 0.01}, {"draws": "fedbench"}):
        assert "draws" not in rules.partition_spec(MADE, 10, shift="pyx", level=3, **own).options
    assert rules.partition_spec(MADE, 10, shift="pyx", level=5, clients=50, copies=2).options["draws"] == "anda"
    assert "draws" not in rules.partition_spec(MADE, 10, scheme="dirichlet", alpha=0.3).options


def test_the_papers_clients_give_feddrifts_test_phase(real_images: RealImages) -> None:
    """Under P(Y) a model of each group knows the classes of its own clients only, as well as FedDrift does with labels
    (Table 15). One of them drawn with equal chances for each image is right as often as FedDrift without labels there,
    mean and spread over the paper's seeds; all of them together would know nearly every class."""
    mnist = real_images.load("mnist")
    for level, own, drawn, spread in ((6, 97.62, 57.36, 4.59), (7, 98.13, 49.37, 3.25), (8, 98.45, 41.41, 2.95)):
        shares = []
        for seed in range(42, 47):
            p = made("py", level, seed, 10, mnist)
            asked = p.class_counts(True) / p.n_test[:, None]
            known = np.unique(p.class_counts(False) > 0, axis=0)
            shares.append((asked @ known.T).mean())
            assert (asked @ known.any(0)).mean() == pytest.approx(1)
        assert np.mean(shares) * own == pytest.approx(drawn, abs=0.3)
        assert np.std(shares) * own == pytest.approx(spread, abs=0.2)


# -- equal shards: what each client holds, under which label, seen how; stages, copies, cuts ------------------


OF = equals_of()
NATURAL: dict[str, Any] = {"scheme": "natural", "train_fraction": 0.8, "by": "domain", "round_robin": True}


@few(st.one_of(equals(), equals(), unseens()), examples=60)
def test_rows_are_in_order_and_add_up(of: PartitionSpec) -> None:
    p = partitions.make(of, OF)
    total = p.n_train.sum() + p.n_validation.sum() + p.n_test.sum()
    assert {len(column) for column in (p.client, p.sample, p.test, p.label)} == {total}
    assert (p.validation is None) == (of.validation is None)
    assert (p.phase is None) == (of.phases is None)
    held_back = np.zeros(len(p.test), bool) if p.validation is None else p.validation
    end = 0
    for c in range(p.clients):
        whole, train, back, test = p.rows(c), p.rows(c, False), p.validation_rows(c), p.rows(c, True)
        assert (whole.start, train.start, back.start, test.start) == (end, end, train.stop, back.stop)
        assert test.stop == whole.stop
        end = whole.stop
        assert set(p.client[whole]) == {c}
        sizes = [span.stop - span.start for span in (train, back, test)]
        assert sizes == [p.n_train[c], p.n_validation[c], p.n_test[c]]
        assert min(sizes[0], sizes[2], sizes[1] if of.validation else 1) >= 1
        assert p.test[whole].tolist() == [False] * (sizes[0] + sizes[1]) + [True] * sizes[2]
        assert held_back[whole].tolist() == [False] * sizes[0] + [True] * sizes[1] + [False] * sizes[2]
        assert p.class_counts(False)[c].tolist() == np.bincount(p.label[train], minlength=10).tolist()
    assert (p.class_counts() >= p.class_counts(False) + p.class_counts(True)).all()
    assert p.class_counts().sum() == len(p.sample)
    assert of.scheme != "equal" or (OF.split[p.sample] == p.test).all()  # never an image on the other side
    if p.phase is not None:
        assert of.phases is not None
        assert (p.phase[p.test] == -1).all()
        for c in range(p.clients):
            for span in (p.rows(c, False), p.validation_rows(c)):
                counts = np.bincount(p.phase[span], minlength=of.phases)
                assert len(set(counts.tolist())) == 1
                assert np.all(np.diff(p.phase[span]) >= 0)


@few(st.integers(1, 12), st.integers(1, 5), SEEDS, st.sampled_from(("none", "px", "pyx", "pxy")), examples=40)
def test_shards_are_disjoint_equal_and_whole(clients: int, copies: int, seed: int, shift: str) -> None:
    """Every image once over all clients; so many times where images are copied before they are dealt."""
    own: dict[str, Any] = {"clients": clients, "seed": seed, "shift": shift, "level": None if shift == "none" else 3}
    p, plain = partitions.make(lab.equal(**own, copies=copies), OF), partitions.make(lab.equal(**own), OF)
    assert np.bincount(p.sample).tolist() == [copies] * 800
    assert (OF.split[p.sample] == p.test).all()
    held = (p.n_train + p.n_validation).tolist()
    assert held == [each := 600 * copies // clients] * (clients - 1) + [600 * copies - each * (clients - 1)]
    assert p.n_test.tolist()[:-1] == [200 * copies // clients] * (clients - 1)
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]
    assert (p.groups, p.distributions) == (plain.groups, plain.distributions)
    assert (p.id == plain.id) == (copies == 1)
    assert len(p.distinct(OF)[0]) <= 800 * len(p.distributions or (0,))  # an image is stored once, however many copies


def test_shards_are_the_same_under_every_shift_and_another_seed_deals_anew() -> None:
    plain = partitions.make(lab.equal(), OF)
    for shift in ("px", "pyx", "pxy"):
        assert np.array_equal(partitions.make(lab.equal(shift=shift, level=8), OF).sample, plain.sample)
    assert not np.array_equal(partitions.make(lab.equal(seed=43), OF).sample, plain.sample)
    assert plain.image_shape((8, 8, 1)) == (8, 8, 1)
    assert plain.groups == plain.test_groups == [0] * 4
    assert np.array_equal(plain.label, OF.labels[plain.sample])


def by_hand(p: Partition, of: data.Dataset, row: int) -> tuple[np.ndarray, int]:
    """Image [H, W, channels] and label of one row, by the words of flux/protocol.md#shards-and-images and by Pillow."""
    c, k = int(p.client[row]), int(of.labels[p.sample[row]])
    stage = 0 if p.phase is None else int(p.phase[row])
    g = (p.test_groups if p.test[row] else p.phase_groups[stage])[c]
    one = p.distributions[g]
    assert one.classes is None or k in one.classes
    look = dict(one.rotations).get(k, one.rotation)
    image = of.images[p.sample[row]]
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).rotate(look.angle)
    wide = p.spec.shift.startswith(("px", "pxy"))
    seen = np.asarray(picture.convert("RGB") if wide else picture).reshape(8, 8, -1).copy()
    if look.colour:
        seen[..., ("red", "green", "blue").index(look.colour)] = 255
    return seen, dict(one.labels).get(k, k)


@pytest.mark.parametrize(
    ("shift", "stages", "channels"),
    [*((s, None, 1) for s in LEVELLED), *((s, None, 3) for s in SINGLE), *((s, n, 1) for s in SINGLE for n in (2, 3))],
)
def test_images_and_labels_against_pillow_row_by_row(shift: str, stages: int | None, channels: int) -> None:
    of = equals_of(120, 60, channels=channels)
    p = partitions.make(lab.equal(shift=shift, level=3 if stages else 7, phases=stages, duplicates=2), of)
    images, index = p.distinct(of)
    seen = p.transformed_images(of)
    assert (seen.dtype, seen.shape) == (np.uint8, (len(p.sample), *p.image_shape(of.images.shape[1:])))
    assert seen.shape[-1] == (3 if shift.startswith("px") or channels == 3 else 1)
    assert np.array_equal(images[index], seen)
    assert len(images) < len(p.sample)
    assert len({image.tobytes() for image in images}) == len(images)  # each of them once
    for row in range(len(p.sample)):
        image, label = by_hand(p, of, row)
        assert np.array_equal(seen[row], image)
        assert p.label[row] == label


def test_distinct_images_where_nothing_is_seen_otherwise_and_where_all_is() -> None:
    plain = partitions.make(lab.equal(duplicates=3), OF)
    images, index = plain.distinct(OF)
    assert len(images) == 800
    assert np.array_equal(images[index], OF.images[plain.sample])
    images, index = partitions.make(partition_spec(MADE, "iid", 4, 1, 0.5, "high"), OF).distinct(OF)
    assert index.tolist() == list(range(len(images))) == list(range(800))
    refused("is of dataset", plain.distinct, dataclasses.replace(OF, spec=DatasetSpec("made", "there", "now")))


@few(st.integers(1, 8), SEEDS)
def test_py_filters_and_pads_to_about_the_old_size(level: int, seed: int) -> None:
    p = partitions.make(lab.equal(shift="py", level=level, seed=seed), OF)
    plain = partitions.make(lab.equal(seed=seed), OF)
    kept = 11 - level
    for c in range(4):
        classes = p.distributions[p.groups[c]].classes
        assert classes is not None
        train, back, test = sides(p, c)
        before = sides(plain, c)
        for now, old in (([*train, *back], [*before[0], *before[1]]), (test, before[2])):
            mine = [s for s in old if OF.labels[s] in classes]
            assert set(now) == set(mine)  # nothing else, and nothing lost
            assert len(now) == round(len(mine) * 10 / kept)


def test_a_shard_without_a_kept_class_draws_from_its_whole_side() -> None:
    of = equals_of(400, 100)
    p = partitions.make(lab.equal(clients=100, shift="py", level=8), of)
    kept = [p.distributions[g].classes or () for g in p.groups]
    assert all(int(k) in kept[c] for c, k in zip(p.client, p.label, strict=True))
    assert (of.split[p.sample] == p.test).all()
    assert p.n_test.min() >= 1


def test_stages_share_out_the_shard_and_py_filters_all_of_it() -> None:
    whole, plain, filtered = (
        partitions.make(lab.equal(shift=shift, level=level, phases=phases), OF)
        for shift, level, phases in (("none", None, None), ("px", 1, 3), ("py", 1, 3))
    )
    assert plain.n_train.tolist() == [120] * 4
    for c in range(4):
        train, back, _ = sides(plain, c)
        assert len(set(train + back)) == 150  # a shard of 150 in three parts, no image twice
        shard = {s for side in sides(whole, c)[:2] for s in side}
        for stage in range(3):
            mine = (filtered.client == c) & (filtered.phase == stage)
            classes = filtered.distributions[filtered.phase_groups[stage][c]].classes or ()
            left = {s for s in shard if OF.labels[s] in classes}
            assert mine.sum() == 50
            assert set(filtered.sample[mine]) <= left
            assert len(set(filtered.sample[mine])) == min(50, len(left))


@pytest.mark.parametrize("stages", [None, 3])
def test_copies_and_cuts_are_of_training_rows_only(stages: int | None) -> None:
    fields: dict[str, Any] = {"shift": "pxy", "level": 3, "phases": stages}
    plain, changed = (
        partitions.make(lab.equal(**fields, **own), OF) for own in ({}, {"duplicates": 4, "subsample": 0.25})
    )
    for c in range(4):
        for stage in range(stages or 1):
            whole, mine = (
                p.sample[rows][slice(None) if p.phase is None else p.phase[rows] == stage].tolist()
                for p, rows in ((p, p.rows(c, False)) for p in (plain, changed))
            )
            assert mine == whole[: int(0.25 * len(whole))] * 4
        assert sides(plain, c)[1:] == sides(changed, c)[1:]
    assert changed.n_train.tolist() == [4 * int(0.25 * (n // (stages or 1))) * (stages or 1) for n in plain.n_train]


def test_drawn_training_shares_have_the_mean_that_was_asked() -> None:
    of = equals_of(20_000, 400)
    p = partitions.make(lab.equal(clients=400, data_share=0.001), of)
    sizes = p.n_train + p.n_validation
    assert 0 < sizes.min() < 10
    assert sizes.max() <= 40
    assert abs(sizes.mean() - 20) < 5 * 20 * SPREAD / math.sqrt(400)
    assert sizes.std() > 5
    assert (p.n_test == 1).all()
    whole = partitions.make(lab.equal(clients=400, validation=None), of)
    part = partitions.make(lab.equal(clients=400, validation=None, data_share=0.001), of)
    assert all(set(sides(part, c)[0]) <= set(sides(whole, c)[0]) for c in range(400))


@few(st.integers(3, 11), st.integers(0, 1000))
def test_domains_are_dealt_in_turn_and_shared_out(clients: int, seed: int) -> None:
    p = partitions.make(lab.spec(clients=clients, seed=seed, validation=0.2, **NATURAL), OF)
    others = [partitions.make(lab.spec(clients=clients, seed=s, **NATURAL), OF).sample.tobytes() for s in range(3)]
    assert len(set(others)) > 1
    domain = OF.columns["domain"][p.sample]
    assert sorted(p.sample.tolist()) == list(range(800))  # disjoint, and whole
    mine = [set(domain[p.rows(c)]) for c in range(clients)]
    assert all(len(names) == 1 for names in mine)
    assert [p.distributions[g].name for g in p.groups] == [f"domain {min(names)}" for names in mine]
    members = [[c for c in range(clients) if mine[c] == {one}] for one in ("Art", "Clip", "Real")]
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for group in members:
        sizes = [p.rows(c).stop - p.rows(c).start for c in group]
        assert max(sizes) - min(sizes) <= 1
    held = p.n_train + p.n_validation
    assert held.tolist() == [int(0.8 * n) for n in (held + p.n_test)]
    assert p.n_validation.tolist() == [math.ceil(0.2 * n - 1e-9) for n in held]


@pytest.mark.parametrize(
    "own", [{"scheme": "iid"}, {"scheme": "dirichlet", "alpha": 1.0, "unseen": 1, "unseen_as": ("fog-3",)}]
)
def test_other_schemes_hold_validation_images_back_too(own: dict[str, Any]) -> None:
    whole, p = (
        partitions.make(lab.spec(train_fraction=0.5, shift="high", **own, **less), OF)
        for less in ({}, {"validation": 0.25, "subsample": 0.5})
    )
    for c in range(p.clients):
        (train, back, test), before = sides(p, c), sides(whole, c)
        assert test == before[2]
        assert len(back) == math.ceil(0.25 * len(before[0]) - 1e-9)
        assert set(back) <= set(before[0])
        assert set(train) <= set(before[0]) - set(back)
        assert len(train) == int(0.5 * (len(before[0]) - len(back)))
    seen = p.transformed_images(OF)
    assert np.array_equal(seen[p.validation_rows(0)], apply(OF.images[p.sample[p.validation_rows(0)]], p.transforms[0]))


@pytest.mark.parametrize(
    ("clients", "own", "sizes", "distinct"),
    [
        (10, {"level": 8}, (4800, 1200, 1000), None),
        (50, {"duplicates": 4}, (3840, 240, 200), 70_000),
        (50, {"copies": 2}, (1920, 480, 400), None),
        pytest.param(1200, {"copies": 120}, (4800, 1200, 1000), 4 * 70_000, marks=pytest.mark.slow),  # of 8.4 million
    ],
)
def test_real_mnist_has_the_papers_sizes(
    real_images: RealImages, clients: int, own: dict[str, Any], sizes: tuple[int, int, int], distinct: int | None
) -> None:
    mnist = real_images.load("mnist")
    values = {"seed": 42, "validation": 0.2, "shift": "px", "level": 3, **own}
    p = partitions.make(partition_spec(mnist.spec, "equal", clients, **values), mnist)
    assert (set(p.n_train), set(p.n_validation), set(p.n_test)) == tuple({n} for n in sizes)
    assert distinct is None or len(p.distinct(mnist)[0]) == distinct
    if clients == 50 and "copies" in own:
        assert all(len(set(p.sample[p.rows(c)])) > 2700 for c in range(clients))  # of 2,800: few of them twice
