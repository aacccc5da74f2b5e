"""FLUX's APFL: an own model mixed with the shared one after every local epoch; two models answer together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.errors import FedbenchError
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, same, setting, train
from tests.support.sgd_oracle import averaged, descended, images, of, probabilities, started, trained

DATA = grouped_federation((0, 1, 0, 1), 60)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_two_rounds_are_what_the_formula_gives(alpha: float, executor: str, tmp_path: Path) -> None:
    """Shares exchanged, mixing once a round, a copy that is mixed too, or answers by one model would differ."""
    s = grouped_setting(rounds=2)
    it = trained(method("apfl_flux", alpha=alpha), DATA, s, tmp_path, executor)
    plan, shared = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    models = [shared] * DATA.clients
    for t in (1, 2):
        copies = []
        for i in range(DATA.clients):
            copy = shared
            for epoch in range(2):
                drawn = [list(plan.batches(i, t, 2 * epoch + k, 1, None)) for k in (1, 2)]
                copy = descended(copy, DATA, DATA.train[i], drawn[:1], s)
                own = descended(models[i], DATA, DATA.train[i], drawn[1:], s)
                models[i] = {
                    n: (1 - alpha) * p + alpha * copy[n] if p.is_floating_point() else p for n, p in own.items()
                }
            copies.append(copy)
        shared = averaged(copies, DATA.n_train)
    for name, value in shared.items():
        torch.testing.assert_close(it.server.shared[name], value, rtol=1e-4, atol=2e-5)
    told = it.checkpoint.read_predictions().to_pandas()
    differs = 0
    for i in range(DATA.clients):
        for name, value in of(it.server.view(i), "own/").items():
            torch.testing.assert_close(value, models[i][name], rtol=1e-4, atol=2e-5)
        x = images(DATA, DATA.test[i])
        of_own, of_shared = probabilities(models[i], x), probabilities(shared, x)
        ours = told[told["client"] == i]
        np.testing.assert_array_equal(ours["own"], (of_own + of_shared).argmax(1))
        np.testing.assert_array_equal(ours["test_phase"], of_shared.argmax(1))
        for alone in (of_own, of_shared):
            differs += int((alone.argmax(1) != (of_own + of_shared).argmax(1)).sum())
    assert differs > 0, "one model alone answers the same"


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_in_fedrcs_code_a_round_is_four_epochs_of_half_the_loss(executor: str, tmp_path: Path) -> None:
    """Two passes of two epochs, of either model; half of the loss is half of the learning rate."""
    s, alpha = grouped_setting(rounds=2), 0.3
    half = replace(s, lr=s.lr / 2)
    it = trained(method("apfl_flux", alpha=alpha, variant="fedrc"), DATA, s, tmp_path, executor)
    plan, shared = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    models = [shared] * DATA.clients
    for t in (1, 2):
        copies = []
        for i in range(DATA.clients):
            copy, a_pass = shared, plan.batches_a_pass(i)
            for k in range(2):
                drawn = [list(plan.batches(i, t, 2 * k + request, 2, None)) for request in (1, 2)]
                epochs = [[one[:a_pass], one[a_pass:]] for one in drawn]
                copy = descended(copy, DATA, DATA.train[i], epochs[0], half)
                own = descended(models[i], DATA, DATA.train[i], epochs[1], half)
                models[i] = {
                    n: (1 - alpha) * p + alpha * copy[n] if p.is_floating_point() else p for n, p in own.items()
                }
            copies.append(copy)
        shared = averaged(copies, DATA.n_train)
    for name, value in shared.items():
        torch.testing.assert_close(it.server.shared[name], value, rtol=1e-4, atol=2e-5)
    for i in range(DATA.clients):
        for name, value in of(it.server.view(i), "own/").items():
            torch.testing.assert_close(value, models[i][name], rtol=1e-4, atol=2e-5)
    assert it.checkpoint.rounds[0]["images"] == 2 * 4 * sum(DATA.n_train)
    assert method("apfl_flux", variant="fedrc").relative_compute(s) == 4.0


def test_with_one_epoch_the_shared_model_is_fedavgs(tmp_path: Path) -> None:
    """And so are the answers of the test phase."""
    s = grouped_setting(rounds=3, epochs=1)
    average, run = (train(name, DATA, tmp_path / name, s) for name in ("fedavg", "apfl_flux"))
    assert same(run.shared, average.shared)
    assert run.predictions["test_phase"].equals(average.predictions["own"])
    assert not run.predictions["own"].equals(average.predictions["own"])


def test_all_of_the_copy_leaves_nothing_of_the_own_model(tmp_path: Path) -> None:
    server = train(method("apfl_flux", alpha=1), DATA, tmp_path, grouped_setting(rounds=2)).trainer.server
    for name, mean in server.shared.items():
        owns = [server.personal[i][f"own/{name}"] for i in range(DATA.clients)]
        torch.testing.assert_close(mean, averaged([{name: t} for t in owns], DATA.n_train)[name])
        assert not torch.equal(owns[0], owns[1])


def test_steps_are_one_epoch(tmp_path: Path) -> None:
    s = setting(rounds=1, steps=2, votes=False)
    run = train("apfl_flux", DATA, tmp_path, s)
    assert run.trainer.checkpoint.rounds[0]["images"] == DATA.clients * 2 * 2 * s.batch_size


def test_own_models_learn_what_one_model_cannot(tmp_path: Path) -> None:
    """Two groups that name the same images differently: known clients gain, clients without labels do not."""
    data = grouped_federation((0, 1, 0, 1), 200, concept=True)
    run = train("apfl_flux", data, tmp_path, grouped_setting(rounds=4))
    told = run.predictions.to_pandas()
    known, met = ((told[column] == told["label"]).mean() for column in ("own", "test_phase"))
    assert known > met + 0.15


def test_a_learned_share_is_what_the_formula_gives(tmp_path: Path) -> None:
    """One step at the end of the round down the derivative of the mixture's loss by alpha, by autograd here."""
    s = grouped_setting(rounds=1, epochs=1)
    it = trained(method("apfl_flux", adaptive=True, alpha=0.3), DATA, s, tmp_path / "learned")
    fixed = trained(method("apfl_flux", alpha=0.3), DATA, s, tmp_path / "fixed").server
    assert same(it.server.shared, fixed.shared), "the share's batch is one more"
    plan, found = Plan(s, DATA.n_train, DATA.shape[:2]), []
    for i in range(DATA.clients):
        copy = descended(started(), DATA, DATA.train[i], [list(plan.batches(i, 1, 1, 1, None))], s)
        own = of(fixed.view(i), "own/")
        alpha = torch.tensor(0.3, requires_grad=True)
        mixture = {n: (1 - alpha) * p + alpha * copy[n] if p.is_floating_point() else p for n, p in own.items()}
        mixture |= {n: p.detach() for n, p in mixture.items() if "running" in n}
        rows = DATA.train[i][torch.from_numpy(next(iter(plan.batches(i, 1, 3, None, 1))))]
        logits = torch.func.functional_call(small(norm=True).train(), mixture, images(DATA, rows))
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, DATA.labels[rows]), alpha)
        found.append(float(it.server.personal[i]["alpha"]))
        assert found[-1] == pytest.approx(0.3 - s.lr * float(slope), rel=1e-4)
        assert found[-1] != pytest.approx(0.3, rel=1e-4), "no step at all"
    notes = it.checkpoint.notes
    assert [notes[str(i)]["alpha"] for i in range(DATA.clients)] == found


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_share_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(FedbenchError, match=r"--alpha of apfl_flux must be in \[0, 1\]"):
        method("apfl_flux", alpha=alpha)
