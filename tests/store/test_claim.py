"""Runs: claimed by one process at a time; and how it stands with those that are no artifacts, by what they leave."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedbench import files
from fedbench.errors import FedbenchError
from fedbench.files import write_json
from fedbench.specs import RunSpec
from fedbench.store import CHECKPOINT, Store
from fedbench.store import claim as module
from fedbench.store.claim import HeldError
from fedbench.store.folder import PROGRESS, SPEC
from fedbench.store.unfinished import End, discard, ids, unfinished
from tests.support.make_runs import run_spec, small_run
from tests.support.waiting import until

HOLD = """
import sys
from pathlib import Path
from fedbench.store import Store
with Store(Path(sys.argv[1])).claim("abc"):
    print("held", flush=True)
    sys.stdin.readline()
"""
NOBODY = 2**22 + 1  #: above the kernel's largest pid


def plant(store: Store, age: float = 0.0, **claim: Any) -> Path:
    path = store.work("abc") / module.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(claim))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_claim_and_release_and_a_holder_that_has_lost_it_notices(store: Store) -> None:
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        claim.beat()
        holder = store.claimed("abc")
        assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
        with pytest.raises(HeldError, match=f"by process {os.getpid()} .*wait for it"), store.claim("abc"):
            pass
        assert claim.held(), "the refused one must not release it"
        with store.claim("another"):
            pass
    assert store.claimed("abc") is None
    assert not store.work("abc").exists()
    with store.claim("abc"):
        (store.work("abc") / "checkpoint").write_text("round 3")
    assert [p.name for p in store.work("abc").iterdir()] == ["checkpoint"]  # which release keeps
    with store.claim("abc") as claim:
        plant(store, host="elsewhere", pid=1, token=1)
        with pytest.raises(FedbenchError, match="taken this run over"):
            claim.beat()
    assert (store.work("abc") / module.FILE).exists(), "the new holder's claim must stay"


def test_a_killed_process_has_lost_its_claim(store: Store) -> None:
    command = [sys.executable, "-c", HOLD, store.home]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HeldError, match=f"by process {holder.pid} "), store.claim("abc"):
            pass
        holder.kill()
    assert (store.work("abc") / module.FILE).exists()
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


def test_of_many_threads_one_gets_a_stale_claim(store: Store) -> None:
    """Threads meet more closely than processes do: none may take away a claim made after it looked."""
    for turn in range(10):
        path = plant(store, machine=files.machine(), pid=NOBODY, token=turn)
        barrier, done, held = threading.Barrier(6), threading.Barrier(6), []

        def attempt(barrier: Any = barrier, done: Any = done, held: list[bool] = held) -> None:
            barrier.wait()
            try:
                with store.claim("abc") as claim:
                    done.wait()
                    held.append(claim.held())
                    done.wait()
            except FedbenchError:
                done.wait()
                done.wait()

        threads = [threading.Thread(target=attempt) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert held == [True]
        shutil.rmtree(path.parent, ignore_errors=True)


HERE = {"host": socket.gethostname(), "machine": files.machine(), "token": "x"}


@pytest.mark.parametrize(
    ("age", "claim", "by"),
    [
        (0, HERE, "process "),
        (-5, HERE, "process "),  # clocks differ by seconds
        (-3600, HERE, None),
        # Of a process on another machine only the heartbeat can tell, also where two containers have one host name.
        (module.STALE_SECONDS - 30, {"host": "elsewhere", "pid": 1, "token": 1}, "process 1 on elsewhere"),
        (module.STALE_SECONDS + 1, {"host": "elsewhere", "pid": 1, "token": 1}, None),
        (0, {**HERE, "pid": NOBODY, "machine": "00000000"}, f"process {NOBODY} on "),
        (0, {**HERE, "pid": NOBODY}, None),
        *((0, {**HERE, "pid": pid}, None) for pid in ("7", None, 1.5, [7], True, 0, -1, 10**30, -(10**30))),
        *((0, text, None) for text in ("", "{", "[]")),
    ],
)
def test_whose_claim_counts(store: Store, age: float, claim: Any, by: str | None) -> None:
    path = plant(store, age, **({"pid": os.getpid(), **claim} if isinstance(claim, dict) else {}))
    if isinstance(claim, str):
        path.write_text(claim)
    assert (store.claimed("abc") is None) == (by is None)
    with pytest.raises(HeldError, match=by) if by else nullcontext(), store.claim("abc") as mine:
        assert mine.held()


def test_a_long_round_does_not_lose_the_claim(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may take longer than a claim stays fresh: the heartbeat does not wait for it."""
    monkeypatch.setattr(module, "STALE_SECONDS", 0.2)  # it beats four times as often
    with store.claim("abc"):
        path = store.work("abc") / "claim.json"
        for _ in range(2):
            os.utime(path, (0, 0))
            assert until(lambda: path.stat().st_mtime > 0, seconds=60)  # however busy the machine is
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_full_disk_while_claiming(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays that would keep others from the run."""
    store.prepare()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FedbenchError, match="no space left"), store.claim("abc"):
            pass
    assert not [path for path in store.home.rglob("*") if path.is_file() and path.name not in ("store.json", ".lock")]
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


RUN = run_spec(2, 10)


def begun(store: Store, spec: RunSpec = RUN, saved: int | None = 4, **note: Any) -> None:
    """A work folder as a killed process leaves it."""
    folder = store.work(spec.id)
    folder.mkdir(parents=True)
    write_json(folder / SPEC, {"run": spec.to_dict(), "overrides": {}})
    if saved is not None:
        write_json(folder / CHECKPOINT, {"round": saved})
    if note:
        write_json(folder / PROGRESS, note)


def test_interrupted_and_running(store: Store) -> None:
    begun(store, round=7, accuracy=0.5, round_seconds=2.0, time=time.time())
    (run,) = unfinished(store)
    assert (run.id, run.state, run.round, run.accuracy) == (RUN.id, End.INTERRUPTED, 4, 0.5), "what is saved counts"
    assert run.holder is None
    assert run.seconds_left is None, "nobody is at it"
    assert run.bytes == sum(p.stat().st_size for p in store.work(RUN.id).iterdir())
    with store.claim(RUN.id):
        (run,) = unfinished(store)
        assert (run.state, run.round, run.holder["pid"]) == (End.RUNNING, 7, os.getpid())
        assert 0 < run.seconds_left <= (10 - 7) * 2
        with pytest.raises(HeldError, match=f"run {RUN.id} is being trained by process {os.getpid()}"):
            discard(store, RUN.id)
    assert unfinished(store)[0].state is End.INTERRUPTED


@pytest.mark.parametrize("note", [None, {"round": "x", "accuracy": "y", "time": None}, {"accuracy": True}, {}])
def test_notes_that_say_nothing(store: Store, note: dict[str, Any] | None) -> None:
    begun(store, saved=None if note is None else 4)
    if note is not None:
        (store.work(RUN.id) / PROGRESS).write_text(json.dumps(note))
    with store.claim(RUN.id):
        (run,) = unfinished(store)
    assert (run.state, run.round, run.accuracy, run.seconds_left) == (End.RUNNING, 0, None, None)


def test_failed_with_and_without_a_checkpoint(store: Store) -> None:
    other = run_spec(2, 10, seed=1)
    begun(store)
    for spec in (RUN, other):
        store.record_failure(spec.id, "no loss", "log", spec=spec.to_dict(), overrides={})
    noted = Store(store.home).failure(RUN.id) or {}
    assert (noted["reason"], noted["log"], noted["spec"]) == ("no loss", "log", RUN.to_dict())
    runs = {run.id: (run.state, run.reason, run.round) for run in unfinished(store)}
    assert runs == {RUN.id: (End.FAILED, "no loss", 4), other.id: (End.FAILED, "no loss", 0)}
    for spec in (RUN, other):
        discard(store, spec.id)
    store.forget_failure(RUN.id)  # there is none any more
    assert unfinished(store) == []
    assert list(ids(store)) == []
    assert not store.work(RUN.id).exists()


def test_a_run_completed_since_is_left_out(store: Store) -> None:
    spec = small_run(store).spec
    begun(store, spec)
    (run,) = unfinished(store)
    assert run.id == spec.id, "a making anew that was interrupted"
    os.utime(store.work(spec.id) / CHECKPOINT, (1, 1))
    assert unfinished(store) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 3}', '{"run": {"method": "x"}}', "{"])
def test_what_is_illegible_is_left_out_and_can_be_removed(store: Store, text: str) -> None:
    begun(store)
    (store.work(RUN.id) / SPEC).write_text(text)
    assert unfinished(store) == []
    assert list(ids(store)) == [RUN.id]
    discard(store, RUN.id)
    assert list(ids(store)) == []
