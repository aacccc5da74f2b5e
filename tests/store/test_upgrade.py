"""A store of schema 1 becomes one of schema 2: same numbers, new ids, killed at any moment or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.files import sealed
from fedbench.metrics.read import load
from fedbench.results.making import predictions
from fedbench.specs import SCHEMA
from fedbench.specs.upgrade import former_id
from fedbench.store import MANIFEST, Artifact, Store
from fedbench.store import upgrade as module
from fedbench.store.upgrade import FORMER, upgrade

FIXTURE = Path(__file__).parents[1] / "fixtures" / "schema1"
#: Ids of the fixture's run, before and after, and of its metrics before.
RUN, METRICS = ("db88390db31d", "331e53001a41"), "0087c38b9ac1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURE, tmp_path / "old")
    return tmp_path / "old"


def files(home: Path) -> dict[str, bytes]:
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def add_run(home: Path, budget: str, **changed: bytes) -> str:
    """Add a copy of the fixture's run under another budget, with other bytes in some of its files."""
    manifest = json.loads((home / "run" / RUN[0] / MANIFEST).read_text())
    manifest["spec"]["setting"]["budget"] = budget
    manifest["id"] = former_id("run", manifest["spec"])
    folder = home / "run" / manifest["id"]
    shutil.copytree(home / "run" / RUN[0], folder)
    for name, content in changed.items():
        (folder / f"{name}.parquet").write_bytes(content)
        manifest["files"][f"{name}.parquet"] = {"bytes": len(content), "sha256": "0" * 64}
    (folder / MANIFEST).write_text(json.dumps(sealed({k: v for k, v in manifest.items() if k != "sha256"})))
    return folder.name


def test_an_older_store_is_refused_in_one_line(home: Path) -> None:
    with pytest.raises(FedbenchError, match=r"older fedbench \(schema 1, now 2\)") as refused:
        Store(home)
    assert "fedbench store upgrade" in refused.value.hint


def test_an_upgraded_store_has_the_same_numbers_under_new_ids(home: Path) -> None:
    before = files(home)
    done = upgrade(home)
    assert done.renamed == dict([RUN])
    assert (done.same, done.aside, done.left) == ({}, {}, [])
    store = Store(home)
    (run,), (metrics,) = store.list("run"), store.list("metrics")
    assert run.id == run.spec.id == RUN[1]
    assert run.provenance["former_id"] == RUN[0]
    assert metrics.manifest["inputs"] == {"run": run.id}
    assert store.current["run"] == run.id
    assert json.loads((home / "store.json").read_text()) == {"schema": SCHEMA}
    after = files(home)
    for former, artifact in ((RUN[0], run), (METRICS, metrics)):
        for name in artifact.manifest["files"]:
            assert after[f"{artifact.kind}/{artifact.id}/{name}"] == before[f"{artifact.kind}/{former}/{name}"]
    assert {name for name in after if "partition/" in name or "dataset/" in name} < before.keys()
    assert load(metrics).series("system_accuracy", "crop") == {2: 1.0}
    assert upgrade(home).renamed == {}, "a second upgrade has nothing to do"
    assert files(home) == after


class Killed(BaseException):
    pass


def _steps(monkeypatch: pytest.MonkeyPatch, last: int) -> Iterator[None]:
    """Let the upgrade die at its step number `last`: each change of the disk is one."""
    count = iter(range(10**6))
    for name in ("write_json", "erase", "_link"):
        real = getattr(module, name)

        def step(*arguments: object, real: object = real) -> object:
            if next(count) == last:
                raise Killed
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(module, name, step)
    yield


@pytest.mark.parametrize("last", range(14))
def test_a_killed_upgrade_goes_on(home: Path, last: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "whole")
    upgrade(tmp_path / "whole")
    with monkeypatch.context() as patched:
        for _ in _steps(patched, last):
            try:
                upgrade(home)
            except Killed:
                assert json.loads((home / "store.json").read_text()) == {"schema": 1}
    upgrade(home)
    assert files(home) == files(tmp_path / "whole")


def test_runs_of_two_budgets_of_one_training_become_one(home: Path) -> None:
    twin = add_run(home, "paper")
    done = upgrade(home)
    assert done.renamed == {RUN[0]: RUN[1], twin: RUN[1]}
    assert [*done.same.values()] == [RUN[1]]
    assert [run.id for run in Store(home).list("run")] == [RUN[1]]


def test_another_result_of_the_same_training_is_set_aside_and_named(home: Path) -> None:
    twin = add_run(home, "paper", predictions=b"other bytes")
    done = upgrade(home)
    (aside,) = done.aside
    assert done.aside == {aside: RUN[1]}
    assert aside in (twin, RUN[0])
    assert (home / FORMER / aside / MANIFEST).exists()


def test_unfinished_and_failed_runs_keep_their_checkpoints_and_reasons(home: Path) -> None:
    spec = json.loads((home / "run" / RUN[0] / MANIFEST).read_text())["spec"]
    shutil.rmtree(home / "run")
    work = home / "work" / RUN[0]
    work.mkdir(parents=True)
    (work / "spec.json").write_text(json.dumps({"run": spec, "overrides": {}}))
    (work / "checkpoint.json").write_text('{"round": 1}')
    (home / "failed").mkdir()
    (home / "failed" / f"{RUN[0]}.json").write_text(json.dumps({"spec": spec, "reason": "diverged", "log": ""}))
    upgrade(home)
    assert json.loads((home / "work" / RUN[1] / "checkpoint.json").read_text()) == {"round": 1}
    assert json.loads((home / "failed" / f"{RUN[1]}.json").read_text())["reason"] == "diverged"
    assert not work.exists()


def test_a_damaged_run_stays_and_is_named(home: Path) -> None:
    path = home / "run" / RUN[0] / MANIFEST
    path.write_text(path.read_text().replace("small", "paper"))
    assert upgrade(home).left == [f"run {RUN[0]}"]
    assert path.exists()


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match="there is no store"):
        upgrade(tmp_path)


def test_checksums_of_predictions_stay(home: Path) -> None:
    before = Artifact(home / "run" / RUN[0], json.loads((home / "run" / RUN[0] / MANIFEST).read_text()), None)  # type: ignore[arg-type]
    checksum = predictions(before)
    upgrade(home)
    (run,) = Store(home).list("run")
    assert predictions(run) == checksum
