"""FLUX's tables: the paper's numbers, cells without any, shared runs, means, pairs, marks, levels and costs."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench import data, declared, methods, partitions, protocol
from fedbench.errors import FedbenchError
from fedbench.metrics.statistics import spread_of_mean
from fedbench.protocol import load
from fedbench.reports import table as tables
from fedbench.reports.layout.grid import Grid
from fedbench.reports.numbers import levels, properties
from fedbench.reports.render import FORMATS, render
from fedbench.reports.status.index import State
from fedbench.reports.table import check, cost
from fedbench.reports.table.spec import Table
from fedbench.resources import TABLES
from fedbench.specs import DatasetSpec, Setting
from fedbench.theory.wasserstein import deviations
from tests.reports.conftest import Lab

OURS = (
    "fedavg", "ifca", "fedrc", "fedem", "fesem", "feddrift", "cfl", "mr_mtl", "apfl_flux", "atp", "flux",
    "descriptor_bounds",
)  # fmt: skip
NAMES = [n for n in tables.names() if n.startswith("flux/")]
NUMBERED = [n for n in NAMES if n.removeprefix("flux/").isdigit()]
COUNTED = ("flux/2", "flux/3", "flux/7", "flux/9")  #: without any run: marks, formulas, levels
MEASURED = [n for n in NUMBERED if n not in COUNTED]


def printed(table: Table) -> set[tuple[str, str]]:
    return {(row.label, column.key) for row in table.rows for column in table.printed}


@pytest.fixture
def here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The laboratory with FLUX's methods and MNIST."""
    monkeypatch.setattr(methods, "names", lambda: list(OURS))
    lab.dataset("mnist")
    return lab


def test_all_tables_are_there_and_every_cell_is_reported_or_not_available_as_in_the_paper() -> None:
    asked = set(range(1, 67))
    assert {n.removeprefix("flux/") for n in NUMBERED} == {str(n) for n in asked}
    assert set(NAMES) - set(NUMBERED) == {
        "flux/figure8", "flux/figure10",
        *(f"flux/levels_{d}" for d in ("mnist", "fashion_mnist", "cifar10", "cifar100")),
    }  # fmt: skip
    # The paper has 5,176 numbers of which 798 are N/A; our Table 6 has the test phase too.
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


def test_summaries_read_the_runs_of_the_tables_by_shift(here: Lab) -> None:
    def jobs(name: str) -> set[tuple[str, str, str]]:
        cells = here.cells(name, "paper")
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


@pytest.mark.parametrize("name", ["flux/13", "flux/levels_mnist", "flux/53", "flux/57"])
def test_the_tables_by_level_alone_rest_the_baselines_momentum(here: Lab, name: str) -> None:
    """The others have what the paper's named code does; rows and hyper-parameters are the same."""
    rules = protocol.load("flux")
    baselines = {row["label"] for row in rules.rows["all"] if row["method"] not in ("fedavg", "flux")}
    living = baselines if name in ("flux/53", "flux/57") else set()
    cells = here.cells(name, "paper").grid
    of = {cell.row.label: cell.specs[0].setting for line in cells for cell in line if cell.specs}
    assert {label for label, s in of.items() if s.momentum_lives} == living
    assert {label for label, s in of.items() if not s.momentum_restarts} == living
    rested = [{k: v for k, v in row.items() if k != "train"} for row in rules.rows["all"]]
    assert (rested, len(baselines)) == (rules.rows["levels"], 9)


def test_other_schemes_leave_flux_shifts_out() -> None:
    rules, data = protocol.load("flux"), DatasetSpec("cifar10", "", "")
    p = rules.partition_spec(data, 10, scheme="dirichlet", alpha=0.3)
    assert (p.shift, p.options.get("level"), p.train_fraction, p.validation) == ("none", None, 0.8, 0.2)
    assert rules.partition_spec(data, 10, shift="none").options.get("level") is None
    assert rules.partition_spec(data, 10, shift="pyx", level=8).options["level"] == 8


def test_a_grid_of_the_levels_and_atps_label_free_accuracy_under_py_given_x(here: Lab) -> None:
    """ATP's known association is N/A by itself, as its parts are; the mean waits for all of its parts."""
    table = tables.load("flux/levels_mnist")
    cells = here.cells(table)
    values = dict(zip(("px", "py", "pyx", "pxy"), (0.8, 0.9, 0.5, 0.6), strict=True))
    for setting in {s.id: s for group in cells.settings.values() for s in group}.values():
        if setting.partition.options.get("level") == 1:
            v = values[setting.partition.shift]
            both = {"client_accuracy_mean": lambda t, v=v: v, "test_phase_accuracy_mean": lambda t, v=v: v / 2}
            here.run(setting, "flux", rules="flux", metrics=both, views=("plain",))
    grid = here.grid(table, compare=True)
    line = next(line for line in grid.lines if line.label == "FLUX")
    texts = {(h.group, h.label): e.text for h, e in zip(grid.heads, line.entries, strict=True)}
    assert texts["Known association", "Level 1"] == "70.00"
    assert texts["Test phase", "Level 1"] == "38.33", "without P(Y|X)"
    assert texts["Known association", "Level 2"] == ""
    atp = next(line for line in grid.lines if line.label == "ATP")
    assert [e.symbol for e in atp.entries] == ["N/A"] * 8 + ["·"] * 8
    table = tables.load("flux/16")
    setting = here.cells(table).settings["Known association/Level 1"][0]
    both = {"client_accuracy_mean": lambda t: 0.25, "test_phase_accuracy_mean": lambda t: 0.5}
    for method in ("atp", "fedavg"):
        here.run(setting, method, rules="flux", metrics=both, views=("plain",))
    grid = here.grid(table)
    found = {line.label: line.entries[0].text for line in grid.lines}
    assert (found["ATP"], found["FedAvg"]) == ("50.00", "25.00")
    assert all(e.symbol == "N/A" for line in grid.lines for e in line.entries[4:])


def costs_of(**changes: Any) -> cost.Case:
    given: dict[str, Any] = {
        "model": "lenet5_flux", "shape": (28, 28, 3), "classes": 10, "clients": 10, "clusters": 5, "samples": 4800,
        "validation": 1200, "rounds": 10, "epochs": 2, "components": 10, "inner_steps": 5, "clustering_round": 4,
    }  # fmt: skip
    return cost.Case(**{**given, **changes})


def test_printed_formulas_in_numbers_and_the_papers_bounds() -> None:
    """p = 62,006, M = 5, K = 10, s = 4,800, F_inf = 651,720, L = 220, A = 10, z = 400, C = 5."""
    p, s, inf = 62_006, 4800, 651_720
    train = 3 * inf
    expected = {
        "fedavg": (4 * p, s * train, 10 * p),
        "ifca": (4 * 5 * p, s * train + 5 * s * inf, 10 * p),
        "fesem": (4 * p, s * train, 5 * 10 * p),
        "fedem": (4 * 5 * p, 5 * s * train + 5 * s * inf, 5 * 10 * p),
        "fedrc": (4 * 5 * p, 5 * s * train + 5 * s * inf, 5 * 10 * p),
        "feddrift": (4 * 5 * p, s * train + 5 * s * inf, 10 * p),
        "cfl": (4 * p, s * train, 100 * p),
        "mr_mtl": (4 * p, 6 * s * train, 10 * p),
        "apfl_flux": (4 * p, 2 * s * train, 10 * p),
        "atp": (4 * (p + 10), 2 * s * train, 10 * (p + 10)),
        "flux": (4 * (p + 220), s * train + 40_000 * 400, 10 * p + 220 * math.log2(220)),
    }
    assert expected.keys() == cost.METHODS.keys()
    for name, told in expected.items():
        assert cost.cost(name, costs_of())[:3] == pytest.approx(told), name
    # A descriptor is at most 3.55e-3 of the model; the extra work is below 5 % of a run's.
    large = costs_of(model="resnet9", shape=(32, 32, 3), classes=100, samples=4000, validation=1000, rounds=15)
    for c in (costs_of(), large):
        flux, fedavg = cost.cost("flux", c), cost.cost("fedavg", c)
        assert 1 < flux.printed_bytes / fedavg.printed_bytes <= 1.00355
        assert 1 < flux.bytes_up / fedavg.bytes_up < 1.001
        assert 1 < flux.bytes_down / fedavg.bytes_down < 1.003
        assert 1 < flux.client / fedavg.client < 1.05
    assert (costs_of().L, large.L) == (220, 2020)
    assert costs_of().network.forward * 1000 == pytest.approx(6.5e8, rel=5e-3), "the paper's forward pass"


COSTS = """
title = "T"
protocol = "flux"
statistic = "count"
rows = [{ label = "A", method = "ifca" }]
[[column]]
label = "C"
metric = "bytes_down"
costs = { model = "lenet5_flux", shape = [28, 28, 3], classes = 10, samples = 4800, validation = 1200, rounds = 10, \
clients = 10, clusters = 5, epochs = 2, components = 10, inner_steps = 5, clustering_round = 4 }
"""
LENGTH, GAUSSIAN = 7, 6


def snapshots(seed: int, n: int = 6) -> np.ndarray:
    """Snapshots of one run."""
    numbers = np.random.default_rng(seed).standard_normal((n, LENGTH + GAUSSIAN))
    return np.concatenate([np.full((n, 1), LENGTH), numbers], axis=1).astype(np.float32)


def xi(row: np.ndarray) -> np.ndarray:
    return deviations(row[:, 1 : 1 + LENGTH], row[:, 1 + LENGTH :])


def keep(here: Lab, setting: Setting, told: np.ndarray | None, method: str = "descriptor_bounds") -> None:
    """The artifact of a run, with a table of snapshots."""
    params = declared.of(method).defaults
    with here.store.writing(declared.of(method).run(setting, {})) as writer:
        writer.table("rounds", pa.table({"round": [1]}))
        if told is not None:
            flat = pa.FixedSizeListArray.from_arrays(pa.array(told.reshape(-1)), told.shape[1])
            writer.table("descriptors", pa.table({"client": np.zeros(len(told), np.int32), "descriptor": flat}))
        writer.provenance = {"overrides": {}, "defaults": params, "train_seconds": 1.0, "device": "cpu"}


def column(grid: Grid, place: int = 0) -> dict[str, Any]:
    return {line.label: line.entries[place] for line in grid.lines}


def test_pairs_of_each_run_together(here: Lab) -> None:
    asked = here.cells("flux/4", "paper")
    (setting,) = asked.settings["MNIST/Level 7"]
    assert (setting.seed, setting.partition.seed, setting.rounds, setting.drifts) == (42, 42, 20, (4, 8, 12, 16))
    part = setting.partition
    assert (part.shift, part.phases, part.clients, dict(part.options)) == ("pyx", 5, 20, {"level": 3, "copies": 3})
    settings = here.cells("flux/4", "paper", seeds=(42, 43)).settings["MNIST/Level 7"]
    told = [snapshots(seed, n) for seed, n in ((0, 6), (1, 4))]
    keep(here, settings[0], told[0])
    keep(here, settings[0], None, "fedavg")  # as other tables train it
    partial = column(here.grid("flux/4", "paper", seeds=(42, 43)), 2)
    assert set(partial) == {"Maximum", "Minimum", "Mean"}
    assert partial["Mean"].value.mean == pytest.approx(xi(told[0]).mean())
    assert partial["Mean"].mark == "‡"
    keep(here, settings[1], told[1])
    grid = here.grid("flux/4", "paper", seeds=(42, 43), compare=True)
    whole, entries = np.concatenate([xi(one) for one in told]), column(grid, 2)
    assert len(whole) == 15 + 6 == entries["Mean"].value.count
    assert entries["Mean"].text == f"{whole.mean():.3f}"
    assert entries["Mean"].spread == f"{whole.std():.3f}"
    assert (entries["Maximum"].text, entries["Minimum"].text) == (f"{whole.max():.3f}", f"{whole.min():.3f}")
    assert entries["Maximum"].spread == entries["Mean"].mark == ""
    assert entries["Maximum"].reported == (1.016, None)
    assert entries["Mean"].reported == (0.458, 0.108)
    assert not grid.problems
    assert any("Over all pairs of a run's" in line and line.endswith("seeds 42, 43.") for line in grid.about)
    assert column(grid)["Mean"].text == ""


def test_runs_that_cannot_be_paired_are_told_of(here: Lab) -> None:
    """And the paper's slips are no target."""
    table = tables.load("flux/4")
    settings = here.cells(table, "paper").settings
    for n, kept in ((3, None), (5, snapshots(1)[:, : 1 + LENGTH]), (7, snapshots(3)[:1])):
        keep(here, settings[f"MNIST/Level {n}"][0], kept)
    grid = here.grid(table, "paper")
    assert [column(grid, k)["Mean"].symbol for k in range(3)] == ["!"] * 3
    told = "\n".join(grid.problems)
    for said in (
        "kept no snapshots of its clients",
        "have no Gaussians",
        "a pair needs two snapshots, and there are 1",
    ):
        assert said in told
    slips = sorted(place for place in table.reported if table.doubts(*place))
    assert slips == [("Maximum", "CIFAR-10/Level 7"), ("Mean", "CIFAR-10/Level 7")]
    assert table.reported[slips[0]] == (3.429, None)


def test_table_7_in_print(here: Lab) -> None:
    table = tables.load("flux/7")
    assert {r.method for r in table.rows} == set(cost.METHODS)
    grid = here.grid(table, compare=True)
    heads = [(h.group.partition(",")[0], h.label) for h in grid.heads]
    at = {line.label: dict(zip(heads, line.entries, strict=True)) for line in grid.lines}
    assert at["FedAvg"]["MNIST", "Sent, printed"].text == at["FedAvg"]["MNIST", "Up"].text == "248.0"
    assert at["FLUX"]["MNIST", "Sent, printed"].text == "248.9"
    assert at["FLUX"]["CIFAR-100", "Sent, printed"].text == "27,108.6"
    assert at["IFCA"]["CIFAR-100", "Down"].ratio == "5.00×"
    assert at["CFL"]["MNIST", "Server, printed"].ratio == "10.00×"
    assert at["FedAvg"]["MNIST", "Client, printed"].text == "9.38"
    assert grid.about == ("Counted from layer shapes: needs no run, and no budget applies.",)
    assert any("has the concept shifts exchanged" in note for note in grid.notes)
    assert [ours.state for ours, _ in grid.verdicts] == ["holds"]


def test_table_9_is_the_papers_and_its_distributions_those_of_partitions_as_they_are_stored(lab: Lab) -> None:
    grid = lab.grid("flux/9", "paper", compare=True)
    lines = [line for line in grid.lines if line.kind == "paper"]
    judged = [entry for line in lines for entry in line.entries if entry.reported]
    assert len(judged) == 8 * 5
    assert all(entry.within and not entry.difference for entry in judged)
    alike = {head.label: entry.value for head, entry in zip(grid.heads, lines[0].entries, strict=True)}
    assert (alike["P(Y|X)"].mean, alike["P(Y|X)"].std) == (1.0, 0.0)
    of_100 = [[e.text for e in line.entries[:5]] for line in grid.lines if line.kind == "added"]
    assert of_100[0] == ["2", "1", "100", "30", "10"]
    assert of_100[7] == ["5", "3", "30", "100", "80"]
    assert grid.about == ("Counted in the distributions that clients draw: needs no run, and no budget applies.",)
    # Of partitions as they are stored.
    rules, table = load("flux"), tables.load("flux/9")
    digits = data.resolve("digits", lab.store)
    for shift in ("px", "py", "pyx", "pxy"):
        column = next(c for c in table.columns if c.metric == "distributions" and c.partition["shift"] == shift)
        specs = [rules.partition_spec(digits, 10, shift=shift, level=5, seed=seed) for seed in rules.seeds("paper")]
        counts = [len(set(partitions.build(spec, lab.store, []).groups)) for spec in specs]
        value = levels.number(table, table.rows[4], column)
        assert (value.mean, value.count) == (sum(counts) / 5, 5), shift


@pytest.mark.parametrize("partition", [{"shift": "none"}, {"scheme": "iid", "shift": "none"}])
def test_what_has_no_levels_is_told(partition: dict[str, str]) -> None:
    table = tables.load("flux/9")
    with pytest.raises(FedbenchError, match="level"):
        levels.number(table, table.rows[0], dataclasses.replace(table.columns[0], partition=partition))


MARKED = ("Communication", "Server", "Client", "Scalability")


def marks(grid: Grid) -> dict[str, dict[str, str]]:
    return {line.label: {h.label: e.text or e.symbol for h, e in zip(grid.heads, line.entries, strict=True)}
            for line in grid.lines if line.asked}  # fmt: skip


def test_tables_2_and_3(lab: Lab) -> None:
    grid = lab.grid("flux/2", compare=True)
    at = marks(grid)
    assert set(at["FLUX"].values()) == {"✓", "–"}
    assert [k for k, mark in at["FLUX"].items() if mark == "–"] == ["PFL", "AFL"]
    assert list(at["FedAvg"].values()) == ["N/A"] * 6 + ["✓"] * 4
    assert [at[m]["No cluster number prior"] for m in ("IFCA", "FeSEM", "FedEM", "FedRC", "FedDrift")] == [*"––––✓"]
    assert ["".join(at[m][c] for c in MARKED) for m in ("IFCA", "CFL")] == ["–✓○–", "✓–✓–"]
    assert [m for m in at if at[m]["Test adaptation"] == "✓"] == ["ATP", "FLUX"]
    # The one mark that differs from those of the paper whose place is known: our pFedMe has no inner problem.
    labels = [head.label for head in grid.heads]
    entries = {(x.label, c): e for x in grid.lines if x.asked for c, e in zip(labels, x.entries, strict=True)}
    assert [place for place, entry in entries.items() if entry.within is False] == [("pFedMe", "Client")]
    assert (entries["pFedMe", "Client"].delta, entries["FLUX", "Client"].delta) == ("*", "=")
    assert [ours.state for ours, _ in grid.verdicts] == ["holds", "holds"]
    printed = {"latex": r"$\surd$", "csv": "Client,low_client,,done,0.5", "json": '"value": 0.5'}
    assert [form for form in FORMATS if printed.get(form, "✓") not in render([grid], form)] == []
    grid = lab.grid("flux/3", compare=True)
    at = marks(grid)
    assert ["".join(at[m].values()) for m in ("IFCA", "CFL", "FedRC", "HACCS")] == ["✓––", "–✓–", "✓––", "––✓"]
    assert all(list(line.values()).count("✓") == 1 for line in at.values())
    assert [line.label for line in grid.lines if line.kind == "added"] == ["FLUX", "FLUX-soft", "HACCS"]


def test_every_method_says_what_tables_can_read_and_what_scales_is_what_grows_as_fedavg() -> None:
    said = {name: properties.of(name) for name in declared.built_in()}
    assert said["fedavg"] == properties.Properties()
    assert said["flux"] == properties.Properties("descriptors", frozenset({"px", "py", "pyx", "pxy"}), adapts=True)
    assert {name for name, one in said.items() if one.clusters_by} == {
        "ifca", "fesem", "fedem", "fedrc", "feddrift", "cfl", "flux", "flux_soft", "haccs",
    }  # fmt: skip
    assert {*properties.DECLARED} == {name for name, costs in check.PROPERTIES.items() if not costs}
    assert {*properties.COSTS, "scales"} == {name for name, costs in check.PROPERTIES.items() if costs}
    # CFL's server compares all pairs of clients, FeSEM's every client with every cluster, FLUX's neither.
    table = tables.load("flux/2")
    column = next(c for c in table.columns if c.metric == "scales")
    assert column.costs is not None
    larger = replace(column.costs, clients=100, clusters=50)
    servers = {
        m: cost.cost(m, larger).printed_server / cost.cost(m, column.costs).printed_server
        for m in ("fedavg", "cfl", "fesem", "flux")
    }
    assert (servers["fedavg"], servers["cfl"], servers["fesem"]) == pytest.approx((10, 100, 100))
    assert servers["flux"] <= 10
    rows = {r.method: r for r in table.rows}
    assert [properties.number(rows[m], column).mean for m in servers] == [1, 0, 0, 1]


def test_a_paragraph_that_says_nothing_to_a_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from fedbench.methods.base import Method\n\n\nclass Mine(Method):\n"
        '    """Mine.\n\n    properties: clusters by hand.\n    """\n\n    name = "mine"\n'
    )
    with pytest.raises(FedbenchError, match=r"method .* says of its properties 'clusters by hand'") as refused:
        properties.of(str(path))
    assert "clusters by losses|parameters|descriptors" in str(refused.value.hint)
