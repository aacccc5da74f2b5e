"""Momentum that lives: a client's optimiser of a model goes on between rounds, as one that is made once would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbench import models, protocol
from fedbench.core.client import Client, Train
from fedbench.core.optimizer import recall, remember
from fedbench.core.plan import Plan
from fedbench.core.state import weighted_mean
from fedbench.core.trainer import Progress
from fedbench.errors import FedbenchError
from fedbench.methods.base import cross_entropy
from fedbench.methods.parts.lowest_loss import Choice
from fedbench.specs import DatasetSpec, Setting
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import Run, client, federation, method, same, setting, train, trainer

DATA = federation()
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.003}


def living(**changes: Any) -> Setting:
    return setting(**{"rounds": 3, "momentum_lives": True, **changes})


def optimiser_of(model: nn.Module, s: Setting) -> torch.optim.Optimizer:
    if s.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=s.lr, weight_decay=s.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)


@pytest.mark.parametrize("changes", [{}, ADAMW], ids=["sgd", "adamw"])
def test_it_is_torchs_optimiser_made_once_a_client(changes: dict[str, Any], tmp_path: Path) -> None:
    """FedAvg by hand: a module and an optimiser a client, of which only the weights are set anew in every round."""
    s = living(**changes)
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    modules = [models.build(s.model, shape=DATA.shape, classes=10, seed=s.seed) for _ in range(DATA.clients)]
    optimisers = [optimiser_of(m, s) for m in modules]
    shared = {n: t.clone() for n, t in modules[0].state_dict().items()}
    for t in range(1, s.rounds + 1):
        for i, (module, optimiser) in enumerate(zip(modules, optimisers, strict=True)):
            module.load_state_dict(shared)
            for positions in plan.batches(i, t, 1, s.epochs, s.steps):
                rows = DATA.train[i][torch.from_numpy(positions)]
                x = (DATA.images[rows].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
                optimiser.zero_grad()
                F.cross_entropy(module(x), DATA.labels[rows]).backward()
                optimiser.step()
        shared = weighted_mean([m.state_dict() for m in modules], DATA.n_train, shared)
    run = train("fedavg", DATA, tmp_path, s)
    for name, value in shared.items():
        torch.testing.assert_close(run.trainer.server.shared[name], value, rtol=1e-4, atol=1e-6)


def test_it_changes_nothing_in_the_first_round_and_something_after(tmp_path: Path) -> None:
    def run(rounds: int, lives: bool) -> Run:
        s = living(rounds=rounds, momentum_lives=lives)
        return train("fedavg", DATA, tmp_path / f"{rounds}{lives}", s)

    assert same(run(1, False).shared, run(1, True).shared)
    two = [run(2, lives) for lives in (False, True)]
    assert not same(two[0].shared, two[1].shared)
    assert two[0].trainer.server.momenta == {}
    assert set(two[1].trainer.server.momenta) == set(range(DATA.clients))


def bare(lives: bool = True) -> Client:
    s = living() if lives else setting()
    one = client(DATA, Plan(s, DATA.n_train, DATA.shape[:2]), 0, {})
    one.work.momenta = {} if lives else None
    return one


def test_each_model_has_its_own() -> None:
    one = bare()
    requests = {
        "": Train(cross_entropy), "own": Train(cross_entropy, model="own"),
        "2": Train(cross_entropy, momentum_of="2"),
    }  # fmt: skip
    for k, (model, request) in enumerate(requests.items()):
        remember(one, request, {"own/w" if model == "own" else "w": torch.full((2,), float(k + 1))})
    assert one.work.momenta is not None
    assert {n: t.tolist() for n, t in one.work.momenta.items()} == {"w": [1, 1], "own/w": [2, 2], "2/w": [3, 3]}
    # ... whether the second of the numbered models stands in the client's place or under its number
    for request, name in ((requests["2"], "w"), (Train(cross_entropy, model="2"), "2/w")):
        place = {name: torch.zeros(2)}
        recall(one, request, place)
        assert place[name].tolist() == [3, 3]


def test_what_has_not_been_trained_begins_at_rest() -> None:
    one, place = bare(), {"w": torch.zeros(2)}
    remember(one, Train(cross_entropy, momentum_of="1"), {"w": torch.ones(2)})
    recall(one, Train(cross_entropy, momentum_of="0"), place)
    assert place["w"].tolist() == [0, 0]
    dead = bare(lives=False)
    remember(dead, Train(cross_entropy), {"w": torch.ones(2)})
    assert dead.work.momenta is None


@pytest.mark.parametrize("name", ["ifca", "fesem"])
def test_a_clustered_client_has_momentum_with_each_model_that_it_has_trained(name: str, tmp_path: Path) -> None:
    data, chosen = grouped_federation(), {}
    s = grouped_setting(rounds=4, momentum=0.9, momentum_restarts=False, momentum_lives=True)
    it = trainer(method(name, clusters=3), data, tmp_path, s)

    def note(progress: Progress) -> None:
        if not progress.doing:
            chosen[progress.round] = dict(it.server.assigned)

    it.run(note)
    if name == "ifca":  # a client trains the model that it has chosen in the round
        trained = {i: {chosen[t][i] for t in chosen} for i in chosen[1]}
        assert {i: _models(it.server.momenta[i]) for i in trained} == trained
    else:  # ... or the one that it was in after the round before; the first by its loss
        for i, momenta in it.server.momenta.items():
            assert {chosen[t][i] for t in (1, 2, 3)} <= _models(momenta)


def _models(momenta: dict[str, torch.Tensor]) -> set[int]:
    return {int(name.split("/")[0]) for name in momenta}


def test_fesems_client_is_told_its_model_only_where_it_needs_it(tmp_path: Path) -> None:
    data = grouped_federation()
    for lives, expected in ((False, None), (True, Choice(1))):
        s = grouped_setting(rounds=2, momentum=0.9, momentum_restarts=False, momentum_lives=lives)
        it = trainer(method("fesem", clusters=2), data, tmp_path / str(lives), s)
        it.server.assigned[0] = 1
        one = it.client(0, it.server.view(0), 1)
        it.method.broadcast(it.server, one)
        assert one.inbox == expected


def test_what_settings_and_methods_say_of_it() -> None:
    """One id, no contradiction; under FLUX's protocol it takes the place of its restarts."""
    assert living(momentum_lives=False) == setting(rounds=3)
    with pytest.raises(FedbenchError, match="cannot both live and begin anew"):
        living(momentum_restarts=True)
    with pytest.raises(FedbenchError, match="no momentum that could live"):
        living(momentum=0.0)
    assert living().descent == "SGD with living momentum 0.9 and weight decay 0.0005"
    rules = protocol.load("flux")
    part = rules.partition_spec(DatasetSpec("mnist", "test", "test"), 10, shift="py", level=8)
    s = rules.setting(part, "small", momentum_lives=True)
    assert (s.momentum_lives, s.momentum_restarts, s.budget) == (True, None, "custom")
    assert rules.setting(part, "small").momentum_restarts
    with pytest.raises(FedbenchError, match="leave --momentum-lives out"):
        method("fednova").check_setting(living())
