"""One client's training against plain loops written here."""

from __future__ import annotations

import copy
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench import models
from fedbench.core.augment import resized_crop, to_input
from fedbench.core.client import Batch, Client, Collect, Loss, Train, Trained
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.start import learning_rate
from fedbench.core.state import State, state_of
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import cross_entropy
from fedbench.methods.fedavg import FedAvg
from fedbench.specs import Setting
from tests.support.lab import client, federation, setting, train

DATA = federation()


class Bench:
    """A worker and a client to give it work."""

    def __init__(self, s: Setting, data: Federation = DATA, model: nn.Module | None = None) -> None:
        self.data, self.plan = data, Plan(s, data.n_train, data.shape[:2])
        self.model = model or models.build("digits_cnn", shape=data.shape, classes=10, seed=3)
        self.worker = Worker(self.model, data, s, threading.Event())
        self.client = self.make(1)

    def make(self, index: int, state: State | None = None) -> Client:
        state = state or state_of(self.model)
        return client(self.data, self.plan, index, state)

    def train(self, request: Train, client: Client | None = None) -> Trained:
        client = client or self.client
        client.work.phase += 1
        return self.worker.train(client, request)


def plain_loop(
    model: nn.Module, s: Setting, data: Federation, plan: Plan, client: int, t: int, lr: float, mu: float = 0.0
) -> list[float]:
    """The usual way: torch.optim over the batches of the plan's first phase; trains `model` in place."""
    start = [p.detach().clone() for p in model.parameters()]
    optimiser: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=s.weight_decay)
    if s.optimizer is None:
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=s.momentum, weight_decay=s.weight_decay)
    losses = []
    for positions in plan.batches(client, t, 1, s.epochs, s.steps):
        rows = data.train[client][torch.from_numpy(positions)]
        x = (data.images[rows].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
        loss = F.cross_entropy(model(x), data.labels[rows])
        losses.append(loss.item())
        for p, a in zip(model.parameters(), start, strict=True):
            loss = loss + mu / 2 * ((p - a) ** 2).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses


ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.003}


@pytest.mark.parametrize(
    "budget", [{"epochs": 2}, {"steps": 7}, {"epochs": 1, "tail": "drop", "momentum": 0.0}, {"epochs": 2, **ADAMW}]
)
def test_a_whole_round_of_fedavg_is_the_plain_loop_and_numpys_mean(budget: dict[str, Any], tmp_path: Path) -> None:
    s = setting(rounds=1, window=1, **budget)
    run = train("fedavg", DATA, tmp_path, s)
    start = models.build(s.model, shape=DATA.shape, classes=10, seed=s.seed)
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    mean = {name: np.zeros(p.shape) for name, p in start.named_parameters()}
    shown = 0.0
    share = np.array(DATA.n_train) / sum(DATA.n_train)
    for i in range(DATA.clients):
        model = copy.deepcopy(start)
        losses = plain_loop(model, s, DATA, plan, i, 1, s.lr)
        sizes = [len(b) for b in plan.batches(i, 1, 1, s.epochs, s.steps)]
        shown += share[i] * float(np.average(losses, weights=sizes))
        for name, p in model.named_parameters():
            mean[name] += share[i] * p.detach().double().numpy()
    for name, value in mean.items():
        np.testing.assert_allclose(run.shared[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(run.shared[name] - start.state_dict()[name].numpy()).max() > 1e-3, "nothing was trained"
    assert run.trainer.checkpoint.rounds[0]["loss"] == pytest.approx(shown, rel=1e-5)


class Line(nn.Module):
    """A model small enough to work out by hand: logits = (w * mean of the image, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5]))
        self.frozen = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x.mean((1, 2, 3))[:, None]


def squares(model: Any, batch: Batch) -> Loss:
    return Loss((model(batch.x)[:, 0] - batch.y).square().mean())


def test_momentum_and_weight_decay_by_hand() -> None:
    s = setting(steps=6, batch_size=5, momentum=0.8, weight_decay=0.1)
    bench = Bench(s, model=Line())
    trained = bench.train(Train(squares, trains=("w",)))
    w, velocity, total, images = 0.5, 0.0, 0.0, 0
    for positions in bench.plan.batches(1, 1, 1, None, 6):
        rows = DATA.train[1][torch.from_numpy(positions)]
        x = (DATA.images[rows].double().numpy() / 127.5 - 1).mean((1, 2, 3))
        y = DATA.labels[rows].numpy()
        total += float(((w * x - y) ** 2).sum())
        images += len(rows)
        gradient = float((2 * (w * x - y) * x).mean()) + 0.1 * w
        velocity = 0.8 * velocity + gradient
        w -= 0.05 * velocity
    assert float(bench.client.state["w"]) == pytest.approx(w, rel=1e-5)
    assert trained.loss == pytest.approx(total / images, rel=1e-5)
    assert trained.images == images == bench.client.work.processed
    # What does not train has no weight decay either.
    assert bench.client.state["frozen"] is bench.client.received["frozen"]


@pytest.mark.parametrize("changes", [{}, ADAMW], ids=["sgd", "adamw"])
def test_the_proximal_term_is_part_of_the_gradient(changes: dict[str, Any]) -> None:
    s = setting(epochs=2, **changes)
    bench = Bench(s)
    bench.train(Train(cross_entropy, prox=0.7, lr=s.lr))
    model = copy.deepcopy(bench.model)
    plain_loop(model, s, DATA, bench.plan, 1, 1, s.lr, mu=0.7)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(bench.client.state[name], p.detach(), rtol=1e-4, atol=1e-6)


def test_the_proximal_term_pulls_towards_what_was_received() -> None:
    bench = Bench(setting(epochs=2))
    # The centre is what the client received, not where this request starts.
    a, b = bench.make(1), bench.make(1)
    b.received = {name: t + 1 for name, t in b.received.items()}
    bench.train(Train(cross_entropy, steps=1, prox=0.7), a)
    bench.train(Train(cross_entropy, steps=1, prox=0.7), b)
    for name, t in a.state.items():
        np.testing.assert_allclose(b.state[name] - t, np.full(t.shape, 0.05 * 0.7), atol=1e-6)


def test_a_centre_that_follows_by_hand() -> None:
    """pFedMe's inner loop: K steps on a batch towards the centre, which then takes a share of its way."""
    s = setting(steps=6, batch_size=5, momentum=0.8, weight_decay=0.1)
    bench = Bench(s, model=Line())
    asked = Train(squares, trains=("w",), lr=0.02, momentum=0.0, prox=3.0, repeat=4, follow=0.15)
    trained = bench.train(asked)
    w = a = 0.5
    for positions in bench.plan.batches(1, 1, 1, None, 6):
        rows = DATA.train[1][torch.from_numpy(positions)]
        x = (DATA.images[rows].double().numpy() / 127.5 - 1).mean((1, 2, 3))
        y = DATA.labels[rows].numpy()
        for _ in range(4):
            w -= 0.02 * (float((2 * (w * x - y) * x).mean()) + 3.0 * (w - a) + 0.1 * w)
        a += 0.15 * (w - a)
    assert float(bench.client.state["w"]) == pytest.approx(w, rel=1e-5)
    assert float(trained.centre["w"]) == pytest.approx(a, rel=1e-5)
    assert abs(a - w) > 1e-3
    assert trained.centre.keys() == {"w"}
    assert trained.images == 4 * sum(len(b) for b in bench.plan.batches(1, 1, 1, None, 6))
    assert len(trained.labels) == trained.images
    assert bench.train(Train(squares, trains=("w",), prox=3.0)).centre == {}
    # What the client received stays as it was.
    assert float(bench.client.received["w"]) == 0.5


def test_a_request_with_a_momentum_of_its_own_is_sgd_under_adamw() -> None:
    for momentum in (0.0, 0.8):
        ours, its = Bench(setting(**ADAMW)), Bench(setting(momentum=momentum, weight_decay=0.1))
        ours.train(Train(cross_entropy, momentum=momentum, lr=0.05))
        its.train(Train(cross_entropy, lr=0.05))
        assert all(torch.equal(t, its.client.state[name]) for name, t in ours.client.state.items())


def test_only_what_should_train_trains() -> None:
    bench = Bench(setting())
    before = bench.client.state
    bench.train(Train(cross_entropy, trains=("head.",)))
    for name, t in bench.client.state.items():
        assert torch.equal(t, before[name]) is not name.startswith("head."), name
    # A later request that trains the body finds it trainable again.
    after = bench.client.state
    bench.train(Train(cross_entropy, trains=("backbone.", "projection.")))
    for name, t in bench.client.state.items():
        assert torch.equal(t, after[name]) is name.startswith("head."), name


def test_a_request_overrides_epochs_steps_and_rate() -> None:
    bench = Bench(setting(epochs=2, batch_size=16))
    n = DATA.n_train[1]
    assert n % 16
    whole, short = -(-n // 16), n % 16
    assert bench.train(Train(cross_entropy)).images == 2 * n
    assert bench.train(Train(cross_entropy, epochs=3)).images == 3 * n
    assert bench.train(Train(cross_entropy, steps=whole + 1)).images == (whole - 1) * 16 + short + 16
    a, b = bench.make(1), bench.make(1)
    bench.train(Train(cross_entropy, steps=1), a)
    bench.train(Train(cross_entropy, steps=1, lr=0.1), b)
    for name, t in a.received.items():  # twice the rate, twice the first step
        np.testing.assert_allclose(b.state[name] - t, 2 * (a.state[name] - t), atol=1e-6)


def test_each_request_starts_a_fresh_pass_and_optimiser() -> None:
    bench = Bench(setting(momentum=0.9))
    one = bench.make(1)
    first = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=b.x)), one)
    second = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=b.x)), one)
    assert first.collected is not None
    assert second.collected is not None
    assert not torch.equal(first.collected, second.collected)
    # Momentum of an earlier request would move the weights even where the gradient is zero.
    still = bench.make(1)
    bench.train(Train(cross_entropy), still)
    held = {name: t.clone() for name, t in still.state.items()}
    bench.worker.setting = setting(momentum=0.9, weight_decay=0.0)
    bench.train(Train(lambda m, b: Loss(0 * m(b.x).sum())), still)
    assert all(torch.equal(t, held[name]) for name, t in still.state.items())


def test_kept_rows_labels_and_the_last_pass() -> None:
    bench = Bench(setting(epochs=2, batch_size=16, tail="drop"))
    trained = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=b.x * 3)))
    rows = np.concatenate([DATA.train[1][torch.from_numpy(b)] for b in bench.plan.batches(1, 1, 1, 2, None)])
    assert trained.collected is not None
    assert torch.equal(trained.collected, to_input(DATA.images[rows]) * 3)
    assert torch.equal(trained.labels, DATA.labels[rows])
    assert trained.pass_rows == len(rows) // 2
    assert not trained.collected.requires_grad


def test_what_is_shown_is_not_what_is_minimised() -> None:
    bench = Bench(setting())
    a, b = bench.make(1), bench.make(1)
    plain = bench.train(Train(cross_entropy, steps=3), a)
    other = bench.train(Train(lambda m, x: Loss(cross_entropy(m, x).total, logged=torch.tensor(4.0)), steps=3), b)
    assert other.loss == 4.0 != plain.loss
    assert all(torch.equal(a.state[name], b.state[name]) for name in a.state)


@pytest.mark.parametrize("loss", [lambda m, b: Loss(m(b.x).sum() * math.nan), lambda m, b: Loss((m(b.x) * 1e38).sum())])
def test_divergence_is_one_clear_line(loss: Any) -> None:
    bench = Bench(setting())
    with pytest.raises(FedbenchError, match=r"diverged: client 1 in round 1 .*smaller --lr"):
        bench.train(Train(loss))


def test_running_statistics_are_state() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(1)
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.norm(x).flatten(1))
            return out

    torch.manual_seed(0)
    bench = Bench(setting(), model=Normed())
    bench.train(Train(cross_entropy, trains=("head.",)))
    steps = len(list(bench.plan.batches(1, 1, 1, 1, None)))
    assert int(bench.client.state["norm.num_batches_tracked"]) == steps
    assert not torch.equal(bench.client.state["norm.running_mean"], bench.client.received["norm.running_mean"])
    assert torch.equal(bench.client.state["norm.weight"], bench.client.received["norm.weight"])
    # A pass without training normalises by the running statistics, not by those of its batch.
    rows = bench.worker.collect(bench.client, Collect(lambda m, b: m.norm(b.x))).rows
    mean, variance = bench.client.state["norm.running_mean"], bench.client.state["norm.running_var"]
    x = to_input(DATA.images[DATA.train[1]])
    torch.testing.assert_close(rows, (x - mean) / (variance + 1e-5).sqrt())


def test_collect_goes_through_the_training_set_in_its_order() -> None:
    bench = Bench(setting())
    got = bench.worker.collect(bench.client, Collect(lambda m, b: b.x * b.extras["k"], {"k": torch.tensor(2.0)}))
    assert torch.equal(got.rows, to_input(DATA.images[DATA.train[1]]) * 2)
    assert torch.equal(got.labels, DATA.labels[DATA.train[1]])


def test_crops_are_the_plans_in_the_order_of_the_batches() -> None:
    bench = Bench(setting(augment="crop"), federation(color=True))
    trained = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=b.x)))
    crops = bench.plan.crops("train", 1, 1, 1)
    assert crops is not None
    expected = []
    for positions in bench.plan.batches(1, 1, 1, 1, None):
        images = bench.data.images[bench.data.train[1][torch.from_numpy(positions)]]
        expected.append(to_input(resized_crop(images, torch.from_numpy(crops.draw(len(positions))))))
    assert trained.collected is not None
    assert torch.equal(trained.collected, torch.cat(expected))
    assert trained.collected.shape[1:] == (3, 8, 8)


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
    s = setting(rounds=4, schedule="cosine")
    run = train("fedavg", DATA, tmp_path, s)
    assert [line["lr"] for line in run.trainer.checkpoint.rounds] == [learning_rate(s, t) for t in (1, 2, 3, 4)]
    reports: list[float] = []

    class Spy(FedAvg):
        def local(self, client: Client) -> Any:
            reports.append(client.lr)
            yield Train(cross_entropy)

    train(Spy(), DATA, tmp_path / "spy", s)
    assert reports == [learning_rate(s, t) for t in (1, 2, 3, 4) for _ in range(DATA.clients)]
