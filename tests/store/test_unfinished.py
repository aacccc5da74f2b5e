"""Runs that are no artifacts: how it stands with each, from the files they leave."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from fedbench.files import write_json
from fedbench.specs import RunSpec
from fedbench.store import CHECKPOINT, Store
from fedbench.store.claim import HeldError
from fedbench.store.folder import PROGRESS, SPEC
from fedbench.store.unfinished import End, discard, ids, unfinished
from tests.support.make_runs import run_spec, small_run

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


def test_interrupted(store: Store) -> None:
    begun(store, round=7, accuracy=0.5, round_seconds=2.0, time=time.time())
    (run,) = unfinished(store)
    assert (run.id, run.state, run.round, run.accuracy) == (RUN.id, End.INTERRUPTED, 4, 0.5), "what is saved counts"
    assert run.holder is None
    assert run.seconds_left is None, "nobody is at it"
    assert run.bytes == sum(p.stat().st_size for p in store.work(RUN.id).iterdir())


def test_running(store: Store) -> None:
    begun(store, round=7, accuracy=0.5, round_seconds=2.0, time=time.time())
    with store.claim(RUN.id):
        (run,) = unfinished(store)
        assert run.holder is not None
        assert (run.state, run.round, run.holder["pid"]) == (End.RUNNING, 7, os.getpid())
        assert run.seconds_left is not None
        assert 0 < run.seconds_left <= (10 - 7) * 2
        with pytest.raises(HeldError, match=f"run {RUN.id} is being trained by process {os.getpid()}"):
            discard(store, RUN.id)
    assert unfinished(store)[0].state is End.INTERRUPTED


def test_nothing_noted_yet(store: Store) -> None:
    begun(store, saved=None)
    with store.claim(RUN.id):
        (run,) = unfinished(store)
        assert (run.state, run.round, run.accuracy, run.seconds_left) == (End.RUNNING, 0, None, None)


def test_failed_with_and_without_a_checkpoint(store: Store) -> None:
    other = run_spec(2, 10, seed=1)
    begun(store)
    for spec in (RUN, other):
        store.record_failure(spec.id, "no loss", "log", spec=spec.to_dict(), overrides={})
    runs = {run.id: run for run in unfinished(store)}
    assert [(runs[s.id].state, runs[s.id].reason, runs[s.id].round) for s in (RUN, other)] == [
        (End.FAILED, "no loss", 4),
        (End.FAILED, "no loss", 0),
    ]
    for spec in (RUN, other):
        discard(store, spec.id)
    assert unfinished(store) == []
    assert list(ids(store)) == []
    assert not store.work(RUN.id).exists()


def test_a_run_completed_since_is_left_out(store: Store) -> None:
    spec = small_run(store).spec
    assert isinstance(spec, RunSpec)
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


@pytest.mark.parametrize("note", [{"round": "x", "accuracy": "y", "time": None}, {"accuracy": True}, {}])
def test_notes_that_say_nothing(store: Store, note: dict[str, Any]) -> None:
    begun(store)
    (store.work(RUN.id) / PROGRESS).write_text(json.dumps(note))
    with store.claim(RUN.id):
        (run,) = unfinished(store)
    assert (run.round, run.accuracy, run.seconds_left) == (0, None, None)
