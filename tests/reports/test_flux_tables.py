"""FLUX's tables: all of the paper's numbers, cells that have none, shared runs, means as the paper takes them."""

from __future__ import annotations

import csv
import math
from collections import Counter
from typing import Any

import pytest

from fedbench import methods, protocol
from fedbench.metrics.statistics import spread_of_mean
from fedbench.partitions import schemes
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.reports.table.spec import Table
from fedbench.resources import TABLES
from fedbench.specs import DatasetSpec

OURS = [
    "fedavg",
    "ifca",
    "fedrc",
    "fedem",
    "fesem",
    "feddrift",
    "cfl",
    "mr_mtl",
    "apfl_flux",
    "atp",
    "flux",
]
NAMES = [n for n in tables.names() if n.startswith("flux/")]
NUMBERED = [n for n in NAMES if n.removeprefix("flux/").isdigit()]
#: Without any run: Tables 2 and 3 are marks (test_properties.py), 7 formulas (test_flux_counted.py), 9 levels
#: (test_levels.py).
COUNTED = ("flux/2", "flux/3", "flux/7", "flux/9")
MEASURED = [n for n in NUMBERED if n not in COUNTED]


def printed(table: Table) -> set[tuple[str, str]]:
    return {(row.label, column.key) for row in table.rows for column in table.printed}


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The laboratory with FLUX's methods and MNIST."""
    monkeypatch.setattr(methods, "names", lambda: OURS)
    lab.dataset("mnist")
    return lab


def test_all_tables_are_there() -> None:
    asked = set(range(1, 67))
    assert {n.removeprefix("flux/") for n in NUMBERED} == {str(n) for n in asked}
    assert set(NAMES) - set(NUMBERED) == {
        "flux/figure8", "flux/figure10",
        *(f"flux/levels_{d}" for d in ("mnist", "fashion_mnist", "cifar10", "cifar100")),
    }  # fmt: skip


def test_every_cell_is_reported_or_not_available_as_in_the_paper() -> None:
    """The paper has 5,176 numbers of which 798 are N/A; our Table 6 has the test phase too."""
    reported = unavailable = 0
    for name in MEASURED:
        table = tables.load(name)
        none = table.no_numbers & printed(table)
        assert not none & set(table.reported), name
        added = {(r.label, "Test phase") for r in table.rows} if name == "flux/6" else set()
        assert printed(table) == none | set(table.reported) | added, name
        reported += len(table.reported)
        unavailable += len(none - added)
    assert (reported, unavailable) == (5176 - 798, 798)
    with (TABLES / "flux" / "reported.csv").open(newline="", encoding="utf-8") as f:
        counts = Counter(line["table"] for line in csv.DictReader(f))
    assert [counts.pop(name) for name in ("figure8", "figure10", "2", "3", "9")] == [27, 12, 76, 12, 40]
    assert sum(counts.values()) == reported
    assert (counts["1"], counts["16"], counts["51"], counts["55"], counts["66"]) == (131, 48, 130, 63, 24)


def test_known_values_of_the_paper() -> None:
    names = ("1", "10", "16", "51", "59", "levels_cifar100", "figure8", "figure10")
    at = {n: tables.load(f"flux/{n}").reported for n in names}
    assert at["1"]["FLUX-prior", "Office-Home/Test phase"] == (38.9, 1.1)
    assert at["10"]["FedAvg", "Known association/Level 1"] == (93.07, 0.50)
    assert at["16"]["FedAvg", "Known association/Level 1"] == (95.85, 0.03)
    assert (
        at["levels_cifar100"]["FLUX", "Test phase/Level 8"]
        == tables.load("flux/41").reported["FLUX", "Test phase/Level 8"]
    )
    assert math.log2(at["51"]["pFedMe", "Time/5 clients"][0]) == pytest.approx(5.619, abs=1e-3)
    assert at["51"]["FLUX", "Time/100 clients"][1] is None
    assert at["figure8"]["Round 7", "Test phase/MNIST"] == (95.42, None)
    assert at["figure10"]["T = 0.005", "Test phase/CIFAR-10"] == (42.43, None)


@pytest.mark.parametrize(
    ("name", "shifts"), [("flux/levels_mnist", range(12, 20)), ("flux/levels_fashion_mnist", range(22, 30))]
)
def test_the_papers_summaries_are_what_our_columns_compute(name: str, shifts: range) -> None:
    """Mean and root mean square of the shifts' numbers, on what the paper reports of both."""
    by_shift = [tables.load(f"flux/{n}") for n in shifts]
    summary = tables.load(name)
    off = []
    for (row, column), (mean, std) in summary.reported.items():
        if summary.doubts(row, column):
            continue
        found = [t.reported[row, column] for t in by_shift if (row, column) in t.reported]
        ours = (
            sum(v for v, _ in found) / len(found),
            spread_of_mean("rms", [v for v, _ in found], [s for _, s in found]),
        )
        assert None not in ours
        off.append(max(abs(ours[0] - mean), abs((ours[1] or 0.0) - std)))
    # A few of the paper's summaries are of other runs than its tables by shift.
    off.sort()
    assert off[int(0.75 * len(off))] < 0.011
    assert off[int(0.9 * len(off))] < 0.6


def test_summaries_read_the_runs_of_the_tables_by_shift(here: Any) -> None:
    def jobs(name: str) -> set[tuple[str, str, str]]:
        cells = find(tables.load(name), "paper", here.store, [])
        return {(j.setting.id, j.method, repr(sorted(j.params.items()))) for j in cells.runs(State.MISSING)}

    apart = {n: jobs(f"flux/{n}") for n in range(12, 20)}
    assert all(len(found) == 12 * 4 * 5 for found in apart.values())
    whole = set().union(*apart.values())
    assert jobs("flux/levels_mnist") == jobs("flux/10") | jobs("flux/11")
    # ATP has no known association, so that P(Y|X) needs no run of it but in its own tables.
    missing = whole - jobs("flux/levels_mnist")
    assert jobs("flux/levels_mnist") <= whole
    assert {method for _, method, _ in missing} == {"atp"}
    scaled = set().union(*(jobs(f"flux/{n}") for n in range(52, 56)))
    # Its time is wanted of ATP under P(Y|X) too.
    assert {method for _, method, _ in jobs("flux/51") - scaled} == {"atp"}
    assert len(scaled) == 5 * (4 * (12 * 4 - 1) - 2 * 4)


def test_settings_at_the_papers_budget(here: Any) -> None:
    cells = find(tables.load("flux/13"), "paper", here.store, [])
    (first, *others) = cells.grid[0][0].specs
    s, p = first.setting, first.setting.partition
    assert (p.scheme, p.shift, p.options["level"], p.clients, p.validation, p.seed) == ("equal", "px", 5, 10, 0.2, 42)
    assert (s.rounds, s.epochs, s.batch_size, s.lr, s.momentum, s.weight_decay) == (10, 2, 64, 0.005, 0.9, 0.0)
    assert (s.momentum_restarts, s.init_seed, s.init, s.test_phase) == (True, 42, "torch", True)
    assert (s.model, s.votes) == ("lenet5_flux", False)
    assert [j.setting.partition.seed for j in others] == [j.setting.seed for j in others] == [43, 44, 45, 46]
    small = find(tables.load("flux/13"), "small", here.store, []).grid[0][0].specs
    assert [(j.setting.seed, j.setting.rounds) for j in small] == [(42, 10)]
    text = " ".join(build(tables.load("flux/13"), "small", here.store, []).notes)
    assert "Budget paper: 10 rounds of 2 epochs, lenet5_flux, 5 seeds" in text


def test_the_tables_by_level_alone_rest_the_baselines_momentum(here: Any) -> None:
    """The others have what the paper's named code does; rows and hyper-parameters are the same."""
    rules = protocol.load("flux")
    baselines = {row["label"] for row in rules.rows["all"] if row["method"] not in ("fedavg", "flux")}
    assert len(baselines) == 9
    for name, living in (
        ("flux/13", set()),
        ("flux/levels_mnist", set()),
        ("flux/53", baselines),
        ("flux/57", baselines),
    ):
        cells = find(tables.load(name), "paper", here.store, []).grid
        of = {cell.row.label: cell.specs[0].setting for line in cells for cell in line if cell.specs}
        assert {label for label, s in of.items() if s.momentum_lives} == living, name
        assert {label for label, s in of.items() if not s.momentum_restarts} == living, name
    rested = [{k: v for k, v in row.items() if k != "train"} for row in rules.rows["all"]]
    assert rested == rules.rows["levels"]


@pytest.mark.parametrize(
    ("name", "column", "told"),
    [
        ("flux/50", 0, {"clients": 1200, "copies": 120, "duplicates": None, "level": 3}),
        ("flux/54", 2, {"clients": 50, "copies": 2, "duplicates": None, "level": 5, "shift": "pyx"}),
        ("flux/57", 3, {"shift": "pxy+py", "level": 6}),
        ("flux/6", 4, {"phases": 3, "shift": "py", "level": 2}),
        ("flux/62", 0, {"clients": 20, "data_share": 0.01}),
        ("flux/61", 0, {"subsample": 0.04, "shift": "px", "level": 1}),
    ],
)  # fmt: skip
def test_partitions_of_single_tables(here: Any, name: str, column: int, told: dict[str, Any]) -> None:
    spec = find(tables.load(name), "paper", here.store, []).grid[0][column].specs[0].setting.partition
    facts = schemes.facts(spec)
    assert {key: facts[key] for key in told} == told


def test_rounds_and_cohorts_of_single_tables(here: Any) -> None:
    at = {n: find(tables.load(f"flux/{n}"), "paper", here.store, []).grid[0][0].specs[0].setting for n in (6, 50, 62)}
    assert (at[6].rounds, at[6].drifts, at[50].cohort, at[62].rounds) == (12, (5, 8), 240, 200)
    cohorts = [c.train["cohort"] for c in tables.load("flux/60").measured]
    assert sorted(set(cohorts), reverse=True) == [20, 16, 12, 8, 4]


def test_the_scale_of_the_elbow_follows_the_data_set() -> None:
    rules = protocol.load("flux")
    told = {d: rules.method_params("flux", "small", d) for d in ("mnist", "fashion_mnist", "cifar100")}
    assert told == {"mnist": {}, "fashion_mnist": {"scale": 0.95}, "cifar100": {"scale": 0.98}}
    assert rules.method_params("fedavg", "paper", "fashion_mnist") == {}


def test_other_schemes_leave_flux_shifts_out() -> None:
    rules, data = protocol.load("flux"), DatasetSpec("cifar10", "", "")
    p = rules.partition_spec(data, 10, scheme="dirichlet", alpha=0.3)
    assert (p.shift, p.options.get("level"), p.train_fraction, p.validation) == ("none", None, 0.8, 0.2)
    assert rules.partition_spec(data, 10, shift="none").options.get("level") is None
    assert rules.partition_spec(data, 10, shift="pyx", level=8).options["level"] == 8


def test_a_grid_of_the_levels_from_a_store(here: Any) -> None:
    """ATP's known association is N/A by itself, as its parts are; the mean waits for all of its parts."""
    table = tables.load("flux/levels_mnist")
    cells = find(table, "small", here.store, [])
    values = dict(zip(("px", "py", "pyx", "pxy"), (0.8, 0.9, 0.5, 0.6), strict=True))
    for setting in {s.id: s for group in cells.settings.values() for s in group}.values():
        if setting.partition.options.get("level") == 1:
            v = values[setting.partition.shift]
            both = {"client_accuracy_mean": lambda t, v=v: v, "test_phase_accuracy_mean": lambda t, v=v: v / 2}
            here.run(setting, "flux", rules="flux", metrics=both, views=("plain",))
    grid = build(table, "small", here.store, [], compare=True)
    line = next(line for line in grid.lines if line.label == "FLUX")
    texts = {(h.group, h.label): e.text for h, e in zip(grid.heads, line.entries, strict=True)}
    assert texts["Known association", "Level 1"] == "70.00"
    assert texts["Test phase", "Level 1"] == "38.33", "without P(Y|X)"
    assert texts["Known association", "Level 2"] == ""
    atp = next(line for line in grid.lines if line.label == "ATP")
    assert [e.symbol for e in atp.entries] == ["N/A"] * 8 + ["·"] * 8


def test_atp_prints_its_label_free_accuracy_under_py_given_x(here: Any) -> None:
    table = tables.load("flux/16")
    setting = find(table, "small", here.store, []).settings["Known association/Level 1"][0]
    both = {"client_accuracy_mean": lambda t: 0.25, "test_phase_accuracy_mean": lambda t: 0.5}
    for method in ("atp", "fedavg"):
        here.run(setting, method, rules="flux", metrics=both, views=("plain",))
    grid = build(table, "small", here.store, [])
    found = {line.label: line.entries[0].text for line in grid.lines}
    assert (found["ATP"], found["FedAvg"]) == ("50.00", "25.00")
    assert all(e.symbol == "N/A" for line in grid.lines for e in line.entries[4:])


@pytest.mark.parametrize("name", NAMES)
def test_a_table_prints_from_an_empty_store(here: Any, name: str) -> None:
    grid = build(tables.load(name), "small", here.store, [], compare=True)
    assert len(grid.heads) == len(tables.load(name).printed)
    assert ("done" in grid.counts) == (name in COUNTED)
