"""Killed at any moment and started again, a run ends with the predictions it would have had anyway."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedbench.core import trainer
from tests.support.lab import federation, parquet_bytes, same, setting, train

KILLS = 10
SETTING = setting(rounds=80, window=80, momentum=0.5, lr=0.02, seed=5)


def work(folder: Path, talk: Connection) -> None:
    """A process that trains (or goes on), saves after every round, says which round it has done and waits for leave."""
    trainer.CHECKPOINT_SECONDS, trainer.CHECKPOINT_SHARE = 0.0, 1e9

    def observe(progress: trainer.Progress) -> None:
        talk.send(progress.round)
        talk.recv()  # or else it might be over before it can be killed

    train("feddrm", federation(), folder, SETTING, executor="cores", observe=observe)


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    # What takes long to import is imported once, so that a process starts at once.
    context.set_forkserver_preload(["torch._dynamo", "pyarrow.parquet", "safetensors.torch", "sklearn.datasets"])
    rng = random.Random()
    last = 0
    for _ in range(KILLS):
        talk, theirs = context.Pipe()
        process = context.Process(target=work, args=(tmp_path / "killed", theirs))
        process.start()
        theirs.close()
        rounds = []
        for _ in range(rng.randint(1, 3)):
            rounds.append(talk.recv())
            talk.send("go on")
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run was over before it could be killed"
        # A round that is told may not be saved yet, but all before it are.
        assert rounds[0] >= max(last, 1)
        last = rounds[-1]
    assert last > KILLS - 1, "no progress from life to life"

    whole = train("feddrm", federation(), tmp_path / "whole", SETTING)
    resumed = train("feddrm", federation(), tmp_path / "killed", SETTING)
    assert resumed.reports[0].round > 1, "nothing was left of the killed lives"
    assert parquet_bytes(resumed.predictions) == parquet_bytes(whole.predictions)
    assert same(resumed.tensors, whole.tensors)
    expected = {p.name for p in (tmp_path / "whole").glob("predictions-*")}
    assert {p.name for p in (tmp_path / "killed").glob("predictions-*")} == expected
    columns = ("round", "participants", "images", "loss", "lr", "bytes_up", "bytes_down")
    lines = [[{c: line[c] for c in columns} for line in run.trainer.checkpoint.rounds] for run in (resumed, whole)]
    assert lines[0] == lines[1]
