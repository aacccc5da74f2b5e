"""Methods ranked over data sets and partitions, and their critical-difference diagram."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from fedbench.errors import FedbenchError
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.compare.ranks import ranked
from fedbench.reports.runs import select
from fedbench.specs import Setting
from tests.reports.conftest import Lab

#: Accuracy of FedAvg, FedDRM and Local at four values of alpha; of FedAvg two seeds, whose mean this is.
VALUES = {0.1: (0.5, 0.7, 0.6), 0.3: (0.55, 0.6, 0.4), 0.5: (0.6, 0.6, 0.3), 1.0: (0.7, 0.65, 0.2)}


def at(lab: Lab, alpha: float, **changed: float) -> Setting:
    setting = replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), **changed)
    options = {**setting.partition.options, "alpha": alpha}
    return replace(setting, partition=replace(setting.partition, options=options))


@pytest.fixture
def runs(lab: Lab) -> Lab:
    for alpha, (fedavg, feddrm, local) in VALUES.items():
        for seed, off in ((0, -0.01), (1, 0.01)):
            lab.run(at(lab, alpha, seed=seed), "fedavg", value=fedavg + off)
        lab.run(at(lab, alpha, seed=0), "feddrm", value=feddrm)
        lab.run(at(lab, alpha, seed=0), "local", value=local)
    return lab


def test_ranks_by_hand(runs: Lab) -> None:
    ranks = ranked(select(runs.store))
    order = [ranks.lines.index(name) for name in ("FedAvg", "FedDRM", "Local")]
    assert ranks.result.ranks[:, order].tolist() == [[3, 1, 2], [2, 1, 3], [1.5, 1.5, 3], [1, 2, 3]]
    assert ranks.result.average[order].tolist() == [1.875, 1.375, 2.75]
    # 12 * 4 / (3 * 4) * (1.875^2 + 1.375^2 + 2.75^2 - 3 * 16 / 4)
    assert ranks.result.chi2 == pytest.approx(4 * (3.515625 + 1.890625 + 7.5625 - 12))
    assert ranks.result.difference == pytest.approx(2.343 * (3 * 4 / (6 * 4)) ** 0.5, abs=0.001)


def test_two_methods_of_one_title_are_two_lines(lab: Lab) -> None:
    """A user's own variant may be called in print as the built-in one is."""
    for alpha in (0.1, 0.5):
        for method, value in (("fedprox", 0.5), ("prox", 0.7)):
            lab.run(at(lab, alpha, seed=0), method, value=value, title="FedProx")
    runs = select(lab.store)
    for by in ((), ("method",)):
        ranks = ranked(runs, by=by)
        assert dict(zip(ranks.lines, ranks.result.average, strict=True)) == {
            "FedProx (fedprox)": 2.0, "FedProx (prox)": 1.0,
        }  # fmt: skip
    (printed,) = side_by_side(runs)
    assert {line.keys[printed.keys.index("method")] for line in printed.lines} == set(ranks.lines)
    assert sum("FedProx (prox)" in line.label for line in printed.lines) == 2


def test_places_without_some_line_are_left_out_and_said(runs: Lab) -> None:
    runs.run(at(runs, 5.0, seed=0), "fedavg", value=0.9)
    ranks = ranked(select(runs.store))
    assert len(ranks.places) == 4
    assert ranks.left_out == ["cifar10, Dir-5 has no average_accuracy of FedDRM, Local"]


def test_the_diagram_in_every_form(runs: Lab, call: Callable[..., Result], tmp_path: Path) -> None:
    said = call("figure", "ranks", "-o", "ranks.png")
    assert "Average ranks: FedDRM 1.38, FedAvg 1.88, Local 2.75" in said.stdout
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
    call("figure", "ranks", "-o", "ranks.svg")
    picture = (tmp_path / "ranks.svg").read_text()
    assert picture.count("<path") > 10
    (panel,) = json.loads(call("figure", "ranks", "--json").stdout)["panels"]
    assert [line["average_rank"] for line in panel["lines"] if line["line"] == "Local"] == [2.75]
    assert panel["alike"] == [["FedDRM", "FedAvg", "Local"]]
    lines = list(csv.DictReader(io.StringIO(call("figure", "ranks", "--csv").stdout)))
    assert len(lines) == 12
    assert {line["rank"] for line in lines if line["line"] == "FedAvg"} == {"3.0", "2.0", "1.5", "1.0"}


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (["method=fedavg"], "there is nothing to rank FedAvg against"),
        (["alpha=0.1"], "ranks need two data sets or partitions that have all of"),
        (["--metric", "test_images"], "neither more nor less test_images is better"),
        (["--metric", "acuracy"], "unknown metric 'acuracy'"),
        (["--test-augmentation", "none"], "unknown test augmentation 'none'"),
    ],
)
def test_what_cannot_be_ranked_is_one_line(
    runs: Lab, call: Callable[..., Result], filters: list[str], text: str
) -> None:
    with pytest.raises(FedbenchError) as error:
        call("figure", "ranks", *filters)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
