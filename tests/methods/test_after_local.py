"""Methods whose clients answer with what they trained, before the server's step: the same answers however they are
asked for, and wherever personal states wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import simulation, worker
from fedbench.core.client import Client
from fedbench.core.plan import Plan
from fedbench.core.simulation import PERSONALISING, new_client
from fedbench.core.state import State
from fedbench.core.worker import Piece
from fedbench.specs import Setting
from tests.support.lab import Run, federation, method, parquet_bytes, same, setting, train

DATA = federation((70, 40, 55, 30, 45))
NAMES = ("fedrep", "fedpac", "lg_fedavg", "fedrod", "apfl")
SCORES = ("after_local", "after_aggregate")

methods_ = pytest.mark.parametrize("name", NAMES)
scores = pytest.mark.parametrize("score", SCORES)


def few(**changes: Any) -> Setting:
    """Three rounds in which clients come and go; the last two are evaluated."""
    return setting(**{"rounds": 3, "window": 2, "participation": 0.6, "seed": 5, **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, bool, str], Run]:
    """(name, score, votes, executor) -> the run as it usually is, trained once for all that compare with it."""

    @cache
    def run(name: str, score: str, votes: bool, executor: str) -> Run:
        where = tmp_path_factory.mktemp("plain")
        return train(method(name, score=score), DATA, where, few(votes=votes), executor=executor)

    return run


def column(run: Run, name: str) -> np.ndarray:
    return np.array(run.predictions[name].to_pylist())


def test_in_every_evaluated_round_some_are_away() -> None:
    plan = Plan(few(), DATA.n_train, DATA.shape[:2])
    assert all(0 < len(plan.cohort(t)) < DATA.clients for t in (2, 3))
    assert set(plan.cohort(3)) != set(plan.cohort(2))


@methods_
@scores
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_client_answers_alike_whether_or_not_all_are_asked(
    name: str, score: str, executor: str, plain: Callable[..., Run]
) -> None:
    """Catches trained states that only one of the two ways of asking is given, and votes set in another order."""
    asked, alone = (plain(name, score, votes, executor) for votes in (True, False))
    assert alone.predictions.column_names == ["round", "view", "client", "sample", "label", "own"]
    assert alone.predictions.equals(asked.predictions.select(alone.predictions.column_names))
    assert same(asked.tensors, alone.tensors)
    votes, client = column(asked, "votes"), column(asked, "client")
    assert votes[np.arange(len(votes)), client].tolist() == column(asked, "own").tolist()
    assert (votes != votes[:, :1]).any(), "all models answer alike"


@methods_
@pytest.mark.parametrize("votes", [True, False])
def test_the_answers_are_those_of_the_models_before_the_servers_step(
    name: str, votes: bool, plain: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches states that are taken after the server's step, of another client or of another round, and an answer that
    leaves `personalise` out."""
    how, trained = method(name, score="after_local"), {}
    assert how.answers_after_local
    assert method(name).answers_after_local is (name != "apfl"), "the default"
    step = type(how).aggregate

    def recording(self: Any, server: Any, cohort: list[Client], t: int) -> None:
        trained.update({(t, c.index): {n: v.clone() for n, v in c.state.items()} for c in cohort})
        step(self, server, cohort, t)

    monkeypatch.setattr(type(how), "aggregate", recording)
    s = few(votes=votes)
    run = train(how, DATA, tmp_path, s)
    monkeypatch.undo()
    other = plain(name, "after_aggregate", votes, "sequential")
    t, client, own, theirs = column(run, "round"), column(run, "client"), column(run, "own"), column(other, "own")
    plan, moved = Plan(s, DATA.n_train, DATA.shape[:2]), 0
    for number in (2, 3):
        for i in range(DATA.clients):
            rows = (t == number) & (client == i)
            if i in plan.cohort(number):
                expected = answers_of(run, trained[number, i], i, number)
                assert own[rows].tolist() == expected.tolist(), (number, i)
                moved += int((own[rows] != theirs[rows]).sum())
            else:
                assert own[rows].tolist() == theirs[rows].tolist(), "who is away answers from what the server gives"
    assert moved, "the server's step changes no answer, so this test could not tell"


def answers_of(run: Run, state: State, index: int, t: int) -> np.ndarray:
    """What a client's model of that state gives for the client's own test images."""
    it = run.trainer
    client = new_client(index, t, dict(state), it.context, it.federation, it.plan, PERSONALISING)
    it.executor.run([client], it.method.personalise)
    (labels,) = it.executor.map(lambda w, c: w.answers([c], [[Piece(c.work.test_rows, None)]])[0], [client])
    return labels


@methods_
@scores
@pytest.mark.parametrize("votes", [True, False])
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_personal_states_that_wait_elsewhere_give_the_same_bits(
    name: str,
    score: str,
    votes: bool,
    executor: str,
    plain: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches what waited before the work taken for what was trained (in the round, or for the answers), and what is
    shared sent away with it."""
    how, s = method(name, score=score), few(votes=votes)
    here = plain(name, score, votes, executor)
    sent: list[torch.Tensor] = []

    def away(tensor: torch.Tensor) -> torch.Tensor:
        """A copy, as on a GPU: what waits is never the tensor that was at work."""
        sent.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(worker, "_to_host", away)
    monkeypatch.setattr(simulation, "fits", lambda *_: False)
    elsewhere = train(how, DATA, tmp_path, s, executor=executor)
    assert elsewhere.trainer.puts_by is not None
    assert same(elsewhere.tensors, here.tensors)
    assert parquet_bytes(elsewhere.predictions) == parquet_bytes(here.predictions)
    assert bool(sent) is (name != "fedpac"), "FedPAC's heads are the server's, all others' parts wait"
    # Nothing that is shared waits: not what clients were sent, nor what they made of it.
    personal = {t.shape for n, t in here.trainer.server.initial.items() if how.is_personal(n)}
    assert {t.shape for t in sent} <= personal
