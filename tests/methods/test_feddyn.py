"""FedDyn: whole rounds against torch's SGD on the changed losses, and what holds of it in every round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import model_in
from fedbench.errors import FedbenchError
from tests.support.lab import federation, method, setting, train
from tests.support.sgd_oracle import State, averaged, descended, of, started, trained

DATA = federation()
PARAMETERS = [name for name, _ in small(norm=True).named_parameters()]


def test_rounds_are_those_of_the_algorithm(tmp_path: Path) -> None:
    """Three rounds in which not all take part, of a network with a batch norm, clients of unequal sizes."""
    alpha, s = 0.2, setting(rounds=3, window=1, epochs=2, participation=0.6, seed=3)
    it = trained(method("feddyn", alpha=alpha), DATA, s, tmp_path)
    plan, theta = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    zeros: State = {n: torch.zeros_like(theta[n]) for n in PARAMETERS}
    gradients, h = [dict(zeros) for _ in range(DATA.clients)], dict(zeros)
    cohorts = [plan.cohort(t) for t in (1, 2, 3)]
    assert 0 < min(map(len, cohorts)) < DATA.clients
    for t, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            batches = list(plan.batches(i, t, 1, 2, None))
            linear = {n: -g for n, g in gradients[i].items()}
            end = descended(theta, DATA, DATA.train[i], [batches], s, alpha, theta, linear)
            gradients[i] = {n: g - alpha * (end[n] - theta[n]) for n, g in gradients[i].items()}
            for n in h:
                h[n] = h[n] - alpha * DATA.n_train[i] / sum(DATA.n_train) * (end[n] - theta[n])
            ends.append(end)
        mean = averaged(ends, [DATA.n_train[i] for i in cohort])
        theta = {n: mean[n] - h[n] / alpha if n in h else mean[n] for n in theta}
    for name, expected in theta.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    for n in PARAMETERS:
        torch.testing.assert_close(it.server.memory.h[n], h[n], rtol=1e-3, atol=1e-5)
        for i in set().union(*cohorts):
            torch.testing.assert_close(
                it.server.personal[i][f"own_gradient/{n}"], gradients[i][n], rtol=1e-3, atol=1e-5
            )


def test_clients_of_the_first_round_do_what_fedproxs_do(tmp_path: Path) -> None:
    """Then, if all take part, the server goes twice as far."""
    s = setting(rounds=1, window=1)
    ours, prox = (
        train(how, DATA, tmp_path / how.name, s).trainer.server
        for how in (method("feddyn", alpha=0.3), method("fedprox", mu=0.3))
    )
    for n, end in prox.shared.items():
        torch.testing.assert_close(ours.shared[n], 2 * end - ours.initial[n], rtol=1e-4, atol=1e-6)


def test_h_stays_the_mean_of_the_clients_gradients(tmp_path: Path) -> None:
    """Also where clients come and go."""
    server = train("feddyn", DATA, tmp_path, setting(rounds=6, participation=0.5)).trainer.server
    mean = averaged([model_in(server.view(i), "own_gradient") for i in range(DATA.clients)], DATA.n_train)
    h = server.memory.h
    assert max(float(t.abs().max()) for t in h.values()) > 1e-3
    for n, t in h.items():
        torch.testing.assert_close(t, mean[n], rtol=1e-3, atol=1e-6)


def test_alpha_divides() -> None:
    with pytest.raises(FedbenchError, match="--alpha of feddyn must be above 0"):
        method("feddyn", alpha=0)
