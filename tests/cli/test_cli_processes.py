"""Real processes: interrupted, terminated, killed, several at once on one store, by `--jobs` or a job array."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedbench as package
from tests.support.cli_user import DIGITS, SMOKE, artifact, complete, fedbench, good, own_method, runs, slow_method
from tests.support.waiting import rounds_saved, rounds_under_way, until

PARTITION = ("partition", "digits", "--dir", "0.3", "--clients", "4")
#: Evaluated after rounds 10, 20, ... and the last six; long enough to be caught in the middle.
#: With a named executor: two stores could each measure another one to be the fastest.
TRAIN = (
    "train", "--method", "fedavg", "--rounds", "40", "--steps", "3", "--batch-size", "16", "--executor", "cores",
)  # fmt: skip
#: The command line as it is, but for a checkpoint after every round.
PROGRAM = """
from fedbench.core import trainer
trainer.CHECKPOINT_SECONDS, trainer.CHECKPOINT_SHARE = 0.0, 1e9
from fedbench.__main__ import main
main()
"""
#: The command line as it is, but with time to stop it in: rest after each round from the tenth on.
SLOWLY = """
import time
from fedbench.core.trainer import Trainer
commit = Trainer.commit
def rest(self, round):
    commit(self, round)
    time.sleep(0.2 if self.server.round >= 10 else 0)
Trainer.commit = rest
from fedbench.__main__ import main
main()
"""
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(home: Path) -> Iterator[Begin]:
    """Starts TRAIN in a process of its own, and sees to it that none is left."""
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    children: list[subprocess.Popen[str]] = []

    def begin(*python: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, *python, *TRAIN], stderr=subprocess.PIPE, text=True)
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()


def wait_for(child: subprocess.Popen[str], home: Path, pattern: str) -> Path:
    """The first file of the run under way that matches."""
    return until(lambda: sorted(home.glob(f"work/[!.]*/{pattern}")), child, seconds=60)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of TRAIN's run if nobody interrupts it (without the times)."""
    folder = tmp_path_factory.mktemp("whole")
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--home", folder)
    good(*TRAIN, "--home", folder)
    return answers(folder)


def answers(home: Path) -> dict[str, bytes]:
    run = artifact(home, "run")
    return {name: (run / name).read_bytes() for name in ("predictions.parquet", "clients.parquet")}


def predictions(home: Path) -> dict[str, bytes]:
    """Run's id -> the bytes of its predictions."""
    return {run.id: run.file("predictions.parquet").read_bytes() for run in runs(home)}


@pytest.mark.slow
def test_interrupted_and_gone_on(start: Begin, home: Path, whole: dict[str, bytes]) -> None:
    child = start("-c", SLOWLY)
    wait_for(child, home, "predictions-000010.parquet")
    before = complete(home)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130
    line = said.splitlines()[-1]
    saved = int(line.split()[2])
    assert 9 <= saved < 40
    assert line == f"stopped; round {saved} of 40 is saved. The same command goes on from there."
    assert "Traceback" not in said
    assert complete(home) == before
    assert f"goes on after round {saved}" in good(*TRAIN).err
    assert answers(home) == whole
    assert list(home.glob("work/[!.]*")) == []


@pytest.mark.slow
def test_killed_and_gone_on(start: Begin, home: Path, whole: dict[str, bytes]) -> None:
    child = start("-c", PROGRAM)
    wait_for(child, home, "checkpoint.json")
    time.sleep(random.uniform(0, 0.2))
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert [path for path in complete(home) if path.startswith("run/")] == []
    assert "goes on after round " in good(*TRAIN).err
    assert answers(home) == whole


@pytest.mark.slow
def test_two_processes_make_one_run(start: Begin, home: Path, whole: dict[str, bytes]) -> None:
    child = start("-m", "fedbench")
    run = wait_for(child, home, "predictions-000010.parquet").parent.name
    child.send_signal(signal.SIGSTOP)  # however busy the machine is, it is not done before we come
    said = fedbench(*TRAIN)
    child.send_signal(signal.SIGCONT)
    assert (said.code, said.out) == (2, "")
    assert said.line.startswith(f"fedbench: run {run} is being trained by process {child.pid} on ")
    assert said.line.endswith("; wait for it, or stop it first")
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert answers(home) == whole
    assert f"run {run} is already there" in good(*TRAIN).err


@pytest.mark.usefixtures("brief")
def test_stopped_before_the_first_and_after_the_last_round(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is nothing to go on with; and nothing is lost where the run is in its place."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ("train", "--method", "fedavg", *SMOKE, "--seed", "1", "--executor", "sequential")
    for place, line in (
        ("core.worker.Worker.train", "stopped before the end of the first round; nothing was saved."),
        ("engine.work.leave", "stopped; what was to be trained is complete."),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedbench.{place}", interrupt)
            said = fedbench(*command)
        assert (said.code, said.line) == (130, line)
        assert not (ready / "failed").exists(), "an interrupt is no failure"
    assert "is already there" in good(*command).err


# -- several processes on one store: they share the runs of a table out, and neither fails for the other's sake


def at_once(*commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of commands that run at the same time."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "fedbench", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    return [(child.wait(), *said) for child in children for said in [child.communicate(timeout=300)]]


@pytest.mark.slow
def test_several_processes_evaluate_and_remove_at_once(ready: Path) -> None:
    for code, _, err in at_once(*[("evaluate", "--all", "--again")] * 3):
        assert code == 0, err
    assert "there already" in good("evaluate").err
    id = artifact(ready, "run").name
    told = at_once(*[("remove", id, "--yes")] * 3, ("list",), ("list",))
    assert sorted(code for code, _, _ in told[:3]) == [0, 2, 2]
    assert all(err.count("\n") == 1 and err.startswith("fedbench: no ") for code, _, err in told[:3] if code)
    assert [code for code, _, _ in told[3:]] == [0, 0]


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def script() -> str:
    """The sbatch file of fedbench/engine/README.md."""
    page = Path(package.__file__).parent / "engine" / "README.md"
    (text,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page.read_text(), re.DOTALL)
    return str(text)


@pytest.mark.slow
def test_the_tasks_of_a_job_array_share_a_table_out(tmp_path: Path, script: str) -> None:
    (tmp_path / "table.sbatch").write_text(script)
    program(tmp_path / "bin", "srun", 'exec "$@"')
    program(tmp_path / "bin", "fedbench", f'exec {sys.executable} -m fedbench "$@"')
    store = tmp_path / "store"
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--home", store)
    table = ("--table", "1", *DIGITS, "--column", "digits/Dir-0.3", "-m", "fedavg", "-m", "local", "-m", "fedavgft")
    usual = {name: value for name, value in os.environ.items() if name != "FEDBENCH_HOME"}
    tasks = [
        subprocess.Popen(
            ["bash", tmp_path / "table.sbatch", *table, "--json"],
            env={
                **usual, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(k),
                "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": str(70 + k),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for k in range(2)
    ]  # fmt: skip
    said = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert all('"failed": []' in out for out, _ in said)
    made = [id for out, _ in said for id in re.findall(r'"([0-9a-f]{12})"', out.partition('"failed"')[0])]
    assert len(made) == len({*made}) == 3, "each run by one task"
    assert {*made} == {run.id for run in runs(store)}


def test_a_task_that_fails_says_so_by_its_code(tmp_path: Path, script: str) -> None:
    program(tmp_path / "bin", "srun", 'exec "$@"')
    program(tmp_path / "bin", "scontrol", f'echo "$@" >> {tmp_path / "requeued"}')
    for code in (0, 1, 2, 130):
        program(tmp_path / "bin", "fedbench", f"exit {code}")
        usual = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script, "table.sbatch", "--table", "1"], env={**usual, "SLURM_JOB_ID": "7"}
        )
        assert done.returncode == code
    assert (tmp_path / "requeued").read_text() == "requeue 7\n", "only where it was stopped"


# -- `--jobs N`: several runs at a time, each in a process of its own, on one store ---------------------------

JOBS = ("train", *SMOKE, "--executor", "cores", "--every", "1", "--rounds", "2")


@pytest.mark.slow
def test_the_same_bytes_as_one_after_another(home: Path, tmp_path: Path) -> None:
    here, log = tmp_path / "here", tmp_path / "log.jsonl"
    methods = ("-m", "fedavg", "-m", "local", "-m", "ditto")
    for store in (home, here):
        good(*PARTITION, "--home", store)
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
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--executor", "cores", "--seeds", "0-1", "--jobs", "2")
    said = fedbench(*sweep, "-m", "fedavg", "-m", deadly, "--half", "0.25")
    assert said.code == 1
    assert "2 of 4 runs made" in said.err
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert all("was ended by signal 9; if memory ran out, take fewer --jobs" in line for line in failed)
    assert len(list((home / "failed").iterdir())) == 2
    mended = own_method(tmp_path)
    assert "2 of 2 runs made" in good(*sweep, "-m", mended, "--half", "0.25").err
    assert len(predictions(home)) == 4


@pytest.mark.slow
def test_a_mistake_in_a_users_file_is_told_by_its_line(home: Path, tmp_path: Path) -> None:
    good(*PARTITION)
    said = fedbench(*JOBS, "-m", own_method(tmp_path, "yield 1 / 0"), "--jobs", "2")
    assert said.code == 2
    assert said.line.startswith("fedbench: ")
    assert "mine.py, line 21, in local: ZeroDivisionError: division by zero" in said.line
    (failed,) = (home / "failed").iterdir()
    assert "yield 1 / 0" in json.loads(failed.read_text())["log"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_gone_on(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Whatever ends the driver: its workers save their last rounds, end, and the same command goes on from there."""
    own, slow = slow_method(tmp_path)
    sweep = ("sweep", "digits", *SMOKE, "--clients", "4", "--rounds", "12", "-m", own, "--half", "0.25,0.5")
    command = [sys.executable, "-m", "fedbench", *sweep, "--executor", "cores", "--jobs", "2"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: sum(round >= 2 for round in rounds_under_way(home)) == 2, child, seconds=120)
    child.send_signal(number)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert said.splitlines()[-1] == "stopped. The same command goes on from the rounds that are saved."
        assert "Traceback" not in said
    until(lambda: not list(home.glob("work/*/claim.json")), seconds=120)
    saved = rounds_saved(home)
    assert len(saved) == 2
    assert min(saved) >= 2
    slow.unlink()
    assert "2 of 2 runs made" in good(*command[3:]).err
    assert [run.table("rounds").num_rows for run in runs(home)] == [12, 12]


def test_without_ray_one_line_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("on_ray", "cluster"):
        monkeypatch.delitem(sys.modules, f"fedbench.engine.engines.{name}", raising=False)
    said = fedbench(*JOBS, "digits", "-m", "local", "--engine", "ray")
    assert said.code == 2
    assert "--engine ray needs Ray, which is not installed" in said.line
    assert said.line.endswith("pip install 'fedbench-fl[ray]'")
