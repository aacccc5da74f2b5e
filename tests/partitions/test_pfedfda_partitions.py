"""pFedFDA's other partitions: a fixed size each, domains dealt out apart, and subsampled training sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from drawing import deal, draw
from hypothesis import given
from hypothesis import strategies as st

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.partitions.schemes import dirichlet
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, PartitionSpec

MADE = DatasetSpec("made", "here", "now")
Sides = list[tuple[list[int], list[int]]]


def spec(**fields: Any) -> PartitionSpec:
    values = {"scheme": "dirichlet", "clients": 4, "seed": 3, "train_fraction": 0.8, "alpha": 0.5, **fields}
    return partition_spec(MADE, **values)


def limited(**fields: Any) -> PartitionSpec:
    return spec(**{"scheme": "limited", "size": 10, **fields})


def plain(sides: Any) -> Sides:
    return [(train.tolist(), test.tolist()) for train, test in sides]


def dataset(labels: np.ndarray, domain: np.ndarray, size: int = 2) -> data.Dataset:
    n = len(labels)
    images = np.random.default_rng(1).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    classes = tuple(f"c{k}" for k in range(labels.max() + 1))
    return data.Dataset(MADE, images, labels, np.zeros(n, np.uint8), {"domain": domain}, classes)


# -- a fixed size each (Table 3) --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(4))
def test_limited_draws_the_very_samples_of_the_plain_rule(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 5, 120)
    asked = limited(clients=9, size=13, seed=seed)  # 117 of 120: many classes are used up on the way
    held = deal(labels, asked, np.random.RandomState(seed))
    assert [samples.tolist() for samples in held] == plain_limited(labels.tolist(), 9, 13, 0.5, seed)


@given(
    st.lists(st.integers(0, 6), min_size=24, max_size=90).map(np.array),
    st.integers(1, 6),
    st.integers(0, 1000),
    st.sampled_from((1e-300, 1e-3, 0.5, 1e4)),
    st.booleans(),
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


def test_what_a_class_lacks_is_drawn_again_by_the_prior() -> None:
    """The law of a rule told another way: one sample after another, a class that is used up is drawn again."""

    def one_by_one(rng: np.random.Generator) -> list[int]:
        prior, left, found = rng.dirichlet([0.5] * 3), [2, 30, 30], [0, 0, 0]
        while sum(found) < 20:
            k = rng.choice(3, p=prior)
            if left[k]:
                left[k], found[k] = left[k] - 1, found[k] + 1
        return found

    labels, draws = np.repeat([0, 1, 2], [2, 30, 30]), 1500
    rng = np.random.default_rng(0)
    told = np.array([one_by_one(rng) for _ in range(draws)])
    asked = limited(clients=1, size=20)
    streams = (np.random.RandomState(s) for s in range(draws))
    found = np.array([np.bincount(labels[deal(labels, asked, rng)[0]], minlength=3) for rng in streams])
    for power in (1, 2):
        a, b = told.astype(float) ** power, found.astype(float) ** power
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / draws)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 4.5 * error)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_label_priors_follow_the_dirichlet_distribution(alpha: float) -> None:
    """Mean 1/C and variance (1/C)(1 - 1/C)/(C alpha + 1) of a prior, and of counts drawn by it."""
    classes, clients, size = 4, 2000, 40
    labels = np.tile(np.arange(classes), clients * size)  # enough of each class for everybody
    held = deal(labels, limited(clients=clients, size=size, alpha=alpha), np.random.RandomState(8))
    shares = np.array([np.bincount(labels[samples], minlength=classes) for samples in held]) / size
    mean, concentration = 1 / classes, classes * alpha
    of_prior = mean * (1 - mean) / (concentration + 1)
    expected = of_prior + (mean * (1 - mean) - of_prior) / size  # law of total variance
    np.testing.assert_allclose(shares.mean(axis=0), mean, atol=5 * np.sqrt(expected / clients))
    np.testing.assert_allclose(shares.var(axis=0), expected, rtol=0.15)


def test_sixty_three_samples_are_one_mini_batch_and_thirteen() -> None:
    labels = np.tile(np.arange(10), 6000)
    sides = draw(labels, limited(clients=100, size=63, seed=42))
    assert {(len(train), len(test)) for train, test in sides} == {(50, 13)}


# -- domains dealt out apart (Appendix D.1) -------------------------------------------------------------------


def plain_dirichlet(rows: list[int], labels: np.ndarray, members: int, least: int) -> list[list[int]]:
    """pfedfda/protocol.md#dirichlet-partition on the rows of one domain, on lists and NumPy's global generator."""
    held: list[list[int]] = []
    while not held or min(map(len, held)) < least:
        held = [[] for _ in range(members)]
        for k in range(labels.max() + 1):
            mine = [i for i in rows if labels[i] == k]
            np.random.shuffle(mine)
            p = np.random.dirichlet([0.5] * members)
            p = np.array([0 if len(h) >= len(rows) / members else q for q, h in zip(p, held, strict=True)])
            ends = [*(int(c) for c in np.cumsum(p / p.sum())[:-1] * len(mine)), len(mine)]
            for h, start, end in zip(held, [0, *ends], ends, strict=False):
                h += mine[start:end]
    for h in held:
        np.random.shuffle(h)
    return held


@pytest.mark.parametrize("names", [[0, 1, 2], ["usps", "mnist", "svhn"]], ids=["codes", "names"])
@pytest.mark.parametrize("cap", [None, 90])
def test_domains_are_dealt_out_one_after_another(names: list[Any], cap: int | None) -> None:
    """In the order of their first appearance, which for names is not that of the alphabet."""
    rng = np.random.default_rng(5)
    labels, code = rng.integers(0, 4, 400), np.repeat([0, 1, 2], [160, 80, 160])
    code[1:] = rng.permutation(code[1:])
    code = np.unique(code, return_index=True)[1].argsort().argsort()[code]  # so that 0, 1, 2 appear in this order
    asked = spec(clients=6, within="domain", cap=cap, min_size=30)
    held = deal(labels, asked, np.random.RandomState(3), np.array(names)[code])

    np.random.seed(3)
    expected = []
    for domain in range(3):
        rows = np.flatnonzero(code == domain)
        if cap is not None and cap < len(rows):
            rows = np.random.permutation(rows)[:cap]
        expected += plain_dirichlet(rows.tolist(), labels, 2, 30)
    assert [samples.tolist() for samples in held] == expected
    assert [set(code[samples]) for samples in held] == [{0}, {0}, {1}, {1}, {2}, {2}]
    for domain, there in Counter(code.tolist()).items():
        assert sum(len(held[c]) for c in (2 * domain, 2 * domain + 1)) == min(there, cap or there)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(20, 60), st.integers(0, 1000))
def test_clients_of_a_domain_hold_nothing_else(weights: list[int], cap: int, seed: int) -> None:
    sizes = [40 * w for w in weights]
    domain = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    labels = np.random.default_rng(seed).integers(0, 3, len(domain))
    asked = spec(clients=2 * len(sizes), within="domain", cap=cap, min_size=5, seed=seed)
    sides = draw(labels, asked, domain)
    held = [np.concatenate(both) for both in sides]
    assert all(len(set(domain[samples])) == 1 for samples in held)
    assert min(map(len, held)) >= 5
    everything = np.concatenate(held)
    assert len(np.unique(everything)) == len(everything)
    assert np.bincount(domain[everything]).tolist() == [min(size, cap) for size in sizes]


def test_a_capped_domain_is_drawn_at_random() -> None:
    labels, domain = np.zeros(200, int), np.zeros(200, int)
    one, two = (draw(labels, spec(within="domain", cap=50, min_size=5, seed=s), domain) for s in (1, 2))
    held = [set(np.concatenate([side for both in sides for side in both])) for sides in (one, two)]
    assert held[0] != held[1]
    assert all(max(samples) > 150 and min(samples) < 50 for samples in held)


def test_a_cap_that_cuts_nothing_and_a_single_domain_change_nothing() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 200)
    whole = plain(draw(labels, spec(min_size=20)))
    same = np.full(200, "mnist")
    assert plain(draw(labels, spec(min_size=20, within="domain"), same)) == whole
    assert plain(draw(labels, spec(min_size=20, within="domain", cap=200), same)) == whole


def test_a_partition_finds_the_column_itself() -> None:
    labels, domain = np.arange(200) % 5, np.repeat(["b", "a"], 100)
    made = partitions.make(spec(within="domain"), dataset(labels, domain))
    assert [set(domain[made.sample[made.rows(c)]]) for c in range(4)] == [{"b"}, {"b"}, {"a"}, {"a"}]
    with pytest.raises(FedbenchError, match="unknown column of made 'domian'; did you mean 'domain'"):
        partitions.make(spec(within="domian"), dataset(labels, domain))


# -- subsampled training sets (Table 1) -----------------------------------------------------------------------

DEALT = st.sampled_from(
    [
        {"scheme": "iid", "alpha": None},
        {"scheme": "limited", "size": 11},
        {"scheme": "shards", "alpha": None, "shards": 3},
        {"min_size": 10},
        {"scheme": "natural", "alpha": None, "by": "domain"},
        {"within": "domain", "min_size": 5},
    ]
)


@given(DEALT, st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 1000))
def test_smaller_training_sets_lie_in_larger_ones(own: dict[str, Any], a: float, b: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, domain = rng.integers(0, 5, 160), np.repeat(np.arange(4), 40)
    whole, less, more = (
        plain(draw(labels, spec(**own, seed=seed, subsample=s), domain)) for s in (None, min(a, b), max(a, b))
    )
    for (train, test), (few, few_test), (many, many_test) in zip(whole, less, more, strict=True):
        assert test == few_test == many_test
        assert train[: len(many)] == many
        assert many[: len(few)] == few
        assert len(few) == max(1, int(min(a, b) * len(train)))
        assert len(many) == max(1, int(max(a, b) * len(train)))


def test_a_quarter_of_forty_and_a_share_of_one() -> None:
    labels = np.arange(200) % 5
    one = spec(scheme="iid", alpha=None, train_fraction=0.8)
    sizes = {s: {len(train) for train, _ in draw(labels, spec(scheme="iid", alpha=None, subsample=s))} for s in
             (1, 0.75, 0.5, 0.25, 0.01)}  # fmt: skip
    assert sizes == {1: {40}, 0.75: {30}, 0.5: {20}, 0.25: {10}, 0.01: {1}}
    assert plain(draw(labels, spec(scheme="iid", alpha=None, subsample=1))) == plain(draw(labels, one))


@pytest.mark.parametrize("shift", ["high", "corrupted"])
def test_images_of_subsampled_clients_are_those_of_whole_ones(shift: str) -> None:
    """Not only the samples: the noise of a corruption too is the same for every share."""
    of = dataset(np.arange(240) % 4, np.zeros(240, int), size=8)
    whole, part = (
        partitions.make(spec(scheme="iid", alpha=None, clients=20, shift=shift, subsample=s), of) for s in (None, 0.5)
    )
    seen, some = whole.transformed_images(of), part.transformed_images(of)
    for c in range(20):
        kept = seen[whole.rows(c, test=False)][: part.n_train[c]]
        assert np.array_equal(kept, some[part.rows(c, test=False)])
        assert np.array_equal(seen[whole.rows(c, test=True)], some[part.rows(c, test=True)])
    assert not np.array_equal(seen, of.images[whole.sample])


# -- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (limited(clients=4, size=26), "100 samples cannot give 4 clients 26 each; fewer clients or a smaller --size"),
        (limited(clients=51, size=2), "100 samples cannot serve 51 clients"),
        (limited(size=3, train_fraction=0.2), "client 0 holds 3 samples.* without a training sample.* larger --size"),
        (spec(within="domain", clients=3), "3 clients cannot be shared out evenly among the 2 groups by domain"),
        (spec(within="domain", min_size=26), "50 samples of domain a cannot give 2 clients 26 each"),
        (spec(within="domain", min_size=10, cap=19), "19 samples of domain a cannot give 2 clients 10 each"),
    ],
)
def test_impossible_partitions_say_why(asked: PartitionSpec, says: str) -> None:
    with pytest.raises(FedbenchError, match=says) as caught:
        draw(np.arange(100) % 5, asked, np.repeat(["a", "b"], 50))
    assert "\n" not in str(caught.value)


def test_a_hopeless_domain_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet, "ATTEMPTS", 20)
    hopeless = spec(within="domain", alpha=1e-3, clients=8, min_size=12)
    with pytest.raises(FedbenchError, match=r"over 4 clients of domain a gave each 12 samples in 20 attempts"):
        draw(np.arange(100) % 5, hopeless, np.repeat(["a", "b"], 50))


def test_the_column_must_be_there() -> None:
    with pytest.raises(FedbenchError, match="unknown column of labels 'domain'"):
        draw(np.arange(100) % 5, spec(within="domain"))


# -- real images ----------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "first"), [("cifar10", [638, 706, 248, 602, 814]), ("cifar100", [600, 614, 603, 617, 545])]
)
def test_real_labels_give_the_papers_clients(data_root: Path, name: str, first: list[int]) -> None:
    """The sizes of pfedfda/protocol.md#dirichlet-partition, and the training sets of Table 1's four shares."""
    parts = [pq.read_table(data_root / name / f"{side}.parquet", columns=["label"]) for side in ("train", "test")]
    labels = np.concatenate([part["label"].to_numpy() for part in parts])
    kept = {}
    for share in (1, 0.75, 0.5, 0.25):
        sides = draw(labels, spec(clients=100, seed=42, min_size=63, subsample=share))
        kept[share] = sum(len(train) for train, _ in sides)
        assert sum(len(test) for _, test in sides) == 60_000 - kept[1]
        if share == 1:
            assert [len(train) + len(test) for train, test in sides[:5]] == first
    if name == "cifar10":
        assert kept == {1: 47_958, 0.75: 35_935, 0.5: 23_962, 0.25: 11_962}
    sides = draw(labels, limited(clients=100, size=63, seed=42))
    assert {(len(train), len(test)) for train, test in sides} == {(50, 13)}
