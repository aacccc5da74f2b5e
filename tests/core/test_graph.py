"""Captured steps: who is masked does not move, places are reused and never leak into answers, nothing waits.

On a CPU nothing is captured; the very same step is called, so that its arithmetic is tested without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.conformance.subject import small
from fedbench.core import captured
from fedbench.core.captured import KEPT, CapturedStep, GraphedWorker, capacity
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Batch, Client, ClientUpdate, Loss, Train, Trained
from fedbench.core.executors import Graphed
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.simulation import initialise
from fedbench.core.stacked import Stack, StackedWorker, Step
from fedbench.core.state import state_of
from fedbench.core.trainer import Trainer
from fedbench.methods.base import cross_entropy
from tests.support.cases import ALL, label
from tests.support.gpu import needs_gpu
from tests.support.lab import client, federation, finish, method, setting, trainer

DATA = federation((60, 50, 40, 30, 45))


class Counting(GraphedWorker):
    """Counts captures and steps, of which some are masked."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.captures: list[tuple[int, int]] = []
        self.steps = self.masked = 0

    def capture(self, like: Stack, room: int, size: int) -> CapturedStep:
        self.captures.append((room, size))
        return super().capture(like, room, size)

    def masked_step(self, *given: Any) -> Step:
        self.masked += 1
        return super().masked_step(*given)

    def backward(self, *given: Any) -> Any:
        self.steps += 1
        return super().backward(*given)


def worker(norm: bool = False, data: Federation = DATA, **changes: Any) -> Counting:
    return Counting(small(norm=norm), data, setting(**changes), threading.Event())


def clients(count: int, norm: bool = False, data: Federation = DATA, **changes: Any) -> list[Client]:
    plan = Plan(setting(**changes), data.n_train, (8, 8))
    who = [client(data, plan, i, state_of(small(norm=norm, seed=i))) for i in range(count)]
    for one in who:
        one.work.phase = 1
    return who


def times(model: Any, batch: Batch) -> Loss:
    """A loss that a client's own tensor can spoil."""
    return Loss(cross_entropy(model, batch).total * batch.extras["k"], collected=batch.y[:, None] * 1.0)


def requests(factors: Sequence[float], **more: Any) -> list[Train]:
    return [Train(times, extras={"k": torch.tensor(k)}, **more) for k in factors]


def test_places_beyond_the_clients_do_no_harm() -> None:
    """A block of two after one of three that diverged: what is left at the third place stays there."""
    assert capacity(3) == 3
    it = worker()
    three = clients(3)
    with pytest.raises(Exception, match="client 2"):
        it.train_stack(three, requests([1.0, 1.0, float("nan")]))
    again = clients(3)
    it.train_stack(again, requests([1.0, 1.0, 1.0]))
    fresh = clients(3)
    worker().train_stack(fresh, requests([1.0, 1.0, 1.0]))
    for a, b in zip(again, fresh, strict=True):
        assert all(torch.equal(t, b.state[name]) for name, t in a.state.items())
    assert len(it.captures) == 1
    # Five clients have six places: the sixth holds what was there.
    it, five = worker(), clients(5)
    it.train_stack(five, requests([1.0] * 5))
    assert it.captures == [(6, 16)]
    assert it.current is not None
    for t in it.current.stack.trained.values():
        t[5] = float("nan")
    more = clients(5)
    it.train_stack(more, requests([1.0] * 5))
    for a, b in zip(more, five, strict=True):
        assert all(torch.equal(t, b.state[name]) for name, t in a.state.items())


def test_capacity_has_room_for_all_and_little_more() -> None:
    """Cohorts of like size share a captured."""
    sizes = range(1, 5001)
    assert all(n <= capacity(n) <= max(n, 1.5 * n) and capacity(n) <= capacity(n + 1) for n in sizes)
    assert all(capacity(capacity(n)) == capacity(n) for n in sizes)
    assert len({capacity(n) for n in range(1, 1025)}) == 20


def test_a_run_captures_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a round, three rounds, two rates: one captured step."""
    monkeypatch.setattr(Graphed, "kind", Counting)
    data, s = federation((40, 40, 40, 40)), setting(schedule="cosine", window=1)
    how, plan = method("fedavg"), Plan(s, data.n_train, (8, 8))
    model, initial = initialise(how, small, data, s)
    tmp_path.mkdir(exist_ok=True)
    executor = Graphed(model, data, s, cores=1, block=2)
    Trainer(s, how, data, model, initial, executor, plan, Checkpoint(tmp_path)).run()
    (it,) = executor.map(lambda worker, _: worker, [0])
    executor.close()
    assert isinstance(it, Counting)
    assert it.captures == [(2, 16)]
    full, short = divmod(28, 16)
    assert short
    assert it.masked == 3 * 2 * full
    assert it.steps == 3 * 2 * (full + 1)


def test_few_of_many_step_plainly() -> None:
    """A replay costs as much with few as with all."""
    it, data = worker(data=federation((120, 20, 20, 20, 20))), federation((120, 20, 20, 20, 20))
    who = clients(5, data=data)
    assert data.n_train == [84, 14, 14, 14, 14]
    it.train_stack(who, requests([1.0] * 5))
    assert it.captures == [(6, 16)]
    assert it.masked == 0  # one client alone has whole batches
    assert it.steps == 6 + 1  # its six steps, and one of the four others together


def test_the_oldest_captures_are_dropped() -> None:
    it = worker()
    for k in range(KEPT + 2):
        it.train_stack(clients(2), requests([1.0, 1.0], steps=1, lr=0.01 * (k + 1)))
    assert len(it.captures) == KEPT + 2
    assert len(it.captured) == KEPT
    it.train_stack(clients(2), requests([1.0, 1.0], steps=1, lr=0.03))  # the oldest that is left: now the youngest
    assert len(it.captures) == KEPT + 2
    it.train_stack(clients(2), requests([1.0, 1.0], steps=1, lr=0.01))  # was dropped
    assert len(it.captures) == KEPT + 3
    it.train_stack(clients(2), requests([1.0, 1.0], steps=1, lr=0.03))
    assert len(it.captures) == KEPT + 3
    assert len(it.captured) == KEPT


def test_another_make_of_stack_is_another_capture() -> None:
    it, who = worker(), clients(3)
    common = state_of(small())
    for one in who:
        one.state = {**one.state, **{n: t for n, t in common.items() if n.startswith("backbone.")}}
    asked = [Train(cross_entropy, steps=1, trains=("head.",))] * 3
    it.train_stack(who, asked)
    it.train_stack(clients(3), asked)  # bodies of their own, not a common one
    it.train_stack(who[:2], asked[:2])
    assert len(it.captures) == 3
    it.train_stack(who, asked)
    assert len(it.captures) == 3


def test_what_came_out_of_one_block_is_not_written_over_by_the_next() -> None:
    it, first = worker(norm=True), clients(2, norm=True)
    answers = it.train_stack(first, requests([1.0, 1.0]))
    held = [{name: t.clone() for name, t in c.state.items()} for c in first]
    kept = [a.collected.clone() for a in answers if a.collected is not None]
    labels = [a.labels.clone() for a in answers]
    second = clients(4, norm=True)[2:]
    it.train_stack(second, requests([1.0, 1.0]))
    assert len(it.captures) == 1
    for c, then in zip(first, held, strict=True):
        assert all(torch.equal(t, then[name]) for name, t in c.state.items())
    for a, k, y in zip(answers, kept, labels, strict=True):
        assert a.collected is not None
        assert torch.equal(a.collected, k)
        assert torch.equal(a.labels, y)


def test_a_single_client_goes_through_the_captured_step() -> None:
    it = worker()

    def update(client: Client) -> ClientUpdate:
        yield Train(cross_entropy)

    it.serve(clients(1), update)
    assert it.captures == [(1, 16)]
    assert it.masked == DATA.n_train[0] // 16


@needs_gpu
def test_on_a_gpu_a_step_is_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    replays: list[int] = []
    original = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replays.append(1), original(self))[1])
    data = Federation.of(
        DATA.images.numpy(), DATA.labels.numpy(), DATA.client, DATA.sample, DATA.is_test, 10, device="cuda"
    )
    model = small(norm=True).cuda()
    it = Counting(model, data, setting(), threading.Event())
    reference = StackedWorker(model, data, setting(), threading.Event())
    plan = Plan(setting(), data.n_train, (8, 8))
    for _ in range(2):
        ours, its = ([client(data, plan, i, state_of(model)) for i in range(4)] for _ in range(2))
        for c in (*ours, *its):
            c.work.phase = 1
        it.train_stack(ours, [Train(cross_entropy)] * 4)
        reference.train_stack(its, [Train(cross_entropy)] * 4)
        for a, b in zip(ours, its, strict=True):
            for name, t in b.state.items():
                torch.testing.assert_close(a.state[name], t, rtol=1e-3, atol=1e-4, msg=name)
    assert len(it.captures) == 1
    assert replays
    assert it.masked == captured.WARM_UP + 1


#: Operators that look at a tensor's values on the host, or bring new ones from there; CUDA forbids both in a capture.
WAITING = {
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "unique_consecutive", "_unique2", "lift_fresh",
    "equal", "is_nonzero", "pin_memory", "bincount", "repeat_interleave",
}  # fmt: skip
BY_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class NothingWaits(TorchDispatchMode):
    """Fails where an operator would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = [i for i in args[1] if i is not None and i.dtype == torch.bool] if name in BY_INDICES else []
        assert name not in WAITING, f"{name} waits for the device"
        assert not masks, f"{name} by a mask waits for the device"
        return func(*args, **(kwargs or {}))


class Watched(GraphedWorker):
    """Every captured step under that eye."""

    requests = steps = 0

    def train_stack(self, *values: Any) -> list[Trained]:
        Watched.requests += 1
        return super().train_stack(*values)

    def masked_step(self, *values: Any) -> Step:
        Watched.steps += 1
        with NothingWaits():
            return super().masked_step(*values)


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4.0)
    for waiting in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor(1.0), x.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), NothingWaits():
            waiting()
    with NothingWaits():
        x[torch.arange(2)].sum().mul_(2.0).where(x > 1, x)


@pytest.mark.parametrize(("name", "chosen"), ALL, ids=label)
def test_nothing_waits_in_a_captured_step(
    name: str, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any method: its losses and rules, the optimiser, crops, running statistics."""
    monkeypatch.setattr(Graphed, "kind", Watched)
    monkeypatch.setattr(Watched, "requests", 0)
    monkeypatch.setattr(Watched, "steps", 0)
    how, data = method(name, **chosen), federation((50, 50, 50, 50), groups=(0, 1, 0, 1), validation=0.2, color=True)
    s = setting(rounds=2, epochs=None, steps=2, batch_size=8, augment="crop", test_phase=True)
    finish(trainer(how, data, tmp_path, s, executor="graphed", network=partial(small, 3, True)))
    assert bool(Watched.steps) == bool(Watched.requests)  # who asks for single gradients has no captured steps
