"""What every method must satisfy: it finds them by the registry, so a new method's file is covered as it is. Most of it
is `fedbench check` (fedbench/conformance); here stands besides what holds of the built-in ones alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedbench import methods
from fedbench.conformance.agreement import WAYS, executors_agree
from fedbench.conformance.learning import learns
from fedbench.conformance.runs import another_seed_other_bits, same_seed_same_bits
from fedbench.conformance.subject import DATA, FEW, Subject
from fedbench.conformance.suite import DECLARED, RUNS, TRAINING, Check, outcomes
from fedbench.core.plan import Plan
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.specs import Setting
from tests.support.cases import CASES, UNLIKE, label
from tests.support.lab import method, setting, trainer

every = pytest.mark.parametrize("name", methods.names())


def few(**changes: Any) -> Setting:
    """Four rounds in which clients come and go."""
    return setting(**{**FEW, **changes})


@pytest.fixture(scope="module", params=CASES, ids=label)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A case. Its tests follow one another, so that the run that most of them share is trained once."""
    name, chosen = request.param
    return Subject(tmp_path_factory.mktemp("subject"), name, chosen)


def test_the_cohorts_of_these_tests_vary() -> None:
    sizes = {len(Plan(few(), DATA.n_train, (8, 8)).cohort(t)) for t in range(1, 5)}
    assert len(sizes) > 1
    assert min(sizes) > 0


def test_its_runs_pass_every_check(subject: Subject) -> None:
    """Bits that a stop, or other labels of test images, do not change are the same when a run is made twice; variants
    of a method need not show once more that it learns, and with its seed."""
    left_out = {same_seed_same_bits, executors_agree}
    if subject.overrides:
        left_out |= {learns, another_seed_other_bits}
    if subject.name == "descriptor_bounds":  # which trains in a quarter of the rounds, and then describes
        left_out |= {learns}
    passes([check for check in (*RUNS, *TRAINING) if check.proves not in left_out], subject)


def test_executors_agree(subject: Subject) -> None:
    """Steps that are captured are those of stacks: methods whose requests are unlike one another's suffice."""
    captured = subject.name in UNLIKE and not subject.overrides
    executors_agree(subject, WAYS if captured else ("cores", "stacked"))


@every
def test_what_it_says_of_itself_passes_every_check(name: str, tmp_path: Path) -> None:
    passes(DECLARED, Subject(tmp_path, name))


def passes(checks: Sequence[Check], subject: Subject) -> None:
    """Raises what the first check that fails has raised, with the names of all that fail."""
    failed = [outcome for outcome in outcomes(subject, checks, lambda check: None) if not outcome.holds]
    if failed:
        error = failed[0].error or AssertionError(failed[0].why)
        error.add_note(f"fails: {', '.join(outcome.check.name for outcome in failed)}")
        raise error


def test_cohorts_and_first_batches_are_those_of_every_method(subject: Subject) -> None:
    """Two to four batches of every client's first request."""
    drawn, s = subject.reference.plan.draws, subject.few()
    plan = Plan(s, DATA.n_train, (8, 8))
    for t in range(1, 5):
        assert drawn["cohort", t] == plan.cohort(t)
    first = {(t, client): batches for (what, client, t, phase), batches in _batches(drawn) if phase == 1}
    assert first, "it never trained"
    for (t, client), batches in first.items():
        expected = [b.tolist() for b in plan.batches(client, t, 1, s.epochs, s.steps)]
        assert batches[: len(expected)] == expected[: len(batches)]


def _batches(drawn: dict[Any, Any]) -> list[Any]:
    return [(key, value) for key, value in drawn.items() if key[0] == "batches"]


#: Methods whose server's step is made of what clients say beside their models: silent ones cannot be asked.
SPEAK = ("fedas", "fednova")


def test_a_cohort_that_has_not_moved_leaves_the_server_where_it_was(subject: Subject, tmp_path: Path) -> None:
    """The weights of every average sum to one, whatever the sizes of the clients."""
    if subject.name in SPEAK:
        pytest.skip("its clients must speak")
    how = subject.method()
    it = trainer(how, DATA, tmp_path, few())
    before = dict(it.server.shared)
    cohort = [it.client(i, it.server.view(i), 1) for i in (0, 2, 3)]
    for client in cohort:
        how.broadcast(it.server, client)
    how.aggregate(it.server, cohort, 1)
    assert it.server.shared.keys() == before.keys()
    for key, value in before.items():
        torch.testing.assert_close(it.server.shared[key], value, rtol=1e-6, atol=1e-7)


def test_traffic_is_of_what_the_server_holds(subject: Subject) -> None:
    """What is sent is counted in bytes of its tensors; that every executor counts alike is among the checks."""
    run = subject.reference.run.trainer
    held = (*run.server.tensors().values(), *run.server.initial.values())
    stored = sum(t.numel() * t.element_size() for t in held)
    for direction in ("bytes_up", "bytes_down"):
        sent = [line[direction] for line in run.checkpoint.rounds]
        assert all(isinstance(b, int) and 0 <= b <= 2 * DATA.clients * stored for b in sent)
        assert any(sent) is any(not run.method.is_personal(n) for n in run.server.initial)


@every
def test_it_is_named_as_its_file_and_keeps_what_exists(name: str, tmp_path: Path) -> None:
    cls, source = methods.load(name)
    assert source is None
    assert cls.name == name
    initial = trainer(cls(), DATA, tmp_path).server.initial
    for prefix in cls.personal:
        assert any(key.startswith(prefix) for key in initial), f"'{prefix}' is no tensor's prefix"


def passed(how: Method, s: Setting, where: Path) -> tuple[int, int]:
    """Of a round's local work: (images that went through the network in training, twice where a step takes two passes;
    parameters of the network)."""
    alike = dataclasses.replace(DATA, groups=[0] * DATA.clients)  # of an IID partition, as its setting says
    it, images = trainer(how, alike, where, s), 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal images
        images += len(inputs[0]) if module.training else 0

    model: nn.Module = it.executor.worker.model  # type: ignore[attr-defined]
    next(layer for layer in model.modules() if not list(layer.children())).register_forward_pre_hook(count)
    it.resume()
    round = it.begin()
    it.executor.run(it.enter(round, round.cohort), how.local)
    return images, sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def fedavgs_round(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setting], tuple[int, int]]:
    """Setting -> what passes in FedAvg's first round."""
    return cache(lambda s: passed(method("fedavg"), s, tmp_path_factory.mktemp("fedavg")))


@every
def test_effort_is_that_of_the_local_work(name: str, tmp_path: Path, fedavgs_round: Any) -> None:
    """What tells beforehand how long a run takes: the images that pass in training, against FedAvg's.

    Of whole batches: a method that asks for gradients has no short one at the end of a pass.
    """
    how = methods.load(name)[0]()
    s = setting(rounds=1, window=1, epochs=2, tail="drop")
    try:
        how.check_setting(s)
    except FedbenchError:
        s = setting(rounds=1, window=1, steps=1, passes="endless", momentum=0.0)
    if how.trains:
        (images, size), (others, other) = passed(how, s, tmp_path), fedavgs_round(s)
        assert how.relative_compute(s) == pytest.approx(
            images / others * round(size / other)
        )  # through all of its networks
    assert how.relative_compute(setting(steps=3)) >= 1
