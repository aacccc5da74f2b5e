"""Clients that never train and join for the answers, who has no vote; and answers from before the server's step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.client import MEMBER, Client, ClientUpdate, Train
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.tables import rounds
from fedbench.core.worker import Piece
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.specs import Setting
from tests.support.lab import Run, federation, method, own, setting, train, trainer

DATA = federation((60, 50, 40, 45, 35, 40))
PARTITION = replace(setting().partition, clients=6, unseen=2)


def with_newcomers(**changes: Any) -> Setting:
    return setting(partition=PARTITION, **changes)


def without(data: Federation, clients: int) -> Federation:
    """The first so many clients of a federation."""
    rows = np.flatnonzero(data.client < clients)
    arrays = (data.images.numpy(), data.labels.numpy(), data.client, data.sample, data.is_test)
    return Federation.of(*(a[rows] for a in arrays), 10)


def column(run: Run, name: str) -> np.ndarray:
    return np.array(run.predictions[name].to_pylist())


def test_newcomers_are_in_no_cohort() -> None:
    for changes in ({}, {"participation": 0.6}, {"cohort": 3}, {"cohort": 3, "full_last_round": True}):
        plan = Plan(with_newcomers(**changes, rounds=8), DATA.n_train, (8, 8))
        assert {i for t in range(1, 9) for i in plan.cohort(t)} == {0, 1, 2, 3}
    copies = replace(PARTITION, unseen_as=("fog-3",))
    assert Plan(setting(partition=copies, cohort=2), [10] * 8, (8, 8)).trainees == 4
    with pytest.raises(FedbenchError, match="a cohort must be 1 to 4 clients"):
        with_newcomers(cohort=5)


@pytest.mark.parametrize("name", ["fedavg", "fedavgft", "pfedfda"])
def test_training_is_that_of_a_federation_without_them(name: str, tmp_path: Path) -> None:
    how = method(name, **({"finetune_epochs": 1} if name == "fedavgft" else {}))
    both = train(how, DATA, tmp_path / "both", with_newcomers(rounds=2))
    alone = train(how, without(DATA, 4), tmp_path / "alone", setting(rounds=2))
    assert both.tensors.keys() == alone.tensors.keys()
    assert all(np.array_equal(both.tensors[n], t) for n, t in alone.tensors.items())
    table, other = both.predictions.drop_columns(["votes"]), alone.predictions.drop_columns(["votes"])
    assert table.filter(np.array(table["client"].to_numpy() < 4)).equals(other)
    assert set(table["client"].to_pylist()) == set(range(6))
    lines, others = both.trainer.checkpoint.rounds, alone.trainer.checkpoint.rounds
    for key in ("participants", "images", "loss", "bytes_up", "bytes_down"):
        assert [line[key] for line in lines] == [line[key] for line in others]
    # What is shown while it trains is about the clients that train.
    assert both.accuracy == pytest.approx(alone.accuracy)


def test_an_unseen_client_fine_tunes_the_last_global_model(tmp_path: Path) -> None:
    it = trainer(method("fedavgft", finetune_epochs=2), DATA, tmp_path, with_newcomers(rounds=1, window=1))
    it.run()
    client = it.client(5, it.server.view(5), 1)
    client.work.phase = 1000
    it.executor.run([client], it.method.personalise)
    assert client.work.processed == 2 * DATA.n_train[5]
    before = column(Run(it, []), "own")[column(Run(it, []), "client") == 5]
    (again,) = it.executor.map(lambda w, c: w.answers([c], [[Piece(c.work.test_rows, None)]])[0], [client])
    assert before.tolist() == again.tolist()


def own_number(self: Method, server: Server, client: Client) -> None:
    """Gives newcomers a head that answers one class to everything: their own number."""
    if client.kind != MEMBER:
        weight, bias = (torch.zeros_like(client.state[name]) for name in ("head.weight", "head.bias"))
        bias[client.index] = 1.0
        client.state = {**client.state, "head.weight": weight, "head.bias": bias}


def members_train(self: Method, client: Client) -> ClientUpdate | None:
    if client.kind == MEMBER:
        yield Train(cross_entropy)


@pytest.mark.parametrize("votes", [True, False])
def test_an_unseen_client_answers_from_what_it_is_served(votes: bool, tmp_path: Path) -> None:
    """All clients are asked; that newcomers have no vote is the metrics' business."""
    run = train(own(serve=own_number, personalise=members_train), DATA, tmp_path, with_newcomers(votes=votes))
    client, answers = column(run, "client"), column(run, "own")
    for newcomer in (4, 5):
        assert set(answers[client == newcomer]) == {newcomer}
    assert len(set(answers[client < 4])) > 2
    if votes:
        assert (column(run, "votes")[:, 4:] == (4, 5)).all()


def test_a_method_without_a_procedure_refuses_newcomers() -> None:
    for name in ("local", "feddrm", "fedbn"):
        s = with_newcomers(**({"steps": 1, "momentum": 0.0} if name == "fedbn" else {}))
        with pytest.raises(FedbenchError, match=f"{name} has no procedure for clients that did not train"):
            Job.of(s, name, {})
    assert Job.of(with_newcomers(), "fedavgft", {})


def test_answers_after_local_are_those_of_the_trained_models(tmp_path: Path) -> None:
    """The cohort answers with its own models, others with the average; what is averaged is the same."""
    s, data = setting(participation=0.6, seed=3, window=3), without(DATA, 4)
    hows = [own(answers_after_local=True), own(), "fedavg", "local"]
    before, after, plain, local = (train(how, data, tmp_path / str(k), s) for k, how in enumerate(hows))
    assert after.predictions.equals(plain.predictions)
    assert all(np.array_equal(before.tensors[n], t) for n, t in plain.tensors.items())
    number, client = column(before, "round"), column(before, "client")
    ours, theirs, alone = (column(run, "own") for run in (before, after, local))
    plan = Plan(s, data.n_train, (8, 8))
    for t in (1, 2, 3):
        differs = {i for i in range(4) if (ours != theirs)[(number == t) & (client == i)].any()}
        assert differs <= set(plan.cohort(t))
    assert (ours != theirs).any()
    # Local gives the same answers in the first round: nobody has met yet.
    cohort = np.isin(client, plan.cohort(1)) & (number == 1)
    assert ours[cohort].tolist() == alone[cohort].tolist()


@pytest.mark.parametrize("executor", ["sequential", "cores", "stacked"])
def test_parts_of_the_work_are_timed(executor: str, tmp_path: Path) -> None:
    def local(self: Method, client: Client) -> ClientUpdate:
        yield Train(cross_entropy)
        if client.round == 2:
            with client.timed("estimation"):
                torch.linalg.eigh(torch.rand(60, 60))

    table = rounds(train(own(local=local), DATA, tmp_path, executor=executor).trainer.checkpoint.rounds)
    network, estimation = (np.array(table[f"part_{p}_seconds"].to_pylist()) for p in ("network", "estimation"))
    assert (network > 0).all()
    assert estimation[0] == estimation[2] == 0 < estimation[1]
    if executor == "sequential":
        assert (network + estimation <= np.array(table["client_seconds"].to_pylist())).all()
