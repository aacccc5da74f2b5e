"""Figures 4, 5 and 6 of FedDRM, from small artifacts: axes of numbers and of texts, and what cannot stand on them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from typer.testing import Result

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports import table as tables
from fedbench.reports.figures import draw
from fedbench.reports.layout.build import build
from fedbench.reports.status.index import State

Call = Callable[..., Result]
QUANTITIES = ("system_accuracy", "average_accuracy", "routing_accuracy")


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "figure")


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(methods, "names", lambda: ["fedavg", "fedavgft", "feddrm", "local"])
    lab.dataset("cifar10")
    return lab


def same(value: float) -> dict[str, Callable[[int], float]]:
    """System accuracy as given, average accuracy 0.1 above, routing accuracy 0.1 below."""
    return {q: lambda t, v=value + d: v for q, d in zip(QUANTITIES, (0.0, 0.1, -0.1), strict=True)}


def points(result: Result) -> dict[tuple[str, str, float], float]:
    rows = csv.DictReader(io.StringIO(result.stdout))
    return {(r["panel"], r["line"], float(r["x"])): float(r["mean"]) for r in rows}


def ticks(figure: str, store: Any) -> list[list[str]]:
    spec = figures.load(figure)
    drawn = draw.draw(spec, figures.kind_of(spec).gather(spec, figures.Ask(store)))
    return [[label.get_text() for label in axes.get_xticklabels()] for axes in drawn.axes]


def test_accuracies_by_lambda(here: Any, call: Call) -> None:
    setting = here.setting("feddrm/figure4", "system accuracy/Dir-0.3")
    for weight in (0.3, 0.8):
        here.run(setting, "feddrm", {"lambda": weight}, metrics=same(weight / 2))
    found = points(call("feddrm/4", "--csv"))
    assert found == {
        ("Dir-0.3", f"{q} accuracy", weight): pytest.approx(100 * (weight / 2 + d))
        for weight in (0.3, 0.8)
        for q, d in (("system", 0.0), ("average", 0.1), ("routing", -0.1))
    }
    assert ticks("feddrm/4", here.store) == [["0.3", "0.8"]]


def test_shifts_stand_in_the_figures_order(here: Any, call: Call) -> None:
    for i, shift in enumerate(("low", "mid", "high")):
        setting = here.setting("feddrm/figure5", f"System accuracy/{shift}")
        assert setting.partition.shift == shift
        here.run(setting, "feddrm", metrics=same(0.3 + 0.1 * i))
    found = points(call("feddrm/5", "--csv"))
    assert len(found) == 9
    for i in range(3):
        assert found["System accuracy", "FedDRM", i] == pytest.approx(30 + 10 * i)
        assert found["Routing accuracy", "FedDRM", i] == pytest.approx(20 + 10 * i)
    assert ticks("feddrm/5", here.store) == [["low", "mid", "high"]] * 3
    assert "30.00 (low), 40.00 (mid), 50.00 (high)" in call("feddrm/5", "-o", "f.svg").stdout


def test_networks_are_runs_of_the_rows(here: Any, call: Call) -> None:
    """Depth `deep` is the network's default, so that its runs are those of plain lenet_gn."""
    setting = here.setting("feddrm/figure6", "system accuracy/Dir-0.3")
    for i, model in enumerate(("lenet_gn:branch=none", "lenet_gn:branch=shallow", "lenet_gn")):
        here.run(replace(setting, model=model), "feddrm", metrics=same(0.3 + 0.1 * i))
    found = points(call("feddrm/6", "--csv"))
    assert {x: v for (_, line, x), v in found.items() if line == "system accuracy"} == {
        0: pytest.approx(30), 1: pytest.approx(40), 3: pytest.approx(50),
    }  # fmt: skip
    assert ticks("feddrm/6", here.store) == [["none", "shallow", "deep"]]


def test_methods_without_a_router_have_no_routing_accuracy(here: Any) -> None:
    """A run of FedAvg in the table's setting is a row more, without a number and without a complaint."""
    setting = here.setting("feddrm/seeds", "Dir-0.3/Routing")
    here.run(setting, "feddrm", metrics=same(0.5))
    here.run(setting, "fedavg")
    grid = build(tables.load("feddrm/seeds"), "small", here.store, [], extra=True)
    assert grid.problems == ()
    (line,) = (line for line in grid.lines if line.label == "FedAvg")
    by_label = {
        head.label: entry.state for head, entry in zip(grid.heads, line.entries, strict=True) if head.group == "Dir-0.3"
    }
    assert by_label["Routing"] is State.UNDEFINED
    assert by_label["System"] is not State.UNDEFINED


def test_a_text_that_is_not_on_the_axis(here: Any) -> None:
    """Figure 5 with an axis that knows two of the three shifts."""
    spec = figures.load("feddrm/5")
    assert spec.series is not None
    here.run(here.setting("feddrm/figure5", "System accuracy/high"), "feddrm", metrics=same(0.3))
    short = replace(spec, series=replace(spec.series, values={"low": "low", "mid": "mid"}))
    with pytest.raises(FedbenchError, match="column Routing accuracy/high has no single shift"):
        figures.kind_of(short).gather(short, figures.Ask(here.store))
