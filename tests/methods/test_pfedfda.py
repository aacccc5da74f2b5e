"""pFedFDA's update driven by hand: what it trains against, what it estimates, what answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from fedbench.core.client import UNSEEN, Client, Collect, Collected, Train, Trained
from fedbench.core.federation import Federation, to_input
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.methods import pfedfda
from fedbench.methods.pfedfda import PFedFDA, packed, unpacked
from fedbench.methods.pfedfda.gaussian import Gaussian, Moments, classifier, prior
from fedbench.methods.pfedfda.gaussian import estimate as from_moments
from tests.support.formula_lab import close, sent
from tests.support.lab import Run, digits, drive, federation, method, same, setting, train, trainer

DATA = federation()
D = 64
TWO = setting(rounds=2, window=1)


def client_of(how: PFedFDA, folder: Path, t: int = 1) -> Client:
    it = trainer(how, DATA, folder)
    client = it.client(1, it.server.view(1), t)
    client.received["gaussian.covariance"] = packed(torch.eye(D) * 1.7)
    client.state = dict(client.received)
    return client


def features(n: int = 120, classes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    z = rng.normal(size=(n, D)).astype(np.float32) + rng.normal(size=(10, D)).astype(np.float32)[y]
    return torch.from_numpy(z), torch.from_numpy(y)


def estimate(z: torch.Tensor, y: torch.Tensor, *options: Any) -> Gaussian:
    """The client's own Gaussian from rows."""
    return from_moments(Moments.of(z, y, 10), *options)


def gaussian_of(state: State) -> Gaussian:
    """The Gaussian that a state holds."""
    return Gaussian(state["gaussian.mean"].double(), unpacked(state["gaussian.covariance"]).double())


def common(client: Client) -> Gaussian:
    return gaussian_of(client.received)


def posterior_answers(run: Run, data: Federation, client: int) -> tuple[np.ndarray, float]:
    """A client's answers after the last round from Gaussian densities on the averaged body, image by image; beta."""
    it = run.trainer
    model: Any = it.executor.worker.load(it.server.view(client)).eval()  # type: ignore[attr-defined]
    with torch.no_grad():
        z, test = (model.features(to_input(data.images[rows])) for rows in (data.train[client], data.test[client]))
    reference = gaussian_of(it.server.shared)
    beta = it.checkpoint.notes[str(client)]["beta"]
    own = estimate(z, data.labels[data.train[client]], reference, 1.0, 1e-4, 3).mix(reference, beta, beta)
    pi = prior(data.class_counts[client]).numpy()
    joint = np.stack(
        [multivariate_normal(m, own.covariance).logpdf(test) + np.log(p) for m, p in zip(own.mean, pi, strict=True)], 1
    )
    return joint.argmax(1), beta


def test_the_body_trains_against_the_frozen_head_of_the_common_gaussian(tmp_path: Path) -> None:
    how = PFedFDA()
    client = client_of(how, tmp_path)
    request = next(how.local(client))
    assert isinstance(request, Train)
    assert request.trains == ("backbone.", "projection.")
    weight, bias = classifier(common(client), prior(DATA.class_counts[1]))
    torch.testing.assert_close(request.extras["weight"], weight.float())
    torch.testing.assert_close(request.extras["bias"], bias.float())
    assert not any(t.requires_grad for t in request.extras.values())
    # The prior is the client's own: another client of other classes has another bias and the same weight.
    other = trainer(how, DATA, tmp_path).client(3, client.state, 1)
    other.received = client.received
    theirs = next(how.local(other))
    assert torch.equal(theirs.extras["weight"], request.extras["weight"])
    assert not torch.equal(theirs.extras["bias"], request.extras["bias"])


def test_the_loss_is_cross_entropy_through_that_head_and_keeps_the_features(tmp_path: Path) -> None:
    it = trainer(PFedFDA(), DATA, tmp_path)
    client = it.client(1, it.server.view(1), 1)
    request = next(it.method.local(client))  # type: ignore[arg-type]
    assert isinstance(request, Train)
    model: Any = it.executor.worker.load(client.state)  # type: ignore[attr-defined]
    rows = DATA.train[1][:9]
    x, y = to_input(DATA.images[rows]), DATA.labels[rows]
    from fedbench.core.client import Batch

    loss = request.loss(model, Batch(x, y, torch.arange(9), request.extras))
    with torch.no_grad():
        z = model.features(x).double()
    logits = (z @ request.extras["weight"].double().T + request.extras["bias"].double()).numpy()
    expected = -(logits[np.arange(9), y] - np.log(np.exp(logits).sum(1))).mean()
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    assert loss.collected is not None
    torch.testing.assert_close(loss.collected.double(), z, rtol=1e-5, atol=1e-6)
    loss.total.backward()
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n.startswith("backbone."))
    assert all(p.grad is None for n, p in model.named_parameters() if n.startswith("head."))


def test_a_round_trains_the_body_and_nothing_of_the_head(tmp_path: Path) -> None:
    run = train("pfedfda", DATA, tmp_path, TWO)
    server = run.trainer.server
    for name, value in server.initial.items():
        if name.startswith("head."):
            assert all(torch.equal(server.view(i)[name], value) for i in range(4))
        elif name != "gaussian.beta":
            assert not torch.equal(server.shared[name], value), name
    assert {name for state in server.personal.values() for name in state} == {"gaussian.beta"}
    # Everywhere the ridge of 1 lies on the covariance, in the mean of the clients too.
    assert torch.linalg.eigvalsh(unpacked(server.shared["gaussian.covariance"])).min() > 0.99


@pytest.mark.parametrize("betas", [0, 1, 2])
def test_what_is_sent_is_the_interpolation(betas: int, tmp_path: Path) -> None:
    how = PFedFDA(betas=betas)
    client = client_of(how, tmp_path)
    z, y = features()
    drive(how.local(client), Trained(1.0, z, y, len(z), len(z)))
    own = estimate(z, y, common(client), 1.0, 1e-4)
    beta = client.state["gaussian.beta"].double()
    assert len(beta) == max(betas, 1)
    assert ((beta >= 0) & (beta <= 1)).all()
    if betas == 0:
        assert beta.tolist() == [1.0]
    mixed = own.mix(common(client), beta[0], beta[-1])
    torch.testing.assert_close(client.state["gaussian.mean"], mixed.mean.float())
    torch.testing.assert_close(unpacked(client.state["gaussian.covariance"]), mixed.covariance.float())
    # Classes 6 to 9 are nowhere among the rows: exactly the common means.
    assert torch.equal(client.state["gaussian.mean"][6:], client.received["gaussian.mean"][6:])
    names = {0: {"beta"}, 1: {"beta"}, 2: {"beta_0", "beta_1"}}[betas]
    assert client.metrics.keys() == names
    assert list(client.metrics.values()) == pytest.approx(beta.tolist(), abs=1e-6)


@pytest.mark.parametrize("store", ["all_epochs", "last_epoch", "extra_pass"])
def test_where_the_statistics_come_from(store: str, tmp_path: Path) -> None:
    how = PFedFDA(betas=0, feature_store=store)
    client = client_of(how, tmp_path)
    z, y = features()
    extra = (z[:30] * 2, y[:30])
    requests = drive(how.local(client), Trained(1.0, z, y, len(z), 40), Collected(*extra))
    rows, labels = {"all_epochs": (z, y), "last_epoch": (z[-40:], y[-40:]), "extra_pass": extra}[store]
    own = estimate(rows, labels, common(client), 1.0, 1e-4)
    torch.testing.assert_close(client.state["gaussian.mean"], own.mean.float())
    torch.testing.assert_close(unpacked(client.state["gaussian.covariance"]), own.covariance.float())
    assert [type(r) for r in requests] == ([Train, Collect] if store == "extra_pass" else [Train])


def test_the_extra_pass_sees_the_trained_body(tmp_path: Path) -> None:
    data, s = federation((80,)), setting(rounds=1, window=1)
    run = train(method("pfedfda", betas=0, feature_store="extra_pass"), data, tmp_path, s)
    model: Any = run.trainer.executor.worker.load(run.trainer.server.view(0))  # type: ignore[attr-defined]
    with torch.no_grad():
        z = model.features(to_input(data.images[data.train[0]]))
    y = data.labels[data.train[0]]
    start = run.trainer.server.initial
    own, shared = estimate(z, y, gaussian_of(start), 1.0, 1e-4), gaussian_of(run.trainer.server.shared)
    np.testing.assert_allclose(shared.mean, own.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shared.covariance, own.covariance, rtol=1e-4, atol=1e-5)


def test_who_answers_has_the_head_of_the_adapted_gaussian(tmp_path: Path) -> None:
    how = PFedFDA()
    client = client_of(how, tmp_path, t=3)
    z, y = features()
    y = torch.where(y == 5, 4, y)
    y[:2], y[2:5] = 5, 6  # two rows of class 5 and three of class 6
    (request,) = drive(how.personalise(client), Collected(z, y))
    assert isinstance(request, Collect)
    beta = client.metrics["beta"]
    reference = common(client)
    loose, strict = (estimate(z, y, reference, 1.0, 1e-4, least) for least in (1, 3))
    assert not torch.equal(strict.mean[5], loose.mean[5])
    # Section 1.3 of the protocol: at evaluation a class needs more than two rows for a mean of its own.
    assert torch.equal(strict.mean[5], reference.mean[5])
    assert torch.equal(strict.mean[6], loose.mean[6])
    weight, bias = classifier(strict.mix(reference, beta, beta), prior(DATA.class_counts[1]))
    torch.testing.assert_close(client.state["head.weight"], weight.float())
    torch.testing.assert_close(client.state["head.bias"], bias.float())
    unchanged = [n for n in client.state if not n.startswith("head.")]
    assert all(client.state[n] is client.received[n] for n in unchanged)


def test_bytes_are_those_of_the_formula(tmp_path: Path) -> None:
    it = train(PFedFDA(), DATA, tmp_path, TWO).trainer
    body = sum(t.numel() for n, t in it.server.initial.items() if n.startswith(("backbone.", "projection.")))
    gaussian = 10 * D + D * (D + 1) // 2  # Table 8: C d + d (d + 1) / 2
    assert sent(it) == [(DATA.clients * 4 * (body + gaussian),) * 2] * 2


def test_means_start_uniform_and_the_covariance_as_identity(tmp_path: Path) -> None:
    start = trainer(PFedFDA(betas=2), DATA, tmp_path).server.initial
    mean = start["gaussian.mean"]
    assert mean.shape == (10, D)
    assert (mean >= 0).all()
    assert (mean < 1).all()
    assert float(mean.mean()) == pytest.approx(0.5, abs=5 * (1 / 12 / 640) ** 0.5)
    assert float(mean.std()) == pytest.approx(12**-0.5, rel=0.1)
    assert torch.equal(unpacked(start["gaussian.covariance"]), torch.eye(D))
    assert start["gaussian.beta"].tolist() == [0.5, 0.5]


# -- variants and parts of the work ----------------------------------------------------------------------


def with_beta(monkeypatch: pytest.MonkeyPatch, beta: float) -> None:
    """Every search finds this beta."""
    monkeypatch.setattr(pfedfda, "search_beta", lambda *a: torch.full((a[5],), beta, dtype=torch.float64))


def test_one_beta_of_1_is_local_statistics_only_and_two_alike_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = train(method("pfedfda", betas=0), DATA, tmp_path / "none", TWO)
    with_beta(monkeypatch, 1.0)
    one, two = (train(method("pfedfda", betas=k), DATA, tmp_path / str(k), TWO) for k in (1, 2))
    close(one.shared, local.shared, 1e-4)
    assert np.mean(np.array(one.predictions["own"]) == np.array(local.predictions["own"])) > 0.99
    assert same(one.shared, two.shared)
    assert one.predictions["own"].equals(two.predictions["own"])


def test_a_beta_of_0_leaves_the_gaussian_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """... so that all train FedAvg of the body against heads of the first Gaussian, and answer with those."""
    with_beta(monkeypatch, 0.0)
    run = train("pfedfda", DATA, tmp_path, TWO)
    start = run.trainer.server.initial
    for name in ("gaussian.mean", "gaussian.covariance"):
        np.testing.assert_allclose(run.shared[name], start[name], rtol=1e-6, atol=1e-7)
    client = run.trainer.client(2, run.trainer.server.view(2), 2)
    run.trainer.executor.run([client], run.trainer.method.personalise)
    weight, bias = classifier(gaussian_of(start), prior(DATA.class_counts[2]))
    torch.testing.assert_close(client.state["head.weight"], weight.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(client.state["head.bias"], bias.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("betas", [0, 1])
def test_the_parts_of_the_work_are_timed(betas: int, tmp_path: Path) -> None:
    run = train(method("pfedfda", betas=betas), DATA, tmp_path, TWO)
    for line in run.trainer.checkpoint.rounds:
        parts = [line[f"part_{part}_seconds"] for part in ("network", "estimation", "interpolation")]
        assert min(parts[: 2 + betas]) > 0
        assert sum(parts) <= line["client_seconds"]


# -- clients that did not train --------------------------------------------------------------------------


def test_the_answers_are_those_of_the_posterior_also_of_an_unseen_client(tmp_path: Path) -> None:
    """pfedfda/protocol.md#evaluation-and-new-clients: it adapts the last Gaussian on the averaged body without a step;
    here from densities, image by image."""
    partition = dataclasses.replace(setting().partition, clients=5, unseen=1)
    data = federation((90, 60, 75, 50, 70))
    run = train("pfedfda", data, tmp_path, setting(rounds=2, window=1, partition=partition))
    it, new, last = run.trainer, 4, run.predictions.to_pandas()
    newcomer = it.answering(it.server, new, UNSEEN, 2)
    it.executor.run([newcomer], it.method.personalise)
    assert newcomer.work.processed == 0
    assert all(torch.equal(newcomer.state[n], t) for n, t in it.server.shared.items())
    for i in (2, new):
        expected, beta = posterior_answers(run, data, i)
        # The head's shrinkage of 1e-4 and float32 may turn a close call.
        assert (expected == last[last["client"] == i]["own"]).mean() > 0.95
    assert newcomer.metrics == {"beta": beta}


# -- clients that are hard to adapt to -------------------------------------------------------------------


def clients_of(*labels: list[int], blank: bool = False) -> Federation:
    """Clients with these training labels, real digits (or all the same grey image), and four test images each."""
    images, digits_of = digits()
    x, y, client, is_test = [], [], [], []
    for i, own in enumerate(labels):
        wanted = [*own, *own[:1] * 4]
        x += [images[np.flatnonzero(digits_of == k)[10 * i + j]] for j, k in enumerate(wanted)]
        y += wanted
        client += [i] * len(wanted)
        is_test += [False] * len(own) + [True] * 4
    pixels = np.full_like(np.stack(x), 128) if blank else np.stack(x)
    return Federation.of(pixels, np.array(y), np.array(client), np.arange(len(y)), np.array(is_test), 10)


#: Beside an ordinary client: of one class; of one image; of two images of two classes; of two images of one class.
HARD = clients_of([*range(10)] * 4, [3] * 12, [5], [1, 7], [8, 8])
#: No feature differs from image to image.
BLANK = clients_of([0, 1, 2] * 5, [3] * 12, [4, 4, 5], blank=True)
WAYS = [(0, "last_epoch", 1.0), (0, "all_epochs", 1e-4), (1, "all_epochs", 1e-30), (2, "extra_pass", 1e-4)]


@pytest.mark.parametrize("data", [HARD, BLANK], ids=["hard", "blank"])
@pytest.mark.parametrize(("betas", "store", "ridge"), WAYS)
def test_hard_clients_are_trained_and_answered_for(
    data: Federation, betas: int, store: str, ridge: float, tmp_path: Path
) -> None:
    how = method("pfedfda", betas=betas, cov_ridge=ridge, feature_store=store)
    run = train(how, data, tmp_path, setting(rounds=2, window=1, batch_size=8, tail="drop", lr=0.01))
    shared = run.shared
    assert all(np.isfinite(value).all() for value in run.tensors.values())
    covariance = unpacked(run.trainer.server.shared["gaussian.covariance"]).double()
    assert torch.linalg.eigvalsh(covariance).min() > -1e-6 * covariance.max()
    for i in range(data.clients):
        note = run.trainer.checkpoint.notes[str(i)]
        assert all(0 <= beta <= 1 for beta in note.values())
        if betas == 0:
            assert set(note.values()) == {1.0}
    # Nobody has classes 6 to 9 of the blank images: exactly the means of the start, averaged.
    if data is BLANK:
        start = run.trainer.server.initial["gaussian.mean"]
        np.testing.assert_allclose(shared["gaussian.mean"][6:], start[6:], rtol=1e-6)
    assert len(run.predictions) == 4 * data.clients


def test_heads_too_steep_to_train_against_stop_the_run(tmp_path: Path) -> None:
    """One image a client and next to no ridge: local statistics alone make a head that no step survives."""
    with pytest.raises(FedbenchError, match=r"diverged: client \d in round 2 .* a larger --cov-ridge may help"):
        train(method("pfedfda", betas=0, cov_ridge=1e-30), HARD, tmp_path, setting(batch_size=8, tail="drop", lr=0.01))


def test_where_there_is_nothing_to_search_on_the_common_gaussian_answers(tmp_path: Path) -> None:
    run = train("pfedfda", HARD, tmp_path, setting(batch_size=8, tail="drop", lr=0.01))
    it = run.trainer
    assert it.checkpoint.notes["2"]["beta"] == it.checkpoint.notes["3"]["beta"] == 0
    client = it.client(3, it.server.view(3), 3)
    it.executor.run([client], it.method.personalise)
    weight, bias = classifier(common(client), prior(HARD.class_counts[3]))
    assert torch.equal(client.state["head.weight"], weight.float())
    assert torch.equal(client.state["head.bias"], bias.float())


@pytest.mark.parametrize("betas", [0, 1])
def test_features_that_are_not_finite_stop_the_run(betas: int, tmp_path: Path) -> None:
    # One step: its loss is finite, and so are the weights behind it, but no feature is.
    how = method("pfedfda", betas=betas)
    with pytest.raises(FedbenchError, match=r"training diverged: client 0 in round 1 has features not finite"):
        train(how, DATA, tmp_path, setting(rounds=1, window=1, steps=1, lr=1e25, momentum=0.0, weight_decay=0.0))
    with pytest.raises(FedbenchError, match=r"training diverged: client 0 in round 1 has a loss or weights not finite"):
        train(how, DATA, tmp_path / "again", setting(rounds=1, window=1, lr=1e25))
