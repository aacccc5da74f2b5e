"""SCAFFOLD: whole rounds against torch's SGD on the corrected loss; FedAvg before there are control variates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import model_in
from fedbench.errors import FedbenchError
from tests.support.lab import Run, federation, method, same, setting, train
from tests.support.sgd_oracle import State, averaged, descended, of, started, trained

DATA = federation()
PARAMETERS = [name for name, _ in small(norm=True).named_parameters()]


def network(run: Run) -> State:
    """The shared network of a run, without control variates."""
    return {n: t for n, t in run.trainer.server.shared.items() if "/" not in n}


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_rounds_are_those_of_the_algorithm(server_lr: float, tmp_path: Path) -> None:
    """Three rounds in which not all take part, of a network with a batch norm, clients of unequal sizes."""
    s = setting(rounds=3, window=1, epochs=2, momentum=0.0, participation=0.6, seed=3)
    it = trained(method("scaffold", server_lr=server_lr), DATA, s, tmp_path)
    plan, x = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    c: State = {n: torch.zeros_like(x[n]) for n in PARAMETERS}
    own = [dict(c) for _ in range(DATA.clients)]
    cohorts = [plan.cohort(t) for t in (1, 2, 3)]
    assert 0 < min(map(len, cohorts)) < DATA.clients
    for t, cohort in enumerate(cohorts, 1):
        ends, changes = [], []
        for i in cohort:
            batches = list(plan.batches(i, t, 1, 2, None))
            y = descended(x, DATA, DATA.train[i], [batches], s, linear={n: c[n] - own[i][n] for n in c})
            new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (len(batches) * s.lr) for n in c}
            changes.append({n: new[n] - own[i][n] for n in c})
            own[i] = new
            ends.append(y)
        sizes = [DATA.n_train[i] for i in cohort]
        mean, change = averaged(ends, sizes), averaged(changes, sizes)
        x = {n: x[n] + server_lr * (mean[n] - x[n]) if n in c else mean[n] for n in x}
        c = {n: c[n] + sum(sizes) / sum(DATA.n_train) * change[n] for n in c}
    for name, expected in x.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    for n, expected in c.items():
        torch.testing.assert_close(it.server.shared[f"control/{n}"], expected, rtol=1e-2, atol=1e-4)
    for i in set().union(*cohorts):
        for n, expected in own[i].items():
            torch.testing.assert_close(it.server.personal[i][f"own_control/{n}"], expected, rtol=1e-2, atol=1e-4)


def test_the_first_round_is_fedavgs_without_momentum(tmp_path: Path) -> None:
    s = setting(rounds=1, window=1, momentum=0.0)
    ours, plain = (train(name, DATA, tmp_path / name, s) for name in ("scaffold", "fedavg"))
    assert all(torch.equal(t, plain.trainer.server.shared[n]) for n, t in network(ours).items())
    assert ours.predictions.equals(plain.predictions)


def test_a_client_alone_has_nothing_to_correct(tmp_path: Path) -> None:
    """Its control variate is the server's: SGD, round after round."""
    alone, s = federation((120,)), setting(rounds=3, window=1, momentum=0.0)
    ours, plain = (train(name, alone, tmp_path / name, s) for name in ("scaffold", "fedavg"))
    for name, t in network(ours).items():
        torch.testing.assert_close(t, plain.trainer.server.shared[name], rtol=1e-4, atol=1e-6)


def test_the_settings_momentum_has_no_say(tmp_path: Path) -> None:
    runs = [train("scaffold", DATA, tmp_path / str(m), setting(momentum=m)) for m in (0.0, 0.9)]
    assert same(runs[0].tensors, runs[1].tensors)


def test_the_servers_control_variate_stays_the_mean_of_the_clients(tmp_path: Path) -> None:
    """Also where clients come and go."""
    server = train("scaffold", DATA, tmp_path, setting(rounds=6, participation=0.5)).trainer.server
    own = [model_in(server.view(i), "own_control") for i in range(DATA.clients)]
    mean = averaged(own, DATA.n_train)
    control = model_in(server.shared, "control")
    assert max(float(t.abs().max()) for t in control.values()) > 0.01
    for n, t in control.items():
        torch.testing.assert_close(t, mean[n], rtol=1e-3, atol=1e-5)


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(FedbenchError, match="--server-lr of scaffold must be above 0"):
        method("scaffold", server_lr=0)
    with pytest.raises(FedbenchError, match="scaffold takes its steps by a rule of its own"):
        method("scaffold").check_setting(setting(optimizer="adamw", momentum=0.0))
