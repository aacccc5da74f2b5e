"""A grid of runs: which options are whose, what is made of them, and what is best by held back images."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench import protocol
from fedbench.engine.best import best
from fedbench.engine.grid import Grid, seeds, values
from fedbench.engine.saved import text
from fedbench.engine.search import Range
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.make_runs import rounds_table, write

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


def test_an_option_of_one_method_alone() -> None:
    own = Grid.of("digits", ["mr_mtl", "ditto"], {"ditto.mu": ["0.1", "1"]}, [0])
    points = own.points(RULES, "smoke", Store(Path("unused")), [])
    assert [(p.method, dict(p.params)) for p in points] == [
        ("mr_mtl", {}), ("ditto", {"mu": "0.1"}), ("ditto", {"mu": "1"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lrr": ["1"]}, "unknown option of sweep --method fedavg, ditto '--lrr'; did you mean '--lr'"),
        ({"seed": ["1"]}, "--seeds, not --seed"),
        ({"fedavg.mu": ["1"]}, "unknown option of sweep"),
        ({"lr": ["fast"]}, "--lr of sweep takes a number, not 'fast'"),
        ({"rounds": ["2.5"]}, "--rounds of sweep takes a whole number"),
        ({"mu": ["-1"]}, "mu"),
        ({"dir": ["0"]}, "dir"),
    ],
)
def test_what_cannot_be_run_is_one_line_before_anything_is(
    store: Store, options: dict[str, list[str]], words: str
) -> None:
    with pytest.raises(FedbenchError) as error:
        grid(**options).points(RULES, "smoke", store, [])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_values_and_seeds() -> None:
    assert values("lr", "0.1, 0.01,0.1") == ["0.1", "0.01"]
    assert values("model", "a:x=1,y=2") == ["a:x=1,y=2"]
    assert seeds("0-2,7, 1") == [0, 1, 2, 7]
    for wrong in ("", "2-0", "a", "1-", "-1", "1,,2"):
        with pytest.raises(FedbenchError, match="--seeds takes seeds such as"):
            seeds(wrong)
    with pytest.raises(FedbenchError, match="empty value"):
        values("lr", "0.1,,1")


@given(st.lists(st.integers(0, 50), min_size=1))
def test_seeds_are_read_as_they_are_written(numbers: list[int]) -> None:
    assert seeds(",".join(map(str, numbers))) == list(dict.fromkeys(numbers))


def test_ranges() -> None:
    assert Range.of("lr", "0.1") is None
    assert Range.of("lr", "0.001:0.1") == Range(0.001, 0.1, whole=False)
    assert Range(0.001, 0.1, whole=False).log
    assert not Range(0.1, 0.5, whole=False).log
    assert Range.of("steps", "1:20") == Range(1, 20, whole=True)
    for wrong in ("1:1", "2:1", "0:inf"):
        with pytest.raises(FedbenchError, match="from low to high"):
            Range.of("lr", wrong)


def test_the_best_values_are_those_of_the_highest_validation_accuracy(store: Store) -> None:
    """Mean over the seeds, after the last round; for each method in each partition."""
    points = grid(["fedavg"]).points(RULES, "smoke", store, [])
    right = {("0.1", 0.05): [0.5, 0.9], ("0.1", 0.1): [0.6, 0.7], ("0.3", 0.05): [0.1, 0.2], ("0.3", 0.1): [0.3, 0.4]}
    from tests.support.make_runs import clients_table, predictions

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


def test_nothing_is_best_where_nothing_was_held_back(store: Store) -> None:
    points = grid(["fedavg"]).points(RULES, "smoke", store, [])
    assert best(points, store) == []


def test_a_saved_grid_is_a_table_of_the_same_runs(store: Store, tmp_path: Path) -> None:
    from fedbench.reports import table as tables
    from fedbench.reports.status.cells import find

    own = grid()
    points = own.points(RULES, "smoke", store, [])
    path = tmp_path / "sweep.toml"
    path.write_text(text(own, points, RULES, tmp_path))
    assert tomllib.loads(path.read_text())["seeds"] == [0, 1]
    cells = find(tables.load(str(path)), "smoke", store, [])
    assert {spec.id for cell in cells.all for spec in cell.specs} == {r.spec.id for p in points for r in p.runs}
    assert [column.label for column in cells.table.columns] == ["dir 0.1", "dir 0.3"]
    assert "Ditto, lr 0.05, mu 0.1" in [row.label for row in cells.table.rows]
