"""Learning curves of any runs: their numbers, their groups and panels, their pictures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from fedbench.errors import FedbenchError
from fedbench.metrics.read import writing
from fedbench.reports import figures
from fedbench.reports.curves import curves
from fedbench.reports.figures import draw
from fedbench.reports.groups import grouped
from fedbench.reports.runs import select
from fedbench.specs import Setting
from tests.reports.conftest import Lab

Call = Callable[..., Result]
ROUNDS = (2, 4, 6, 8)


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


@pytest.fixture
def setting(lab: Lab) -> Setting:
    """Evaluated after rounds 2, 4, 6 and 8."""
    lab.dataset("digits")
    return replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), rounds=8, window=1, every=2, seed=0, lr=0.1)


def rising(by: float) -> dict[str, Callable[[int], float]]:
    """An accuracy that rises by so much a round, a loss that falls, and bytes: 10 up and 5 down a round."""
    return {
        "average_accuracy": lambda t: by * t,
        "train_loss": lambda t: 2 - by * t,
        "bytes_up": lambda t: 10.0,
        "bytes_down": lambda t: 5.0,
    }


def table(result: Result) -> dict[tuple[str, str, float], Any]:
    rows = csv.DictReader(io.StringIO(result.stdout))
    return {(r["panel"], r["line"], float(r["x"])): (float(r["mean"]), r["std"], r["runs"]) for r in rows}


def test_mean_and_band_over_seeds(lab: Lab, setting: Setting, call: Call) -> None:
    ids = [lab.run(replace(setting, seed=s), "fedavg", metrics=rising(by)).id for s, by in enumerate((0.1, 0.11, 0.06))]
    lab.run(setting, "feddrm", metrics=rising(0.05))
    shown = table(call("curves", "--csv"))
    panel = "cifar10, Dir-0.3"
    assert {(name, x) for _, name, x in shown} == {(name, t) for name in ("FedAvg", "FedDRM") for t in ROUNDS}
    for t in ROUNDS:
        values = 100 * np.array([0.1 * t, 0.11 * t, 0.06 * t])
        mean, std, runs = shown[panel, "FedAvg", t]
        assert (mean, float(std)) == pytest.approx((values.mean(), values.std(ddof=1)))
        assert runs == "3"
        assert shown[panel, "FedDRM", t] == (pytest.approx(5 * t), "", "1")
    (about,) = json.loads(call("curves", "method=fedavg", "--json").stdout)["panels"]
    assert about["lines"][0]["runs"] == ids
    words = call("curves", "-o", "c.svg").stdout
    assert "cifar10, Dir-0.3: average accuracy (%) at the end\n  FedAvg: 72 ± 21 (3 seeds, round 8)\n" in words


def test_against_bytes_and_seconds_up_to_the_round(lab: Lab, setting: Setting, call: Call) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    rows = [("average_accuracy", "plain", t, t / 10) for t in ROUNDS]
    for t in range(1, 9):
        rows += [("bytes_up", "", t, 10.0 * t), ("bytes_down", "", t, 5.0)]
        rows += [("local_training_seconds", "", t, 2.0), ("server_seconds", "", t, 0.5)]
        rows += [("evaluation_seconds", "", t, 99.0), ("train_loss", "", t, 1 / t)]
    write(lab, run, [*rows, ("bytes_up", "", 0, 1e9)])
    for axis, expected in (
        ("bytes", {t: 10 * t * (t + 1) / 2 + 5 * t for t in ROUNDS}),
        ("seconds", {t: 2.5 * t for t in ROUNDS}),
    ):
        x = {r[2]: v[0] for r, v in table(call("curves", "--against", axis, "--csv")).items()}
        assert x == {expected[t]: pytest.approx(10 * t) for t in ROUNDS}
    loss = table(call("curves", "--metric", "train_loss", "--csv"))
    assert {t: v[0] for (_, _, t), v in loss.items()} == {t: pytest.approx(1 / t) for t in range(1, 9)}


def write(lab: Lab, run: Any, rows: list[tuple[str, str, int, float]]) -> None:
    """The metrics of a run: name, view, round, value of the federation."""
    import pyarrow as pa

    metric, view, number, value = zip(*rows, strict=True)
    columns = {"metric": pa.array(metric).dictionary_encode(), "view": pa.array(view).dictionary_encode()}
    columns |= {"round": pa.array(number, pa.int32()), "client": pa.array([-1] * len(rows), pa.int32())}
    with writing(run, lab.store) as writer:
        writer.table("metrics", pa.table({**columns, "value": pa.array(value, pa.float64())}))


def test_lines_are_what_differs_and_panels_partitions(lab: Lab, setting: Setting) -> None:
    other = replace(setting, partition=replace(setting.partition, clients=7, seed=3), lr=0.5)
    for at in (setting, replace(setting, seed=1), replace(setting, lr=0.01), other):
        lab.run(at, "fedavg")
    lab.run(setting, "ditto", {"mu": 0.3})
    lab.run(other, "ditto", {"mu": 0.4})
    runs = select(lab.store)

    def shape(*by: str) -> dict[str, dict[str, int]]:
        return {p.title: {name: len(own) for name, own in p.lines.items()} for p in grouped(runs, by)}

    assert shape() == {
        "cifar10, Dir-0.3, clients 8": {"FedAvg, lr 0.1": 2, "FedAvg, lr 0.01": 1, "ditto, lr 0.1, mu 0.3": 1},
        "cifar10, Dir-0.3, clients 7": {"FedAvg, lr 0.5": 1, "ditto, lr 0.5, mu 0.4": 1},
    }
    assert shape("method") == {
        "cifar10, Dir-0.3, clients 8": {"FedAvg": 3, "ditto": 1},
        "cifar10, Dir-0.3, clients 7": {"FedAvg": 1, "ditto": 1},
    }
    assert shape("clients") == {"cifar10, Dir-0.3": {"clients 8": 4, "clients 7": 2}}
    with pytest.raises(FedbenchError, match="unknown key of runs 'metod'; did you mean 'method'"):
        shape("metod")


def test_a_panel_is_titled_by_as_much_as_tells_it_apart(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=7, train_fraction=0.5, shift="none")
    other = replace(setting, partition=part, lr=0.5, batch_size=99, schedule="constant", momentum=0.5)
    for at in (setting, other):
        lab.run(at, "fedavg")
    panels = grouped(select(lab.store))
    assert [panel.title for panel in panels] == ["cifar10, Dir-0.3, clients 8", "cifar10, Dir-0.3, clients 7"]
    assert [list(panel.lines) for panel in panels] == [["FedAvg"], ["FedAvg"]]


def test_remarks_say_what_is_no_curve_and_no_mean_over_seeds(lab: Lab, setting: Setting, call: Call) -> None:
    lab.run(setting, "fedavg")
    lab.run(replace(setting, lr=0.2), "fedavg")
    lab.run(replace(setting, every=0), "feddrm")
    lab.run(setting, "local", metrics={"system_accuracy": lambda t: 0.5})
    result = call("curves", "--by", "method", "-o", "c.png")
    assert "evaluated in the last rounds only: FedDRM; train with --every 1" in result.stderr
    assert "FedAvg is a mean over runs that differ in lr, too" in result.stderr
    assert "has no average_accuracy by round (plain test images)" in result.stderr
    assert "(2 runs, round 8)" in result.stdout


def test_the_view_that_has_the_curve_is_shown(lab: Lab, setting: Setting, call: Call) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    rows = [("average_accuracy", "crop", t, 0.1) for t in ROUNDS]
    write(lab, run, [*rows, ("average_accuracy", "plain", 8, 0.2)])
    assert [v[0] for v in table(call("curves", "--csv")).values()] == [pytest.approx(10)] * 4
    assert "average accuracy (%, cropped images)" in call("curves", "--text").stdout
    plain = table(call("curves", "--csv", "--test-augmentation", "plain"))
    assert [v[0] for v in plain.values()] == [pytest.approx(20)]


def test_rounds_that_all_runs_of_a_line_have(lab: Lab, setting: Setting) -> None:
    lab.run(setting, "fedavg")
    lab.run(replace(setting, every=3), "fedavg")
    (panel,) = curves(select(lab.store), by=["method"]).panels
    assert panel.curves["FedAvg"].rounds.tolist() == [6, 8]
    lab.run(replace(setting, rounds=5, every=0), "fedavg")
    with pytest.raises(FedbenchError, match="have no evaluated round in common; name --by KEY"):
        curves(select(lab.store), by=["method"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "averge_accuracy"], "unknown metric 'averge_accuracy'; did you mean 'average_accuracy'"),
        (["--metric", "routing_accuracy"], r"no run has routing_accuracy by round \(.*\); by round: average_accuracy"),
        (["--against", "byte"], "unknown axis 'byte'; did you mean 'bytes'"),
        (["--by", "learning"], "unknown key of runs 'learning'"),
        (["--test-augmentation", "cop"], "unknown test augmentation 'cop'; did you mean 'crop'"),
        (["lr=7"], "no run is lr=7; there are lr: 0.1"),
        (["--client", "1"], "--client does not go with curves; it takes FILTER, --metric"),
        (["--text", "--csv"], "--json, --csv and --text exclude each other"),
    ],
)
def test_bad_input(lab: Lab, setting: Setting, call: Call, tmp_path: Path, arguments: list[str], message: str) -> None:
    lab.run(setting, "fedavg")
    with pytest.raises(FedbenchError, match=message) as error:
        call("curves", *arguments)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("curves*"))


def test_the_picture(lab: Lab, setting: Setting, call: Call, tmp_path: Path) -> None:
    for s in range(3):
        lab.run(replace(setting, seed=s), "fedavg", metrics=rising(0.1 + s / 100))
    lab.run(replace(setting, partition=replace(setting.partition, clients=7)), "fedavg", metrics=rising(0.1))
    figure = figures.FREE["curves"]
    picture = draw.draw(figure, figures.kind_of(figure).gather(figure, figures.Ask(lab.store)))
    assert [axes.get_title() for axes in picture.axes] == [
        "cifar10, Dir-0.3, clients 8", "cifar10, Dir-0.3, clients 7",
    ]  # fmt: skip
    assert [len(axes.collections) for axes in picture.axes] == [1, 0]  # the band
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg (1 or 3 seeds)"]
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        call("curves", "-o", f"c.{form}")
        assert (tmp_path / f"c.{form}").read_bytes().startswith(start)


def test_more_lines_than_can_be_told_apart(lab: Lab, setting: Setting, call: Call) -> None:
    for i in range(25):
        lab.run(replace(setting, lr=0.01 * (i + 1)), "fedavg")
    with pytest.raises(FedbenchError, match=r"25 lines are too many for one picture \(up to 24\); choose runs"):
        call("curves")
    assert len(table(call("curves", "--csv"))) == 25 * len(ROUNDS)
