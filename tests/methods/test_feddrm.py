"""FedDRM: its loss by hand, its routing rules, and that the router finds the client."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.client import Batch, Train
from fedbench.core.federation import Federation, to_input
from fedbench.methods.feddrm import FedDRM
from fedbench.specs import Setting
from tests.support.formula_lab import sent
from tests.support.lab import Run, digits, federation, method, setting, train, trainer

DATA = federation((90, 40, 60))


def shifted() -> Federation:
    """Three clients of unlike sizes with all classes; each sees the digits in its own way (a covariate shift)."""
    images, labels = digits()
    rows = np.random.default_rng(5).permutation(len(labels))[:420]
    client = np.repeat(np.arange(3), [240, 120, 60])
    is_test = np.concatenate([np.arange(n) >= 0.7 * n for n in (240, 120, 60)])
    x = images[rows].copy()
    x[client == 1] = 255 - x[client == 1]
    x[client == 2] = x[client == 2] // 4 + 96
    return Federation.of(x, labels[rows], client, rows, is_test, 10)


def visits(rounds: int) -> Setting:
    """Short ones, or the branch drifts to its host."""
    return setting(rounds=rounds, window=1, steps=2, lr=0.1, weight_decay=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("feddrm", shifted(), tmp_path_factory.mktemp("drm"), visits(4))


@pytest.mark.parametrize("share", [0.8, 0.3, 1.0])
def test_the_loss_by_hand(share: float, tmp_path: Path) -> None:
    how = FedDRM(lambda_=share)
    it = trainer(how, DATA, tmp_path)
    model: Any = it.executor.worker.load(it.server.initial)  # type: ignore[attr-defined]
    x, y = to_input(DATA.images[:12]), DATA.labels[:12]
    with torch.no_grad():
        loss = how.loss(model, Batch(x, y, torch.arange(len(y)), {"client": torch.tensor(2)}))
        h = model.backbone(x).double().numpy()
        target = h @ model.head.weight.double().numpy().T + model.head.bias.double().numpy()
        branch = model.client_branch.head
        client = h @ branch.weight.double().numpy().T + branch.bias.double().numpy()

    def cross_entropy(logits: np.ndarray, wanted: np.ndarray) -> float:
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(-log_p[np.arange(len(logits)), wanted].mean())

    first, second = cross_entropy(target, y.numpy()), cross_entropy(client, np.full(12, 2))
    assert loss.total.item() == pytest.approx(share * first + (1 - share) * second, rel=1e-5)
    assert loss.logged is not None
    assert loss.logged.item() == pytest.approx(first, rel=1e-5)
    assert loss.collected is None


def test_each_client_names_itself(tmp_path: Path) -> None:
    it = trainer(FedDRM(), DATA, tmp_path)
    for i in range(3):
        update = it.method.local(it.client(i, it.server.view(i), 1))
        assert update is not None
        (request,) = list(update)
        assert isinstance(request, Train)
        assert int(request.extras["client"]) == i
        assert request.trains == ("",)
        assert request.steps is request.epochs is request.lr is None


def test_only_the_last_target_layer_stays_with_its_client(run: Run) -> None:
    server = run.trainer.server
    assert {name for state in server.personal.values() for name in state} == {"head.weight", "head.bias"}
    assert "client_branch.head.weight" in server.shared
    assert server.shared["client_branch.head.weight"].shape == (3, 64)
    body = sum(t.numel() for t in server.shared.values())
    assert server.initial["head.weight"].numel() == 640
    assert sent(run) == [(3 * 4 * body,) * 2] * 4


def test_density_ratio_takes_the_training_shares_out() -> None:
    """If the logits are the log posterior log(share_i r_i) up to a constant, the second rule finds the largest r_i."""
    rng = np.random.default_rng(0)
    share = np.array([0.7, 0.2, 0.05, 0.05])
    ratio = rng.lognormal(size=(500, 4))
    logits = torch.from_numpy(np.log(share * ratio) + rng.normal(size=(500, 1)))

    class Model:
        client_branch = staticmethod(lambda backbone: backbone)

    chosen = FedDRM().route(Model(), logits, torch.from_numpy(np.log(share)))
    np.testing.assert_array_equal(chosen["probability"], (share * ratio).argmax(1))
    np.testing.assert_array_equal(chosen["density_ratio"], ratio.argmax(1))
    assert (chosen["probability"] != chosen["density_ratio"]).any()
    # Equal sizes: both rules are one.
    equal = FedDRM().route(Model(), logits, torch.full((4,), math.log(0.25), dtype=torch.float64))
    np.testing.assert_array_equal(equal["probability"], equal["density_ratio"])


def test_stored_routes_are_those_of_single_images(run: Run) -> None:
    it = run.trainer
    data = it.federation
    model = copy.deepcopy(it.executor.worker.model)  # type: ignore[attr-defined]
    model.load_state_dict(it.server.view(1))
    share = np.log(np.array(data.n_train) / sum(data.n_train))
    table = run.predictions
    rows = torch.cat(list(data.test))
    for k in range(0, len(rows), 7):
        with torch.no_grad():
            logits = model.client_branch(model.backbone(to_input(data.images[rows[k : k + 1]])))[0].double().numpy()
        assert table["route_probability"][k].as_py() == logits.argmax()
        assert table["route_density_ratio"][k].as_py() == (logits - share).argmax()


@pytest.mark.slow
def test_the_router_finds_the_client_of_an_image(tmp_path: Path) -> None:
    """Always naming the largest client would be right for 57 % of the images."""
    table = train("feddrm", shifted(), tmp_path, visits(100)).predictions.to_pandas()
    found = {
        rule: (table[f"route_{rule}"] == table["client"]).groupby(table["client"]).mean()
        for rule in ("probability", "density_ratio")
    }
    assert (table["route_probability"] == table["client"]).mean() > 0.8
    # The shares pull towards the large clients, and the ratio takes them out: the smallest gains by it.
    assert found["density_ratio"].min() > 0.9
    assert found["probability"][2] < found["density_ratio"][2]
    assert found["probability"][0] >= found["density_ratio"][0]
    # The client found answers about as well as the owner, and far better than chance.
    votes = np.array(table["votes"].tolist())
    routed = votes[np.arange(len(votes)), table["route_density_ratio"]]
    assert (routed == table["label"]).mean() > 0.6


def test_the_branch_is_the_seeds_own_and_the_network_is_that_of_the_others(tmp_path: Path) -> None:
    drm = trainer(FedDRM(), DATA, tmp_path / "a").server.initial
    plain = trainer(method("fedavg"), DATA, tmp_path / "b").server.initial
    assert all(torch.equal(drm[name], value) for name, value in plain.items())
    other = trainer(FedDRM(), DATA, tmp_path / "c", setting(seed=2)).server.initial
    assert not torch.equal(drm["client_branch.head.weight"], other["client_branch.head.weight"])
