"""The numbers that stand for a run in a list are those that its metrics say."""

from __future__ import annotations

import json

import pytest

from fedbench.files import SEAL, sealed
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.headline import HEADLINE, NAMES, headline, read_headline
from fedbench.metrics.read import load
from fedbench.metrics.statistics import last_rounds
from fedbench.store import Store
from tests.support.make_runs import small_run


def test_it_is_kept_and_is_what_the_table_says(store: Store) -> None:
    artifact = evaluate(small_run(store), store)
    values = load(artifact)
    expected = {name: last_rounds(values.series(name, "plain"), 2).mean for name in NAMES[:3]}
    assert artifact.provenance[HEADLINE] == {"view": "plain", **expected}
    assert expected["client_accuracy_mean"] != last_rounds(values.series("client_accuracy_mean", "crop"), 2).mean
    (artifact.path / "metrics.parquet").unlink()
    assert read_headline(store.open("metrics", artifact.id)) == {"view": "plain", **expected}, "reads no table"


def test_of_an_older_fedbench_it_comes_from_the_table(store: Store) -> None:
    artifact = evaluate(small_run(store), store)
    manifest = {**artifact.manifest, "provenance": {k: v for k, v in artifact.provenance.items() if k != HEADLINE}}
    del manifest[SEAL]
    (artifact.path / "artifact.json").write_text(json.dumps(sealed(manifest)))
    older = store.open("metrics", artifact.id)
    assert HEADLINE not in older.provenance
    assert read_headline(older) == pytest.approx(headline(load(artifact), 2))
