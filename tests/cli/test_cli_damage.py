"""Stores that are damaged, foreign, full, read-only or shared, and runs that were interrupted, failed or taken over."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedbench.core import trainer
from fedbench.engine import keep
from fedbench.store import Store
from fedbench.store.claim import FILE
from tests.support.cli_user import (
    DIGITS,
    SMOKE,
    artifact,
    bad,
    cells,
    complete,
    fedbench,
    good,
    interrupted,
    listening,
    own_method,
    runs,
)

PARTITION = ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
TRAIN = ("train", "--method", "fedavg", *SMOKE)
OTHER = ("train", "--method", "local", *SMOKE, "--steps", "1", "--rounds", "2")
DITTO = ("train", "--method", "ditto", *SMOKE)
REPORT = ("report", "--table", "1", *DIGITS)
COMMANDS = (
    ("list",), ("list", "--json"), REPORT, ("tables", "1"),
    ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3", "-m", "local"),
)  # fmt: skip


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def tamper(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("kind", "file", "damage", "command"),
    [
        ("dataset", "data", tamper, OTHER),
        ("partition", "samples", truncate, OTHER),
        ("partition", "clients", truncate, PARTITION),
        ("run", "predictions", tamper, ("evaluate", "--again")),
        ("run", "rounds", truncate, ("evaluate", "--again")),
        ("metrics", "metrics", tamper, ("evaluate",)),
    ],
)
def test_damaged_files(
    ready: Path, kind: str, file: str, damage: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    path = artifact(ready, kind) / f"{file}.parquet"
    before = complete(ready)
    damage(path)
    line = bad(*command)
    assert f"{path} " in line
    assert ("truncated" if damage is truncate else "altered") in line
    assert f"fedbench remove {artifact(ready, kind).name}" in line
    assert complete(ready) == before
    if damage is tamper:  # what the line advises works
        good("remove", artifact(ready, kind).name, "--yes")
        for again in (PARTITION, TRAIN, command):
            good(*again)


@pytest.mark.parametrize("kind", ["run", "metrics", "partition", "dataset"])
def test_a_damaged_manifest_stops_no_command_that_can_do_without_it(ready: Path, kind: str) -> None:
    path = artifact(ready, kind)
    (path / "artifact.json").write_text("{")
    for command in COMMANDS:
        said = good(*command) if kind in ("run", "metrics") else fedbench(*command)
        assert said.code in (0, 1)
        assert "Traceback" not in said.err
    assert f"{kind} {path.name} is damaged" in good("list").err
    if kind == "run":
        line = bad(*TRAIN)
        assert f"run {path.name} is damaged" in line
        assert f"fedbench remove {path.name}" in line
    assert fedbench("evaluate", "--all").code == (2 if kind in ("run", "metrics") else 0)
    good("remove", path.name, "--yes")
    assert good("list").err == ""


def test_a_report_goes_on_beside_damage(both: Path) -> None:
    """A run that cannot be read is told with the way out; the others are printed."""
    (run,) = (one for one in runs(both) if one.manifest["spec"]["method"] == "fedavg")
    metrics = next(a for a in Store(both).list("metrics") if a.manifest["spec"]["run"]["method"] == "fedavg")
    good("remove", metrics.id, "--yes")
    truncate(run.path / "predictions.parquet")
    said = good(*REPORT, "--format", "json")
    assert cells(said)["Local"]["Dir-0.3"]["state"] == "done"
    (problem,) = json.loads(said.out)[0]["problems"]
    assert f"{run.path / 'predictions.parquet'} is truncated" in problem
    assert f"fedbench remove {run.id}" in problem
    # Whose cell a run without a manifest would fill nobody knows, so every report says that it is there.
    (run.path / "artifact.json").write_text("{")
    said = good(*REPORT, "--format", "json")
    assert cells(said)["FedAvg"]["Dir-0.3"]["state"] == "missing"
    (problem,) = json.loads(said.out)[0]["problems"]
    assert problem.startswith(f"run {run.id} is damaged")
    (run.path / "artifact.json").unlink()
    assert f"run {run.id} is damaged: it has no manifest" in good("list").err


NOTES = ("{", "[]", "\x00", "", '{"run": 3, "spec": 4}', '{"run": {}, "spec": {"setting": 1}}')


@pytest.mark.parametrize("place", ["failed/{}.json", "work/{}/spec.json"])
def test_damaged_notes_of_runs(ready: Path, place: str) -> None:
    """Each of a run that some process has claimed."""
    with contextlib.ExitStack() as claims:
        for number, text in enumerate(NOTES):
            path = ready / place.format(id := f"{number:012x}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            claims.enter_context(Store(ready).claim(id))
        for command in COMMANDS[:4]:
            good(*command)


# -- disks that refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("dataset", PARTITION),
        ("partition", ("partition", "digits", "--iid")),
        ("work", OTHER),
        ("run", OTHER),
        ("metrics", OTHER),
    ],
)
def test_no_space(
    home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: str, command: tuple[str, ...]
) -> None:
    """For any Parquet file of that folder."""
    if folder != "dataset":
        request.getfixturevalue("ready")
    before, begin = set(complete(home)), pq.ParquetWriter

    def refuse(where: Path, *more: Any, **options: Any) -> Any:
        if f"/{folder}/" in str(where):
            Path(where).write_bytes(b"PAR1")  # what had found room
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(where, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", refuse)
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
    before, run = complete(ready), artifact(ready, "run").name

    def refuse(path: object, *more: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        for change in ("mkdir", "rename", "replace"):
            patch.setattr(os, change, refuse)
        iid = ("partition", "digits", "--iid")
        for command in (OTHER, iid, PARTITION, ("evaluate", "--again"), ("remove", run, "--yes")):
            line = bad(*command)
            assert line.startswith(f"fedbench: cannot write in {ready}"), command
            assert "Read-only file system" in line
            assert "choose a writable --home or set FEDBENCH_HOME" in line
            assert complete(ready) == before
        for command in (("list",), ("show", run), REPORT, ("evaluate",)):
            good(*command)
    assert complete(ready) == before


# -- interrupted, failed and removed --------------------------------------------------------------------------


def test_an_interrupted_run_is_told_and_goes_on_as_if_never_stopped(stopped: Path, home: Path) -> None:
    (run,) = json.loads(good("status", "--json").out)
    assert (run["id"], run["state"], run["round"], run["rounds"]) == (stopped.name, "interrupted", 3, 4)
    assert run["goes_on"] == f"fedbench resume {stopped.name}"
    said = good("status").out
    for words in (f"nothing runs in {home}", "round 3 of 4 is saved", f"  {run['goes_on']}\n"):
        assert words in said
    (line,) = (line for line in good("list").out.splitlines() if line.startswith(stopped.name))
    assert "3 of 4  ditto on digits Dir-0.3" in line
    (listed,) = json.loads(good("list", "unfinished", "--json").out)
    assert (listed["kind"], listed["id"], listed["method"]) == ("unfinished", stopped.name, "ditto")
    other = shutil.copytree(home, home.with_name("other"))
    (summary,) = json.loads(good("resume", stopped.name[:6], "--json").out)
    assert summary["run"] == stopped.name
    assert json.loads(good("status", "--json").out) == []
    assert good("list", "unfinished").out == f"nothing in {home} of the kind unfinished\n"
    assert good("resume", "--all").err == "no run was interrupted\n"
    path = home / "run" / stopped.name / "predictions.parquet"
    stayed = path.read_bytes()
    good("remove", stopped.name, "--yes")
    good(*DITTO)
    assert path.read_bytes() == stayed
    assert "goes on after round 3" in good(*DITTO, "--home", other).err
    assert (other / "run" / stopped.name / "predictions.parquet").read_bytes() == stayed
    assert not (other / "work" / stopped.name).exists()


def test_resuming_keeps_what_was_to_be_kept_and_of_ones_own_file_names_no_command(ready: Path, tmp_path: Path) -> None:
    interrupted("train", "--method", "local", "--keep", "model", *SMOKE)
    (summary,) = json.loads(good("resume", "--all", "--json").out)
    assert keep.of(Store(ready).open("run", summary["run"])) == {"model"}
    interrupted("train", "--method", own_method(tmp_path), *SMOKE)
    (run,) = json.loads(good("status", "--json").out)
    assert run["goes_on"] is None
    assert "the command that began it goes on with it" in good("status").out
    assert "a user's file; give the command that began it again" in bad("resume", run["id"])


def test_a_failed_run_says_why(stopped: Path, home: Path) -> None:
    spec = json.loads((stopped / "spec.json").read_text())["run"]
    Store(home).record_failure(stopped.name, "the loss is not a number", "log", spec=spec, overrides={})
    (run,) = json.loads(good("status", "--json").out)
    assert (run["state"], run["reason"]) == ("failed", "the loss is not a number")
    assert "the loss is not a number" in good("status").out
    assert "failed: the loss is not a number" in good("list", "unfinished").out
    good("resume", stopped.name)
    assert not (home / "failed" / f"{stopped.name}.json").exists()


HOLD = """
import sys
from fedbench.store import Store
with Store().claim(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_another_process_holds_is_shown_and_stays(stopped: Path, home: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, stopped.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "FEDBENCH_HOME": str(home)},
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        (run,) = json.loads(good("status", "--json").out)
        assert (run["state"], run["holder"]["pid"], run["goes_on"]) == ("running", other.pid, None)
        said = good("status").out
        assert stopped.name in said
        assert f"process {other.pid} on " in " ".join(said.split())
        for words in ((stopped.name,), (stopped.name, "--yes")):
            assert f"run {stopped.name} is being trained by process {other.pid}" in bad("remove", *words)
        assert good("remove", "--unfinished", "--yes").out.startswith("nothing is unfinished")
        assert "no run" in bad("resume", stopped.name)
    finally:
        other.stdin.close()
        other.wait()
    assert (stopped / "checkpoint.json").exists()


@pytest.mark.parametrize("by", ["id", "all"])
def test_unfinished_work_is_removed(stopped: Path, home: Path, by: str) -> None:
    before = complete(home)
    said = good("remove", stopped.name[:8] if by == "id" else "--unfinished", "--yes")
    assert said.out == f"removed unfinished run {stopped.name}\n"
    assert not stopped.exists()
    assert complete(home) == before


def test_watch_ends_at_ctrl_c(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert stopped.name in good("status", "--watch").out
    assert len(looks) == 3


def test_a_damaged_checkpoint(stopped: Path, home: Path) -> None:
    (path,) = stopped.glob("state-*")
    before = complete(home)
    path.unlink()
    assert bad(*DITTO) == (
        f"fedbench: the checkpoint {path} is missing or damaged (checksum differs); "
        f"delete the folder {stopped} to begin this run again"
    )
    assert complete(home) == before
    shutil.rmtree(stopped)
    assert "goes on" not in good(*DITTO).err


# -- a claim that is lost: a process slept so long that another took its run over -----------------------------


def give_to_another(home: Path) -> Path:
    """The folder of the run under way, which another process holds from here on."""
    (folder,) = home.glob("work/[!.]*")
    claim = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**claim, "token": "another's"}))
    return folder


@pytest.mark.parametrize("stop", [KeyboardInterrupt, None])
def test_its_checkpoint_stays_the_others(ready: Path, monkeypatch: pytest.MonkeyPatch, stop: type | None) -> None:
    """Whether it is interrupted then, or comes to its next checkpoint."""
    if stop is None:
        monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    theirs = {"round": 3, "by": "the new holder"}

    def taken_over(progress: trainer.Progress) -> None:
        if progress.round == 2:
            (give_to_another(ready) / "checkpoint.json").write_text(json.dumps(theirs))
            if stop is not None:
                raise stop

    with listening(taken_over):
        assert bad(*OTHER[:-2]) == "fedbench: another process has taken this run over; let that one finish"
    (folder,) = ready.glob("work/[!.]*")
    assert json.loads((folder / "checkpoint.json").read_text()) == theirs
    assert json.loads((folder / FILE).read_text())["token"] == "another's"
    assert not (ready / "failed").exists()


def test_a_run_finished_after_all_leaves_the_others_folder(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both make the same bytes, so whoever is first has made the run; the other one finds that out by himself."""
    from fedbench.engine import run

    write = run.write

    def taken_over(*arguments: Any) -> Any:
        made = write(*arguments)
        give_to_another(ready)
        return made

    monkeypatch.setattr(run, "write", taken_over)
    good(*OTHER)
    (folder,) = ready.glob("work/[!.]*")
    assert (folder / FILE).exists()
