"""What every method must satisfy: it finds them by the registry, so a new method's file is covered as it is. Most of it
is `fedbench check` (fedbench/conformance); here stands besides what holds of the built-in ones alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

from fedbench import methods
from fedbench.conformance.agreement import compare, executors_agree
from fedbench.conformance.lab import Recorder, stop_after
from fedbench.conformance.learning import crops_of_colour_images, learns
from fedbench.conformance.runs import (
    another_seed_other_bits,
    clients_answer_alone,
    same_seed_same_bits,
    stop_and_resume,
)
from fedbench.conformance.runs import test_labels_change_nothing as labels_change_nothing
from fedbench.conformance.subject import DATA, FEW, Subject
from fedbench.conformance.suite import DECLARED, RUNS, TRAINING, Check, outcomes
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.trainer import Interrupted
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.specs import Setting
from tests.support.cases import CASES, UNLIKE, label
from tests.support.groups_lab import drifted, grouped_federation, grouped_setting
from tests.support.lab import Run, federation, method, same, setting, train, trainer

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


def unlike(subject: Subject) -> bool:
    """Whether its requests are unlike other methods'."""
    return subject.name in UNLIKE and not subject.overrides


def test_its_runs_pass_every_check(subject: Subject) -> None:
    """But those that further runs would show: `learns`, of which here is seen that the loss falls; crops, which are the
    executors' business; and for variants of a method, that the seed matters."""
    left_out = {same_seed_same_bits, labels_change_nothing, clients_answer_alone, stop_and_resume, executors_agree}
    left_out |= {learns} if unlike(subject) else {learns, crops_of_colour_images}
    if subject.overrides:
        left_out |= {another_seed_other_bits}
    passes([check for check in (*RUNS, *TRAINING) if check.proves not in left_out], subject)
    if not subject.overrides:
        first, *others = (p.loss for p in subject.reference.run.reports)
        assert min(others) < first


def test_what_must_change_nothing_changes_nothing(subject: Subject) -> None:
    """Made again, by two cores, with other labels on test images, without votes, stopped after the first round and
    after the third: one run in place of four of `fedbench check`, which say what it was if it is not the same."""
    labels = DATA.labels.clone()
    for rows in DATA.test:
        labels[rows] = (labels[rows] + 3) % DATA.classes
    garbled, s, where = dataclasses.replace(DATA, labels=labels), subject.few(votes=False), subject.place()
    for t in (1, 3):
        assert subject.stopped(garbled, s, t, where, executor="cores").checkpoint.round == t
    ours, theirs = subject.train(garbled, s, where=where, executor="cores"), subject.reference.run
    columns = [name for name in ours.predictions.column_names if name != "label"]
    answers = (run.predictions.select(columns) for run in (ours, theirs))
    tables = (run.trainer.clients_table() for run in (ours, theirs))
    if not (same(ours.tensors, theirs.tensors) and pa.Table.equals(*answers) and pa.Table.equals(*tables)):
        passes([check for check in (*RUNS, *TRAINING) if check.proves is not learns], subject)
        raise AssertionError("every check alone holds, and all together do not")


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
def test_it_learns(name: str, tmp_path: Path) -> None:
    learns(Subject(tmp_path, name))


def test_executors_agree(subject: Subject) -> None:
    """Steps that are captured are those of stacks: methods whose requests are unlike one another's suffice. One client
    a core is above, and in core/test_parity.py."""
    executors_agree(subject, ("stacked", "graphed") if unlike(subject) else ("stacked",))


SIX = dataclasses.replace(grouped_setting().partition, clients=6)
DRIFTING = drifted(
    grouped_federation((0, 0, 1, 1), 60), grouped_federation((1, 0, 1, 0), 60), (1, 0, 1, 0), (0, 0, 1, 1)
)
GROUPED = grouped_federation((0, 1, 2, 0, 1, 2), 60)
DRIFTS = grouped_setting(rounds=5, drifts=(4,))
COMING = grouped_setting(rounds=4, cohort=3, partition=SIX)
SCENARIOS: dict[str, tuple[str, dict[str, Any], Federation, Setting]] = {
    "drift": ("flux", {"start": 2}, DRIFTING, DRIFTS),
    "coming": ("flux", {"start": 2, "average": "running"}, GROUPED, COMING),
    "random": ("flux", {"start": 2, "clustering": "prior", "assignment": "random"}, GROUPED, COMING),
    "soft": ("flux_soft", {"start": 2}, DRIFTING, DRIFTS),
    # Two models in one loss, of some of the steps.
    "steps": (
        "fedas",
        {"align_steps": 2, "weigh_by": "size", "score": "after_aggregate"},
        federation(),
        setting(rounds=2, steps=5, augment="crop"),
    ),
    # Its first round trains all models; two passes of two epochs of either model.
    "fesem": ("fesem", {"clusters": 3, "variant": "fedrc"}, GROUPED, grouped_setting(rounds=2, epochs=1)),
    "apfl": ("apfl_flux", {"alpha": 0.3, "variant": "fedrc"}, GROUPED, grouped_setting(rounds=2)),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_executors_and_a_resumed_run_agree(scenario: str, tmp_path: Path) -> None:
    name, chosen, data, s = SCENARIOS[scenario]

    def run(where: str, executor: str, **more: Any) -> Run:
        return train(method(name, **chosen), data, tmp_path / where, s, executor=executor, plan=Recorder, **more)

    reference = run("sequential", "sequential")
    if name.startswith("flux"):  # anew when data drift
        clustered = reference.trainer.checkpoint.rounds[-1]["figure_clustering_round"]
        assert clustered == 4 if s.drifts else clustered >= 2
    compare(run("stacked", "stacked"), reference, "by stacks")
    with pytest.raises(Interrupted):
        run("cores", "cores", observe=stop_after(s.rounds - 1))
    resumed = run("cores", "cores")
    assert same(resumed.tensors, reference.tensors)
    assert resumed.predictions.equals(reference.predictions)


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
    asked = [(key, value) for key, value in drawn.items() if key[0] == "batches"]
    first = {(t, client): batches for (what, client, t, phase), batches in asked if phase == 1}
    assert first, "it never trained"
    for (t, client), batches in first.items():
        expected = [b.tolist() for b in plan.batches(client, t, 1, s.epochs, s.steps)]
        assert batches[: len(expected)] == expected[: len(batches)]


def test_a_cohort_that_has_not_moved_leaves_the_server_where_it_was(subject: Subject, tmp_path: Path) -> None:
    """The weights of every average sum to one, whatever the sizes of the clients."""
    if subject.name in ("fedas", "fednova"):
        pytest.skip("the server's step is made of what its clients say beside their models")
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
