"""The draws of FLUX's own generator, against its global generators asked by hand, and its known numbers of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.schemes import of as scheme_of
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.protocol import load
from fedbench.specs import DatasetSpec, PartitionSpec
from tests.support.real_images import RealImages

MADE = DatasetSpec("made", "here", "now")
seeds, levels = st.integers(0, 2**32 - 1), st.integers(1, 8)


def dataset(train: int, test: int, classes: int) -> data.Dataset:
    """Images 4 x 4 in order, training images first."""
    rng = np.random.default_rng(3)
    return data.Dataset(
        spec=MADE,
        images=rng.integers(1, 255, (train + test, 4, 4, 1), dtype=np.uint8),
        labels=rng.integers(0, classes, train + test),
        split=np.repeat(np.array([0, 1], np.uint8), [train, test]),
        columns={},
        classes=tuple(str(k) for k in range(classes)),
    )


FEW, MANY = dataset(600, 300, 10), dataset(4000, 2000, 100)


def spec(shift: str, level: int, seed: int = 42, clients: int = 10, **own: Any) -> PartitionSpec:
    return partition_spec(MADE, "equal", clients, seed, shift=shift, level=level, draws="anda", **own)


def made(shift: str, level: int, seed: int, clients: int, of: data.Dataset, **own: Any) -> Partition:
    return partitions.make(spec(shift, level, seed, clients, **own), of)


def side(p: Partition, c: int, test: bool) -> list[int]:
    return p.sample[p.rows(c, test)].tolist()


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


def met(p: Partition) -> list[Distribution]:
    return [p.distributions[g] for g in p.groups]


@given(st.sampled_from(("px", "pyx", "pxy")), levels, seeds, st.integers(1, 12), st.integers(1, 3))
@settings(max_examples=25)
def test_shards_are_torchs(shift: str, level: int, seed: int, clients: int, copies: int) -> None:
    p = made(shift, level, seed, clients, FEW, copies=copies)
    for which, want in enumerate(shards(FEW, seed, clients, copies)):
        assert [side(p, c, bool(which)) for c in range(clients)] == want


@given(levels, seeds, st.integers(1, 12))
@settings(max_examples=25)
def test_px(level: int, seed: int, clients: int) -> None:
    colours = (None,) if level < 5 else ("red", "blue", "green")
    angles = (level - 1) % 4 + 2
    bank = [Rotation(360 * i // angles, colour) for i in range(angles) for colour in colours]
    np.random.seed(seed)
    wanted = np.random.randint(0, len(bank), size=clients)
    assert [one.rotation for one in met(made("px", level, seed, clients, FEW))] == [bank[i] for i in wanted]


@pytest.mark.parametrize("of", [FEW, MANY], ids=["few", "many"])
@given(level=levels, seed=seeds)
@settings(max_examples=15)
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
            assert side(p, c, bool(which)) == [*mine, *(mine[i] for i in more)]


@pytest.mark.parametrize(("of", "pool_of"), [(FEW, lambda v: v), (MANY, lambda v: 10 * v + 20)], ids=["few", "many"])
@given(level=levels, seed=seeds)
@settings(max_examples=15)
def test_pyx(of: data.Dataset, pool_of: Any, level: int, seed: int) -> None:
    np.random.seed(seed)
    pool = np.random.choice(range(len(of.classes)), pool_of(level), replace=False).tolist()
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


@pytest.mark.parametrize("of", [FEW, MANY], ids=["few", "many"])
@given(level=levels, seed=seeds)
@settings(max_examples=15)
def test_pxy(of: data.Dataset, level: int, seed: int) -> None:
    classes, many = len(of.classes), of is MANY
    number, angles = level * classes // 10, (0, 120, 240) if many else (0, 90, 180, 270)
    np.random.seed(seed)
    turned = np.random.choice(range(classes), number, replace=False).tolist()
    lit = np.random.choice(range(classes), number, replace=False).tolist()
    by_angle = [{k: np.random.choice(angles) for k in range(classes) if k in turned} for _ in range(5)]
    letters = ["red", "blue", "green"]
    by_colour = [{k: np.random.choice(letters) for k in range(classes) if k in lit and many} for _ in range(5)]
    p = made("pxy", level, seed, 5, of)
    for one, angle, colour in zip(met(p), by_angle, by_colour, strict=True):
        assert dict(one.rotations) == {
            k: Rotation(int(angle.get(k, 0)), colour.get(k)) for k in sorted({*angle, *colour})
        }


@pytest.mark.parametrize(
    ("level", "groups"), [(5, [4, 6, 6, 5, 5]), (6, [5, 7, 6, 7, 7]), (7, [7, 7, 7, 8, 8]), (8, [8, 7, 7, 9, 9])]
)
def test_numbers_of_groups_of_the_papers_seeds(level: int, groups: list[int]) -> None:
    """Known of the generator itself: the distinct patterns of ten clients under P(X)."""
    assert [len(set(made("px", level, seed, 10, FEW).groups)) for seed in range(42, 47)] == groups


def test_where_it_holds() -> None:
    assert "draws" not in partition_spec(MADE, "equal", 10, 42, shift="px", level=5, draws="fedbench").options
    assert spec("px", 5).options["draws"] == "anda"
    for wrong in (
        {"phases": 3, "level": 1},
        {"data_share": 0.01},
        {"shift": "px+py"},
        {"shift": "pxy", "strict": True},
    ):
        with pytest.raises(FedbenchError, match="the paper's generator draws px, py, pyx, pxy in a known order"):
            spec(**{"shift": "pyx", "level": 5, **wrong})
    with pytest.raises(FedbenchError, match="unknown draws of equal 'andy'"):
        partition_spec(MADE, "equal", 10, 42, shift="px", level=5, draws="andy")
    with pytest.raises(FedbenchError, match=r"P\(Y\) at level 1 needs 10 classes, and made has 3"):
        made("py", 1, 1, 4, dataset(60, 30, 3))
    with pytest.raises(FedbenchError, match=r"client \d+ has no test image of classes .*; fewer clients"):
        made("py", 8, 42, 200, FEW)
    assert 1 <= scheme_of(of := spec("py", 5)).true_groups(of, 10) <= 5


def test_flux_takes_them_under_pyx() -> None:
    """... at every level and number of clients, where nothing else is asked that the generator does not know."""
    rules = load("flux")
    taken = {
        shift: rules.partition_spec(MADE, 10, shift=shift, level=3) for shift in ("px", "py", "pyx", "pxy", "pyx+py")
    }
    assert {shift: of.options.get("draws") for shift, of in taken.items()} == {
        "px": None, "py": None, "pyx": "anda", "pxy": None, "pyx+py": None,
    }  # fmt: skip
    for own in ({"phases": 3}, {"data_share": 0.01}, {"draws": "fedbench"}):
        assert "draws" not in rules.partition_spec(MADE, 10, shift="pyx", level=3, **own).options
    assert rules.partition_spec(MADE, 10, shift="pyx", level=5, clients=50, copies=2).options["draws"] == "anda"
    assert "draws" not in rules.partition_spec(MADE, 10, scheme="dirichlet", alpha=0.3).options


@pytest.mark.data
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
