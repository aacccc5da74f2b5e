"""FedOpt: FedAvg as its simplest case; whole runs against torch's SGD at the clients and NumPy at the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbench.core.plan import Plan
from fedbench.core.state import weighted_mean
from fedbench.core.trainer import Interrupted, Progress
from fedbench.errors import FedbenchError
from tests.support.lab import federation, method, same, setting, train, trainer
from tests.support.sgd_oracle import State, averaged, descended, of, started, trained

Array = npt.NDArray[np.float64]

DATA = federation()
ETA, BETA1, BETA2, TAU = 0.05, 0.8, 0.9, 0.02
HYPERPARAMETERS: dict[str, Any] = {"server_lr": ETA, "beta1": BETA1, "beta2": BETA2, "tau": TAU}
SERVERS = ("avgm", "adagrad", "adam", "yogi")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
every = pytest.mark.parametrize("server", SERVERS)


def moved(server: str, x: Array, changes: list[Array]) -> Array:
    """A parameter after these mean changes, by the formulas of the papers."""
    m, v = np.zeros_like(x), np.full_like(x, TAU**2)
    for d in changes:
        if server == "avgm":
            m = BETA1 * m + d
            x = x + ETA * m
            continue
        m = BETA1 * m + (1 - BETA1) * d
        if server == "adagrad":
            v = v + d**2
        elif server == "adam":
            v = BETA2 * v + (1 - BETA2) * d**2
        else:  # Yogi: v moves towards d^2 by the size of d^2, not by the distance
            v = np.where(v > d**2, v - (1 - BETA2) * d**2, v + (1 - BETA2) * d**2)
        x = x + ETA * m / (np.sqrt(v) + TAU)
    return x


def test_momentum_of_nothing_at_full_step_is_fedavg(tmp_path: Path) -> None:
    ours = train(method("fedopt", server="avgm", server_lr=1, beta1=0), DATA, tmp_path / "ours")
    plain = train("fedavg", DATA, tmp_path / "plain")
    for name, expected in plain.shared.items():
        np.testing.assert_allclose(ours.shared[name], expected, rtol=1e-4, atol=1e-6)


@every
def test_rounds_are_those_of_the_algorithm(server: str, tmp_path: Path) -> None:
    """Two rounds of a network with a batch norm, whose running statistics are FedAvg's means."""
    s = setting(rounds=2, window=1, epochs=2)
    it = trained(method("fedopt", server=server, **HYPERPARAMETERS), DATA, s, tmp_path)
    plan, first = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    shared: State = first
    changes: list[dict[str, Array]] = []
    for t in (1, 2):
        mean = averaged(
            [
                descended(shared, DATA, DATA.train[i], [list(plan.batches(i, t, 1, 2, None))], s)
                for i in range(DATA.clients)
            ],
            DATA.n_train,
        )
        changes.append({n: mean[n].double().numpy() - shared[n].double().numpy() for n in first})
        shared = {
            n: mean[n]
            if n.endswith(STATISTICS)
            else torch.from_numpy(moved(server, x.double().numpy(), [c[n] for c in changes])).float()
            for n, x in first.items()
        }
    assert any(n.endswith("running_var") for n in shared)
    for name, expected in shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=2e-5)
    parameters = sum(x.numel() for n, x in first.items() if not n.endswith(STATISTICS))
    moments = {"m": (parameters,)} if server == "avgm" else {"m": (parameters,), "v": (parameters,)}
    assert {n: tuple(x.shape) for n, x in vars(it.server.memory).items() if x is not None} == moments


@every
def test_steps_of_the_server_are_those_of_the_formulas(server: str, tmp_path: Path) -> None:
    """Changes by hand, some greater than tau and some smaller, over four rounds: to float rounding."""
    how = method("fedopt", server=server, **HYPERPARAMETERS)
    it = trainer(how, DATA, tmp_path, setting())
    start, rng = {n: t.double().numpy() for n, t in it.server.shared.items()}, np.random.default_rng(2)
    changes: list[dict[str, Array]] = []
    for t in range(1, 5):
        held = dict(it.server.shared)
        cohort = [it.client(i, it.server.view(i), t) for i in (0, 2, 3)]
        for c in cohort:
            steps = {n: TAU * rng.standard_normal(x.shape).astype(np.float32) for n, x in held.items()}
            c.state = {n: x + torch.from_numpy(steps[n]) for n, x in held.items()}
        mean = weighted_mean([c.state for c in cohort], [c.n_train for c in cohort], held)
        changes.append({n: (mean[n].double() - held[n].double()).numpy() for n in held})
        before = {n: x.clone() for n, x in held.items()}
        how.aggregate(it.server, cohort, t)
        assert all(torch.equal(held[n], x) for n, x in before.items())
    for name, x in start.items():
        expected = moved(server, x, [c[name] for c in changes])
        np.testing.assert_allclose(it.server.shared[name].numpy(), expected, rtol=1e-5, atol=1e-6)


@every
def test_stopped_and_resumed_it_goes_on_with_its_moments(server: str, tmp_path: Path) -> None:
    how, s = method("fedopt", server=server), setting(rounds=4, participation=0.7)
    whole = train(how, DATA, tmp_path / "whole", s)

    def stop(progress: Progress) -> None:
        if progress.round == 2 and not progress.doing:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        trainer(how, DATA, tmp_path / "stopped", s).run(stop)
    again = train(how, DATA, tmp_path / "stopped", s)
    assert [p.round for p in again.reports] == [3, 4]
    assert any(name.startswith("memory/") for name in whole.tensors)
    assert same(again.tensors, whole.tensors)


@pytest.mark.parametrize(
    ("hyperparameter", "value", "wanted"),
    [
        ("server_lr", 0.0, "--server-lr of fedopt must be above 0"),
        ("beta1", 1.0, "--beta1 of fedopt must be in [0, 1)"),
        ("beta2", -0.1, "--beta2 of fedopt must be in [0, 1)"),
        ("tau", 0.0, "--tau of fedopt must be above 0"),
        ("server", "sgd", "avgm"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(hyperparameter: str, value: object, wanted: str) -> None:
    with pytest.raises(FedbenchError, match=re.escape(wanted)):
        method("fedopt", **{hyperparameter: value})
