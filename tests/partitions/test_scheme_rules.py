"""What every partition must hold to, on data sets that Hypothesis makes up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawing import deal, draw
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.partitions import split
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.schemes.dirichlet import share_out
from fedbench.specs import DatasetSpec, PartitionSpec

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def spec(**fields: Any) -> PartitionSpec:
    defaults = {"clients": 4, "seed": 0, "train_fraction": 0.7}
    return partition_spec(dataset=DatasetSpec("rules", "none", "none"), **{**defaults, **fields})


def dirichlet(**fields: Any) -> PartitionSpec:
    return spec(**{"scheme": "dirichlet", "alpha": 1.0, "min_size": 5, **fields})


SCHEMES = st.one_of(
    st.builds(dict, scheme=st.just("iid")),
    st.builds(dict, scheme=st.just("shards"), shards=st.integers(2, 4)),
    st.builds(dict, scheme=st.just("dirichlet"), alpha=st.floats(0.3, 50), min_size=st.integers(4, 8)),
)
LABELS = st.lists(st.integers(0, 6), min_size=80, max_size=200).map(np.array)


@quick
@given(
    labels=LABELS, chosen=SCHEMES, clients=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), share=st.floats(0.3, 0.7)
)
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
    for again, once in zip(draw(labels, asked), sides, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again, once, strict=True))


@quick
@given(clients=st.integers(1, 12), n=st.integers(24, 100), seed=st.integers(0, 1000))
def test_iid_sizes_are_nearly_equal(clients: int, n: int, seed: int) -> None:
    held = deal(np.zeros(n, int), spec(scheme="iid", clients=clients, seed=seed), np.random.RandomState(seed))
    sizes = [len(samples) for samples in held]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(shards=st.integers(1, 5), clients=st.integers(1, 6), each=st.integers(1, 4), seed=st.integers(0, 1000))
def test_shards_are_pure_where_classes_allow(shards: int, clients: int, each: int, seed: int) -> None:
    # Classes of `each` shards of ten samples: every shard lies within one class.
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(shards * clients), 10) // each)
    held = deal(labels, spec(scheme="shards", shards=shards, clients=clients, seed=seed), np.random.RandomState(seed))
    for samples in held:
        assert len(samples) == 10 * shards
        assert len(np.unique(labels[samples])) <= shards
        assert np.all(np.bincount(labels[samples]) % 10 == 0)


@quick
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=20),
    seed=st.integers(0, 1000),
    share=st.floats(0.01, 0.99),
    data=st.data(),
)
def test_natural_clients_are_whole_groups(sizes: list[int], seed: int, share: float, data: st.DataObject) -> None:
    names = np.array([f"writer{i:02d}" for i in range(len(sizes))])
    column = np.random.default_rng(seed).permutation(np.repeat(names, sizes))
    fit = sum(size >= 2 for size in sizes)
    assume(fit)
    clients = data.draw(st.integers(1, fit))
    asked = spec(scheme="natural", by="writer", clients=clients, seed=seed, train_fraction=share)
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
    with pytest.raises(FedbenchError, match=f"{fit} groups by writer"):
        draw(np.zeros(len(column), int), spec(scheme="natural", by="writer", clients=fit + 1), column)


@pytest.mark.parametrize(
    "chosen", [{"scheme": "iid"}, {"scheme": "shards", "shards": 2}, {"scheme": "dirichlet", "alpha": 1.0}]
)
def test_another_seed_is_another_partition(chosen: dict[str, Any]) -> None:
    labels = np.arange(200) % 5
    one, two = (draw(labels, spec(**chosen, seed=seed)) for seed in (1, 2))
    assert not np.array_equal(one[0][0], two[0][0])


def test_natural_groups_are_chosen_by_seed() -> None:
    column = np.repeat(np.arange(50), 4)
    first = [
        [column[train[0]] for train, _ in draw(column, spec(scheme="natural", by="w", seed=seed), column)]
        for seed in (1, 2)
    ]
    assert first[0] != first[1]


def plain_dirichlet(labels: np.ndarray, clients: int, alpha: float, least: int, seed: int, share: float) -> list[Any]:
    """feddrm/protocol.md#dirichlet-partition spelled out on Python lists and NumPy's global generator."""
    np.random.seed(seed)
    smallest = 0
    while smallest < least:
        held: list[list[int]] = [[] for _ in range(clients)]
        for k in range(labels.max() + 1):
            mine = [i for i in range(len(labels)) if labels[i] == k]
            np.random.shuffle(mine)
            p = np.random.dirichlet([alpha] * clients)
            p = np.array([0 if len(h) >= len(labels) / clients else q for q, h in zip(p, held, strict=True)])
            ends = [*(int(c) for c in np.cumsum(p / p.sum())[:-1] * len(mine)), len(mine)]
            start = 0
            for h, end in zip(held, ends, strict=True):
                h += mine[start:end]
                start = end
        smallest = min(map(len, held))
    for h in held:
        np.random.shuffle(h)
    sides = []
    for h in held:
        np.random.shuffle(h)
        n = int(len(h) * share)
        sides.append((h[:n], h[n:]))
    return sides


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_draws_the_very_samples_of_the_plain_rule(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 10, 600)
    asked = dirichlet(clients=7, alpha=0.4, min_size=30, seed=seed)
    expected = plain_dirichlet(labels, 7, 0.4, 30, seed, 0.7)
    assert [(train.tolist(), test.tolist()) for train, test in draw(labels, asked)] == expected


def test_shards_deals_the_very_samples_of_the_plain_rule() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 62)
    in_order = sorted(range(62), key=lambda i: labels[i])  # Python's sort is stable
    ends = [0, 11, 22, 32, 42, 52, 62]  # six shards: the first two hold one sample more
    order = np.random.RandomState(5).permutation(6)
    expected = [[i for s in order[2 * c : 2 * c + 2] for i in in_order[ends[s] : ends[s + 1]]] for c in range(3)]
    held = deal(labels, spec(scheme="shards", shards=2, clients=3, seed=5), np.random.RandomState(5))
    assert [samples.tolist() for samples in held] == expected


def test_draws_leave_the_global_generator_alone() -> None:
    np.random.seed(7)
    before = np.random.get_state()[1].tolist()
    draw(np.arange(100) % 5, dirichlet())
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (spec(scheme="iid", clients=51), "100 samples cannot serve 51 clients .*at most 50"),
        (dirichlet(clients=40, min_size=3), "cannot give 40 clients 3 each"),
        (spec(scheme="shards", shards=30), "cannot be cut into 120 shards"),
        (spec(scheme="iid", clients=50, train_fraction=0.3), "client 0 holds 2 samples.* without a training sample"),
        (spec(scheme="natural", by="writer"), "unknown column of labels 'writer'"),
    ],
)
def test_impossible_partitions_say_why(asked: PartitionSpec, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        draw(np.arange(100) % 5, asked)


def test_a_client_without_a_test_sample_is_an_error() -> None:
    # A share just below 1 of 3 samples still leaves one for tests; of none it cannot.
    (train, test), *_ = draw(np.zeros(12, int), spec(scheme="iid", train_fraction=0.999))
    assert (len(train), len(test)) == (2, 1)
    with pytest.raises(FedbenchError, match="client 0 holds 0 samples"):
        split.split([np.arange(0)], spec(scheme="iid"), np.random.RandomState(0))


def test_hopeless_dirichlet_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.partitions.schemes.dirichlet.ATTEMPTS", 50)
    with pytest.raises(
        FedbenchError, match=r"no draw of Dir\(0.01\) over 20 clients gave each 4 samples in 50 attempts"
    ):
        draw(np.arange(100) % 5, dirichlet(clients=20, alpha=0.01, min_size=4))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [1e-300, 1e-4, 1e6])
def test_extreme_alpha_keeps_every_sample(alpha: float) -> None:
    held = share_out([np.arange(50), np.arange(50, 100)], alpha, 3, np.random.RandomState(0))
    for mixed, cuts in held:
        assert (cuts[0], cuts[-1], len(mixed)) == (0, 50, 50)
        assert np.all(np.diff(cuts) >= 0)
