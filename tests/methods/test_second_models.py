"""APFL, Ditto, pFedMe and FedRoD: methods with something of a client's own beside the shared network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.conformance.small import small
from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.start import initialise
from fedbench.core.state import model_in
from fedbench.core.trainer import Trainer
from fedbench.core.votes import Heads
from fedbench.core.who import UNSEEN
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.specs import Setting
from tests.support.lab import Run, digits, federation, method, same, setting, train

DATA = federation((60, 40, 50), skew=1.0)
NAMES = ("apfl", "ditto", "pfedme", "fedrod")
every = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("fedavg", DATA, tmp_path_factory.mktemp("fedavg"))


def own(run: Run, client: int) -> dict[str, np.ndarray]:
    """A client's own model under the network's names."""
    return {n: t.numpy() for n, t in model_in(run.trainer.server.view(client), "own").items()}


def normed(how: Method | str, where: Path, s: Setting) -> Run:
    """Train a network with a batch norm."""
    how = method(how) if isinstance(how, str) else how
    model, initial = initialise(how, lambda: small(norm=True), DATA, s)
    where.mkdir(parents=True, exist_ok=True)
    executor = executors.make("sequential", model, DATA, s)
    plan = Plan(s, DATA.n_train, DATA.shape[:2])
    it = Trainer(s, how, DATA, model, initial, executor, plan, Checkpoint(where))
    it.run()
    executor.close()
    return Run(it, [])


# -- what is sent, what is kept -------------------------------------------------------------------------------


@every
def test_what_is_sent_is_what_fedavg_sends(name: str, fedavg: Run, tmp_path: Path) -> None:
    run = train(name, DATA, tmp_path)
    assert run.shared.keys() == fedavg.shared.keys()
    for ours, its in zip(run.trainer.checkpoint.rounds, fedavg.trainer.checkpoint.rounds, strict=True):
        assert [ours[b] for b in ("bytes_up", "bytes_down")] == [its[b] for b in ("bytes_up", "bytes_down")]
    prefix = "personal_head." if name == "fedrod" else "own/"
    expected = {prefix + n.removeprefix("head." if name == "fedrod" else "") for n in run.shared}
    for i in range(DATA.clients):
        kept = run.trainer.server.personal[i].keys()
        assert kept == {n for n in expected if n in run.trainer.server.initial}
        assert len(kept) == (2 if name == "fedrod" else len(run.shared))


@every
def test_who_has_not_trained_stands_at_the_common_start(name: str, tmp_path: Path) -> None:
    run = train(name, DATA, tmp_path, setting(rounds=1, seed=3, participation=0.5))
    took_part = set(run.trainer.plan.cohort(1))
    assert took_part
    assert took_part != {0, 1, 2}
    assert run.trainer.server.personal.keys() == took_part
    initial = run.trainer.server.initial
    if name == "fedrod":
        assert not any(initial[f"personal_head.{n}"].any() for n in ("weight", "bias"))
    else:
        assert all(torch.equal(initial[f"own/{n}"], initial[n]) for n in run.shared)


@every
def test_it_takes_no_newcomers(name: str) -> None:
    assert UNSEEN not in method(name).serves


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("apfl", "alpha", -0.1),
        ("apfl", "alpha", 1.1),
        ("ditto", "mu", -1),
        ("ditto", "personal_epochs", -1),
        ("pfedme", "lambda", 0),
        ("pfedme", "inner_steps", 0),
        ("pfedme", "inner_lr", 0),
        ("pfedme", "beta", 0),
        ("fedrod", "score", "before"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(name: str, option: str, value: Any) -> None:
    with pytest.raises(FedbenchError, match=f"--{option.replace('_', '-')}"):
        method(name, **{option: value})


def test_pfedme_refuses_a_step_past_theta() -> None:
    method("pfedme", **{"lambda": 20.0}).check_setting(setting(lr=0.05))
    with pytest.raises(FedbenchError, match=r"--lambda of pfedme must be at most 1/lr, 20 at .* 0.05, not 20.5"):
        method("pfedme", **{"lambda": 20.5}).check_setting(setting(lr=0.05))


# -- reductions -----------------------------------------------------------------------------------------------


@every
def test_shared_models_of_apfl_and_ditto_are_fedavgs(name: str, fedavg: Run, tmp_path: Path) -> None:
    shared = train(name, DATA, tmp_path).shared
    assert same(shared, fedavg.shared) is (name in ("apfl", "ditto"))


def test_apfl_of_own_models_alone_is_local(tmp_path: Path) -> None:
    local, run = train("local", DATA, tmp_path / "local"), train(method("apfl", alpha=1), DATA, tmp_path / "apfl")
    for i in range(DATA.clients):
        assert same(own(run, i), {n: t.numpy() for n, t in local.trainer.server.personal[i].items()})
    assert run.predictions.equals(local.predictions)


def test_apfl_without_own_models_is_fedavg(fedavg: Run, tmp_path: Path) -> None:
    run = train(method("apfl", alpha=0), DATA, tmp_path)
    assert run.predictions.equals(fedavg.predictions)
    assert [p.loss for p in run.reports] == [p.loss for p in fedavg.reports], "the logged loss is the shared model's"


@dataclass(frozen=True)
class SecondPass(Method):
    """Local, with the batches of a client's second request."""

    name = "second_pass"
    personal = ("",)
    epochs: int | None = None

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, epochs=0)
        yield Train(cross_entropy, epochs=self.epochs)


@pytest.mark.parametrize("epochs", [0, 2])
def test_ditto_without_its_pull_trains_alone(epochs: int, tmp_path: Path) -> None:
    alone = train(SecondPass(epochs or None), DATA, tmp_path / "alone")
    run = train(method("ditto", mu=0, personal_epochs=epochs), DATA, tmp_path / "ditto")
    for i in range(DATA.clients):
        assert same(own(run, i), {n: t.numpy() for n, t in alone.trainer.server.personal[i].items()})
    assert run.predictions["own"].equals(alone.predictions["own"])


def test_the_harder_ditto_pulls_the_nearer_own_models_stay(tmp_path: Path) -> None:
    def distances(mu: float) -> np.ndarray:
        run = train(method("ditto", mu=mu), DATA, tmp_path / str(mu), setting(momentum=0.0))
        return np.array([sum(((t - run.shared[n]) ** 2).sum() for n, t in own(run, i).items()) for i in range(3)])

    free, held, tied = distances(0), distances(2), distances(20)
    assert (held < 0.8 * free).all()
    assert (tied < 0.5 * held).all()


def test_pfedme_whose_copies_go_all_the_way_is_fedavg(tmp_path: Path) -> None:
    """With lr lambda = 1 and one inner step, theta steps from where w_i stands and w_i goes where theta is."""
    plain = setting(momentum=0.0)
    average = train("fedavg", DATA, tmp_path / "avg", plain)
    how = method("pfedme", **{"lambda": 1 / plain.lr, "inner_steps": 1, "inner_lr": plain.lr})
    run = train(how, DATA, tmp_path / "me", plain)
    assert same(run.shared, average.shared)


def test_pfedme_mixes_the_mean_into_the_shared_model(tmp_path: Path) -> None:
    once = setting(rounds=1)
    whole, some = (train(method("pfedme", beta=b), DATA, tmp_path / str(b), once) for b in (1.0, 0.25))
    for name, mean in whole.shared.items():
        start = some.trainer.server.initial[name].numpy()
        np.testing.assert_allclose(some.shared[name], 0.75 * start + 0.25 * mean, rtol=1e-5, atol=1e-7)


def balanced(each: int = 6) -> Federation:
    """Two clients with `each` training images of every class, and two test images of every class."""
    images, labels = digits()
    per_class = [np.flatnonzero(labels == k)[: 2 * (each + 2)] for k in range(10)]
    rows = np.concatenate(per_class)
    place = np.tile(np.arange(2 * (each + 2)), 10)
    return Federation.of(images[rows], labels[rows], place % 2, rows, place >= 2 * each, 10)


def test_fedrod_without_label_shift_shares_what_fedavg_shares(tmp_path: Path) -> None:
    data = balanced()
    assert data.class_counts.eq(6).all()
    average, run = (train(name, data, tmp_path / name) for name in ("fedavg", "fedrod"))
    assert same(run.shared, average.shared)


def test_fedrod_leaves_absent_classes_to_others(tmp_path: Path) -> None:
    """The balanced softmax does not push down what the client has never seen; its personal head does."""
    run = train("fedrod", DATA, tmp_path, setting(rounds=1, weight_decay=0.0, cohort=1))
    (i,) = run.trainer.plan.cohort(1)  # what is shared is this client's
    absent = DATA.class_counts[i] == 0
    assert 0 < absent.sum() < 10
    server = run.trainer.server
    move = (server.shared["head.bias"] - server.initial["head.bias"]).abs()
    assert move[absent].max() < 1e-7 < 1e-4 < move[~absent].max()
    assert (server.personal[i]["personal_head.bias"][absent] < -1e-4).all()


def test_fedrods_answering_head_is_the_sum_on_a_body_in_common(tmp_path: Path) -> None:
    how = method("fedrod", score="after_aggregate")
    run = train(how, DATA, tmp_path)
    it = run.trainer
    clients = [it.client(i, it.server.view(i), 3) for i in range(DATA.clients)]
    for client in clients:
        assert how.personalise(client) is None
        for n in ("weight", "bias"):
            parts = client.received[f"head.{n}"] + client.received[f"personal_head.{n}"]
            torch.testing.assert_close(client.state[f"head.{n}"], parts, rtol=0, atol=0)
    assert not torch.equal(clients[0].state["head.weight"], clients[1].state["head.weight"])
    assert Heads.of(clients, it.executor.model)


def test_fedrod_answers_before_or_after_the_servers_step(tmp_path: Path) -> None:
    runs = [train(method("fedrod", score=s), DATA, tmp_path / s) for s in ("after_local", "after_aggregate")]
    assert same(runs[0].tensors, runs[1].tensors)
    assert not runs[0].predictions.equals(runs[1].predictions)


# -- running statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["apfl", "ditto", "pfedme"])
def test_running_statistics_are_those_of_the_model_that_saw_the_images(name: str, tmp_path: Path) -> None:
    s = setting(rounds=2)
    run, average = normed(name, tmp_path / "run", s), normed("fedavg", tmp_path / "avg", s)
    statistics = [n for n in run.shared if "running" in n]
    assert len(statistics) == 2
    for n in statistics:
        mine = [own(run, i)[n] for i in range(DATA.clients)]
        assert not np.array_equal(mine[0], mine[1])
        mean = np.average(mine, axis=0, weights=DATA.n_train)
        if name == "pfedme":
            np.testing.assert_allclose(run.shared[n], mean, rtol=1e-6)
        else:
            np.testing.assert_array_equal(run.shared[n], average.shared[n])
            assert not np.allclose(run.shared[n], mean, rtol=1e-3)
