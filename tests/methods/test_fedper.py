"""FedPer: FedAvg where nothing is personal; averaged bodies under heads that stay, against torch's SGD."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.core.plan import Plan
from fedbench.core.who import MEMBER
from fedbench.methods.base import HEAD
from fedbench.methods.fedper import FedPer
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import averaged, descended, of, started, trained

DATA = federation()


@dataclass(frozen=True)
class AllShared(FedPer):
    """Without personalization layers (K_P = 0)."""

    name = "all_shared"
    personal = ()


def test_without_personalization_layers_it_is_fedavg(tmp_path: Path) -> None:
    ours = train(AllShared(score="after_aggregate"), DATA, tmp_path / "ours")
    plain = train("fedavg", DATA, tmp_path / "plain")
    assert same(ours.tensors, plain.tensors)
    assert ours.predictions.equals(plain.predictions)


def test_bodies_are_averaged_under_heads_that_train_with_them_and_stay(tmp_path: Path) -> None:
    s = setting(rounds=2, window=1, epochs=2)
    it = trained(method("fedper"), DATA, s, tmp_path)
    plan, models = Plan(s, DATA.n_train, DATA.shape[:2]), [started()] * DATA.clients
    for t in (1, 2):
        models = [
            descended(models[i], DATA, DATA.train[i], [list(plan.batches(i, t, 1, 2, None))], s)
            for i in range(DATA.clients)
        ]
        mean = averaged(models, DATA.n_train)
        models = [{n: own if n.startswith(HEAD) else mean[n] for n, own in model.items()} for model in models]
    assert it.server.shared.keys() == {n for n in started() if not n.startswith(HEAD)}
    for i, model in enumerate(models):
        for name, expected in model.items():
            torch.testing.assert_close(of(it.server.view(i))[name], expected, rtol=1e-3, atol=1e-5)
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])


def test_only_the_body_is_sent(tmp_path: Path) -> None:
    run = train("fedper", DATA, tmp_path)
    body = sum(4 * t.numel() for n, t in run.trainer.server.initial.items() if not n.startswith(HEAD))
    sent = [(line["bytes_up"], line["bytes_down"]) for line in run.trainer.checkpoint.rounds]
    assert sent == [(DATA.clients * body, DATA.clients * body)] * 3


def test_it_has_a_model_for_members_alone() -> None:
    assert FedPer.serves == (MEMBER,)
