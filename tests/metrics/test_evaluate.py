"""Metrics of a run: a case computed by hand, brute force over single images, and damaged runs."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from typer.testing import CliRunner, Result

from fedbench.cli import context
from fedbench.cli.evaluate import evaluate as command
from fedbench.errors import FedbenchError
from fedbench.metrics import evaluate
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.method_metrics import BEFORE
from fedbench.metrics.predictions import majority
from fedbench.metrics.read import load
from fedbench.store import Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, small_run, tiny_run, write


def test_by_hand(store: Store) -> None:
    found = load(evaluate(small_run(store), store))
    expected = {
        "system_accuracy": 4 / 5,
        "system_accuracy_probability": 4 / 5,  # answers 0, 1, 2, 2, 2
        "system_accuracy_density_ratio": 2 / 5,  # 1, 1, 2, 1, 2
        "system_accuracy_vote": 3 / 5,  # ties to the smaller class: 0, 1, 2, 1, 1
        "system_accuracy_oracle": 2 / 5,
        "average_accuracy": 0.75 * 1 / 2 + 0.25 * 1 / 3,
        "client_accuracy_mean": (1 / 2 + 1 / 3) / 2,
        "client_accuracy_std": (1 / 2 - 1 / 3) / 2**0.5,
        "client_accuracy_min": 1 / 3,
        "client_accuracy_max": 1 / 2,
        "client_accuracy_weighted": 2 / 5,
        "class_accuracy_mean": (1 / 2 + 0 + 1 / 2) / 3,
        "routing_accuracy": 0.75 * 1 / 2 + 0.25 * 1 / 3,
    }
    for name, value in expected.items():
        assert found.series(name, "crop") == pytest.approx({1: value, 2: value}), name
    assert found.per_client("client_accuracy", "crop", 1) == pytest.approx([1 / 2, 1 / 3])
    assert found.per_client("routing_accuracy", "crop", 2) == pytest.approx([1 / 2, 1 / 3])
    # The views stand apart: after round 2 the answers on whole images are all right.
    assert found.series("average_accuracy", "plain") == pytest.approx({1: 0.75 / 2 + 0.25 / 3, 2: 1})
    assert found.per_client("client_accuracy", "plain") == pytest.approx([1, 1])
    assert found.series("local_training_seconds") == {0: 3, 1: 4, 2: 2}
    assert found.series("bytes_up") == {0: 12, 1: 5, 2: 7}
    assert found.series("train_loss") == {1: 0.5, 2: 0.25}
    assert found.series("validation_accuracy") == {2: 0.75}
    assert found.series("total_runtime_seconds") == {0: 2}
    assert found.series("round_seconds") == {0: 0.625, 1: 0.75, 2: 0.5}
    assert found.series("peak_memory") == {0: 7e8, 1: 5e8, 2: 7e8}
    assert found.series("network_share") == {0: 0.7, 1: 0.75, 2: 0.5}
    assert found.series("estimation_share") == {0: 0.1, 1: 0.125, 2: 0}
    assert found.series("interpolation_share") == {0: 0.1, 1: 0.0625, 2: 0.25}
    # After the last round and on whole images only, somebody was met without labels and answered with class 0.
    assert found.per_client("test_phase_accuracy", "plain") == pytest.approx([1 / 2, 1 / 3])
    assert found.series("test_phase_accuracy_mean", "plain") == pytest.approx({2: 5 / 12})
    assert found.series("test_phase_accuracy_mean", "crop") == {}
    assert found.series("clusters") == {0: 2, 2: 2}
    assert found.series("elbow") == {0: 0.25, 1: 0.25}
    assert found.series("clustering_round") == {0: 2, 2: 2}
    assert (found.whole_run("test_images"), found.per_client("test_images").tolist()) == (5, [2, 3])
    assert (found.whole_run("true_clusters"), found.whole_run("adjusted_rand_index")) == (2, 1)
    of_multi_label = {n for n in METRICS if "auc" in n}  # tests/multi_label/test_scores.py
    of_logits = {n for n, one in METRICS.items() if one.needs}  # tests/metrics/test_measures.py
    others = set(METRICS) - of_multi_label - of_logits | (set(BEFORE) - {"ratio_bound"})
    assert set(found.names) == others, "each metric has a definition, and this run has all"


def brute_force(rows: list[dict[str, Any]], n_train: list[int]) -> dict[str, float]:
    """The metrics of one round and view, image by image."""

    def mean(values: list[bool]) -> float:
        return sum(values) / len(values)

    clients = range(len(n_train))
    mine = [[r for r in rows if r["client"] == i] for i in clients]
    own = [mean([r["own"] == r["label"] for r in part]) for part in mine]
    labels = sorted({r["label"] for r in rows})
    out = {
        "system_accuracy_oracle": mean([r["own"] == r["label"] for r in rows]),
        "average_accuracy": sum(n * a for n, a in zip(n_train, own, strict=True)) / sum(n_train),
        "client_accuracy_mean": statistics.fmean(own),
        "client_accuracy_min": sorted(own)[0],
        "client_accuracy_max": sorted(own)[-1],
        "client_accuracy_weighted": sum(len(m) * a for m, a in zip(mine, own, strict=True)) / len(rows),
        "class_accuracy_mean": statistics.fmean(
            mean([r["own"] == r["label"] for r in rows if r["label"] == k]) for k in labels
        ),
    }
    if len(own) > 1:
        out["client_accuracy_std"] = statistics.stdev(own)
    if "votes" in rows[0]:
        out["system_accuracy_vote"] = mean([winner(r["votes"][: len(n_train)]) == r["label"] for r in rows])
        out["system_accuracy"] = out["system_accuracy_vote"]
        single = [mean([r["votes"][i] == r["label"] for r in rows]) for i in clients]
        out["system_accuracy_random"], out["system_accuracy_best_client"] = statistics.fmean(single), max(single)
    if "route_probability" in rows[0]:
        for rule in ("probability", "density_ratio"):
            out[f"system_accuracy_{rule}"] = mean([r["votes"][r[f"route_{rule}"]] == r["label"] for r in rows])
        out["system_accuracy"] = out["system_accuracy_probability"]
        hits = [mean([r["route_probability"] == i for r in part]) for i, part in enumerate(mine)]
        out["routing_accuracy"] = sum(n * h for n, h in zip(n_train, hits, strict=True)) / sum(n_train)
    return out


def winner(votes: list[int]) -> int:
    counts = Counter(votes)
    return min(k for k, n in counts.items() if n == max(counts.values()))


@st.composite
def federations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[int], list[int], int]:
    """(rows in any order, n_train, n_test, classes)."""
    classes = draw(st.integers(1, 5))
    n_test = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    n_train = draw(st.lists(st.integers(1, 9), min_size=len(n_test), max_size=len(n_test)))
    kind = draw(st.sampled_from(["own", "votes", "routes"]))
    label, client = st.integers(0, classes - 1), st.integers(0, len(n_test) - 1)
    rows = []
    for t, view in draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["crop", "plain"])), min_size=1, unique=True)
    ):
        for i, n in enumerate(n_test):
            for _ in range(n):
                row = {"round": t, "view": view, "client": i, "label": draw(label), "own": draw(label)}
                if kind != "own":
                    row["votes"] = draw(st.lists(label, min_size=len(n_test), max_size=len(n_test)))
                if kind == "routes":
                    row |= {"route_probability": draw(client), "route_density_ratio": draw(client)}
                rows.append(row)
    return draw(st.permutations(rows)), n_train, n_test, classes


@settings(max_examples=20)
@given(federation=federations(), declared=st.booleans(), data=st.data())
def test_equals_brute_force_over_images(
    federation: tuple[list[dict[str, Any]], list[int], list[int], int], declared: bool, data: st.DataObject
) -> None:
    rows, n_train, n_test, classes = federation
    newcomers = data.draw(st.integers(0, len(n_test) - 1))
    trainees = len(n_test) - newcomers
    if not declared:  # what is not declared must show in the labels
        rows = [*rows]
        rows[0] = {**rows[0], "label": classes - 1}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        table = predictions(rows, classes if declared else None)
        tables = {"predictions": table, "clients": clients_table(n_train, n_test), "rounds": rounds_table(3)}
        spec = run_spec(len(n_test), 3, unseen=newcomers or None)
        found = load(evaluate(write(store, spec, **tables), store))
    groups = {(r["round"], r["view"]) for r in rows}
    names: set[str] = set()
    for t, view in groups:
        part = [r for r in rows if (r["round"], r["view"]) == (t, view)]
        # Of the federation's figures newcomers are no part.
        seen = [r for r in part if r["client"] < trainees]
        expected = brute_force(seen, n_train[:trainees])
        for name, value in expected.items():
            assert found.series(name, view)[t] == pytest.approx(value), name
        own, label = [r["own"] for r in seen], [r["label"] for r in seen]
        assert found.series("system_accuracy_oracle", view)[t] == pytest.approx(accuracy_score(label, own))
        if len({*label}) > 1 and {*own} <= {*label}:  # scikit-learn warns of other cases
            assert found.series("class_accuracy_mean", view)[t] == pytest.approx(balanced_accuracy_score(label, own))
        for i, accuracy in enumerate(found.per_client("client_accuracy", view, t)):
            mine = [r["own"] == r["label"] for r in part if r["client"] == i]
            assert accuracy == pytest.approx(sum(mine) / len(mine))
        names |= set(expected)
    assert {n for n in found.names if n in METRICS and METRICS[n].by_view} == names | {"client_accuracy"}


@given(
    votes=st.integers(1, 9).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 6), min_size=width, max_size=width), min_size=1, max_size=40)
    )
)
def test_majority_equals_counting(votes: list[list[int]]) -> None:
    assert majority(np.array(votes, np.uint16), 7).tolist() == [winner(v) for v in votes]


def test_votes_over_many_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streaming of votes keeps rows and routes together."""
    votes = np.random.default_rng(0).integers(0, 50, (3000, 6)).astype(np.uint16)
    monkeypatch.setattr("fedbench.metrics.predictions._CELLS", 7 * 50)
    assert majority(votes, 50).tolist() == [winner(v) for v in votes.tolist()]
    monkeypatch.setattr("fedbench.metrics.predictions._BATCH", 1)
    small = load(evaluate(small_run(store), store))
    assert small.series("system_accuracy_vote", "crop")[2] == pytest.approx(3 / 5)
    assert small.series("system_accuracy_probability", "crop")[2] == pytest.approx(4 / 5)


def test_warm_up_is_left_out(store: Store) -> None:
    """With more than two rounds the mean of the local training time leaves the first round out."""
    rounds = rounds_table(3, local_seconds=[100.0, 2.0, 4.0], total_seconds=[101.0, 5.0, 6.0])
    found = load(evaluate(tiny_run(store, last=3, rounds=rounds), store))
    assert found.whole_run("local_training_seconds") == 3
    assert found.whole_run("total_runtime_seconds") == 112


@pytest.mark.parametrize("column", ["participants", "images"])
def test_a_round_in_which_nobody_trained_has_no_loss(store: Store, column: str) -> None:
    """Nobody took part, or (FLUX, where data drift) clients only described themselves."""
    found = load(evaluate(small_run(store, rounds=rounds_table(2, **{column: np.array([0, 9])})), store))
    assert found.series("train_loss") == {2: 1.0}


def test_written_once_and_again_on_demand(store: Store) -> None:
    run = small_run(store)
    first = evaluate(run, store)
    assert first.manifest["inputs"] == {"run": run.id, "digest": run.digest}
    stamp = (first.path / "artifact.json").stat().st_mtime_ns
    digest = first.manifest["files"]["metrics.parquet"]["sha256"]
    assert (evaluate(run, store).path / "artifact.json").stat().st_mtime_ns == stamp
    anew = evaluate(run, store, again=True)
    assert (anew.path / "artifact.json").stat().st_mtime_ns > stamp
    assert anew.manifest["files"]["metrics.parquet"]["sha256"] == digest
    with pytest.raises(FedbenchError, match="is a metrics, not a run"):
        evaluate(first, store)


def _votes(width: int, value: int = 0) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array([value] * 20 * width, pa.uint16()), width)


BAD_COLUMNS: list[tuple[str, Any, str]] = [
    ("label", pa.array([3] * 20, pa.uint16()), r"'label' of table predictions holds 3, outside 0\.\.2"),
    ("own", pa.array([65535] * 20, pa.uint16()), r"'own' of table predictions holds 65535, outside 0\.\.2"),
    ("votes", _votes(2, 7), r"'votes' of table predictions holds 7, outside 0\.\.2"),
    ("votes", _votes(3), "'votes' of table predictions must hold 2 answers a row, not fixed_size_list"),
    ("votes", pa.array([[0, 1]] * 20), "must hold 2 answers a row, not list"),
    ("client", pa.array([2] * 20, pa.int32()), r"'client' of table predictions holds 2, outside 0\.\.1"),
    ("client", pa.array([1] * 20, pa.int32()), "does not hold every client's test images"),
    ("route_probability", pa.array([-1] * 20, pa.int32()), r"'route_probability' .* holds -1, outside 0\.\.1"),
    ("test_phase", pa.array([7] * 20, pa.uint16()), r"'test_phase' .* holds 7, outside 0\.\.2"),
    ("round", pa.array([5] * 20, pa.int32()), "holds rounds 5 to 5, the run had 1 to 2"),
    ("round", pa.array([None] * 20, pa.int32()), "'round' of table predictions must hold whole numbers without gaps"),
    ("own", pa.array([0.5] * 20), "'own' of table predictions must hold whole numbers"),
    ("view", pa.array([None] * 20, pa.string()), "'view' of table predictions must hold names"),
    ("view", pa.array([1] * 20), "'view' of table predictions must hold names"),
    *((name, None, f"has no column '{name}'") for name in ("round", "view", "client", "label", "own")),
]
BAD_TABLES: list[tuple[str, Any, str]] = [
    ("clients", clients_table([30, 10], [2, 0]), "client 1 has no test images"),
    ("clients", clients_table([0, 10], [2, 3]), "client 0 has no training images"),
    ("clients", clients_table([30, 10], [2, 3]).slice(1), "must list the clients"),
    ("predictions", predictions([]), "table predictions is empty"),
    ("rounds", rounds_table(1), "must list the rounds 1 to 2"),
    ("rounds", rounds_table(2).drop_columns(["loss"]), "has no column 'loss'"),
    ("rounds", rounds_table(2, local_seconds=[1.0, -1.0]), "holds a value below zero"),
    ("rounds", rounds_table(2, bytes_up=[1.0, np.nan]), "holds a value below zero or none"),
    ("rounds", rounds_table(2, bytes_up=["a", "b"]), "'bytes_up' of table rounds must hold numbers"),
]


@pytest.mark.parametrize(("name", "value", "message"), [*BAD_COLUMNS, *BAD_TABLES])
def test_a_damaged_run_is_refused_in_one_line_that_names_it(store: Store, name: str, value: Any, message: str) -> None:
    if not isinstance(value, pa.Table):  # a column of the predictions
        good = small_run(store).table("predictions")
        store.remove("run", next(iter(store.list("run"))).id)
        at = good.column_names.index(name)
        table = good.drop_columns([name]) if value is None else good.set_column(at, name, value)
        name, value = "predictions", table.replace_schema_metadata({b"classes": b"3"})
    run = small_run(store, **{name: value})
    with pytest.raises(FedbenchError, match=message) as caught:
        evaluate(run, store)
    assert run.id in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(store.home.glob("metrics/*"))


@pytest.mark.parametrize("file", ["metrics", "predictions"])
@pytest.mark.parametrize(("damage", "message"), [("gone", "no file"), ("short", "truncated"), ("flipped", "altered")])
def test_damaged_files(store: Store, file: str, damage: str, message: str) -> None:
    metrics = evaluate(small_run(store), store)
    artifact = metrics if file == "metrics" else next(iter(store.list("run")))
    path = artifact.path / f"{file}.parquet"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-9] if damage == "short" else data[:50] + bytes([data[50] ^ 1]) + data[51:])
    damaged = store.open(artifact.kind, artifact.id)
    with pytest.raises(FedbenchError, match=message):
        load(damaged) if file == "metrics" else evaluate(damaged, store, again=True)


app = typer.Typer()
app.command("evaluate")(command)


def call(store: Store, *arguments: str) -> Result:
    context.configure(store.home, "", False)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_current_run(store: Store) -> None:
    with pytest.raises(FedbenchError, match="there is no current run; 'fedbench train' makes one"):
        raise call(store).exception  # type: ignore[misc]
    run = small_run(store)
    store.set_current(run=run.id)
    first = call(store)
    assert first.exit_code == 0
    assert "wrote metrics" in first.output
    assert f"of run {run.id}" in first.output
    assert "80.00" in first.output, "system accuracy of the view crop"
    assert "there already" in call(store).output
    assert "wrote metrics" in call(store, "--again").output


def test_json(store: Store) -> None:
    run = small_run(store)
    for arguments, message in ((("abc", "--all"), "either a run's id or --all"), (("abc",), "no run 'abc'")):
        error = call(store, *arguments).exception
        assert isinstance(error, FedbenchError)
        assert message in str(error)
    done = call(store, run.id[:6], "--json")
    [found] = json.loads(done.stdout)
    assert found["run"] == run.id
    assert found["metrics"] == next(iter(store.list("metrics"))).id
    crop, plain = found["headline"]["crop"], found["headline"]["plain"]
    assert crop["system_accuracy"] == pytest.approx(0.8)
    assert crop["rounds"] == "1-2"
    assert plain["client_accuracy_mean"] == pytest.approx((5 / 12 + 1) / 2), "a mean over the window's two rounds"
    assert found["total_runtime_seconds"] == 2


def test_all(store: Store) -> None:
    assert "no run in" in call(store, "--all").output
    run, other = small_run(store).id, tiny_run(store, method="local").id
    both = call(store, "--all")
    assert both.exit_code == 0
    assert f"of run {run}" in both.output
    assert f"of run {other}" in both.output
    assert "every run has its metrics" in call(store, "--all").output
    assert json.loads(call(store, "--all", "--json").stdout) == []
    assert call(store, "--all", "--again").output.count("wrote metrics") == 2


def test_a_damaged_run_does_not_stop_the_others(store: Store) -> None:
    broken = tiny_run(store, method="local", clients=clients_table([1], [2])).id
    run = small_run(store).id
    done = call(store, "--all")
    assert done.exit_code == 2
    assert f"of run {run}" in done.output
    assert f"not evaluated: run {broken}" in done.output
    assert len(list(store.list("metrics"))) == 1
