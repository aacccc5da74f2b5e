"""Stacks of clients: the order of their steps, updates in lockstep, and who shares a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.subject import small
from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Context, Loss, Train, Work
from fedbench.core.executors import Stacked
from fedbench.core.plan import Plan
from fedbench.core.stacked import StackedWorker, Step, kind, ticks
from fedbench.core.state import state_of
from fedbench.core.worker import Cancelled, Piece, Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import cross_entropy
from tests.support.lab import client, federation, setting

DATA = federation((60, 24, 40, 16))
SETTING = setting()
PLAN = Plan(SETTING, DATA.n_train, (8, 8))


def bare(plan: Plan, index: int, first_row: int) -> Client:
    """A client that only has rows."""
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
    assert [m.tolist() for m in members[3:]] == [[2]]  # type: ignore[union-attr]


class Watched(StackedWorker):
    """Remembers which clients were answered together."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.groups: list[tuple[str, list[int]]] = []

    def answer(self, clients: Sequence[Client], requests: Sequence[Any]) -> Any:
        self.groups.append((type(requests[0]).__name__, [c.index for c in clients]))
        return super().answer(clients, requests)


def worker(kind: type[StackedWorker] = Watched, **changes: Any) -> Any:
    return kind(small(), DATA, setting(**changes), threading.Event())


def everyone(**changes: Any) -> list[Client]:
    state, plan = state_of(small()), Plan(setting(**changes), DATA.n_train, (8, 8))
    return [client(DATA, plan, i, dict(state)) for i in range(DATA.clients)]


def one_after_another(update: Callable[[Client], ClientUpdate | None]) -> list[Client]:
    alone = everyone()
    Worker(small(), DATA, SETTING, threading.Event()).serve(alone, update)
    return alone


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
    alone = one_after_another(update)
    for i, answers in got.items():
        for a, b in zip(ours[i], answers, strict=True):
            assert type(a) is type(b)
            assert torch.equal(a.labels, b.labels)
            torch.testing.assert_close(a[0], b[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(who[i].state, alone[i].state, rtol=1e-4, atol=1e-5)


def weighted(model: Any, batch: Batch) -> Loss:
    """With a weight an image, which each client has a different number of."""
    each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
    return Loss((batch.extras["weight"][batch.position] * each).mean())


def test_extras_of_different_shapes_are_not_stacked() -> None:
    def update(client: Client) -> ClientUpdate:
        yield Train(weighted, extras={"weight": torch.arange(float(client.n_train)) / client.n_train})

    it, who = worker(), everyone()
    who.append(client(DATA, PLAN, 2, state_of(small())))  # another of the same size
    it.serve(who, update)
    assert [group for _, group in it.groups] == [[0], [1], [2, 2], [3]]
    for a, b in zip(who, one_after_another(update), strict=False):
        torch.testing.assert_close(a.state, b.state, rtol=1e-4, atol=1e-5)


def test_what_makes_requests_of_one_kind() -> None:
    x = torch.zeros(3)
    assert kind(Train(weighted, extras={"a": x})) == kind(Train(weighted, extras={"a": x + 1}))
    different = [
        *(Train(weighted, extras=extras) for extras in ({}, {"a": x}, {"b": x}, {"a": x[:2]}, {"a": x.double()})),
        *(Train(weighted, extras={"a": x}, **one) for one in ({"steps": 3}, {"lr": 0.1}, {"prox": 0.1})),  # type: ignore[arg-type]
        Train(weighted, trains=("head.",), extras={"a": x}),
        Train(cross_entropy, extras={"a": x}),
        Collect(features, extras={"a": x}),
    ]
    assert len({kind(request) for request in different}) == len(different)


class Impatient(StackedWorker):
    """Is interrupted in its first step."""

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


def times_its_own(model: Any, batch: Batch) -> Loss:
    return Loss(cross_entropy(model, batch).total * batch.extras["k"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_the_client_that_diverged_is_named_and_spoils_no_other(bad: float, index: int) -> None:
    def update(client: Client) -> ClientUpdate:
        yield Train(times_its_own, extras={"k": torch.tensor(bad if client.index == index else 1.0)})

    it, who = worker(), everyone()
    with pytest.raises(FedbenchError, match=rf"diverged: client {index} in round 1 .*smaller --lr"):
        it.serve(who, update)
    assert [c.index for c in who if not all(t.isfinite().all() for t in c.state.values())] == [index]


@cache
def executor() -> Stacked:
    return Stacked(small(), DATA, SETTING, cores=1)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=0, max_size=40),
    block=st.integers(1, 12),
    workers=st.integers(1, 6),
)
def test_blocks_hold_every_client_once_and_leave_no_worker_without(sizes: list[int], block: int, workers: int) -> None:
    it, plan = executor(), Plan(SETTING, sizes, (8, 8))
    it.block, it.stacks = block, workers
    who = [bare(plan, i, 0) for i in range(len(sizes))]
    blocks = it.blocks(who)
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


def test_how_convolutions_are_computed_is_an_option() -> None:
    made: list[Callable[..., Any]] = []
    for how in ("vmap", "grouped"):
        it = StackedWorker(small(), DATA, SETTING, threading.Event(), how)
        made.append(it.networks.of("").scope.model.backbone[0].forward)
    assert made[0].__func__ is torch.nn.Conv2d.forward
    assert len({m.__func__ for m in made}) == 2
