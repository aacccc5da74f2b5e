"""A sweep as an iterator: which runs go together, and what becomes of each, whoever executes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import declared
from fedbench.engine.job import Job
from fedbench.engine.sweep import End, Wanted, groups, sweep
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from tests.support.lab import setting


def wanted(seed: int, method: str = "fedavg", **changes: Any) -> Wanted:
    s = setting(seed=seed, **changes)
    return Wanted(declared.of(method).run(replace(s, partition=replace(s.partition, seed=seed)), {}), method)


RUNS = [wanted(1), wanted(1, "local"), wanted(2), wanted(3)]


def made(job: Job, by: str = "") -> Artifact:
    return Artifact(Path(), {"id": job.spec.id, "kind": "run", "provenance": {"process": by or process()}}, job.spec)


class Executor:
    """Notes what it is asked for."""

    def __init__(self, stacks: bool = True) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.stacks = stacks
        self.held: dict[int, int] = {}  #: seed -> so many more times another process is at its run
        self.broken: set[int] = set()  #: seeds that fail

    def __call__(self, jobs: Sequence[Job], title: str) -> list[Artifact]:
        self.calls.append(tuple(f"{job.spec.method} {job.spec.setting.seed}" for job in jobs))
        for job in jobs:
            if job.spec.setting.seed in self.broken:
                raise FedbenchError(f"no luck with {job.spec.setting.seed}")
        if len(jobs) > 1:
            free = [job for job in jobs if not self.held.get(job.spec.setting.seed)]
            return [made(job) for job in free] if self.stacks and len(free) > 1 else []
        seed = jobs[0].spec.setting.seed
        if self.held.get(seed, 0):
            self.held[seed] -= 1
            raise HeldError(f"run {seed}", "process 7 on elsewhere")
        return [made(jobs[0], "elsewhere-7" if seed in self.held else "")]


def ends(executor: Executor, store: Store) -> list[tuple[str, End]]:
    return [(one.title.split()[0], one.end) for one in sweep(RUNS, store, executor)]


def test_seeds_of_one_run_are_a_group_where_clients_may_be_stacked() -> None:
    assert groups(RUNS, "auto") == groups(RUNS, "graphed") == [[0, 2, 3], [1]]
    assert groups(RUNS, "cores") == [[0], [1], [2], [3]]
    timed = [wanted(seed, executor="sequential") for seed in (1, 2, 3)]
    assert groups(timed, "auto") == [[0], [1], [2]], "the setting's own executor goes first"


def test_what_was_made_together_is_not_asked_for_again(store: Store) -> None:
    executor = Executor()
    first, second, third = "(1/4)", "(3/4)", "(4/4)"
    assert ends(executor, store) == [(title, End.MADE) for title in (first, second, third, "(2/4)")]
    assert executor.calls == [("fedavg 1", "fedavg 2", "fedavg 3"), ("local 1",)]


def test_one_after_another_where_nothing_stacks(store: Store) -> None:
    executor = Executor(stacks=False)
    assert [end for _, end in ends(executor, store)] == [End.MADE] * 4
    assert executor.calls[1:] == [("fedavg 1",), ("fedavg 2",), ("fedavg 3",), ("local 1",)]


def test_one_that_fails_comes_apart_from_the_others(store: Store) -> None:
    executor = Executor()
    executor.broken = {2}
    assert ends(executor, store) == [
        ("(1/4)", End.APART), ("(1/4)", End.MADE), ("(3/4)", End.FAILED), ("(4/4)", End.MADE), ("(2/4)", End.MADE)
    ]  # fmt: skip


@pytest.mark.parametrize(("times", "end"), [(1, End.MADE_ELSEWHERE), (2, End.HELD)])
def test_what_another_process_holds_waits_until_the_end(store: Store, times: int, end: End) -> None:
    executor = Executor()
    executor.held = {2: times}
    assert ends(executor, store) == [("(1/4)", End.MADE), ("(4/4)", End.MADE), ("(2/4)", End.MADE), ("(3/4)", end)]
    assert executor.calls[-1] == ("fedavg 2",)


def test_a_run_that_cannot_be_is_a_failure_without_a_job(store: Store) -> None:
    failure, other = sweep([wanted(1, "fedem", votes=True), RUNS[0]], store, Executor())
    assert other.end is End.MADE
    assert (failure.title.split()[0], failure.end, failure.job) == ("(1/2)", End.FAILED, None)
    assert "its clients cannot vote" in str(failure.error)
