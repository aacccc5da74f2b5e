"""`status`, `resume`, `list unfinished` and `remove` of runs that were interrupted, failed or are another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedbench.engine import keep
from fedbench.store import Store
from tests.support.cli_user import SMOKE, complete, fedbench, good, own_method


@pytest.fixture
def stopped(ready: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a run that Ctrl-C stopped after two rounds."""
    stop("--method", "ditto", *SMOKE, patch=monkeypatch)
    (work,) = ready.glob("work/[!.]*")
    return work.name


def stop(*options: str, patch: pytest.MonkeyPatch) -> None:
    def observe(progress: Any) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with patch.context() as within:
        within.setattr("fedbench.observers.bars._lines", lambda *_: observe)
        assert fedbench("train", *options).code == 130


def test_an_interrupted_run_is_told_and_goes_on(ready: Path, stopped: str) -> None:
    (run,) = json.loads(good("status", "--json").out)
    assert (run["id"], run["state"], run["round"], run["rounds"]) == (stopped, "interrupted", 2, 4)
    assert run["goes_on"] == f"fedbench resume {stopped}"
    said = good("status").out
    assert f"nothing runs in {ready}" in said
    assert "round 2 of 4 is saved" in said
    assert f"  {run['goes_on']}\n" in said
    (line,) = (line for line in good("list").out.splitlines() if line.startswith(stopped))
    assert "2 of 4  ditto on digits Dir-0.3" in line
    (listed,) = json.loads(good("list", "unfinished", "--json").out)
    assert (listed["kind"], listed["id"], listed["method"]) == ("unfinished", stopped, "ditto")
    (summary,) = json.loads(good("resume", stopped[:6], "--json").out)
    assert summary["run"] == stopped
    assert json.loads(good("status", "--json").out) == []
    assert good("list", "unfinished").out == f"nothing in {ready} of the kind unfinished\n"
    assert good("resume", "--all").err == "no run was interrupted\n"


def test_resuming_ends_as_if_never_stopped(ready: Path, stopped: str) -> None:
    good("resume", "--all")
    path = ready / "run" / stopped / "predictions.parquet"
    stayed = path.read_bytes()
    good("remove", stopped, "--yes")
    good("train", "--method", "ditto", *SMOKE)
    assert path.read_bytes() == stayed


def test_resuming_keeps_what_was_to_be_kept(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop("--method", "local", "--keep", "model", *SMOKE, patch=monkeypatch)
    (summary,) = json.loads(good("resume", "--all", "--json").out)
    assert keep.of(Store(ready).open("run", summary["run"])) == {"model"}


def test_a_run_of_ones_own_file_names_no_command(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop("--method", own_method(tmp_path), *SMOKE, patch=monkeypatch)
    (run,) = json.loads(good("status", "--json").out)
    assert run["goes_on"] is None
    assert "the command that began it goes on with it" in good("status").out
    said = fedbench("resume", run["id"])
    assert said.code == 2
    assert "a user's file; give the command that began it again" in said.line


def test_a_failed_run_says_why(ready: Path, stopped: str) -> None:
    spec = json.loads((ready / "work" / stopped / "spec.json").read_text())["run"]
    Store(ready).record_failure(stopped, "the loss is not a number", "log", spec=spec, overrides={})
    (run,) = json.loads(good("status", "--json").out)
    assert (run["state"], run["reason"]) == ("failed", "the loss is not a number")
    assert "the loss is not a number" in good("status").out
    assert "failed: the loss is not a number" in good("list", "unfinished").out
    good("resume", stopped)
    assert not (ready / "failed" / f"{stopped}.json").exists()


HOLD = """
import sys
from fedbench.store import Store
with Store().claim(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_another_process_holds_is_shown_and_stays(ready: Path, stopped: str) -> None:
    other = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, stopped], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "FEDBENCH_HOME": str(ready)},
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        (run,) = json.loads(good("status", "--json").out)
        assert (run["state"], run["holder"]["pid"], run["goes_on"]) == ("running", other.pid, None)
        said = good("status").out
        assert stopped in said
        assert f"process {other.pid} on " in " ".join(said.split())
        for words in ((stopped,), (stopped, "--yes")):
            refused = fedbench("remove", *words)
            assert (refused.code, refused.out) == (2, "")
            assert f"run {stopped} is being trained by process {other.pid}" in refused.line
        assert good("remove", "--unfinished", "--yes").out.startswith("nothing is unfinished")
        assert "no run" in fedbench("resume", stopped).line
    finally:
        other.stdin.close()
        other.wait()
    assert (ready / "work" / stopped / "checkpoint.json").exists()


@pytest.mark.parametrize("by", ["id", "all"])
def test_unfinished_work_is_removed(ready: Path, stopped: str, by: str) -> None:
    before = complete(ready)
    said = good("remove", stopped[:8] if by == "id" else "--unfinished", "--yes")
    assert said.out == f"removed unfinished run {stopped}\n"
    assert not (ready / "work" / stopped).exists()
    assert complete(ready) == before


def test_watch_ends_at_ctrl_c(ready: Path, stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    said = good("status", "--watch")
    assert stopped in said.out
    assert len(looks) == 3
    assert fedbench("status", "--watch", "--json").code == 2


# -- filters ----------------------------------------------------------------------------------------------------------


def test_list_and_remove_by_filters(ready: Path) -> None:
    for lr in ("0.1", "0.2"):
        good("train", "--method", "local", *SMOKE, "--lr", lr)
    listed = json.loads(good("list", "method=local", "--json").out)
    assert [(one["kind"], one["lr"]) for one in listed] == [("run", 0.1), ("run", 0.2)]
    assert json.loads(good("list", "run", "method=local", "lr=0.2", "--json").out) == listed[1:]
    assert json.loads(good("list", listed[0]["id"][:6], "--json").out) == listed[:1]
    assert "filters are for runs" in fedbench("list", "dataset", "method=local").line
    before = complete(ready)
    said = fedbench("remove", "method=local")
    assert said.code == 2, "nobody answers"
    assert complete(ready) == before
    for one in listed:
        assert f"run {one['id']} (" in said.out
    out = good("remove", "method=local", "--yes").out
    assert "removed 2 runs, 2 metrics, " in out
    after = complete(ready)
    assert {path.split("/")[0] for path in before.keys() - after.keys()} == {"run", "metrics"}
    assert len(before) - len(after) == 4
    assert json.loads(good("list", "run", "--json").out)[0]["method"] == "fedavg"


def test_remove_takes_several_ids(ready: Path) -> None:
    ids = [path.split("/")[1] for path in complete(ready)]
    good("remove", *ids[2:], "--yes")
    assert [path.split("/")[1] for path in complete(ready)] == ids[:2]
    assert fedbench("remove").code == fedbench("remove", ids[0], "--unfinished").code == 2
