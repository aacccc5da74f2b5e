"""A grid of runs: which options are whose, what is made of them, and what is best by held back images; a sweep as an
iterator: which runs go together, and what becomes of each, whoever executes them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import protocol
from fedbench.engine.engines.engine import Here
from fedbench.engine.grid import Grid, Range, best, seeds, text, values
from fedbench.engine.job import Job
from fedbench.engine.sweep import End, Wanted, groups, sweep
from fedbench.errors import FedbenchError
from fedbench.files import process
from fedbench.methods import declarations
from fedbench.results.frame import Frame
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from tests.support.cli_user import refused
from tests.support.lab import setting
from tests.support.make_runs import clients_table, predictions, rounds_table, write

OPTIONS = {"dir": ["0.1", "0.3"], "lr": ["0.05", "0.1"], "mu": ["0.1", "1"], "rounds": ["3"], "validation": ["0.1"]}
RULES = protocol.load("feddrm")


def grid(methods: Sequence[str] = ("fedavg", "ditto"), **changes: list[str]) -> Grid:
    options = {k: v for k, v in OPTIONS.items() if k != "mu" or "ditto" in methods}
    return Grid.of("digits", methods, {**options, **changes}, [0, 1])


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
    own = Grid.of("digits", ["mr_mtl", "ditto"], {"ditto.mu": ["0.1", "1"]}, [0])  # an option of one method alone
    assert [(p.method, dict(p.params)) for p in own.points(RULES, "smoke", store, [])] == [
        ("mr_mtl", {}), ("ditto", {"mu": "0.1"}), ("ditto", {"mu": "1"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        *(
            (lambda options=options: grid(**options).points(RULES, "smoke", Store(Path("unused")), []), words)
            for options, words in [
                ({"lrr": ["1"]}, "unknown option of sweep --method fedavg, ditto '--lrr'; did you mean '--lr'"),
                ({"seed": ["1"]}, "--seeds, not --seed"),
                ({"fedavg.mu": ["1"]}, "unknown option of sweep"),
                ({"model_version": ["5"]}, "unknown option of sweep --method fedavg, ditto '--model-version'"),
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
        *((lambda wrong=wrong: Range.of("lr", wrong), "from low to high") for wrong in ("1:1", "2:1", "0:inf")),
        (lambda: values("lr", "0.1,,1"), "empty value"),
    ],
)
def test_what_cannot_be_run_is_one_line_before_anything_is(attempt: Callable[[], object], words: str) -> None:
    assert words in refused(attempt)


def test_values_and_ranges() -> None:
    assert values("lr", "0.1, 0.01,0.1") == ["0.1", "0.01"]
    assert values("model", "a:x=1,y=2") == ["a:x=1,y=2"]
    assert seeds("0-2,7, 1") == [0, 1, 2, 7]
    assert Range.of("lr", "0.1") is None
    assert Range.of("lr", "0.001:0.1") == Range(0.001, 0.1, whole=False)
    assert Range.of("steps", "1:20") == Range(1, 20, whole=True)
    assert [Range(low, high, whole=False).log for low, high in ((0.001, 0.1), (0.1, 0.5))] == [True, False]


def test_the_best_values_are_those_of_the_highest_validation_accuracy(store: Store) -> None:
    """Mean over the seeds, after the last round; for each method in each partition."""
    points = grid(["fedavg"]).points(RULES, "smoke", store, [])
    right = {("0.1", 0.05): [0.5, 0.9], ("0.1", 0.1): [0.6, 0.7], ("0.3", 0.05): [0.1, 0.2], ("0.3", 0.1): [0.3, 0.4]}
    assert best(points, store) == [], "nothing was held back"
    rows = [{"client": c, "label": 0, "own": 0, "round": 3, "view": "plain"} for c in range(8)]
    for point in points:
        for run, share in zip(point.runs, right[point.partition["dir"], point.setting["lr"]], strict=True):
            write(
                store, run.spec, predictions=predictions(rows, classes=10), clients=clients_table([5] * 8, [1] * 8),
                rounds=rounds_table(3, validation_accuracy=[None, 1.0, share]),
            )  # fmt: skip
    scores = best(points, store)
    assert [(s.point.partition["dir"], s.point.setting["lr"], s.seeds) for s in scores] == [
        ("0.1", 0.05, 2), ("0.3", 0.1, 2)
    ]  # fmt: skip
    assert [s.mean for s in scores] == pytest.approx([0.7, 0.35])
    assert scores[0].std == pytest.approx(0.4 / 2**0.5)


def test_a_saved_grid_is_a_table_of_the_same_runs(store: Store, tmp_path: Path) -> None:
    from fedbench.planner import table as tables
    from fedbench.planner.cells import find

    own = grid()
    points = own.points(RULES, "smoke", store, [])
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
