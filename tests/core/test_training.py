"""One client's training, its optimisers, rules on gradients and living momentum, against torch.optim and plain loops
written here."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
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
from fedbench.core.client import Add, Ascend, Batch, Client, ClientUpdate, Collect, Loss, Rule, Train, Trained, norm
from fedbench.core.federation import Federation, resized_crop, to_input
from fedbench.core.optimizer import SGD, AdamW, Optimizer, optimizer, recall, remember
from fedbench.core.plan import Plan
from fedbench.core.simulation import learning_rate
from fedbench.core.stacked import StackedWorker
from fedbench.core.state import State, state_of, weighted_mean
from fedbench.core.trainer import Progress
from fedbench.core.worker import Worker
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts.clustered import Choice
from fedbench.specs import DatasetSpec, Setting
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, federation, method, own, setting, train, trainer

DATA = federation()
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.003}


class Bench:
    """A worker and a client to give it work."""

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


def by_hand(bench: Bench) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of six steps: means of the images, and labels."""
    batches = [DATA.train[1][torch.from_numpy(b)] for b in bench.plan.batches(1, 1, 1, None, 6)]
    means = [(DATA.images[rows].double().numpy() / 127.5 - 1).mean((1, 2, 3)) for rows in batches]
    return [(x, DATA.labels[rows].numpy()) for x, rows in zip(means, batches, strict=True)]


SIX: dict[str, Any] = {"steps": 6, "batch_size": 5, "momentum": 0.8, "weight_decay": 0.1}


def test_a_centre_that_follows_by_hand() -> None:
    """pFedMe's inner loop: K steps on a batch towards the centre, which then takes a share of its way."""
    bench = Bench(setting(**SIX), model=Line())
    asked = Train(squares, trains=("w",), lr=0.02, momentum=0.0, prox=3.0, repeat=4, follow=0.15)
    trained = bench.train(asked)
    w = a = 0.5
    for x, y in by_hand(bench):
        for _ in range(4):
            w -= 0.02 * (float((2 * (w * x - y) * x).mean()) + 3.0 * (w - a) + 0.1 * w)
        a += 0.15 * (w - a)
    assert float(bench.client.state["w"]) == pytest.approx(w, rel=1e-5)
    assert float(trained.centre["w"]) == pytest.approx(a, rel=1e-5)
    assert abs(a - w) > 1e-3
    assert trained.centre.keys() == {"w"}
    assert trained.images == len(trained.labels) == 4 * sum(len(y) for _, y in by_hand(bench))
    assert bench.train(Train(squares, trains=("w",), prox=3.0)).centre == {}
    # What the client received stays as it was.
    assert float(bench.client.received["w"]) == 0.5


@pytest.mark.parametrize("changes", [{}, ADAMW], ids=["sgd", "adamw"])
def test_the_proximal_term_is_part_of_the_gradient(changes: dict[str, Any]) -> None:
    s = setting(epochs=2, **changes)
    bench = Bench(s)
    bench.train(Train(cross_entropy, prox=0.7, lr=s.lr))
    model = copy.deepcopy(bench.model)
    plain_loop(model, s, DATA, bench.plan, 1, mu=0.7)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(bench.client.state[name], p.detach(), rtol=1e-4, atol=1e-6)


def test_the_proximal_term_pulls_towards_what_was_received() -> None:
    """Not to where this request starts."""
    bench = Bench(setting(epochs=2))
    a, b = bench.make(), bench.make()
    b.received = {name: t + 1 for name, t in b.received.items()}
    for one in (a, b):
        bench.train(Train(cross_entropy, steps=1, prox=0.7), one)
    for name, t in a.state.items():
        np.testing.assert_allclose(b.state[name] - t, np.full(t.shape, 0.05 * 0.7), atol=1e-6)


def test_only_what_should_train_trains() -> None:
    """A later request that trains the body finds it trainable again."""
    bench = Bench(setting())
    for trains in (("head.",), ("backbone.", "projection.")):
        before = bench.client.state
        bench.train(Train(cross_entropy, trains=trains))
        for name, t in bench.client.state.items():
            assert torch.equal(t, before[name]) is not name.startswith(trains), name


def test_a_request_overrides_epochs_steps_and_rate() -> None:
    bench, n = Bench(setting(epochs=2, batch_size=16)), DATA.n_train[1]
    assert n % 16
    whole, short = -(-n // 16), n % 16
    assert bench.train(Train(cross_entropy)).images == 2 * n
    assert bench.train(Train(cross_entropy, epochs=3)).images == 3 * n
    assert bench.train(Train(cross_entropy, steps=whole + 1)).images == (whole - 1) * 16 + short + 16
    a, b = bench.make(), bench.make()
    bench.train(Train(cross_entropy, steps=1), a)
    bench.train(Train(cross_entropy, steps=1, lr=0.1), b)
    for name, t in a.received.items():  # twice the rate, twice the first step
        np.testing.assert_allclose(b.state[name] - t, 2 * (a.state[name] - t), atol=1e-6)


def showing(model: Any, batch: Batch) -> Loss:
    return Loss(cross_entropy(model, batch).total, collected=batch.x)


def test_each_request_starts_a_fresh_pass_and_optimiser() -> None:
    bench = Bench(setting(momentum=0.9))
    one = bench.make()
    first, second = (bench.train(Train(showing), one).collected for _ in range(2))
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    # Momentum of an earlier request would move the weights even where the gradient is zero.
    still = bench.make()
    bench.train(Train(cross_entropy), still)
    held = {name: t.clone() for name, t in still.state.items()}
    bench.worker.setting = setting(momentum=0.9, weight_decay=0.0)
    bench.train(Train(lambda m, b: Loss(0 * m(b.x).sum())), still)
    assert all(torch.equal(t, held[name]) for name, t in still.state.items())


def test_what_is_shown_is_not_what_is_minimised() -> None:
    bench = Bench(setting())
    a, b = bench.make(), bench.make()
    plain = bench.train(Train(cross_entropy, steps=3), a)
    other = bench.train(Train(lambda m, x: Loss(cross_entropy(m, x).total, logged=torch.tensor(4.0)), steps=3), b)
    assert other.loss == 4.0 != plain.loss
    assert all(torch.equal(a.state[name], b.state[name]) for name in a.state)


@pytest.mark.parametrize("loss", [lambda m, b: Loss(m(b.x).sum() * math.nan), lambda m, b: Loss((m(b.x) * 1e38).sum())])
def test_divergence_is_one_clear_line(loss: Any) -> None:
    with pytest.raises(FedbenchError, match=r"diverged: client 1 in round 1 .*smaller --lr"):
        Bench(setting()).train(Train(loss))


def test_running_statistics_are_state() -> None:
    bench = Bench(setting(), model=small(norm=True))
    norm, before = "backbone.norm", state_of(bench.model)
    bench.train(Train(cross_entropy, trains=("head.",)))
    state = bench.client.state
    assert int(state[f"{norm}.num_batches_tracked"]) == len(list(bench.plan.batches(1, 1, 1, 1, None)))
    assert not torch.equal(state[f"{norm}.running_mean"], before[f"{norm}.running_mean"])
    assert torch.equal(state[f"{norm}.weight"], before[f"{norm}.weight"])
    # A pass without training normalises by the running statistics, not by those of its batch.
    rows = bench.worker.collect(bench.client, Collect(lambda m, b: m(b.x))).rows
    alone = small(norm=True)
    alone.load_state_dict(state)
    torch.testing.assert_close(rows, alone.eval()(to_input(DATA.images[DATA.train[1]])).detach())


def test_collect_goes_through_the_training_set_in_its_order() -> None:
    bench = Bench(setting())
    got = bench.worker.collect(bench.client, Collect(lambda m, b: b.x * b.extras["k"], {"k": torch.tensor(2.0)}))
    assert torch.equal(got.rows, to_input(DATA.images[DATA.train[1]]) * 2)
    assert torch.equal(got.labels, DATA.labels[DATA.train[1]])


def test_kept_rows_are_the_plans_crops_in_the_order_of_the_batches_with_their_labels() -> None:
    bench = Bench(setting(epochs=2, batch_size=16, tail="drop", augment="crop"), federation(color=True))
    trained, crops = bench.train(Train(showing)), bench.plan.crops("train", 1, 1, 1)
    assert crops is not None
    rows = [bench.data.train[1][torch.from_numpy(b)] for b in bench.plan.batches(1, 1, 1, 2, None)]
    drawn = [resized_crop(bench.data.images[some], torch.from_numpy(crops.draw(len(some)))) for some in rows]
    assert trained.collected is not None
    assert torch.equal(trained.collected, to_input(torch.cat(drawn)))
    assert trained.collected.shape[1:] == (3, 8, 8)
    assert torch.equal(trained.labels, bench.data.labels[torch.cat(rows)])
    assert trained.pass_rows == len(trained.labels) // 2
    kept = bench.train(Train(lambda m, b: Loss(cross_entropy(m, b).total, collected=m(b.x)))).collected
    assert kept is not None
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


# -- optimisers: one client, a stack of clients, and a step that can be captured ------------------------------

CLIENTS, LR, DECAY = 3, 0.02, 0.1
SHAPES = {"conv": (4, 2, 3, 3), "bias": (5,), "scale": ()}
#: Ours -> torch's own.
RULES: dict[str, tuple[Optimizer, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (SGD(DECAY, 0.0), lambda p: torch.optim.SGD(p, LR, weight_decay=DECAY)),
    "momentum": (SGD(DECAY, 0.8), lambda p: torch.optim.SGD(p, LR, 0.8, weight_decay=DECAY)),
    "adamw": (AdamW(DECAY, in_step=True), lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY)),
    "adamw, each for itself": (AdamW(DECAY, in_step=False), lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY)),
}


def draws(*lead: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn((*lead, *shape), generator=generator) for name, shape in SHAPES.items()}


def after(rule: str, client: int | None) -> dict[str, Tensor]:
    """Torch's own result of five steps from the same start."""
    lead, own = ((), ...) if client is None else ((CLIENTS,), client)
    p = {n: t[own].clone().requires_grad_() for n, t in draws(*lead, seed=0).items()}  # type: ignore[index]
    theirs = RULES[rule][1](p.values())
    for t in range(5):
        for name, g in draws(*lead, seed=t + 1).items():
            p[name].grad = g[own].clone()  # type: ignore[index]
        theirs.step()
    return {n: t.detach() for n, t in p.items()}


def descended(rule: str, *lead: int, idle: bool = False, lr: float | Tensor = LR) -> dict[str, Tensor]:
    """Parameters after five steps of ours."""
    ours = RULES[rule][0]
    p = {n: t.requires_grad_() for n, t in draws(*lead, seed=0).items()}
    if idle:  # the loss does not touch it
        p["idle"] = torch.ones(3, requires_grad=True)
    memory = ours.memory(p, stacked=bool(lead))
    for t in range(5):
        for name, g in draws(*lead, seed=t + 1).items():
            p[name].grad = g
        ours.descend(p, memory, lr)
        assert all(x.grad is None for x in p.values())
    return {n: t.detach() for n, t in p.items()}


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_torchs_of_one_client_and_of_each_in_a_stack(rule: str) -> None:
    one = descended(rule, idle=True)
    assert one.pop("idle").tolist() == [1, 1, 1]
    for name, value in after(rule, None).items():
        torch.testing.assert_close(one[name], value, rtol=1e-6, atol=1e-7)
    # A captured step needs the rate on the device.
    stacks = descended(rule, CLIENTS), descended(rule, CLIENTS, lr=torch.tensor(LR))
    for i in range(CLIENTS):
        for name, value in after(rule, i).items():
            for stack in stacks:
                torch.testing.assert_close(stack[name][i], value, rtol=1e-6, atol=1e-7)


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


@pytest.mark.parametrize(
    ("name", "changes"),
    [("pfedme", {}), *((name, {"steps": 1, "momentum": 0.0}) for name in ("fedsgd", "fedbn", "ftw_erm"))],
)
def test_methods_with_a_step_rule_of_their_own_refuse_another(name: str, changes: dict[str, Any]) -> None:
    how = method(name)
    how.check_setting(setting(**changes))
    with pytest.raises(FedbenchError, match=f"{name} takes its steps by a rule of its own, not by adamw"):
        how.check_setting(setting(**{**changes, **ADAMW}))


# -- rules on gradients ---------------------------------------------------------------------------------------

FEW = federation((40, 30, 24))
EIGHT = setting(epochs=2, momentum=0.9, weight_decay=1e-3, batch_size=8)
PLAN = Plan(EIGHT, FEW.n_train, FEW.shape[:2])


def trained(kind: type[Worker], *rules: Rule, norm: bool = False) -> list[Client]:
    """All clients after training by a request with these rules, with `control` beside their models."""
    model = small(norm=norm)
    who = [client(FEW, PLAN, i, state_of(model)) for i in range(FEW.clients)]
    for one in who:
        one.work.phase = 1
        one.put(control(one), "control")
    worker, request = kind(model, FEW, EIGHT, threading.Event()), Train(cross_entropy, rules=rules)
    if isinstance(worker, StackedWorker):
        worker.train_stack(who, [request] * len(who))
    else:
        for one in who:
            worker.train(one, request)
    return who


def control(one: Client) -> State:
    """Of each client's own, as large as the parameters."""
    generator = torch.Generator().manual_seed(one.index)
    return {n: 0.05 * torch.randn(t.shape, generator=generator) for n, t in one.model().items()}


def adding(values: Mapping[str, Tensor], times: float) -> Change:
    def change(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        for name, p in model.named_parameters():
            assert p.grad is not None
            p.grad = p.grad + times * values[name]

    return change


def ascending(rho: float) -> Change:
    """Sharpness-aware minimisation as its official code does it: climb, differentiate, come back."""

    def change(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        home = copy.deepcopy({n: p.detach() for n, p in model.named_parameters()})
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.add_(p.grad, alpha=rho / (float(length) + 1e-12))
        model.zero_grad()
        loss().backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(home[name])

    return change


def both(first: Change, second: Change) -> Change:
    return lambda model, loss: (first(model, loss), second(model, loss))[0]


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


#: Rules, with or without a batch norm (whose statistics see each batch twice) -> what a plain loop does of them.
LOOPS: list[tuple[Sequence[Rule], bool, Callable[[State], Change]]] = [
    ((Add("control", 1.0),), False, lambda c: adding(c, 1.0)),
    ((Add("control", -0.5),), False, lambda c: adding(c, -0.5)),
    *(((Ascend(rho),), norm, lambda c, rho=rho: ascending(rho)) for rho in (0.05, 0.5) for norm in (False, True)),  # type: ignore[misc]
    # What is added first makes the ascent's direction and is lost in its second pass; what is added after it stays.
    ((Add("control"), Ascend(0.3)), False, lambda c: both(adding(c, 1.0), ascending(0.3))),
    ((Ascend(0.3), Add("control")), False, lambda c: both(ascending(0.3), adding(c, 1.0))),
    ((Clip(0.5),), False, lambda c: clipping),
    ((Turned(),), False, lambda c: untouched),
]


@pytest.mark.parametrize("kind", [Worker, StackedWorker])
@pytest.mark.parametrize(("rules", "norm", "change"), LOOPS)
def test_a_rule_is_part_of_every_step(
    kind: type[Worker], rules: Sequence[Rule], norm: bool, change: Callable[[State], Change]
) -> None:
    start = state_of(small(norm=norm))
    for one in trained(kind, *rules, norm=norm):
        ours, plain = small(norm=norm).train(), small(norm=norm).train()
        plain_loop(ours, EIGHT, FEW, PLAN, one.index, change=change(control(one)))
        plain_loop(plain, EIGHT, FEW, PLAN, one.index)
        expected, without = state_of(ours), state_of(plain)
        far = {n: float((t - start[n]).abs().max()) for n, t in expected.items() if t.is_floating_point()}
        assert max(far.values()) > 0.01
        for n, t in expected.items():
            torch.testing.assert_close(one.state[n], t, rtol=1e-4, atol=2e-6, msg=lambda text, n=n: f"{n}: {text}")
        matters = any(float((one.state[n] - without[n]).abs().max()) > 1e-3 for n in far)
        assert matters is not isinstance(rules[0], Turned)
        assert all(torch.equal(one.state[f"control/{n}"], t) for n, t in control(one).items()), "it is only read"
        if norm:
            steps = len(list(PLAN.batches(one.index, 1, 1, 2, None)))
            assert int(one.state["backbone.norm.num_batches_tracked"]) == 2 * steps


def test_rules_are_values() -> None:
    """By which requests are stacked: equal ones are one."""
    assert Add("control") == Add("control", 1.0) != Add("other")
    assert Train(cross_entropy, rules=(Ascend(0.1),)) == Train(cross_entropy, rules=(Ascend(0.1),))
    assert Train(cross_entropy, rules=(Ascend(0.1),)) != Train(cross_entropy, rules=(Ascend(0.2),))
    assert float(norm({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])})) == 5.0


# -- momentum that lives: a client's optimiser of a model goes on between rounds ------------------------------


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
