"""Clients that never train and join for the answers; and answers from before the server's step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.who import MEMBER
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.methods.base import AFTER_LOCAL, Method, cross_entropy, score_hyperparameter
from fedbench.specs import Setting
from tests.support.lab import federation, method, setting, train, trainer

DATA = federation((60, 50, 40, 45, 35, 40))
PARTITION = dataclasses.replace(setting().partition, clients=6, unseen=2)


def with_newcomers(**changes: Any) -> Setting:
    return setting(partition=PARTITION, **changes)


def without(data: Federation, clients: int) -> Federation:
    """The first so many clients of a federation."""
    rows = np.flatnonzero(data.client < clients)
    arrays = (data.images.numpy(), data.labels.numpy(), data.client, data.sample, data.is_test)
    return Federation.of(*(a[rows] for a in arrays), 10)


def test_newcomers_are_in_no_cohort() -> None:
    for changes in ({}, {"participation": 0.6}, {"cohort": 3}, {"cohort": 3, "full_last_round": True}):
        plan = Plan(with_newcomers(**changes, rounds=8), DATA.n_train, (8, 8))
        seen = {i for t in range(1, 9) for i in plan.cohort(t)}
        assert seen == {0, 1, 2, 3}
    copies = dataclasses.replace(PARTITION, unseen_as=("fog-3",))
    assert Plan(setting(partition=copies, cohort=2), [10] * 8, (8, 8)).trainees == 4
    with pytest.raises(FedbenchError, match="a cohort must be 1 to 4 clients"):
        with_newcomers(cohort=5)


@pytest.mark.parametrize("name", ["fedavg", "fedavgft", "pfedfda"])
def test_training_is_that_of_a_federation_without_them(name: str, tmp_path: Path) -> None:
    chosen = {"finetune_epochs": 1} if name == "fedavgft" else {}
    both = train(method(name, **chosen), DATA, tmp_path / "both", with_newcomers())
    alone = train(method(name, **chosen), without(DATA, 4), tmp_path / "alone")
    assert both.tensors.keys() == alone.tensors.keys()
    assert all(np.array_equal(both.tensors[n], t) for n, t in alone.tensors.items())
    drop = ["votes"]
    table, other = both.predictions.drop_columns(drop), alone.predictions.drop_columns(drop)
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
    table = it.checkpoint.read_predictions()
    own = np.array(table["own"].to_pylist())[np.array(table["client"].to_pylist()) == 5]
    (again,) = it.executor.map(lambda w, c: w.answers([c], [[_test_piece(c)]])[0], [client])
    assert own.tolist() == again.tolist()


def _test_piece(client: Client) -> Any:
    from fedbench.core.pieces import Piece

    return Piece(client.work.test_rows, None)


@dataclass(frozen=True)
class OwnStart(Method):
    """Gives newcomers a head of zeros but for one class, and leaves it at that."""

    name = "welcoming"

    def serve(self, server: Server, client: Client) -> None:
        if client.kind != MEMBER:
            bias = torch.zeros_like(client.state["head.bias"])
            bias[client.index] = 1.0
            weight = torch.zeros_like(client.state["head.weight"])
            client.state = {**client.state, "head.weight": weight, "head.bias": bias}

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind == MEMBER:
            yield Train(cross_entropy)


@pytest.mark.parametrize("votes", [True, False])
def test_an_unseen_client_answers_from_what_it_is_served(votes: bool, tmp_path: Path) -> None:
    run = train(OwnStart(), DATA, tmp_path, with_newcomers(votes=votes))
    client, own = (np.array(run.predictions[name].to_pylist()) for name in ("client", "own"))
    for newcomer in (4, 5):
        assert set(own[client == newcomer]) == {newcomer}
    assert len(set(own[client < 4])) > 2


def test_a_method_without_a_procedure_refuses_newcomers() -> None:
    for name in ("local", "feddrm", "fedbn"):
        s = with_newcomers(**({"steps": 1, "momentum": 0.0} if name == "fedbn" else {}))
        with pytest.raises(FedbenchError, match=f"{name} has no procedure for clients that did not train"):
            Job.of(s, name, {})
    assert Job.of(with_newcomers(), "fedavgft", {})


@dataclass(frozen=True)
class Scored(Method):
    """FedAvg, whose clients answer with what they trained."""

    name = "scored"

    score: str = score_hyperparameter()

    @property
    def answers_after_local(self) -> bool:
        return self.score == AFTER_LOCAL


def test_answers_after_local_are_those_of_the_trained_models(tmp_path: Path) -> None:
    """The cohort answers with its own models, others with the average; what is averaged is the same."""
    s = setting(participation=0.6, seed=3, window=3)
    data = without(DATA, 4)
    before = train(Scored(), data, tmp_path / "local", s)
    after = train(Scored("after_aggregate"), data, tmp_path / "aggregate", s)
    plain = train("fedavg", data, tmp_path / "fedavg", s)
    assert after.predictions.equals(plain.predictions)
    assert all(np.array_equal(before.tensors[n], t) for n, t in plain.tensors.items())
    columns = [np.array(before.predictions[name].to_pylist()) for name in ("round", "client")]
    ours, theirs = (np.array(run.predictions["own"].to_pylist()) for run in (before, after))
    plan = Plan(s, data.n_train, (8, 8))
    for t in (1, 2, 3):
        differs = {i for i in range(4) if (ours != theirs)[(columns[0] == t) & (columns[1] == i)].any()}
        assert differs <= set(plan.cohort(t))
    assert (ours != theirs).any()
    # Local gives the same answers in the first round: nobody has met yet.
    local = train("local", data, tmp_path / "alone", s)
    cohort = np.isin(columns[1], plan.cohort(1)) & (columns[0] == 1)
    assert ours[cohort].tolist() == np.array(local.predictions["own"].to_pylist())[cohort].tolist()


def test_parts_of_the_work_are_timed(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Timed(Method):
        name = "timed"

        def local(self, client: Client) -> ClientUpdate:
            yield Train(cross_entropy)
            if client.round == 2:
                with client.timed("estimation"):
                    torch.linalg.eigh(torch.rand(60, 60))

    for executor in ("sequential", "cores", "stacked"):
        run = train(Timed(), DATA, tmp_path / executor, executor=executor)
        from fedbench.core.tables import rounds

        table = rounds(run.trainer.checkpoint.rounds)
        network, estimation = (np.array(table[f"part_{p}_seconds"].to_pylist()) for p in ("network", "estimation"))
        assert (network > 0).all()
        assert estimation[0] == estimation[2] == 0 < estimation[1]
        if executor == "sequential":
            assert (network + estimation <= np.array(table["client_seconds"].to_pylist())).all()
