"""Accuracies of single clients, one method against another."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports.figures import draw
from fedbench.specs import Setting
from tests.reports.conftest import Lab

Call = Callable[..., Result]


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


@pytest.fixture
def setting(lab: Lab) -> Setting:
    return replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), seed=0)


def some(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_one_method_against_another(lab: Lab, setting: Setting, call: Call) -> None:
    one = lab.run(setting, "fedavg", clients=some(0.5, 0.6, 0.7, 0.8))
    other = lab.run(setting, "feddrm", clients=some(0.6, 0.5, 0.7, 0.9))
    rows = list(csv.DictReader(io.StringIO(call("clients", one.id, other.id, "--csv").stdout)))
    assert [(r["line"], r["against"], r["run"], r["client"]) for r in rows] == [
        ("FedDRM", "FedAvg", other.id, str(c)) for c in range(4)
    ]
    assert [float(r["base"]) for r in rows] == pytest.approx([50, 60, 70, 80])
    assert [float(r["value"]) for r in rows] == pytest.approx([60, 50, 70, 90])
    words = "cifar10, Dir-0.3: {}: of 4 clients {} on average (%)"
    told = call("clients", one.id, other.id, "-o", "c.svg").stdout.strip()
    assert told == words.format("FedDRM against FedAvg", "2 gain, 1 lose: +2.50")
    told = call("clients", other.id, one.id, "-o", "c.svg").stdout.strip()
    assert told == words.format("FedAvg against FedDRM", "1 gain, 2 lose: -2.50")


def test_seeds_are_paired_with_the_same_seeds(lab: Lab, setting: Setting, call: Call) -> None:
    for s in (0, 1, 2):
        lab.run(replace(setting, seed=s), "fedavg", clients=some(0.1 * s, 0.2))
    for s in (2, 1, 4):
        lab.run(replace(setting, seed=s), "feddrm", clients=some(0.1 * s + 0.1, 0.1))
    (panel,) = json.loads(call("clients", "--json").stdout)["panels"]
    assert panel["lines"] == ["FedAvg", "FedDRM"]
    assert [one["values"]["FedAvg"][0] for one in panel["by_seed"]] == pytest.approx([10, 20])
    assert [one["values"]["FedDRM"][0] for one in panel["by_seed"]] == pytest.approx([20, 30])
    assert "of 4 clients of 2 seeds 2 gain, 2 lose: +0.00" in call("clients", "-o", "c.svg").stdout


def test_runs_of_two_seeds_and_of_other_clients(lab: Lab, setting: Setting, call: Call) -> None:
    one = lab.run(setting, "fedavg", clients=some(0.5, 0.6))
    other = lab.run(replace(setting, seed=1), "feddrm", clients=some(0.6, 0.7))
    assert "FedDRM against FedAvg: of 2 clients 2 gain" in call("clients", one.id, other.id, "-o", "c.svg").stdout
    moved = replace(setting, partition=replace(setting.partition, seed=9))
    third = lab.run(moved, "feddrm", clients=some(0.1, 0.2))
    with pytest.raises(FedbenchError, match="FedAvg and FedDRM have no partition and seed in common; their clients"):
        call("clients", one.id, third.id)


def test_one_run_is_sorted_and_unseen_clients_are_hollow(lab: Lab, setting: Setting) -> None:
    unseen = replace(setting, partition=replace(setting.partition, unseen=1))
    lab.run(unseen, "fedavg", clients=some(0.9, 0.5, 0.7))
    figure = figures.FREE["clients"]
    content = figures.kind_of(figure).gather(figure, figures.Ask(lab.store))
    picture = draw.draw(figure, content)
    (axes,) = picture.axes
    _, trained, hollow = axes.get_lines()
    np.testing.assert_allclose(np.array(trained.get_data()), [[2, 0], [90, 50]])
    np.testing.assert_allclose(np.array(hollow.get_data()), [[1], [70]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0"]
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["trains", "unseen: never trains"]


def test_several_methods_and_partitions_are_panels(lab: Lab, setting: Setting, call: Call, tmp_path: Path) -> None:
    for at in (setting, replace(setting, partition=replace(setting.partition, clients=7))):
        for method in ("fedavg", "feddrm", "local"):
            lab.run(at, method, clients=some(0.4, 0.5))
    panels = json.loads(call("clients", "--json").stdout)["panels"]
    assert [(panel["title"][-1], panel["lines"][1]) for panel in panels] == [
        ("8", "FedDRM"), ("8", "Local"), ("7", "FedDRM"), ("7", "Local"),
    ]  # fmt: skip
    call("clients", "-o", "c.pdf")
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--metric", "average_accuracy"],
            "no run has average_accuracy of single clients; of clients: client_accuracy",
        ),
        (["--metric", "client_acuracy"], "unknown metric 'client_acuracy'; did you mean 'client_accuracy'"),
        (["--test-augmentation", "cop"], "unknown test augmentation 'cop'"),
        (["--against", "round"], "--against does not go with clients"),
    ],
)
def test_bad_input(lab: Lab, setting: Setting, call: Call, arguments: list[str], message: str) -> None:
    lab.run(setting, "fedavg", clients=some(0.5, 0.6))
    with pytest.raises(FedbenchError, match=message):
        call("clients", *arguments)
