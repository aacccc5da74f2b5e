"""pFedFDA's box driven by hand: what it trains against, what it estimates, what answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab import federation, method, setting, train, trainer

from fedbench.core.augment import to_input
from fedbench.core.client import Client, Collect, Collected, Request, Train, Trained
from fedbench.errors import FedbenchError
from fedbench.methods.parts.gaussian import Gaussian, classifier, estimate, prior
from fedbench.methods.pfedfda import PFedFDA

DATA = federation()
D = 64


def client_of(how: PFedFDA, folder: Path, t: int = 1) -> Client:
    it = trainer(how, DATA, folder)
    client = it._client(1, it.server.view(1), t)
    client.received["gaussian.covariance"] = torch.eye(D) * 1.7
    client.state = dict(client.received)
    return client


def features(n: int = 120, classes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    z = rng.normal(size=(n, D)).astype(np.float32) + rng.normal(size=(10, D)).astype(np.float32)[y]
    return torch.from_numpy(z), torch.from_numpy(y)


def common(client: Client) -> Gaussian:
    return Gaussian(client.received["gaussian.mean"].double(), client.received["gaussian.covariance"].double())


def drive(box: Any, *answers: Any) -> list[Request]:
    """The requests of a box that gets these answers."""
    requests = [next(box)]
    for answer in answers:
        try:
            requests.append(box.send(answer))
        except StopIteration:
            break
    return requests


def test_the_body_trains_against_the_frozen_head_of_the_common_gaussian(tmp_path: Path) -> None:
    how = PFedFDA()
    client = client_of(how, tmp_path)
    request = next(how.local(client))
    assert isinstance(request, Train)
    assert request.trains == ("trunk.", "neck.")
    weight, bias = classifier(common(client), prior(DATA.class_counts[1]))
    torch.testing.assert_close(request.extras["weight"], weight.float())
    torch.testing.assert_close(request.extras["bias"], bias.float())
    assert not any(t.requires_grad for t in request.extras.values())
    # The prior is the client's own: another client of other classes has another bias and the same weight.
    other = trainer(how, DATA, tmp_path)._client(3, client.state, 1)
    other.received = client.received
    theirs = next(how.local(other))
    assert torch.equal(theirs.extras["weight"], request.extras["weight"])
    assert not torch.equal(theirs.extras["bias"], request.extras["bias"])


def test_the_loss_is_cross_entropy_through_that_head_and_keeps_the_features(tmp_path: Path) -> None:
    it = trainer(PFedFDA(), DATA, tmp_path)
    client = it._client(1, it.server.view(1), 1)
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
    assert loss.kept is not None
    torch.testing.assert_close(loss.kept.double(), z, rtol=1e-5, atol=1e-6)
    loss.total.backward()
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n.startswith("trunk."))
    assert all(p.grad is None for n, p in model.named_parameters() if n.startswith("head."))


def test_a_round_trains_the_body_and_nothing_of_the_head(tmp_path: Path) -> None:
    run = train("pfedfda", DATA, tmp_path)
    server = run.trainer.server
    for name, value in server.initial.items():
        if name.startswith("head."):
            assert all(torch.equal(server.view(i)[name], value) for i in range(4))
        elif name != "gaussian.beta":
            assert not torch.equal(server.shared[name], value), name
    assert {name for state in server.personal.values() for name in state} == {"gaussian.beta"}
    # Everywhere the ridge of 1 lies on the covariance, in the mean of the clients too.
    assert torch.linalg.eigvalsh(server.shared["gaussian.covariance"]).min() > 0.99


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
    torch.testing.assert_close(client.state["gaussian.covariance"], mixed.covariance.float())
    # Classes 6 to 9 are nowhere among the rows: exactly the common means.
    assert torch.equal(client.state["gaussian.mean"][6:], client.received["gaussian.mean"][6:])
    names = {0: {"beta"}, 1: {"beta"}, 2: {"beta_0", "beta_1"}}[betas]
    assert client.notes.keys() == names
    assert list(client.notes.values()) == pytest.approx(beta.tolist(), abs=1e-6)


def test_local_statistics_only_are_numpys(tmp_path: Path) -> None:
    how = PFedFDA(betas=0, cov_ridge=0.5, cov_offset=0.0)
    client = client_of(how, tmp_path)
    z, y = features()
    drive(how.local(client), Trained(1.0, z, y, len(z), len(z)))
    rows, labels = z.double().numpy(), y.numpy()
    means = np.stack([rows[labels == k].mean(0) for k in range(6)])
    np.testing.assert_allclose(client.state["gaussian.mean"][:6], means, rtol=1e-5, atol=1e-6)
    scatter = (rows - means[labels]).T @ (rows - means[labels]) / (len(rows) - 1)
    np.testing.assert_allclose(client.state["gaussian.covariance"], scatter + 0.5 * np.eye(D), rtol=1e-5, atol=1e-6)


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
    torch.testing.assert_close(client.state["gaussian.covariance"], own.covariance.float())
    assert [type(r) for r in requests] == ([Train, Collect] if store == "extra_pass" else [Train])


def test_the_extra_pass_sees_the_trained_body(tmp_path: Path) -> None:
    data, s = federation((80,)), setting(rounds=1, window=1)
    run = train(method("pfedfda", betas=0, feature_store="extra_pass"), data, tmp_path, s)
    model: Any = run.trainer.executor.worker.load(run.trainer.server.view(0))  # type: ignore[attr-defined]
    with torch.no_grad():
        z = model.features(to_input(data.images[data.train[0]]))
    y = data.labels[data.train[0]]
    start = run.trainer.server.initial
    own = estimate(z, y, Gaussian(start["gaussian.mean"].double(), start["gaussian.covariance"].double()), 1.0, 1e-4)
    np.testing.assert_allclose(run.shared["gaussian.mean"], own.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.shared["gaussian.covariance"], own.covariance, rtol=1e-4, atol=1e-5)


def test_who_answers_has_the_head_of_the_adapted_gaussian(tmp_path: Path) -> None:
    how = PFedFDA()
    client = client_of(how, tmp_path, t=3)
    z, y = features()
    y = torch.where(y == 5, 4, y)
    y[:2], y[2:5] = 5, 6  # two rows of class 5 and three of class 6
    (request,) = drive(how.personalise(client), Collected(z, y))
    assert isinstance(request, Collect)
    beta = client.notes["beta"]
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


def test_the_answers_are_those_of_the_posterior(tmp_path: Path) -> None:
    """A client's answers after the last round from Gaussian densities on the averaged body, image by image."""
    from scipy.stats import multivariate_normal

    run = train("pfedfda", DATA, tmp_path)
    it = run.trainer
    model: Any = it.executor.worker.load(it.server.view(2))  # type: ignore[attr-defined]
    with torch.no_grad():
        z, test = (model.features(to_input(DATA.images[rows])) for rows in (DATA.train[2], DATA.test[2]))
    state = it.server.shared
    reference = Gaussian(state["gaussian.mean"].double(), state["gaussian.covariance"].double())
    beta = it.checkpoint.notes["2"]["beta"]
    own = estimate(z, DATA.labels[DATA.train[2]], reference, 1.0, 1e-4, 3).mix(reference, beta, beta)
    pi = prior(DATA.class_counts[2]).numpy()
    joint = np.stack(
        [multivariate_normal(m, own.covariance).logpdf(test) + np.log(p) for m, p in zip(own.mean, pi, strict=True)], 1
    )
    last = run.predictions.to_pandas().query("round == 3 and client == 2")
    # The head's shrinkage of 1e-4 and float32 may turn a close call.
    assert (joint.argmax(1) == last["own"]).mean() > 0.95


def test_bytes_are_those_of_the_formula(tmp_path: Path) -> None:
    it = trainer(PFedFDA(), DATA, tmp_path)
    body = sum(t.numel() for n, t in it.server.initial.items() if n.startswith(("trunk.", "neck.")))
    gaussian = 10 * D + D * (D + 1) // 2  # protocol 1.7: C d + d (d + 1) / 2
    assert it.method.traffic(it.server, 1) == (4 * (body + gaussian), 4 * (body + gaussian))


def test_means_start_uniform_and_the_covariance_as_identity(tmp_path: Path) -> None:
    start = trainer(PFedFDA(betas=2), DATA, tmp_path).server.initial
    mean = start["gaussian.mean"]
    assert mean.shape == (10, D)
    assert (mean >= 0).all()
    assert (mean < 1).all()
    assert float(mean.mean()) == pytest.approx(0.5, abs=5 * (1 / 12 / 640) ** 0.5)
    assert float(mean.std()) == pytest.approx(12**-0.5, rel=0.1)
    assert torch.equal(start["gaussian.covariance"], torch.eye(D))
    assert start["gaussian.beta"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("option", "value"),
    [("betas", 3), ("betas", -1), ("cov_ridge", 0.0), ("cov_ridge", -1.0), ("cov_offset", -1e-9)],
)
def test_out_of_range(option: str, value: float) -> None:
    with pytest.raises(FedbenchError, match=f"--{option.replace('_', '-')} of pfedfda must be"):
        method("pfedfda", **{option: value})
