"""MOON: FedAvg without its contrast, and with it torch's SGD on a loss of three networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.small import small
from fedbench.core.client import Batch, Client
from fedbench.core.plan import Plan
from fedbench.core.state import model_in, size_in_bytes, state_of
from fedbench.errors import FedbenchError
from fedbench.specs import Setting
from tests.support.lab import Run, federation, method, same, setting, train, trainer
from tests.support.sgd_oracle import State, averaged, images, of, started, trained

DATA = federation()
MU, TAU = 2.0, 0.4


def test_without_the_contrast_it_is_fedavg(tmp_path: Path) -> None:
    none, plain, some = (
        train(how, DATA, tmp_path / str(i))
        for i, how in enumerate((method("moon", mu=0), method("fedavg"), method("moon")))
    )
    assert same(none.shared, plain.shared)
    assert none.predictions.equals(plain.predictions)
    assert not same(some.shared, plain.shared)


def test_the_first_round_is_fedavgs(tmp_path: Path) -> None:
    """The previous model is the received one: no feature is nearer to one than to the other."""
    s = setting(rounds=1, window=1)
    runs = [train(name, DATA, tmp_path / name, s) for name in ("moon", "fedavg")]
    for name, expected in runs[1].shared.items():
        np.testing.assert_allclose(runs[0].shared[name], expected, rtol=1e-4, atol=1e-6)
    losses = [run.reports[0].loss for run in runs]
    assert losses[0] == pytest.approx(losses[1] + math.log(2), rel=1e-5)


def contrast(z: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Eq. 3, image by image, as it is written."""
    each = []
    for a, b, c in zip(z, near, far, strict=True):
        toward, away = (torch.exp(a @ other / (a.norm() * other.norm()) / TAU) for other in (b, c))
        each.append(-torch.log(toward / (toward + away)))
    return torch.stack(each).mean()


def descended(
    state: Mapping[str, Tensor], previous: Mapping[str, Tensor], rows: Tensor, batches: Any, s: Setting
) -> Any:
    """Algorithm 1, lines 10-20, by torch.optim on a module beside two that are frozen in evaluation mode."""
    nets = [small(norm=True) for _ in range(3)]
    for net, start in zip(nets, (state, state, previous), strict=True):
        net.load_state_dict(dict(start))
    net, received, last = nets[0].train(), nets[1].eval(), nets[2].eval()
    optimiser = torch.optim.SGD(net.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
    for position in batches:
        chosen = rows[torch.from_numpy(position)]
        x, y = images(DATA, chosen), DATA.labels[chosen]
        z = net.features(x)
        with torch.no_grad():
            others = [frozen.features(x) for frozen in (received, last)]
        loss = F.cross_entropy(net.head(z), y) + MU * contrast(z, *others)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return state_of(net)


def test_rounds_are_those_of_the_algorithm(tmp_path: Path) -> None:
    """Three rounds of a network with a batch norm, in which clients come late and stay away."""
    s = setting(rounds=3, window=1, epochs=2, participation=0.6, seed=3)
    it = trained(method("moon", mu=MU, temperature=TAU), DATA, s, tmp_path)
    plan, shared = Plan(s, DATA.n_train, DATA.shape[:2]), started()
    cohorts: Sequence[list[int]] = [plan.cohort(t) for t in (1, 2, 3)]
    late = [i for t in (1, 2) for i in cohorts[t] if all(i not in earlier for earlier in cohorts[:t])]
    again = [i for i in cohorts[1] if i in cohorts[0]]
    assert late
    assert again
    previous: dict[int, State] = {}
    for t, cohort in enumerate(cohorts, 1):
        before = shared
        for i in cohort:
            batches = list(plan.batches(i, t, 1, 2, None))
            previous[i] = descended(before, previous.get(i, before), DATA.train[i], batches, s)
        shared = averaged([previous[i] for i in cohort], [DATA.n_train[i] for i in cohort])
    for name, expected in shared.items():
        torch.testing.assert_close(of(it.server.shared)[name], expected, rtol=1e-3, atol=2e-5)
    for i, state in previous.items():
        kept = it.server.view(i)
        for name, expected in state.items():
            torch.testing.assert_close(of(kept, "previous/")[name], expected, rtol=1e-3, atol=2e-5)


def test_the_loss_moves_the_network_alone() -> None:
    how: Any = method("moon", mu=MU, temperature=TAU)
    nets = [small(norm=True, seed=seed) for seed in range(3)]
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    rows = DATA.train[0][:9]
    loss = how.loss(nets, Batch(images(DATA, rows), DATA.labels[rows], torch.arange(9), {}))
    loss.total.backward()
    assert all(p.grad is not None for p in nets[0].parameters())
    for net, state in zip(nets[1:], before[1:], strict=True):
        assert all(p.grad is None for p in net.parameters())
        assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items()), "running statistics moved"


def test_the_received_model_is_neither_kept_nor_sent(tmp_path: Path) -> None:
    uploads: list[set[str]] = []

    class Spy(type(method("moon"))):  # type: ignore[misc]
        def aggregate(self, server: Any, cohort: Sequence[Client], t: int) -> None:
            uploads.extend(set(c.state) for c in cohort)
            super().aggregate(server, cohort, t)

    run: Run = train(Spy(), DATA, tmp_path)
    names = {*run.shared, "previous/known", *(f"previous/{n}" for n in run.shared)}
    assert uploads
    assert all(names == upload for upload in uploads)
    server = run.trainer.server
    assert {name.split("/")[0] for state in server.personal.values() for name in state} == {"previous"}
    size = size_in_bytes(server.shared)
    for line in run.trainer.checkpoint.rounds:
        assert line["bytes_up"] == line["bytes_down"] == line["participants"] * size


def test_features_stay_nearer_to_the_received_models(tmp_path: Path) -> None:
    """What the contrast is for: the more it weighs, the more a round's features look like the received model's."""

    def similarity(mu: float) -> float:
        it = trainer(method("moon", mu=mu), DATA, tmp_path / str(mu), setting(rounds=3, epochs=3))
        received: dict[str, Tensor] = {}
        it.run(lambda p: received.update(it.server.shared) if p.round == 2 else None)
        values = []
        for i in range(DATA.clients):
            nets: list[Any] = [copy.deepcopy(it.executor.model) for _ in range(2)]
            for net, state in zip(nets, (model_in(it.server.view(i), "previous"), received), strict=True):
                net.load_state_dict({n: state[n] for n in received})
            with torch.no_grad():
                a, b = (net.eval().features(images(DATA, DATA.train[i])) for net in nets)
            values.append(float(F.cosine_similarity(a, b).mean()))
        return float(np.mean(values))

    assert similarity(10.0) > similarity(0.0)


@pytest.mark.parametrize(
    ("hyperparameter", "value", "wanted"), [("mu", -1, "at least 0"), ("temperature", 0, "above 0")]
)
def test_hyper_parameters_out_of_range_are_refused(hyperparameter: str, value: float, wanted: str) -> None:
    with pytest.raises(FedbenchError, match=f"--{hyperparameter} of moon must be {wanted}, not {value}"):
        method("moon", **{hyperparameter: value})
