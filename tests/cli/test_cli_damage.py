"""Damaged, foreign, full and read-only stores."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedbench.core import trainer
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, cells, complete, fedbench, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)
OTHER = ("train", "--method", "local", *SMOKE, "--steps", "1")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def tamper(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("damage", "word"), [(truncate, "truncated"), (tamper, "altered")])
@pytest.mark.parametrize(
    ("kind", "file", "command"),
    [
        ("dataset", "data", OTHER),
        ("partition", "samples", OTHER),
        ("partition", "clients", ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")),
        ("run", "predictions", ("evaluate", "--again")),
        ("run", "clients", ("evaluate", "--again")),
        ("run", "rounds", ("evaluate", "--again")),
        ("metrics", "metrics", ("evaluate",)),
    ],
)
def test_damaged_files(
    ready: Path, damage: Callable[[Path], None], word: str, kind: str, file: str, command: tuple[str, ...]
) -> None:
    path = artifact(ready, kind) / f"{file}.parquet"
    before = complete(ready)
    damage(path)
    said = fedbench(*command)
    assert (said.code, said.out) == (2, "")
    assert f"{path} " in said.line
    assert word in said.line
    assert f"fedbench remove {artifact(ready, kind).name}" in said.line
    assert complete(ready) == before
    if damage is tamper:
        return
    # What the line advises works.
    good("remove", artifact(ready, kind).name, "--yes")
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    good(*TRAIN)
    good(*command)


def test_a_damaged_manifest(ready: Path) -> None:
    run = artifact(ready, "run")
    (run / "artifact.json").write_text("{")
    said = fedbench(*TRAIN)
    assert said.code == 2
    assert f"run {run.name} is damaged" in said.line
    assert f"fedbench remove {run.name}" in said.line


def test_a_report_goes_on_beside_damage(ready: Path) -> None:
    """A run that cannot be read is told with the way out; the others are printed."""
    good("train", "--method", "local", *SMOKE)
    (path,) = [a.path for a in Store(ready).list("run") if a.manifest["spec"]["method"] == "fedavg"]
    metrics = next(a for a in Store(ready).list("metrics") if a.manifest["spec"]["run"]["method"] == "fedavg")
    good("remove", metrics.id, "--yes")
    truncate(path / "predictions.parquet")
    said = good("report", "--table", "1", "--format", "json", *DIGITS)
    assert cells(said)["Local"]["Dir-0.3"]["state"] == "done"
    (problem,) = json.loads(said.out)[0]["problems"]
    assert f"{path / 'predictions.parquet'} is truncated" in problem
    assert f"fedbench remove {path.name}" in problem


@pytest.mark.parametrize("command", [("list",), TRAIN, ("report", "--table", "1"), ("partition", "digits", "--iid")])
def test_a_store_by_a_newer_fedbench(ready: Path, command: tuple[str, ...]) -> None:
    before = complete(ready)
    (ready / "store.json").write_text(json.dumps({"schema": 99}))
    said = fedbench(*command)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "was written by a newer fedbench (schema 99" in said.err
    assert complete(ready) == before


def test_an_artifact_by_a_newer_fedbench(ready: Path) -> None:
    path = artifact(ready, "partition") / "artifact.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    said = fedbench(*OTHER)
    assert (said.code, "was written by a newer fedbench; upgrade" in said.line) == (2, True)


# -- a checkpoint ---------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(ready: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The work folder of `local`, interrupted after round 3 of 4 with a checkpoint."""

    def stop(progress: trainer.Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedbench.observers.bars._lines", lambda *_: stop)
        said = fedbench(*OTHER)
    assert said.code == 130
    assert said.line == "stopped; round 3 of 4 is saved. The same command goes on from there."
    (folder,) = ready.glob("work/[!.]*")
    return folder


def test_goes_on_from_a_checkpoint(stopped: Path, ready: Path) -> None:
    assert "goes on after round 3" in good(*OTHER).err
    assert not stopped.exists()


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [("state-*", truncate), ("state-*", tamper), ("predictions-*", tamper), ("state-*", Path.unlink)],
)
def test_a_damaged_checkpoint(stopped: Path, ready: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    (path,) = stopped.glob(pattern)
    before = complete(ready)
    damage(path)
    said = fedbench(*OTHER)
    assert (said.code, said.out) == (2, "")
    assert said.line == (
        f"fedbench: the checkpoint {path} is missing or damaged (checksum differs); "
        f"delete the folder {stopped} to begin this run again"
    )
    assert complete(ready) == before
    if damage is Path.unlink:
        shutil.rmtree(stopped)
        assert "goes on" not in good(*OTHER).err


def test_a_damaged_index_of_a_checkpoint(stopped: Path, ready: Path) -> None:
    (stopped / "checkpoint.json").write_text("[]")
    said = fedbench(*OTHER)
    assert (said.code, "checkpoint.json is damaged" in said.line) == (2, True)


# -- disks that refuse ----------------------------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """No space for any Parquet file whose path holds `folder`."""
    begin = pq.ParquetWriter

    def refuse(where: Path, *more: Any, **options: Any) -> Any:
        if f"/{folder}/" in str(where):
            Path(where).write_bytes(b"PAR1")  # what had found room
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(where, *more, **options)

    monkeypatch.setattr(pq, "ParquetWriter", refuse)


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("dataset", ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")),
        ("partition", ("partition", "digits", "--iid")),
        ("work", OTHER),
        ("run", OTHER),
        ("metrics", OTHER),
    ],
)
def test_no_space(
    home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: str, command: tuple[str, ...]
) -> None:
    if folder != "dataset":
        request.getfixturevalue("ready")
    before = set(complete(home))
    with monkeypatch.context() as patch:
        full(patch, folder)
        said = fedbench(*command)
    assert (said.code, said.out) == (2, "")
    assert said.line.startswith("fedbench: no space left while ")
    assert "free some space or choose another --home" in said.line
    new = set(complete(home)) - before
    assert all(path.split("/")[0] != folder and "/." not in path for path in new), "nothing half-written"
    for path in new:
        assert "artifact.json" in complete(home)[path]
    good(*command)


def test_a_read_only_store(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = complete(ready)
    opened, made, renamed = io.open, os.mkdir, os.rename

    def refuse(path: object) -> None:
        if str(path).startswith(str(ready)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    def opens(file: object, mode: str = "r", *more: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            refuse(file)
        return opened(file, mode, *more, **options)  # type: ignore[call-overload]

    def makes(path: Any, *more: Any, **options: Any) -> None:
        refuse(path)
        made(path, *more, **options)

    def renames(path: Any, *more: Any, **options: Any) -> None:
        refuse(path)
        renamed(path, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", opens)
        patch.setattr(os, "mkdir", makes)
        patch.setattr(os, "rename", renames)
        for command in (
            OTHER, ("partition", "digits", "--iid"), ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm"),
            ("evaluate", "--again"),
            ("remove", artifact(ready, "run").name, "--yes"),
        ):  # fmt: skip
            said = fedbench(*command)
            assert said.code == 2, command
            assert said.line.startswith(f"fedbench: cannot write in {ready}"), command
            assert "Read-only file system" in said.line
            assert "choose a writable --home or set FEDBENCH_HOME" in said.line
            assert complete(ready) == before
        for command in (
            ("list",),
            ("show", artifact(ready, "run").name),
            ("report", "--table", "1", *DIGITS),
            ("evaluate",),
        ):
            good(*command)
    assert complete(ready) == before
