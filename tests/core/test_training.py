"""One client's training, its optimisers, rules on gradients and living momentum, against torch.optim and plain loops
written here; and the plan that says on which images: cohorts, batches, crop windows."""

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
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench import models, protocol
from fedbench.conformance.subject import small
from fedbench.core.client import Batch, Client, ClientUpdate, Loss, Rule, Train, Trained, norm
from fedbench.core.federation import Federation
from fedbench.core.images import CHUNK, CPU_CHUNK, Piece, padded_flip, pieces, resized_crop, to_input
from fedbench.core.optimizer import SGD, AdamW, optimizer, recall, remember
from fedbench.core.plan import CropStream, Plan
from fedbench.core.simulation import learning_rate
from fedbench.core.stacked import StackedWorker
from fedbench.core.state import State, state_of, weighted_mean
from fedbench.core.trainer import Progress
from fedbench.core.worker import Worker
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts.clustered import Choice
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply, of_clients
from fedbench.rng import stream
from fedbench.specs import DatasetSpec, PartitionSpec, Setting
from tests.support.data_makers import pixels
from tests.support.frames import refused
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, federation, method, own, setting, train, trainer
from tests.support.real_images import RealImages

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
        (800, 1, 1.0e-2),
        (800, 401, 5.0e-3),
        (800, 601, 1.464e-3),
        (800, 701, 3.806e-4),
        (800, 751, 9.607e-5),
        (800, 775, 2.604e-5),
        (800, 800, 3.86e-8),
        (100, 1, 1.0e-2),
        (100, 91, 2.447e-4),
        (100, 100, 2.47e-6),
    ],
)
def test_cosine_rate_has_the_papers_values(rounds: int, t: int, rate: float) -> None:
    assert learning_rate(setting(rounds=rounds, lr=0.01, schedule="cosine"), t) == pytest.approx(rate, rel=2e-3)
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
        return {
            n: g.T.clone(memory_format=torch.contiguous_format).T if g.dim() == 2 else g.contiguous()
            for n, g in gradient.items()
        }


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
        "": Train(cross_entropy),
        "own": Train(cross_entropy, model="own"),
        "2": Train(cross_entropy, momentum_of="2"),
    }
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
    refused("cannot both live and restart", living, momentum_restarts=True)
    refused("no momentum that could live", living, momentum=0.0)
    assert living().descent == "SGD with living momentum 0.9 and weight decay 0.0005"
    rules = protocol.load("flux")
    part = rules.partition_spec(DatasetSpec("mnist", "test", "test"), 10, shift="py", level=8)
    s = rules.setting(part, "small", momentum_lives=True)
    assert (s.momentum_lives, s.momentum_restarts) == (True, None)
    assert rules.setting(part, "small").momentum_restarts
    refused("leave --momentum-lives out", method("fednova").check_setting, living())


# -- the plan: cohorts, batches and crop windows from random streams alone ------------------------------------------


def plan(n_train: list[int], **changes: object) -> Plan:
    return Plan(setting(**changes), n_train, (32, 32))


sizes = st.integers(1, 60)


@given(n=sizes, batch=st.integers(1, 25), epochs=st.integers(1, 4), tail=st.sampled_from(["drop", "keep"]))
def test_every_epoch_is_a_permutation_up_to_the_tail(n: int, batch: int, epochs: int, tail: str) -> None:
    p = plan([n], batch_size=batch, tail=tail)
    batches = list(p.batches(0, 3, 1, epochs, None))
    size = min(batch, n)
    expected = [size] * (n // size) + ([n % size] if tail == "keep" and n % size else [])
    assert [len(b) for b in batches] == expected * epochs
    assert p.pass_rows(0) == sum(expected)
    for a_pass in np.split(np.concatenate(batches), epochs):
        assert len(set(a_pass.tolist())) == len(a_pass)
        assert a_pass.min() >= 0
        assert a_pass.max() < n
        if tail == "keep":
            assert sorted(a_pass) == list(range(n))


@given(n=sizes, batch=st.integers(1, 25), steps=st.integers(1, 40), tail=st.sampled_from(["drop", "keep"]))
def test_steps_are_the_beginning_of_as_many_passes_as_needed(n: int, batch: int, steps: int, tail: str) -> None:
    p = plan([n], batch_size=batch, steps=5, tail=tail)
    got = [b.tolist() for b in p.batches(0, 1, 1, None, steps)]
    passes = [b.tolist() for b in p.batches(0, 1, 1, steps, None)]
    assert len(got) == steps
    assert got == passes[:steps]


def test_passes_differ_and_so_do_rounds_phases_clients_and_seeds() -> None:
    p = plan([40, 40], batch_size=40)
    first, second = p.batches(0, 1, 1, 2, None)
    others = (p, (0, 2, 1)), (p, (0, 1, 2)), (p, (1, 1, 1)), (plan([40, 40], batch_size=40, seed=2), (0, 1, 1))
    drawn = first, second, *(next(iter(of.batches(*key, 1, None))) for of, key in others)
    assert len({tuple(x.tolist()) for x in drawn}) == 6


@given(order=st.permutations([(c, t, f) for c in range(3) for t in (1, 2) for f in (1, 2)]))
def test_the_order_of_asking_and_what_others_hold_change_nothing(order: list[tuple[int, int, int]]) -> None:
    p, others = plan([17, 9, 30]), (plan([17, 9, 30]), plan([17, 9, 30, 9]), plan([17, 50, 3]))
    asked = {key: [b.tolist() for b in p.batches(*key, 2, None)] for key in order}
    for q in others:
        same = [key for key in sorted(order) if q.n_train[key[0]] == p.n_train[key[0]]]
        assert all([b.tolist() for b in q.batches(*key, 2, None)] == asked[key] for key in same)


def test_cohorts_are_bernoulli() -> None:
    clients, rounds, q = 100, 400, 0.3
    p = plan([10] * clients, rounds=rounds, participation=q)
    took = np.zeros((rounds, clients))
    for t in range(1, rounds + 1):
        cohort = p.cohort(t)
        assert cohort == sorted(set(cohort))
        took[t - 1, cohort] = 1
    # Means within five standard errors; the spread of the cohort's size tells independent draws from a fixed size.
    assert abs(took.mean() - q) < 5 * np.sqrt(q * (1 - q) / took.size)
    assert np.abs(took.mean(0) - q).max() < 5 * np.sqrt(q * (1 - q) / rounds)
    assert took.sum(1).std() == pytest.approx(np.sqrt(clients * q * (1 - q)), rel=0.15)
    assert abs(np.corrcoef(took[:-1].ravel(), took[1:].ravel())[0, 1]) < 5 / np.sqrt(took[1:].size)


def test_the_last_round_may_take_all() -> None:
    p = plan([10] * 50, rounds=6, participation=0.1, full_last_round=True)
    assert p.cohort(6) == list(range(50))
    assert all(len(p.cohort(t)) < 50 for t in range(1, 6))
    assert len(plan([10] * 50, rounds=6, participation=0.1).cohort(6)) < 50
    assert plan([10] * 5).cohort(1) == list(range(5))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), height=st.integers(4, 40), width=st.integers(4, 40))
def test_windows_lie_inside_the_image(seed: int, n: int, height: int, width: int) -> None:
    windows = CropStream(np.random.default_rng(seed), (height, width)).draw(n)
    assert windows.shape == (n, 4)
    top, left, h, w = windows.T
    assert (np.minimum(top, left) >= 0).all()
    assert (np.minimum(h, w) >= 1).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()


def test_windows_are_those_of_the_paper_at_32_pixels() -> None:
    # feddrm/protocol.md#images-and-crops: crops are 28 to 32 pixels a side, the whole image in about 9 % of the draws.
    top, left, h, w = CropStream(stream(3, "crop train", 1), (32, 32)).draw(40_000).T
    assert (h.min(), h.max(), w.min(), w.max()) == (28, 32, 28, 32)
    whole = ((h == 32) & (w == 32)).mean()
    assert 0.085 < whole < 0.1
    area = h * w / 1024
    assert area.min() > 0.9 - 32 / 1024  # rounding of a split
    # Sides and places are symmetric, and every place that a window of 28 can take is taken.
    assert abs((h > w).mean() - (w > h).mean()) < 0.02
    for start, length in ((top, h), (left, w)):
        narrow = start[length == 28]
        share = np.bincount(narrow, minlength=5) / len(narrow)
        assert share == pytest.approx(np.full(5, 0.2), abs=5 * np.sqrt(0.16 / len(narrow)))


def test_windows_follow_torchvisions_distribution() -> None:
    from fedbench.vision import torchvision

    torchvision()
    from torchvision.transforms import RandomResizedCrop

    n = 4000
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = torch.zeros(3, 32, 32)
        theirs = np.array([RandomResizedCrop.get_params(image, [0.9, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    ours = CropStream(stream(5, "crop test", 1), (32, 32)).draw(n)
    for column in range(4):
        a, b = (np.bincount(x[:, column], minlength=33)[:33] / n for x in (ours, theirs))
        assert np.abs(a - b).max() < 5 * np.sqrt(0.5 / n)


@given(n=sizes, batch=st.integers(1, 25), steps=st.integers(1, 3), tail=st.sampled_from(["drop", "keep"]))
def test_endless_passes_go_on_from_round_to_round(n: int, batch: int, steps: int, tail: str) -> None:
    p = plan([n], batch_size=batch, steps=steps, passes="endless", tail=tail)
    a_pass = -(-p.pass_rows(0) // min(batch, n))
    rounds = -(-2 * a_pass // steps)
    batches = [b for t in range(1, rounds + 1) for b in p.batches(0, t, 1, None, steps)]
    assert len(batches) == rounds * steps
    first, second = batches[:a_pass], batches[a_pass : 2 * a_pass]
    for whole in (first, second):
        rows = np.concatenate(whole)
        assert len(rows) == p.pass_rows(0) == len(set(rows.tolist()))
    if n > 8 and min(batch, n) < n:
        assert np.concatenate(first).tolist() != np.concatenate(second).tolist()
    again = plan([n], batch_size=batch, steps=steps, passes="endless", tail=tail)  # a resumed run asks for late rounds
    late = [b.tolist() for b in again.batches(0, rounds, 1, None, steps)]
    assert late == [b.tolist() for b in batches[-steps:]]


def test_endless_passes_wait_for_clients_that_sit_out() -> None:
    changes = {"batch_size": 4, "steps": 1, "passes": "endless"}
    p = plan([12] * 6, cohort=2, partition=_clients(6), **changes)
    seen: dict[int, list[list[int]]] = {i: [] for i in range(6)}
    for t in range(1, 40):
        for i in p.cohort(t):
            seen[i].extend(b.tolist() for b in p.batches(i, t, 1, None, 1))
    alone = plan([12], **changes)
    for i, batches in seen.items():
        assert len(batches) > 6
        for start in range(0, len(batches) - 2, 3):
            assert sorted(np.concatenate(batches[start : start + 3]).tolist()) == list(range(12)), i
    assert len(list(alone.batches(0, 1, 1, None, 1))) == 1
    backwards = plan([12] * 6, cohort=2, partition=_clients(6), **changes)
    t = max(t for t in range(1, 40) if 3 in p.cohort(t))
    assert [b.tolist() for b in backwards.batches(3, t, 1, None, 1)] == seen[3][-1:]
    assert backwards.turn(3, 1) == 0


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from(["drop", "keep"]),
    st.sampled_from([{}, {"steps": 1}, {"steps": 3}, {"steps": 1, "passes": "endless"}]),
)
def test_who_has_a_batch_of_a_single_image(n_train: list[int], size: int, tail: str, how: dict[str, object]) -> None:
    length = {"epochs": None, **how} if how else {"epochs": 1}
    made = plan(n_train, batch_size=size, tail=tail, **length)
    epochs, steps = made.setting.epochs, made.setting.steps
    rounds = range(1, 22)  # an endless pass is over by then
    sizes = [{len(one) for t in rounds for one in made.batches(i, t, 0, epochs, steps)} for i in range(len(n_train))]
    lone = [i for i, found in enumerate(sizes) if 1 in found]
    assert made.lone() == (lone[0] if lone else None)


def _clients(n: int) -> PartitionSpec:
    return partition_spec(DatasetSpec("digits", "test", "test"), "iid", n, 1, 0.7)


def test_a_cohort_of_fixed_size_is_uniform_without_replacement() -> None:
    p = plan([5] * 20, cohort=3, partition=_clients(20))
    cohorts = [p.cohort(t) for t in range(1, 2001)]
    assert all(len(set(c)) == 3 and c == sorted(c) for c in cohorts)
    share = np.bincount(np.concatenate(cohorts), minlength=20) / 2000
    assert abs(share - 0.15).max() < 4 * (0.15 * 0.85 / 2000) ** 0.5
    assert p.cohort(7) == cohorts[6]
    everyone = plan([5] * 20, cohort=3, partition=_clients(20), full_last_round=True, rounds=4)
    assert [len(everyone.cohort(t)) for t in (3, 4)] == [3, 20]


def test_windows_are_drawn_where_they_are_asked_for_and_padding_and_flips_for_training_only() -> None:
    crops = plan([5], augment="crop").crops
    windows = [one.draw(50).tolist() for purpose in ("train", "test") if (one := crops(purpose, 1, 0, 1))]
    assert windows[0] != windows[1]
    p = plan([9], augment="pad_flip")
    assert plan([5]).crops("train", 1, 0, 1) is p.crops("test", 1, 0, 0) is p.crops("collect", 1, 0, 0) is None
    places = p.crops("train", 1, 0, 1).draw(20_000)
    assert places.shape == (20_000, 4)
    for column in (0, 1):
        assert sorted(set(places[:, column])) == list(range(9))
        assert abs(np.bincount(places[:, column]) / 20_000 - 1 / 9).max() < 0.01
    assert abs(places[:, 2].mean() - 0.5) < 0.02
    assert abs(np.corrcoef(places[:, :3].T) - np.eye(3)).max() < 0.03


def off_pillow(images: np.ndarray, windows: np.ndarray) -> np.ndarray:
    ours = resized_crop(torch.from_numpy(images), torch.from_numpy(windows)).numpy()
    theirs = []
    for image, (top, left, h, w) in zip(images, windows.tolist(), strict=True):
        source = Image.fromarray(image.squeeze())
        out = source.crop((left, top, left + w, top + h)).resize(source.size, Image.Resampling.BILINEAR)
        theirs.append(np.asarray(out).reshape(image.shape))
    return np.abs(ours - np.stack(theirs))


@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (28, 28, 1), (24, 26, 3), (8, 8, 1)])
def test_same_as_pillow(height: int, width: int, channels: int) -> None:
    images = pixels(200, height, width, channels, seed=3)
    windows = CropStream(np.random.default_rng(1), (height, width)).draw(len(images))
    difference = off_pillow(images, windows)
    # To the bit on the images of CIFAR; where a size is no power of two, Pillow's fixed point may break a tie of
    # the rounding the other way.
    assert difference.max() <= (0 if (height, width) == (32, 32) else 1)
    assert (difference > 0).mean() < 0.02
    assert (windows[:, 2:] < (height, width)).any(), "no window that crops: the test would show nothing"
    rng = np.random.default_rng(0)  # ... and windows of any size
    h, w = (rng.integers(1, side + 1, 200) for side in (height, width))
    small = np.stack([rng.integers(0, height + 1 - h), rng.integers(0, width + 1 - w), h, w], axis=1)
    assert off_pillow(images, small).max() <= 1


@given(st.data(), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 3]), st.integers(0, 4))
def test_padded_flip_is_numpys(data: st.DataObject, n: int, h: int, w: int, channels: int, padding: int) -> None:
    images = np.random.default_rng(n).integers(0, 256, (n, h, w, channels), dtype=np.uint8)
    offset = st.integers(0, 2 * padding)
    places = np.array([(data.draw(offset), data.draw(offset), data.draw(st.booleans()), 0) for _ in range(n)])
    got = padded_flip(torch.from_numpy(images), torch.from_numpy(places.astype(np.int64)), padding)
    assert got.dtype == torch.uint8
    for i, (top, left, flip, _) in enumerate(places):
        padded = np.pad(images[i], ((padding, padding), (padding, padding), (0, 0)))
        cut = padded[top : top + h, left : left + w]
        np.testing.assert_array_equal(got[i].numpy(), cut[:, ::-1] if flip else cut)


@pytest.mark.slow
def test_the_order_of_crop_and_colour_hardly_matters(real_images: RealImages) -> None:
    """Colours are shifted once, then cropped; FedDRM's code crops first. How far apart the pixels are."""
    images = real_images.load("cifar10").images[:200]
    windows = torch.from_numpy(CropStream(stream(1, "order"), (32, 32)).draw(len(images)))
    for shift in of_clients("high", 8):
        ours = resized_crop(torch.from_numpy(apply(images, shift)), windows).numpy()
        cropped = resized_crop(torch.from_numpy(images), windows).numpy().astype(np.uint8)
        theirs = apply(cropped, shift).astype(np.float32)
        gap = np.abs(ours - theirs)
        assert gap.mean() < 1.0, f"{shift}: {gap.mean():.2f} grey levels on average"
        assert gap.mean() > 0, "the orders do differ; if not, this test compares nothing"


@pytest.mark.parametrize("n", [0, 1, CPU_CHUNK, CPU_CHUNK + 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_pieces_are_small_and_of_like_length_and_change_no_window(n: int) -> None:
    rows = torch.arange(100, 100 + n)
    parts = pieces(rows, CropStream(stream(0, "windows"), (8, 8)))
    assert max(len(part.rows) for part in parts) <= CPU_CHUNK
    of_a_draw = [len(part.rows) for part in parts[: -(-min(n, CHUNK) // CPU_CHUNK)]]
    assert sum(of_a_draw) == min(n, CHUNK)
    assert not of_a_draw or 2 * min(of_a_draw) >= max(of_a_draw)
    whole = Piece.joined(parts)
    assert torch.equal(whole.rows, rows)
    drawn = CropStream(stream(0, "windows"), (8, 8))
    windows = [torch.from_numpy(drawn.draw(min(CHUNK, n - at))) for at in range(0, n, CHUNK)]
    assert torch.equal(whole.windows, torch.cat(windows) if windows else whole.windows[:0])
