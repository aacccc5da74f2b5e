"""Loss, calibration, Brier score and top-5 accuracy: by hand, against scikit-learn, and of runs with kept logits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from fedbench.data.lists import as_column
from fedbench.errors import FedbenchError
from fedbench.metrics import evaluate
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.predictions import Clients
from fedbench.metrics.probabilities import calibration_error, measured
from fedbench.metrics.read import Metrics, load
from fedbench.reports.numbers.measured import measure
from fedbench.reports.table.spec import Column
from fedbench.specs import RunSpec
from fedbench.store import Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write

NAMES = {name for name, one in METRICS.items() if one.needs == "logits"}


def test_calibration_by_hand() -> None:
    # Bins of 1/15: (0.6, 0.667] holds 0.61 and 0.65, (0.933, 1] holds 0.95 and 1.
    confidence, right = np.array([0.61, 0.65, 0.95, 1.0]), np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx((abs(1 - 1.26) + abs(2 - 1.95)) / 4)
    assert calibration_error(np.array([2 / 15, 2 / 15 + 1e-9]), np.array([True, False])) == pytest.approx(
        (1 - 2 / 15 + 2 / 15) / 2
    ), "a bin holds its upper end"
    assert np.isnan(calibration_error(np.zeros(0), np.zeros(0, bool)))


def test_against_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    n, k = 400, 8
    logits = rng.normal(0, 2, (n, k)).astype(np.float32)
    label, client = rng.integers(0, k, n), np.repeat([0, 1, 2], [100, 250, 50])
    own = logits.argmax(1)
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    found = measured(logits, label, own, client, Clients(np.ones(3), np.bincount(client), trainees=2))
    for place, rows in enumerate([client < 2, client == 0, client == 1, client == 2]):  # the third never trains
        assert found["test_loss"][place] == pytest.approx(log_loss(label[rows], p[rows], labels=range(k)), abs=1e-5)
        assert found["top5_accuracy"][place] == pytest.approx(
            top_k_accuracy_score(label[rows], p[rows], k=5, labels=range(k))
        )
        onehot = np.eye(k)[label[rows]]
        assert found["brier_score"][place] == pytest.approx(((p[rows] - onehot) ** 2).sum(1).mean(), abs=1e-5)
        each = [
            abs((own == label)[rows & inside].sum() - p.max(1)[rows & inside].sum())
            for b in range(15)
            for inside in [(p.max(1) > b / 15) & (p.max(1) <= (b + 1) / 15)]
        ]
        assert found["calibration_error"][place] == pytest.approx(sum(each) / rows.sum(), abs=1e-5)


def test_several_labels() -> None:
    rng = np.random.default_rng(2)
    logits, label = rng.normal(0, 2, (60, 3)).astype(np.float32), rng.integers(0, 2, (60, 3))
    p = 1 / (1 + np.exp(-logits.astype(float)))
    found = measured(logits, label, p, np.zeros(60, int), Clients(np.ones(1), np.array([60]), 1))
    assert set(found) == NAMES - {"top5_accuracy"}
    losses = [log_loss(label[:, u], p[:, u], labels=[0, 1]) for u in range(3)]
    briers = [brier_score_loss(label[:, u], p[:, u]) for u in range(3)]
    assert found["test_loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)
    assert found["brier_score"][0] == pytest.approx(np.mean(briers), abs=1e-5)
    sure, right = np.maximum(p, 1 - p).ravel(), ((p > 0.5) == label).ravel()
    assert found["calibration_error"][0] == pytest.approx(calibration_error(sure, right), abs=1e-5)


def the_run(store: Store, clients: tuple[int, ...] = (0, 1, 1), keep: bool = True) -> Metrics:
    """The metrics of a run of three test images, whose second round alone has logits."""
    p = np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
    plain = [{"client": c, "label": y, "own": int(q.argmax())} for c, y, q in zip((0, 1, 1), (0, 1, 1), p, strict=True)]
    tables = {
        "predictions": predictions([{**r, "round": t, "view": "plain"} for t in (1, 2) for r in plain], classes=3),
        "clients": clients_table([30, 10], [1, 2]),
        "rounds": rounds_table(2),
    }
    if keep:
        columns = {"round": np.full(3, 2, np.int32), "view": ["plain"] * 3, "client": np.array(clients, np.int32)}
        tables["logits"] = pa.table({**columns, "logits": as_column(np.log(p).astype(np.float16))})
    return load(evaluate(write(store, run_spec(2, 2), **tables), store))


def test_a_run_that_keeps_logits_has_them_after_their_rounds(store: Store) -> None:
    found = the_run(store)
    expected = -np.log([0.5, 0.2, 0.8])
    assert found.series("test_loss", "plain") == pytest.approx({2: expected.mean()}, rel=1e-3)
    assert found.per_client("test_loss", "plain", 2) == pytest.approx([expected[0], expected[1:].mean()], rel=1e-3)
    gaps = abs(1 - 0.5) + abs(0 - 0.6) + abs(1 - 0.8)
    assert found.series("calibration_error", "plain") == pytest.approx({2: gaps / 3}, rel=1e-3)
    assert found.series("top5_accuracy", "plain") == {}, "of three classes five are always right"


def test_logits_of_other_images_are_refused(store: Store) -> None:
    with pytest.raises(FedbenchError, match="logits does not go with the predictions of round 2"):
        the_run(store, clients=(1, 0, 1))


def test_a_table_says_what_a_run_lacks(store: Store) -> None:
    found = the_run(store, keep=False)
    assert not NAMES & set(found.names)
    (run,) = store.list("run")
    assert isinstance(run.spec, RunSpec)
    column = Column("", "", metric="test_loss", statistic="last_rounds", unit="fraction", dataset="made_up")
    with pytest.raises(FedbenchError, match=r"needs the run's logits.*--keep logits --again") as error:
        measure(found, run.spec.setting, column, "plain")
    assert len(str(error.value).splitlines()) == 1
