"""Federations with newcomers: interrupted and resumed before their answers, and whose votes count."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import evaluation
from fedbench.core.client import Client
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.trainer import Interrupted, Progress
from fedbench.core.who import MEMBER, UNSEEN
from fedbench.engine.job import Job
from fedbench.engine.training import write
from fedbench.methods.base import Method
from fedbench.metrics import evaluate
from fedbench.metrics.read import load
from fedbench.specs import RunSpec, Setting
from fedbench.store import Store
from tests.support.lab import Run, federation, method, parquet_bytes, same, setting, train, trainer

DATA = federation((90, 80, 70, 80, 60, 60), skew=float("inf"))
PARTITION = dataclasses.replace(setting().partition, clients=6, unseen=2)
NEWCOMERS = (4, 5)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedpac", {"newcomer_epochs": 1}),
    ("fedpac", {"newcomers": "all", "newcomer_epochs": 2, "score": "after_aggregate"}),
    ("fedbabu", {"finetune_epochs": 1}),
    ("fedbabu", {"finetune_epochs": 2, "newcomers": "all"}),
    ("fedbabu", {"finetune_rounds": 2, "finetune_epochs": 1}),
]

#: Ends of names of what differs from one run to the next.
VARIES = ("seconds", "peak_bytes")


def four(**changes: Any) -> Setting:
    """Four rounds in which clients come and go."""
    values = {"partition": PARTITION, "rounds": 4, "window": 3, "participation": 0.7, "seed": 11, "epochs": 3}
    return setting(**{**values, **changes})


def stopped(how: Method, where: Path, s: Setting, stop: int) -> None:
    """Train until the round of that number is over."""

    def interrupt(progress: Progress) -> None:
        if progress.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        train(how, DATA, where, s, executor="cores", observe=interrupt)
    assert caught.value.round == stop


def equal(resumed: Run, whole: Run) -> None:
    assert same(resumed.tensors, whole.tensors)
    assert parquet_bytes(resumed.predictions) == parquet_bytes(whole.predictions)
    assert resumed.trainer.clients_table().equals(whole.trainer.clients_table())
    lines, others = (
        [{k: v for k, v in line.items() if not k.endswith(VARIES)} for line in run.trainer.checkpoint.rounds]
        for run in (resumed, whole)
    )
    assert lines == others


def answers(run: Run, client: int, t: int = 4) -> list[int]:
    table = run.predictions
    rows = (np.array(table["client"]) == client) & (np.array(table["round"]) == t)
    found: list[int] = np.array(table["own"])[rows].tolist()
    return found


@pytest.mark.parametrize(("name", "chosen"), CASES)
@pytest.mark.parametrize(("stop", "window"), [(2, 3), (3, 1)], ids=["two rounds to go", "the last answers to go"])
def test_stopped_before_the_newcomers_joined(
    name: str, chosen: Mapping[str, Any], stop: int, window: int, tmp_path: Path
) -> None:
    """Catches heads of clients, prototypes or the server's memory that a checkpoint leaves out, newcomers that come
    back as members of the cohorts, and random streams that depend on how many rounds this process has seen."""
    how, s = method(name, **chosen), four(window=window)
    whole = train(how, DATA, tmp_path / "whole", s)
    stopped(how, tmp_path / "resumed", s, stop)
    resumed = train(how, DATA, tmp_path / "resumed", s, executor="cores")
    assert [p.round for p in resumed.reports] == list(range(stop + 1, 5))
    equal(resumed, whole)
    evaluated = list(range(4 - window + 1, 5))
    assert sorted(set(whole.predictions["round"].to_pylist())) == evaluated
    # Unseen clients answer, and keep nothing.
    for newcomer in NEWCOMERS:
        assert len(set(answers(resumed, newcomer))) > 1
        assert not any(n.startswith(f"personal/{newcomer}/") for n in resumed.tensors)


def nobody_last() -> Setting:
    """A setting whose third round has a cohort and whose fourth has none."""
    for seed in range(1000):
        s = four(participation=0.3, seed=seed, window=1)
        plan = Plan(s, DATA.n_train, DATA.shape[:2])
        if plan.cohort(3) and not plan.cohort(4):
            return s
    raise AssertionError("no such seed")


def test_the_heads_of_clients_come_from_the_servers_memory(tmp_path: Path) -> None:
    """A round without a cohort makes no new heads. Catches a memory that is not saved, or not restored: who took part
    would answer by the initial head."""
    how, s = method("fedpac", newcomer_epochs=0), nobody_last()
    whole = train(how, DATA, tmp_path / "whole", s)
    stopped(how, tmp_path / "resumed", s, 3)
    it = trainer(how, DATA, tmp_path / "resumed", s)
    it.resume()
    heads = dict(it.server.memory.of)
    assert heads.keys() == {i for t in (1, 2, 3) for i in it.plan.cohort(t)}
    assert all(head.keys() == {"head.weight", "head.bias"} for head in heads.values())
    for i, head in heads.items():
        client = it.answering(it.server, i, MEMBER, 4)
        assert all(client.state[n] is t and not torch.equal(t, it.server.initial[n]) for n, t in head.items())
    resumed = train(how, DATA, tmp_path / "resumed", s)
    equal(resumed, whole)
    server = resumed.trainer.server
    assert all(torch.equal(server.memory.of[i][n], t) for i, head in heads.items() for n, t in head.items())
    # It is these heads that answer: without them the same body answers otherwise.
    forgetful = dataclasses.replace(server, memory=type(server.memory)({}))
    without = evaluation.evaluate(resumed.trainer, forgetful, 4, {}, dict)[0]["plain"]
    owner = DATA.client[without.rows]
    assert any(without.own[owner == i].tolist() != answers(resumed, i) for i in heads)


def test_an_unseen_client_starts_from_the_mean_head(tmp_path: Path) -> None:
    how, s = method("fedpac", newcomer_epochs=0), nobody_last()
    stopped(how, tmp_path, s, 3)
    it = trainer(how, DATA, tmp_path, s)
    it.resume()
    client = it.answering(it.server, NEWCOMERS[0], UNSEEN, 4)
    for name in ("head.weight", "head.bias"):
        assert client.state[name] is it.server.shared[name]
        assert not torch.equal(client.state[name], it.server.initial[name])


@dataclass(frozen=True)
class Absurd(Method):
    """FedAvg, whose newcomers answer 0 to everything."""

    name = "absurd"

    def serve(self, server: Server, client: Client) -> None:
        if client.kind != MEMBER:
            bias = torch.zeros_like(client.state["head.bias"])
            bias[0] = 1.0
            weight = torch.zeros_like(client.state["head.weight"])
            client.state = {**client.state, "head.weight": weight, "head.bias": bias}


@dataclass(frozen=True)
class AbsurdHeads(Absurd):
    """The same, with heads of the clients' own, so that clients that train are of several minds."""

    name = "absurd_heads"
    personal = ("head.",)


@pytest.mark.parametrize("how", [Absurd(), AbsurdHeads()], ids=lambda m: m.name)
def test_newcomers_have_no_vote(how: Method, store: Store, tmp_path: Path) -> None:
    """Catches a majority over all columns of `votes`: three of six clients answer 0, which wins every tie."""
    s = setting(partition=dataclasses.replace(PARTITION, unseen=3), votes=True, window=2, epochs=3)
    it = trainer(how, DATA, tmp_path / "run", s)
    it.run()
    run = write(Job(RunSpec(s, how.name, how.params), how, {}), store, it, {})
    found = load(evaluate(run, store))
    table = run.table("predictions")
    t, client, label = (np.array(table[n].to_pylist()) for n in ("round", "client", "label"))
    votes = np.array(table["votes"].to_pylist())
    assert votes.shape == (len(label), 6), "all are asked"
    assert (votes[:, 3:] == 0).all()

    def share(voters: int, owners: int, number: int) -> float:
        """Accuracy of the majority of the first `voters` on the images of the first `owners`."""
        rows = (t == number) & (client < owners)
        winner = [np.bincount(row).argmax() for row in votes[rows][:, :voters]]
        return float((winner == label[rows]).mean())

    for number in (2, 3):
        for metric in ("system_accuracy_vote", "system_accuracy"):
            assert found.series(metric, "plain")[number] == pytest.approx(share(3, 3, number)), metric
        assert share(3, 3, number) > share(6, 3, number), "the newcomers' votes would not tell"
