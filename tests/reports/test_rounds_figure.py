"""Figure 7 of FedDRM: the metrics of RETINA's runs, round by round."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports.figures import draw

Call = Callable[..., Result]
LEAD = {"feddrm": 0.03, "fedavgft": 0.0}


def fill(lab: Any) -> dict[str, str]:
    """Runs of two rows at the small budget: method -> id."""
    lab.dataset("retina")
    setting = lab.setting("feddrm/figure7", "RETINA/System accuracy")
    made = {}
    for method, lead in LEAD.items():
        metrics = {
            "average_accuracy": lambda t, lead=lead: 0.5 + t / 1000 + lead,
            "system_accuracy": lambda t, lead=lead: 0.4 + t / 1000 + lead,
            "train_loss": lambda t, lead=lead: 1 / t - lead / 10,
        }
        made[method] = lab.run(setting, method, metrics=metrics, views=("plain",)).id
    return made


def test_the_protocol_of_retina(lab: Any) -> None:
    lab.dataset("retina")
    for budget, model in (("small", "cifar_cnn_projection"), ("paper", "resnet18_gn:projection_size=512")):
        setting = lab.setting("feddrm/figure7", "RETINA/System accuracy", budget)
        assert (setting.rounds, setting.steps, setting.model, setting.augment) == (100, 10, model, "none")
        assert (setting.partition.clients, setting.partition.scheme, setting.lr) == (3, "natural", 0.01)
    assert (setting.batch_size, setting.window) == (32, 50)
    for method in ("fedavgft", "fedprox", "fedsam", "fedbabu"):
        for budget in ("small", "paper"):
            assert protocol.load("feddrm").method_params(method, budget, "retina")["finetune_rounds"] == 10


def test_lines_by_round(lab: Any, call: Call) -> None:
    runs = fill(lab)
    told = json.loads(call("figure", "feddrm/7", "--json").stdout)
    assert [panel["title"] for panel in told["panels"]] == ["Average accuracy", "System accuracy", "Training loss"]
    evaluated = lab.setting("feddrm/figure7", "RETINA/System accuracy").evaluated_rounds()
    for panel, unit in zip(told["panels"], ("%", "%", ""), strict=True):
        assert panel["unit"] == unit
        assert [(line["line"], line["run"]) for line in panel["lines"]] == [
            ("FedAvgFT", runs["fedavgft"]), ("FedDRM", runs["feddrm"]),
        ]  # fmt: skip
        assert panel["lines"][0]["rounds"] == list(evaluated)
    system = told["panels"][1]["lines"][1]
    assert system["values"] == pytest.approx([100 * (0.43 + t / 1000) for t in system["rounds"]])
    states = {claim["text"].rsplit(" ", 3)[0]: claim["state"] for claim in told["claims"]}
    assert sorted(states.values()) == ["holds so far"] * 3
    rows = list(csv.DictReader(io.StringIO(call("figure", "feddrm/7", "--csv").stdout)))
    assert len(rows) == 3 * 2 * len(evaluated)
    assert {row["run"] for row in rows} == set(runs.values())
    result = call("figure", "feddrm/7")
    assert "Average accuracy, budget small, after the last round: FedAvgFT 60; FedDRM 63" in result.stdout


def test_what_is_drawn(lab: Any) -> None:
    fill(lab)
    figure = figures.load("feddrm/7")
    content = figures.kind_of(figure).gather(figure, figures.Ask(lab.store))
    axes = draw.draw(figure, content).axes
    assert [one.get_title() for one in axes] == ["Average accuracy", "System accuracy", "Training loss"]
    (first, second) = axes[2].lines
    np.testing.assert_allclose(first.get_ydata(), 1 / np.asarray(first.get_xdata(), float))
    assert second.get_linewidth() > first.get_linewidth()  # FedDRM is what the figure is about


def test_without_a_run_it_says_what_makes_them(lab: Any, call: Call) -> None:
    lab.dataset("retina")
    with pytest.raises(FedbenchError, match="no cell of table feddrm/figure7 is measured at budget small") as error:
        call("figure", "feddrm/7")
    assert "fedbench train --table feddrm/figure7" in str(error.value.hint)
