"""A grid of runs: which options are whose, what is made of them, and what is best by held back images; a sweep as an
iterator: which runs go together, and what becomes of each, whoever executes them. Engines: tasks at once, worker
processes, orders on their way to another process, and what the driver of a Ray cluster does (without one)."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench import models, protocol
from fedbench.core.trainer import Interrupted, Progress
from fedbench.engine.engines import jobs
from fedbench.engine.engines.engine import Here
from fedbench.engine.engines.order import Order, Result, executed, sendable
from fedbench.engine.grid import SweepGrid, best, missing, seeds, text, values
from fedbench.engine.job import Job
from fedbench.engine.sweep import End, Wanted, at_once, groups, sweep
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.methods import declarations
from fedbench.models.registry import networks
from fedbench.partitions import schemes
from fedbench.plugins.load import forget
from fedbench.results.frame import Frame
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from tests.support.cli_user import own_method
from tests.support.frames import or_line, refused
from tests.support.lab import setting
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write

OPTIONS = {"dir": ["0.1", "0.3"], "lr": ["0.05", "0.1"], "mu": ["0.1", "1"], "rounds": ["3"], "validation": ["0.1"]}
RULES = protocol.load("feddrm")


def grid(methods: Sequence[str] = ("fedavg", "ditto"), **changes: list[str]) -> SweepGrid:
    options = {k: v for k, v in OPTIONS.items() if k != "mu" or "ditto" in methods}
    return SweepGrid.of("digits", methods, {**options, **changes}, [0, 1])


def test_every_method_under_every_value_of_what_it_has(store: Store) -> None:
    points = grid().points(RULES, "smoke", store, [])
    told = [(p.method, p.partition["dir"], p.setting["lr"], p.params.get("mu")) for p in points]
    assert told == [
        (m, d, lr, mu)
        for d in ("0.1", "0.3")
        for lr in (0.05, 0.1)
        for m, mu in (("fedavg", None), ("ditto", "0.1"), ("ditto", "1"))
    ]
    for point in points:
        specs = [run.spec for run in point.runs]
        assert [s.setting.seed for s in specs] == [0, 1]
        for spec in specs:
            assert spec.setting.partition.options["alpha"] == float(point.partition["dir"])
            assert spec.setting.partition.validation == 0.1
            assert (spec.setting.lr, spec.setting.rounds) == (point.setting["lr"], 3)
            assert "mu" not in point.params or spec.params["mu"] == float(point.params["mu"])
    assert len({run.spec.id for point in points for run in point.runs}) == 24
    # An option of one method alone has precedence, and a method that is named twice is there once.
    own = SweepGrid.of("digits", ["fedprox", "ditto", "ditto"], {"ditto.mu": ["0.1", "1"], "mu": ["2"]}, [0])
    assert [(p.method, dict(p.params)) for p in own.points(RULES, "smoke", store, [])] == [
        ("fedprox", {"mu": "2"}),
        ("ditto", {"mu": "0.1"}),
        ("ditto", {"mu": "1"}),
    ]
    assert own.varied == ["mu"]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        *(
            (lambda options=options: grid(**options).points(RULES, "smoke", Store(Path("unused")), []), words)
            for options, words in [
                ({"lrr": ["1"]}, "unknown option of sweep --method fedavg, ditto '--lrr'; did you mean '--lr'"),
                ({"seed": ["1"]}, "--seeds, not --seed"),
                ({"fedavg.mu": ["1"]}, "unknown option of sweep"),
                ({"lr": ["fast"]}, "--lr of sweep takes a number, not 'fast'"),
                ({"rounds": ["2.5"]}, "--rounds of sweep takes a whole number"),
                ({"mu": ["-1"]}, "mu"),
                ({"dir": ["0"]}, "dir"),
            ]
        ),
        *(
            (lambda wrong=wrong: seeds(wrong), "--seeds takes seeds such as")
            for wrong in ("", "2-0", "a", "1-", "-1", "1,,2")
        ),
        (lambda: values("lr", "0.1,,1"), "empty value"),
    ],
)
def test_what_cannot_be_run_is_one_line_before_anything_is(attempt: Callable[[], object], words: str) -> None:
    refused(re.escape(words), attempt)


def test_values_and_seeds() -> None:
    assert values("lr", "0.1, 0.01,0.1") == ["0.1", "0.01"]
    assert values("model", "a:x=1,y=2") == ["a:x=1,y=2"]
    assert seeds("0-2,7, 1") == [0, 1, 2, 7]


def test_the_best_values_are_those_of_the_highest_validation_accuracy(store: Store) -> None:
    """Mean over the seeds, after the last round; for each method in each partition."""
    points = grid(["fedavg"]).points(RULES, "smoke", store, [])
    right = {("0.1", 0.05): [0.5, 0.9], ("0.1", 0.1): [0.6, 0.7], ("0.3", 0.05): [0.1, 0.2], ("0.3", 0.1): [0.3, 0.4]}
    assert best(points, store) == [], "nothing was held back"
    rows = [{"client": c, "label": 0, "own": 0, "round": 3, "view": "plain"} for c in range(8)]
    for point in points:
        for run, share in zip(point.runs, right[point.partition["dir"], point.setting["lr"]], strict=True):
            write(
                store,
                run.spec,
                predictions=predictions(rows, classes=10),
                clients=clients_table([5] * 8, [1] * 8),
                rounds=rounds_table(3, validation_accuracy=[None, 1.0, share]),
            )
    scores = best(points, store)
    assert [(s.point.partition["dir"], s.point.setting["lr"], s.seeds) for s in scores] == [
        ("0.1", 0.05, 2),
        ("0.3", 0.1, 2),
    ]
    assert [s.mean for s in scores] == pytest.approx([0.7, 0.35])
    assert scores[0].std == pytest.approx(0.4 / 2**0.5)
    (store.path("run", points[0].runs[1].spec.id) / "artifact.json").write_text("no manifest")
    assert missing(points, store) == [points[0].runs[1]]


@pytest.mark.parametrize("draws", [(), (1, 2)])
def test_a_saved_grid_is_a_table_of_the_same_runs(store: Store, tmp_path: Path, draws: Sequence[int]) -> None:
    from fedbench.planner import table as tables
    from fedbench.planner.cells import find

    own = replace(grid(), partition_seeds=draws)
    points = own.points(RULES, "smoke", store, [])
    assert not draws or {r.spec.setting.partition.seed - r.spec.setting.seed for p in points for r in p.runs} == {1}
    path = tmp_path / "sweep.toml"
    path.write_text(text(own, points, RULES, tmp_path))
    assert tomllib.loads(path.read_text())["seeds"] == [0, 1]
    cells = find(tables.load(str(path)), "smoke", Frame(store), [])
    assert {spec.id for cell in cells.all for spec in cell.specs} == {r.spec.id for p in points for r in p.runs}
    assert [column.label for column in cells.table.columns] == ["dir 0.1", "dir 0.3"]
    assert "Ditto, lr 0.05, mu 0.1" in [row.label for row in cells.table.rows]


# -- sweeps


def wanted(seed: int, method: str = "fedavg", **changes: Any) -> Wanted:
    s = setting(seed=seed, **changes)
    return Wanted(declarations.of(method).run(replace(s, partition=replace(s.partition, seed=seed)), {}), method)


RUNS = [wanted(1), wanted(1, "local"), wanted(2), wanted(3)]


def made(job: Job, by: str = "") -> Artifact:
    return Artifact(Path(), {"id": job.spec.id, "kind": "run", "provenance": {"process": by or process()}}, job.spec)


@dataclass
class Executor:
    """Notes what it is asked for."""

    stacks: bool = True
    held: dict[int, int] = field(default_factory=dict)  #: seed -> so many more times another process is at its run
    broken: Sequence[int] = ()  #: seeds that fail
    calls: list[list[str]] = field(default_factory=list)  #: the runs of each

    def __call__(self, jobs: Sequence[Job], title: str) -> list[Artifact]:
        self.calls.append([f"{job.spec.method} {job.spec.setting.seed}" for job in jobs])
        for job in jobs:
            if job.spec.setting.seed in self.broken:
                raise FedbenchError(f"no luck with {job.spec.setting.seed}")
        if len(jobs) > 1:
            free = [job for job in jobs if not self.held.get(job.spec.setting.seed)]
            return [made(job) for job in free] if self.stacks and len(free) > 1 else []
        seed = jobs[0].spec.setting.seed
        if self.held.get(seed, 0):
            self.held[seed] -= 1
            raise HeldError(f"run {seed}", "process 7 on elsewhere")
        return [made(jobs[0], "elsewhere-7" if seed in self.held else "")]


def test_seeds_of_one_run_are_a_group_where_clients_may_be_stacked() -> None:
    assert groups(RUNS, "auto") == groups(RUNS, "graphed") == [[0, 2, 3], [1]]
    assert groups(RUNS, "cores") == [[0], [1], [2], [3]]
    timed = [wanted(seed, executor="sequential") for seed in (1, 2, 3)]
    assert groups(timed, "auto") == [[0], [1], [2]], "the setting's own executor goes first"


THREE = ["fedavg 1", "fedavg 2", "fedavg 3"]
ALONE = [[one] for one in (*THREE, "local 1")]


@pytest.mark.parametrize(
    ("executor", "ends", "calls"),
    [
        (Executor(), "1 MADE, 3 MADE, 4 MADE, 2 MADE", [THREE, ALONE[3]]),
        (Executor(stacks=False), "1 MADE, 3 MADE, 4 MADE, 2 MADE", [THREE, *ALONE]),
        (Executor(broken=[2]), "1 APART, 1 MADE, 3 FAILED, 4 MADE, 2 MADE", [THREE, *ALONE]),
        (Executor(held={2: 1}), "1 MADE, 4 MADE, 2 MADE, 3 MADE_BY_OTHERS", [THREE, ALONE[1], ALONE[3], ALONE[1]]),
        (Executor(held={2: 2}), "1 MADE, 4 MADE, 2 MADE, 3 HELD", [THREE, ALONE[1], ALONE[3], ALONE[1]]),
    ],
    ids=["made together", "nothing stacks", "one that fails", "held until the end", "held for good"],
)
def test_what_becomes_of_the_runs(store: Store, executor: Executor, ends: str, calls: list[list[str]]) -> None:
    """What was made together is not asked for again; one that fails comes apart; what is held waits until the end."""
    told = [f"{one.title.split()[0][1:-3]} {one.end.name}" for one in sweep(RUNS, Here(store, []), executor)]
    assert ", ".join(told) == ends
    assert executor.calls == calls


def test_a_run_that_cannot_be_is_a_failure_without_a_job(store: Store) -> None:
    failure, other = sweep([wanted(1, "fedem", votes=True), RUNS[0]], Here(store, []), Executor())
    assert other.end is End.MADE
    assert (failure.title.split()[0], failure.end, failure.job) == ("(1/2)", End.FAILED, None)
    assert "its clients cannot vote" in str(failure.error)


# -- engines


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
    jobs.Jobs(Store(tmp_path), [], 3, 2, devices=devices).get_ready(5)
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
    for driver, worker in [Pipe()]:  # stopped before it has begun
        [*map(driver.send, (order, jobs.STOP, None)), (at := jobs.OrderServer(worker, store)).listen(), at.serve()]
        assert isinstance(driver.recv().error, Interrupted)
    odd = type("Odd", (Exception,), {"__reduce__": lambda self: 1 / 0})  # which cannot be sent
    assert str(sendable(odd("why"))) == "Odd: why"
    same = FedbenchError("what", "hint")
    assert sendable(same) is same
    held = pickle.loads(pickle.dumps(HeldError("run 1", "process 7 on x")))
    assert str(held) == "run 1 is being trained by process 7 on x; wait for it, or stop it first"
    assert held.who == "process 7 on x"


OWN = """
from fedbench.models.cnn import DigitsCNN
from fedbench.partitions.schemes.dirichlet import Dirichlet
class Net(DigitsCNN):
    pass
class Deal(Dirichlet):
    pass
"""


@pytest.mark.parametrize("there", ["as here", "gone", "another code"])
def test_users_classes_go_with_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    reference, file = own_method(tmp_path), tmp_path / "mine.py"
    file.write_text(file.read_text() + OWN)
    partition = schemes.spec(run_spec(2, 2).setting.partition.dataset, f"{file}:Deal", 4, 1, 0.7, alpha=0.5)
    setting = replace(run_spec(2, 2).setting, partition=partition, model=models.named(f"{file}:Net"))
    before = Job.of(setting, reference, {"half": 0.25})
    sent = pickle.dumps(Order.of([before], [], "cpu", "cores"))
    if there == "gone":
        file.unlink()
    elif there == "another code":
        file.write_text(file.read_text().replace("self.half *", "2 *"))
    # As in another process, which has been given no class.
    forget(type(before.method))
    monkeypatch.setattr("fedbench.plugins.source._given", {})
    for kind in (networks, schemes._own):
        monkeypatch.setattr(kind, "_known", {})
    (after,) = pickle.loads(sent).opened()
    assert type(after.method) is not type(before.method)
    assert after.spec == before.spec
    assert (models.registry.class_of(setting.model).__name__, schemes.load(partition.scheme).__name__) == (
        "Net",
        "Deal",
    )
    if there == "gone":
        assert "lr=self.half * client.lr" in inspect.getsource(type(after.method))


# -- a Ray cluster

TWO_GPUS = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0})
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


@pytest.mark.parametrize("what", ["Python", "torch", "fedbench", "code of fedbench"])
def test_a_node_of_another_version_trains_nothing(cluster: Any, what: str) -> None:
    order, ours = Order.of([job()], [], "cpu", "cores"), cluster.versions()
    delivery = cluster.train(order, {**ours, what: "9"}, 1, None, "key", [])
    refused(rf"node .* has {what} {re.escape(ours[what])}, and here it is 9; install the same", delivery.result.checked)
    assert delivery.files == {}


@pytest.mark.parametrize(
    ("error", "recorded"),
    [(ValueError("at a node"), True), (FedbenchError("at a node"), True), (Interrupted(1), False)],
    ids=["a failure", "in one line", "an interrupt"],
)
def test_the_driver_claims_a_run_and_records_its_failure(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, store: Store, error: Exception, recorded: bool
) -> None:
    run, claims = job(), []
    engine = cluster.Ray(store, [], "local")

    def delivered(jobs: Sequence[Job], observe: Callable[[Progress], None]) -> Any:
        claims.append(store.claimed(run.spec.id))
        observe(Progress(1, 2, 0.5, None))
        return cluster.Delivery(Result("a worker", error=sendable(error)), {})

    monkeypatch.setattr(engine, "_delivered", delivered)
    with pytest.raises(type(error), match=str(error)):
        engine.make([run])
    (claim,) = claims
    assert claim["pid"] == os.getpid()
    assert not list(store.home.glob("work/[!.]*"))
    failed = [json.loads(path.read_text()) for path in store.home.glob("failed/*")]
    assert [(one["reason"].split(": ")[-1], "Traceback" in one["log"]) for one in failed] == [
        ("at a node", True)
    ] * recorded
    with store.claim(run.spec.id), pytest.raises(HeldError):
        engine.make([run])
    assert len(claims) == 1
