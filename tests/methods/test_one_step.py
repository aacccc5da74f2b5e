"""One gradient a round and a server Adam: against torch's Adam and one large batch; FedBN and grey images."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import models
from fedbench.conformance.small import small
from fedbench.core import executors, message
from fedbench.core.augment import to_input
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.start import initialise
from fedbench.core.trainer import Trainer
from fedbench.methods.grayscale import FirstChannel
from fedbench.methods.parts.one_step import Moments, adam, is_norm
from fedbench.specs import Setting
from tests.support.lab import Run, federation, method, same, setting, train, trainer

DATA = federation()


def one_step(**changes: Any) -> Setting:
    """The loop of FTW-ERM's paper, for a few rounds."""
    given = {"steps": 1, "passes": "endless", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "votes": False}
    return setting(**{**given, "rounds": 4, "window": 1, **changes})


def on_small(how: Any, s: Setting, where: Path, norm: bool) -> Trainer:
    """A run on the small test network, to its end."""
    model, initial = initialise(how, lambda: small(DATA.shape[2], norm), DATA, s)
    executor = executors.make("sequential", model, DATA, s)
    where.mkdir()
    it = Trainer(s, how, DATA, model, initial, executor, Plan(s, DATA.n_train, (8, 8)), Checkpoint(where))
    it.run()
    return it


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_torchs(decay: float) -> None:
    generator = torch.Generator().manual_seed(3)
    state = {n: torch.randn(shape, generator=generator) for n, shape in (("a", (3, 4)), ("b", (5,)))}
    parameters = {n: t.clone().requires_grad_() for n, t in state.items()}
    reference = torch.optim.Adam(parameters.values(), lr=0.02, weight_decay=decay)
    memory = Moments()
    for _ in range(5):
        gradient = {n: torch.randn(t.shape, generator=generator) for n, t in state.items()}
        before, then = {n: t.clone() for n, t in state.items()}, copy.deepcopy(memory)
        moved, after = adam(state, gradient, memory, 0.02, decay)
        old, kept = (message.tensors(m, "memory") for m in (memory, then))
        assert old.keys() == kept.keys()
        assert all(torch.equal(old[n], kept[n]) for n in old)
        memory = after
        for n, p in parameters.items():
            p.grad = gradient[n]
        reference.step()
        for n, p in parameters.items():
            torch.testing.assert_close(moved[n], p.detach(), rtol=1e-5, atol=1e-7)
            assert torch.equal(state[n], before[n])
        state = moved
    assert memory.step == 5


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_a_round_is_one_step_on_all_batches_together(scale: str, tmp_path: Path) -> None:
    """Without batch norm: the mean of the clients' gradients is that of one weighted batch of all images."""
    s = one_step(rounds=1, weight_decay=0.01)
    it = trainer(method("fedsgd", scale=scale), DATA, tmp_path, s)
    start = {n: t.clone() for n, t in it.server.shared.items()}
    model = it.executor.model
    it.run()
    plan = Plan(s, DATA.n_train, (8, 8))
    rows = [DATA.train[i][torch.from_numpy(next(plan.batches(i, 1, 1, None, 1)))] for i in range(4)]
    model.load_state_dict(start)
    reference = torch.optim.Adam(model.parameters(), lr=s.lr, weight_decay=s.weight_decay)
    reference.zero_grad()
    factor = 1 if scale == "sum" else 1 / 4
    sum(factor * F.cross_entropy(model(to_input(DATA.images[r])), DATA.labels[r]) for r in rows).backward()  # type: ignore[union-attr]
    reference.step()
    for name, p in model.named_parameters():
        # Where a gradient is all but zero, Adam turns rounding into a step.
        torch.testing.assert_close(it.server.shared[name], p.detach(), rtol=1e-4, atol=2e-5)


def test_clients_count_equally_whatever_their_sizes(tmp_path: Path) -> None:
    it = trainer(method("fedsgd"), DATA, tmp_path, one_step())
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    it.executor.run(cohort, it.method.local)
    gradients = [c.upload.gradient["head.bias"] for c in cohort]
    assert len({c.n_train for c in cohort}) > 1
    it.method.aggregate(round.server, cohort, 1)
    mean = round.server.memory.mean[-len(gradients[0]) :] / 0.1
    torch.testing.assert_close(mean, torch.stack(gradients).mean(0), rtol=1e-5, atol=1e-7)


# -- FedBN ----------------------------------------------------------------------------------------------------


def test_statistics_are_averaged_by_fedsgd_and_kept_by_fedbn(tmp_path: Path) -> None:
    s = one_step()
    shared = on_small(method("fedsgd"), s, tmp_path / "a", True).server
    own = on_small(method("fedbn"), s, tmp_path / "b", True).server
    norm = {n for n in shared.shared if ".norm." in n}
    assert {n.rsplit(".", 1)[1] for n in norm} == {
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
    }  # fmt: skip
    assert not shared.personal
    assert norm.isdisjoint(own.shared)
    for which in ("weight", "running_mean"):
        kept = [own.personal[i][f"backbone.norm.{which}"] for i in range(4)]
        assert len({tuple(t.tolist()) for t in kept}) == 4, which


def test_averaged_statistics_are_the_plain_mean_of_the_participants(tmp_path: Path) -> None:
    s = one_step(rounds=1)
    how = method("fedsgd")
    model, initial = initialise(how, lambda: small(1, True), DATA, s)
    executor = executors.make("sequential", model, DATA, s)
    it = Trainer(s, how, DATA, model, initial, executor, Plan(s, DATA.n_train, (8, 8)), Checkpoint(tmp_path))
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    executor.run(cohort, how.local)
    means = torch.stack([c.state["backbone.norm.running_mean"] for c in cohort])
    assert (means.std(0) > 0).all()
    how.aggregate(round.server, cohort, 1)
    torch.testing.assert_close(round.server.shared["backbone.norm.running_mean"], means.mean(0))


def test_fedbns_own_adam_is_torchs_on_the_same_gradients(tmp_path: Path) -> None:
    """One client: what it does to its norm alone is what one Adam does to the whole network."""
    alone = federation((120,))
    s = one_step(rounds=3, weight_decay=0.01)
    ends = []
    for name in ("fedbn", "fedsgd"):
        how = method(name)
        model, initial = initialise(how, lambda: small(1, True), alone, s)
        executor = executors.make("sequential", model, alone, s)
        where = tmp_path / name
        where.mkdir()
        it = Trainer(s, how, alone, model, initial, executor, Plan(s, alone.n_train, (8, 8)), Checkpoint(where))
        it.run()
        ends.append(it.server.view(0))
    for n in ends[1]:
        torch.testing.assert_close(ends[0][n], ends[1][n], rtol=1e-6, atol=1e-7)


def test_who_sits_out_keeps_its_norms_and_moments(tmp_path: Path) -> None:
    s = one_step(rounds=5, cohort=1)
    how = method("fedbn")
    model, initial = initialise(how, lambda: small(1, True), DATA, s)
    executor, plan = executors.make("sequential", model, DATA, s), Plan(s, DATA.n_train, (8, 8))
    it = Trainer(s, how, DATA, model, initial, executor, plan, Checkpoint(tmp_path))
    held: list[dict[int, Any]] = []
    it.run(lambda _: held.append({i: it.server.view(i) for i in range(4)}))
    moved = 0
    for t in range(2, 6):
        before, after = held[t - 2], held[t - 1]
        for i in range(4):
            own = [n for n in after[i] if how.is_personal(n)]
            same = all(torch.equal(before[i][n], after[i][n]) for n in own)
            assert same is (plan.cohort(t) != [i])
            moved += not same
    assert moved == 4


def test_every_norm_of_the_resnet_is_told_by_its_name() -> None:
    for name in ("resnet18_bn", "resnet18_gn", "cifar_cnn_bn"):
        model = models.build(name, shape=(32, 32, 3), classes=10, seed=0)
        kinds = (torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.LayerNorm)
        normalising = {
            f"{path}.{n}" for path, module in model.named_modules() if isinstance(module, kinds)
            for n in module.state_dict()
        }  # fmt: skip
        assert normalising == {n for n in model.state_dict() if is_norm(n)}


def test_frozen_norms_stay_at_their_start(tmp_path: Path) -> None:
    server = on_small(method("fedbn", affine="frozen"), one_step(), tmp_path / "a", True).server
    for i in range(4):
        own = server.view(i)
        assert torch.equal(own["backbone.norm.weight"], torch.ones(6))
        assert torch.equal(own["backbone.norm.bias"], torch.zeros(6))
        assert not torch.equal(own["backbone.norm.running_mean"], torch.zeros(6))


# -- grey images ----------------------------------------------------------------------------------------------


def painted(seed: int) -> Federation:
    """The digits, each in one of three channels at random."""
    data = federation()
    channel = torch.from_numpy(np.random.default_rng(seed).integers(0, 3, len(data.labels)))
    images = torch.zeros(*data.images.shape[:3], 3, dtype=torch.uint8)
    images[torch.arange(len(channel)), :, :, channel] = data.images[..., 0]
    return replace(data, images=images)


def test_grayscale_does_not_see_the_colour(tmp_path: Path) -> None:
    a, b = (train("grayscale", painted(k), tmp_path / str(k), one_step()) for k in (1, 2))
    assert same(a.tensors, b.tensors)
    assert a.predictions.equals(b.predictions)
    seen: list[Run] = [train("fedsgd", painted(k), tmp_path / f"seen{k}", one_step()) for k in (1, 2)]
    assert not same(seen[0].tensors, seen[1].tensors)


def test_the_first_channel_is_the_brightest_and_the_others_black() -> None:
    x = torch.tensor([[[[0.5, -1.0]], [[-1.0, 1.0]], [[-1.0, -1.0]]]])
    assert FirstChannel()(x).tolist() == [[[[0.5, 1.0]], [[-1.0, -1.0]], [[-1.0, -1.0]]]]
