"""Statistic "properties": FLUX's Tables 2 and 3, by what methods say of themselves and by counted costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import declared
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.numbers import properties
from fedbench.reports.render import FORMATS, render
from fedbench.reports.table import check, cost

COSTS = ("Communication", "Server", "Client", "Scalability")


def marks(grid: Grid) -> dict[str, dict[str, str]]:
    return {line.label: {h.label: e.text or e.symbol for h, e in zip(grid.heads, line.entries, strict=True)}
            for line in grid.lines if line.asked}  # fmt: skip


def test_table_2(lab: Any) -> None:
    grid = build(tables.load("flux/2"), "small", lab.store, [], compare=True)
    at = marks(grid)
    assert set(at["FLUX"].values()) == {"✓", "–"}
    assert [k for k, mark in at["FLUX"].items() if mark == "–"] == ["PFL", "AFL"]
    assert list(at["FedAvg"].values()) == ["N/A"] * 6 + ["✓"] * 4
    assert [at[m]["No cluster number prior"] for m in ("IFCA", "FeSEM", "FedEM", "FedRC", "FedDrift")] == [*"––––✓"]
    assert "".join(at["IFCA"][c] for c in COSTS) == "–✓○–"
    assert "".join(at["CFL"][c] for c in COSTS) == "✓–✓–"
    assert [m for m in at if at[m]["Test adaptation"] == "✓"] == ["ATP", "FLUX"]
    # The one mark that differs from those of the paper whose place is known: our pFedMe has no inner problem.
    entries = {line.label: dict(zip((h.label for h in grid.heads), line.entries, strict=True)) for line in grid.lines
               if line.asked}  # fmt: skip
    other = [(m, c) for m, line in entries.items() for c, entry in line.items() if entry.within is False]
    assert other == [("pFedMe", "Client")]
    assert entries["pFedMe"]["Client"].delta == "*"
    assert entries["FLUX"]["Client"].delta == "="
    assert [ours.state for ours, _ in grid.verdicts] == ["holds", "holds"]


def test_table_3(lab: Any) -> None:
    grid = build(tables.load("flux/3"), "small", lab.store, [], compare=True)
    at = marks(grid)
    assert ["".join(at[m].values()) for m in ("IFCA", "CFL", "FedRC", "HACCS")] == ["✓––", "–✓–", "✓––", "––✓"]
    assert all(list(line.values()).count("✓") == 1 for line in at.values())
    assert [line.label for line in grid.lines if line.kind == "added"] == ["FLUX", "FLUX-soft", "HACCS"]


@pytest.mark.parametrize("form", FORMATS)
def test_marks_in_every_format(lab: Any, form: str) -> None:
    text = render([build(tables.load("flux/2"), "small", lab.store, [], compare=True)], form)
    assert {"latex": r"$\surd$", "csv": "Client,low_client,,done,0.5", "json": '"value": 0.5'}.get(form, "✓") in text


def test_every_method_says_what_tables_can_read() -> None:
    said = {name: properties.of(name) for name in declared.built_in()}
    assert said["fedavg"] == properties.Properties()
    assert said["flux"] == properties.Properties("descriptors", frozenset({"px", "py", "pyx", "pxy"}), adapts=True)
    assert {name for name, one in said.items() if one.clusters_by} == {
        "ifca", "fesem", "fedem", "fedrc", "feddrift", "cfl", "flux", "flux_soft", "haccs",
    }  # fmt: skip


def test_a_paragraph_that_says_nothing_to_a_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from fedbench.methods.base import Method\n\n\nclass Mine(Method):\n"
        '    """Mine.\n\n    properties: clusters by hand.\n    """\n\n    name = "mine"\n'
    )
    with pytest.raises(FedbenchError, match=r"method .* says of its properties 'clusters by hand'") as refused:
        properties.of(str(path))
    assert "clusters by losses|parameters|descriptors" in str(refused.value.hint)


def test_metrics_are_those_that_tables_may_name() -> None:
    assert {*properties.DECLARED} == {name for name, costs in check.PROPERTIES.items() if not costs}
    assert {*properties.COSTS, "scales"} == {name for name, costs in check.PROPERTIES.items() if costs}


def test_what_scales_is_what_grows_as_fedavg() -> None:
    """CFL's server compares all pairs of clients, FeSEM's every client with every cluster, FLUX's neither."""
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


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('metric = "adapts"', 'metric = "adapt"', "unknown metric in .* 'adapt'; did you mean 'adapts'"),
        ('unit = "marks"', 'unit = "count"', "properties are in unit marks, not count"),
        ('costs = "{case.costs}"', "", "low_bytes lacks costs"),
        ('method = "ifca"', 'method = "haccs"', "unknown method in .*, row IFCA 'haccs'"),
        ('statistic = "properties"', 'statistic = "levels"', "unit marks goes with statistic properties"),
    ],
)
def test_faulty_tables(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tables.load("flux/2").path.read_text().replace(old, new))
    with pytest.raises(FedbenchError, match=line):
        tables.load(str(path))
