"""Clients that never train, and that come again under corruptions: what they hold and see."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fedbench import data, partitions
from fedbench.partitions.transforms import Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import named as corruption
from fedbench.specs import PartitionSpec
from tests.support import partitions_lab as lab
from tests.support.partitions_lab import MADE

AGAIN = ("fog-3", "gaussian_noise-1")


def dataset(n: int = 240, channels: int = 3, size: int = 8) -> data.Dataset:
    return lab.noise(np.arange(n) % 6, shape=(size, size, channels))


def spec(**fields: Any) -> PartitionSpec:
    return lab.spec("iid", **{"clients": 6, "train_fraction": 0.75, **fields})


ASKED = spec(unseen=2, unseen_as=AGAIN, shift="corrupted")


@given(lab.unseens())
@settings(max_examples=30)
def test_newcomers_come_last_and_again_with_the_same_samples(asked: PartitionSpec) -> None:
    of = dataset()
    made = partitions.make(asked, of)
    alone = partitions.make(PartitionSpec.from_dict({**asked.to_dict(), "newcomers": None, "newcomers_as": None}), of)
    new, again = asked.unseen or 0, asked.unseen_as or ()
    assert made.clients == asked.clients + new * len(again) == len(made.transforms) == len(made.groups)
    assert made.unseen.tolist() == [False] * (asked.clients - new) + [True] * (new * (1 + len(again)))
    for c in range(asked.clients):  # they change nothing of what all others hold and see
        assert made.sample[made.rows(c)].tolist() == alone.sample[alone.rows(c)].tolist()
        assert made.transforms[c] == alone.transforms[c]
    for k in range(asked.clients, made.clients):
        kind, who = divmod(k - asked.clients, new)
        first = asked.clients - new + who
        name, severity = corruption(again[kind])
        assert made.transforms[k] == Transform(corruption=name, severity=severity)
        for test in (False, True):
            assert made.sample[made.rows(k, test)].tolist() == made.sample[made.rows(first, test)].tolist()
            assert made.label[made.rows(k, test)].tolist() == made.label[made.rows(first, test)].tolist()
    assert made.class_counts().shape == (made.clients, 6)
    assert made.class_counts().sum() == len(made.sample) == (made.n_train + made.n_test).sum()
    assert made.densities.train.shape == (made.clients, 6)
    np.testing.assert_allclose(made.densities.train.sum(axis=1), 1)


def test_a_copy_sees_its_images_under_its_corruption() -> None:
    """By streams of its own: two newcomers, and both sides of a split, do not share their noise."""
    of = dataset()
    made = partitions.make(ASKED, of)
    seen = made.transformed_images(of)
    assert seen.shape == (len(made.sample), 8, 8, 3)
    for c, shift in enumerate(made.transforms):
        for test in (False, True):
            plain = of.images[made.sample[made.rows(c, test)]]
            expected = apply(plain, shift, key=2 * c + test) if shift != Transform() else plain
            assert np.array_equal(seen[made.rows(c, test)], expected)
    assert np.array_equal(seen[made.rows(5)], of.images[made.sample[made.rows(5)]])
    grey = data.Dataset(MADE, np.full((240, 8, 8, 3), 128, np.uint8), of.labels, of.split, {}, of.classes)
    noisy = made.transformed_images(grey)  # 8 and 9 are newcomers 4 and 5 under Gaussian noise
    sides = [noisy[made.rows(c, test)][:5] for c in (8, 9) for test in (False, True)]
    assert len({side.tobytes() for side in sides}) == 4


def test_images_are_the_same_in_every_process_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    of = dataset()
    once = partitions.make(ASKED, of).transformed_images(of)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert np.array_equal(partitions.make(ASKED, of).transformed_images(of), once)


def test_grey_newcomers_see_corruptions_too() -> None:
    of = dataset(channels=1)
    made = partitions.make(spec(unseen=2, unseen_as=AGAIN, shift="high"), of)
    assert made.transforms[:6] == tuple(s.on_grey() for s in of_clients("high", 6))
    assert [str(s) for s in made.transforms[6:]] == ["fog 3"] * 2 + ["gaussian_noise 1"] * 2
    seen = made.transformed_images(of)
    assert not np.array_equal(seen[made.rows(6)], seen[made.rows(4)])


def test_images_take_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of clients: those that are at work, beside the images themselves."""
    of = dataset(3000, size=16)
    made = partitions.make(spec(clients=100, unseen=99, unseen_as=[f"contrast-{s}" for s in range(1, 6)]), of)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    tracemalloc.start()
    images = made.transformed_images(of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == 3000 + 5 * 99 * 30
    assert peak < 1.3 * images.nbytes
