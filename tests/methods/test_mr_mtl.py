"""MR-MTL: personal models that go on from themselves, pulled to their average."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.core.plan import Plan
from fedbench.core.state import model_in
from fedbench.core.who import MEMBER
from fedbench.errors import FedbenchError
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, same, setting, train
from tests.support.sgd_oracle import averaged, descended, of, started, trained

DATA = grouped_federation((0, 1, 0, 1), 60)
SHORT = grouped_setting(rounds=3)


def own(server_view: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {n: t.numpy() for n, t in model_in(server_view, "own").items()}


def test_without_pull_it_is_local_training(tmp_path: Path) -> None:
    """Batches of another request, or a model that is overwritten by the average, would differ."""
    local, run = (train(how, DATA, tmp_path / how.name, SHORT) for how in (method("local"), method("mr_mtl", pull=0)))
    for i in range(DATA.clients):
        assert same(
            own(run.trainer.server.view(i)), {n: t.numpy() for n, t in local.trainer.server.personal[i].items()}
        )
    assert run.predictions["own"].equals(local.predictions["own"])


@pytest.mark.parametrize("restarts", [True, False])
def test_two_rounds_are_what_the_formula_gives(restarts: bool, tmp_path: Path) -> None:
    s = grouped_setting(rounds=2, momentum_restarts=restarts, weight_decay=1e-3)
    it = trained(method("mr_mtl", pull=0.5), DATA, s, tmp_path)
    plan, average = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    models = [average] * DATA.clients
    for t in (1, 2):
        for i in range(DATA.clients):
            batches = list(plan.batches(i, t, 1, 2, None))
            a_pass = plan.batches_a_pass(i)
            epochs = [batches[:a_pass], batches[a_pass:]] if restarts else [batches]
            models[i] = descended(models[i], DATA, DATA.train[i], epochs, s, 0.5, average)
        average = averaged(models, DATA.n_train)
    for name, value in average.items():
        torch.testing.assert_close(it.server.shared[name], value, rtol=1e-4, atol=2e-5)
    for i in range(DATA.clients):
        held = of(it.server.view(i), "own/")
        for name, value in held.items():
            torch.testing.assert_close(value, models[i][name], rtol=1e-4, atol=2e-5)
        for name in ("backbone.norm.running_mean", "backbone.hidden.weight", "head.bias"):
            assert (held[name] - average[name]).abs().max() > 1e-3, "nothing tells personal from average"


def test_the_harder_the_pull_the_nearer_the_models_stay(tmp_path: Path) -> None:
    def spread(pull: float) -> float:
        server = train(method("mr_mtl", pull=pull), DATA, tmp_path / str(pull), SHORT).trainer.server
        return sum(
            float(((t - server.shared[n.removeprefix("own/")]) ** 2).sum())
            for state in server.personal.values()
            for n, t in state.items()
        )

    assert spread(3.0) < 0.7 * spread(0.1)


def test_own_models_learn_what_one_model_cannot(tmp_path: Path) -> None:
    """Two groups that name the same images differently: the average can please one at most."""
    data = grouped_federation((0, 1, 0, 1), 200, concept=True)
    s = grouped_setting(rounds=8, epochs=4)
    average, run = (train(how, data, tmp_path / how.name, s) for how in (method("fedavg"), method("mr_mtl", pull=0.02)))
    assert run.accuracy > average.accuracy + 0.2


def test_it_has_no_test_phase_and_no_newcomers(tmp_path: Path) -> None:
    run = train("mr_mtl", DATA, tmp_path, grouped_setting(rounds=1))
    assert "test_phase" not in run.predictions.column_names
    assert method("mr_mtl").serves == (MEMBER,)


def test_who_has_not_trained_answers_from_the_common_start(tmp_path: Path) -> None:
    run = train("mr_mtl", DATA, tmp_path, setting(rounds=1, seed=3, participation=0.5, votes=False))
    took_part = set(run.trainer.plan.cohort(1))
    assert 0 < len(took_part) < DATA.clients
    assert run.trainer.server.personal.keys() == took_part


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(FedbenchError, match=r"--pull of mr_mtl must be at least 0"):
        method("mr_mtl", pull=-0.1)
