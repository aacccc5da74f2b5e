"""A method with its hyper-parameter at zero is the method it generalises, to the bit where no float order differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.methods.base import Method, cross_entropy
from tests.support.lab import Run, federation, method, same, setting, train

DATA = federation()
ALONE = federation((120,))


@dataclass(frozen=True)
class PersonalHead(Method):
    """FedAvg whose clients keep their last layer."""

    name = "personal_head"
    personal = ("head.",)


def answers(run: Run) -> np.ndarray:
    return np.array(run.predictions["votes"].to_pylist())


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("fedavg", DATA, tmp_path_factory.mktemp("fedavg"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("local", DATA, tmp_path_factory.mktemp("local"))


def test_fine_tuning_nothing_is_fedavg(fedavg: Run, tmp_path: Path) -> None:
    run = train(method("fedavgft", finetune_rounds=0, finetune_epochs=0), DATA, tmp_path)
    assert same(run.tensors, fedavg.tensors)
    assert run.predictions.equals(fedavg.predictions)


def test_fine_tuning_in_all_rounds_is_local(local: Run, tmp_path: Path) -> None:
    run = train(method("fedavgft", finetune_rounds=3), DATA, tmp_path)
    assert run.predictions.equals(local.predictions)
    assert all(line["bytes_up"] == line["bytes_down"] == 0 for line in run.trainer.checkpoint.rounds)
    for i in range(DATA.clients):
        ours, theirs = run.trainer.server.view(i), local.trainer.server.view(i)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_fine_tuning_rounds_begin_from_fedavg(tmp_path: Path) -> None:
    """Two rounds of FedAvg, then two alone: the same as FedAvg for two rounds and Local from there."""
    run = train(method("fedavgft", finetune_rounds=2), DATA, tmp_path / "ft", setting(rounds=4, window=4))
    plain = train("fedavg", DATA, tmp_path / "avg", setting(rounds=4, window=4))
    first = run.predictions.to_pandas().query("round <= 2")
    assert first["own"].tolist() == plain.predictions.to_pandas().query("round <= 2")["own"].tolist()
    assert [line["bytes_up"] > 0 for line in run.trainer.checkpoint.rounds] == [True, True, False, False]
    average = train("fedavg", DATA, tmp_path / "two", setting(rounds=2))
    assert same(run.shared, average.shared), "what is shared stands still while nobody communicates"
    assert set(run.trainer.server.copies) == {0, 1, 2, 3}


def test_fine_tuning_epochs_touch_only_the_answers_of_the_last_round(fedavg: Run, tmp_path: Path) -> None:
    run = train(method("fedavgft", finetune_epochs=2), DATA, tmp_path)
    assert same(run.tensors, fedavg.tensors)
    ours, theirs = (r.predictions.to_pandas() for r in (run, fedavg))
    assert ours.query("round < 3")["own"].tolist() == theirs.query("round < 3")["own"].tolist()
    assert ours.query("round == 3")["own"].tolist() != theirs.query("round == 3")["own"].tolist()


def test_fine_tuning_trains_the_averaged_model_for_so_many_epochs(fedavg: Run) -> None:
    how = method("fedavgft", finetune_epochs=2)
    client = fedavg.trainer.client(1, fedavg.trainer.server.view(1), 3)
    update = how.personalise(client)
    assert update is not None
    request = next(update)
    assert isinstance(request, Train)
    assert (request.epochs, request.trains, request.prox) == (2, ("",), 0.0)
    assert client.state.keys() == client.received.keys()
    earlier = how.personalise(fedavg.trainer.client(1, client.state, 2))
    assert earlier is not None
    assert list(earlier) == []


def test_feddrm_without_its_client_loss_is_fedavg_with_a_personal_head(tmp_path: Path) -> None:
    drm = train(method("feddrm", **{"lambda": 1.0}), DATA, tmp_path / "drm")
    plain = train(PersonalHead(), DATA, tmp_path / "plain")
    assert plain.shared
    for name, value in plain.tensors.items():
        np.testing.assert_array_equal(drm.tensors[name], value, err_msg=name)
    np.testing.assert_array_equal(answers(drm), answers(plain))
    less = train("feddrm", DATA, tmp_path / "less")
    assert not np.array_equal(less.shared["backbone.0.weight"], plain.shared["backbone.0.weight"])


def test_alone_in_a_federation_local_is_fedavg(tmp_path: Path) -> None:
    runs = [train(name, ALONE, tmp_path / name) for name in ("local", "fedavg")]
    a, b = (run.trainer.server.view(0) for run in runs)
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert runs[0].predictions.equals(runs[1].predictions)


def test_local_clients_never_meet(local: Run, tmp_path: Path) -> None:
    """Client 1 trains the same whoever else is there."""
    order = np.argsort(DATA.client, kind="stable")
    keep = order[DATA.client[order] <= 1]
    from fedbench.core.federation import Federation

    two = Federation.of(
        DATA.images[keep].numpy(),
        DATA.labels[keep].numpy(),
        DATA.client[keep],
        DATA.sample[keep],
        DATA.is_test[keep],
        10,
    )
    run = train("local", two, tmp_path)
    for i in (0, 1):
        ours, theirs = run.trainer.server.personal[i], local.trainer.server.personal[i]
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert run.shared == {}
    assert all(line["bytes_up"] == 0 for line in run.trainer.checkpoint.rounds)


def test_fedavg_as_its_own_box_is_fedavg(fedavg: Run, tmp_path: Path) -> None:
    class Explicit(Method):
        name = "explicit"

        def local(self, client: Client) -> ClientUpdate:
            yield Train(cross_entropy, trains=("backbone.", "projection.", "head."), epochs=1, lr=client.lr)

    assert same(train(Explicit(), DATA, tmp_path).tensors, fedavg.tensors)
