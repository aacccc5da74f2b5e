"""FLUX's Table 7 by hand: the printed formulas in numbers, the paper's bounds, faulty tables of costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.table import cost


def case(**changes: Any) -> cost.Case:
    given: dict[str, Any] = {
        "model": "lenet5_flux", "shape": (28, 28, 3), "classes": 10, "clients": 10, "clusters": 5, "samples": 4800,
        "validation": 1200, "rounds": 10, "epochs": 2, "components": 10, "inner_steps": 5, "clustering_round": 4,
    }  # fmt: skip
    return cost.Case(**{**given, **changes})


def test_printed_formulas_in_numbers() -> None:
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
        assert cost.cost(name, case())[:3] == pytest.approx(told), name


def test_flux_keeps_to_the_papers_bounds() -> None:
    """A descriptor is at most 3.55e-3 of the model; the extra work is below 5 % of a run's."""
    large = case(model="resnet9", shape=(32, 32, 3), classes=100, samples=4000, validation=1000, rounds=15)
    for c in (case(), large):
        flux, fedavg = cost.cost("flux", c), cost.cost("fedavg", c)
        assert 1 < flux.printed_bytes / fedavg.printed_bytes <= 1.00355
        assert 1 < flux.bytes_up / fedavg.bytes_up < 1.001
        assert 1 < flux.bytes_down / fedavg.bytes_down < 1.003
        assert 1 < flux.client / fedavg.client < 1.05
    assert (case().L, large.L) == (220, 2020)
    assert case().network.forward * 1000 == pytest.approx(6.5e8, rel=5e-3), "the paper's forward pass"


TABLE = """
title = "T"
protocol = "flux"
statistic = "count"
rows = [{ label = "A", method = "ifca" }]
[[column]]
label = "C"
metric = "bytes_down"
[column.costs]
model = "lenet5_flux"
shape = [28, 28, 3]
classes = 10
samples = 4800
validation = 1200
rounds = 10
clients = 10
clusters = 5
epochs = 2
components = 10
inner_steps = 5
clustering_round = 4
"""


@pytest.mark.parametrize(
    ("given", "instead", "line"),
    [
        ('"ifca"', '"ifac"', "unknown method in .*, row A 'ifac'; did you mean 'ifca'"),
        ('"bytes_down"', '"bytes_downs"', "unknown metric in .*, column C 'bytes_downs'; did you mean 'bytes_down'"),
        ("clusters = 5", "cluster = 5", "unknown key in .*, column 1, costs 'cluster'; did you mean 'clusters'"),
        ("clusters = 5\n", "", "column 1, costs lacks 'clusters'"),
        ("clusters = 5", "clusters = 0", "column 1, costs.clusters must lie in 1 to 1,000,000,000, not 0"),
        ("clusters = 5", "clusters = true", "costs.clusters must be a whole number, not True"),
        ("[28, 28, 3]", "[28, 28]", "costs.shape must have 3 entries, not 2"),
        ('"lenet5_flux"', "5", "costs.model must be text, not 5"),
        ('"lenet5_flux"', '"lenet55"', "unknown model 'lenet55'; did you mean 'lenet5'"),
        ('method = "ifca"', 'model = "lenet5", classes = 10, shape = [28, 28, 1]', "row A needs model"),
        (
            TABLE[TABLE.index("[column.costs]") :],
            "",
            "row A needs model, shape and classes, or everywhere a method with costs",
        ),
    ],
)
def test_faulty_tables_of_costs(given: str, instead: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE.replace(given, instead))
    with pytest.raises(FedbenchError, match=line):
        tables.load(str(path))
    path.write_text(TABLE)
    assert tables.load(str(path)).counted
