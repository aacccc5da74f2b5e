"""Real processes: interrupted, terminated, killed, two at once; and what a report does not load."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbench.metrics.read import metrics_of, series
from fedbench.store import Store
from tests.support.cli_user import SMOKE, artifact, complete, fedbench, good
from tests.support.waiting import until

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


@pytest.fixture
def start(home: Path) -> Iterator[object]:
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_gone_on(start, home: Path, whole: dict[str, bytes], number: signal.Signals) -> None:  # type: ignore[no-untyped-def]
    child = start("-c", SLOWLY)
    wait_for(child, home, "predictions-000010.parquet")
    before = complete(home)
    child.send_signal(number)
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
def test_killed_and_gone_on(start, home: Path, whole: dict[str, bytes]) -> None:  # type: ignore[no-untyped-def]
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
def test_two_processes_make_one_run(start, home: Path, whole: dict[str, bytes]) -> None:  # type: ignore[no-untyped-def]
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


def test_stopped_before_the_first_round(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbench.core.worker.Worker.train", interrupt)
    said = fedbench("train", "--method", "fedavg", *SMOKE, "--seed", "1", "--executor", "sequential")
    assert said.code == 130
    assert said.line == "stopped before the end of the first round; nothing was saved."
    assert not (ready / "failed").exists(), "an interrupt is no failure"


@pytest.mark.full_smoke
def test_a_report_loads_nothing_heavy(ready: Path) -> None:
    good("train", "--method", "fedavg", *SMOKE)
    code = (
        "import sys; from fedbench.__main__ import main\n"
        "try: main(['report', '--table', '1', '--dataset', 'digits', '--budget', 'smoke'])\n"
        "finally: print({'torch', 'torchvision', 'pandas', 'sklearn', 'scipy', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "FedAvg " in done.stdout, "the run must be in the table"
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.usefixtures("brief")
def test_demo(home: Path) -> None:
    said = good("demo", *SMOKE)
    runs = list(Store(home).list("run"))
    assert {a.manifest["spec"]["method"] for a in runs} == {"local", "fedavg", "ditto"}
    assert {a.spec.setting.partition.shift for a in runs} == {"none"}
    for run in runs:  # a row of the table each, and a line of the curve
        (row,) = (line for line in said.out.splitlines() if line.startswith(run.id))
        average = series(metrics_of(run, Store(home)), "average_accuracy", "plain")
        assert row.split()[3:5] == ["2", f"{100 * average[2]:.2f}"]
        assert f"{100 * average[2]:.4g} at the end" in said.out
    assert "average accuracy (%)" in said.out
    assert good("evaluate", "--all").err == "every run has its metrics\n"
    for line in said.err.splitlines()[-3:]:
        assert line.startswith("  fedbench ")
    again = good(*said.err.splitlines()[-3].split()[1:], *SMOKE)
    assert again.err.count("is already there") == 3, "the demo's command makes the demo's runs"


@pytest.mark.usefixtures("brief")
def test_stopped_after_the_last_round(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is in its place: nothing is left to go on with, and nothing is lost."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ("train", "--method", "fedavg", *SMOKE, "--seed", "1", "--executor", "sequential")
    with monkeypatch.context() as patch:
        patch.setattr("fedbench.engine.work.leave", interrupt)
        said = fedbench(*command)
    assert (said.code, said.line) == (130, "stopped; what was to be trained is complete.")
    assert "is already there" in good(*command).err
