"""Natural groups by name, each normalised by numbers of its own: FedDRM's three centres of RETINA."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import data as datasets
from fedbench import partitions, protocol
from fedbench.core.federation import Federation
from fedbench.core.worker import Worker
from fedbench.data import Dataset
from fedbench.data.build import obtain
from fedbench.engine.inputs import loaded
from fedbench.models.build import initial
from fedbench.partitions import Partition, Transform
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply
from fedbench.specs import DatasetSpec, PartitionSpec, Setting
from fedbench.store import Store
from tests.data.test_data_centres import RETINA, archive, retina_images
from tests.support.frames import refused

ORDER = ("kaggle_arima", "RIM", "REFUGE")
MEANS = ((0.7238, 0.3767, 0.1002), (0.5886, 0.2652, 0.1481), (0.7085, 0.4822, 0.3445))
STDS = ((0.1001, 0.1057, 0.0503), (0.1147, 0.0937, 0.0461), (0.1663, 0.1541, 0.1066))


@pytest.fixture
def retina(tmp_path: Path, store: Store) -> Dataset:
    """Images of the form of RETINA, 12 a centre."""
    archive(tmp_path / "brought", RETINA, retina_images())
    return datasets.load("retina", store, [tmp_path / "brought"])


def preset(retina: Dataset, **chosen: Any) -> Partition:
    return partitions.make(protocol.load("feddrm").partition_spec(retina.spec, 2, preset="retina", **chosen), retina)


def test_the_paper_s_clients(retina: Dataset) -> None:
    p = preset(retina)
    assert [set(retina.column("centre")[p.sample[p.rows(c)]].tolist()) for c in range(3)] == [{one} for one in ORDER]
    assert [(t.mean, t.std) for t in p.transforms] == list(zip(MEANS, STDS, strict=True))
    assert (p.n_train.tolist(), p.n_test.tolist()) == ([8] * 3, [4] * 3)  # int(0.7 x 12)
    # As FedDRM's code splits a centre's images, those of its training folder first: one generator, client after client.
    rng = np.random.RandomState(2025)
    for c, centre in enumerate(ORDER):
        rows = np.flatnonzero(retina.column("centre") == centre)
        order = np.arange(12)
        rng.shuffle(order)
        np.testing.assert_array_equal(p.sample[p.rows(c)], rows[order])
    np.testing.assert_array_equal(p.transformed_images(retina), retina.images[p.sample])


def test_a_stored_partition_is_the_one_that_was_drawn(retina: Dataset, store: Store) -> None:
    drawn = preset(retina)
    read = partitions.build(drawn.spec, store)
    assert (read.transforms, read.groups) == (drawn.transforms, [0, 1, 2])
    np.testing.assert_array_equal(read.scaling(), drawn.scaling())


def _worker(federation: Federation) -> Worker:
    """What feeds a network with the federation's images."""
    spec = partition_spec(DatasetSpec("any", "one", "0"), "iid", 3, 0, 0.7)
    setting = Setting(spec, "smoke", "cifar_cnn", 1, 4, 0.1, 0, epochs=1)
    return Worker(initial(setting, federation.shape, federation.classes), federation, setting, threading.Event())


def _federations(retina: Dataset, store: Store, *specs: PartitionSpec) -> list[Federation]:
    """Of these partitions, on common images."""
    made = [partitions.obtain(spec, store) for spec in specs]
    return loaded(obtain(retina.spec, store), made, torch.device("cpu"))


def test_a_network_gets_normalised_images(retina: Dataset, store: Store) -> None:
    p, plain = preset(retina), partition_spec(retina.spec, "iid", 3, 0, 0.7)
    federation, beside = _federations(retina, store, p.spec, plain)
    rows = torch.randperm(len(p.client), generator=torch.Generator().manual_seed(0))
    got = _worker(federation).batch(rows).numpy()
    client = p.client[rows]
    mean, std = np.array(MEANS)[client, :, None, None], np.array(STDS)[client, :, None, None]
    whole = retina.images[p.sample[rows]].transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(got, (whole - mean) / std, rtol=0, atol=1e-5)

    (alone,) = _federations(retina, store, plain)  # who has none gets the same bits beside others as alone
    rows = torch.arange(len(retina.labels))
    assert torch.equal(_worker(beside).batch(rows + len(p.client)), _worker(alone).batch(rows))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"order": ("RIM", "REFUGEE", "Drishti")}, "unknown centre 'REFUGEE'"),
        ({"clients": 2}, "2 clients, but 3 groups are named in order"),
        ({"order": ("RIM", "RIM", "REFUGE")}, "order names a group twice"),
        ({"means": MEANS[:2]}, "means has 2 rows, and order names 3 groups"),
        ({"order": ORDER[:2], "clients": 2}, "means has 3 rows, and order names 2 groups"),
        ({"stds": None}, "means and stds go together"),
        ({"stds": ((0.1, 0.1),) * 3}, "a mean of 3 channels and a standard deviation of 2"),
        ({"stds": ((0.1, 0.0, 0.1),) * 3}, "a standard deviation must be above 0"),
        ({"means": ((0.5,),) * 3, "stds": ((0.5,),) * 3}, "means has 1 numbers a client, and images of retina have 3"),
        ({"round_robin": True}, "groups in an order of their own are not dealt in turn"),
    ],
)
def test_what_does_not_fit_is_told(retina: Dataset, changes: dict[str, Any], told: str) -> None:
    values = {"by": "centre", "clients": 3, "order": ORDER, "means": MEANS, "stds": STDS, **changes}
    refused(told, partitions.make, partition_spec(retina.spec, "natural", seed=0, train_fraction=0.7, **values), retina)


def test_a_normalisation_changes_no_pixel_and_goes_with_what_does() -> None:
    own = Transform(mean=MEANS[0], std=STDS[0])
    assert not own.alters
    assert str(own) == "normalised by 0.7238±0.1001 0.3767±0.1057 0.1002±0.0503"
    both = own | Transform(gamma=0.6)
    assert (both.alters, both.mean, both.gamma) == (True, MEANS[0], 0.6)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), np.uint8)
    np.testing.assert_array_equal(apply(pixels, both), apply(pixels, Transform(gamma=0.6)))
