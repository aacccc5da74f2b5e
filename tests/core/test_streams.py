"""Captured steps of single clients, side by side: places are reused and never leak, a capture leaves nothing behind.

On a CPU nothing is captured and the very same steps are called, with the reference's bits: what methods and requests
make of them is proved in test_parity.py. Here is what a device would add, by stand-ins.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench import models
from fedbench.conformance.subject import small
from fedbench.core import captured as module
from fedbench.core import executors, precision
from fedbench.core.captured import StreamedWorker
from fedbench.core.client import Add, Batch, Client, ClientUpdate, Collect, Collected, Loss, Train, Trained, logits
from fedbench.core.executors import training_flop
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.state import Mean, State, _Sum, as_model, state_of
from fedbench.methods.base import cross_entropy
from tests.support.lab import client, federation, setting

#: Clients with whole batches of 16, with short ones, and with nothing but a short one.
DATA = federation((40, 25, 36, 12, 66), color=True)
SETTING = setting(batch_size=16, augment="crop", epochs=2, momentum=0.9, weight_decay=5e-4, lr=0.02)


def weighted(model: Any, batch: Batch) -> Loss:
    """A loss with a tensor of the client's own, which keeps its features."""
    loss = cross_entropy(model, batch).total
    return Loss(loss * batch.extras["k"], logged=loss, collected=model.features(batch.x))


def box(one: Client) -> ClientUpdate:
    """Everything that has a place: momentum, a centre that moves, what a rule reads, extra tensors; and answers."""
    k = torch.tensor(1.0 + one.index)
    answers = vars(one).setdefault("answers", [])
    answers.append((yield Train(weighted, prox=0.1, follow=0.5, rules=(Add("control"),), extras={"k": k})))
    answers.append((yield Train(cross_entropy, trains=("head.",), momentum=0.0, steps=3)))
    answers.append((yield Collect(logits)))
    answers.append((yield Collect(logits, split="test")))


def run(executor: str, norm: bool = True, **options: Any) -> list[Client]:
    """The clients after their update."""
    network = small(3, norm)
    plan = Plan(SETTING, DATA.n_train, DATA.shape[:2])
    runner = executors.make(executor, network, DATA, SETTING, **options)
    who = []
    for i in range(DATA.clients):
        state = state_of(network)
        control = {n: torch.full_like(t, 0.01 * i) for n, t in state.items() if t.is_floating_point()}
        who.append(client(DATA, plan, i, {**state, **as_model(control, "control")}))
    try:
        runner.run(who, box)
    finally:
        runner.close()
    return who


def compare(ours: Sequence[Client], its: Sequence[Client], far: float = 0.0) -> None:
    def close(a: Tensor, b: Tensor) -> bool:
        return torch.equal(a, b) if far == 0 else torch.allclose(a, b, rtol=0, atol=far)

    for a, b in zip(ours, its, strict=True):
        assert all(close(a.state[n], t) for n, t in b.state.items())
        for x, y in zip(vars(a)["answers"], vars(b)["answers"], strict=True):
            if isinstance(y, Collected):
                assert close(x.rows, y.rows)
                continue
            assert isinstance(y, Trained)
            assert x.loss == pytest.approx(y.loss, abs=far)
            assert (x.images, x.steps, x.pass_rows) == (y.images, y.steps, y.pass_rows)
            assert torch.equal(x.labels, y.labels)
            assert (x.collected is None) is (y.collected is None)
            assert x.collected is None or close(x.collected, y.collected)
            assert all(close(x.centre[n], t) for n, t in y.centre.items())


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was captured: as on a GPU steps are taken before, and one is while it is."""
    seen: list[Any] = []

    def captured(run: Callable[[], Any], stream: Any, pool: Any, warm: Callable[[], None]) -> Callable[[], Any]:
        seen.append(run)
        warm()
        place = run()  # what a replay writes over

        def replay() -> Any:
            if place is not None:
                place.copy_(run())
            else:
                run()
            return place

        return replay

    monkeypatch.setattr(module, "captured", captured)
    monkeypatch.setattr(module, "USES", 2)
    return seen


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_a_capture_leaves_nothing_behind_and_no_client_anything_to_the_next(captures: list[Any], lanes: int) -> None:
    compare(run("streams", cores=1, lanes=lanes), run("sequential"), far=1e-6)
    # Two kinds of training a lane that has a client with a whole batch; answers of training and of test images.
    assert len(captures) == 2 * min(lanes, 4) + 2


def test_the_oldest_captures_go(monkeypatch: pytest.MonkeyPatch, captures: list[Any]) -> None:
    monkeypatch.setattr(module, "KEPT", 1)
    compare(run("streams", cores=1, lanes=1), run("sequential"), far=1e-6)
    assert len(captures) > 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_compiled(captures: list[Any]) -> None:
    compare(run("streams", cores=1, lanes=2, compiled=True), run("sequential"), far=1e-4)


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, captures: list[Any]) -> None:
    def refuse(*_: Any, **__: Any) -> Callable[..., Any]:
        def broken(*_: Any) -> Any:
            raise RuntimeError("no compiler")

        return broken

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="not compiled: RuntimeError: no compiler"):
        ours = run("streams", cores=1, lanes=2, compiled=True)
    compare(ours, run("sequential"), far=1e-6)


def test_an_error_of_the_loss_is_no_fault_of_the_compiler(captures: list[Any]) -> None:
    def wrong(model: Any, batch: Batch) -> Loss:
        raise ZeroDivisionError

    def update(one: Client) -> ClientUpdate:
        yield Train(wrong)

    runner = executors.make("streams", small(3, True), DATA, SETTING, cores=1, compiled=True)
    state = state_of(small(3, True))
    who = [client(DATA, Plan(SETTING, DATA.n_train, DATA.shape[:2]), 0, state)]
    with pytest.warns(UserWarning, match="not compiled"), pytest.raises(ZeroDivisionError):
        runner.run(who, update)
    runner.close()


def test_a_long_run_is_compiled_and_a_short_one_is_not() -> None:
    """FedDRM's runs: 427 GFLOP a step, eight clients, ten steps."""
    network = models.build("resnet18_gn", shape=(32, 32, 3), classes=10, seed=0)
    owner = np.repeat(np.arange(8), 140)
    blank, label = np.zeros((len(owner), 32, 32, 3), np.uint8), np.zeros_like(owner)
    data = Federation.of(blank, label, owner, np.arange(len(owner)), np.zeros(len(owner), bool), 10)
    steps = setting(epochs=None, steps=10, batch_size=128, rounds=800)
    assert training_flop(network, data, steps) == pytest.approx(800 * 80 * 427e9, rel=0.01)
    assert (
        training_flop(network, data, steps)
        > executors.COMPILED_FLOP
        > training_flop(network, data, setting(epochs=None, steps=10, batch_size=128, rounds=100))
    )
    a_pass = training_flop(network, data, setting(epochs=1, rounds=1))
    assert a_pass == pytest.approx(sum(data.n_train) / 128 * 427e9, rel=0.01)
    assert training_flop(network, data, setting(epochs=1, rounds=1, cohort=2)) == pytest.approx(a_pass / 4)


def test_as_many_lanes_as_a_quarter_of_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = small(3, True), torch.zeros(16, 3, 8, 8)
    one = precision.bytes_of_step(network, images)
    for total, lanes in ((4 * one * 3 + 8, 3), (one, 1)):
        of = SimpleNamespace(total_memory=total)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, of=of: of)
        assert precision.lanes_that_fit(network, images) == lanes


def test_a_mean_on_a_gpu_is_the_mean_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There large tensors are added whole, in the same order and in float64."""
    generator = torch.Generator().manual_seed(0)
    states: list[State] = [{"w": torch.randn(70, 80, generator=generator)} for _ in range(5)]
    whole, cut = Mean(["w"], [3, 1, 2, 5, 4]), Mean(["w"], [3, 1, 2, 5, 4])
    for state in states:
        whole.add(state)
        if not cut.sums:
            cut.sums["w"] = _Sum(state["w"], cut.share)
            cut.sums["w"].weights = cut.share.tolist()
        cut.add(state)
    torch.testing.assert_close(cut.result()["w"], whole.result()["w"], rtol=1e-6, atol=1e-7)


def test_a_worker_of_many_kinds_of_questions_asks_plainly_at_first(captures: list[Any]) -> None:
    worker = executors.make("streams", small(3, True), DATA, SETTING, cores=1).worker()  # type: ignore[attr-defined]
    assert isinstance(worker, StreamedWorker)
    worker.load(state_of(small(3, True)))
    piece = module.Piece(DATA.test[0], None)
    for asked in range(4):
        got = worker.scores(Collect(logits), piece)
        assert len(captures) == max(0, min(asked - 1, 1))
        assert got.shape == (len(DATA.test[0]), 10)
