"""The choice of an executor: what is measured, when it is measured, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedbench import models
from fedbench.core import executors
from fedbench.core.client import Client
from fedbench.core.context import Context
from fedbench.core.plan import Plan
from fedbench.core.start import initialise, new_client
from fedbench.engine.speed import choice
from fedbench.engine.speed.choice import FILE, MARGIN, Choice, choose
from fedbench.engine.speed.probe import STEPS, steps_per_second
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.specs import Setting
from fedbench.store import Store
from tests.support.lab import federation, method, setting

DATA = federation()
FAST, SLOW = 10_000.0, 50.0  #: client-steps a second


def pick(store: Store, s: Setting | None = None, wanted: str = "auto", clients: int = 4) -> Choice:
    s = s or setting()
    model, initial = initialise(
        method("fedavg"), lambda: models.build(s.model, shape=DATA.shape, classes=10, seed=1), DATA, s
    )
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    store.home.mkdir(parents=True, exist_ok=True)

    def client(i: int) -> Client:
        return new_client(i, 1, initial, Context.of(DATA, s), DATA, plan)

    return choose(wanted, model, DATA, s, range(clients), client, store)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Pretend that the executors are so fast; returns the list of those that were measured."""

    def pretend(**rates: float) -> list[str]:
        measured: list[str] = []

        def rate(name: str, *_: Any) -> float:
            measured.append(name)
            return rates[name]

        monkeypatch.setattr(choice, "_rate", rate)
        return measured

    return pretend


def test_the_fastest_is_taken_and_remembered(store: Store, speeds: Callable[..., list[str]]) -> None:
    measured = speeds(cores=FAST, stacked=2 * FAST)
    first = pick(store)
    assert (first.name, first.how) == ("stacked", "measured")
    assert first.steps_per_second == {"cores": FAST, "stacked": 2 * FAST}
    assert first.date
    assert pick(store) == first
    assert measured == ["cores", "stacked"], "measured twice"
    assert len(read_json(store.home / FILE)) == 1


def test_near_a_tie_the_default_stays(store: Store, speeds: Callable[..., list[str]]) -> None:
    speeds(cores=FAST, stacked=0.99 * MARGIN * FAST)
    assert pick(store).name == "cores"


def test_another_shape_or_optimizer_is_measured_anew(store: Store, speeds: Callable[..., list[str]]) -> None:
    measured = speeds(cores=FAST, stacked=2 * FAST)
    pick(store)
    pick(store, setting(batch_size=8))
    pick(store, clients=2)
    assert len(measured) == 6
    pick(store, setting(lr=0.2, rounds=7))  # what changes no speed
    pick(store, clients=3)  # up to four clients
    assert len(measured) == 6
    pick(store, setting(optimizer="adamw", momentum=0.0))
    assert len(measured) == 8


def test_long_steps_leave_a_stack_nothing_to_gain(store: Store, speeds: Callable[..., list[str]]) -> None:
    measured = speeds(cores=SLOW, stacked=FAST)
    assert pick(store).name == "cores"
    assert measured == ["cores"]


def test_one_client_makes_no_stack(store: Store, speeds: Callable[..., list[str]]) -> None:
    measured = speeds(cores=FAST, stacked=2 * FAST)
    assert pick(store, clients=1).name == "cores"
    assert measured == ["cores"]


def test_bf16_is_not_stacked_on_a_cpu(store: Store, speeds: Callable[..., list[str]]) -> None:
    speeds(cores=FAST, stacked=2 * FAST)
    assert pick(store, setting(precision="bf16")).name == "cores"


@pytest.mark.parametrize("name", executors.EXECUTORS)
def test_a_forced_one_is_not_measured(store: Store, speeds: Callable[..., list[str]], name: str) -> None:
    measured = speeds()
    assert pick(store, wanted=name) == Choice(name, "forced")
    assert measured == []
    assert not (store.home / FILE).exists()


@pytest.mark.parametrize("name", executors.EXECUTORS)
def test_the_probe_trains_and_leaves_the_clients_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting()
    model, initial = initialise(
        method("fedavg"), lambda: models.build(s.model, shape=DATA.shape, classes=10, seed=1), DATA, s
    )
    cohort = [
        new_client(i, 1, initial, Context.of(DATA, s), DATA, Plan(s, DATA.n_train, DATA.shape[:2])) for i in range(4)
    ]
    executor = executors.make(name, model, DATA, s)
    served: list[int] = []
    run = executor.run

    def counting(clients: Any, box: Any) -> None:
        run(clients, box)
        served.extend(c.work.processed for c in clients)
        assert all(not torch.equal(c.state["head.weight"], initial["head.weight"]) for c in clients)

    monkeypatch.setattr(executor, "run", counting)
    assert steps_per_second(executor, cohort) > 0
    executor.close()
    three_steps = [min(STEPS * s.batch_size, n) for n in DATA.n_train]
    assert served == 3 * three_steps  # a warm-up and two measurements
    assert all(c.state is initial and not c.work.losses and c.work.phase == 0 for c in cohort)


def test_a_real_choice(store: Store) -> None:
    chosen = pick(store)
    assert chosen.name in choice.CANDIDATES["cpu"]
    assert set(chosen.steps_per_second) <= set(choice.CANDIDATES["cpu"])
    assert pick(store) == chosen


def test_a_setting_that_measures_times_names_its_executor(store: Store) -> None:
    """Whatever else is asked for: the executor is part of what is measured, and of the run's identity."""
    from fedbench import data, partitions, protocol
    from fedbench.engine.job import Job
    from fedbench.engine.run import execute

    rules = protocol.load("pfedfda")
    part = rules.partition_spec(data.resolve("digits", store), 10, scheme="iid")
    partitions.build(part, store)
    free = rules.setting(part, "smoke")
    timed = rules.setting(part, "smoke", {"executor": "sequential"})
    assert free.id != timed.id
    assert timed.budget == "smoke"
    run = execute(Job.of(timed, "fedavg", {}), store, [], executor="stacked")
    assert run.provenance["executor"] == "sequential"
    with pytest.raises(FedbenchError, match="executor"):
        rules.setting(part, "smoke", {"executor": "sequentail"})
