"""Stacks of clients, and the same as captured steps: who shares a block, whose steps change nothing of others, places
that are reused and never leak, and nothing that waits; layers of a stack, and of several networks side by side, each of
which computes what it does alone, values and gradients.

On a CPU nothing is captured; the very same steps are called, so that their arithmetic is tested without a GPU. What
methods and requests make of them is proved in test_parity.py, as captured steps of single clients are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench import models
from fedbench.conformance.subject import small
from fedbench.core import captured, executors, usage
from fedbench.core.captured import KEPT, CapturedStep, GraphedWorker, capacity
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Context, Loss, Train, Trained, Work
from fedbench.core.executors import Graphed, Stacked, training_flop
from fedbench.core.federation import Federation
from fedbench.core.images import Piece
from fedbench.core.network import Several
from fedbench.core.plan import Plan
from fedbench.core.precision import autocast
from fedbench.core.simulation import initialise
from fedbench.core.stacked import Stack, StackedWorker, Step, kind, ticks
from fedbench.core.state import Mean, State, _Sum, state_of
from fedbench.core.trainer import Trainer
from fedbench.core.usage import CPU_BLOCK
from fedbench.core.variants import twin, with_clients_among_channels, with_norms_for_vmap
from fedbench.core.worker import Cancelled, Worker
from fedbench.methods.base import cross_entropy
from fedbench.models import registry
from tests.support.cases import ALL, label
from tests.support.frames import refused
from tests.support.lab import client, federation, finish, method, needs_gpu, setting, trainer

DATA = federation((60, 24, 40, 16))
SETTING = setting()
PLAN = Plan(SETTING, DATA.n_train, (8, 8))


def bare(plan: Plan, index: int, first_row: int) -> Client:
    rows = torch.arange(first_row, first_row + plan.n_train[index])
    work = Work(DATA, plan, rows, rows[:0], phase=1)
    return Client(index, 1, 0.1, Context.of(DATA, plan.setting), torch.zeros(1), work, {}, {})


def test_clients_with_batches_of_one_size_step_together() -> None:
    """As many ticks as the longest schedule has steps, and one more where a short batch is apart."""
    plan = Plan(setting(batch_size=8), [24, 24, 20], (8, 8))
    everyone = [bare(plan, i, 0) for i in range(3)]
    schedules = [list(plan.batches(i, 1, 1, 1, None)) for i in range(3)]
    members = [tick.members for tick in ticks(everyone, schedules)]
    assert members[:3] == [slice(0, 3), slice(0, 3), slice(0, 2)]
    assert [m.tolist() for m in members[3:]] == [[2]]


class Watched(StackedWorker):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.groups: list[tuple[str, list[int]]] = []

    def answer(self, clients: Sequence[Client], requests: Sequence[Any]) -> Any:
        self.groups.append((type(requests[0]).__name__, [c.index for c in clients]))
        return super().answer(clients, requests)


def worker(kind: type[StackedWorker] = Watched) -> Any:
    return kind(small(), DATA, SETTING, threading.Event())


def everyone() -> list[Client]:
    return [client(DATA, PLAN, i, state_of(small())) for i in range(DATA.clients)]


def features(model: Any, batch: Batch) -> Tensor:
    return torch.cat([model.features(batch.x), batch.position[:, None].float()], 1)


def test_boxes_that_ask_for_different_things_each_get_their_own_answer() -> None:
    """Client 0 trains twice, client 1 collects and trains, client 2 has no update, client 3 trains and leaves."""
    got: dict[int, list[Any]] = {0: [], 1: [], 3: []}

    def update(client: Client) -> ClientUpdate | None:
        return None if client.index == 2 else steps(client)

    def steps(client: Client) -> ClientUpdate:
        if client.index == 1:
            got[1].append((yield Collect(features)))
            got[1].append((yield Train(cross_entropy, steps=2)))
        else:
            got[client.index].append((yield Train(cross_entropy)))
            if client.index == 0:
                got[0].append((yield Train(cross_entropy, steps=2)))

    it, who = worker(), everyone()
    it.serve(who, update)
    ours, got = got, {0: [], 1: [], 3: []}
    assert it.groups == [("Train", [0, 3]), ("Collect", [1]), ("Train", [0, 1])]
    assert [(c.work.phase, c.work.collects) for c in who] == [(2, 0), (1, 1), (0, 0), (1, 0)]
    assert [len(c.work.losses) for c in who] == [2, 1, 0, 1]
    assert all(c.work.seconds > 0 for c in who)
    assert all(t is who[2].received[n] for n, t in who[2].state.items())
    alone = everyone()
    Worker(small(), DATA, SETTING, threading.Event()).serve(alone, update)
    for i, answers in got.items():
        for a, b in zip(ours[i], answers, strict=True):
            assert type(a) is type(b)
            assert torch.equal(a.labels, b.labels)
            torch.testing.assert_close(a[0], b[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(who[i].state, alone[i].state, rtol=1e-4, atol=1e-5)


def with_index(model: Any, batch: Batch) -> Tensor:
    return torch.cat([batch.extras["index"].expand(len(batch.y))[:, None], features(model, batch)], 1)


def test_answers_come_in_the_order_of_the_requests() -> None:
    """Though the clients with most steps, and with most images, stand first in the stack."""
    it, who = worker(), everyone()
    who = [who[i] for i in (3, 0, 1, 2)]
    for c in who:
        c.work.phase = 1
    trained = it.train_stack(who, [Train(cross_entropy)] * 4)
    assert [t.images for t in trained] == [c.n_train for c in who]
    for t, c in zip(trained, who, strict=True):
        expected = np.concatenate(list(PLAN.batches(c.index, 1, 1, 1, None)))
        assert torch.equal(t.labels, DATA.labels[c.work.rows[torch.from_numpy(expected)]])
    collected = it.collect_stack(who, [Collect(with_index, {"index": torch.tensor(float(c.index))}) for c in who])
    for rows, c in zip(collected, who, strict=True):
        assert torch.equal(rows.labels, DATA.labels[c.work.rows])
        assert rows.rows[:, 0].tolist() == [c.index] * c.n_train
        assert rows.rows[:, -1].tolist() == list(range(c.n_train))
    answers = it.answers(who, [[Piece(c.work.test_rows, None)] for c in who])
    for labels, c in zip(answers, who, strict=True):
        own = small()
        own.load_state_dict(c.state)
        expected = own(it.batch(c.work.test_rows)).argmax(1)
        assert labels.tolist() == expected.tolist()
        assert labels.dtype == np.uint16


def times(model: Any, batch: Batch) -> Loss:
    """A loss that a client's own tensor can spoil."""
    return Loss(cross_entropy(model, batch).total * batch.extras["k"], collected=batch.y[:, None] * 1.0)


def test_what_makes_requests_of_one_kind() -> None:
    x = torch.zeros(3)
    assert kind(Train(times, extras={"a": x})) == kind(Train(times, extras={"a": x + 1}))
    different = [
        *(Train(times, extras=extras) for extras in ({}, {"a": x}, {"b": x}, {"a": x[:2]}, {"a": x.double()})),
        *(Train(times, extras={"a": x}, **one) for one in ({"steps": 3}, {"lr": 0.1}, {"prox": 0.1})),
        Train(times, trains=("head.",), extras={"a": x}),
        Train(cross_entropy, extras={"a": x}),
        Collect(features, extras={"a": x}),
    ]
    assert len({kind(request) for request in different}) == len(different)


class Impatient(StackedWorker):
    steps = 0

    def step(self, *given: Any) -> Step:
        self.steps += 1
        self.cancel.set()
        return super().step(*given)


def test_a_worker_hears_of_the_interrupt() -> None:
    """Before it begins, and between two steps of a stack."""
    for request in (Train(cross_entropy), Collect(features)):

        def update(client: Client, request: Any = request) -> ClientUpdate:
            yield request

        it = worker()
        it.cancel.set()
        with pytest.raises(Cancelled):
            it.serve(everyone(), update)
    with pytest.raises(Cancelled):
        it.answers(everyone(), [[Piece(rows, None)] for rows in DATA.test])
    it = worker(Impatient)
    with pytest.raises(Cancelled):
        it.train_stack(everyone(), [Train(cross_entropy)] * 4)
    assert it.steps == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_the_client_that_diverged_is_named_and_spoils_no_other(bad: float, index: int) -> None:
    def update(client: Client) -> ClientUpdate:
        yield Train(times, extras={"k": torch.tensor(bad if client.index == index else 1.0)})

    it, who = worker(), everyone()
    refused(rf"diverged: client {index} in round 1 .*smaller --lr", it.serve, who, update)
    assert [c.index for c in who if not all(t.isfinite().all() for t in c.state.values())] == [index]


@cache
def executor() -> Stacked:
    return Stacked(small(), DATA, SETTING, cores=1)


@given(sizes=st.lists(st.integers(1, 9), min_size=0, max_size=40), block=st.integers(1, 12), workers=st.integers(1, 6))
def test_blocks_hold_every_client_once_and_leave_no_worker_without(sizes: list[int], block: int, workers: int) -> None:
    it, plan = executor(), Plan(SETTING, sizes, (8, 8))
    it.block, it.stacks = block, workers
    blocks = it.blocks([bare(plan, i, 0) for i in range(len(sizes))])
    assert sorted(c.index for b in blocks for c in b) == list(range(len(sizes)))
    lengths = [len(b) for b in blocks]
    assert len(blocks) >= min(workers, len(sizes))
    if lengths:
        assert max(lengths) <= block
        assert min(lengths) >= max(1, max(lengths) - 1)  # none is much shorter than another
    flat = [c.n_train for b in blocks for c in b]
    assert flat == sorted(flat, reverse=True)  # like sizes together, the largest first


def test_runs_share_stacks_on_a_gpu_alone() -> None:
    """It is faster there; on a CPU a run's bits are those that it has alone."""
    it, plans = Stacked(small(), DATA, SETTING, cores=1, block=8), [Plan(SETTING, [9, 9], (8, 8)) for _ in range(2)]
    who = [bare(plan, i, 0) for plan in plans for i in range(2)]
    assert [len(block) for block in it.blocks(who)] == [1] * 4
    it.stacks, it.by_run = 1, False
    assert [len(block) for block in it.blocks(who)] == [4]


def test_a_block_is_as_large_as_the_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbench.core import executors

    asked: list[tuple[int, ...]] = []

    def fits(model: Any, images: Tensor, moments: int) -> int:
        asked.append((*images.shape, moments))
        return 3

    monkeypatch.setattr(executors, "clients_that_fit", fits)
    assert Stacked(small(), DATA, SETTING).block == 3
    assert asked == [(SETTING.batch_size, 1, 8, 8, 1)]
    assert Stacked(small(), DATA, replace(SETTING, optimizer="adamw", momentum=0.0)).block == 3
    assert asked[1:] == [(SETTING.batch_size, 1, 8, 8, 2)]
    assert Stacked(small(), DATA, SETTING, block=7).block == 7
    monkeypatch.setattr(executors, "clients_that_fit", lambda *_: 10**6)
    assert Stacked(small(), DATA, SETTING).block == executors.CPU_BLOCK


FIVE = federation((60, 50, 40, 30, 45))


class Counting(GraphedWorker):
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


def counting(norm: bool = False, data: Federation = FIVE, **changes: Any) -> Counting:
    return Counting(small(norm=norm), data, setting(**changes), threading.Event())


def clients(count: int, norm: bool = False, data: Federation = FIVE, **changes: Any) -> list[Client]:
    plan = Plan(setting(**changes), data.n_train, (8, 8))
    who = [client(data, plan, i, state_of(small(norm=norm, seed=i))) for i in range(count)]
    for one in who:
        one.work.phase = 1
    return who


def requests(factors: Sequence[float], **more: Any) -> list[Train]:
    return [Train(times, extras={"k": torch.tensor(k)}, **more) for k in factors]


def test_places_beyond_the_clients_do_no_harm() -> None:
    """A block of two after one of three that diverged: what is left at the third place stays there."""
    assert capacity(3) == 3
    it = counting()
    three = clients(3)
    with pytest.raises(Exception, match="client 2"):
        it.train_stack(three, requests([1.0, 1.0, float("nan")]))
    again = clients(3)
    it.train_stack(again, requests([1.0, 1.0, 1.0]))
    fresh = clients(3)
    counting().train_stack(fresh, requests([1.0, 1.0, 1.0]))
    for a, b in zip(again, fresh, strict=True):
        assert all(torch.equal(t, b.state[name]) for name, t in a.state.items())
    assert len(it.captures) == 1
    # Five clients have six places: the sixth holds what was there.
    it, five = counting(), clients(5)
    it.train_stack(five, requests([1.0] * 5))
    assert it.captures == [(6, 16)]
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
    assert it.captures == [(2, 16)]
    full, short = divmod(28, 16)
    assert short
    assert it.masked == 3 * 2 * full
    assert it.steps == 3 * 2 * (full + 1)


def test_few_of_many_step_plainly() -> None:
    """A replay costs as much with few as with all."""
    it, data = counting(data=federation((120, 20, 20, 20, 20))), federation((120, 20, 20, 20, 20))
    who = clients(5, data=data)
    assert data.n_train == [84, 14, 14, 14, 14]
    it.train_stack(who, requests([1.0] * 5))
    assert it.captures == [(6, 16)]
    assert it.masked == 0  # one client alone has whole batches
    assert it.steps == 6 + 1  # its six steps, and one of the four others together


def test_the_oldest_captures_are_dropped() -> None:
    it = counting()
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
    it, who = counting(), clients(3)
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
    it, first = counting(norm=True), clients(2, norm=True)
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
        assert torch.equal(a.collected, k)
        assert torch.equal(a.labels, y)


@needs_gpu
def test_on_a_gpu_a_step_is_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    replays: list[int] = []
    original = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replays.append(1), original(self))[1])
    data = Federation.of(
        FIVE.images.numpy(), FIVE.labels.numpy(), FIVE.client, FIVE.sample, FIVE.is_test, 10, device="cuda"
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
    "_local_scalar_dense",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "unique_consecutive",
    "_unique2",
    "lift_fresh",
    "equal",
    "is_nonzero",
    "pin_memory",
    "bincount",
    "repeat_interleave",
}
BY_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class NothingWaits(TorchDispatchMode):
    """Fails where an operator would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = [i for i in args[1] if i is not None and i.dtype == torch.bool] if name in BY_INDICES else []
        assert name not in WAITING, f"{name} waits for the device"
        assert not masks, f"{name} by a mask waits for the device"
        return func(*args, **(kwargs or {}))


class Unwaiting(GraphedWorker):
    requests = steps = 0

    def train_stack(self, *values: Any) -> list[Trained]:
        Unwaiting.requests += 1
        return super().train_stack(*values)

    def masked_step(self, *values: Any) -> Step:
        Unwaiting.steps += 1
        with NothingWaits():
            return super().masked_step(*values)


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4.0)
    for waiting in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor(1.0), x.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), NothingWaits():
            waiting()
    with NothingWaits():
        x[torch.arange(2)].sum().mul_(2.0).where(x > 1, x)


@pytest.mark.parametrize(("name", "chosen"), ALL, ids=label)  # most of them are slow ones
def test_nothing_waits_in_a_captured_step(
    name: str, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any method: its losses and rules, the optimiser, crops, running statistics."""
    monkeypatch.setattr(Graphed, "kind", Unwaiting)
    monkeypatch.setattr(Unwaiting, "requests", 0)
    monkeypatch.setattr(Unwaiting, "steps", 0)
    how, data = method(name, **chosen), federation((50, 50, 50, 50), groups=(0, 1, 0, 1), validation=0.2, color=True)
    s = setting(rounds=2, epochs=None, steps=2, batch_size=8, augment="crop", test_phase=True)
    finish(trainer(how, data, tmp_path, s, executor="graphed", network=partial(small, 3, True)))
    assert bool(Unwaiting.steps) == bool(Unwaiting.requests)  # who asks for single gradients has no captured steps


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
    one = usage.bytes_of_step(network, images)
    for total, lanes in ((4 * one * 3 + 8, 3), (one, 1)):
        of = SimpleNamespace(total_memory=total)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, of=of: of)
        assert usage.lanes_that_fit(network, images) == lanes


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


# -- layers: convolutions and pools with clients among the channels, norms, several networks side by side -----------


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def call(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.func.functional_call(net, state, (x,))


def stacked(clients: int, make: Callable[[], nn.Module]) -> tuple[list[nn.Module], dict[str, Tensor]]:
    """So many networks, and their parameters and buffers, [C, ...]."""
    nets = [seeded(seed, make) for seed in range(clients)]
    return nets, {n: torch.stack([state_of(net)[n] for net in nets]) for n in state_of(nets[0])}


def gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    slope = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * slope).sum(), of)


def with_pool(
    kernel: int = 3, stride: int = 1, padding: int = 1, bias: bool = True, pool: int = 2, kind: Any = nn.MaxPool2d
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, kernel, stride, padding, bias=bias), kind(pool), nn.ReLU(), nn.Conv2d(3, 4, 1)
    ).double()


@settings(max_examples=25)
@given(
    clients=st.integers(1, 4),
    images=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    bias=st.booleans(),
    pool=st.integers(1, 2),
    kind=st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]),
    same_images=st.booleans(),
    common=st.sets(st.sampled_from(["0.weight", "0.bias", "3.weight"])),
)
def test_values_and_gradients_are_those_of_each_client(
    clients: int, images: int, same_images: bool, common: set[str], **form: Any
) -> None:
    """Where images or some parameters are the same for all, too."""
    nets, state = stacked(clients, lambda: with_pool(**form))
    other, x = with_clients_among_channels(nets[0]), drawn(clients, images, 2, 7, 8, seed=1)
    if same_images:
        x = x[:1].expand_as(x)
    state = {n: t.requires_grad_() for n, t in state.items()}
    inputs, axis = (x[0], None) if same_images else (x, 0)
    each = {n: t for n, t in state.items() if n not in common}
    shared = {n: t[0] for n, t in state.items() if n in common}
    got = torch.func.vmap(lambda s, i: call(other, {**s, **shared}, i), in_dims=(0, axis))(each, inputs)
    alone = ({**{n: t[i] for n, t in each.items()}, **shared} for i in range(clients))
    expected, of = torch.stack([call(nets[0], one, x[i]) for i, one in enumerate(alone)]), list(each.values())
    for a, b in zip((got, *gradients(got, of)), (expected, *gradients(expected, of)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_the_parameters_are_the_same_tensors_and_other_layers_stay() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1),
        nn.MaxPool2d(2, return_indices=True),
        nn.Conv2d(2, 2, 1),
        nn.LPPool2d(2, 2),
    )
    other = with_clients_among_channels(net)
    assert all(a is b for a, b in zip(net.parameters(), other.parameters(), strict=True))
    own = [vars(layer).get("forward") is not None for layer in other]
    assert own == [False, False, False, True, False]


def test_pooled_maps_lie_clients_and_channels_innermost() -> None:
    """The layout that it is all about: pooling gets many channels, and the next layer copies nothing."""
    nets, state = stacked(4, with_pool)
    other = with_clients_among_channels(nets[0][:2])
    own = {n: t for n, t in state.items() if n.startswith("0")}
    out = torch.func.vmap(lambda s, i: call(other, s, i), out_dims=1)(own, drawn(4, 5, 2, 8, 8))  # [image, client, ...]
    assert out.permute(0, 3, 4, 1, 2).is_contiguous()


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_behind_a_convolution(clients: int, images: int, bias: bool) -> None:
    """A stack of single images, and a convolution without a bias: what torch's own rule once got wrong."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3, bias=bias), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Tanh())

    nets, state = stacked(clients, make)
    other = with_clients_among_channels(nets[0].to(memory_format=torch.channels_last)).train()
    x, names = drawn(clients, images, 2, 8, 8, seed=1, dtype=torch.float32), [n for n, _ in other.named_parameters()]
    leaves = {n: state[n].clone().requires_grad_() for n in names}
    buffers = {n: t.clone() for n, t in state.items() if n not in names}
    got = torch.func.vmap(lambda s, b, i: call(other, {**s, **b}, i))(leaves, buffers, x)
    ours = torch.autograd.grad(got.square().sum(), list(leaves.values()))
    for i, net in enumerate(nets):
        net.double()(x[i].double()).square().sum().backward()
        for n, g in zip(leaves, ours, strict=True):
            if n != "0.bias":  # which the norm takes away again
                torch.testing.assert_close(g[i].double(), net.get_parameter(n).grad, rtol=1e-4, atol=1e-5)


def normed(kind: str = "batch") -> nn.Module:
    norms = nn.BatchNorm2d(3), nn.BatchNorm1d(5)
    if kind == "group":
        norms = nn.GroupNorm(3, 3), nn.GroupNorm(1, 5)
    # Autocast reaches a product without a bias under vmap, and none with one.
    head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(48, 5, bias=False))
    return nn.Sequential(nn.Conv2d(2, 3, 3), norms[0], head, norms[1]).train()


@pytest.mark.parametrize(
    ("precision", "kind", "lay"),
    [
        *(("fp32", kind, lay) for kind in ("batch", "group") for lay in (twin, with_clients_among_channels)),
        ("bf16", "batch", twin),
    ],
)
def test_norms_of_a_stack_are_each_alone(precision: str, kind: str, lay: Any) -> None:
    """Output, gradients and running statistics, in short numbers too."""
    images, aims = drawn(3, 8, 2, 6, 6, dtype=torch.float32), drawn(8, 5, seed=1, dtype=torch.float32)
    alone, state = stacked(3, lambda: normed(kind))
    model = seeded(0, lambda: normed(kind))
    shared = with_norms_for_vmap(lay(model))
    assert lay is not twin or all("forward" not in vars(module) for module in model.modules()), "it is left as it was"
    for name, _ in shared.named_parameters():
        state[name].requires_grad_()
    with autocast(precision, torch.device("cpu")):
        out = torch.func.vmap(lambda s, x: call(shared, s, x))(state, images)
        theirs = [model(x) for model, x in zip(alone, images, strict=True)]
    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "fp32" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(out.float(), torch.stack(theirs).float(), **close)
    torch.autograd.backward([(out.float() * aims).sum()])
    for i, (model, its) in enumerate(zip(alone, theirs, strict=True)):
        torch.autograd.backward([(its.float() * aims).sum()])
        for name, p in model.named_parameters():
            gap = (state[name].grad[i] - p.grad).norm() / (1 + p.grad.norm())
            assert gap < (1e-3 if precision == "fp32" else 0.05), name
        for name, b in model.named_buffers():
            torch.testing.assert_close(state[name][i], b, **close)


SHAPES = {"lenet5_flux": (28, 28, 1), "lenet5": (32, 32, 3), "lenet_tanh": (28, 28, 1), "digits_cnn": (8, 8, 1)}


def networks(name: str, count: int) -> list[nn.Module]:
    made = [seeded(k, lambda: registry.class_of(name)(SHAPES.get(name, (32, 32, 3)), 10)) for k in range(count)]
    return [network.to(memory_format=torch.channels_last) for network in made]


def images(name: str) -> Tensor:
    height, width, channels = SHAPES.get(name, (32, 32, 3))
    return torch.rand(7, height, width, channels).permute(0, 3, 1, 2) * 2 - 1


@pytest.mark.parametrize(("name", "count"), [*((name, 3) for name in SHAPES), ("digits_cnn", CPU_BLOCK + 1)])
def test_at_once_they_are_what_they_are_one_by_one(name: str, count: int) -> None:
    alone, together, x = networks(name, count), Several(networks(name, count)), images(name)
    assert together.plain, "or this compares one thing with itself"
    out, expected = together.scores(x), torch.stack([network(x) for network in alone])
    torch.testing.assert_close(out, expected)
    ours, its = (gradients(z, [*nets.parameters()]) for z, nets in ((out, together), (expected, nn.ModuleList(alone))))
    for a, b in zip(ours, its, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_running_statistics_move_each_in_its_own_network() -> None:
    alone, together = networks("cifar_cnn_bn", 2), Several(networks("cifar_cnn_bn", 2))
    x = images("cifar_cnn_bn")
    assert torch.equal(together.scores(x), torch.stack([network(x) for network in alone]))
    for network, other in zip(together, alone, strict=True):
        for name, t in other.state_dict().items():
            assert torch.equal(network.state_dict()[name], t), name


def test_dropout_is_drawn_for_each() -> None:
    several = Several([nn.Sequential(nn.Linear(50, 10), nn.Dropout(0.5)) for _ in range(2)])
    several[1].load_state_dict(several[0].state_dict())
    first, second = several.scores(torch.ones(1, 50))
    assert not torch.equal(first, second)
