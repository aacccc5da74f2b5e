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
from fedbench.core.trainer import Progress
from fedbench.engine import cost
from fedbench.engine import job as work
from fedbench.engine import run as progress
from fedbench.engine.run import Notes
from fedbench.engine.training import known_association
from fedbench.files import write_json
from fedbench.methods.fedavg import FedAvg
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
    cost._speed.cache_clear()
    cost.seconds(dataclasses.replace(setting, batch_size=2**32), FedAvg(), store, [], "cpu")
    cost._speed.cache_clear()
    assert probed == [int(max(partitions.build(spec, store).n_train))]


def test_the_cluster_of_most_that_trained_on_the_test_distribution_serves() -> None:
    """Ties: the smallest number; where nobody trained on it, the client's own; where nothing drifts all stay."""
    own = {0: 2, 1: 2, 2: 1, 3: 0, 4: 1}
    assert known_association(own, [0] * 5, [0] * 5) == own
    assert known_association(own, [5, 5, 5, 6, 6], [6, 5, 9, 5, 6]) == {0: 0, 1: 2, 2: 1, 3: 2, 4: 0}
