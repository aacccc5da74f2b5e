"""What every partition must hold to, and who holds what by each rule, on data sets that Hypothesis makes up."""

from __future__ import annotations

from collections import Counter
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from fedbench import partitions
from fedbench.partitions import scheme, schemes
from fedbench.partitions.schemes import dirichlet as module
from fedbench.partitions.schemes.dirichlet import share_out
from fedbench.specs import PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.frames import SEEDS, few, refused
from tests.support.partitions_lab import deal, draw, noise, plain

spec = partial(lab.spec, seed=0, train_fraction=0.7)
dirichlet = partial(spec, "dirichlet", alpha=0.5, min_size=5)
limited = partial(spec, "limited", alpha=0.5, size=10, seed=3, train_fraction=0.8)
#: Of domains that are dealt out apart.
within = partial(spec, "dirichlet", alpha=0.5, within="domain", seed=3, train_fraction=0.8)


SCHEMES = st.one_of(
    st.builds(dict, scheme=st.just("iid")),
    st.builds(dict, scheme=st.just("shards"), shards=st.integers(2, 4)),
    st.builds(dict, scheme=st.just("dirichlet"), alpha=st.floats(0.3, 50), min_size=st.integers(4, 8)),
)
LABELS = st.lists(st.integers(0, 6), min_size=80, max_size=200).map(np.array)


@few(labels=LABELS, chosen=SCHEMES, clients=st.integers(1, 6), seed=SEEDS, share=st.floats(0.3, 0.7), examples=25)
def test_every_sample_is_held_once_and_split_by_the_rule(
    labels: np.ndarray, chosen: dict[str, Any], clients: int, seed: int, share: float
) -> None:
    asked = spec(**chosen, clients=clients, seed=seed, train_fraction=share)
    sides = draw(labels, asked)
    assert len(sides) == clients
    held = np.concatenate([side for both in sides for side in both])
    assert np.array_equal(np.sort(held), np.arange(len(labels)))
    for train, test in sides:
        assert len(train) == int(share * (len(train) + len(test))) > 0
        assert len(test) > 0
        assert len(train) + len(test) >= chosen.get("min_size", 1)
    sizes = [len(train) + len(test) for train, test in sides]
    assert chosen["scheme"] != "iid" or max(sizes) - min(sizes) <= 1
    for again, once in zip(draw(labels, asked), sides, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again, once, strict=True))


@few(st.lists(st.integers(1, 9), min_size=3, max_size=20), SEEDS, st.floats(0.01, 0.99), st.data(), examples=25)
def test_natural_clients_are_whole_groups(sizes: list[int], seed: int, share: float, data: st.DataObject) -> None:
    names = np.array([f"writer{i:02d}" for i in range(len(sizes))])
    column = np.random.default_rng(seed).permutation(np.repeat(names, sizes))
    fit = sum(size >= 2 for size in sizes)
    assume(fit)
    asked = spec("natural", by="writer", clients=data.draw(st.integers(1, fit)), seed=seed, train_fraction=share)
    writers = []
    for train, test in draw(np.zeros(len(column), int), asked, column):
        both = np.concatenate([train, test])
        (writer,) = np.unique(column[both])
        assert np.array_equal(np.sort(both), np.flatnonzero(column == writer))
        assert len(train) >= 1
        assert len(test) >= 1
        assert abs(len(train) - share * len(both)) <= 1
        writers.append(writer)
    assert writers == sorted(set(writers))
    too_many = spec("natural", by="writer", clients=fit + 1)
    refused(f"{fit} groups by writer", draw, np.zeros(len(column), int), too_many, column)


@pytest.mark.parametrize(
    "chosen",
    [("iid", {}), ("shards", {"shards": 2}), ("dirichlet", {"alpha": 1.0}), ("natural", {"by": "w"})],
    ids=itemgetter(0),
)
def test_another_seed_is_another_partition(chosen: tuple[str, dict[str, Any]]) -> None:
    groups = np.repeat(np.arange(50), 4) if chosen[0] == "natural" else None
    one, two = (draw(np.arange(200) % 5, spec(chosen[0], **chosen[1], seed=seed), groups) for seed in (1, 2))
    assert not np.array_equal(np.sort(one[0][0]), np.sort(two[0][0]))


def plain_dirichlet(rows: list[int], labels: np.ndarray, members: int, alpha: float, least: int) -> list[list[int]]:
    """feddrm/protocol.md#dirichlet-partition of some rows, on Python lists and NumPy's global generator."""
    held: list[list[int]] = []
    while not held or min(map(len, held)) < least:
        held = [[] for _ in range(members)]
        for k in range(labels.max() + 1):
            mine = [i for i in rows if labels[i] == k]
            np.random.shuffle(mine)
            p = np.random.dirichlet([alpha] * members)
            p = np.array([0 if len(h) >= len(rows) / members else q for q, h in zip(p, held, strict=True)])
            ends = [*(int(c) for c in np.cumsum(p / p.sum())[:-1] * len(mine)), len(mine)]
            for h, start, end in zip(held, [0, *ends], ends, strict=False):
                h += mine[start:end]
    for h in held:
        np.random.shuffle(h)
    return held


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_draws_the_very_samples_of_the_plain_rule(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 10, 600)
    np.random.seed(seed)
    expected = []
    for h in plain_dirichlet(list(range(600)), labels, 7, 0.4, 30):
        np.random.shuffle(h)
        expected.append((h[: int(len(h) * 0.7)], h[int(len(h) * 0.7) :]))
    before = np.random.get_state()[1].tolist()
    assert plain(draw(labels, dirichlet(clients=7, alpha=0.4, min_size=30, seed=seed))) == expected
    assert np.random.get_state()[1].tolist() == before, "draws leave the global generator alone"


def test_shards_deals_the_very_samples_of_the_plain_rule() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 62)
    in_order = sorted(range(62), key=lambda i: labels[i])  # Python's sort is stable
    ends = [0, 11, 22, 32, 42, 52, 62]  # six shards: the first two hold one sample more
    order = np.random.RandomState(5).permutation(6)
    expected = [[i for s in order[2 * c : 2 * c + 2] for i in in_order[ends[s] : ends[s + 1]]] for c in range(3)]
    held = deal(labels, spec("shards", shards=2, clients=3, seed=5), np.random.RandomState(5))
    assert [samples.tolist() for samples in held] == expected


def test_a_client_without_a_test_sample_is_an_error() -> None:
    # A share just below 1 of 3 samples still leaves one for tests; of none it cannot.
    (train, test), *_ = draw(np.zeros(12, int), spec("iid", train_fraction=0.999))
    assert (len(train), len(test)) == (2, 1)
    refused("client 0 holds 0 samples", scheme.split, [np.arange(0)], spec("iid"), np.random.RandomState(0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [1e-300, 1e-4, 1e6])
def test_extreme_alpha_keeps_every_sample(alpha: float) -> None:
    for mixed, cuts in share_out([np.arange(50), np.arange(50, 100)], alpha, 3, np.random.RandomState(0)):
        assert (cuts[0], cuts[-1], len(mixed)) == (0, 50, 50)
        assert np.all(np.diff(cuts) >= 0)


# -- a fixed size each (pFedFDA, Table 3) -----------------------------------------------------------------------


def plain_limited(labels: list[int], clients: int, size: int, alpha: float, seed: int) -> list[list[int]]:
    """The rule on Python lists: a client's prior, as many samples by it, again for what its classes lack."""
    np.random.seed(seed)
    classes = max(labels) + 1
    pools = [list(np.random.permutation([i for i in range(len(labels)) if labels[i] == k])) for k in range(classes)]
    held = []
    for _ in range(clients):
        prior = np.random.dirichlet([alpha] * classes)
        mine: list[list[int]] = [[] for _ in range(classes)]
        while (missing := size - sum(map(len, mine))) > 0:
            p = np.array([q if pool else 0.0 for q, pool in zip(prior, pools, strict=True)])
            for k, wanted in enumerate(np.random.multinomial(missing, p / p.sum())):
                for _ in range(min(wanted, len(pools[k]))):
                    mine[k].append(int(pools[k].pop(0)))
        held.append([i for of_class in mine for i in of_class])
    return held


@pytest.mark.parametrize("seed", range(2))
def test_limited_draws_the_very_samples_of_the_plain_rule(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 5, 120)
    asked = limited(clients=9, size=13, seed=seed)  # 117 of 120: many classes are used up on the way
    held = deal(labels, asked, np.random.RandomState(seed))
    assert [samples.tolist() for samples in held] == plain_limited(labels.tolist(), 9, 13, 0.5, seed)


@few(
    st.lists(st.integers(0, 6), min_size=24, max_size=90).map(np.array),
    st.integers(1, 6),
    st.integers(0, 1000),
    st.sampled_from((1e-300, 1e-3, 0.5, 1e4)),
    st.booleans(),
    examples=25,
)
def test_every_client_holds_as_many_samples_and_none_twice(
    labels: np.ndarray, clients: int, seed: int, alpha: float, every: bool
) -> None:
    """Even where the data are just enough, and where a prior has no mass but on classes that are used up."""
    size = len(labels) // clients if every else 4
    asked = limited(clients=clients, size=size, seed=seed, alpha=alpha, train_fraction=0.5)
    sides = draw(labels, asked)
    assert [(len(train), len(test)) for train, test in sides] == [(size // 2, size - size // 2)] * clients
    held = np.concatenate([side for both in sides for side in both])
    assert len(np.unique(held)) == len(held) == clients * size
    assert plain(draw(labels, asked)) == plain(sides)


# -- domains dealt out apart (pFedFDA, Appendix D.1) ------------------------------------------------------------


@pytest.mark.parametrize(("names", "cap"), [([0, 1, 2], None), (["usps", "mnist", "svhn"], 90)])
def test_domains_are_dealt_out_one_after_another(names: list[Any], cap: int | None) -> None:
    """In the order of their first appearance, which for names is not that of the alphabet."""
    rng = np.random.default_rng(5)
    labels, code = rng.integers(0, 4, 400), np.repeat([0, 1, 2], [160, 80, 160])
    code[1:] = rng.permutation(code[1:])
    code = np.unique(code, return_index=True)[1].argsort().argsort()[code]  # so that 0, 1, 2 appear in this order
    held = deal(labels, within(clients=6, cap=cap, min_size=30), np.random.RandomState(3), np.array(names)[code])

    np.random.seed(3)
    expected = []
    for domain in range(3):
        rows = np.flatnonzero(code == domain)
        if cap is not None and cap < len(rows):
            rows = np.random.permutation(rows)[:cap]
        expected += plain_dirichlet(rows.tolist(), labels, 2, 0.5, 30)
    assert [samples.tolist() for samples in held] == expected
    assert [set(code[samples]) for samples in held] == [{0}, {0}, {1}, {1}, {2}, {2}]
    for domain, there in Counter(code.tolist()).items():
        assert sum(len(held[c]) for c in (2 * domain, 2 * domain + 1)) == min(there, cap or there)


def test_a_partition_finds_the_column_itself() -> None:
    domain = np.repeat(["b", "a"], 100)
    of = noise(np.arange(200) % 5, columns={"domain": domain})
    made = partitions.make(within(min_size=None), of)
    assert [set(domain[made.sample[made.rows(c)]]) for c in range(4)] == [{"b"}, {"b"}, {"a"}, {"a"}]
    refused("unknown column of made 'domian'; did you mean 'domain'", partitions.make, within(within="domian"), of)


# -- subsampled training sets (pFedFDA, Table 1) ----------------------------------------------------------------

DEALT = st.sampled_from(
    [
        {"scheme": "iid"},
        {"scheme": "limited", "alpha": 0.5, "size": 11},
        {"scheme": "shards", "shards": 3},
        {"scheme": "dirichlet", "alpha": 0.5, "min_size": 10},
        {"scheme": "natural", "by": "domain"},
        {"scheme": "dirichlet", "alpha": 0.5, "within": "domain", "min_size": 5},
    ]
)


@few(DEALT, st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 1000))
def test_smaller_training_sets_lie_in_larger_ones(own: dict[str, Any], a: float, b: float, seed: int) -> None:
    labels, domain = np.random.default_rng(seed).integers(0, 5, 160), np.repeat(np.arange(4), 40)
    whole, less, more = (
        plain(draw(labels, spec(**own, seed=seed, train_fraction=0.8, subsample=s), domain))
        for s in (None, min(a, b), max(a, b))
    )
    for (train, test), (some, some_test), (many, many_test) in zip(whole, less, more, strict=True):
        assert test == some_test == many_test
        assert some == train[: max(1, int(min(a, b) * len(train)))]
        assert many == train[: max(1, int(max(a, b) * len(train)))]


@pytest.mark.parametrize("shift", ["high", "corrupted"])
def test_images_of_subsampled_clients_are_those_of_whole_ones(shift: str) -> None:
    """Not only the samples: the noise of a corruption too is the same for every share."""
    of = noise(np.arange(240) % 4, shape=(8, 8, 3))
    whole, part = (partitions.make(spec("iid", clients=20, shift=shift, subsample=s), of) for s in (None, 0.5))
    seen, some = whole.transformed_images(of), part.transformed_images(of)
    for c in range(20):
        kept = seen[whole.rows(c, test=False)][: part.n_train[c]]
        assert np.array_equal(kept, some[part.rows(c, test=False)])
        assert np.array_equal(seen[whole.rows(c, test=True)], some[part.rows(c, test=True)])
    assert not np.array_equal(seen, of.images[whole.sample])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (spec("iid", clients=51), "100 samples cannot serve 51 clients .*at most 50"),
        (spec("iid", clients=50, train_fraction=0.3), "client 0 holds 2 samples.* without a training sample"),
        (spec("shards", shards=30), "cannot be cut into 120 shards"),
        (spec("natural", by="writer"), "unknown column of labels 'writer'"),
        (dirichlet(clients=40, min_size=3), "cannot give 40 clients 3 each"),
        (dirichlet(clients=20, alpha=0.01, min_size=4), r"Dir\(0.01\) over 20 clients gave each 4 samples in 20 attem"),
        (limited(clients=4, size=26), "100 samples cannot give 4 clients 26 each; fewer clients or a smaller --size"),
        (limited(size=3, train_fraction=0.2), "client 0 holds 3 samples.* without a training sample.* larger --size"),
        (within(clients=3), "3 clients cannot be shared out evenly among the 2 groups by domain"),
        (within(min_size=26), "50 samples of domain a cannot give 2 clients 26 each"),
        (within(min_size=10, cap=19), "19 samples of domain a cannot give 2 clients 10 each"),
        (within(alpha=1e-3, clients=8, min_size=12), "over 4 clients of domain a gave each 12 samples in 20 attempts"),
    ],
)
def test_impossible_partitions_say_why(asked: PartitionSpec, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 20)
    groups = np.repeat(["a", "b"], 50) if getattr(schemes.of(asked), "within", None) else None
    refused(says, draw, np.arange(100) % 5, asked, groups)


# -- the very counts of the papers, which depend on the class sizes only --------------------------------------


CIFAR10, CIFAR100, TINY = (10, 6000), (100, 600), (200, 550)


def drawn(classes: int, each: int, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Training and test counts [M, K] of a partition of `classes` classes with `each` samples."""
    labels = np.tile(np.arange(classes), each)
    sides = draw(labels, spec(**fields))
    counts = np.array([[np.bincount(labels[i], minlength=classes) for i in side] for side in sides])
    return counts[:, 0], counts[:, 1]


def feddrm(classes: int, each: int, clients: int = 8, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    own = {"scheme": "dirichlet", "min_size": classes} if "alpha" in fields else {"scheme": "shards"}
    return drawn(classes, each, clients=clients, seed=2025, train_fraction=0.7, **own, **fields)


def present(counts: np.ndarray) -> list[int]:
    return (counts > 0).sum(axis=1).tolist()


def test_feddrm_cifar10_dir_03() -> None:
    train, test = feddrm(*CIFAR10, alpha=0.3)
    counts = train + test
    assert present(counts) == [6, 9, 6, 8, 5, 8, 10, 10]
    assert counts.tolist() == [
        [505, 215, 4351, 749, 1573, 0, 568, 0, 0, 0],
        [5, 8, 1491, 1, 289, 0, 28, 4950, 38, 1142],
        [3, 4583, 0, 2018, 847, 1, 4134, 0, 0, 0],
        [0, 17, 8, 212, 626, 451, 61, 6, 0, 1557],
        [5267, 320, 43, 433, 1800, 0, 0, 0, 0, 0],
        [0, 23, 76, 2565, 803, 74, 296, 838, 5607, 0],
        [81, 1, 12, 5, 5, 696, 733, 33, 284, 3267],
        [139, 833, 19, 17, 57, 4778, 180, 173, 71, 34],
    ]
    assert train.sum(axis=1).tolist() == [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]
    assert (train.sum(), test.sum()) == (41_996, 18_004)
    # The local classifier that always answers its commonest training class (average accuracy, training weights).
    hits = test[np.arange(8), train.argmax(axis=1)] / test.sum(axis=1)
    assert round(100 * np.average(hits, weights=train.sum(axis=1)), 1) == 57.3


@pytest.mark.parametrize(
    ("of", "own", "sizes", "classes", "largest"),
    [
        (CIFAR10, {"alpha": 1.3}, [9378, 8932, 6787, 7338, 6888, 6264, 5887, 8526], None, 0.26),
        (CIFAR10, {"alpha": 2.3}, [7291, 7626, 8994, 5516, 8171, 7725, 8091, 6586], None, 0.26),
        (CIFAR10, {"shards": 5}, [7500] * 8, [4, 5, 5, 5, 4, 4, 5, 5], 0.275),
        (
            CIFAR100,
            {"alpha": 0.3},
            [7566, 7502, 7722, 7560, 7705, 7540, 6847, 7558],
            [75, 86, 82, 56, 86, 90, 92, 98],
            None,
        ),
        (CIFAR100, {"shards": 25}, [7500] * 8, [22, 23, 23, 23, 22, 24, 24, 24], None),
    ],
)
def test_feddrm(
    of: tuple[int, int], own: dict[str, Any], sizes: list[int], classes: list[int] | None, largest: float | None
) -> None:
    train, test = feddrm(*of, **own)
    counts = train + test
    assert counts.sum(axis=1).tolist() == sizes
    assert train.sum(axis=1).tolist() == [int(0.7 * n) for n in sizes]
    assert classes in (None, present(counts))
    share = counts.max(axis=1).sum() / counts.sum()  # of the samples, in the commonest class of their client
    assert largest in (None, round(share, 3), round(share, 2))


@pytest.mark.parametrize(
    ("clients", "least", "most", "short", "single", "smallest"),
    [(16, 1398, 5395, 1, None, None), (24, 289, 4129, 5, None, 202), (32, 633, 3458, 14, 1, None)],
)
def test_feddrm_more_clients(
    clients: int, least: int, most: int, short: int, single: int | None, smallest: int | None
) -> None:
    train, test = feddrm(*CIFAR10, clients=clients, alpha=0.3)
    sizes = (train + test).sum(axis=1)
    assert (sizes.min(), sizes.max()) == (least, most)
    assert (train.sum(axis=1) < 1280).sum() == short  # cannot fill ten batches of 128
    assert single in (None, present(train + test).count(1))
    assert smallest in (None, train.sum(axis=1).min())


@pytest.mark.parametrize(
    ("data", "alpha", "attempts", "spread", "first", "total", "classes"),
    [
        # Of the sizes: least, median and largest; those of clients 0 to 4. Images to train on; median of the classes.
        pytest.param(
            CIFAR10, 0.1, 5266, (74, 604, 1746), [297, 263, 1380, 269, 584], 47_955, 4, marks=pytest.mark.slow
        ),
        (CIFAR10, 0.5, 1, (213, 609, 1036), [638, 706, 248, 602, 814], 47_958, 9),
        (CIFAR100, 0.1, 1, (295, 613, 768), [443, 611, 520, 653, 628], 47_960, 35),
        (CIFAR100, 0.5, 1, (480, 605, 759), [600, 614, 603, 617, 545], 47_962, 75.5),
        (TINY, 0.1, 1, (605, 1116, 1307), [1115, 1100, 920, 1223, 1105], 87_962, 67),
        (TINY, 0.5, 1, (911, 1105, 1200), [1114, 1120, 1033, 1105, 1100], 87_964, 150.5),
    ],
)
def test_pfedfda(
    data: Any,
    alpha: float,
    attempts: int,
    spread: Any,
    first: Any,
    total: int,
    classes: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    monkeypatch.setattr(module, "share_out", lambda *given: calls.append(1) or share_out(*given))
    train, test = drawn(*data, scheme="dirichlet", alpha=alpha, clients=100, seed=42, train_fraction=0.8, min_size=63)
    sizes = (train + test).sum(axis=1)
    assert len(calls) == attempts
    assert (sizes.min(), int(np.median(sizes)), sizes.max()) == spread
    assert sizes[:5].tolist() == first
    assert train.sum() == total
    assert np.median(present(train + test)) == classes
    if attempts > 1:
        assert (min(present(train + test)), max(present(train + test))) == (1, 7)
    if (data, alpha) == (CIFAR10, 0.5):  # Table 1's shares of training sets
        own = {"scheme": "dirichlet", "alpha": 0.5, "clients": 100, "seed": 42, "train_fraction": 0.8, "min_size": 63}
        for share, kept in ((0.75, 35_935), (0.5, 23_962), (0.25, 11_962)):
            some, others = drawn(*data, **own, subsample=share)
            assert (some.sum(), others.tolist()) == (kept, test.tolist())
