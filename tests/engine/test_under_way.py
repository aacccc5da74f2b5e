"""A run under way: notes of how far it has come, its work folder, the estimate of its time, and which cluster serves a
client after drift."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench import data, partitions, protocol
from fedbench.core.executors import available_cores
from fedbench.core.trainer import Progress
from fedbench.engine import bill, cost
from fedbench.engine import job as work
from fedbench.engine import run as progress
from fedbench.engine.run import Notes
from fedbench.engine.training import known_association
from fedbench.errors import FedbenchError
from fedbench.files import write_json
from fedbench.methods.base import FORWARD
from fedbench.methods.fedavg import FedAvg
from fedbench.planner.index import Index
from fedbench.resources import TABLES
from fedbench.results.pack import Pack, write
from fedbench.results.shelf import Shelf
from fedbench.store import CHECKPOINT, Store
from fedbench.store.folder import PROGRESS

HOW = {"device": "cpu", "executor": "stacked"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    return now


def note(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / PROGRESS).read_text())
    return value


def test_what_is_noted(tmp_path: Path, clock: list[float]) -> None:
    notes = Notes([tmp_path], HOW)
    clock[0] = 1010.0
    notes.hear(Progress(1, 9, 2.5, 0.25))
    assert note(tmp_path) == {
        "device": "cpu", "executor": "stacked", "accuracy": 0.25, "round": 1, "rounds": 9, "loss": 2.5, "doing": "",
        "time": 1010.0, "round_seconds": 10.0, "gpu": None,
    }  # fmt: skip
    clock[0] = 1014.0
    notes.hear(Progress(3, 9, 1.5, None))
    assert (note(tmp_path)["accuracy"], note(tmp_path)["round_seconds"]) == (0.25, 2.0), "the first round is warm-up"
    rounds = []
    for t in range(4, 101):
        clock[0] += 0.1
        notes.hear(Progress(t, 100, 1.0, None))
        rounds.append(note(tmp_path)["round"])
    assert len(set(rounds)) <= 12, "at most once a second, and the last round"
    assert rounds[-1] == 100
    assert list(tmp_path.iterdir()) == [tmp_path / PROGRESS]


def test_runs_made_together_are_noted_each_where_that_can_be(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    Notes([tmp_path / "gone", *folders], HOW).hear(Progress(0, 9, 0.0, None, "clients describe their data"))
    told = [(note(folder)["doing"], note(folder)["round_seconds"]) for folder in folders]
    assert told == [("clients describe their data", None)] * 2
    assert sorted(tmp_path.iterdir()) == folders


@pytest.fixture
def planted(store: Store) -> Path:
    """A work folder with a checkpoint."""
    folder = store.work("abc")
    folder.mkdir(parents=True)
    (folder / "state-000003.safetensors").write_bytes(b"state")
    write_json(folder / CHECKPOINT, {"round": 3})
    return folder


def test_the_index_of_a_checkpoint_goes_before_what_it_lists(
    store: Store, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        (planted / "state-000003.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(work.shutil, "rmtree", killed)
    job: Any = SimpleNamespace(spec=SimpleNamespace(id="abc"), done=lambda _: "the run")
    with pytest.raises(KeyboardInterrupt):
        work.leave(job, store)
    assert not (planted / CHECKPOINT).exists(), "a restart would take it for a damaged checkpoint"


@pytest.mark.parametrize(("seconds", "kept"), [(-10, True), (10, False)])
def test_clean_takes_the_checkpoint_of_a_run_that_is_complete(
    store: Store, planted: Path, seconds: float, kept: bool
) -> None:
    """One that is younger than the run is of a making anew (`--again`) that was interrupted."""
    manifest = store.path("run", "abc") / "artifact.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    os.utime(manifest, ((planted / CHECKPOINT).stat().st_mtime + seconds,) * 2)
    store.clean()
    assert planted.exists() is kept


def test_a_batch_is_no_larger_than_a_client(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate's probe needs no more memory than a step of the run would."""
    source = data.resolve("digits", store, [])
    rules = protocol.load("feddrm")
    spec = rules.partition_spec(source, 10, scheme="iid", clients=4)
    setting = rules.setting(spec, "smoke")
    probed: list[int] = []
    monkeypatch.setattr(cost, "images_per_second", lambda *a: probed.append(a[3]) or 1.0)
    cost.speed.cache_clear()
    cost.seconds(dataclasses.replace(setting, batch_size=2**32), FedAvg(), store, [], "cpu")
    cost.speed.cache_clear()
    assert probed == [int(max(partitions.build(spec, store).n_train))]


def test_the_cluster_of_most_that_trained_on_the_test_distribution_serves() -> None:
    """Ties: the smallest number; where nobody trained on it, the client's own; where nothing drifts all stay."""
    own = {0: 2, 1: 2, 2: 1, 3: 0, 4: 1}
    assert known_association(own, [0] * 5, [0] * 5) == own
    assert known_association(own, [5, 5, 5, 6, 6], [6, 5, 9, 5, 6]) == {0: 0, 1: 2, 2: 1, 3: 2, 4: 0}


# -- bill ------------------------------------------------------------------------------------------------------


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a core does 50 images of whatever network a second."""
    monkeypatch.setattr(bill.cost, "speed", lambda *_: 50.0 * available_cores())


COLUMN = """
[[column]]
label = "{0}"
dataset = "{0}"
partition = {{ {1} }}
"""


def own_table(path: Path, methods: str, columns: dict[str, str]) -> str:
    rows = ", ".join(f'{{ method = "{name}" }}' for name in methods.split())
    head = f'title = "Mine"\nprotocol = "plain"\nmetric = "average_accuracy"\nstatistic = "final"\nrows = [{rows}]\n'
    path.write_text(head + "".join(COLUMN.format(*column) for column in columns.items()))
    return str(path)


@pytest.mark.usefixtures("even")
def test_a_bill_counts_a_run_once_and_needs_no_images(store: Store, tmp_path: Path) -> None:
    iid, groups = 'scheme = "iid"', 'scheme = "natural", by = "writer", clients = 9'
    both = own_table(tmp_path / "both.toml", "fedavg ditto", {"digits": iid})
    one = own_table(tmp_path / "one.toml", "fedavg", {"digits": iid, "mnist": iid, "femnist": groups})
    lines = bill.bill([both, one], "smoke", Index(store), [])
    total = bill.summed("all", lines)
    assert [(line.runs, line.done, line.known("core")) for line in (*lines, total)] == [(2, 0, 2), (3, 0, 2), (4, 0, 3)]
    needs = {(n.spec.method, n.spec.setting.partition.dataset.name): n for n in total.needs.values()}
    part = partitions.build(needs["fedavg", "digits"].spec.setting.partition, store)
    answers = 2 * part.n_test.sum() * FORWARD  # after each of two rounds
    digits = {"fedavg": 2 * part.n_train.sum() + answers, "ditto": 2 * 2 * part.n_train.sum() + answers}
    assert {name: needs[name, "digits"].core for name in digits} == pytest.approx(
        {k: v / 50 for k, v in digits.items()}
    )
    mnist = 2 * 56_000 + 2 * 14_000 * FORWARD  # 80 % of 70,000 images train
    assert needs["fedavg", "mnist"].core == pytest.approx(mnist / 50)
    assert needs["fedavg", "femnist"].core is None, "no recipe says how many images a writer has"
    assert total.seconds("core", done=False) == pytest.approx((sum(digits.values()) + mnist) / 50)
    assert total.known("gpu") == 0
    (union,) = bill.bill(["pfedfda/7"], "paper", Index(store), [])
    assert union.known("core") == union.runs == 24, "the sizes of DIGIT-5 are those of its parts"


@pytest.mark.usefixtures("even")
def test_a_bill_takes_a_gpus_speed_from_shipped_runs(store: Store, tmp_path: Path) -> None:
    (path,) = (TABLES / "plain" / "results").glob("*.parquet")
    row = next(row for row in Pack(path).rows() if row.spec.method == "fedavg")
    write(tmp_path / "gpu.parquet", [dataclasses.replace(row, seconds=36.0, about={**row.about, "device": "Fast GPU"})])
    (line,) = bill.bill(["plain/digits"], "small", Index(store, Shelf([tmp_path / "gpu.parquet"])), [])
    assert (line.runs, line.done, line.known("gpu")) == (12, 1, 12)
    assert [(rate.device, rate.runs, rate.seconds) for rate in line.rates] == [("Fast GPU", 1, 36.0)]
    assert line.seconds("gpu", done=True) == pytest.approx(36.0)
    (own,) = (one for one in line.needs.values() if one.done)
    assert (own.spec.id, own.core) == (row.id, pytest.approx(own.rate.images / 50))
    assert line.seconds("gpu", done=False) * own.core == pytest.approx(line.seconds("core", done=False) * 36.0)


@pytest.mark.parametrize(
    ("name", "budget", "line"),
    [
        ("flux/2", "paper", "flux/2: counted, so that no run is needed; name another table, or a paper"),
        ("arena/mnist", "full", "arena/mnist: the runs follow from trials, so nobody knows them; name another table"),
        ("plain/digits", "paper", "unknown budget 'paper'; known: small, smoke"),
    ],
)
def test_no_bill(store: Store, name: str, budget: str, line: str) -> None:
    with pytest.raises(FedbenchError) as refused:
        bill.bill([name], budget, Index(store), [])
    assert str(refused.value) == line
