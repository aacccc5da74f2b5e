"""ATP: rates learned by autograd on every tensor, running statistics too, and answers that know no label."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import Batch, Collected, Differentiated, Gradient
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.trainer import Trainer
from fedbench.errors import FedbenchError
from fedbench.methods.atp import Rates, entropy, norm_statistics, settled_cross_entropy, stepped
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, drive, method, same, setting, train
from tests.support.sgd_oracle import State, images, of, started, trained

DATA = grouped_federation((0, 1, 2), 70)
SHORT = grouped_setting(rounds=2, batch_size=8, init_seed=1)
NETWORK = [name for name, t in started().items() if t.is_floating_point()]

# -- once more, with autograd on every tensor ---------------------------------------------------------------------


def forward(p: State, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, what the norm reads) of the small network in evaluation mode, differentiable by all of p."""
    h = F.conv2d(x, p["backbone.conv.weight"], p["backbone.conv.bias"], padding=1)

    def column(name: str) -> Tensor:
        return p[f"backbone.norm.{name}"].view(1, -1, 1, 1)

    z = (h - column("running_mean")) / (column("running_var") + 1e-5).sqrt() * column("weight") + column("bias")
    z = F.relu(F.max_pool2d(z, 2)).flatten(1)
    z = F.relu(F.linear(z, p["backbone.hidden.weight"], p["backbone.hidden.bias"]))
    return F.linear(z, p["head.weight"], p["head.bias"]), h.detach()


def one_step(theta: State, rates: State, x: Tensor) -> tuple[State, State]:
    """(the adapted network, whose tensors are leaves, and the ways that it went)."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in theta.items()}
    scores, read = forward(leaves, x)
    shares = scores.softmax(1)
    (-(shares * shares.log()).sum() / len(x)).backward()  # type: ignore[no-untyped-call]
    ways = {n: t.grad.clone() for n, t in leaves.items()}  # type: ignore[union-attr]
    by_channel = read.transpose(0, 1).flatten(1)
    ways["backbone.norm.running_mean"] = theta["backbone.norm.running_mean"] - by_channel.mean(1)
    ways["backbone.norm.running_var"] = theta["backbone.norm.running_var"] - by_channel.var(1)
    return {n: (t - rates[n] * ways[n]).detach().requires_grad_() for n, t in theta.items()}, ways


def rates_by_hand(theta: State, data: Federation, eta: float, rounds: int, size: int) -> State:
    rates = {n: torch.zeros(()) for n in theta}
    for _ in range(rounds):
        found = []
        for rows in data.validation:
            mine = dict(rates)
            for chosen in rows.split(size):
                x = images(data, chosen)
                adapted, ways = one_step(theta, mine, x)
                F.cross_entropy(forward(adapted, x)[0], data.labels[chosen]).backward()  # type: ignore[no-untyped-call]
                for n, t in adapted.items():
                    mine[n] = mine[n] + eta * (t.grad * ways[n]).sum() / np.sqrt(t.numel())
            found.append(mine)
        rates = {n: torch.stack([f[n] for f in found]).mean(0) for n in rates}
    return rates


def answers_by_hand(theta: State, rates: State, data: Federation, size: int) -> list[int]:
    told: list[int] = []
    for rows in data.test:
        for chosen in rows.split(size):
            x = images(data, chosen)
            told += forward(one_step(theta, rates, x)[0], x)[0].argmax(1).tolist()
    return told


def learned(it: Trainer) -> State:
    return dict(zip(NETWORK, it.server.memory.rates, strict=True))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_rates_and_answers_are_those_of_autograd(rounds: int, executor: str, tmp_path: Path) -> None:
    """Catches any mistake in the gradient by running statistics, a step that goes on from the last batch's, a missing
    root, rates not averaged between rounds, and answers by theta."""
    it = trained(method("atp", eta=10.0, rate_rounds=rounds), DATA, SHORT, tmp_path, executor)
    theta = {n: t for n, t in of(it.server.shared).items() if n in NETWORK}
    expected = rates_by_hand(theta, DATA, 10.0, rounds, 8)
    found = learned(it)
    for name, rate in expected.items():
        torch.testing.assert_close(found[name], rate, rtol=2e-3, atol=1e-5)
    for name in (
        "backbone.norm.running_mean",
        "backbone.norm.running_var",
        "backbone.norm.weight",
        "backbone.conv.weight",
    ):
        assert abs(float(found[name])) > 5e-4, "nothing to compare"
    told = it.checkpoint.read_predictions().to_pandas()
    by_hand = answers_by_hand(theta, found, DATA, 8)
    assert told["own"].tolist() == told["test_phase"].tolist() == by_hand
    unadapted = [k for rows in DATA.test for k in forward(theta, images(DATA, rows))[0].argmax(1).tolist()]
    assert unadapted != by_hand
    assert answers_by_hand(theta, found, DATA, 16) != by_hand, "the batch of an image does not matter"


def test_rates_are_learned_in_as_many_rounds_as_the_model(tmp_path: Path) -> None:
    default, told = (trained(method("atp", rate_rounds=r), DATA, SHORT, tmp_path / str(r)) for r in (0, 2))
    assert torch.equal(default.server.memory.rates, told.server.memory.rates)
    once = trained(method("atp", rate_rounds=1), DATA, SHORT, tmp_path / "1")
    assert not torch.equal(default.server.memory.rates, once.server.memory.rates)


# -- reductions -------------------------------------------------------------------------------------------------


def test_without_learning_it_is_fedavg(tmp_path: Path) -> None:
    s = grouped_setting(rounds=3, window=3)
    average, run = (train(how, DATA, tmp_path / how.name, s) for how in (method("fedavg"), method("atp", eta=0)))
    assert not run.trainer.server.memory.rates.any()
    assert same(run.shared, average.shared)
    for column in ("own", "test_phase"):
        assert run.predictions[column].equals(average.predictions[column])


def test_learning_rates_leaves_the_model_where_it_is(tmp_path: Path) -> None:
    how = {"fedavg": method("fedavg"), "atp": method("atp", eta=1.0)}
    average, run = (trained(m, DATA, SHORT, tmp_path / name).server for name, m in how.items())
    assert all(torch.equal(run.shared[n], t) for n, t in average.shared.items())


# -- what it may see --------------------------------------------------------------------------------------------


def test_labels_of_test_images_change_nothing_and_those_of_validation_images_the_rates(tmp_path: Path) -> None:
    def relabelled(side: Any) -> Trainer:
        labels = DATA.labels.clone()
        for rows in side:
            labels[rows] = (labels[rows] + 3) % 10
        data = dataclasses.replace(DATA, labels=labels)
        return trained(method("atp", eta=1.0), data, SHORT, tmp_path / str(len(list(tmp_path.iterdir()))))

    plain, test, validation = relabelled([]), relabelled(DATA.test), relabelled(DATA.validation)
    a, b = (it.checkpoint.read_predictions() for it in (plain, test))
    assert not a["label"].equals(b["label"])
    assert a.drop_columns("label").equals(b.drop_columns("label"))
    assert torch.equal(plain.server.memory.rates, test.server.memory.rates)
    assert not torch.equal(plain.server.memory.rates, validation.server.memory.rates)
    assert all(torch.equal(plain.server.shared[n], validation.server.shared[n]) for n in NETWORK)


def test_the_update_that_answers_asks_for_nothing_but_test_images(tmp_path: Path) -> None:
    state = started()
    plan = Plan(SHORT, DATA.n_train, DATA.shape[:2])
    someone = client(DATA, plan, 0, state, t=2)
    someone.inbox = Rates(torch.zeros(len(NETWORK)))
    gradient = Differentiated(0.0, {n: torch.ones_like(state[n]) for n in NETWORK if "running" not in n}, 8)
    rows, told = Collected(torch.zeros(8, 3, 6), torch.zeros(8)), Collected(torch.eye(10)[:8], torch.zeros(8))
    requests = drive(method("atp").personalise(someone), *(gradient, rows, told) * 3)
    assert [r.part for r in requests] == [part for part in ((0, 8), (8, 16), (16, 21)) for _ in range(3)]
    assert {r.split for r in requests} == {"test"}
    assert {r.loss for r in requests if isinstance(r, Gradient)} == {entropy}


def without_validation() -> Federation:
    return dataclasses.replace(DATA, validation=[rows[:0] for rows in DATA.validation])


def test_rates_come_from_validation_images_or_else_from_training_images(tmp_path: Path) -> None:
    for data, split in ((DATA, "validation"), (without_validation(), "train")):
        someone = client(data, Plan(SHORT, data.n_train, data.shape[:2]), 0, started(), t=2)
        someone.inbox = Rates(torch.zeros(len(NETWORK)))
        assert next(method("atp").reply(someone)).split == split  # type: ignore[arg-type]


def test_entropy_asks_for_no_labels() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))

    model = Fixed().train()
    loss = entropy(model, Batch(torch.zeros(2), torch.tensor([-1, -1]), torch.arange(2), {}))
    assert float(loss.total) == pytest.approx((1.5 * np.log(2) + np.log(3)) / 2)
    assert not model.training
    settled = settled_cross_entropy(Fixed().train(), Batch(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2), {}))
    assert float(settled.total) == pytest.approx((np.log(2) + np.log(3)) / 2)


# -- the rest ---------------------------------------------------------------------------------------------------


def test_a_variance_stays_at_least_zero() -> None:
    state = started()
    ways = {n: torch.full_like(state[n], 2.0) for n in NETWORK}
    moved = stepped(state, torch.ones(len(NETWORK)), ways)
    assert not moved["backbone.norm.running_var"].any()
    assert torch.equal(moved["backbone.norm.running_mean"], state["backbone.norm.running_mean"] - 2)
    assert torch.equal(moved["backbone.norm.num_batches_tracked"], state["backbone.norm.num_batches_tracked"])


def test_a_network_without_batch_norms_asks_for_no_statistics() -> None:
    state = {"head.weight": torch.ones(10, 16)}
    someone = client(DATA, Plan(SHORT, DATA.n_train, DATA.shape[:2]), 0, state)
    assert drive_to_end(norm_statistics.ways(someone, "test", (0, 8))) == {}
    assert norm_statistics.gradients(state, {"head.weight": torch.ones(10, 16)}) == {}


def drive_to_end(update: Any) -> Any:
    try:
        next(update)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asked")


def test_the_last_round_sends_the_model_again_and_the_rates_as_often_as_they_are_learned(tmp_path: Path) -> None:
    s = grouped_setting(rounds=3)
    average, run = (
        train(how, DATA, tmp_path / how.name, s) for how in (method("fedavg"), method("atp", rate_rounds=5))
    )
    for direction, again in (("bytes_up", 0), ("bytes_down", 1)):
        lines = [[line[direction] for line in r.trainer.checkpoint.rounds] for r in (average, run)]
        model = lines[0][0]
        rates = 4 * len(run.trainer.server.memory.rates) * DATA.clients
        assert lines[1] == [model, model, model * (1 + again) + 5 * rates]


def test_it_helps_where_clients_look_at_shifted_images(tmp_path: Path) -> None:
    """Test images darker than what was trained on: rates learned on darker validation images help."""
    pixels, dark = DATA.images.clone(), torch.cat([*DATA.test, *DATA.validation])
    pixels[dark] = pixels[dark] // 3
    data, s = dataclasses.replace(DATA, images=pixels), grouped_setting(rounds=8, batch_size=16, epochs=3)
    runs = [
        trained(method(n), data, s, tmp_path / n).checkpoint.read_predictions().to_pandas() for n in ("fedavg", "atp")
    ]
    plain, adapted = ((told["test_phase"] == told["label"]).mean() for told in runs)
    assert adapted > plain + 0.05


@pytest.mark.parametrize(("option", "value"), [("eta", -1), ("rate_rounds", -1)])
def test_hyper_parameters_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(FedbenchError, match=f"--{option.replace('_', '-')} of atp"):
        method("atp", **{option: value})


def test_it_runs_without_validation_images_and_with_clients_that_come_and_go(tmp_path: Path) -> None:
    run = train(
        "atp", without_validation(), tmp_path, setting(rounds=2, participation=0.5, votes=False, test_phase=True)
    )
    assert run.trainer.server.memory.rates.any()
    assert (
        run.predictions["own"]
        .slice(len(run.predictions) // 2)
        .equals(run.predictions["test_phase"].slice(len(run.predictions) // 2))
    )
