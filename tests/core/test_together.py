"""Several seeds of one run at the same time: each ends as it would have ended alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.conformance.lab import stop_after
from fedbench.core import executors
from fedbench.core import trainer as trainer_module
from fedbench.core.client import Client
from fedbench.core.federation import Federation
from fedbench.core.stacked import StackedWorker
from fedbench.core.trainer import Interrupted, Progress, Trainer, train_together
from fedbench.methods.base import Method
from fedbench.methods.fedavg import FedAvg
from tests.support.lab import Run, federation, method, parquet_bytes, same, setting, train, trainer

#: Without a search for beta: it stops at a tolerance of its own, so that rounding shows far beyond rounding.
CHOSEN = {"pfedfda": {"betas": 0}}
#: One partition a seed: other sizes, other images.
SIZES = {1: (90, 60, 75, 50), 2: (40, 110, 64, 33), 3: (70, 70, 71, 72)}
DATA = {seed: federation(sizes) for seed, sizes in SIZES.items()}


def how(name: str) -> Method:
    """A method of that name."""
    return method(name, **CHOSEN.get(name, {}))


def trainers(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[Trainer]:
    """One trainer a seed, all on one executor."""
    joined = Federation.joined(list(DATA.values()))
    settings = [setting(seed=seed, **changes) for seed in DATA]
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
    return [train(how(name), DATA[s], where / f"{s}", setting(seed=s, **changes), executor=executor) for s in DATA]


def equal(a: Run, b: Run) -> bool:
    """Whether two runs ended with the same bits."""
    return same(a.tensors, b.tensors) and parquet_bytes(a.predictions) == parquet_bytes(b.predictions)


def test_joined_federations_show_each_client_the_same_images() -> None:
    parts = list(DATA.values())
    joined = Federation.joined(parts)
    assert len({(j.images.data_ptr(), j.labels.data_ptr()) for j in joined}) == 1
    for part, whole in zip(parts, joined, strict=True):
        assert (whole.clients, whole.n_train, whole.n_test) == (part.clients, part.n_train, part.n_test)
        assert torch.equal(whole.class_counts, part.class_counts)
        for mine, there in ((part.train, whole.train), (part.test, whole.test)):
            for a, b in zip(mine, there, strict=True):
                assert torch.equal(part.images[a], whole.images[b])
                assert torch.equal(part.labels[a], whole.labels[b])
                for column in ("client", "sample", "is_test"):
                    np.testing.assert_array_equal(getattr(part, column)[a], getattr(whole, column)[b])
    assert Federation.joined(parts[:1]) == parts[:1]


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
        assert equal(a, b)
        assert a.trainer.clients_table() == b.trainer.clients_table()
        for mine, other in zip(a.trainer.checkpoint.rounds, b.trainer.checkpoint.rounds, strict=True):
            assert mine.keys() == other.keys()
            assert all(mine[k] == other[k] for k in mine if not k.endswith(("_seconds", "peak_bytes")))


def test_on_a_cpu_each_seed_has_stacks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[set[int]] = []
    original = StackedWorker.train_stack

    def spy(self: StackedWorker, clients: Sequence[Client], requests: Any) -> Any:
        stacks.append({client.setting.seed for client in clients})
        return original(self, clients, requests)

    monkeypatch.setattr(StackedWorker, "train_stack", spy)
    together("feddrm", tmp_path, "stacked")
    assert {len(seeds) for seeds in stacks} == {1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """All seeds of FedAvg, one after another, three rounds each."""
    return alone("fedavg", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("moment", "executor"),
    [*((moment, "sequential") for moment in ("broadcast", "local", "step", "personalise")), ("local", "stacked")],
)
def test_an_interrupt_loses_only_the_round_of_all(
    moment: str, executor: str, tmp_path: Path, whole: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(Method, moment), 0

    def interrupted(self: Method, *given: Any) -> Any:
        nonlocal calls
        calls += given[0].round == 3
        if calls == 2:  # in the middle: for step, one run of three is through
            raise KeyboardInterrupt
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Method, moment, interrupted)
        with pytest.raises(Interrupted, match="after round 2"):
            together("fedavg", tmp_path, executor)
    resumed = together("fedavg", tmp_path, executor)
    assert [p.round for p in resumed[0].reports] == [3]
    expected = whole if executor == "sequential" else alone("fedavg", tmp_path / "alone", executor)
    assert all(equal(a, b) for a, b in zip(resumed, expected, strict=True))


def test_who_stands_behind_catches_up(tmp_path: Path, whole: list[Run]) -> None:
    with pytest.raises(Interrupted):
        train("fedavg", DATA[2], tmp_path / "2", setting(seed=2), observe=stop_after(1))
    train("fedavg", DATA[3], tmp_path / "3", setting(seed=3)).trainer.save()  # all of it
    runs = together("fedavg", tmp_path)
    assert [p.round for p in runs[0].reports] == [1, 2, 3]
    assert all(equal(a, b) for a, b in zip(runs, whole, strict=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_runs_that_ended_together_go_on_alone(
    error: type[BaseException], tmp_path: Path, whole: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt, and after an error from the checkpoints that are written under way."""
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SHARE", 1e9)  # however slow the disk

    def stop(progress: Progress) -> None:
        if progress.round == (2 if error is KeyboardInterrupt else 3):
            raise error

    with pytest.raises(Interrupted if error is KeyboardInterrupt else error):
        train_together(trainers("fedavg", tmp_path), stop)
    resumed = alone("fedavg", tmp_path)
    assert [p.round for run in resumed for p in run.reports] == [3, 3, 3]
    assert all(equal(a, b) for a, b in zip(resumed, whole, strict=True))


def test_what_is_heard_is_the_mean_and_times_are_shares(
    tmp_path: Path, whole: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Slow(FedAvg):
        """A client's work takes one second of a clock that only it moves."""

        def local(self, client: Client) -> None:
            clock[0] += 1.0

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    found = trainers("fedavg", tmp_path)
    for it in found:
        it.method = Slow()
    reports: list[Progress] = []
    train_together(found, reports.append)
    for it in found:
        for line in it.checkpoint.rounds:
            assert line["local_seconds"] == line["total_seconds"] == 4.0, "12 clients' seconds over three runs"
            assert line["client_seconds"] == 4.0
    monkeypatch.undo()
    runs = together("fedavg", tmp_path / "real")
    losses = np.array([[line["loss"] for line in run.trainer.checkpoint.rounds] for run in runs])
    np.testing.assert_allclose([p.loss for p in runs[0].reports], losses.mean(0))
    assert runs[0].accuracy == pytest.approx(np.mean([run.accuracy for run in whole]))
