"""Statistics of the papers, and quick reading of metrics."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.files import SEAL, sealed
from fedbench.metrics import evaluate
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.read import HEADLINE, NAMES, headline, load, metrics_of, read_headline
from fedbench.metrics.statistics import across_clients, across_seeds, best_round, last_rounds
from fedbench.store import Store
from tests.support.make_runs import small_run

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=20)


@given(values=VALUES)
def test_standard_deviations(values: list[float]) -> None:
    rounds = last_rounds(dict(enumerate(values, 1)), len(values))
    assert rounds.mean == pytest.approx(statistics.fmean(values))
    assert rounds.std == pytest.approx(statistics.pstdev(values), abs=1e-12)
    for over in (across_clients, across_seeds):
        assert over(values).mean == pytest.approx(statistics.fmean(values))
        assert over(values).std == pytest.approx(statistics.stdev(values), abs=1e-12)
        assert over(values).count == len(values)


def test_window_is_counted_in_rounds() -> None:
    """Sparse evaluations before the window do not count, nor does the whole run's round 0."""
    values = {0: 9.0, 10: 1.0, 20: 2.0, 29: 3.0, 30: 5.0}
    found = last_rounds(values, 5)
    assert (found.mean, found.std, found.count) == (4.0, 1.0, 2)
    assert last_rounds(values, 1).mean == 5.0
    assert last_rounds(values, 11).count == 3
    assert last_rounds(values, 1000).count == 4


@given(values=st.dictionaries(st.integers(1, 50), st.integers(0, 5).map(float), min_size=1))
def test_the_best_round_is_the_earliest_of_the_best(values: dict[int, float]) -> None:
    found = best_round({0: 9.0, **values})  # the whole run's value is no round's
    assert found is not None
    assert best_round({}) is best_round({0: 1.0}) is None
    assert all(value <= values[found] for value in values.values())
    assert all(value < values[found] for t, value in values.items() if t < found)


def test_undefined_statistics_are_nan() -> None:
    one = across_clients([0.5])
    empty = last_rounds({}, 5), last_rounds({0: 1.0}, 5), across_seeds([])
    assert all(map(math.isnan, (one.std, last_rounds({3: 0.5}, 1).std, *(each.mean for each in empty))))
    assert (one.mean, *(each.count for each in empty)) == (0.5, 0, 0, 0)


def test_reading(store: Store) -> None:
    run = small_run(store)
    assert metrics_of(run, store) is None
    evaluate(run, store)
    artifact = metrics_of(run, store)
    assert artifact is not None
    found = load(artifact)
    assert list(found.series("average_accuracy", "plain")) == [1, 2]
    assert found.series("bytes_up", "crop") == found.series("bytes_up") == {0: 12, 1: 5, 2: 7}
    assert found.per_client("client_accuracy", "plain").tolist() == [1, 1]
    assert found.per_client("client_accuracy", "plain", 9).size == 0
    assert found.per_client("average_accuracy", "plain").size == 0
    assert found.series("average_accuracy", "no such view") == {}
    assert found.whole_run("average_accuracy") is None
    with pytest.raises(FedbenchError, match="unknown metric 'system_acuracy'; did you mean 'system_accuracy'"):
        found.series("system_acuracy", "plain")


UNITS = {"fraction", "seconds", "bytes", "nats", "ratio", "count", "index", "distance", "round"}


def test_definitions_are_complete() -> None:
    for name, definition in METRICS.items():
        assert definition.description, name
        assert definition.unit in UNITS, name
        assert definition.clients in {"no", "too", "only"}, name
        assert definition.source, name


def test_metrics_need_no_torch() -> None:
    code = "import sys, fedbench.metrics, fedbench.metrics.read, fedbench.metrics.statistics\n"
    code += "sys.exit(bool({'torch', 'pandas', 'sklearn', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
