"""Class counts of a stored partition without the rest of it."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.errors import FedbenchError
from fedbench.partitions.artifact import Partition
from fedbench.partitions.counts import class_counts
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.tables import write
from fedbench.partitions.transforms import Transform
from fedbench.specs import DatasetSpec
from fedbench.store import Artifact, Store


def stored(store: Store, labels: np.ndarray) -> tuple[Partition, Artifact]:
    """Four clients with ten rows each."""
    spec = partition_spec(DatasetSpec("mnist", "made up", "0"), "dirichlet", 4, 0, 0.7, alpha=0.3, min_size=2)
    rows = np.arange(40, dtype=np.int32)
    client, test = rows // 10, rows % 10 > 6
    part = Partition(spec, ("a", "b", "c"), client, rows, test, labels, (Transform(),) * 4, [0] * 4)
    with store.writing(spec) as writer:
        write(writer, part)
    return part, store.open("partition", spec.id)


@pytest.mark.parametrize("several", [False, True])
def test_they_are_those_of_the_partition(store: Store, several: bool) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (40, 3)).astype(np.uint8) if several else rng.integers(0, 3, 40).astype(np.int32)
    part, artifact = stored(store, labels)
    classes, counts, multi_label = class_counts(artifact)
    assert classes == part.classes
    assert multi_label == several
    np.testing.assert_array_equal(counts, part.class_counts())


def test_a_damaged_file_is_one_line(store: Store) -> None:
    _, artifact = stored(store, np.zeros(40, np.int32))
    path = artifact.file("samples.parquet")
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(FedbenchError, match=r"samples\.parquet"):
        class_counts(artifact)
