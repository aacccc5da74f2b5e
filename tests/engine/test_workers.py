"""The executor `workers`: the bits of `cores`, whatever goes between, and whoever is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")

from fedbench.conformance.agreement import RAGGED, compare
from fedbench.conformance.lab import Recorder
from fedbench.conformance.small import small
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.keep import MODEL
from fedbench.core.trainer import Trainer
from fedbench.engine.workers.post import Flat, Post
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from tests.engine.crew import over_workers
from tests.support.cases import ALL, label
from tests.support.lab import Run, federation, finish, method, setting, trainer


def ragged(name: str, chosen: dict[str, Any], where: Path, **changes: Any) -> Trainer:
    """A trainer in the scenario in which all executors are compared."""
    network = partial(small, RAGGED.data.shape[2], RAGGED.norm)
    how: dict[str, Any] = {"executor": "cores", "options": {"cores": 2}, "plan": Recorder, "network": network}
    return trainer(method(name, **chosen), RAGGED.data, where, RAGGED.setting, **how, **changes)


@pytest.mark.parametrize(("name", "chosen"), ALL, ids=label)
def test_a_run_has_the_bits_of_cores(name: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    ours = ragged(name, chosen, tmp_path / "workers")
    crew = over_workers(ours)
    compare(finish(ours), finish(ragged(name, chosen, tmp_path / "cores")), "by workers", exact=True)
    assert {worker for worker, _ in crew.sent} == {0, 1}


@pytest.mark.parametrize("name", ["fedavg", "pfedfda", "apfl"])
def test_workers_that_stack_agree(name: str, tmp_path: Path) -> None:
    ours = ragged(name, {}, tmp_path / "workers")
    over_workers(ours, inside="stacked")
    compare(finish(ours), finish(ragged(name, {}, tmp_path / "cores")), "by workers")


DATA = federation((60, 40, 50, 30, 20))
SHORT = setting(rounds=3, window=3, steps=2)


def short(how: Method | str, where: Path, spread: bool = True, **crew: Any) -> Run:
    """A short run, by workers or by `cores`."""
    it = trainer(method(how) if isinstance(how, str) else how, DATA, where, SHORT, executor="cores")
    if spread:
        over_workers(it, **crew)
    return finish(it)


@pytest.mark.parametrize("name", ["ditto", "feddrm"])
def test_what_a_lost_worker_had_is_done_by_another(name: str, tmp_path: Path) -> None:
    ours = short(name, tmp_path / "a", count=3, lost=[1], after=2)
    assert sorted(ours.trainer.executor.posts) == [0, 2]  # type: ignore[attr-defined]
    compare_bits(ours, short(name, tmp_path / "b", spread=False))


def compare_bits(ours: Run, reference: Run) -> None:
    """The same tensors and answers."""
    a, b = ours.trainer.server.tensors(), reference.trainer.server.tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert ours.predictions.equals(reference.predictions)


def test_without_any_worker_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"all workers were lost \(worker [01] died\)"):
        short("fedavg", tmp_path, lost=[0, 1])


@dataclass(frozen=True)
class Broken(Method):
    """Its update fails for one client."""

    name = "broken"

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy)
        client.metrics["x"] = 1 / (client.index - 2)


def test_an_error_comes_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        short(Broken(), tmp_path)


def test_personal_states_stay_where_they_are(tmp_path: Path) -> None:
    """What every worker has had of a client's state in a round, it is not sent again."""
    sizes = {}
    for name in ("fedavg", "ditto"):
        it = trainer(method(name), DATA, tmp_path / name, SHORT, executor="cores")
        crew = over_workers(it, count=1)
        finish(it)
        sizes[name] = sum(size for _, size in crew.sent)
    model = sum(t.numel() * t.element_size() for t in it.server.initial.values())
    assert sizes["ditto"] - sizes["fedavg"] < model, "five personal models in each of three rounds were not sent"


def test_kept_models_are_those_of_cores(tmp_path: Path) -> None:
    """Tensors that clients share with the server are known to be the same ones."""
    kept = []
    for spread in (True, False):
        it = trainer(method("fedrep"), DATA, tmp_path / str(spread), SHORT, executor="cores")
        it.checkpoint.keep = frozenset({MODEL})
        if spread:
            over_workers(it)
        (file,) = finish(it).trainer.checkpoint.folder.glob("models*")
        kept.append(file.read_bytes())
    assert kept[0] == kept[1]


# -- what goes between ---------------------------------------------------------------------------------


@pytest.fixture
def ends() -> tuple[Post, Post]:
    """The driver's and the worker's."""
    same: dict[str, Any] = {"method": object()}
    return Post(same, lasts=False), Post(same, lasts=True)


SHAPES: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: torch.rand(3, 4),
    "transposed": lambda: torch.rand(3, 4).T,
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "strided": lambda: torch.rand(6, 5)[::2, 1:],
    "whole number": lambda: torch.tensor(3),
    "empty": lambda: torch.zeros(0, 2),
    "truth values": lambda: torch.rand(4) > 0.5,
    "bfloat16": lambda: torch.rand(3).bfloat16(),
    "expanded": lambda: torch.rand(1, 4).expand(3, 4),
    "part of another": lambda: torch.rand(7)[3],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_arrive_as_they_are(shape: str) -> None:
    tensor = SHAPES[shape]()
    there = Flat.of(tensor).tensor(torch.device("cpu"))
    assert there.dtype == tensor.dtype
    assert torch.equal(there, tensor)
    if tensor.is_contiguous() or tensor.clone().stride() == tensor.stride():
        assert there.stride() == tensor.stride()


def test_a_tensor_goes_once_and_comes_back_as_itself(ends: tuple[Post, Post]) -> None:
    driver, worker = ends
    state = {"a": torch.rand(3), "b": torch.rand(2)}
    first = driver.pack([state, state])
    assert len(first.tensors) == 2
    there = worker.open(first)
    assert there[0]["a"] is there[1]["a"]
    back = worker.pack({**there[0], "c": torch.ones(2)})
    assert len(back.tensors) == 1
    now = driver.open(back)
    assert now["a"] is state["a"]
    assert not driver.pack(now).tensors, "what the worker has made it has"


def test_what_was_changed_in_place_goes_again(ends: tuple[Post, Post]) -> None:
    driver, worker = ends
    tensor = torch.rand(3)
    worker.open(driver.pack(tensor))
    tensor += 1
    there = worker.open(driver.pack(tensor))
    assert torch.equal(there, tensor)
    there *= 2
    back = driver.open(worker.pack(there))
    assert torch.equal(back, 2 * tensor)


def test_what_nobody_has_is_forgotten(ends: tuple[Post, Post]) -> None:
    driver, worker = ends
    kept = torch.rand(3)
    worker.open(driver.pack([torch.rand(4), kept]))
    driver.open(worker.pack(torch.rand(5)))
    assert len(worker.tensors) == 3
    worker.open(driver.pack(kept))
    assert len(worker.tensors) == len(worker.numbers) == 1
    assert len(driver.tensors) == len(driver.numbers) == 1


def test_what_cannot_be_sent_is_one_line(ends: tuple[Post, Post]) -> None:
    with pytest.raises(FedbenchError, match="it cannot be sent to workers: cannot pickle"):
        ends[0].pack(i for i in range(3))


def test_large_tensors_are_put_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.engine.workers.spread.LARGE", 1)
    it = trainer(method("fedavg"), DATA, tmp_path, SHORT, executor="cores")
    crew = over_workers(it, count=2)
    finish(it)
    assert len(it.server.shared) * SHORT.rounds <= crew.puts < 2 * len(it.server.shared) * SHORT.rounds
