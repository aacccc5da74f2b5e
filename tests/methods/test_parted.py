"""Methods that part body from head: FedBABU, FedPer, FedRep, LG-FedAvg."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.core.client import MEMBER, UNSEEN, Client, Train
from fedbench.core.simulation import PERSONALISING
from fedbench.methods.base import Method
from tests.support.formula_lab import ByHand, averaged, close, of, sent, size, started, trained
from tests.support.lab import Run, federation, method, setting, train, trainer

DATA = federation()
N = DATA.n_train
TWO = setting(rounds=2, window=1, epochs=2)


def head(name: str) -> bool:
    return name.startswith("head.")


def body(name: str) -> bool:
    return not head(name)


def everything(name: str) -> bool:
    return True


Part = Callable[[str], bool]


@pytest.mark.parametrize(
    ("name", "passes", "stays"),
    [
        ("fedper", [(everything, None)], head),
        ("fedrep", [(head, 5), (body, None)], head),
        ("lg_fedavg", [(everything, None)], body),
        ("fedbabu", [(body, None)], lambda name: False),
    ],
)
def test_rounds_by_hand(name: str, passes: list[tuple[Part, int | None]], stays: Part, tmp_path: Path) -> None:
    """What is averaged under what stays, after passes over what trains for so many epochs; only the first is sent."""
    chosen = {"finetune_epochs": 0} if name == "fedbabu" else {}
    it, run, models = trained(method(name, **chosen), DATA, TWO, tmp_path), ByHand(DATA, TWO), [started()] * 4
    for t in (1, 2):
        for i in range(DATA.clients):
            for request, (moves, epochs) in enumerate(passes, 1):
                models[i] = run.descended(models[i], run.batches(i, t, request, epochs), moves=moves)
        mean = averaged(models, N)
        models = [{n: own[n] if stays(n) else mean[n] for n in own} for own in models]
    for i, model in enumerate(models):
        close(of(it.server.view(i)), model)
        assert it.server.personal.get(i, {}).keys() == {n for n in model if stays(n)}
    if name == "fedbabu":
        assert all(torch.equal(t, it.server.initial[n]) for n, t in it.server.shared.items() if head(n))
    else:
        assert it.server.shared.keys() == {n for n in started() if not stays(n)}
    shared = DATA.clients * size(it.server, body if name == "fedbabu" else lambda n: not stays(n))
    assert sent(it) == [(shared, shared)] * 2


def personalised(run: Run, index: int, kind: str = MEMBER) -> Client:
    """The client as it answers after the last round."""
    it = run.trainer
    client = it.answering(it.server, index, kind, it.setting.rounds)
    it.executor.run([client], it.method.personalise)
    return client


def test_fedbabu_tunes_its_head_for_the_answers_of_the_last_round(tmp_path: Path) -> None:
    it, run = trained(method("fedbabu"), DATA, TWO, tmp_path), ByHand(DATA, TWO)
    before = it.server.view(2)
    client = personalised(Run(it, []), 2)
    close(of(client.state), run.descended(before, run.batches(2, 2, PERSONALISING + 1, 5), moves=head))
    assert not torch.equal(client.state["head.bias"], before["head.bias"])


@pytest.mark.parametrize(("name", "epochs"), [("fedbabu", "finetune_epochs"), ("fedpac", "newcomer_epochs")])
@pytest.mark.parametrize(("newcomers", "trains"), [("head", ("head.",)), ("all", ("",))])
def test_what_an_unseen_client_tunes(
    name: str, epochs: str, newcomers: str, trains: tuple[str, ...], tmp_path: Path
) -> None:
    it = trainer(method(name, **{"newcomers": newcomers, epochs: 4}), DATA, tmp_path)
    client = it.answering(it.server, 1, UNSEEN, 3)
    assert all(client.state[n] is t for n, t in it.server.initial.items())
    (request,) = it.method.personalise(client) or ()
    assert isinstance(request, Train)
    assert (request.trains, request.epochs, request.lr) == (trains, 4, None)
    assert list(it.method.personalise(it.answering(it.server, 1, UNSEEN, 2)) or ()) == []


@pytest.mark.parametrize(("name", "epochs"), [("fedbabu", "finetune_epochs"), ("fedpac", "newcomer_epochs")])
def test_an_unseen_client_joins_after_the_last_round(name: str, epochs: str, tmp_path: Path) -> None:
    """The last client never trains; it tunes what it is served with, and nobody else is touched by that."""
    base, data = setting(rounds=2), federation(skew=float("inf"))
    s = dataclasses.replace(base, partition=dataclasses.replace(base.partition, unseen=1), epochs=3)
    answers = {}
    for tunes in (0, 8):
        run = train(method(name, **{epochs: tunes}), data, tmp_path / str(tunes), s)
        assert 3 not in run.trainer.server.personal
        assert [line["participants"] for line in run.trainer.checkpoint.rounds] == [3, 3]
        model = run.trainer.executor.worker.load(personalised(run, 3, UNSEEN).state).eval()  # type: ignore[attr-defined]
        with torch.no_grad():
            x = data.images[data.test[3]].permute(0, 3, 1, 2).float() / 127.5 - 1
            by_hand = model(x).argmax(1).tolist()
        answers[tunes] = run.predictions.to_pandas().query("round == 2 and client == 3")["own"].tolist()
        assert answers[tunes] == by_hand
    assert answers[0] != answers[8]


# -- FedDRM's comparison: local steps shared out --------------------------------------------------------------


def requests(how: Method, folder: Path) -> list[Train]:
    """What a client asks for in a round of five steps, nothing of it done."""
    it = trainer(how, DATA, folder, setting(steps=5))
    update = how.local(it.client(1, it.server.view(1), 1))
    assert update is not None
    return [request for request in update if isinstance(request, Train)]


def test_local_steps_are_shared_out(tmp_path: Path) -> None:
    rep = [(r.trains, r.steps, r.epochs, r.prox) for r in requests(method("fedrep", head_steps=2, mu=0.3), tmp_path)]
    assert rep == [(("head.",), 2, None, 0.0), (("backbone.", "projection."), 3, None, 0.3)]
    ditto = [(r.steps, r.epochs, r.prox) for r in requests(method("ditto", personal_steps=2), tmp_path)]
    assert ditto == [(3, None, 0.0), (2, None, 1.0)]
    near, free = (
        train(method("fedrep", head_steps=2, mu=mu), DATA, tmp_path / str(mu), setting(rounds=1, window=1, steps=5))
        for mu in (20.0, 0.0)
    )
    start = near.trainer.server.initial
    moved = [sum(np.square(v - start[n].numpy()).sum() for n, v in r.shared.items()) for r in (near, free)]
    assert moved[0] < moved[1], "the proximal term holds the body back"
