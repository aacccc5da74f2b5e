"""Result packs: what goes in comes out, the same runs are the same bytes, damage is one line; and shipped ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.engine.sweep import plan
from fedbench.errors import FedbenchError
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import Metrics, load
from fedbench.planner import table as tables
from fedbench.planner.cells import find
from fedbench.reports.render.latex import escape
from fedbench.reports.render.text import brief
from fedbench.results import importing, making
from fedbench.results import pack as seal
from fedbench.results.frame import Frame
from fedbench.results.importing import brought, take_in
from fedbench.results.making import diverged, machine, refuse_other_code, row_of
from fedbench.results.own_code import parts
from fedbench.results.pack import Failure, Pack, Row, add, compact, fault_of, from_json, packed, write
from fedbench.results.packs import NotPacked, Packs, summary, with_fedbench
from fedbench.results.run import State
from fedbench.specs import DatasetSpec, RunSpec
from fedbench.store import Artifact, Store
from tests.support.cli_user import fedbench
from tests.support.figures_lab import build
from tests.support.frames import or_line, refused
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, small_run
from tests.support.server import OK, Answer, Server, raw, whole


def finished(store: Store, spec: RunSpec, answers: tuple[int, ...] = (0, 1, 2, 2), **told: object) -> Artifact:
    """A run of two clients with two test images each, as the engine leaves it."""
    labels = (0, 1, 2, 1)
    rows = [
        {"round": t + 1, "view": "plain", "client": k // 2, "label": labels[k], "own": answers[k]}
        for t in range(spec.setting.rounds)
        for k in range(4)
    ]
    with store.writing(spec) as writer:
        writer.table("predictions", predictions(rows, classes=3))
        writer.table("clients", clients_table([30, 10], [2, 2]))
        rounds = spec.setting.rounds
        writer.table("rounds", rounds_table(rounds, local_seconds=np.linspace(0.1, 0.3, rounds)))
        writer.provenance = {"title": "FedAvg", "train_seconds": 3.0, "device": "cpu", "cpu": "AVX9", **told}
    return store.open("run", spec.id)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    for seed in range(seal.GROUP + 2):
        finished(store, run_spec(2, 3, window=2, seed=seed))
    return store


@pytest.fixture(scope="module")
def rows(filled: Store) -> list[Row]:
    return [row_of(run, filled, "us") for run in filled.list("run")]


def test_what_goes_in_comes_out_the_same_bytes_each_once(filled: Store, rows: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", rows)
    pack = Pack(tmp_path / "one.parquet")
    for row in rows:
        again = pack.row(pack.places[row.id])
        assert (again.spec, again.predictions, again.by, again.about) == (row.spec, row.predictions, "us", row.about)
        stored = load(evaluate(filled.open("run", row.id), filled))
        assert again.metrics.names == stored.names
        for name in stored.names:
            for view in stored.views:
                assert again.metrics.series(name, view) == pytest.approx(stored.series(name, view), rel=2**-18)
        assert again.metrics.series("average_accuracy", "plain") == stored.series("average_accuracy", "plain")
        assert again.metrics.per_client("client_accuracy", "plain").tolist() == [1.0, 0.5]
        assert again.metrics.whole_run("local_training_seconds") == stored.whole_run("local_training_seconds")
    assert packed(rows) == packed([*reversed(rows), rows[0]])
    write(tmp_path / "one.parquet", rows)
    pack = Pack(tmp_path / "one.parquet")
    assert packed([pack.row(k) for k in range(len(rows))]) == packed(rows)
    assert pack.heads["id"] == sorted(row.id for row in rows)
    write(tmp_path / "one.parquet", rows[:2])
    pack = Pack(tmp_path / "one.parquet")
    known, other = rows[0].spec, rows[1].spec
    assert pack.spec(pack.places[known.id], known) is known
    assert pack.spec(pack.places[known.id], other) == known
    pack.__dict__["heads"] = {**pack.heads, "stem": ["another", "another"]}
    with pytest.raises(FedbenchError, match="has the spec of"):
        pack.spec(pack.places[known.id], known)


def test_runs_that_diverged_go_along(store: Store, rows: list[Row], tmp_path: Path) -> None:
    first, second, own = (run_spec(2, 3, lr=lr, method=m) for lr, m in ((1.0, "fedavg"), (2.0, "fedavg"), (3.0, "a@1")))
    for spec in (first, second, own):
        store.record_failure(spec.id, "not finite", "", spec=spec.to_dict(), diverged=spec is not second)
    assert diverged(store) == [Failure(first, "not finite")]
    assert diverged(store, {second.id}) == []
    failures = [Failure(first, "not finite"), Failure(second, "too large"), Failure(rows[0].spec, "once")]
    add(tmp_path / "one.parquet", rows[:2], failures[1:])
    add(tmp_path / "one.parquet", rows[2:3], failures)
    pack = Pack(tmp_path / "one.parquet")
    assert sorted(pack.failures, key=lambda one: one.reason) == failures[:2]  # the last one is complete
    assert (tmp_path / "one.parquet").read_bytes() == packed(rows[:3], reversed(failures))
    assert Packs([pack.path]).failures[second.id].reason == "too large"
    assert summary(pack)["diverged"] == 2
    take_in(pack.path, store)
    assert Pack(store.home / "results/one.parquet").failures == pack.failures


def test_who_adds_to_one_pack_at_once_loses_no_run(filled: Store, rows: list[Row], tmp_path: Path) -> None:
    """Threads, since a lock of a file excludes them as it does processes."""
    few = rows[:6]
    packs = [tmp_path / f"{k}/mine.parquet" for k in range(len(few))]
    for path, row in zip(packs, few, strict=True):
        write(path, [row])

    def at_once(call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        start = threading.Barrier(len(arguments))

        def one(values: tuple[Any, ...]) -> Any:
            start.wait()
            return call(*values)

        with ThreadPoolExecutor(len(arguments)) as pool:
            return list(pool.map(one, arguments))

    totals = at_once(add, [(tmp_path / "out.parquet", [row]) for row in few])
    assert sorted(totals) == [1, 2, 3, 4, 5, 6]
    assert Pack(tmp_path / "out.parquet").places.keys() == {row.id for row in few}
    assert not [*tmp_path.glob(".*")], "nothing is left beside a user's pack"
    other = Store(tmp_path / "store")
    taken = at_once(take_in, [(path, other) for path in packs])
    assert sorted(total for *_, total in taken) == [1, 2, 3, 4, 5, 6]
    assert Pack(other.home / "results/mine.parquet").places.keys() == {row.id for row in few}
    # One run with other numbers in each pack: whoever comes first is in, and the others are told.
    disputed = Store(tmp_path / "disputed")
    for k, path in enumerate(packs):
        path.unlink()
        metrics = few[0].metrics
        write(
            path.with_name(f"{k}.parquet"), [replace(few[0], metrics=replace(metrics, value=metrics.value / (1 + k)))]
        )
    said = at_once(or_line, [(take_in, path.with_name(f"{k}.parquet"), disputed) for k, path in enumerate(packs)])
    assert sum("has other numbers than are there" in str(one) for one in said) == len(few) - 1


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a":1}', b'{"a":{"spec":{},"reason":""}}'])
def test_runs_that_diverged_are_legible_or_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_only_noise_of_single_rounds_is_rounded(rows: list[Row]) -> None:
    metrics = rows[0].metrics
    odd = dataclasses.replace(metrics, value=np.full(len(metrics.value), 1 / 3))
    value = compact(odd).value
    changed = {metrics.names[k] for k in metrics.metric[value != odd.value]}
    assert {"local_training_seconds", "train_loss"} <= changed
    assert not any("accuracy" in name or "bytes" in name for name in changed)
    assert (value[metrics.round == 0] == 1 / 3).all()
    assert np.allclose(value, odd.value, rtol=2**-18, atol=0)


@given(st.integers(1, 30_000))
def test_of_a_long_run_a_thousand_rounds_are_kept_of_what_is_noise(rounds: int) -> None:
    number, metric = np.arange(1, rounds + 1), np.repeat([0, 1], rounds)
    whole = Metrics(
        id="",
        names=["bytes_up", "train_loss"],
        views=[""],
        metric=metric,
        view=np.zeros_like(metric),
        round=np.concatenate([number, number]),
        client=np.full(len(metric), -1),
        value=np.ones(len(metric)),
    )
    short = compact(whole)
    assert short.series("bytes_up") == whole.series("bytes_up")
    losses = sorted(short.series("train_loss"))
    assert losses[-1] == rounds
    assert len(losses) == rounds if rounds <= seal.ROUNDS else seal.ROUNDS / 2 <= len(losses) <= seal.ROUNDS
    assert len(set(np.diff(losses))) <= 1
    assert (compact(short).round == short.round).all()


def test_nothing_of_the_machine_but_its_kind(rows: list[Row]) -> None:
    assert rows[0].machine.startswith("Linux ")
    assert rows[0].machine.endswith(" AVX9")
    assert not {"host", "process", "platform", "executor_choice", "remark", "fingerprint_parts"} & {*making.ABOUT}
    assert machine({"device": "NVIDIA H100", "platform": "Linux-6.1-x86_64"}) == "NVIDIA H100"
    assert machine({"device": "cpu", "platform": "Linux-6.18.44-name-x86_64-with-glibc2.36"}) == "Linux x86_64"


def test_the_checksum_is_of_the_predictions_and_not_of_the_file(tmp_path: Path) -> None:
    spec = run_spec(2, 2)
    one, same = finished(Store(tmp_path / "a"), spec), finished(Store(tmp_path / "b"), spec)
    other = finished(Store(tmp_path / "c"), spec, answers=(0, 1, 2, 1))
    assert making.predictions(one) == making.predictions(same) != making.predictions(other)
    assert len(making.predictions(small_run(Store(tmp_path / "d")))) == 64
    table = one.table("predictions")
    encoded = table.set_column(1, "view", table["view"].dictionary_encode())
    encoded = encoded.select(sorted(table.column_names, reverse=True))
    with Store(tmp_path / "e").writing(spec) as writer:
        writer.table("predictions", encoded.cast(pa.schema([f.with_metadata(None) for f in encoded.schema])))
        writer.provenance["note"] = "another file"
    assert making.predictions(Store(tmp_path / "e").open("run", spec.id)) == making.predictions(one)
    # As of clients without labels that nobody serves.
    sums = set()
    for name, answers in (("zeros", [0, 0, 0, 0]), ("none", [None, 0, 0, 0]), ("another", [0, None, 0, 0])):
        rows = [
            {"round": 1, "view": "plain", "client": k // 2, "label": 1, "own": 1, "test_phase": answer}
            for k, answer in enumerate(answers)
        ]
        with Store(tmp_path / name).writing(spec) as writer:
            writer.table("predictions", predictions(rows, classes=3))
        sums.add(making.predictions(Store(tmp_path / name).open("run", spec.id)))
    assert len(sums) == 3


def test_runs_of_own_code_are_refused(store: Store) -> None:
    spec = dataclasses.replace(run_spec(2, 2), method="mine", source="a" * 64)
    with pytest.raises(FedbenchError, match="cannot be repeated by others: its method mine is a user's code"):
        row_of(finished(store, spec), store)
    # A network's and a partitioner's name has the checksum of the file after an @.
    spec = run_spec(2, 2)
    setting = spec.setting
    network = dataclasses.replace(setting, model=f"Net@{'a' * 64}")
    dealt = dataclasses.replace(setting, partition=dataclasses.replace(setting.partition, scheme=f"mine@{'a' * 64}"))
    assert not list(parts(spec))
    with pytest.raises(FedbenchError, match=r"its network Net is a user's code.*with model!=Net@a"):
        row_of(finished(store, dataclasses.replace(spec, setting=network)), store)
    assert [part.what for part in parts(dataclasses.replace(spec, setting=dealt))] == ["partitioner"]
    assert [part.what for part in parts(dataclasses.replace(spec, method="mine@abc"))] == ["method"]


def test_a_shipped_run_has_no_files_and_is_found_by_the_beginning_of_its_id(rows: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", rows)
    run = Packs([tmp_path / "one.parquet"]).get(rows[0].id)
    assert (run.id, run.spec, run.provenance["title"]) == (rows[0].id, rows[0].spec, "FedAvg")
    with pytest.raises(NotPacked, match="its predictions are not in the pack"):
        run.table("predictions")
    write(tmp_path / "one.parquet", rows[:2])
    write(tmp_path / "two.parquet", [dataclasses.replace(row, by="others") for row in rows[1:3]])
    shelf = Packs([tmp_path / "one.parquet", tmp_path / "two.parquet"])
    assert {run.id: run.origin.by for run in shelf.runs()} == {
        rows[0].id: "us",
        rows[1].id: "us",
        rows[2].id: "others",
    }
    shelf = Packs([tmp_path / "one.parquet"])
    assert getattr(shelf.find(rows[0].id[:8]), "id", None) == rows[0].id
    assert shelf.find("nothing") is None
    with pytest.raises(FedbenchError, match="'' is ambiguous: run "):
        shelf.find("")


def other(row: Row) -> Row:
    """The run with other numbers, as if other predictions had been made."""
    accuracies = np.array(["accuracy" in name for name in row.metrics.names])[row.metrics.metric]
    value = np.where(accuracies, row.metrics.value / 2, row.metrics.value)
    return dataclasses.replace(row, by="others", metrics=dataclasses.replace(row.metrics, value=value))


def test_other_numbers_are_asked_about_and_the_same_are_not(store: Store, rows: list[Row], tmp_path: Path) -> None:
    slower = dataclasses.replace(rows[1].metrics, value=rows[1].metrics.value.copy())
    times = np.array([name.endswith("seconds") for name in slower.names])[slower.metric]
    slower.value[times] *= 3
    write(first := tmp_path / "first.parquet", rows[:2])
    write(
        second := tmp_path / "second.parquet", [other(rows[0]), dataclasses.replace(rows[1], metrics=slower), rows[2]]
    )
    take_in(first, store)
    take_in(first, store)
    with pytest.raises(
        FedbenchError, match=rf"1 run of .* has other .*: {rows[0].id} \(.*/first\); --prefer new takes"
    ):
        take_in(second, store)
    with pytest.raises(FedbenchError, match="unknown run to prefer 'mine'"):
        take_in(second, store, prefer="mine")
    _, taken, left, total = take_in(second, store, prefer=importing.OLD)
    assert ({row.id for row in taken}, left, total) == ({rows[1].id, rows[2].id}, 1, 2)
    assert getattr(Packs.of(store).get(rows[0].id), "origin", rows[1]).by == "us"
    _, taken, left, total = take_in(second, store, prefer=importing.NEW)
    assert (len(taken), left, total) == (3, 0, 3)
    shelf = Packs.of(store)
    run = shelf.get(rows[0].id)
    assert run.origin.by == "others"
    assert shelf.others(run.id, run.metrics) == []  # of the other pack it was taken out
    assert [one.origin.by for one in shelf.others(run.id, rows[0].metrics)] == ["others"]


def test_other_numbers_than_the_stores_and_a_hidden_pack(store: Store, rows: list[Row], tmp_path: Path) -> None:
    finished(store, rows[0].spec)
    write(pack := tmp_path / "one.parquet", [rows[0]])
    take_in(pack, store)
    write(pack, [other(rows[0])])
    with pytest.raises(FedbenchError, match=rf"{rows[0].id} \(this store, .*/one\); --prefer new takes"):
        take_in(pack, store)
    take_in(pack, store, prefer=importing.NEW)
    assert len(Packs.of(store).others(rows[0].id, rows[0].metrics)) == 1
    write(tmp_path / ".x.parquet", rows[:1])
    with pytest.raises(FedbenchError, match=r"begins with a dot is hidden, and never read: .*\.x\.parquet; rename it"):
        take_in(tmp_path / ".x.parquet", store)


def test_runs_of_other_code_are_refused(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list(filled.list("run"))
    refuse_other_code(runs)
    changed = {run.provenance["started"] for run in runs}
    monkeypatch.setattr("fedbench.results.making.other_code", lambda provenance: provenance["started"] in changed)
    with pytest.raises(FedbenchError, match=rf"{len(runs)} runs of {len(runs)} were made by other code .*--other-code"):
        refuse_other_code(runs)


def test_of_runs_of_other_versions_the_last_made_counts(rows: list[Row], tmp_path: Path) -> None:
    row, versions = rows[0], (3, 4, 5, 6)
    days = dict(zip(versions, ("2026-01-02", "2026-01-04", "2026-01-03", "2026-01-01"), strict=True))
    every = [
        dataclasses.replace(row, spec=dataclasses.replace(row.spec, method_version=version), started=day)
        for version, day in days.items()
    ]
    write(tmp_path / "one.parquet", every)
    assert Packs([tmp_path / "one.parquet"]).of_stem(row.spec.stem).origin.spec.method_version == 4
    old = dataclasses.replace(rows[0], started="2026-11-23T00:00:00Z")
    spec = dataclasses.replace(old.spec, method_version=old.spec.method_version + 1)
    new = dataclasses.replace(old, spec=spec, started="2026-11-24T00:00:00Z")
    path = tmp_path / "a.parquet"
    for first, second in ((old, new), (new, old)):
        path.unlink(missing_ok=True)
        assert add(path, [first, *rows[1:]]) == len(rows)
        assert add(path, [second]) == len(rows)
        assert {row.id for row in Pack(path).rows()} == {new.id, *(row.id for row in rows[1:])}


def test_what_a_shelf_says_of_its_runs(rows: list[Row], tmp_path: Path) -> None:
    """The oldest first; of several forms of a data set the one that most runs are of."""
    few = sorted(rows, key=lambda row: row.id)[:4]
    copy = DatasetSpec("made_up", "another copy", "1")
    setting = few[3].spec.setting
    setting = dataclasses.replace(setting, partition=dataclasses.replace(setting.partition, dataset=copy))
    few[3] = dataclasses.replace(few[3], spec=dataclasses.replace(few[3].spec, setting=setting))
    dated = [dataclasses.replace(row, started=f"2026-01-0{9 - k}") for k, row in enumerate(few)]
    write(tmp_path / "one/results/two.parquet", dated)
    shelf = Packs([tmp_path / "one/results/two.parquet"])
    assert [run.id for run in shelf.runs()] == [row.id for row in reversed(dated)]
    assert shelf.datasets["made_up"].source == "generated"
    assert shelf.scopes == {("made_up", "lenet5", 3, "fp32")}
    told = summary(shelf.whole[0])
    assert (told["name"], told["runs"], told["by"], told["seconds"]) == ("one/two", 4, ["us"], 12.0)
    assert (told["first"], told["last"]) == ("2026-01-06", "2026-01-09")


def resealed(path: Path, column: str, values: pa.Array) -> Path:
    """The pack with another column, sealed as if it had been written so."""
    table = pa.parquet.read_table(path)
    table = table.set_column(table.column_names.index(column), column, values)
    labels = {seal.KEY: str(seal.VERSION), seal.SEAL: seal.BLANK}
    pa.parquet.write_table(
        table.replace_schema_metadata(labels), out := pa.BufferOutputStream(), row_group_size=seal.GROUP
    )
    path.write_bytes(seal.sealed(out.getvalue().to_pybytes()))
    return path


#: Column of a pack of three runs -> what it holds (a function: of the first run's list), and what is said of it.
FAULTS: list[tuple[str, object, str]] = [
    ("value", lambda own: [7.0, *own[1:]], "_accuracy is 7, not 0 to 1"),
    ("value", lambda own: [np.nan, *own[1:]], "_accuracy is nan, not 0 to 1"),
    ("value", lambda own: [None, *own[1:]], "lacks a metric's name or value"),
    ("value", lambda own: own[1:], "its values are of no metric"),
    ("value", pa.array([["7"]] * 3), "it is no result pack"),
    ("metric", lambda own: [99, *own[1:]], "its values are of no metric"),
    ("view", lambda own: [-1, *own[1:]], "a metric's view is not in 0 to 1"),
    ("round", lambda own: [4, *own[1:]], "a metric's round is not in 0 to 3"),
    ("round", lambda own: [None, *own[1:]], "the metrics of run [0-9a-f]* cannot be read"),
    ("client", lambda own: [2, *own[1:]], "a metric's client is not in -1 to 1"),
    ("names", lambda own: ["\x1b", *own[1:]], "the names of its metrics or views are not legible"),
    ("names", lambda own: [own[1], *own[1:]], "the names of its metrics or views are not legible"),
    ("views", pa.array([None] * 3, pa.list_(pa.string())), "the metrics of run [0-9a-f]* cannot be read"),
    ("seconds", pa.array([np.nan] * 3), "seconds of a run are nan"),
    ("seconds", pa.array([-1.0] * 3), "seconds of a run are -1"),
    ("by", pa.array([None] * 3, pa.string()), "has no by"),
    ("by", pa.array(["\x1b[2J"] * 3), "by of a run is"),
    ("machine", pa.array(["a\nb"] * 3), "machine of a run is"),
    ("started", pa.array(["yesterday"] * 3), "started of a run is 'yesterday'"),
    ("predictions", pa.array(["much"] * 3), "predictions of a run is 'much'"),
    ("data", pa.array(["[]"] * 3), "a data set cannot be read"),
    ("model", pa.array(["other"] * 3), "its model is not its spec's"),
    ("spec", pa.array(["[" * 10**5] * 3), "a spec cannot be read"),
    ("about", pa.array(["[]"] * 3), "what is said about it is no object"),
    ("about", pa.array(['{"libraries": 3}'] * 3), "its libraries is not legible"),
    ("about", pa.array(['{"deviations": [3]}'] * 3), "its deviations or libraries are not legible"),
]


@pytest.mark.parametrize(("column", "holds", "says"), FAULTS, ids=[says for _, _, says in FAULTS])
def test_what_is_sealed_and_yet_wrong_is_refused_and_left_out(
    store: Store, rows: list[Row], tmp_path: Path, column: str, holds: object, says: str
) -> None:
    write(bad := tmp_path / "bad.parquet", rows[:3])
    write(good := tmp_path / "good.parquet", rows[3:5])
    if callable(holds):
        there = pa.parquet.read_table(bad)[column]
        holds = pa.array([holds(there[0].as_py()), *there[1:].to_pylist()], there.type)
    resealed(bad, column, holds)
    with pytest.raises(FedbenchError, match=rf"cannot read the result pack .*bad.parquet \(.*{says}"):
        take_in(bad, store)
    assert not (store.home / "results").exists()
    said: list[FedbenchError] = []
    shelf = Packs([bad, good], said.append)
    assert {run.id for run in shelf.runs()} == {row.id for row in rows[3:5]}
    assert shelf.problems == said
    assert len(said) == 1
    assert (shelf.get(rows[0].id), shelf.find(rows[0].id), len(shelf.places)) == (None, None, 2)


def test_a_run_whose_mean_is_not_that_of_its_clients_is_refused(store: Store, rows: list[Row], tmp_path: Path) -> None:
    metrics = rows[1].metrics
    value = metrics.value.copy()
    value[(metrics.metric == metrics.names.index("client_accuracy")) & (metrics.round == 3)] = 0.99
    write(bad := tmp_path / "bad.parquet", [rows[0], replace(rows[1], metrics=replace(metrics, value=value))])
    refused(
        rf"run {rows[1].id} of .*bad.parquet contradicts itself: its client_accuracy_mean of the plain images after "
        "round 3 is 0.75, but 0.99 follows",
        take_in,
        bad,
        store,
    )
    assert not (store.home / "results").exists()


ELSEWHERE = b"HTTP/1.1 302 Found\r\nLocation: http://localhost:9/good.parquet\r\n\r\n"
#: What an address answers, and what is said of it.
ANSWERS: dict[str, tuple[Answer, str]] = {
    "large": (raw(OK + b"Content-Length: 64000001\r\n\r\n"), r"64,000,001 bytes, more than 64,000,000\); check the"),
    "elsewhere": (raw(ELSEWHERE), "302 and leads to another host, http://localhost:9/good.parquet"),
    "page": (whole(b"<html>no pack</html>"), r"the result pack http://.*/page.parquet \("),
    "cut": (whole(b"PAR1" * 99, cuts=[9] * 99), r"connection broke after \d+ of 396 bytes"),
    "none": (raw(b"HTTP/1.1 404 no\r\n\r\n"), "the server answers 404 no"),
}


def into(source: str, store: Store) -> None:
    with brought(source) as packs:
        take_in(packs[0], store)


def test_a_pack_by_its_address_is_checked_as_a_file_is(
    server: Server, store: Store, rows: list[Row], tmp_path: Path
) -> None:
    write(good := tmp_path / "good.parquet", rows[:2])
    there = pa.parquet.read_table(good)["value"]
    server.answers = {f"/{name}.parquet": answer for name, (answer, _) in ANSWERS.items()}
    server.answers["/a/my%20good.parquet?raw=1"] = whole(good.read_bytes())
    server.answers["/moved.parquet"] = raw(b"HTTP/1.1 302 Found\r\nLocation: /a/my%20good.parquet?raw=1\r\n\r\n")
    seen: list[int] = []
    for address, name in (("/a/my%20good.parquet?raw=1", "my good"), ("/moved.parquet", "moved")):
        with brought(server.base + address, lambda name, done, total: seen.append(done)) as packs:
            place, taken, _, total = take_in(packs[0], store)
        assert (place.name, len(taken), total, packs[0].exists()) == (f"{name}.parquet", 2, 2, False)
    assert seen[-1] == good.stat().st_size
    bad = resealed(good, "value", pa.array([[7.0, *own.as_py()[1:]] for own in there], there.type))
    server.answers["/bad.parquet"] = whole(bad.read_bytes())
    faults = {**{name: said for name, (_, said) in ANSWERS.items()}, "bad": "/bad.parquet .*accuracy is 7, not 0 to 1"}
    for name, said in faults.items():
        refused(said, into, f"{server.base}/{name}.parquet", store)
    assert len(Packs.of(store).whole) == 2
    for address, said in (
        ("http://example.org/x.parquet", "over https only"),
        ("file:///x.parquet", "over https only"),
        ("http://127.0.0.1.example.org/x.parquet", "over https only"),
        ("https://[/x.parquet", "is no address"),
        ("https://example.org/x.zip", "does not end in the name"),
        ("https://example.org/..%2f.parquet", "not end in"),
    ):
        refused(said, into, address, store)


def test_a_server_that_drips_is_left(store: Store, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the head and in the body: each byte comes in time."""

    def slowly(head: bytes) -> Answer:
        def answer(to: socket.socket, _: bytes) -> None:
            to.sendall(head)
            with contextlib.suppress(OSError):
                for _ in range(200):
                    to.sendall(b"x")
                    time.sleep(0.02)

        return answer

    monkeypatch.setattr(importing, "LONGEST", 0.3)
    server.answers |= {"/head.parquet": slowly(OK), "/body.parquet": slowly(OK + b"Content-Length: 200\r\n\r\n")}
    for name in ("head", "body"):
        began = time.monotonic()
        says = rf"/{name}.parquet was not there after 0.3 seconds, .*; check the address, or bring the file"
        refused(says, into, f"{server.base}/{name}.parquet", store)
        assert time.monotonic() - began < 3


def test_every_pack_of_a_folder_is_brought(store: Store, rows: list[Row], tmp_path: Path) -> None:
    for name in ("b", "packs/a", ".git/c", "packs/.d"):
        write(tmp_path / f"{name}.parquet", rows[:1])
    with brought(str(tmp_path)) as packs:
        assert packs == [tmp_path / "b.parquet", tmp_path / "packs/a.parquet"]
    (tmp_path / "none").mkdir()
    refused("there is no result pack", into, str(tmp_path / "none"), store)


def test_a_folder_with_a_damaged_pack_gives_the_others(
    store: Store, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(store.home))
    write(tmp_path / "packs/b.parquet", rows[:1])
    (tmp_path / "packs/a.parquet").write_bytes(b"")
    said = fedbench("results", "import", tmp_path / "packs")
    assert (said.code, "1 run by us, in " in said.err) == (2, True)
    assert re.search(r"^fedbench: 1 of 2 packs not imported: cannot read the result pack .*/a\.parquet ", said.line)
    assert [pack.path.name for pack in Packs.of(store).whole] == ["b.parquet"]


def test_a_builtin_methods_own_metric_has_a_range_and_a_users_none(rows: list[Row]) -> None:
    row = rows[0]
    for name, method, value, fault in (
        ("beta", "pfedfda", 7.0, "beta is 7, not 0 to 1"),
        ("beta", "fedavg", 7.0, ""),
        ("mine", "fedavg", -1e9, ""),
        ("mine", "fedavg", np.nan, "mine is nan, not a number"),
        ("network_share", "fedavg", 1.2, ""),
        ("adjusted_rand_index", "fedavg", -2.0, "adjusted_rand_index is -2, not -1 to 1"),
        ("train_loss", "fedavg", -3.0, ""),
        ("bytes_up", "fedavg", -3.0, "bytes_up is -3, not 0 or more"),
        ("ratio_bound", "ftw_erm", -1.0, "ratio_bound is -1, not 0 or more"),
        ("average_accuracy", "fedavg", 1 + 1e-12, ""),
    ):
        one = np.zeros(1, np.int32)
        metrics = Metrics("", [name], [""], one, one, one, one - 1, np.array([value]))
        spec = dataclasses.replace(row.spec, method=method)
        assert fault_of(dataclasses.replace(row, spec=spec, metrics=metrics)) == fault


def test_packs_of_a_newer_fedbench_altered_or_with_a_spec_that_is_not_its_ids(rows: list[Row], tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", rows[:1])
    table = pa.parquet.read_table(tmp_path / "one.parquet")
    pa.parquet.write_table(table.replace_schema_metadata({seal.KEY: str(seal.VERSION + 1)}), tmp_path / "new.parquet")
    with pytest.raises(FedbenchError, match=r"was written by a newer fedbench; upgrade fedbench"):
        Pack(tmp_path / "new.parquet").row(0)
    data = packed(rows[:1])
    told = pa.parquet.read_metadata(pa.BufferReader(data)).metadata[seal.SEAL]
    assert seal.whole(data, told)
    assert not seal.whole(data, b"")
    assert not seal.whole(data, b"1" * 64)
    assert not any(seal.whole(data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :], told) for k in range(0, len(data), 97))
    labels = {seal.KEY: str(seal.VERSION), seal.SEAL: seal.BLANK}
    forged = table.set_column(0, "id", pa.array(["0" * 12])).replace_schema_metadata(labels)
    pa.parquet.write_table(forged, out := pa.BufferOutputStream())
    (tmp_path / "forged.parquet").write_bytes(seal.sealed(out.getvalue().to_pybytes()))
    with pytest.raises(FedbenchError, match=f"run 000000000000 has the spec of {rows[0].id}"):
        Pack(tmp_path / "forged.parquet").spec(0)


def test_a_file_that_is_no_whole_pack_is_one_line_and_hides_no_other(rows: list[Row], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    write(good, rows[:2])
    content = good.read_bytes()
    flipped = content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]
    pa.parquet.write_table(pa.table({"id": [1]}), other := pa.BufferOutputStream())
    for damaged in (b"", b"PAR1 and more", content[:900], other.getvalue().to_pybytes(), flipped):
        bad.write_bytes(damaged)
        shelf = Packs([bad, good])
        assert len(shelf.runs()) == 2
        (problem,) = shelf.problems
        assert "cannot read the result pack" in problem.message
        assert "\n" not in str(problem)
        assert ("it was edited or damaged" in problem.message) == (damaged is flipped)


@pytest.mark.shipped
@pytest.mark.parametrize("path", with_fedbench(), ids=lambda path: path.stem)
def test_every_run_is_whole_and_names_nobody(path) -> None:  # type: ignore[no-untyped-def]
    pack = Pack(path)
    assert json.loads(pq.read_metadata(path).metadata[seal.KEY]) == seal.VERSION, "sealed"
    for k in range(len(pack.heads["id"])):
        row = pack.row(k)
        assert re.fullmatch("[0-9a-f]{64}", row.predictions)
        assert row.by
        assert not importing.contradicted(row)
        assert {"host", "process"}.isdisjoint(row.about)
        assert not re.search(r"/(home|root|tmp|work|Users)/", pack.heads["about"][k] + row.machine)


@pytest.mark.shipped
@pytest.mark.parametrize("name", tables.headline())
def test_headline_tables_are_whole_without_data(store: Store, name: str) -> None:
    printed = build(tables.load(name), "small", store, frame=Frame(store, Packs.of(store)), compare=True)
    assert printed.counts.keys() <= {State.DONE.value, State.STALE.value}
    assert printed.problems == ()
    entries = [e for line in printed.lines if line.in_table for e in line.entries if e.state is not State.UNDEFINED]
    assert all(entry.text and entry.shipped for entry in entries)
    said = [*brief(printed, str), *printed.notes, *(text for _, text in printed.footnotes)]
    signs = {sign for text in (*said, *(entry.text for entry in entries)) for sign in text} - {"?"}
    assert {sign for sign in signs if "?" in escape(sign)} == set()


@pytest.mark.shipped
def test_of_what_is_shipped_nothing_is_lacking_without_images(store: Store) -> None:
    assert 0 < sum(path.stat().st_size for path in with_fedbench()) < 10e6
    table, packs = tables.load("1").only(["CIFAR-10/*"]), Packs.of(store)
    lacking = plan(table, store, [], packs=packs)
    shipped = {run.id for cell in find(table, "small", Frame(store, packs), []).all for run in cell.records if run}
    left = f"{len(shipped)} shipped runs left out (--include-shipped trains them)"
    assert (list(lacking.runs), lacking.remarks, lacking.complete) == ([], [left], True)
    assert list(plan(table, store, [], only=["fedavg"], packs=packs).runs) == []
    for other in ({"only": ["fedavg"], "params": {"anything": 1}}, {"budget": "paper"}, {"packs": None}):
        with pytest.raises(FedbenchError, match="nothing can be run: the images of cifar10 are not available"):
            plan(table, store, [], **{"packs": packs, **other})  # type: ignore[arg-type]
