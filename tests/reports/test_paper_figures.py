"""Figures of FLUX, FedDRM and pFedFDA, from small artifacts: numbers, pictures, and what is said of what is missing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, mean, pstdev, stdev
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import Result

from fedbench import data as datasets
from fedbench import partitions
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms.corruption import CORRUPTIONS
from fedbench.planner import table as tables
from fedbench.planner.settings import sketch
from fedbench.reports import figures
from fedbench.reports.figures.kinds import beta, cells, descriptors, drift
from fedbench.reports.figures.kinds.drift import CLIENT, RATIO, SEEDS, TARGET
from fedbench.reports.figures.style import COLOURS, line_looks
from fedbench.results.run import State
from fedbench.specs import Setting
from fedbench.store import Store
from tests.reports.conftest import Draws, Lab, of_csv
from tests.support.figures_lab import (
    FOUND,
    GROUPS,
    SHIFTS,
    betas,
    by_epochs,
    corrupted_digits,
    described,
    described_run,
    descriptors_of,
    drawn,
    fill_epochs,
    fill_series,
    level,
    panels_of,
    picture_of,
    rows_of,
    run_of_clients,
)
from tests.theory import fedavg

LEVELS, SCALING, ROUNDS, THRESHOLDS, PLANE, FOUR = (figures.load(f"flux/{n}") for n in (4, 5, 8, 10, 11, 12))


def _mnist(setting: Setting) -> bool:
    return setting.partition.dataset.name == "mnist"


def test_levels_are_means_over_the_shifts(here: Lab, draws: Draws) -> None:
    fill_series(here, "flux/levels_mnist", level(1, 3), [("flux", {}), ("fedavg", {})])
    result = draws("flux/4", "--csv")
    rows = of_csv(result.stdout)
    assert len(rows) == 2 * 2 * 2
    for r in rows:
        n, test = int(r["x"]), r["panel"] == "Test phase"
        parts = [0.5 + 0.03 * SHIFTS.index(s) + 0.01 * n for s in SHIFTS if not (test and s == "pyx")]
        assert float(r["mean"]) == pytest.approx(100 * fmean(parts) / (2 if test else 1))
        assert (r["axis"], r["seeds"], r["std"], r["error"], r["reported"]) == ("level", "1", "", "", "")
        assert len(r["runs"].split()) == len(parts)
    assert {r["line"] for r in rows} == {"FLUX", "FedAvg"}
    told = json.loads(draws("flux/4", "--json").stdout)
    # ATP has no known association and pFedMe no test phase: nothing of theirs is missing there.
    assert len(told["missing"]) == 2 * 11 * 8 - len(rows)
    assert not any(m.startswith(("ATP at Known", "pFedMe at Test")) for m in told["missing"])
    assert result.stderr.startswith("flux/4 lacks FedAvg at Known association/Level 2 (missing), FedAvg at ")
    rest, command = len(told["missing"]) - 8, "fedbench train --table flux/levels_mnist --budget paper"
    assert result.stderr.endswith(f" and {rest} more; to fill them: {command}\n")
    # FLUX is no better than FedAvg at levels 1 and 3 here, and nothing is known of the severe ones.
    assert [c["state"] for c in told["claims"]] == ["fails", "not measured", "not measured"]


def test_error_bars_of_levels_are_the_tables_own(here: Lab) -> None:
    fill_series(here, "flux/levels_mnist", level(2, 3), [("flux", {})], "paper")
    shown, _ = rows_of(LEVELS, here.store, budget="paper")
    point = shown[0]
    spread = 100 * pstdev(0.002 * k * k for k in range(5))
    assert (point["line"], point["seeds"], point["x"]) == ("FLUX", 5, 2)
    assert point["error"] == point["std"] == pytest.approx(spread)
    picture = drawn(LEVELS, shown)
    (bars,) = picture.axes[0].collections
    np.testing.assert_allclose(np.ptp(bars.get_segments()[0], axis=0), [0, 2 * spread])
    assert "budget paper, 10 rounds, 5 seeds" in picture.get_suptitle()
    one, _ = rows_of(LEVELS, here.store, budget="paper", seed=43)
    assert one[0]["mean"] == pytest.approx(100 * (fmean(0.5 + 0.03 * i for i in range(4)) + 0.02 + 0.002))


def test_the_picture_of_levels(here: Lab) -> None:
    """A line is broken where cells are missing: a stroke over them would look as if it said something of them."""
    fill_series(here, "flux/levels_mnist", level(1, 2, 5, 6, 7, 8), [("flux", {})])
    fill_series(here, "flux/levels_mnist", lambda s: True, [("flux", {"clustering": "prior"}), ("ifca", {})])
    shown, _ = rows_of(LEVELS, here.store)
    picture = drawn(LEVELS, shown)
    known, test = picture.axes
    assert (known.get_title(), test.get_title()) == ("Known association", "Test phase")
    assert known.get_ylim() == test.get_ylim()
    assert known.get_ylim()[0] <= 20 < 100 <= known.get_ylim()[1]  # the axis of the paper's plotting script
    assert [t.get_text() for t in known.get_xticklabels()] == list("12345678")
    assert [len(axes.lines) for axes in picture.axes] == [3, 3]
    assert [line.get_linewidth() > 1.5 for line in known.lines] == [False, True, True]
    ends = {t.get_text() for t in test.texts}
    names = [t.get_text() for legend in picture.legends for t in legend.get_texts()]
    assert (ends, names) == ({"IFCA", "FLUX", "FLUX-prior"}, []), "named at the lines' ends"
    assert shown[0]["gaps"]["FLUX"] == [3, 4]
    broken = [np.flatnonzero(np.isnan(line.get_ydata())).tolist() for line in known.lines]
    assert broken == [[], [2, 3], []]
    for line in known.lines:
        np.testing.assert_allclose(line.get_xdata(), range(1, 9))


def test_what_the_paper_reports_doubles_no_line_and_twelve_methods_are_told_apart(here: Lab) -> None:
    fill_series(here, "flux/levels_mnist", level(1, 2), [("flux", {})])
    shown, _ = rows_of(LEVELS, here.store, compare=True)
    trusted = tables.load("flux/levels_mnist").trusted
    told = {(row["line"], f"{row['panel']}/Level {row['x']}"): (row["reported"], row["reported_std"]) for row in shown}
    assert told == trusted
    assert "ATP" not in {row["line"] for row in shown}, "its summaries are no target"
    picture = drawn(LEVELS, shown)
    dotted = [line for line in picture.axes[0].lines if line.get_linestyle() == ":"]
    assert len(dotted) == 10, "a line that is measured has ticks instead, so that none has a second one beside it"
    (paper,) = (line for line in picture.axes[0].lines if line.get_marker() == "_")
    reported = [trusted["FLUX", f"Known association/Level {n}"][0] for n in range(1, 9)]
    assert (paper.get_linestyle(), list(paper.get_ydata())) == ("None", reported)
    assert paper.get_color() == COLOURS[0]
    assert max(line.get_linewidth() for line in dotted) < 0.8
    levels = [trusted["FLUX-prior", f"Known association/Level {n}"][0] for n in range(1, 9)]
    assert any(list(line.get_ydata()) == levels for line in dotted)
    assert [t.get_text() for t in picture.legends[0].get_texts()[-2:]] == ["the paper's", "the paper's, not measured"]
    plain, _ = rows_of(LEVELS, here.store)
    assert not [line for line in drawn(LEVELS, plain).axes[0].lines if line.get_linestyle() == ":"]
    looks = line_looks(shown[0]["lines"], LEVELS.series.bold)
    assert list(looks) == ["FLUX", "FLUX-prior", *(r.label for r in tables.load("flux/10").rows[:-2])]
    assert len({look["marker"] for look in looks.values()}) == 12
    assert len({(look["color"], look["markerfacecolor"] == "white") for look in looks.values()}) == 12


def test_four_data_sets_stand_side_by_side(here: Lab) -> None:
    """The paper's Figure 12: known association in the first row, the test phase in the second."""
    fill_series(here, "flux/levels_mnist", level(1), [("flux", {}), ("fedavg", {})])
    here.dataset("fashion_mnist")
    shown, remarks = rows_of(FOUR, here.store, compare=True)
    assert [*panels_of(shown)][:3] == [
        "MNIST, known association",
        "MNIST, test phase",
        "FMNIST, known association",
    ]
    picture = drawn(FOUR, shown)
    rows = by_key((axes.get_subplotspec().rowspan.start, axes.get_title()) for axes in picture.axes)
    data_sets = ("MNIST", "FMNIST", "CIFAR-10", "CIFAR-100")
    assert [[" ".join(title.split()) for title in row] for row in rows.values()] == [
        [f"{name}, {condition}" for name in data_sets] for condition in ("known association", "test phase")
    ]
    limits = [axes.get_ylim() for axes in picture.axes]
    assert limits[:4] == limits[4:]  # a data set's panels have one axis
    assert len(set(limits[:4])) > 1
    assert sum("cifar100 are not available" in r for r in remarks) == 1
    texts = [claim["text"] for claim in shown[0]["claims"]]
    assert len(texts) == 12
    assert texts[0].startswith("MNIST: FLUX outperforms")
    alone, _ = rows_of(FOUR, here.store)
    assert {row["panel"]: row["table"] for row in alone} == dict.fromkeys(panels_of(alone), "flux/levels_mnist")
    assert len(panels_of(alone)) == 2


def test_scaling_has_a_panel_of_seconds_in_octaves(here: Lab) -> None:
    fill_series(here, "flux/51", lambda s: True, [("flux", {}), ("feddrift", {})])
    shown, _ = rows_of(SCALING, here.store)
    panels = panels_of(shown)
    assert [lines["FLUX"][0]["unit"] for lines in panels.values()] == ["%", "%", "s"]
    *_, time = panels.values()
    assert [(row["x"], row["mean"]) for row in time["FLUX"]] == [(k, 4.0 * k) for k in (5, 25, 50, 100)]
    assert [row["x"] for row in time["FedDrift"]] == [5, 25, 50], "the paper has none with 100 clients"
    assert not any("FedDrift at" in m for m in shown[0]["missing"])
    axes = drawn(SCALING, shown).axes
    assert [a.get_yscale() for a in axes] == ["linear", "linear", "log"]
    assert axes[2].yaxis.get_transform().base == 2
    assert axes[2].get_ylabel() == "seconds"
    np.testing.assert_allclose(axes[0].get_xticks(), np.log2([5, 25, 50, 100]))
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["5", "25", "50", "100"]


def test_what_is_no_accuracy_is_drawn_from_zero_unless_far_apart() -> None:
    about: figures.Row = {"tables": ["scale/1"], "budget": "small", "axis": "clients", "table": "scale/1"}
    about |= {"panel": "A round"}
    about |= {"lines": ["FedAvg"], "line": "FedAvg", "gaps": {}, "rounds": [11]}
    cases = (("s", (0.17, 0.2, 0.18), "linear"), ("s", (1, 3, 9), "log"), ("MB", (1, 3, 9), "linear"))
    for unit, values, scale in cases:
        points = zip((10, 30, 100), values, strict=True)
        rows = [{**about, "unit": unit, "x": x, "mean": mean, "seeds": 1} for x, mean in points]
        (axes,) = drawn(figures.load("scale/1"), rows).axes
        assert (axes.get_yscale(), axes.get_ylabel()) == (scale, {"s": "seconds", "MB": "MB"}[unit])
        low, high = axes.get_ylim()
        assert high > max(values)
        assert scale == "log" or low == 0


def test_the_grids_rows_and_levels_are_those_of_the_paper_and_flux_own_choice_costs_no_run(here: Lab) -> None:
    """Two rotations in three colours; three classes; two classes in four rotations (App. D.1)."""
    for name, of in (("figure8", 3), ("figure10", 2)):
        table = tables.load(f"flux/{name}")
        assert len(table.measured) == 2 * 3 * of
        for column in table.measured:
            p = sketch(table, column, "paper").partition
            assert p.options["level"] == {"px": 5, "py": 8, "pxy": 2}[p.shift]
        assert [len(c.of) for c in table.printed] == [3] * 2 * of
        assert {c.spread for c in table.printed} == {"rms"}
    eight, ten = tables.load("flux/figure8").rows, tables.load("flux/figure10").rows
    assert [r.params.get("start") for r in eight] == [*range(1, 10), None]
    assert [r.params["threshold"] for r in ten] == [0.8, 0.6, 0.4, 0.2, 0.1, 0.005, 0.06]
    assert {r.method for r in (*eight, *ten)} == {"flux"}
    assert [r.label for r in (*eight, *ten) if r.added] == ["Own choice", "T = 0.06"]

    def jobs(name: str, row: str) -> set[str]:
        return {job.setting.id for c in here.cells(name, "paper").all if c.row.label == row for job in c.specs}

    apart = [jobs(f"flux/{n}", "FLUX") for n in (13, 15, 18, 33, 35, 38)]  # of MNIST and CIFAR-10, which are at hand
    own = jobs("flux/figure8", "Own choice")
    assert len(own) == 2 * 3 * 5
    assert own <= set().union(*apart)


def test_accuracy_by_the_round_of_the_clustering(here: Lab, draws: Draws, tmp_path: Path) -> None:
    """FLUX's own choice holds at every round, and is no point of the axis: a level alone is no figure."""
    fill_series(here, "flux/figure8", _mnist, [("flux", {})], "paper")
    words = "no cell of table flux/figure8 along its axis is measured at budget paper, and flux/8 shows nothing else"
    with pytest.raises(FedbenchError, match=words):
        draws("flux/8", "--budget", "paper")
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []
    fill_series(here, "flux/figure8", _mnist, [("flux", {"start": t}) for t in (2, 9, 4)], "paper")
    rows = of_csv(draws("flux/8", "--budget", "paper", "--csv").stdout)
    base = 50 + fmean((100 * 0.03 * SHIFTS.index(s) + n for s, n in (("px", 5), ("py", 8), ("pxy", 2))))
    base += 100 * fmean(0.002 * k * k for k in range(5))
    spread = 100 * pstdev(0.002 * k * k for k in range(5))
    assert [(r["panel"], r["line"], r["x"]) for r in rows] == [
        ("MNIST", line, x) for line in ("Known association", "Test phase") for x in ("2", "4", "9", "")
    ]
    for r in rows:
        half = 2 if r["line"] == "Test phase" else 1
        assert float(r["mean"]) == pytest.approx((base + 0.1 * float(r["x"] or 0)) / half)
        assert float(r["std"]) == pytest.approx(spread / half)
        assert float(r["error"]) == pytest.approx(spread / half / math.sqrt(5)), "a standard error"
    shown, remarks = rows_of(ROUNDS, here.store, budget="paper")
    assert "fashion_mnist are not available" in remarks[0]
    picture = drawn(ROUNDS, shown)
    (axes,) = picture.axes
    across = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in across] == pytest.approx([base, base / 2])
    assert {t.get_text() for t in picture.legends[0].get_texts()} == {"Known association", "Test phase", "own choice"}


def test_accuracy_by_threshold(here: Lab) -> None:
    fill_series(here, "flux/figure10", _mnist, [("flux", {"threshold": v}) for v in (0.8, 0.005, 0.06)])
    shown, _ = rows_of(THRESHOLDS, here.store)
    (lines,) = panels_of(shown).values()
    assert [row["x"] for row in lines["Test phase"]] == [0.005, 0.06, 0.8]
    (axes,) = drawn(THRESHOLDS, shown).axes
    assert list(axes.get_xticks()) == [*range(7)]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.005", "0.06", "0.1", "0.2", "0.4", "0.6", "0.8"]
    low, high = axes.get_ylim()
    assert high - low >= 4, "differences that are none must not look like some"


def test_the_plane_is_scikit_learns_pca() -> None:
    from sklearn.decomposition import PCA

    rows = described().astype(np.float64)
    place, share = descriptors.plane(rows)
    reference = PCA(2, svd_solver="full").fit(rows)
    theirs = reference.transform(rows)
    np.testing.assert_allclose(np.abs(place), np.abs(theirs), atol=1e-8)
    np.testing.assert_allclose(share, reference.explained_variance_ratio_)
    axes = np.linalg.lstsq(rows - rows.mean(axis=0), place, rcond=None)[0]
    assert (axes[np.abs(axes).argmax(axis=0), [0, 1]] > 0).all()
    for shape in ((1, 5), (6, 1), (3, 4)):  # nothing to tell apart, or one axis alone
        place, share = descriptors.plane(np.ones(shape))
        assert (place.shape, share, np.abs(place).max()) == ((shape[0], 2), (0.0, 0.0), 0)
    assert descriptors.plane(rows[:, :1])[1] == (pytest.approx(1), 0)


def test_descriptors_of_a_run_and_their_picture(store: Store, draws: Draws) -> None:
    rows = described()
    id = described_run(store, descriptors_of(rows))
    (panel,) = json.loads(draws("flux/11", "--run", id[:8], "--json").stdout)["panels"]
    place, share = descriptors.plane(rows.astype(np.float64))
    assert (panel["run"], panel["length"], panel["clusters"], panel["true_clusters"]) == (id, 12, 2, 3)
    assert panel["variance"] == pytest.approx(share)
    assert [(c["client"], c["cluster"], c["group"]) for c in panel["rows"]] == list(
        zip(range(6), FOUND, GROUPS, strict=True)
    )
    np.testing.assert_allclose([(c["x"], c["y"]) for c in panel["rows"]], place)
    lines = of_csv(draws("flux/11", "--run", id, "--csv").stdout)
    assert [line["cluster"] for line in lines] == ["7", "7", "3", "3", "3", ""]
    assert "6 clients of 3 true distributions in 2 clusters (of 3, 2)" in draws("flux/11", "--run", id).stdout
    panel = descriptors.of_run(store.open("run", described_run(store)))
    place = np.array([(row["x"], row["y"]) for row in panel])
    picture = drawn(PLANE, panel)
    (axes,) = picture.axes
    dots = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    np.testing.assert_allclose([(d.get_xdata()[0], d.get_ydata()[0]) for d in dots], place)
    colours, markers = [d.get_color() for d in dots], [d.get_marker() for d in dots]
    assert [colours.index(c) for c in colours] == [0, 0, 2, 2, 2, 5], "a colour is a cluster"
    assert [markers.index(m) for m in markers] == [0, 0, 2, 2, 4, 4], "a marker is a true group"
    assert [t.get_text() for t in axes.texts] == ["1 (2)", "2 (3)"], "numbers say it without colour"
    middle = place[2:5].mean(axis=0)
    np.testing.assert_allclose(axes.texts[1].xy, middle)
    ends = [line.get_xydata() for line in axes.lines if line not in dots]
    assert sum(np.allclose(e[0], middle) for e in ends) == 3
    texts = [t.get_text() for t in picture.legends[0].get_texts()]
    assert texts == ["true group 1", "true group 2", "true group 3", "cluster found (its clients)"]


@pytest.mark.parametrize("clients", [1, 4])
def test_not_all_clients_described_themselves(store: Store, clients: int) -> None:
    rows = described(clients=clients)
    panel = descriptors.of_run(store.open("run", described_run(store, descriptors_of(rows, range(6 - clients, 6)))))
    assert [row["client"] for row in panel] == list(range(6 - clients, 6))
    assert [row["group"] for row in panel] == GROUPS[6 - clients :]
    assert len(figures.render(figures.kind_of(PLANE), panel, "svg")) > 1000


def test_equal_descriptors_and_many_clusters_are_drawn(store: Store) -> None:
    id = described_run(store, descriptors_of(np.ones((6, 4), np.float32)))
    (axes,) = drawn(PLANE, descriptors.of_run(store.open("run", id))).axes
    assert axes.get_xlim() == (-1, 1)
    n, rng = 40, np.random.default_rng(0)
    about = {"panel": "", "true_clusters": n, "variance": (0.5, 0.2)}
    points = enumerate(rng.normal(size=(n, 2)).tolist())
    picture = drawn(PLANE, [{**about, "client": i, "cluster": i, "group": i, "x": x, "y": y} for i, (x, y) in points])
    assert [t.get_text() for t in picture.axes[0].texts] == [str(i + 1) for i in range(n)]
    assert len(picture.legends[0].get_texts()) == 13


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, r"run \w+ \(flux\) stored no descriptors of its clients; choose a run of flux that clustered"),
        (descriptors_of(described(), [0, 1, 2, 3, 4, 6]), "descriptors must name each of the run's 6 clients once"),
        (descriptors_of(described(), [0, 1, 2, 3, 4, 4]), "descriptors must name each of the run's 6 clients once"),
        (descriptors_of(np.full((6, 3), np.nan, np.float32)), "holds a value that is not finite"),
        (pa.table({"client": [0]}), "table descriptors has no column 'descriptor'"),
        (pa.table({"client": [0, 1], "descriptor": [[1.0], [1.0, 2.0]]}), "must be of one length"),
        (pa.table({"client": [0], "descriptor": [[]]}), "must be of one length"),
    ],
)
def test_a_run_without_sound_descriptors(store: Store, draws: Draws, table: pa.Table | None, message: str) -> None:
    id = described_run(store, table, kept=table is not None)
    with pytest.raises(FedbenchError, match=message):
        draws("flux/11", "--run", id)


def test_the_figures_own_runs_and_series(here: Lab, draws: Draws) -> None:
    with pytest.raises(
        FedbenchError,
        match=r"the run of flux/11 is not there \(FLUX, Known association/Level 2, "
        r"budget small: missing\); make it: fedbench train --table flux/12",
    ):
        draws("flux/11")
    setting = here.cells("flux/12").settings["Known association/Level 3"][0]
    assert (setting.partition.shift, setting.partition.options.get("level")) == ("px", 3), "a bank of four looks"
    id = described_run(here.store, setting=setting)
    shown, remarks = rows_of(PLANE, here.store)
    assert {(row["panel"], row["run"]) for row in shown} == {("MNIST, 4 distributions", id)}
    assert drawn(PLANE, shown).get_suptitle() == "1 of 6 cells measured"
    assert len(remarks) == 5
    assert sum("cifar100" in r for r in remarks) == 3
    for figure in (LEVELS, SCALING, ROUNDS, THRESHOLDS, FOUR):
        for name in figure.series.tables.values():
            table = tables.load(name)
            assert set(figure.series.bold) <= {r.label for r in table.rows}
            x = cells.WAYS[figure.kind].x
            for row in table.rows:
                for column in table.printed:
                    assert x(table, row, column, figure.series, "small") is not None or row.added


QUANTITIES = ("system_accuracy", "average_accuracy", "routing_accuracy")


def same(value: float) -> dict[str, Callable[[int], float]]:
    """System accuracy as given, average accuracy 0.1 above, routing accuracy 0.1 below."""
    return {q: lambda t, v=value + d: v for q, d in zip(QUANTITIES, (0.0, 0.1, -0.1), strict=True)}


def means(result: Result) -> dict[tuple[str, str, float], float]:
    return {(r["panel"], r["line"], float(r["x"])): float(r["mean"]) for r in of_csv(result.stdout)}


def ticks(name: str, store: Store) -> list[list[str]]:
    return [[label.get_text() for label in axes.get_xticklabels()] for axes in picture_of(name, store).axes]


def test_accuracies_by_lambda_and_by_network_and_none_without_a_router(lab: Lab, draws: Draws) -> None:
    setting = lab.setting("feddrm/figure4", "system accuracy/Dir-0.3")
    for weight in (0.3, 0.8):
        lab.run(setting, "feddrm", {"lambda": weight}, metrics=same(weight / 2))
    found = means(draws("feddrm/4", "--csv"))
    assert found == {
        ("Dir-0.3", f"{q} accuracy", weight): pytest.approx(100 * (weight / 2 + d))
        for weight in (0.3, 0.8)
        for q, d in (("system", 0.0), ("average", 0.1), ("routing", -0.1))
    }
    assert ticks("feddrm/4", lab.store) == [["0.3", "0.5", "0.6", "0.7", "0.8"]]
    broken = [np.isnan(line.get_ydata()).tolist() for line in picture_of("feddrm/4", lab.store).axes[0].lines]
    assert broken == [[False, True, True, True, False]] * 3  # no line's cell is measured there
    # Depth `deep` is the network's default, so that its runs are those of plain lenet_gn.
    setting = lab.setting("feddrm/figure6", "system accuracy/Dir-0.3")
    for i, model in enumerate(("lenet_gn:branch=none", "lenet_gn:branch=shallow", "lenet_gn")):
        lab.run(replace(setting, model=model), "feddrm", metrics=same(0.3 + 0.1 * i))
    found = means(draws("feddrm/6", "--csv"))
    assert {x: v for (_, line, x), v in found.items() if line == "system accuracy"} == {
        0: pytest.approx(30),
        1: pytest.approx(40),
        3: pytest.approx(50),
    }
    assert ticks("feddrm/6", lab.store) == [["none", "shallow", "mid", "deep"]]
    # A run of FedAvg in the table's setting is a row more, without a number and without a complaint.
    setting = lab.setting("feddrm/seeds", "Dir-0.3/Routing")
    lab.run(setting, "feddrm", metrics=same(0.5))
    lab.run(setting, "fedavg")
    grid = lab.grid("feddrm/seeds", yours=True)
    assert grid.problems == ()
    (line,) = (line for line in grid.lines if line.label == "FedAvg")
    states = {f"{h.group}/{h.label}": e.state for h, e in zip(grid.heads, line.entries, strict=True)}
    undefined = [states[f"Dir-0.3/{name}"] is State.UNDEFINED for name in ("Routing", "System")]
    assert undefined == [True, False]


def test_shifts_stand_in_the_figures_order_and_one_that_is_not_on_the_axis_is_an_error(lab: Lab, draws: Draws) -> None:
    for i, shift in enumerate(("low", "mid", "high")):
        setting = lab.setting("feddrm/figure5", f"System accuracy/{shift}")
        assert setting.partition.shift == shift
        lab.run(setting, "feddrm", metrics=same(0.3 + 0.1 * i))
    found = means(draws("feddrm/5", "--csv"))
    assert len(found) == 9
    for i in range(3):
        assert found["System accuracy", "FedDRM", i] == pytest.approx(30 + 10 * i)
        assert found["Routing accuracy", "FedDRM", i] == pytest.approx(20 + 10 * i)
    assert ticks("feddrm/5", lab.store) == [["low", "mid", "high"]] * 3
    assert "30.00 (low), 40.00 (mid), 50.00 (high)" in draws("feddrm/5", "-o", "f.svg").stdout
    # Figure 5 with an axis that knows two of the three shifts.
    figure = figures.load("feddrm/5")
    short = replace(figure, series=replace(figure.series, values={"low": "low", "mid": "mid"}))
    with pytest.raises(FedbenchError, match="column Routing accuracy/high has no single shift"):
        rows_of(short, lab.store)


def test_lines_by_round(lab: Lab, draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.dataset("retina")
    with pytest.raises(FedbenchError, match="no cell of table feddrm/figure7 is measured at budget small") as error:
        draws("feddrm/7")
    assert "fedbench train --table feddrm/figure7" in str(error.value.hint)
    setting, runs = lab.setting("feddrm/figure7", "RETINA/System accuracy"), {}
    assert setting.model == "cifar_cnn_projection"
    for method, lead in (("feddrm", 0.03), ("fedavgft", 0.0)):
        metrics = {
            "average_accuracy": lambda t, lead=lead: 0.5 + t / 1000 + lead,
            "system_accuracy": lambda t, lead=lead: 0.4 + t / 1000 + lead,
            "train_loss": lambda t, lead=lead: 1 / t - lead / 10,
        }
        runs[method] = lab.run(setting, method, metrics=metrics, views=("plain",)).id
    titles = ["Average accuracy", "System accuracy", "Training loss"]
    told = json.loads(draws("feddrm/7", "--json").stdout)
    assert [panel["title"] for panel in told["panels"]] == titles
    evaluated = setting.evaluated_rounds()
    for panel, unit in zip(told["panels"], ("%", "%", ""), strict=True):
        lines = dict.fromkeys((row["line"], row["run"]) for row in panel["rows"])
        assert (panel["unit"], list(lines)) == (unit, [("FedAvgFT", runs["fedavgft"]), ("FedDRM", runs["feddrm"])])
        assert [row["round"] for row in panel["rows"]] == [*evaluated] * 2
    system = [row for row in told["panels"][1]["rows"] if row["line"] == "FedDRM"]
    assert [row["value"] for row in system] == pytest.approx([100 * (0.43 + row["round"] / 1000) for row in system])
    assert [claim["state"] for claim in told["claims"]] == ["holds so far"] * 3
    rows = of_csv(draws("feddrm/7", "--csv").stdout)
    assert (len(rows), {row["run"] for row in rows}) == (3 * 2 * len(evaluated), set(runs.values()))
    said = draws("feddrm/7", "-o", "7.svg").stdout
    assert "Average accuracy (%), budget small, after the last round: FedAvgFT 60; FedDRM 63" in said
    figure, axes = figures.load("feddrm/7"), picture_of("feddrm/7", lab.store).axes
    assert [one.get_title() for one in axes] == titles
    first, second = axes[2].lines
    np.testing.assert_allclose(first.get_ydata(), 1 / np.asarray(first.get_xdata(), float))
    assert second.get_linewidth() > first.get_linewidth()  # FedDRM is what the figure is about
    table = tables.load("feddrm/figure7")
    one = replace(table, column=[replace(c, label="Metric", group=c.label) for c in table.column])
    monkeypatch.setattr(tables, "load", lambda name: one)
    titled = [*panels_of(rows_of(figure, lab.store)[0])]
    assert titled == [f"{title}, Metric" for title in titles], "a panel a column, also if columns share a label"


DRIFT = figures.load("feddrm/3")


def test_drift_of_the_two_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of FedAvg's rounds as the checks of Theorem 2.5 train them. At the first round all logits are 0, so that every
    gradient is known: E x (1/C - [class]). Without heterogeneity only the client head's one-sided labels pull apart."""
    client, target = drift.simulate(0, rounds=3)
    features, *labels = drift.sample(np.random.default_rng(0))
    assert features.shape == (3, 1000, 33)
    assert [np.unique(of).tolist() for of in labels] == [[0, 1, 2], list(range(10))]
    for head, own, classes in zip((client, target), labels, (3, 10), strict=True):
        rounds = list(fedavg.train(features, own, classes, rate=0.01, steps=10, rounds=3))[:-1]
        assert head.drift == pytest.approx([state.drift for state in rounds])
        assert head.squared_gradient == pytest.approx([state.squared_gradient for state in rounds])
        each = zip(features, own, strict=True)
        gradients = np.array([x.T @ (1 / classes - np.eye(classes)[y]) / 1000 for x, y in each])
        mean = gradients.mean(axis=0)
        expected = np.mean([np.sum((g - mean) ** 2) for g in gradients])
        assert head.drift[0] == pytest.approx(expected)
        assert head.relative[0] == pytest.approx(expected / np.sum(mean**2))
    assert (client.relative > target.relative).all()
    assert (client.drift > target.drift).all()
    monkeypatch.setattr(drift, "SPREAD", 0.0)
    client, target = drift.simulate(0, rounds=2)
    assert target.relative[0] < 0.1 < 10 < client.relative[0]


def test_both_readings_and_both_claims(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = {seed: drift.simulate(seed, rounds=4) for seed in SEEDS}
    monkeypatch.setattr(drift, "simulate", simulated.get)
    rows, _ = rows_of(DRIFT, store)
    relative, ratio = (
        {name: np.array([row["value"] for row in points]).reshape(len(SEEDS), -1) for name, points in lines.items()}
        for lines in panels_of(rows).values()
    )
    assert {name: values.shape for name, values in {**relative, **ratio}.items()} == {
        name: (len(SEEDS), 4) for name in (CLIENT, TARGET, RATIO)
    }
    for i, (client, target) in enumerate(simulated.values()):
        np.testing.assert_allclose(relative[CLIENT][i], client.drift / client.squared_gradient)
        np.testing.assert_allclose(relative[TARGET][i], target.drift / target.squared_gradient)
        np.testing.assert_allclose(ratio[RATIO][i], client.drift / target.drift)
    assert [claim["state"] for claim in rows[0]["claims"]] == ["holds"] * 2
    left, right = drawn(DRIFT, rows).axes
    assert [line.get_label() for line in left.lines] == [CLIENT, TARGET]
    np.testing.assert_allclose(right.lines[0].get_ydata(), np.median(ratio[RATIO], axis=0))
    assert len(left.collections) == 2  # the range of the seeds
    monkeypatch.setattr(drift, "simulate", lambda seed: simulated[seed][::-1])
    exchanged = rows_of(DRIFT, store)[0][0]["claims"]
    assert [claim["state"] for claim in exchanged] == ["fails", "fails"]


def test_one_seed_as_picture_text_csv_and_json(draws: Draws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "simulate", partial(drift.simulate, rounds=4))
    said = draws("feddrm/3", "--seed", "7").stdout
    assert (tmp_path / "feddrm-3.png").read_bytes().startswith(b"\x89PNG")
    assert "one seed: client head" in said
    assert "every round: holds" in said
    document = json.loads(draws("feddrm/3", "--seed", "7", "--json").stdout)
    assert document["seeds"] == [7]
    courses = [row["value"] for row in document["panels"][0]["rows"] if row["line"] == CLIENT]
    assert courses == drift.simulate(7)[0].relative.tolist()
    rows = of_csv(draws("feddrm/3", "--seed", "7", "--csv").stdout)
    own = [row for row in rows if row["line"] == CLIENT]
    assert [int(row["round"]) for row in own] == [1, 2, 3, 4]
    assert [float(row["value"]) for row in own] == courses
    assert len(rows) == 3 * 4


BETA, BUBBLES, EPOCHS = (figures.load(f"pfedfda/{n}") for n in (2, 3, 4))


def test_beta_by_corruption_and_its_picture_and_two_betas_in_two_panels(store: Store, draws: Draws) -> None:
    part, values = corrupted_digits(store), betas()
    shifts = partitions.build(part, store).transforms
    assert [s.corruption for s in shifts[:12]] == [CORRUPTIONS[c % 10] for c in range(12)]
    id = run_of_clients(store, part, {"beta": values})

    rows = of_csv(draws("pfedfda/2", "--run", id[:6], "--csv").stdout)
    assert [float(r["beta"]) for r in rows] == values
    assert [r["client"] for r in rows] == [str(c) for c in range(24)]
    assert [r["corruption"] for r in rows] == [s.corruption or "clean" for s in shifts]
    assert [r["severity"] for r in rows] == [str(s.severity or "") for s in shifts]
    assert {(r["run"], r["partition"], r["dataset"]) for r in rows} == {(id, part.id, "digits")}

    told = json.loads(draws("pfedfda/2", "--run", id, "--json").stdout)
    (panel,) = told["panels"]
    groups = panel["groups"]
    assert groups.keys() == {"clean", *CORRUPTIONS}
    assert groups["clean"]["mean"] == pytest.approx(mean(values[12:]))
    assert groups["clean"]["std"] == pytest.approx(stdev(values[12:]))
    first = [(row["client"], row["severity"]) for row in panel["rows"] if row["corruption"] == CORRUPTIONS[0]]
    assert first == [(0, 1), (10, 2)]
    assert groups[CORRUPTIONS[0]]["std"] == pytest.approx(stdev([values[0], values[10]]))
    assert groups[CORRUPTIONS[5]]["std"] is None  # one client has none
    assert panel["mean_corrupted"] == pytest.approx(mean(values[:12]))
    order = list(groups)
    assert order[0] == "clean"
    assert order[1:] == sorted(CORRUPTIONS, key=lambda name: groups[name]["mean"])
    assert [(c["text"], c["state"]) for c in told["claims"]] == [("mean β(clean) < mean β(corrupted)", "holds so far")]
    shown, _ = rows_of(BETA, store, run=run_of_clients(store, part, {"beta": values}))
    (axes,) = drawn(BETA, shown).axes
    assert [bar.get_height() for bar in axes.patches] == [groups[name]["mean"] for name in order]
    labels = [t.get_text() for t in axes.get_xticklabels()]
    assert labels[0] == "clean (12)"
    assert {"contrast (1)", "motion blur (2)"} < set(labels)
    dots = np.concatenate([c.get_offsets()[:, 1] for c in axes.collections if len(c.get_offsets())])
    assert sorted(b for b in dots if b in values) == sorted(values)
    (legend,) = axes.figure.legends
    names = [t.get_text() for t in legend.get_texts()]
    assert names == ["mean over clients", "± sd over clients", "clean client", "severity 1", "severity 2"]
    # And colour shifts are neither clean nor corrupted.
    part, values = corrupted_digits(store, "high", 8), betas(8)
    id = run_of_clients(store, part, {"beta_0": values, "beta_1": [b / 2 for b in values]})
    shown, _ = rows_of(BETA, store, run=id)
    two = [panel[0] for panel in figures.kind_of(BETA).panels(shown)]
    assert [about["column"] for about in two] == ["beta_0", "beta_1"]
    assert [list(about["groups"]) for about in two] == [["other shift"]] * 2
    means = [about["groups"]["other shift"]["mean"] for about in two]
    assert means[1] == pytest.approx(means[0] / 2)
    labels = [axes.get_ylabel().split("(")[0].strip() for axes in drawn(BETA, shown).axes]
    assert labels == ["β of the means", "β of the covariance"]


def test_the_claim_of_beta_can_fail_and_stay_open(store: Store) -> None:
    part, values = corrupted_digits(store), betas()
    said: list[str] = []
    rows, _ = rows_of(BETA, store, run=run_of_clients(store, part, {"beta": values[::-1]}), said=said)
    off = mean(values[:12]) - mean(values[12:])
    (claim,) = rows[0]["claims"]
    expected = f"fails by {off:.4g} at clean and corrupted, beta (one seed: noise unknown)"
    assert (claim["state"], claim["detail"]) == ("fails so far", expected)
    (line,) = said
    assert f"mean β {mean(values[:12]):.3f} of 12 clean clients, {mean(values[12:]):.3f} of 12 corrupted" in line
    clean = run_of_clients(store, corrupted_digits(store, "none"), {"beta": values})
    rows, _ = rows_of(BETA, store, run=clean, said=said)
    assert f"mean β {mean(values):.3f} of 24 clean clients; run" in said[1]
    assert [claim["state"] for claim in rows[0]["claims"]] == ["not measured"]


def test_a_run_without_beta(store: Store) -> None:
    part, range_of = corrupted_digits(store), r"'beta' of table clients must hold numbers in 0\.\.1"
    for lr, (notes, message) in enumerate(
        (
            ({"other": betas()}, r"run \w+ \(pfedfda\) stored no beta of its clients; choose"),
            ({"beta": [1.5] * 24}, range_of),
            ({"beta": pa.array([None] * 24, pa.float64())}, range_of),
            ({"beta": [float("nan")] * 24}, range_of),
            ({"beta": [0.5] * 3}, "table clients has 3 clients, its partition 24"),
        ),
        1,
    ):
        id = run_of_clients(store, part, notes, float(lr))
        with pytest.raises(FedbenchError, match=message):
            rows_of(BETA, store, run=id)
    with pytest.raises(FedbenchError, match="no run 'nothing'"):
        rows_of(BETA, store, run="nothing")


def test_the_run_of_the_tables_cell(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BETA.cells is not None
    with pytest.raises(FedbenchError) as missing:
        rows_of(BETA, lab.store, budget="paper")
    assert str(missing.value) == (
        "the run of pfedfda/2 is not there (pFedFDA, CIFAR10-S/100 %, budget paper: missing); make it: "
        'fedbench train --table pfedfda/1 --budget paper --column "CIFAR10-S/100 %" --method pfedfda'
    )
    asked = {}

    def of_run(run: Any, request: figures.Request, name: str) -> list[figures.Row]:
        asked["run"], asked["name"] = run.id, name
        return []

    monkeypatch.setattr(beta, "of_run", of_run)
    run = lab.run(lab.setting(BETA.cells.table, BETA.cells.column, "paper"), "pfedfda", rules="pfedfda", measure=False)
    rows_of(BETA, lab.store, budget="paper")
    assert asked == {"run": run.id, "name": "pFedFDA, CIFAR10-S, 100 %"}
    with pytest.raises(FedbenchError, match="budget paper: missing"):
        rows_of(BETA, lab.store, budget="paper", seed=7)
    lab.store.remove("dataset", next(lab.store.list("dataset")).id)
    with pytest.raises(FedbenchError, match=r"budget small: no data\); .*cifar10"):
        rows_of(BETA, lab.store)


def test_bubbles_count_what_clients_hold_and_areas_mean_the_same_in_all_panels(store: Store, draws: Draws) -> None:
    part = partitions.build(partition_spec(datasets.resolve("digits", store), "dirichlet", 7, 3, 0.7, alpha=0.2), store)
    (panel,) = json.loads(draws("pfedfda/3", "--partition", part.id, "--json").stdout)["panels"]
    for name, test in (("train", False), ("test", True)):
        counted = [np.bincount(part.label[part.rows(c, test)], minlength=10) for c in range(7)]
        assert [row[name] for row in panel["rows"]] == np.concatenate(counted).tolist()
    assert panel["partition"] == part.id
    rows = of_csv(draws("pfedfda/3", "--partition", part.id, "--csv").stdout)
    assert len(rows) == 70
    for r in rows:
        assert int(r["samples"]) == int(r["train"]) + int(r["test"])
        assert r["name"] == part.classes[int(r["class"])]

    shown, _ = rows_of(BUBBLES, store, partition=part.id)
    (axes,) = drawn(BUBBLES, shown).axes
    (dots,) = axes.collections
    places, areas = np.asarray(dots.get_offsets()).astype(int), dots.get_sizes()
    counts = np.array([row["samples"] for row in shown]).reshape(7, 10)
    assert len(places) == np.count_nonzero(counts) < 70
    np.testing.assert_allclose(areas / areas.max(), counts[places[:, 0], places[:, 1]] / counts.max())
    held = (counts > 0).sum(axis=1)
    said = draws("pfedfda/3", "--partition", part.id).stdout
    assert f"7 clients hold {counts.sum(axis=1).min()} to {counts.sum(axis=1).max()} samples" in said
    assert f"of {held.min()} to {held.max()} of 10 classes" in said
    dataset = datasets.resolve("digits", store)
    made = [partitions.build(partition_spec(dataset, "iid", m, 0, 0.7), store) for m in (3, 12)]
    shown, _ = rows_of(BUBBLES, store, filters=[part.id for part in made])
    picture = drawn(BUBBLES, shown)
    held = [sum(row["samples"] for row in panel) for panel in figures.kind_of(BUBBLES).panels(shown)]
    per_sample = [
        axes.collections[0].get_sizes().sum() / samples for axes, samples in zip(picture.axes, held, strict=True)
    ]
    assert per_sample[0] == pytest.approx(per_sample[1])
    (legend,) = picture.legends
    sizes = [int(t.get_text().replace(",", "")) for t in legend.get_texts()]
    drawn_as = [line.get_markersize() ** 2 for line in legend.get_lines()]
    assert max(sizes) <= max(row["samples"] for row in shown)
    np.testing.assert_allclose(drawn_as, np.array(sizes) * per_sample[0])
    largest = max(axes.collections[0].get_sizes().max() for axes in picture.axes) ** 0.5
    picture.draw_without_rendering()
    rows = [72 * axes.get_window_extent().height / picture.dpi / len(axes.get_yticks()) for axes in picture.axes]
    assert 0.7 * min(rows) < largest < 1.5 * min(rows)  # in points: seen, and hardly over the next class


def test_accuracy_by_epochs(lab: Lab, draws: Draws) -> None:
    made = fill_epochs(lab)
    result = draws("pfedfda/4", "--csv")
    assert result.stderr == ""
    rows = of_csv(result.stdout)
    assert len(rows) == len(made) == 20
    for r in rows:
        method = {"FedAvgFT": "fedavgft", "pFedFDA": "pfedfda"}[r["row"]]
        key = f"{r['panel']}/E = {r['epochs']}"
        clients = by_epochs(method, int(r["epochs"])).values()
        assert float(r["mean"]) == pytest.approx(mean(clients))
        assert float(r["std"]) == pytest.approx(stdev(clients))
        assert (r["clients"], r["runs"], r["seeds"]) == ("3", made[method, key], "1")
        assert int(r["rounds"]) == lab.setting("pfedfda/figure4", key).rounds
    told = json.loads(draws("pfedfda/4", "--json").stdout)
    assert [p["title"] for p in told["panels"]] == ["CIFAR100", "CIFAR100-S 25 %"]
    assert [row["epochs"] for panel in told["panels"] for row in panel["rows"]] == [1, 2, 5, 10, 20] * 4
    assert (told["budget"], told["missing"]) == ("small", [])
    claims = {c["text"]: c["state"] for c in told["claims"]}
    assert claims["pFedFDA is above FedAvgFT at every E"] == "holds so far"
    assert claims["Both methods reach a plateau after E = 5 on CIFAR100"] == "fails so far"
    lab.store.remove("run", made["pfedfda", "CIFAR100/E = 20"])  # a line ends where the cells do
    picture = drawn(EPOCHS, rows_of(EPOCHS, lab.store)[0])
    left, right = picture.axes
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines["FedAvgFT"].get_xdata()) == np.log2([1, 2, 5, 10, 20]).tolist()
    assert list(lines["pFedFDA"].get_xdata()) == np.log2([1, 2, 5, 10]).tolist()
    np.testing.assert_allclose(lines["pFedFDA"].get_ydata(), [0.31, 0.32, 0.35, 0.4])
    assert [t.get_text() for t in left.get_xticklabels()] == ["1", "2", "5", "10", "20"]
    assert not left.collections, "of one seed there is no error; the spread over clients is none"
    assert (left.get_title(), right.get_title()) == ("CIFAR100", "CIFAR100-S 25 %")
    assert "(budget small, " in picture.get_suptitle()
    assert left.get_ylabel() == "mean local test accuracy"
    assert [t.get_text() for t in right.texts] == ["FedAvgFT", "pFedFDA"]
    assert len({t.get_color() for t in right.texts}) == 2


def test_what_another_version_made_is_named(lab: Lab) -> None:
    lab.dataset("cifar100")
    setting = lab.setting("pfedfda/figure4", "CIFAR100/E = 5")
    lab.run(setting, "pfedfda", rules="pfedfda", clients={0: 0.5}, views=("plain",), version=99)
    shown, remarks = rows_of(EPOCHS, lab.store)
    assert [(row["row"], row["epochs"], row["mean"]) for row in shown] == [("pFedFDA", 5, 0.5)]
    assert remarks[0] == "pfedfda/4 shows as they are: pFedFDA at CIFAR100/E = 5 (stale)"
    assert len(shown[0]["missing"]) == 19


def test_help_names_every_figure(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(draws("--help").stdout.replace("│", " ").split())
    assert all(name in text for name in figures.free())
    listed, paper = set(), ""
    told = text.partition("The figure:")[2].partition(";")[0]
    for name, first, last, single in re.findall(r"(\w+)/|(\d+) to (\d+)|\b(?!or\b)(\w+)", told):
        paper = name or paper
        numbers = range(int(first), int(last) + 1) if first else [single] if single else []
        listed |= {f"{paper}/{number}" for number in numbers}
    assert listed == set(figures.names())
