"""Every kind of run that the store can hold goes into a pack that import takes: what is written can be read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.results.importing import merge, refuse_faulty
from fedbench.results.pack import Pack, Row, write
from fedbench.store import Store
from tests.support.cli_user import bad, good
from tests.support.frames import refused
from tests.support.make_runs import small_run
from tests.support.rays_lab import made_rows, small_recipe, write_release

#: A kind of client or of metric, its partition's options and its training's.
KINDS = {
    "seen": ("--iid --clients 3", "-m fedavg --rounds=2"),
    "validation": ("--iid --clients 3 --validation 0.2", "-m fedavg --select best --rounds=2"),
    "unseen": ("--iid --clients 4 --unseen 1", "-m fedavg --rounds=2"),
    "unseen and again": (
        "--iid --clients 4 --unseen 2 --unseen-as fog-3,contrast-2",
        "-m fedavgft --rounds=2",
    ),
    "unlabelled": ("--equal --clients 4 --shift pyx --level 4 --protocol flux", "-m flux --rounds=2"),
    "phases": (
        "--equal --clients 4 --protocol flux --shift pyx --level 2 --phases 3",
        "-m fedavg --rounds=3 --drifts=2,3",
    ),
    "own metrics": ("--iid --clients 3", "-m pfedfda --rounds=2"),
    "routed": ("--iid --clients 3 --shift high", "-m feddrm --rounds=2"),
}


def exported_and_taken_in(home: Path, folder: Path) -> tuple[Store, Store]:
    """The store's runs, exported by the command, in a second store, imported by the command."""
    pack, other = folder / "all.parquet", folder / "other"
    good("--home", home, "results", "export", "-o", pack)
    good("--home", other, "results", "import", pack, "--by", "Ada")
    return Store(home), Store(other)


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_of_each_kind_of_client_is_taken_in(kind: str, tmp_path: Path) -> None:
    partition, training = (options.split() for options in KINDS[kind])
    home = tmp_path / "home"
    good("--home", home, "partition", "digits", *partition)
    good("--home", home, "train", *training)
    here, there = exported_and_taken_in(home, tmp_path)
    (run,) = here.list("run")
    (row,) = Pack(there.home / "results/all.parquet").rows()
    assert row.spec == run.spec
    clients = run.spec.setting.partition.all_clients  # type: ignore[attr-defined]
    assert {*row.metrics.client.tolist()} == {-1, *range(clients)}


def test_an_export_of_a_run_of_several_labels_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_release(tmp_path, made_rows(160))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    recipe, home = small_recipe(tmp_path, 96, 64, side=32), tmp_path / "home"
    good("--home", home, "partition", recipe, "--iid", "--clients", "2", "--unseen", "1")
    good("--home", home, "train", "-m", "fedavg", "--rounds", "2")
    _, there = exported_and_taken_in(home, tmp_path)
    (row,) = Pack(there.home / "results/all.parquet").rows()
    assert any("auc" in name for name in row.metrics.names)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """One run, as three of other seeds."""
    store = Store(tmp_path_factory.mktemp("store"))
    run = small_run(store)
    row = Row(run.spec, "0" * 64, "us", "2026-11-28T00:00:00Z", 3.0, "Linux", {}, load(evaluate(run, store)))
    settings = [dataclasses.replace(row.spec.setting, seed=seed) for seed in range(3)]
    return [dataclasses.replace(row, spec=dataclasses.replace(row.spec, setting=setting)) for setting in settings]


def altered(row: Row, by: str = "others") -> Row:
    """The run with all its accuracies halved: it agrees with itself, not with the other."""
    accuracies = np.array(["accuracy" in name for name in row.metrics.names])[row.metrics.metric]
    value = np.where(accuracies, row.metrics.value / 2, row.metrics.value)
    return dataclasses.replace(row, by=by, metrics=dataclasses.replace(row.metrics, value=value))


def test_a_run_that_import_would_refuse_is_not_exported(rows: list[Row]) -> None:
    metrics = rows[0].metrics
    client = np.where(metrics.client == 0, 99, metrics.client)
    accuracy = (metrics.metric == metrics.names.index("client_accuracy")) & (metrics.client == 0)
    value = np.where(accuracy, 0.123, metrics.value)
    for changed, says in (({"client": client}, "a metric's client is not in"), ({"value": value}, "follows")):
        faulty = dataclasses.replace(rows[0], metrics=dataclasses.replace(metrics, **changed))
        refused(rf"run {rows[0].id} cannot be exported: .*{says}", refuse_faulty, [rows[1], faulty])
    refuse_faulty(rows)


def test_packs_are_merged_in_their_order(rows: list[Row], tmp_path: Path) -> None:
    one, two, three, output = (tmp_path / f"{name}.parquet" for name in ("one", "two", "three", "all"))
    write(one, rows[:2])
    write(two, rows[1:])
    assert merge([one, two], output) == (3, 0, 3)
    write(three, rows)
    assert output.read_bytes() == three.read_bytes()
    assert merge([two], output) == (0, 0, 3)
    write(two, [altered(rows[1]), rows[2]])
    written = output.read_bytes()
    refused(rf"1 run of .*two.*other numbers.*{rows[1].id} \(us\).*--prefer new takes these", merge, [one, two], output)
    assert output.read_bytes() == written
    assert merge([two], output, "old") == (0, 1, 3)
    assert output.read_bytes() == written
    assert merge([two], output, "new") == (1, 0, 3)
    pack = Pack(output)
    assert [row.by for row in pack.rows()] == ["others" if row.id == rows[1].id else "us" for row in pack.rows()]
    fresh = tmp_path / "fresh.parquet"
    refused("other numbers", merge, [one, two], fresh)
    assert not fresh.exists()


def test_the_command_that_merges(rows: list[Row], tmp_path: Path) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    write(one, rows[:1])
    write(two, rows[1:])
    said = good("results", "merge", one, two, "-o", tmp_path / "all.parquet")
    assert said.line.startswith("3 runs in ")
    assert bad("results", "merge", one, tmp_path / "none.parquet", "-o", tmp_path / "b.parquet").startswith(
        "fedbench: there is no file"
    )
    assert "does not end so" in bad("results", "merge", one, "-o", tmp_path / "all.csv")
