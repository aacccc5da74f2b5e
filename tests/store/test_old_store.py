"""Artifacts that an older fedbench wrote stay readable, by every room that reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench import data, partitions
from fedbench.metrics import evaluate, read
from fedbench.specs import SPECS, MetricsSpec, PartitionSpec
from fedbench.store import KINDS, Artifact, Store

#: Kind -> id, as they were when the schema was new: its store was written by hand, column by column, and is to stay.
IDS = {"dataset": "94b6fee866c7", "partition": "80d68cde158f", "run": "db88390db31d", "metrics": "0087c38b9ac1"}


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A copy of the store of schema 1, so that nothing is written into the checkout."""
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "schema1", tmp_path / "old")
    return Store(tmp_path / "old")


def the(store: Store, kind: str) -> Artifact:
    return store.find(IDS[kind][:6], (kind,))


@pytest.mark.parametrize("kind", KINDS)
def test_identity_survives_and_every_table_tells_its_spec(old: Store, kind: str) -> None:
    """The spec in the manifest still hashes to the id that names the folder, or the artifact would be orphaned."""
    artifact = the(old, kind)
    assert artifact.id == artifact.path.name == artifact.spec.id == IDS[kind]
    assert old.get(artifact.spec) is not None
    assert [a.id for a in old.list(kind)] == [IDS[kind]]
    assert artifact.provenance["started"].startswith("2026-")
    for name in artifact.manifest["files"]:
        table = artifact.table(name.removesuffix(".parquet"))
        assert table.num_rows > 0
        told = json.loads(table.schema.metadata[b"fedbench"])
        assert SPECS[told["kind"]].from_dict(told["spec"]).id == IDS[kind]


def test_chain_from_metrics_to_images(old: Store) -> None:
    assert set(IDS) == set(KINDS), "add an artifact of a new kind to the fixtures"
    spec = the(old, "metrics").spec
    assert isinstance(spec, MetricsSpec)
    chain = (spec.run, spec.run.setting.partition, spec.run.setting.partition.dataset)
    assert [old.has(s) for s in chain] == [True, True, True]
    assert the(old, "metrics").manifest["inputs"] == {"run": IDS["run"]}
    assert the(old, "run").manifest["inputs"] == {"partition": IDS["partition"]}
    assert old.current == {"partition": IDS["partition"], "protocol": "feddrm", "run": IDS["run"]}


def test_dataset(old: Store) -> None:
    spec = the(old, "dataset").spec
    found = data.load(spec, old)  # type: ignore[arg-type]
    assert found.images.shape == (12, 2, 2, 1)
    assert found.images[3].ravel().tolist() == [10, 3, 200, 203]
    assert found.labels.tolist() == [0, 1] * 6
    assert found.split.tolist() == [0] * 8 + [1] * 4
    assert found.column("writer").tolist() == [0] * 6 + [1] * 6
    assert found.classes == ("above", "below")
    assert data.info(spec, old).shape == (2, 2, 1)  # type: ignore[arg-type]


def test_partition(old: Store) -> None:
    spec = the(old, "partition").spec
    assert isinstance(spec, PartitionSpec)
    found = partitions.build(spec, old)
    assert found.sample.tolist() == list(range(12))
    assert found.test.tolist() == [False] * 4 + [True] * 2 + [False] * 4 + [True] * 2
    assert found.class_counts(test=False).tolist() == [[2, 2], [2, 2]]
    assert [(t.gamma, t.hue, t.posterize) for t in found.transforms] == [(0.6, None, None), (1.4, 0.1, 3)]


def test_predictions_still_give_the_same_metrics(old: Store) -> None:
    """Every number of the old metrics artifact, which were worked out by hand, comes out of the old predictions."""
    artifact = the(old, "metrics")
    found = read.load(artifact)
    assert found.series("system_accuracy", "crop") == {2: 1.0}
    assert found.per_client("client_accuracy", "plain").tolist() == [0.5, 1.0]
    assert found.whole_run("bytes_up") == 2000
    before = artifact.table("metrics").to_pylist()
    after = evaluate(the(old, "run"), old, again=True).table("metrics").to_pylist()
    key = ("metric", "view", "round", "client")
    measured = {tuple(row[k] for k in key): row["value"] for row in after}
    assert len(before) == 23
    for row in before:
        assert np.isclose(measured[tuple(row[k] for k in key)], row["value"], rtol=1e-12), row
