"""With --debug: a client that fails or diverges leaves its state, batch and seed in a file, from which its step can be
taken again with torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.core import executors
from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Gradient, Loss, Train
from fedbench.core.failed_step import CODE, STEP, UNKNOWN
from fedbench.core.state import State
from fedbench.errors import DivergedError
from fedbench.methods.base import Method, cross_entropy
from fedbench.rng import stream
from tests.support.lab import federation, finish, own, setting, trainer

#: With 63, 42, 52 and 35 images the clients' last batches have 15, 10, 4 and 3.
DATA = federation()
LAST_OF_CLIENT_1 = 10
BOTH = pytest.mark.parametrize("executor", ["sequential", "stacked"])
ALL = pytest.mark.parametrize("executor", executors.EXECUTORS)


def failing(how: Method, where: Path, executor: str, **changes: Any) -> tuple[Exception, dict[str, Any]]:
    """Train with --debug until the error; the error, and what is in the file."""
    it = trainer(how, DATA, where, setting(**changes), executor=executor)
    it.failure_file = where / "failed" / "run.pt"
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the tests look at it
        finish(it)
    (note,) = caught.value.__notes__
    left = torch.load(it.failure_file, weights_only=True)
    assert note == f"What client {left['client']} had in round {left['round']} is in {it.failure_file}"
    assert [path.name for path in it.failure_file.parent.iterdir()] == ["run.pt"]
    assert (left["seed"], left["setting"]["model"], left["setting"]["lr"]) == (1, "digits_cnn", 0.05)
    return caught.value, left


def network(state: State) -> nn.Module:
    net = models.build("digits_cnn", shape=DATA.shape, classes=10, seed=0)
    net.load_state_dict({name: state[name] for name in net.state_dict()})
    return net.train()


def batch_of(left: dict[str, Any]) -> Batch:
    batch = left["batch"]
    return Batch(batch["inputs"], batch["labels"], batch["positions"], batch["extras"])


def of_ten_fails(model: Any, batch: Batch) -> Loss:
    if len(batch.y) == LAST_OF_CLIENT_1:
        raise ValueError("a batch of ten")
    return cross_entropy(model, batch)


def local_of_ten_fails(self: Method, client: Client) -> ClientUpdate:
    yield Train(of_ten_fails)


def test_without_debug_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a batch of ten") as caught:
        finish(trainer(own(local=local_of_ten_fails), DATA, tmp_path))
    assert not hasattr(caught.value, "__notes__")
    assert list(tmp_path.iterdir()) == []


@ALL
def test_a_step_that_raises_can_be_taken_again(executor: str, tmp_path: Path) -> None:
    """Client 1 has three batches, of which the last fails. Its state there is that of two steps of torch's SGD."""
    error, left = failing(own(local=local_of_ten_fails), tmp_path, executor)
    assert isinstance(error, ValueError)
    where = {key: left[key] for key in ("client", "round", "phase", "hook", "step", "failed_in", "error", "training")}
    assert where == {
        "client": 1,
        "round": 1,
        "phase": 1,
        "hook": "local_of_ten_fails",
        "step": 3,
        "failed_in": STEP,
        "error": "ValueError: a batch of ten",
        "training": True,
    }
    assert "of_ten_fails" in left["traceback"]
    with pytest.raises(ValueError, match="a batch of ten"):
        of_ten_fails(network(left["state"]), batch_of(left))

    order = stream(left["seed"], "batches", left["round"], left["client"], left["phase"]).permutation(42)
    assert left["batch"]["positions"].tolist() == order[32:].tolist()
    rows = DATA.train[1][order]
    assert left["batch"]["samples"].tolist() == DATA.sample[rows[32:].numpy()].tolist()
    inputs = (DATA.images[rows].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    assert torch.allclose(left["batch"]["inputs"], inputs[32:], atol=1e-6)
    assert torch.equal(left["batch"]["labels"], DATA.labels[rows[32:]])

    net = network(left["received"])
    sgd = torch.optim.SGD(net.parameters(), left["lr"], momentum=0.9, weight_decay=5e-4)
    for k in (0, 16):
        sgd.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(inputs[k : k + 16]), DATA.labels[rows[k : k + 16]]))
        sgd.step()
    for name, expected in net.state_dict().items():
        assert torch.allclose(left["state"][name], expected, atol=1e-6)
    momentum = {name: sgd.state[p]["momentum_buffer"] for name, p in net.named_parameters()}
    assert left["optimizer"].keys() == momentum.keys()
    assert all(torch.allclose(left["optimizer"][name], expected, atol=1e-5) for name, expected in momentum.items())


def scaled(model: Any, batch: Batch) -> Loss:
    return Loss(cross_entropy(model, batch).total * batch.extras["scale"])


def local_that_diverges(self: Method, client: Client) -> ClientUpdate:
    at_fault = (client.index, client.round) == (2, 2)
    yield Train(scaled, extras={"scale": torch.tensor(1e30 if at_fault else 1.0)})


@ALL
def test_a_step_that_diverges_can_be_taken_again(executor: str, tmp_path: Path) -> None:
    """The first step of client 2 in round 2 makes its weights huge, the second not finite."""
    error, left = failing(own(local=local_that_diverges), tmp_path, executor)
    assert isinstance(error, DivergedError)
    assert "client 2 in round 2 has a loss or weights not finite" in str(error)
    assert left["error"] == f"DivergedError: {error}"
    assert (left["client"], left["round"], left["step"], left["failed_in"]) == (2, 2, 2, STEP)
    weights = [t for name, t in left["state"].items() if name.endswith("weight")]
    assert all(t.isfinite().all() for t in weights)
    assert max(float(t.abs().max()) for t in weights) > 1e25
    assert all(t.abs().max() < 10 for t in left["received"].values()), "the model of round 1 is as usual"
    net, batch = network(left["state"]), batch_of(left)
    assert float(batch.extras["scale"]) == pytest.approx(1e30)
    loss = scaled(net, batch).total
    torch.autograd.backward(loss)
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    assert not all(t.isfinite().all() for t in (loss, *gradients))


def fails_between(self: Method, client: Client) -> ClientUpdate:
    yield Train(cross_entropy, steps=1)
    if client.index == 3:
        raise KeyError("between two requests")


@BOTH
def test_code_that_raises_between_requests_leaves_the_state_that_it_had(executor: str, tmp_path: Path) -> None:
    error, left = failing(own(local=fails_between), tmp_path, executor)
    assert isinstance(error, KeyError)
    assert (left["client"], left["failed_in"], left["step"]) == (3, CODE, 1)
    assert "in fails_between" in left["traceback"]
    net = network(left["received"])
    sgd = torch.optim.SGD(net.parameters(), left["lr"], momentum=0.9, weight_decay=5e-4)
    torch.autograd.backward(cross_entropy(net, batch_of(left)).total)
    sgd.step()
    assert all(torch.allclose(left["state"][name], t, atol=1e-6) for name, t in net.state_dict().items())


def reads_a_value(model: Any, batch: Batch) -> Loss:
    loss = cross_entropy(model, batch)
    return Loss(loss.total, torch.tensor(loss.total.item()))  # vmap refuses .item()


def local_that_reads_a_value(self: Method, client: Client) -> ClientUpdate:
    yield Train(reads_a_value)


def test_what_fails_in_a_stack_alone_leaves_what_a_client_received(tmp_path: Path) -> None:
    error, left = failing(own(local=local_that_reads_a_value), tmp_path, "stacked")
    assert isinstance(error, RuntimeError)
    assert left["failed_in"] == UNKNOWN
    assert left["error"] == f"RuntimeError: {error}"
    assert (left["round"], left["step"]) == (1, 1)
    assert left["state"].keys() == left["received"].keys()
    assert all(torch.equal(t, left["received"][name]) for name, t in left["state"].items())
    assert len(left["batch"]["inputs"]) == 16


def too_many(model: Any, batch: Batch) -> Tensor:
    if len(batch.y) == 42:
        raise ValueError("42 images")
    logits: Tensor = model(batch.x)
    return logits


def gradient_of_42_fails(model: Any, batch: Batch) -> Loss:
    return Loss(nn.functional.cross_entropy(too_many(model, batch), batch.y))


def collects(self: Method, client: Client) -> ClientUpdate:
    yield Collect(too_many, part=(0, 42 if client.index == 1 else 5))


def differentiates(self: Method, client: Client) -> ClientUpdate:
    yield Gradient(gradient_of_42_fails, part=(0, 42 if client.index == 1 else 5))


@BOTH
@pytest.mark.parametrize(
    ("hook", "update"), [("local", collects), ("personalise", collects), ("local", differentiates)]
)
def test_the_other_requests(hook: str, update: Any, executor: str, tmp_path: Path) -> None:
    error, left = failing(own(**{hook: update}), tmp_path, executor, votes=False)
    assert isinstance(error, ValueError)
    assert (left["client"], left["failed_in"], left["training"]) == (1, STEP, update is differentiates)
    assert left["round"] == (2 if hook == "personalise" else 1), "the first that is evaluated"
    assert left["batch"]["samples"].tolist() == DATA.sample[DATA.train[1].numpy()].tolist()
    with pytest.raises(ValueError, match="42 images"):
        too_many(network(left["state"]), batch_of(left))


def test_a_file_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    it = trainer(own(local=local_of_ten_fails), DATA, tmp_path)
    (tmp_path / "file").write_text("")
    it.failure_file = tmp_path / "file" / "run.pt"
    with pytest.raises(ValueError, match="a batch of ten") as caught:
        finish(it)
    (note,) = caught.value.__notes__
    assert note.startswith("What the client had could not be written: ")


def test_only_the_clients_own_tensors_are_in_the_file(tmp_path: Path) -> None:
    """A tensor of a stacked client is a view of its stack, and torch.save keeps whole storages."""
    left = failing(own(local=fails_between), tmp_path, "stacked")[1]
    tensors = [*left["state"].values(), *left["received"].values(), *left["batch"]["extras"].values()]
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)
    assert np.isfinite([float(t.double().sum()) for t in tensors]).all()
