"""Interrupted or failed at any moment and started again, runs end with the bits that they would have had, alone or
several at the same time. (Of every method the conformance suite says so; here stands what a method does not choose.
tests/cli/test_cli_processes.py and tests/robust kill.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.conformance.lab import stop_after
from fedbench.core import executors, server
from fedbench.core import trainer as module
from fedbench.core import trainer as trainer_module
from fedbench.core.client import Client
from fedbench.core.federation import Federation
from fedbench.core.trainer import Interrupted, Progress, Trainer, train_together
from fedbench.methods.base import Method
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import Run, equal, federation, method, setting, train, trainer
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


def answers(run: Run, client: int, t: int = 4) -> list[int]:
    table = run.predictions
    rows = (np.array(table["client"]) == client) & (np.array(table["round"]) == t)
    found: list[int] = np.array(table["own"])[rows].tolist()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of five rounds."""
    return train("feddrm", DATA, tmp_path_factory.mktemp("whole"), FIVE)


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


#: One partition a seed: other sizes, other images.
SEEDS = {1: federation((90, 60, 75, 50)), 2: federation((40, 110, 64, 33)), 3: federation((70, 70, 71, 72))}


def how(name: str) -> Method:
    """pFedFDA without a search for beta: it stops at a tolerance of its own, so that rounding shows far beyond it."""
    return method(name, **({"betas": 0} if name == "pfedfda" else {}))


def trainers(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[Trainer]:
    """One trainer a seed, all on one executor."""
    joined = Federation.joined(list(SEEDS.values()))
    settings = [setting(seed=seed, **changes) for seed in SEEDS]
    found = [trainer(how(name), d, where / f"{s.seed}", s) for d, s in zip(joined, settings, strict=True)]
    shared = executors.make(executor, found[0].executor.model, joined[0], settings[0])
    for it in found:
        it.executor = shared
    return found


def together(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[Run]:
    """The runs of all seeds, trained together."""
    found, reports = trainers(name, where, executor, **changes), list[Progress]()
    try:
        train_together(found, reports.append)
    finally:
        found[0].executor.close()
    return [Run(it, reports) for it in found]


def alone(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[Run]:
    """The runs of all seeds, one after another."""
    return [train(how(name), SEEDS[s], where / f"{s}", setting(seed=s, **changes), executor=executor) for s in SEEDS]


@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("feddrm", "sequential"), ("pfedfda", "sequential"), ("fedavg", "stacked"), ("feddrm", "stacked"),
        ("local", "stacked"), ("pfedfda", "graphed"),
    ],
)  # fmt: skip
def test_each_has_the_bits_that_it_has_alone(name: str, executor: str, tmp_path: Path) -> None:
    changes = {"participation": 0.6, "augment": "crop", "rounds": 2}
    both = (together(name, tmp_path / "a", executor, **changes), alone(name, tmp_path / "b", executor, **changes))
    for a, b in zip(*both, strict=True):
        equal(a, b)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """All seeds of FedDRM, one after another, three rounds each."""
    return alone("feddrm", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("moment", "executor"),
    [
        *((moment, "sequential") for moment in ("broadcast", "local", "step", "personalise")),
        ("local", "cores"),
        ("personalise", "cores"),
        ("local", "stacked"),
    ],
)
def test_an_interrupt_loses_only_the_round_of_all(
    moment: str, executor: str, tmp_path: Path, wholes: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, calls = type(method("feddrm")), 0
    original = getattr(kind, moment)

    def interrupted(self: Method, *given: Any) -> Any:
        nonlocal calls
        calls += given[0].round == 3
        if calls == 2:  # in the middle: for step, one run of three is through
            raise KeyboardInterrupt
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind, moment, interrupted)
        with pytest.raises(Interrupted, match="after round 2"):
            together("feddrm", tmp_path, executor)
    resumed = together("feddrm", tmp_path, executor)
    assert [p.round for p in resumed[0].reports] == [3]
    expected = wholes if executor != "stacked" else alone("feddrm", tmp_path / "alone", executor)
    for a, b in zip(resumed, expected, strict=True):
        equal(a, b)


def test_who_stands_behind_catches_up(tmp_path: Path, wholes: list[Run]) -> None:
    with pytest.raises(Interrupted):
        train("feddrm", SEEDS[2], tmp_path / "2", setting(seed=2), observe=stop_after(1))
    train("feddrm", SEEDS[3], tmp_path / "3", setting(seed=3)).trainer.save()  # all of it
    runs = together("feddrm", tmp_path)
    assert [p.round for p in runs[0].reports] == [1, 2, 3]
    for a, b in zip(runs, wholes, strict=True):
        equal(a, b)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_runs_that_ended_together_go_on_alone(
    error: type[BaseException], tmp_path: Path, wholes: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt, and after an error from the checkpoints that are written under way."""
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SHARE", 1e9)  # however slow the disk

    def stop(progress: Progress) -> None:
        if progress.round == (2 if error is KeyboardInterrupt else 3):
            raise error

    with pytest.raises(Interrupted if error is KeyboardInterrupt else error):
        train_together(trainers("feddrm", tmp_path), stop)
    resumed = alone("feddrm", tmp_path)
    assert [p.round for run in resumed for p in run.reports] == [3, 3, 3]
    for a, b in zip(resumed, wholes, strict=True):
        equal(a, b)


def test_what_is_heard_is_the_mean_and_times_are_shares(
    tmp_path: Path, wholes: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Slow(FedAvg):
        """A client's work takes one second of a clock that only it moves."""

        def local(self, client: Client) -> None:
            clock[0] += 1.0

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    found = trainers("feddrm", tmp_path)
    for it in found:
        it.method = Slow()
    reports: list[Progress] = []
    train_together(found, reports.append)
    for it in found:
        for line in it.checkpoint.rounds:
            assert line["local_seconds"] == line["total_seconds"] == 4.0, "12 clients' seconds over three runs"
            assert line["client_seconds"] == 4.0
    monkeypatch.undo()
    runs = together("feddrm", tmp_path / "real")
    losses = np.array([[line["loss"] for line in run.trainer.checkpoint.rounds] for run in runs])
    np.testing.assert_allclose([p.loss for p in runs[0].reports], losses.mean(0))
    assert runs[0].accuracy == pytest.approx(np.mean([run.accuracy for run in wholes]))
