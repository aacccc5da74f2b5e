"""Several processes on one store: they share the runs of a table out, and neither fails for the other's sake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, fedbench, good

TABLE = ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3")
METHODS = ("-m", "fedavg", "-m", "local")


@pytest.fixture
def local(home: Path) -> str:
    """The id that the run of `local` in the table will have; the store is empty but for its inputs."""
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    good(*TABLE, "-m", "local")
    id = artifact(home, "run").name
    good("remove", id, "--yes")
    good("remove", artifact(home, "metrics").name, "--yes")
    return id


def test_what_another_process_holds_is_left_to_it(home: Path, local: str) -> None:
    with Store(home).claim(local):
        said = good(*TABLE, *METHODS, "--json")
        assert "1 of 2 runs made" in said.err
        assert re.search(r"left to process \d+ on \S+: \(2/2\) Local digits", said.err)
        result = json.loads(said.out)
        assert (len(result["made"]), len(result["failed"]), len(result["left"])) == (1, 0, 1)
    assert good(*TABLE, *METHODS).err.splitlines()[-1] == "1 of 1 runs made"


def test_what_another_process_lets_go_of_is_made_in_the_end(
    home: Path, local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted, say, while this process was at another run."""
    from fedbench.cli import making

    run, order = making.run, []
    claim = Store(home).claim(local)
    claim.__enter__()

    def running(jobs, *rest):  # type: ignore[no-untyped-def]
        order.append(jobs[0].spec.method)
        if order == ["local", "fedavg"]:
            claim.__exit__(None, None, None)
        return run(jobs, *rest)

    monkeypatch.setattr(making, "run", running)
    assert good(*TABLE, "-m", "local", "-m", "fedavg").err.splitlines()[-1] == "2 of 2 runs made"
    assert order == ["local", "fedavg", "local"]


@pytest.mark.slow
def test_two_processes_make_a_table(home: Path) -> None:
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    command = [sys.executable, "-m", "fedbench", *TABLE, "-m", "fedavg", "-m", "local", "-m", "fedavgft", "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=300) for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    made = [json.loads(out)["made"] for out, _ in said]
    assert sorted(made[0] + made[1]) == sorted(run.id for run in Store(home).list("run"))
    assert all(json.loads(out)["failed"] == [] for out, _ in said)


def at_once(*commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit code and standard error of commands that run at the same time."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "fedbench", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    return [(child.wait(), err) for child in children for err in [child.communicate(timeout=120)[1]]]


@pytest.mark.slow
def test_evaluated_several_times_at_once(ready: Path) -> None:
    for code, err in at_once(*[("evaluate", "--all", "--again")] * 4):
        assert code == 0, err
    assert "there already" in good("evaluate").err


@pytest.mark.slow
def test_removed_twice_at_once(ready: Path) -> None:
    id = artifact(ready, "run").name
    answers = at_once(*[("remove", id, "--yes")] * 3, ("list",), ("list",))
    assert sorted(code for code, _ in answers[:3]) == [0, 2, 2]
    assert all(err.count("\n") == 1 and err.startswith("fedbench: no ") for code, err in answers[:3] if code)
    assert [code for code, _ in answers[3:]] == [0, 0]


def test_no_terminal_undoes_anothers_choice(tmp_path: Path) -> None:
    """current.json holds the choices of all; nobody writes back what he read before another wrote."""
    names = [f"name{k}" for k in range(40)]
    threads = [threading.Thread(target=lambda name=name: Store(tmp_path).set_current(**{name: "x"})) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Store(tmp_path).current) == set(names)


def test_a_failed_partition_is_not_followed_by_training_on_another(ready: Path) -> None:
    for wrong in (("--dir", "-1"), ("--dirr", "0.3"), ("--dir", "x"), ("--dir", "0.3", "--clients", "100000")):
        good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
        assert fedbench("partition", "digits", *wrong).code == 2
        said = fedbench("train", "--method", "local", *SMOKE)
        assert said.code == 2
        assert "there is no current partition (none was made, or the last 'partition' failed)" in said.line
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
    good("partition", "--help")
    good("train", "--method", "fedavg", *SMOKE)
