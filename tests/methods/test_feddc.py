"""FedDC: whole rounds against torch's SGD on the changed loss; what becomes of it without its terms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.conformance.small import small
from fedbench.core.plan import Plan
from fedbench.core.state import model_in
from fedbench.errors import FedbenchError
from tests.support.lab import federation, method, same, setting, train
from tests.support.sgd_oracle import State, averaged, descended, of, started, trained

DATA = federation()
PARAMETERS = [name for name, _ in small(norm=True).named_parameters()]


@pytest.mark.parametrize(("rounds", "correction"), [(2, 1.0), (3, 1.0), (3, 0.0)])
def test_rounds_are_those_of_the_formula(rounds: int, correction: float, tmp_path: Path) -> None:
    """Rounds in which not all take part, of a network with a batch norm, clients of unequal sizes."""
    alpha, s = 0.2, setting(rounds=rounds, window=1, epochs=2, momentum=0.0, participation=0.6, seed=3)
    it = trained(method("feddc", alpha=alpha, correction=correction), DATA, s, tmp_path)
    plan, w = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    zero: State = {n: torch.zeros_like(w[n]) for n in PARAMETERS}
    h, g = ([dict(zero) for _ in range(DATA.clients)] for _ in range(2))
    cohorts = [plan.cohort(t) for t in range(1, rounds + 1)]
    assert 0 < min(map(len, cohorts)) < DATA.clients
    assert set(cohorts[0]) & set(cohorts[1])  # somebody comes again, and so has a drift
    for t, cohort in enumerate(cohorts, 1):
        mean_g, sent = averaged(g, DATA.n_train), []
        for i in cohort:
            batches = list(plan.batches(i, t, 1, 2, None))
            anchor = {n: w[n] - h[i][n] for n in PARAMETERS}
            linear = {n: correction * (g[i][n] - mean_g[n]) for n in PARAMETERS}
            theta = descended(w, DATA, DATA.train[i], [batches], s, alpha, anchor, linear)
            for n in PARAMETERS:
                h[i][n] = h[i][n] + theta[n] - w[n]
            g[i] = {n: (theta[n] - w[n]) / (s.lr * len(batches)) for n in PARAMETERS}
            sent.append({n: theta[n] + h[i][n] if n in h[i] else theta[n] for n in theta})
        w = averaged(sent, [DATA.n_train[i] for i in cohort])
    for name, expected in w.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=1e-5)
    mean_g = averaged(g, DATA.n_train)
    for n in PARAMETERS:
        torch.testing.assert_close(it.server.shared[f"change/{n}"], mean_g[n], rtol=1e-2, atol=1e-4)
        for i in set().union(*cohorts):
            torch.testing.assert_close(it.server.personal[i][f"drift/{n}"], h[i][n], rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(it.server.personal[i][f"own_change/{n}"], g[i][n], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("alpha", "plain"), [(0.0, "fedavg"), (0.3, "fedprox")])
def test_clients_of_the_first_round_do_what_these_do(alpha: float, plain: str, tmp_path: Path) -> None:
    """FedAvg's without alpha, else FedProx's; the server goes twice as far, as the drifts are the changes."""
    s = setting(rounds=1, window=1, momentum=0.0)
    other = method(plain, mu=alpha) if alpha else method(plain)
    ours, theirs = (
        train(how, DATA, tmp_path / how.name, s).trainer.server for how in (method("feddc", alpha=alpha), other)
    )
    for n, end in theirs.shared.items():
        torch.testing.assert_close(ours.shared[n], 2 * end - ours.initial[n], rtol=1e-4, atol=1e-6)


def test_without_its_terms_each_round_is_fedavgs_from_a_start_with_momentum(tmp_path: Path) -> None:
    """With alpha = 0 and no correction the server's model less the cohort's mean drift is FedAvg's of that round."""
    two, s = (setting(rounds=r, window=1, epochs=2, momentum=0.0, participation=0.6, seed=3) for r in (2, 3))
    bare = method("feddc", alpha=0.0, correction=0.0)
    before, it = (trained(bare, DATA, x, tmp_path / str(x.rounds)) for x in (two, s))
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    cohort, w = plan.cohort(3), of(before.server.shared)
    ends = [descended(w, DATA, DATA.train[i], [list(plan.batches(i, 3, 1, 2, None))], s) for i in cohort]
    sizes = [DATA.n_train[i] for i in cohort]
    fedavgs, drift = averaged(ends, sizes), averaged([model_in(it.server.view(i), "drift") for i in cohort], sizes)
    for n, t in of(it.server.shared).items():
        torch.testing.assert_close(t - drift[n] if n in drift else t, fedavgs[n], rtol=1e-3, atol=1e-5)


def test_the_mean_change_stays_that_of_the_clients(tmp_path: Path) -> None:
    """Also where clients come and go."""
    server = train("feddc", DATA, tmp_path, setting(rounds=6, participation=0.5)).trainer.server
    mean = averaged([model_in(server.view(i), "own_change") for i in range(DATA.clients)], DATA.n_train)
    change = model_in(server.shared, "change")
    assert max(float(t.abs().max()) for t in change.values()) > 0.01
    for n, t in change.items():
        torch.testing.assert_close(t, mean[n], rtol=1e-3, atol=1e-5)


def test_the_settings_momentum_has_no_say(tmp_path: Path) -> None:
    runs = [train("feddc", DATA, tmp_path / str(m), setting(momentum=m)) for m in (0.0, 0.9)]
    assert same(runs[0].tensors, runs[1].tensors)


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(FedbenchError, match="alpha of feddc must be"):
        method("feddc", alpha=-1)
    with pytest.raises(FedbenchError, match="feddc takes its steps by a rule of its own"):
        method("feddc").check_setting(setting(optimizer="adamw", momentum=0.0))
