"""One client's training, its optimisers, rules on gradients and living momentum, against torch.optim and plain loops
written here."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench import models, protocol
from fedbench.conformance.subject import small
from fedbench.core.client import Batch, Client, ClientUpdate, Loss, Rule, Train, Trained, norm
from fedbench.core.federation import Federation, resized_crop, to_input
from fedbench.core.optimizer import SGD, AdamW, optimizer, recall, remember
from fedbench.core.plan import Plan
from fedbench.core.simulation import learning_rate
from fedbench.core.stacked import StackedWorker
from fedbench.core.state import State, state_of, weighted_mean
from fedbench.core.trainer import Progress
from fedbench.core.worker import Worker
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts.clustered import Choice
from fedbench.specs import DatasetSpec, Setting
from tests.support.frames import refused
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, federation, method, own, setting, train, trainer

DATA = federation()
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.003}


class Bench:
    def __init__(self, s: Setting, data: Federation = DATA, model: nn.Module | None = None) -> None:
        self.data, self.plan = data, Plan(s, data.n_train, data.shape[:2])
        self.model = model or models.build("digits_cnn", shape=data.shape, classes=10, seed=3)
        self.worker = Worker(self.model, data, s, threading.Event())
        self.client = self.make()

    def make(self) -> Client:
        return client(self.data, self.plan, 1, state_of(self.model))

    def train(self, request: Train, client: Client | None = None) -> Trained:
        client = client or self.client
        client.work.phase += 1
        return self.worker.train(client, request)


#: What a loop does to the gradients of a batch, before the optimiser's step: (model, its loss on the batch).
Change = Callable[[nn.Module, Callable[[], Tensor]], None]


def untouched(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    """The gradients as they are."""


def optimiser_of(model: nn.Module, s: Setting) -> torch.optim.Optimizer:
    if s.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=s.lr, weight_decay=s.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)


def plain_loop(
    model: nn.Module,
    s: Setting,
    data: Federation,
    plan: Plan,
    client: int,
    mu: float = 0.0,
    change: Change = untouched,
    made: torch.optim.Optimizer | None = None,
    t: int = 1,
) -> list[float]:
    """The usual way: torch.optim over the batches of a round's first phase; trains `model` in place. The losses of its
    steps, without the proximal term."""
    start = [p.detach().clone() for p in model.parameters()]
    made = made or optimiser_of(model, s)
    losses = []
    for positions in plan.batches(client, t, 1, s.epochs, s.steps):
        rows = data.train[client][torch.from_numpy(positions)]
        x = (data.images[rows].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5

        def loss(x: Tensor = x, y: Tensor = data.labels[rows]) -> Tensor:
            pull = sum(((p - a) ** 2).sum() for p, a in zip(model.parameters(), start, strict=True)) if mu else 0.0
            return F.cross_entropy(model(x), y) + mu / 2 * pull

        made.zero_grad()
        total = loss()
        losses.append(total.item())
        total.backward()
        change(model, loss)
        made.step()
    return losses


@pytest.mark.parametrize(
    "budget", [{"epochs": 2}, {"steps": 7}, {"epochs": 1, "tail": "drop", "momentum": 0.0}, {"epochs": 2, **ADAMW}]
)
def test_a_whole_round_of_fedavg_is_the_plain_loop_and_numpys_mean(budget: dict[str, Any], tmp_path: Path) -> None:
    s = setting(rounds=1, window=1, **budget)
    run = train("fedavg", DATA, tmp_path, s)
    start = models.build(s.model, shape=DATA.shape, classes=10, seed=s.seed)
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    mean = {name: np.zeros(p.shape) for name, p in start.named_parameters()}
    shown, share = 0.0, np.array(DATA.n_train) / sum(DATA.n_train)
    for i in range(DATA.clients):
        model = copy.deepcopy(start)
        losses = plain_loop(model, s, DATA, plan, i)
        sizes = [len(b) for b in plan.batches(i, 1, 1, s.epochs, s.steps)]
        shown += share[i] * float(np.average(losses, weights=sizes))
        for name, p in model.named_parameters():
            mean[name] += share[i] * p.detach().double().numpy()
    for name, value in mean.items():
        np.testing.assert_allclose(run.shared[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(run.shared[name] - start.state_dict()[name].numpy()).max() > 1e-3, "nothing was trained"
    assert run.trainer.checkpoint.rounds[0]["loss"] == pytest.approx(shown, rel=1e-5)


def test_adamws_proximal_term_is_part_of_the_gradient_and_what_the_loss_leaves_alone_stays() -> None:
    s = setting(epochs=2, **ADAMW)
    bench = Bench(s)
    bench.train(Train(cross_entropy, prox=0.7, lr=s.lr))
    model = copy.deepcopy(bench.model)
    plain_loop(model, s, DATA, bench.plan, 1, mu=0.7)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(bench.client.state[name], p.detach(), rtol=1e-4, atol=1e-6)
    before = bench.client.state
    bench.train(Train(lambda m, b: Loss(m.head.bias.square().sum())))
    assert [n for n, t in bench.client.state.items() if not torch.equal(t, before[n])] == ["head.bias"]


def test_a_request_overrides_epochs_steps_and_rate() -> None:
    bench, n = Bench(setting(epochs=2, batch_size=16)), DATA.n_train[1]
    assert n % 16
    whole, short = -(-n // 16), n % 16
    assert bench.train(Train(cross_entropy)).images == 2 * n
    assert bench.train(Train(cross_entropy, epochs=3)).images == 3 * n
    assert bench.train(Train(cross_entropy, repeat=2)).images == 4 * n
    assert bench.train(Train(cross_entropy, steps=whole + 1)).images == (whole - 1) * 16 + short + 16
    a, b = bench.make(), bench.make()
    bench.train(Train(cross_entropy, steps=1), a)
    bench.train(Train(cross_entropy, steps=1, lr=0.1), b)
    for name, t in a.received.items():  # twice the rate, twice the first step
        np.testing.assert_allclose(b.state[name] - t, 2 * (a.state[name] - t), atol=1e-6)


def showing(model: Any, batch: Batch) -> Loss:
    return Loss(cross_entropy(model, batch).total, collected=batch.x)


@pytest.mark.parametrize("loss", [lambda m, b: Loss(m(b.x).sum() * math.nan), lambda m, b: Loss((m(b.x) * 1e38).sum())])
def test_divergence_is_one_clear_line(loss: Any) -> None:
    refused(r"diverged: client 1 in round 1 .*smaller --lr", Bench(setting()).train, Train(loss))


def test_kept_rows_are_the_plans_crops_in_the_order_of_the_batches_with_their_labels() -> None:
    bench = Bench(setting(epochs=2, batch_size=16, tail="drop", augment="crop"), federation(color=True))
    trained, crops = bench.train(Train(showing)), bench.plan.crops("train", 1, 1, 1)
    rows = [bench.data.train[1][torch.from_numpy(b)] for b in bench.plan.batches(1, 1, 1, 2, None)]
    drawn = [resized_crop(bench.data.images[some], torch.from_numpy(crops.draw(len(some)))) for some in rows]
    assert torch.equal(trained.collected, to_input(torch.cat(drawn)))
    assert trained.collected.shape[1:] == (3, 8, 8)
    assert torch.equal(trained.labels, bench.data.labels[torch.cat(rows)])
    assert trained.pass_rows == len(trained.labels) // 2
    kept = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=m(b.x)))).collected
    assert not kept.requires_grad


# FedDRM protocol, section 2: the learning rate at a round of a run that starts at 0.01.
@pytest.mark.parametrize(
    ("rounds", "t", "rate"),
    [
        (800, 1, 1.0e-2), (800, 401, 5.0e-3), (800, 601, 1.464e-3), (800, 701, 3.806e-4), (800, 751, 9.607e-5),
        (800, 775, 2.604e-5), (800, 800, 3.86e-8), (100, 1, 1.0e-2), (100, 91, 2.447e-4), (100, 100, 2.47e-6),
    ],
)  # fmt: skip
def test_cosine_rate_has_the_papers_values(rounds: int, t: int, rate: float) -> None:
    s = setting(rounds=rounds, lr=0.01, schedule="cosine")
    assert learning_rate(s, t) == pytest.approx(rate, rel=2e-3)
    assert learning_rate(setting(rounds=rounds, lr=0.01), t) == 0.01


def test_the_rounds_rate_is_what_clients_train_with(tmp_path: Path) -> None:
    s, heard = setting(rounds=4, schedule="cosine"), []

    def local(self: Method, client: Client) -> ClientUpdate:
        heard.append(client.lr)
        yield Train(cross_entropy)

    run = train(own(local=local), DATA, tmp_path, s)
    expected = [learning_rate(s, t) for t in (1, 2, 3, 4)]
    assert [line["lr"] for line in run.trainer.checkpoint.rounds] == expected
    assert heard == [rate for rate in expected for _ in range(DATA.clients)]


def test_a_momentum_of_a_requests_own_is_sgd_in_every_setting() -> None:
    s = setting(**ADAMW)
    assert optimizer(s) == AdamW(0.1, in_step=True)
    assert optimizer(s, 0.0) == SGD(0.1, 0.0)
    assert optimizer(s, 0.5) == SGD(0.1, 0.5)
    assert optimizer(replace(s, momentum_restarts=True)) == AdamW(0.1, in_step=False)
    assert optimizer(setting(momentum=0.9, weight_decay=0.2)) == SGD(0.2, 0.9)
    assert Train(cross_entropy).momentum is None
    for momentum in (0.0, 0.8):
        ours, its = Bench(s), Bench(setting(momentum=momentum, weight_decay=0.1))
        ours.train(Train(cross_entropy, momentum=momentum, lr=0.05))
        its.train(Train(cross_entropy, lr=0.05))
        assert all(torch.equal(t, its.client.state[name]) for name, t in ours.client.state.items())


FEW = federation((40, 30, 24))
EIGHT = setting(epochs=2, momentum=0.9, weight_decay=1e-3, batch_size=8)
PLAN = Plan(EIGHT, FEW.n_train, FEW.shape[:2])


def trained(kind: type[Worker], rule: Rule) -> list[Client]:
    """All clients after training by a request with this rule."""
    model = small()
    who = [client(FEW, PLAN, i, state_of(model)) for i in range(FEW.clients)]
    for one in who:
        one.work.phase = 1
    worker, request = kind(model, FEW, EIGHT, threading.Event()), Train(cross_entropy, rules=(rule,))
    if isinstance(worker, StackedWorker):
        worker.train_stack(who, [request] * len(who))
    else:
        for one in who:
            worker.train(one, request)
    return who


def clipping(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


@dataclass(frozen=True)
class Clip(Rule):
    """A rule of a test's own: no longer than `most`, each client's gradient by its own length."""

    most: float

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        scale = torch.clamp(self.most / norm(gradient), max=1.0)
        return {name: scale * g for name, g in gradient.items()}


@dataclass(frozen=True)
class Turned(Rule):
    """The gradient as it is, in another order in memory."""

    def direction(self, weights: State, gradient: State, beside: Mapping[str, State]) -> State:
        return {n: g.T.clone(memory_format=torch.contiguous_format).T if g.dim() == 2 else g.contiguous()
                for n, g in gradient.items()}  # fmt: skip


@pytest.mark.parametrize("kind", [Worker, StackedWorker])
@pytest.mark.parametrize(("rule", "change"), [(Clip(0.5), clipping), (Turned(), untouched)])
def test_a_rule_of_ones_own_is_part_of_every_step(kind: type[Worker], rule: Rule, change: Change) -> None:
    """Those of fedbench: FedSAM, MoFedSAM and SCAFFOLD in tests/methods/test_drift.py."""
    for one in trained(kind, rule):
        ours, plain = small().train(), small().train()
        plain_loop(ours, EIGHT, FEW, PLAN, one.index, change=change)
        plain_loop(plain, EIGHT, FEW, PLAN, one.index)
        without = state_of(plain)
        for n, t in state_of(ours).items():
            torch.testing.assert_close(one.state[n], t, rtol=1e-4, atol=2e-6, msg=lambda text, n=n: f"{n}: {text}")
        matters = any(float((one.state[n] - t).abs().max()) > 1e-3 for n, t in without.items())
        assert matters is isinstance(rule, Clip)


def living(**changes: Any) -> Setting:
    return setting(**{"rounds": 3, "momentum_lives": True, **changes})


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
            plain_loop(module, s, DATA, plan, i, made=optimiser, t=t)
        shared = weighted_mean([m.state_dict() for m in modules], DATA.n_train, shared)
    run = train("fedavg", DATA, tmp_path, s)
    assert set(run.trainer.server.momenta) == set(range(DATA.clients))
    for name, value in shared.items():
        torch.testing.assert_close(run.trainer.server.shared[name], value, rtol=1e-4, atol=1e-6)


def test_each_model_has_its_own_and_what_has_not_been_trained_begins_at_rest() -> None:
    one, dead = (client(DATA, Plan(s, DATA.n_train, DATA.shape[:2]), 0, {}) for s in (living(), setting()))
    one.work.momenta = {}
    requests = {
        "": Train(cross_entropy), "own": Train(cross_entropy, model="own"),
        "2": Train(cross_entropy, momentum_of="2"),
    }  # fmt: skip
    for k, (model, request) in enumerate(requests.items()):
        remember(one, request, {"own/w" if model == "own" else "w": torch.full((2,), float(k + 1))})
    assert {n: t.tolist() for n, t in one.work.momenta.items()} == {"w": [1, 1], "own/w": [2, 2], "2/w": [3, 3]}
    # ... whether the second of the numbered models stands in the client's place or under its number
    second, in_place = Train(cross_entropy, model="2"), Train(cross_entropy, momentum_of="0")
    for request, name, moved in ((requests["2"], "w", 3), (second, "2/w", 3), (in_place, "w", 0)):
        place = {name: torch.zeros(2)}
        recall(one, request, place)
        assert place[name].tolist() == [moved, moved]
    dead.work.momenta = None
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
    refused("cannot both live and begin anew", living, momentum_restarts=True)
    refused("no momentum that could live", living, momentum=0.0)
    assert living().descent == "SGD with living momentum 0.9 and weight decay 0.0005"
    rules = protocol.load("flux")
    part = rules.partition_spec(DatasetSpec("mnist", "test", "test"), 10, shift="py", level=8)
    s = rules.setting(part, "small", momentum_lives=True)
    assert (s.momentum_lives, s.momentum_restarts, s.budget) == (True, None, "custom")
    assert rules.setting(part, "small").momentum_restarts
    refused("leave --momentum-lives out", method("fednova").check_setting, living())
