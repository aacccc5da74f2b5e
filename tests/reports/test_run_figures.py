"""Figures of any runs and partitions: learning curves, clients, confusion, ranks, images as clients see them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import Result

from fedbench import data as datasets
from fedbench import partitions
from fedbench.errors import FedbenchError
from fedbench.metrics.accuracy import confusion
from fedbench.partitions import Partition, Transform
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply
from fedbench.planner.runs import grouped, select
from fedbench.planner.table.statistic import STATISTICS, Reading
from fedbench.reports import figures
from fedbench.reports.compare.comparison import compare
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.compare.ranks import ranked
from fedbench.reports.figures.kinds import images
from fedbench.reports.figures.kinds.learning import curves
from fedbench.reports.figures.text import Points, text_curves
from fedbench.results.frame import Frame
from fedbench.specs import Setting
from fedbench.store import Artifact, Store
from tests.reports.conftest import Draws, Lab, answer, of_csv
from tests.support.figures_lab import drawn, picture_of, rows_of
from tests.support.frames import refused
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write
from tests.support.real_images import RealImages

ROUNDS = (2, 4, 6, 8)


@pytest.fixture
def setting(lab: Lab) -> Setting:
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


def points(result: Result) -> dict[tuple[str, str, float], Any]:
    rows = of_csv(result.stdout)
    return {(r["panel"], r["line"], float(r["x"])): (float(r["mean"]), r["std"], r["runs"]) for r in rows}


def test_mean_and_band_over_seeds(lab: Lab, setting: Setting, draws: Draws, tmp_path: Path) -> None:
    ids = [lab.run(replace(setting, seed=s), "fedavg", metrics=rising(by)).id for s, by in enumerate((0.1, 0.11, 0.06))]
    lab.run(setting, "feddrm", metrics=rising(0.05))
    shown = points(draws("curves", "--csv"))
    panel = "cifar10, Dir-0.3"
    assert {(name, x) for _, name, x in shown} == {(name, t) for name in ("FedAvg", "FedDRM") for t in ROUNDS}
    for t in ROUNDS:
        values = 100 * np.array([0.1 * t, 0.11 * t, 0.06 * t])
        mean, std, runs = shown[panel, "FedAvg", t]
        assert (mean, float(std)) == pytest.approx((values.mean(), values.std(ddof=1)))
        assert runs == "3"
        assert shown[panel, "FedDRM", t] == (pytest.approx(5 * t), "", "1")
    (about,) = json.loads(draws("curves", "method=fedavg", "--json").stdout)["panels"]
    assert about["rows"][0]["ids"] == ids
    words = draws("curves", "-o", "c.pdf").stdout
    assert "cifar10, Dir-0.3: average accuracy (%) at the end\n  FedAvg: 72 ± 21 (3 seeds, round 8)\n" in words
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    lab.run(replace(setting, partition=replace(setting.partition, clients=7)), "fedavg", metrics=rising(0.1))
    picture = picture_of("curves", lab.store)
    assert [axes.get_title() for axes in picture.axes] == ["cifar10, Dir-0.3, clients 8", "cifar10, Dir-0.3, clients 7"]
    assert [len(axes.collections) for axes in picture.axes] == [1, 0]  # the band
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg (1 or 3 seeds)", "FedDRM (1 seed)"]


def test_against_bytes_and_seconds_up_to_the_round(lab: Lab, setting: Setting, draws: Draws) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    rows = [("average_accuracy", "plain", t, -1, t / 10) for t in ROUNDS]
    for t in range(1, 9):
        values = {"bytes_up": 10.0 * t, "bytes_down": 5.0, "local_training_seconds": 2.0, "server_seconds": 0.5}
        values |= {"evaluation_seconds": 99.0, "train_loss": 1 / t}
        rows += [(name, "", t, -1, value) for name, value in values.items()]
    lab.rows(run, [*rows, ("bytes_up", "", 0, -1, 1e9)])
    for axis, expected in (
        ("bytes", {t: 10 * t * (t + 1) / 2 + 5 * t for t in ROUNDS}),
        ("seconds", {t: 2.5 * t for t in ROUNDS}),
    ):
        x = {r[2]: v[0] for r, v in points(draws("curves", "--against", axis, "--csv")).items()}
        assert x == {expected[t]: pytest.approx(10 * t) for t in ROUNDS}
    loss = points(draws("curves", "--metric", "train_loss", "--csv"))
    assert {t: v[0] for (_, _, t), v in loss.items()} == {t: pytest.approx(1 / t) for t in range(1, 9)}


def test_lines_are_what_differs_and_panels_partitions(lab: Lab, setting: Setting) -> None:
    other = replace(setting, partition=replace(setting.partition, clients=7, seed=3), lr=0.5)
    for at in (setting, replace(setting, seed=1), replace(setting, lr=0.01), other):
        lab.run(at, "fedavg")
    lab.run(setting, "ditto", {"mu": 0.3})
    lab.run(other, "ditto", {"mu": 0.4})
    eight, seven = (f"cifar10, Dir-0.3, clients {n}" for n in (8, 7))

    def shape(*by: str) -> dict[str, dict[str, int]]:
        return {
            p.title: {name: len(own) for name, own in p.lines.items()} for p in grouped(select(Frame(lab.store)), by)
        }

    assert shape() == {
        eight: {"FedAvg, lr 0.1": 2, "FedAvg, lr 0.01": 1, "ditto, lr 0.1, mu 0.3": 1},
        seven: {"FedAvg, lr 0.5": 1, "ditto, lr 0.5, mu 0.4": 1},
    }
    assert shape("method") == {eight: {"FedAvg": 3, "ditto": 1}, seven: {"FedAvg": 1, "ditto": 1}}
    assert shape("clients") == {"cifar10, Dir-0.3": {"clients 8": 4, "clients 7": 2}}


def test_a_panel_is_titled_by_as_much_as_tells_it_apart(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=7, train_fraction=0.5, shift="none")
    for at in (setting, replace(setting, partition=part, lr=0.5, batch_size=99, schedule="constant", momentum=0.5)):
        lab.run(at, "fedavg")
    shown = [(panel.title, list(panel.lines)) for panel in grouped(select(Frame(lab.store)))]
    assert shown == [(f"cifar10, Dir-0.3, clients {n}", ["FedAvg"]) for n in (8, 7)]
    for more, rounds in (({"every": 3}, [6, 8]), ({"rounds": 5, "every": 0}, None)):
        lab.run(replace(setting, **more), "fedavg")
        runs = select(Frame(lab.store), ["clients=8"])
        if rounds:
            assert [row["round"] for row in curves(runs, by=["method"])] == rounds
        else:
            refused("have no evaluated round in common; name --by KEY", curves, runs, by=["method"])


def test_remarks_say_what_is_no_curve_and_no_mean_over_seeds(lab: Lab, setting: Setting, draws: Draws) -> None:
    lab.run(setting, "fedavg")
    lab.run(replace(setting, lr=0.2), "fedavg")
    lab.run(replace(setting, every=0), "feddrm")
    lab.run(setting, "local", metrics={"system_accuracy": lambda t: 0.5})
    result = draws("curves", "--by", "method", "-o", "c.png")
    assert "evaluated in the last rounds only: FedDRM; train with --every 1" in result.stderr
    assert "FedAvg is a mean over runs that differ in lr, too" in result.stderr
    assert "has no average_accuracy by round (plain test images)" in result.stderr
    assert "(2 runs, round 8)" in result.stdout


def test_the_view_that_has_the_curve_is_shown(lab: Lab, setting: Setting, draws: Draws) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    rows = [("average_accuracy", "crop", t, -1, 0.1) for t in ROUNDS]
    lab.rows(run, [*rows, ("average_accuracy", "plain", 8, -1, 0.2)])
    assert [v[0] for v in points(draws("curves", "--csv")).values()] == [pytest.approx(10)] * 4
    assert "average accuracy (%, cropped images)" in draws("curves", "--text").stdout
    plain = points(draws("curves", "--csv", "--test-augmentation", "plain"))
    assert [v[0] for v in plain.values()] == [pytest.approx(20)]
    shown, _ = rows_of(figures.load("curves"), lab.store, view="plain")
    (axes,) = drawn(figures.load("curves"), [row | {"line": str(i)} for row in shown for i in range(3)]).axes
    assert axes.get_xticks().tolist() == [8]  # and no half rounds
    seeds = [row | {"line": str(i), "runs": 1 + i, "std": 1.0 if i else None} for row in shown for i in range(3)]
    names = drawn(figures.load("curves"), seeds).axes[0].get_legend_handles_labels()[1]
    assert names == ["0 (1 seed)", "1 (2 seeds)", "2 (3 seeds)"]  # error bars are no lines


def test_a_line_breaks_at_a_round_that_lacks_the_metric(lab: Lab, setting: Setting, draws: Draws) -> None:
    """After round 6 all was measured but FedAvg's AUC: no client had images of every class."""
    area = "client_auc_mean"
    for method, rounds in (("fedavg", (2, 4, 8)), ("feddrm", ROUNDS)):
        run = lab.run(setting, method, measure=False)
        rows = [(area, "plain", t, -1, t / 10) for t in rounds]
        rows += [("average_accuracy", "plain", t, -1, 0.5) for t in ROUNDS]
        lab.rows(run, [*rows, *(("bytes_up", "", t, -1, 10.0) for t in range(1, 9))])
    for against, x in (("round", 6.0), ("bytes", 60.0)):
        asked = {"metric": area, "against": against}
        shown, _ = rows_of(figures.load("curves"), lab.store, **asked)
        assert {row["line"] for row in shown if row["round"] == 6} == {"FedDRM"}
        assert shown[0]["gaps"] == {"FedAvg": [x]}
        (axes,) = drawn(figures.load("curves"), shown).axes
        broken = [np.isnan(np.asarray(line.get_ydata(), float)).tolist() for line in axes.lines]
        assert broken == [[False, False, True, False], [False] * 4]
        assert axes.lines[0].get_markevery() == [0, 1, 2, 3]  # the last point has no stroke
    (panel,) = json.loads(draws("curves", "--metric", area, "--json").stdout)["panels"]
    assert panel["gaps"] == {"FedAvg": [6.0]}


def test_more_lines_than_can_be_told_apart(lab: Lab, setting: Setting, draws: Draws) -> None:
    for i in range(25):
        lab.run(replace(setting, lr=0.01 * (i + 1), rounds=2), "fedavg")
    refused(r"25 lines are too many for one picture \(up to 24\); choose runs", draws, "curves")
    assert len(points(draws("curves", "--csv"))) == 25


def some(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_one_method_against_another(lab: Lab, setting: Setting, draws: Draws) -> None:
    one = lab.run(setting, "fedavg", clients=some(0.5, 0.6, 0.7, 0.8))
    other = lab.run(replace(setting, seed=1), "feddrm", clients=some(0.6, 0.5, 0.7, 0.9))  # named, seeds may differ
    rows = of_csv(draws("clients", one.id, other.id, "--csv").stdout)
    assert [(r["line"], r["against"], r["run"], r["client"]) for r in rows] == [
        ("FedDRM", "FedAvg", other.id, str(c)) for c in range(4)
    ]
    assert [float(r["base"]) for r in rows] == pytest.approx([50, 60, 70, 80])
    assert [float(r["value"]) for r in rows] == pytest.approx([60, 50, 70, 90])
    words = "cifar10, Dir-0.3: {}: of 4 clients {} on average (%)"
    for ids, said in (
        ((one.id, other.id), ("FedDRM against FedAvg", "2 gain, 1 lose: +2.50")),
        ((other.id, one.id), ("FedAvg against FedDRM", "1 gain, 2 lose: -2.50")),
    ):
        assert draws("clients", *ids, "-o", "c.svg").stdout.strip() == words.format(*said)
    other_partition = replace(setting, partition=replace(setting.partition, seed=9))
    third = lab.run(other_partition, "feddrm", clients=some(0.1, 0.2))
    refused("FedAvg and FedDRM have no partition and seed in common; their clients", draws, "clients", one.id, third.id)


def test_seeds_are_paired_with_the_same_seeds(lab: Lab, setting: Setting, draws: Draws) -> None:
    for s in (0, 1, 2):
        lab.run(replace(setting, seed=s), "fedavg", clients=some(0.1 * s, 0.2))
    for s in (2, 1, 4):
        lab.run(replace(setting, seed=s), "feddrm", clients=some(0.1 * s + 0.1, 0.1))
    (panel,) = json.loads(draws("clients", "--json").stdout)["panels"]
    first = [row for row in panel["rows"] if row["client"] == 0]
    assert {(row["against"], row["line"]) for row in first} == {("FedAvg", "FedDRM")}
    assert [row["base"] for row in first] == pytest.approx([10, 20])
    assert [row["value"] for row in first] == pytest.approx([20, 30])
    assert "of 4 clients of 2 seeds 2 gain, 2 lose: +0.00" in draws("clients", "-o", "c.svg").stdout
    lab.run(replace(setting, seed=1), "local", clients=some(0.1, 0.2))
    for method in ("fedavg", "feddrm", "local"):
        lab.run(replace(setting, partition=replace(setting.partition, clients=7)), method, clients=some(0.4, 0.5))
    panels = json.loads(draws("clients", "--json").stdout)["panels"]
    assert [(panel["title"][-1], panel["rows"][0]["line"]) for panel in panels] == [
        ("8", "FedDRM"),
        ("8", "Local"),
        ("7", "FedDRM"),
        ("7", "Local"),
    ]


def test_one_run_is_sorted_and_unseen_clients_are_hollow(lab: Lab, setting: Setting) -> None:
    unseen = replace(setting, partition=replace(setting.partition, clients=3, unseen=1))
    lab.run(unseen, "fedavg", clients=some(0.9, 0.5, 0.7))
    (axes,) = (picture := picture_of("clients", lab.store)).axes
    _, trained, hollow = axes.get_lines()
    np.testing.assert_allclose(np.array(trained.get_data()), [[2, 0], [90, 50]])
    np.testing.assert_allclose(np.array(hollow.get_data()), [[1], [70]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0"]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    rows, _ = rows_of(figures.load("clients"), lab.store)
    (axes,) = drawn(figures.load("clients"), [rows[0] | {"client": c, "value": 1.0 + c} for c in range(25)]).axes
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {90}  # else they would touch
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["trains", "unseen: never trains"]


def test_means_over_clients_are_those_of_compare_and_of_tables(lab: Lab, setting: Setting, draws: Draws) -> None:
    """Client 2 never trains, and client 3 is client 2 again, its images in fog."""
    setting = replace(setting, partition=replace(setting.partition, clients=3, unseen=1, unseen_as=("fog-3",)))
    for method, values in (("fedavg", some(0.9, 0.5, 0.1, 0.0)), ("feddrm", some(0.95, 0.6, 0.3, 0.0))):
        lab.run(setting, method, clients=values)
    words = draws("clients", "method=fedavg", "-o", "c.svg").stdout
    assert words.endswith("FedAvg: mean 70.00 ± 28.28 over clients, worst 50.00; unseen 10.00 (%)\n")
    (run,) = select(Frame(lab.store), ["method=fedavg"])
    values = compare([run], ["client_accuracy_std", "unseen_client_accuracy"]).values
    assert [values[run.id, name] for name in ("client_accuracy_std", "unseen_client_accuracy")] == pytest.approx(
        [0.2828, 0.1], abs=1e-4
    )
    table = STATISTICS["clients"].of(Reading(run.metrics, setting, "client_accuracy", "plain"))
    assert (table.mean, table.std) == pytest.approx((0.7, 0.2828), abs=1e-4)
    both = draws("clients", "-o", "c.svg").stdout
    assert "of 2 clients 2 gain, 0 lose: +7.50 on average; unseen +20.00 (%)" in both
    (axes,) = picture_of("clients", lab.store, filters=["method=fedavg"]).axes
    assert axes.lines[0].get_ydata()[0] == pytest.approx(70)
    hollow = replace(setting, partition=replace(setting.partition, seed=5))
    lab.run(hollow, "local", clients={2: 0.4})  # only the client that never trains has images
    assert "Local: mean 40.00, worst 40.00 (%)" in draws("clients", "method=local", "-o", "c.svg").stdout


#: (client, label, answer) after the last of two rounds; client 2 is unseen.
LAST = [(0, 0, 0), (0, 0, 1), (0, 2, 2), (1, 2, 0), (1, 2, 2), (2, 1, 1), (2, 0, 2)]


def answered(store: Store, seed: int = 0, unseen: int | None = 1, answers: list[int] | None = None) -> Artifact:
    """A run whose answers after the first round, and to cropped images, are all class 0."""
    rows: list[dict[str, Any]] = []
    for t, view in ((1, "plain"), (2, "crop"), (2, "plain")):
        for i, (client, label, own) in enumerate(LAST):
            answer = (answers[i] if answers else own) if (t, view) == (2, "plain") else 0
            rows.append({"round": t, "view": view, "client": client, "label": label, "own": answer})
    tables = {"predictions": predictions(rows, classes=3), "clients": clients_table([5, 5, 5], [3, 2, 2])}
    return write(store, run_spec(3, 2, window=2, seed=seed, unseen=unseen), **tables, rounds=rounds_table(2))


def test_a_matrix_in_numbers_words_and_as_a_picture(store: Store, draws: Draws, tmp_path: Path) -> None:
    run = answered(store)
    for how, counts in (
        ({}, [[1, 1, 0], [0, 0, 0], [1, 0, 2]]),
        ({"client": 1}, [[0, 0, 0], [0, 0, 0], [1, 0, 1]]),
        ({"client": 2}, [[0, 0, 1], [0, 1, 0], [0, 0, 0]]),
        ({"view": "crop"}, [[2, 0, 0], [0, 0, 0], [3, 0, 0]]),
    ):
        np.testing.assert_array_equal(confusion(run, **how), counts)
    rows = of_csv(draws("confusion", run.id, "--csv").stdout)
    assert [int(r["images"]) for r in rows] == [1, 1, 0, 0, 0, 0, 1, 0, 2]
    assert [r["share"] for r in rows[3:6]] == ["", "", ""]  # no image of class 1
    (panel,) = json.loads(draws("confusion", "--json").stdout)["panels"]
    assert panel["class_accuracy"] == {"0": 0.5, "1": None, "2": pytest.approx(2 / 3)}
    assert panel["accuracy"] == 0.6
    told = draws("confusion").stdout
    assert "60.00 % of 5 test images are answered rightly; the worst class is 0 (50.0 %)" in told
    assert "50.0 % of 0 are taken for 1" in told
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    answered(store)
    matrix, bars = picture_of("confusion", store).axes
    assert [text.get_text() for text in matrix.texts] == ["50", "50", "33", "67"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([50, 0, 200 / 3])  # type: ignore[attr-defined]
    answered(store, seed=1, unseen=None, answers=[label for _, label, _ in LAST])
    told = draws("confusion", "seed=1", "-o", "c.svg").stdout
    assert "100.00 % of 7 test images" in told
    assert "taken for" not in told, "there is no mistake"


def test_seeds_are_added_and_clients_are_panels(store: Store, draws: Draws) -> None:
    answered(store)
    answered(store, seed=1, answers=[0, 0, 2, 2, 2, 1, 0])
    (panel,) = json.loads(draws("confusion", "--json").stdout)["panels"]
    assert [row["images"] for row in panel["rows"]] == [3, 1, 0, 0, 0, 0, 1, 0, 5]
    panels = json.loads(draws("confusion", "seed=1", "--client", "0", "--client", "1", "--json").stdout)["panels"]
    counts = [(p["client"], [row["images"] for row in p["rows"] if row["class"] == 2]) for p in panels]
    assert counts == [(0, [0, 0, 1]), (1, [0, 0, 2])]


def test_what_cannot_be_shown(store: Store, draws: Draws) -> None:
    run = answered(store)
    with pytest.raises(FedbenchError, match=rf"run {run.id} has no client 3; it has 0\.\.2"):
        draws("confusion", "--client", "3")
    scores = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6)), 2)
    several = predictions([{"round": 1, "view": "plain", "client": 0, "label": 0, "own": 0}] * 3)
    spec = run_spec(1, 1, seed=9)
    tables = {"predictions": several.append_column("own_scores", scores), "clients": clients_table([1], [3])}
    write(store, spec, **tables, rounds=rounds_table(1))
    refused("have several labels each; a confusion matrix is of one", draws, "confusion", spec.id)
    for i in range(9):
        answered(store, seed=20 + i)
    with pytest.raises(FedbenchError, match=r"9 matrices are too many for one picture \(up to 8\)"):
        draws("confusion", f"seed={','.join(str(20 + i) for i in range(9))}", "--by", "seed")


#: Accuracy of FedAvg, FedDRM and Local with_alpha four values of alpha; of FedAvg two seeds, whose mean this is.
VALUES = {0.1: (0.5, 0.7, 0.6), 0.3: (0.55, 0.6, 0.4), 0.5: (0.6, 0.6, 0.3), 1.0: (0.7, 0.65, 0.2)}


def with_alpha(lab: Lab, alpha: float, **changed: float) -> Setting:
    setting = replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), **changed)
    options = {**setting.partition.options, "alpha": alpha}
    return replace(setting, partition=replace(setting.partition, options=options))


@pytest.fixture(scope="module")
def ranked_runs(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(Store(tmp_path_factory.mktemp("ranks") / "store"))
    lab.dataset("cifar10")
    for alpha, (fedavg, feddrm, local) in VALUES.items():
        for seed, off in ((0, -0.01), (1, 0.01)):
            lab.run(with_alpha(lab, alpha, seed=seed), "fedavg", value=fedavg + off)
        lab.run(with_alpha(lab, alpha, seed=0), "feddrm", value=feddrm)
        lab.run(with_alpha(lab, alpha, seed=0), "local", value=local, clients=some(0.5, 0.6))
    lab.run(with_alpha(lab, 5.0, seed=0), "fedavg", value=0.9)  # a place without the others
    return lab


def test_ranks_by_hand_and_their_diagram(ranked_runs: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranked(select(Frame(ranked_runs.store)))
    order = [ranks.lines.index(name) for name in ("FedAvg", "FedDRM", "Local")]
    assert ranks.result.ranks[:, order].tolist() == [[3, 1, 2], [2, 1, 3], [1.5, 1.5, 3], [1, 2, 3]]
    assert ranks.result.average[order].tolist() == [1.875, 1.375, 2.75]
    # 12 * 4 / (3 * 4) * (1.875^2 + 1.375^2 + 2.75^2 - 3 * 16 / 4)
    assert ranks.result.chi2 == pytest.approx(4 * (3.515625 + 1.890625 + 7.5625 - 12))
    assert ranks.result.difference == pytest.approx(2.343 * (3 * 4 / (6 * 4)) ** 0.5, abs=0.001)
    assert len(ranks.places) == 4
    assert ranks.left_out == ["cifar10, Dir-5 has no average_accuracy of FedDRM, Local"]
    monkeypatch.chdir(tmp_path)
    call = partial(answer, ranked_runs.store.home, "figure", "ranks")
    assert "Average ranks: FedDRM 1.38, FedAvg 1.88, Local 2.75" in call("-o", "ranks.png").stdout
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")
    call("-o", "ranks.svg")
    assert (tmp_path / "ranks.svg").read_text().count("<path") > 10
    (panel,) = json.loads(call("--json").stdout)["panels"]
    assert {row["average_rank"] for row in panel["rows"] if row["line"] == "Local"} == {2.75}
    assert panel["alike"] == [["FedDRM", "FedAvg", "Local"]]
    lines = of_csv(call("--csv").stdout)
    assert len(lines) == 12
    assert {line["rank"] for line in lines if line["line"] == "FedAvg"} == {"3.0", "2.0", "1.5", "1.0"}
    refused("ranks need two data sets or partitions that have all of", call, "alpha=0.1")


def test_two_methods_of_one_title_are_two_lines(lab: Lab) -> None:
    """A user's own variant may be called in print as the built-in one is."""
    for alpha in (0.1, 0.5):
        for method, value in (("fedprox", 0.5), ("prox", 0.7)):
            lab.run(with_alpha(lab, alpha, seed=0), method, value=value, title="FedProx")
    ranked_runs = select(Frame(lab.store))
    for by in ((), ("method",)):
        ranks = ranked(ranked_runs, by=by)
        assert dict(zip(ranks.lines, ranks.result.average, strict=True)) == {
            "FedProx (fedprox)": 2.0,
            "FedProx (prox)": 1.0,
        }
    (printed,) = side_by_side(ranked_runs)
    assert {line.keys[printed.keys.index("method")] for line in printed.lines} == set(ranks.lines)
    assert sum("FedProx (prox)" in line.label for line in printed.lines) == 2


def partition(store: Store, clients: int = 8, scheme: str = "iid", **values: Any) -> Partition:
    return partitions.build(partition_spec(datasets.resolve("digits", store), scheme, clients, 0, 0.7, **values), store)


def panel_of(draws: Draws, *arguments: str) -> dict[str, Any]:
    (panel,) = json.loads(draws("images", "--json", *arguments).stdout)["panels"]
    return panel


def test_one_image_through_the_eyes_of_all(store: Store, draws: Draws) -> None:
    part, digits = partition(store, 6, shift="high"), datasets.load("digits", store)
    panel = panel_of(draws, "--partition", part.id, "--image", "5", "--image", "2")
    assert (panel["partition"], panel["common"], len(panel["rows"])) == (part.id, True, 12)
    for i, view in enumerate(panel["rows"]):
        client, sample = i // 2, (5, 2)[i % 2]
        assert (view["client"], view["sample"], view["class"]) == (client, sample, str(digits.labels[sample]))
        assert view["transform"] == f"gamma {(0.6, 1.4)[client % 2]}"  # grey images have neither hue nor saturation
        seen = apply(digits.images[sample : sample + 1], part.transforms[client])[0]
        np.testing.assert_array_equal(view["pixels"], seen)
        assert [view["red"], view["blue"]] == [pytest.approx(seen.mean())] * 2
    lines = of_csv(draws("images", "--partition", part.id, "--csv").stdout)
    assert [line["sample"] for line in lines] == ["0"] * 6  # the first image, where none is named
    said = draws("images", "--partition", part.id, "--image", "5", "-o", "5.svg").stdout
    assert f"6 clients see image 5 ({digits.labels[5]}) of digits through 2 transforms; partition {part.id}" in said
    rows, _ = rows_of(figures.load("images"), store, partition=part.id, image=[4, 1])
    axes = drawn(figures.load("images"), rows).axes
    assert len(axes) == 6
    for c, one in enumerate(axes):
        assert one.get_title() == f"client {c}\ngamma {(0.6, 1.4)[c % 2]}"
        pixels = np.asarray(one.get_images()[0].get_array())
        assert pixels.shape == (8, 8 + 2 + 8, 3)
        seen = apply(digits.images[[4, 1]], part.transforms[c])
        for left, image in zip((0, 10), seen, strict=True):
            np.testing.assert_array_equal(pixels[:, left : left + 8], np.repeat(image, 3, axis=-1))
        assert (pixels[:, 8:10] == 255).all()
    corrupted = partition(store, 4, shift="corrupted")  # the corruption is that of the client's first images
    first = corrupted.sample[corrupted.rows(1)][0]
    view = panel_of(draws, "--partition", corrupted.id, "--client", "1", "--image", str(first))["rows"][0]
    np.testing.assert_array_equal(view["pixels"], corrupted.transformed_images(digits)[corrupted.rows(1)][0])


@pytest.mark.parametrize(
    "values", [{}, {"scheme": "equal", "shift": "px", "level": 5, "train_fraction": None}], ids=["plain", "px"]
)
def test_else_clients_show_images_of_their_own(store: Store, draws: Draws, values: dict[str, Any]) -> None:
    spec = {"scheme": "iid", "clients": 5, "seed": 0, "train_fraction": 0.7, **values}
    part = partitions.build(partition_spec(datasets.resolve("digits", store), **spec), store)
    panel, seen = panel_of(draws, "--partition", part.id), part.transformed_images(datasets.load("digits", store))
    assert not panel["common"]
    each = images.OWN
    assert len(panel["rows"]) == 5 * each
    for c in range(5):
        own = panel["rows"][c * each :][:each]
        np.testing.assert_array_equal([view["pixels"] for view in own], seen[part.rows(c, test=False)][:each])
        turned = part.distributions[part.groups[c]].described(part.classes) if part.distributions else ""
        assert {view["transform"] for view in own} == {turned}
    if part.distributions:
        with pytest.raises(FedbenchError, match="every client has its own transform for each image; leave --image out"):
            draws("images", "--partition", part.id, "--image", "3")
    else:
        assert panel_of(draws, "--partition", part.id, "--image", "3")["common"]


def test_titles_stay_in_cells_and_a_figure_by_its_kind_is_of_any_partition(
    store: Store, draws: Draws, tmp_path: Path
) -> None:
    """Steps of a transform are not torn apart, and lines are as long as there is room; cells stand in a grid."""
    look = str(Transform(gamma=0.75, hue=-0.05, saturation=0.7, posterize=2))
    for client, said, width, lines in (
        (3, look, 24, ["client 3", "gamma 0.75, hue -0.05,", "saturation 0.7, 2 bits"]),
        (0, "0, 1 rotated 90°; 2 rotated 180°", 18, ["client 0", "0, 1 rotated 90°;", "2 rotated 180°"]),
        (1, "", 10, ["client 1"]),
    ):
        assert images._title({"client": client, "transform": said}, width).split("\n") == lines
    assert [images._grid(cells) for cells in (1, 8, 10, 7, 32)] == [(1, 1), (2, 4), (2, 5), (2, 4), (4, 8)]
    part = partition(store, 3)
    for name in (name for name, figure in figures.free().items() if "partition" in figures.kind_of(figure).options):
        draws(name, "--partition", part.id, "-o", f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")


def test_partitions_by_their_ids_and_by_filters_of_runs(store: Store, lab: Lab, draws: Draws) -> None:
    one, other, lost = partition(store, 3), partition(store, 4), partition(store, 5)
    setting = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    for part, method in ((one, "fedavg"), (one, "feddrm"), (other, "feddrm"), (lost, "local")):
        lab.run(replace(setting, partition=part.spec), method)

    def ids(*filters: str) -> list[str]:
        return [panel["partition"] for panel in json.loads(draws("partition", *filters, "--json").stdout)["panels"]]

    assert ids(other.id[:8], one.id) == [other.id, one.id]
    assert ids("method=feddrm") == [one.id, other.id]
    assert ids("method=feddrm", "clients=4") == [other.id]
    draws("images", "method=feddrm", "--client", "1", "-o", "images.svg")
    store.remove("partition", lost.id)
    message = f"partition {lost.id} of run .* is no more; 'fedbench partition' makes it again"
    with pytest.raises(FedbenchError, match=message):
        draws("partition", "method=local")


@pytest.mark.slow
def test_the_paper_s_image(data_root: Path, store: Store, real_images: RealImages) -> None:
    """A bird, under the eight looks of each level and the 32 of the pool."""
    real_images.lend(store.home, "cifar10")
    request = figures.Request(Frame.of(store), [data_root])
    image = real_images.load("cifar10").images[6:7]
    for number, looks in ((8, 8), (11, 8), (12, 8), (10, 32)):
        figure = figures.load(f"feddrm/{number}")
        rows = figures.kind_of(figure).rows(request)
        assert (len({row["transform"] for row in rows}), len(rows)) == (looks, looks)
        assert {(row["sample"], row["class"]) for row in rows} == {(6, "bird")}
        transforms = partitions.read(store.find(rows[0]["partition"], ("partition",))).transforms
        for row, transform in zip(rows, transforms, strict=True):
            np.testing.assert_array_equal(row["pixels"], apply(image, transform)[0])


RISING = [(float(t), 10.0 * t) for t in range(1, 11)]
FALLING = [(float(t), 100 - 5.0 * t) for t in range(1, 11)]


def printed(lines: dict[str, Points], width: int = 60, encoding: str = "utf-8", height: int = 7) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=out, width=width).print(text_curves(lines, "round", "accuracy (%)", height))
    out.seek(0)
    return out.read().splitlines()


def test_charts_in_letters_of_lines_a_point_none_and_without_braille() -> None:
    title, *rows, axis, rising, falling = printed({"up": RISING, "down": FALLING})
    assert title == "accuracy (%)"
    assert len(rows) == 7
    assert rows[0].startswith("100 │")
    assert rows[0].endswith("⠁ 1") or rows[0].endswith("⠉ 1")
    assert rows[-1].startswith(" 10 │⣀") or rows[-1].startswith(" 10 │⡠")
    (end,) = (i for i, row in enumerate(rows) if row.endswith(" 2"))  # 50 of 10 to 100
    assert end == 3
    assert axis.split() == ["1", "round", "10"]
    assert (rising, falling) == ("1 up  100 at the end", "2 down  50 at the end")
    _, *rows, _, _ = printed({"once": [(20.0, 70.0)]})
    assert [row for row in rows if row.strip().startswith("70")] == [rows[3]]
    assert rows[3].split("│")[1].strip() == "1"
    assert not any(letter in "".join(rows) for letter in "⠁⣀⠤")
    with pytest.raises(ValueError, match="needs a point"):
        text_curves({"nothing": []}, "round", "accuracy")
    rows = printed({"up": RISING}, encoding="ascii")
    assert "*" in rows[1]
    assert all(row.isascii() for row in rows)
    _, *rows, _, _ = printed({"up": [(1.0, 10.0), (2.0, math.nan), (9.0, 10.0), (10.0, 10.0)]})
    dots = [row.split("│")[1] for row in rows if "│" in row and row.split("│")[1].strip(" 1")]
    assert len(dots) == 1
    assert len(dots[0].split()) == 3  # a point, the stroke after the break, the line's number
    for width in (20, 60, 200):  # as wide as the terminal, up to a limit
        assert max(map(len, printed({"up": RISING}, width))) <= min(width, 90)


# -- what would lie over one another -----------------------------------------------------------------------------


def test_long_labels_of_mixed_settings_stay_with_their_axes(lab: Lab, setting: Setting) -> None:
    for i, method in enumerate(("fedavg", "feddrm", "local")):
        mixed = {"lr": 0.1 + i, "momentum": 0.5 + i / 10, "batch_size": 8 + i, "rounds": 8 + i}
        lab.run(replace(setting, **mixed), method, clients=some(0.5, 0.6, 0.7, 0.8))
    picture = picture_of("clients", lab.store)
    picture.draw_without_rendering()
    left, right = picture.axes
    assert (
        left.get_xlabel().replace("\n", " ").startswith("FedAvg, rounds 8, batch size 8, lr 0.1, momentum 0.5: client")
    )
    assert "lr\n" not in left.get_xlabel()
    below = [axes.xaxis.label.get_window_extent() for axes in (left, right)]
    assert 0 <= below[0].x0 < below[0].x1 < below[1].x0 < below[1].x1 <= picture.bbox.width
    for axes in (left, right):
        beside, within = axes.yaxis.label.get_window_extent(), axes.get_window_extent()
        assert within.y0 - 1 <= beside.y0 < beside.y1 <= within.y1 + 1


def test_equal_curves_are_both_seen(lab: Lab, setting: Setting) -> None:
    """By the colours that the picture has beyond its legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for method in ("fedavg", "feddrm", "local"):
        lab.run(setting, method, metrics=rising(0.1))
    picture = picture_of("curves", lab.store)
    for line in picture.axes[0].lines:
        line.set_marker("")
    canvas = FigureCanvasAgg(picture)
    picture.set_dpi(200)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    box = picture.axes[0].get_window_extent()
    drawn = pixels[len(pixels) - int(box.y1) : len(pixels) - int(box.y0), int(box.x0) : int(box.x1)].reshape(-1, 3)
    colours = [tuple(int(line.get_color()[i : i + 2], 16) for i in (1, 3, 5)) for line in picture.axes[0].lines]
    seen = [int((drawn == colour).all(axis=1).sum()) for colour in colours]
    assert min(seen) > 0.6 * max(seen) > 100, seen
