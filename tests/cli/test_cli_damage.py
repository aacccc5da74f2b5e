"""Stores that are damaged, full, read-only or shared; runs that were interrupted, killed or taken over; `--jobs`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fedbench as package
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
    predictions,
    runs,
    slow_method,
)
from tests.support.waiting import rounds_saved, rounds_under_way, until

PARTITION = ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
TRAIN = ("train", "--method", "fedavg", *SMOKE)
OTHER = ("train", "--method", "local", *SMOKE, "--steps", "1", "--rounds", "2")
DITTO = ("train", "--method", "ditto", *SMOKE)
REPORT = ("report", "--table", "1", *DIGITS)
COMMANDS = (
    ("list",),
    ("list", "--json"),
    REPORT,
    ("tables", "1"),
    ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3", "-m", "local"),
)


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
        ("run", "predictions", tamper, ("evaluate", "--again")),
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


def test_every_report_tells_of_a_run_without_a_manifest(both: Path) -> None:
    """Whose cell it would fill nobody knows."""
    (run,) = (one for one in runs(both) if one.manifest["spec"]["method"] == "fedavg")
    (run.path / "artifact.json").write_text("{")
    said = good(*REPORT, "--format", "json")
    assert [cells(said)[row]["Dir-0.3"]["state"] for row in ("FedAvg", "Local")] == ["missing", "done"]
    (problem,) = json.loads(said.out)[0]["problems"]
    assert problem.startswith(f"run {run.id} is damaged")
    (run.path / "artifact.json").unlink()
    assert f"run {run.id} is damaged: it has no manifest" in good("list").err


NOTES = ("{", "[]", "\x00", "", '{"run": 3, "spec": 4}', '{"run": {}, "spec": {"setting": 1}}')


@pytest.mark.parametrize("place", ["failed/{}.json", "work/{}/spec.json"])
def test_damaged_notes_of_runs(ready: Path, place: str) -> None:
    with contextlib.ExitStack() as claims:
        for number, text in enumerate(NOTES):
            path = ready / place.format(id := f"{number:012x}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            claims.enter_context(Store(ready).claim(id))
        for command in COMMANDS[:4]:
            good(*command)


@pytest.mark.parametrize("folder", ["work", "run", "metrics"])
def test_no_space(ready: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    before, begin = set(complete(ready)), pq.ParquetWriter

    def refuse(where: Path, *more: Any, **options: Any) -> Any:
        if f"/{folder}/" in str(where):
            Path(where).write_bytes(b"PAR1")  # what had found room
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(where, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", refuse)
        line = bad(*OTHER)
    assert line.startswith("fedbench: no space left while ")
    assert "free some space or choose another --home" in line
    after = complete(ready)
    new = after.keys() - before
    assert all(path.split("/")[0] != folder and "/." not in path for path in new), "nothing half-written"
    assert all("artifact.json" in after[path] for path in new)
    good(*OTHER)


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


def test_an_interrupted_run_is_told_and_goes_on_as_if_never_stopped(stopped: Path, home: Path) -> None:
    (run,) = json.loads(good("status", "--json").out)
    assert (run["id"], run["state"], run["round"], run["rounds"]) == (stopped.name, "interrupted", 3, 4)
    assert run["goes_on"] == f"fedbench status --resume {stopped.name}"
    said = good("status").out
    for words in (f"nothing runs in {home}", "round 3 of 4 is saved", f"  {run['goes_on']}\n"):
        assert words in said
    (line,) = (line for line in good("list").out.splitlines() if line.startswith(stopped.name))
    assert "3 of 4  ditto on digits Dir-0.3" in line
    (listed,) = json.loads(good("list", "unfinished", "--json").out)
    assert (listed["kind"], listed["id"], listed["method"]) == ("unfinished", stopped.name, "ditto")
    other = shutil.copytree(home, home.with_name("other"))
    (summary,) = json.loads(good("status", "--resume", stopped.name[:6], "--json").out)
    assert summary["run"] == stopped.name
    assert json.loads(good("status", "--json").out) == []
    assert good("list", "unfinished").out == f"nothing in {home} of the kind unfinished\n"
    assert good("status", "--resume", "all").err == "no run was interrupted\n"
    path = home / "run" / stopped.name / "predictions.parquet"
    stayed = path.read_bytes()
    good("remove", stopped.name, "--yes")
    good(*DITTO)
    assert path.read_bytes() == stayed
    assert "continues after round 3" in good(*DITTO, "--home", other).err
    assert (other / "run" / stopped.name / "predictions.parquet").read_bytes() == stayed
    assert not (other / "work" / stopped.name).exists()


def test_resuming_keeps_what_was_to_be_kept_and_of_ones_own_file_names_no_command(ready: Path, tmp_path: Path) -> None:
    interrupted("train", "--method", "local", "--keep", "model", *SMOKE)
    (summary,) = json.loads(good("status", "--resume", "all", "--json").out)
    assert keep.of(Store(ready).open("run", summary["run"])) == {"model"}
    interrupted("train", "--method", own_method(tmp_path), *SMOKE)
    (run,) = json.loads(good("status", "--json").out)
    assert run["goes_on"] is None
    assert "the command that started it resumes it" in good("status").out
    assert "a user's file; continue it with the command that started it" in bad("status", "--resume", run["id"])


def test_what_somebody_holds_is_shown_and_stays(stopped: Path, home: Path) -> None:
    with Store(home).claim(stopped.name):
        (run,) = json.loads(good("status", "--json").out)
        assert (run["state"], run["holder"]["pid"], run["goes_on"]) == ("running", os.getpid(), None)
        said = good("status").out
        assert stopped.name in said
        assert f"process {os.getpid()} on " in " ".join(said.split())
        for words in ((stopped.name,), (stopped.name, "--yes")):
            assert f"run {stopped.name} is being trained by process {os.getpid()}" in bad("remove", *words)
        assert good("remove", "--unfinished", "--yes").out.startswith("nothing is unfinished")
        assert "no run" in bad("status", "--resume", stopped.name)
        line = bad(*DITTO)
        assert line.startswith(f"fedbench: run {stopped.name} is being trained by process {os.getpid()} on ")
        assert line.endswith("; wait for it, or stop it first")
    assert (stopped / "checkpoint.json").exists()


@pytest.mark.parametrize("by", ["id", "all"])
def test_unfinished_work_is_removed(stopped: Path, home: Path, by: str) -> None:
    before = complete(home)
    said = good("remove", stopped.name[:8] if by == "id" else "--unfinished", "--yes")
    assert said.out == f"removed unfinished run {stopped.name}\n"
    assert not stopped.exists()
    assert complete(home) == before


def test_watch_ends_and_a_failed_run_says_why(stopped: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert stopped.name in good("status", "--watch").out
    assert len(looks) == 3
    spec = json.loads((stopped / "spec.json").read_text())["run"]
    Store(home).record_failure(stopped.name, "the loss is not a number", "log", spec=spec, overrides={})
    (run,) = json.loads(good("status", "--json").out)
    assert (run["state"], run["reason"]) == ("failed", "the loss is not a number")
    assert "the loss is not a number" in good("status").out
    assert "failed: the loss is not a number" in good("list", "unfinished").out
    good("status", "--resume", stopped.name)
    assert not (home / "failed" / f"{stopped.name}.json").exists()


def give_to_another(home: Path) -> Path:
    """The folder of the run under way, which another process holds from here on."""
    (folder,) = home.glob("work/[!.]*")
    claim = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**claim, "token": "another's"}))
    return folder


@pytest.mark.parametrize("stop", [KeyboardInterrupt, None])
def test_its_checkpoint_stays_the_others(ready: Path, monkeypatch: pytest.MonkeyPatch, stop: type | None) -> None:
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


FOUR_CLIENTS = ("partition", "digits", "--dir", "0.3", "--clients", "4")


@pytest.mark.usefixtures("brief")
def test_stopped_before_the_first_and_after_the_last_round(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is nothing to go on with; and nothing is lost where the run is in its place."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ("train", "--method", "fedavg", *SMOKE, "--seed", "1", "--executor", "sequential")
    for place, line in (
        ("core.worker.Worker.train", "stopped before the end of the first round; nothing was saved."),
        ("engine.job.leave", "stopped; what was to be trained is complete."),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedbench.{place}", interrupt)
            said = fedbench(*command)
        assert (said.code, said.line) == (130, line)
        assert not (ready / "failed").exists(), "an interrupt is no failure"
    assert "is already there" in good(*command).err


@pytest.mark.slow
def test_several_processes_evaluate_and_remove_at_once(ready: Path) -> None:
    def at_once(*commands: str) -> list[tuple[int, str]]:
        words, pipe = [sys.executable, "-m", "fedbench"], subprocess.PIPE
        children = [subprocess.Popen([*words, *one.split()], stdout=pipe, stderr=pipe, text=True) for one in commands]
        said = [child.communicate(timeout=300)[1] for child in children]
        return [(child.returncode, err) for child, err in zip(children, said, strict=True)]

    for code, err in at_once(*["evaluate --all --again"] * 3):
        assert code == 0, err
    assert "there already" in good("evaluate").err
    ended = at_once(*[f"remove {artifact(ready, 'run').name} --yes"] * 3, "list", "list")
    assert sorted(code for code, _ in ended[:3]) == [0, 2, 2]
    assert all(err.count("\n") == 1 and err.startswith("fedbench: no ") for code, err in ended[:3] if code)
    assert [code for code, _ in ended[3:]] == [0, 0]


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_task_of_a_job_array_trains_and_says_by_its_code_that_it_failed(tmp_path: Path) -> None:
    """The sbatch file of fedbench/engine/README.md, with programs that only note what they are called with."""
    page = (Path(package.__file__).parent / "engine" / "README.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page, re.DOTALL)
    notes = tmp_path / "notes"
    program(tmp_path / "bin", "srun", 'exec "$@"')
    program(tmp_path / "bin", "scontrol", f'echo "$@" >> {notes}')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4", "SLURM_SUBMIT_DIR": str(tmp_path)}
    usual = {name: value for name, value in os.environ.items() if name != "FEDBENCH_HOME"}
    for code in (0, 1, 2, 130):
        program(tmp_path / "bin", "fedbench", f'echo "$@" $FEDBENCH_HOME $FEDBENCH_CORES >> {notes}; exit {code}')
        done = subprocess.run(
            ["bash", "-c", script, "table.sbatch", "--table", "1"],
            env={**usual, **slurm, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
        )
        assert done.returncode == code
    called = [f"train --table 1 {tmp_path}/store 4"] * 4
    assert notes.read_text().splitlines() == [*called, "requeue 7"], "only where it was stopped"


JOBS = ("train", *SMOKE, "--executor", "cores", "--every", "1", "--rounds", "2")


@pytest.mark.slow
def test_the_same_bytes_as_one_after_another(home: Path, tmp_path: Path) -> None:
    here, log = tmp_path / "here", tmp_path / "log.jsonl"
    methods = ("-m", "fedavg", "-m", "local", "-m", "ditto")
    for store in (home, here):
        good(*FOUR_CLIENTS, "--home", store)
    said = good(*JOBS, *methods, "--jobs", "2", "--log", log, "--json")
    good(*JOBS, *methods, "--home", here)
    assert predictions(home) == predictions(here)
    assert len(predictions(home)) == 3
    assert [one["method"] for one in json.loads(said.out)] == ["fedavg", "local", "ditto"], "in the order asked for"
    assert len({run.provenance["process"] for run in runs(home)}) == 2
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for run in runs(home):  # each training by itself is told in order
        own = [event for event in events if event["runs"] == [run.id]]
        assert [event["event"] for event in own] == ["start", *["round"] * (len(own) - 2), "end"]
        assert [event["loss"] for event in own[1:-1]] == run.table("rounds").column("loss").to_pylist()
        assert own[-1]["complete"]
    assert not list(home.glob("work/[!.]*"))


@pytest.mark.slow
def test_a_sweep_goes_on_where_a_worker_dies_or_fails(home: Path, tmp_path: Path) -> None:
    deadly = own_method(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL); yield")
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--executor", "cores", "--half", "0.25")
    said = fedbench(*sweep, "-m", deadly, "-m", "fedavg", "-m", "local", "--jobs", "2")
    assert said.code == 1
    assert "2 of 3 runs made" in said.err
    (failed,) = (line for line in said.err.splitlines() if line.startswith("failed: "))
    assert "was ended by signal 9; if memory ran out, take fewer --jobs" in failed
    assert len(list((home / "failed").iterdir())) == 1
    mended = own_method(tmp_path)
    assert "1 of 1 runs made" in good(*sweep, "-m", mended).err
    assert len(predictions(home)) == 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("timeout") is None, reason="the command `timeout` of GNU coreutils is not here")
def test_a_table_whose_time_is_over_is_saved_and_goes_on(home: Path, tmp_path: Path) -> None:
    """`timeout 12m fedbench train --table 1`: its alarm comes when the test says so."""
    own, slow = slow_method(tmp_path)
    table = ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3", "-m", own)
    command = ["timeout", "10m", sys.executable, "-m", "fedbench", *table]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: sum(rounds_under_way(home)) >= 2, child, seconds=120)
    child.send_signal(signal.SIGALRM)
    said = child.communicate(timeout=120)[1]
    (saved,) = rounds_saved(home)
    assert saved >= 2
    assert said.splitlines()[-1] == f"stopped; round {saved} of 4 is saved. The same command continues from there."
    assert child.returncode == 124
    slow.unlink()
    assert good(*table).line == "1 of 1 runs made"


@pytest.mark.slow
def test_stopped_and_gone_on(home: Path, tmp_path: Path) -> None:
    """Whatever ends the driver: its workers save their last rounds, end, and the same command goes on from there, as
    does one without workers."""
    own, slow = slow_method(tmp_path)
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--rounds", "12", "-m", own, "--half", "0.25,0.5")
    command = [sys.executable, "-m", "fedbench", *sweep, "--executor", "cores", "--jobs", "2"]
    for number, least in ((signal.SIGKILL, 2), (signal.SIGTERM, 5)):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda least=least: sum(round >= least for round in rounds_under_way(home)) == 2, child, seconds=120)
        child.send_signal(number)
        said = child.communicate(timeout=120)[1]
        assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
        if number != signal.SIGKILL:
            assert said.splitlines()[-1] == "stopped. The same command continues from the saved rounds."
            assert "Traceback" not in said
        until(lambda: not list(home.glob("work/*/claim.json")), seconds=120)
        saved = rounds_saved(home)
        assert len(saved) == 2
        assert min(saved) >= least
    slow.unlink()
    assert "2 of 2 runs made" in good(*sweep, "--executor", "cores").err
    assert [run.table("rounds").num_rows for run in runs(home)] == [12, 12]


def test_without_ray_one_line_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("on_ray", "cluster"):
        monkeypatch.delitem(sys.modules, f"fedbench.engine.engines.{name}", raising=False)
    said = fedbench(*JOBS, "digits", "-m", "local", "--engine", "ray")
    assert said.code == 2
    assert "--engine ray needs Ray, which is not installed" in said.line
    assert said.line.endswith("pip install 'fedbench-fl[ray]'")
