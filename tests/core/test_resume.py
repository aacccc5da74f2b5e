"""Interrupted, failed or killed at any moment and started again, a run ends with the bits that it would have had.
(Of every method the conformance suite says so; here stands what a method does not choose.)"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.conformance.lab import stop_after
from fedbench.core import evaluation, server
from fedbench.core import trainer as module
from fedbench.core.client import MEMBER, UNSEEN
from fedbench.core.plan import Plan
from fedbench.core.trainer import Interrupted, Progress
from fedbench.methods.base import Method
from fedbench.specs import Setting
from tests.support.lab import Run, federation, method, parquet_bytes, same, setting, train, trainer
from tests.support.rays_lab import many_labelled

DATA = federation()
FIVE = setting(rounds=5, window=3)
#: Four rounds in which clients come and go, of whom two never train.
UNSEEN_DATA = federation((90, 80, 70, 80, 60, 60), skew=float("inf"))
PARTITION = replace(setting().partition, clients=6, unseen=2)
NEWCOMERS = (4, 5)
FOUR: dict[str, Any] = {
    "partition": PARTITION, "rounds": 4, "window": 3, "participation": 0.7, "seed": 11, "epochs": 3,
}  # fmt: skip
#: Ends of names of what differs from one run to the next.
VARIES = ("seconds", "peak_bytes")


def equal(resumed: Run, whole: Run) -> None:
    """The same tensors, predictions, notes and lines, bit for bit."""
    assert same(resumed.tensors, whole.tensors)
    assert parquet_bytes(resumed.predictions) == parquet_bytes(whole.predictions)
    assert resumed.trainer.clients_table().equals(whole.trainer.clients_table())
    lines, others = (
        [{k: v for k, v in line.items() if not k.endswith(VARIES)} for line in run.trainer.checkpoint.rounds]
        for run in (resumed, whole)
    )
    assert lines == others


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of five rounds."""
    return train("feddrm", DATA, tmp_path_factory.mktemp("whole"), FIVE)


@pytest.fixture
def saves_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every round, however slow the disk."""
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(module, "CHECKPOINT_SHARE", 1e9)


ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.01}
LIVES: dict[str, Any] = {"rounds": 4, "participation": 0.7, "momentum_lives": True, "votes": False}
LABELS: dict[str, Any] = {"rounds": 5, "votes": False, "window": 1, "test_phase": True, "momentum_restarts": True}
STOPPED: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("ditto", {}, {"rounds": 4, "participation": 0.7, **ADAMW}, 2),
    *((name, {}, LIVES, 2) for name in ("fedavg", "ifca", "apfl_flux")),
    ("flux", {}, LABELS, 2),
    # Before the newcomers joined: two rounds, or the last answers alone, to go.
    ("fedpac", {"newcomer_epochs": 1}, FOUR, 2),
    ("fedpac", {"newcomers": "all", "newcomer_epochs": 2, "score": "after_aggregate"}, {**FOUR, "window": 1}, 3),
    ("fedbabu", {"finetune_epochs": 1}, {**FOUR, "window": 1}, 3),
    ("fedbabu", {"finetune_epochs": 2, "newcomers": "all"}, FOUR, 2),
    ("fedbabu", {"finetune_rounds": 2, "finetune_epochs": 1}, FOUR, 2),
]


@pytest.mark.parametrize(("name", "chosen", "changes", "stop"), STOPPED, ids=lambda v: v if isinstance(v, str) else "")
def test_stop_and_resume_equals_uninterrupted(
    name: str, chosen: dict[str, Any], changes: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    """Catches what a checkpoint leaves out (moments, living momentum, heads of clients, the server's memory), newcomers
    that come back as members of the cohorts, and streams that depend on how many rounds this process has seen."""
    data = many_labelled(3, 30) if changes is LABELS else UNSEEN_DATA if "partition" in changes else DATA
    how, s = method(name, **chosen), setting(**changes)
    whole = train(how, data, tmp_path / "whole", s)
    with pytest.raises(Interrupted) as caught:
        train(how, data, tmp_path / "resumed", s, executor="cores", observe=stop_after(stop))
    assert caught.value.round == stop
    resumed = train(how, data, tmp_path / "resumed", s, executor="cores")
    assert [p.round for p in resumed.reports] == list(range(stop + 1, s.rounds + 1))
    equal(resumed, whole)
    if "partition" in changes:
        assert sorted(set(whole.predictions["round"].to_pylist())) == list(range(5 - s.window, 5))
        for newcomer in NEWCOMERS:  # they answer, and keep nothing
            assert len(set(answers(resumed, newcomer))) > 1
            assert not any(n.startswith(f"personal/{newcomer}/") for n in resumed.tensors)


@pytest.mark.parametrize("executor", ["sequential", "cores"])
@pytest.mark.parametrize("moment", ["local", "step", "personalise"])
def test_an_interrupt_within_a_round_loses_only_that_round(
    moment: str, executor: str, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = method("feddrm")
    original = getattr(type(how), moment)

    def interrupted(self: Method, *given: Any) -> Any:
        if given[0].round == 4:
            raise KeyboardInterrupt
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(type(how), moment, interrupted)
        with pytest.raises(Interrupted) as caught:
            train(how, DATA, tmp_path, FIVE, executor=executor)
    assert caught.value.round == 3
    run = train(how, DATA, tmp_path, FIVE, executor=executor)
    assert [p.round for p in run.reports] == [4, 5]
    equal(run, whole)


def test_an_interrupt_while_predictions_are_written(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = trainer(method("feddrm"), DATA, tmp_path, FIVE)
    save = it.checkpoint.save_predictions

    def interrupted(t: int, table: Any) -> None:
        save(t, table)
        if t == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(it.checkpoint, "save_predictions", interrupted)
    with pytest.raises(Interrupted, match="after round 3"):
        it.run()
    assert not (tmp_path / "predictions-000004.parquet").exists()
    equal(train("feddrm", DATA, tmp_path, FIVE), whole)


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_an_interrupt_before_the_first_round_ends(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Method, "local", stop)
        with pytest.raises(Interrupted, match="after round 0"):
            train(name, DATA, tmp_path)
    assert [p.round for p in train(name, DATA, tmp_path).reports] == [1, 2, 3]


@pytest.mark.usefixtures("saves_always")
def test_an_error_in_a_round_leaves_the_last_checkpoint(tmp_path: Path, whole: Run) -> None:
    def fail(progress: Progress) -> None:
        if progress.round == 4:
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="display"):
        train("feddrm", DATA, tmp_path, FIVE, observe=fail)
    run = train("feddrm", DATA, tmp_path, FIVE)
    assert [p.round for p in run.reports] == [4, 5]
    equal(run, whole)


@pytest.mark.parametrize(("seconds", "share", "expected"), [(0.0, 1e9, [1, 2, 3, 4]), (1e9, 1e9, []), (0.0, 1e-9, [1])])
def test_checkpoints_are_as_frequent_as_asked_and_less_on_a_slow_disk(
    seconds: float, share: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(module, "CHECKPOINT_SHARE", share)
    saves: list[int] = []
    it = trainer(method("fedavg"), DATA, tmp_path, FIVE)
    save: Callable[..., None] = it.checkpoint.save
    monkeypatch.setattr(it.checkpoint, "save", lambda t, *given: (saves.append(t), save(t, *given))[1])
    it.run()
    assert saves == expected


@pytest.mark.parametrize("name", ["ditto", "scaffold"])
def test_a_resume_finds_the_files_that_its_checkpoint_lists(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of personal states that do not fit into memory."""
    data, s = federation((30, 40, 20, 25, 30, 35, 20, 45, 30, 20, 25)), setting(rounds=4, participation=0.6)
    whole = train(method(name), data, tmp_path / "whole", s)
    monkeypatch.setattr(server, "FILE_BYTES", 64)
    monkeypatch.setattr(server, "SHARE", 0)
    where = tmp_path / "half"
    with pytest.raises(Interrupted):
        train(method(name), data, where, s, observe=stop_after(2))
    it = trainer(method(name), data, where, s)
    it.checkpoint.load()
    assert {path.name for path in where.glob("personal-*")} == set(it.checkpoint.personal) != set()
    (where / "personal-000003-0.safetensors").write_bytes(b"of a round that was lost")
    equal(train(method(name), data, where, s), whole)


# -- unseen clients -------------------------------------------------------------------------------------------


def answers(run: Run, client: int, t: int = 4) -> list[int]:
    table = run.predictions
    rows = (np.array(table["client"]) == client) & (np.array(table["round"]) == t)
    found: list[int] = np.array(table["own"])[rows].tolist()
    return found


def nobody_last() -> Setting:
    """A setting whose third round has a cohort and whose fourth has none."""
    for seed in range(1000):
        s = setting(**{**FOUR, "participation": 0.3, "seed": seed, "window": 1})
        plan = Plan(s, UNSEEN_DATA.n_train, UNSEEN_DATA.shape[:2])
        if plan.cohort(3) and not plan.cohort(4):
            return s
    raise AssertionError("no such seed")


def test_heads_come_from_the_servers_memory(tmp_path: Path) -> None:
    """A round without a cohort makes no new heads. Catches a memory that is not saved, or not restored: who took part
    would answer by the initial head. Unseen clients start from the mean head."""
    how, s = method("fedpac", newcomer_epochs=0), nobody_last()
    whole = train(how, UNSEEN_DATA, tmp_path / "whole", s)
    with pytest.raises(Interrupted):
        train(how, UNSEEN_DATA, tmp_path / "resumed", s, executor="cores", observe=stop_after(3))
    it = trainer(how, UNSEEN_DATA, tmp_path / "resumed", s)
    it.resume()
    heads, initial = dict(it.server.memory.of), it.server.initial
    assert heads.keys() == {i for t in (1, 2, 3) for i in it.plan.cohort(t)}
    assert all(head.keys() == {"head.weight", "head.bias"} for head in heads.values())
    newcomer = it.answering(it.server, NEWCOMERS[0], UNSEEN, 4)
    mean = {n: it.server.shared[n] for n in ("head.weight", "head.bias")}
    clients = [(newcomer, mean), *((it.answering(it.server, i, MEMBER, 4), head) for i, head in heads.items())]
    for client, head in clients:
        assert all(client.state[n] is t and not torch.equal(t, initial[n]) for n, t in head.items())
    resumed = train(how, UNSEEN_DATA, tmp_path / "resumed", s)
    equal(resumed, whole)
    server = resumed.trainer.server
    assert all(torch.equal(server.memory.of[i][n], t) for i, head in heads.items() for n, t in head.items())
    # It is these heads that answer: without them the same body answers otherwise.
    forgetful = replace(server, memory=type(server.memory)({}))
    without = evaluation.evaluate(resumed.trainer, forgetful, 4, {}, dict)[0]["plain"]
    owner = UNSEEN_DATA.client[without.rows]
    assert any(without.own[owner == i].tolist() != answers(resumed, i) for i in heads)


# -- killed ---------------------------------------------------------------------------------------------------

KILLS = 6
LONG = setting(rounds=50, window=50, momentum=0.5, lr=0.02, seed=5)


def work(folder: Path, talk: Connection) -> None:
    """A process that trains (or goes on), saves after every round, says which round it has done and waits for leave."""
    module.CHECKPOINT_SECONDS, module.CHECKPOINT_SHARE = 0.0, 1e9

    def observe(progress: Progress) -> None:
        talk.send(progress.round)
        talk.recv()  # or else it might be over before it can be killed

    train("feddrm", federation(), folder, LONG, executor="cores", observe=observe)


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    # What takes long to import is imported once, so that a process starts at once.
    context.set_forkserver_preload(["torch._dynamo", "pyarrow.parquet", "safetensors.torch", "sklearn.datasets"])
    rng, last = random.Random(), 0
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

    whole = train("feddrm", federation(), tmp_path / "whole", LONG)
    resumed = train("feddrm", federation(), tmp_path / "killed", LONG)
    assert resumed.reports[0].round > 1, "nothing was left of the killed lives"
    equal(resumed, whole)
    expected = {p.name for p in (tmp_path / "whole").glob("predictions-*")}
    assert {p.name for p in (tmp_path / "killed").glob("predictions-*")} == expected
