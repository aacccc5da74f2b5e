"""Engines: tasks at once, worker processes, orders on their way to another process, and what a Ray cluster has room
for (reckoned, without one)."""

from __future__ import annotations

import errno
import importlib
import pickle
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.engine.engines import jobs
from fedbench.engine.engines import order as orders
from fedbench.engine.engines.on_ray import DECISIVE, About, Token
from fedbench.engine.engines.order import Order, executed, sendable
from fedbench.engine.job import Job
from fedbench.engine.sweep import at_once
from fedbench.errors import FedbenchError
from fedbench.store import Store
from fedbench.store.claim import HeldError
from tests.support.cli_user import denied, own_method
from tests.support.frames import or_line, refused
from tests.support.make_runs import run_spec


def test_one_after_another_in_this_thread_or_so_many_at_a_time() -> None:
    threads: list[str] = []

    def task(value: int) -> Iterator[int]:
        threads.append(threading.current_thread().name)
        yield value

    assert list(at_once([partial(task, k) for k in range(3)])) == [0, 1, 2]
    assert set(threads) == {threading.current_thread().name}
    both = threading.Barrier(2, timeout=60)

    def waiting(value: int) -> Iterator[int]:
        both.wait()  # passes only if two are at it
        yield value
        yield -value

    assert sorted(at_once([partial(waiting, k) for k in range(1, 5)], 2)) == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert list(at_once([], 2)) == []


def test_at_a_mistake_and_where_the_caller_leaves_what_is_under_way_is_stopped_and_waited_for() -> None:
    stopped, begun, ended = threading.Event(), [], []

    def task(fails: bool) -> Iterator[int]:
        begun.append(fails)
        yield 1
        if fails:
            raise ZeroDivisionError("no luck")
        assert stopped.wait(60)
        ended.append(1)

    with pytest.raises(ZeroDivisionError, match="no luck"):
        list(at_once([partial(task, k == 1) for k in range(4)], 2, stopped.set))
    assert stopped.is_set()
    assert len(begun) == len(ended) + 1 < 4
    stopped.clear()
    ended.clear()
    results = at_once([partial(task, False) for _ in range(4)], 2, stopped.set)
    assert [next(results), next(results)] == [1, 1]
    results.close()
    assert len(ended) == 2, "the other two never began"


# -- worker processes, and what they are given


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        (None, (0, 1), ["0", "1", "0"]),
        ("", (0, 1), ["0", "1", "0"]),
        ("2,5", (0, 1), ["2", "5", "2"]),
        ("2,5", (1,), ["5", "5", "5"]),
        ("GPU-aa,GPU-bb", (1, 0), ["GPU-bb", "GPU-aa", "GPU-bb"]),
        ("2,5", (), [None, None, None]),
    ],
)
def test_the_gpu_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: tuple[int, ...], expected: list[Any]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started: list[dict[str, str]] = []

    def worker(number: int, home: Path, environment: dict[str, str]) -> Any:
        started.append(environment)
        return SimpleNamespace(number=number)

    monkeypatch.setattr(jobs, "Process", worker)
    jobs.Jobs(Store(tmp_path), [], 3, 2, devices=devices).get_ready([("fedavg", None)] * 5)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in started] == expected
    assert {one["FEDBENCH_CORES"] for one in started} == {"2"}


def job(method: str = "fedavg", **overrides: Any) -> Job:
    return replace(Job.of(run_spec(2, 2).setting, method, overrides), keep=frozenset({"model"}), replaces="")


def test_jobs_are_the_same_at_the_other_end_or_refused_there(store: Store) -> None:
    before = job("fedprox", mu=0.25)
    order = Order.of([before], [Path()], "cpu", "cores")
    (after,) = pickle.loads(pickle.dumps(order)).opened()
    assert (after.spec, after.overrides) == (before.spec, {"mu": 0.25})
    assert (after.keep, after.replaces) == ({"model"}, "")
    result = executed(replace(order, jobs=[{**order.jobs[0], "overrides": {}}]), store, lambda _: None)
    refused(r"would be .* for the worker; its fedbench is not that of the driver", result.checked)
    odd = type("Odd", (Exception,), {"__reduce__": lambda self: 1 / 0})  # which cannot be sent
    assert str(sendable(odd("why"))) == "Odd: why"
    same = FedbenchError("what", "hint")
    assert sendable(same) is same
    held = pickle.loads(pickle.dumps(HeldError("run 1", "process 7 on x")))
    assert str(held) == "run 1 is being trained by process 7 on x; wait for it, or stop it first"
    assert held.who == "process 7 on x"


@pytest.mark.parametrize("there", ["as here", "gone", "another code", "gone, and no place for it"])
def test_a_users_file_where_it_is_gone_or_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    reference, file = own_method(tmp_path), tmp_path / "mine.py"
    before = job(reference, half=0.5)
    (sent,) = orders.of_runs([(reference, before.spec), (reference, before.spec)])
    order = pickle.loads(pickle.dumps(Order.of([before], [], "cpu", "cores")))
    if "gone" in there:
        file.unlink()
    elif there == "another code":
        file.write_text(file.read_text() + "\nOVER = 1\n")
    if "no place" in there:
        monkeypatch.setattr(orders, "_copies", denied)
        refused(r"cannot copy mine.py into .* \(Permission denied\); set TMPDIR", sent.reference)
        return
    (after,) = order.opened()
    assert after.spec == before.spec
    place = Path(sent.reference().rpartition(":")[0])
    assert (place == file) == (there == "as here")
    assert place.read_bytes() == sent.texts["mine.py"]
    if there != "as here":
        assert place.parent.parent.stat().st_mode & 0o077 == 0, "nobody else can put anything there"


# -- a Ray cluster

TWO_GPUS = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0})
OURS = {"python": "3.11", "torch": "2.13.0", "fedbench": "0.1", "code": "abc"}
MORE = "and no node of the cluster has more than"


@pytest.fixture
def cluster() -> Any:
    pytest.importorskip("ray")
    return importlib.import_module("fedbench.engine.engines.on_ray")


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "device", "expected"),
    [
        (TWO_GPUS, 1.0, None, "auto", (1.0, 2)),
        (TWO_GPUS, 1.0, None, "cpu", (0.0, 12)),
        (TWO_GPUS, 3.0, 0.0, "auto", (0.0, 3)),  # two on the first node, one on the second
        (TWO_GPUS, 1.0, 0.25, "cuda", (0.25, 8)),
        (({"CPU": 2.0},), 1.0, None, "auto", (0.0, 2)),
        (TWO_GPUS, 9.0, None, "cpu", f"a run is to have 9 cores, {MORE} 8; see --cpus-per-run"),
        (TWO_GPUS, 1.0, 4.0, "auto", f"a run is to have 4 GPUs, {MORE} 2; see --gpus-per-run"),
        (({"CPU": 2.0},), 1.0, None, "cuda", f"a run is to have 1 GPU, {MORE} 0; see --gpus-per-run"),
    ],
)
def test_room_for_runs(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, nodes: Any, cpus: float, gpus: Any, device: str, expected: Any
) -> None:
    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [*({"Alive": True, "Resources": one} for one in nodes), dead])
    assert or_line(cluster.places, cpus, gpus, device) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (About("b", OURS, True), "True"),
        (About("b", OURS, False), "False"),
        (About("b", OURS, True, "no disk"), "node b: no disk; nothing was trained"),
        *(
            (About("b", {**OURS, of: "9"}, True), f"node b has .*{of}.* 9, and here it is {OURS[of]};")
            for of in DECISIVE
        ),
    ],
)
def test_all_nodes_see_the_store_and_have_the_same_versions(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, other: About, expected: str
) -> None:
    monkeypatch.setattr(cluster, "versions", lambda: OURS)
    monkeypatch.setattr(cluster, "_about", lambda token, files: [About("a", OURS, True), other])
    assert re.match(expected, str(or_line(cluster.checked, Token(Path("token"), "text"), [])))


def test_on_a_full_disk_nothing_is_left_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    refused(r"no space left while marking the store for other nodes in .*; free some", Token.written, Store(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
