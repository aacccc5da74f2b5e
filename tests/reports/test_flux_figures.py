"""Figures 4, 5, 8, 10, 11 and 12 of FLUX, from small artifacts, and the tables behind 8 and 10."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports import table as tables
from fedbench.reports.figures import descriptors, draw, points, series
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.numbers.measured import Value
from fedbench.reports.status.settings import sketch
from fedbench.specs import Setting
from fedbench.store import Store
from tests.reports.conftest import Draws, Lab, of_csv
from tests.support.figures_lab import (
    FOUND,
    GROUPS,
    SHIFTS,
    described,
    described_run,
    descriptors_of,
    fill_series,
    gathered,
    level,
)

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
    rest, command = len(told["missing"]) - 8, "fedbench train --table flux/levels_mnist --budget small"
    assert result.stderr.endswith(f" and {rest} more; to fill them: {command}\n")
    # FLUX is no better than FedAvg at levels 1 and 3 here, and nothing is known of the severe ones.
    assert [c["state"] for c in told["claims"]] == ["fails", "not measured"]


def test_error_bars_of_levels_are_the_tables_own(here: Lab) -> None:
    fill_series(here, "flux/levels_mnist", level(2), [("flux", {})], "paper")
    shown, _ = gathered(LEVELS, here.store, budget="paper")
    (point,) = shown.panels[0].marks.lines["FLUX"]
    spread = 100 * pstdev(0.002 * k * k for k in range(5))
    assert (point.value.seeds, point.x) == (5, 2)
    assert point.error == point.value.std == pytest.approx(spread)
    drawn = draw.draw(LEVELS, shown)
    (bars,) = drawn.axes[0].collections
    np.testing.assert_allclose(np.ptp(bars.get_segments()[0], axis=0), [0, 2 * spread])
    assert "budget paper, 10 rounds, 5 seeds" in drawn.get_suptitle()
    one, _ = gathered(LEVELS, here.store, budget="paper", seed=43)
    assert one.panels[0].marks.lines["FLUX"][0].value.mean == pytest.approx(
        100 * (fmean(0.5 + 0.03 * i for i in range(4)) + 0.02 + 0.002)
    )


def test_the_picture_of_levels(here: Lab) -> None:
    """A line is broken where cells are missing: a stroke over them would look as if it said something of them."""
    fill_series(here, "flux/levels_mnist", level(1, 2, 5, 6, 7, 8), [("flux", {})])
    fill_series(here, "flux/levels_mnist", lambda s: True, [("flux", {"clustering": "prior"}), ("ifca", {})])
    shown, _ = gathered(LEVELS, here.store)
    drawn = draw.draw(LEVELS, shown)
    known, test = drawn.axes
    assert (known.get_title(), test.get_title()) == ("Known association", "Test phase")
    assert known.get_ylim() == test.get_ylim()
    assert [t.get_text() for t in known.get_xticklabels()] == list("12345678")
    assert [len(axes.lines) for axes in drawn.axes] == [3, 3]
    assert [line.get_linewidth() > 1.5 for line in known.lines] == [False, True, True]
    assert [t.get_text() for t in drawn.legends[0].get_texts()] == ["IFCA", "FLUX", "FLUX-prior"]
    assert shown.panels[0].marks.gaps["FLUX"] == [3, 4]
    broken = [np.flatnonzero(np.isnan(line.get_ydata())).tolist() for line in known.lines]
    assert broken == [[], [2, 3], []]
    for line in known.lines:
        np.testing.assert_allclose(line.get_xdata(), range(1, 9))


def test_what_the_paper_reports_is_drawn_thin_and_dotted_and_twelve_methods_apart(here: Lab, draws: Draws) -> None:
    with pytest.raises(FedbenchError, match="no cell of table flux/levels_mnist is measured at budget small, and flux/4"
                       " shows nothing else; make them: fedbench train --table flux/levels_mnist"):  # fmt: skip
        draws("flux/4")
    fill_series(here, "flux/levels_mnist", level(1), [("flux", {})])
    shown, _ = gathered(LEVELS, here.store, compare=True)
    trusted = tables.load("flux/levels_mnist").trusted
    told = {
        (name, f"{panel.title}/Level {p.x}"): p.reported for panel in shown.panels for name, points in
        panel.marks.lines.items() for p in points
    }  # fmt: skip
    assert told == trusted
    assert "ATP" not in points.names(shown), "its summaries are no target"
    drawn = draw.draw(LEVELS, shown)
    dotted = [line for line in drawn.axes[0].lines if line.get_linestyle() == ":"]
    assert len(dotted) == 11
    assert max(line.get_linewidth() for line in dotted) < 0.8
    levels = [trusted["FLUX-prior", f"Known association/Level {n}"][0] for n in range(1, 9)]
    assert any(list(line.get_ydata()) == levels for line in dotted)
    assert drawn.legends[0].get_texts()[-1].get_text() == "the paper's"
    plain, _ = gathered(LEVELS, here.store)
    assert not [line for line in draw.draw(LEVELS, plain).axes[0].lines if line.get_linestyle() == ":"]
    shown, _ = gathered(LEVELS, here.store, compare=True)
    looks = series.looks_of(shown, LEVELS.series)
    assert list(looks) == ["FLUX", "FLUX-prior", *(r.label for r in tables.load("flux/10").rows[:-2])]
    assert len({look.marker for look in looks.values()}) == 12
    assert len({(look.colour, look.hollow) for look in looks.values()}) == 12


def test_four_data_sets_stand_below_each_other(here: Lab) -> None:
    fill_series(here, "flux/levels_mnist", level(1), [("flux", {}), ("fedavg", {})])
    here.dataset("fashion_mnist")
    shown, remarks = gathered(FOUR, here.store, compare=True)
    assert [p.title for p in shown.panels[:3]] == [
        "MNIST, known association", "MNIST, test phase", "FMNIST, known association"
    ]  # fmt: skip
    rows = {axes.get_subplotspec().rowspan.start for axes in draw.draw(FOUR, shown).axes}
    assert rows == {0, 1, 2, 3}
    assert sum("cifar100 are not at hand" in r for r in remarks) == 1
    texts = [v.claim.text for v in shown.claims]
    assert len(texts) == 8
    assert texts[0].startswith("MNIST: FLUX outperforms")
    alone, _ = gathered(FOUR, here.store)
    assert [p.marks.table for p in alone.panels] == ["flux/levels_mnist"] * 2


# -- Figure 5 ------------------------------------------------------------------------------------------------


def test_scaling_has_a_panel_of_seconds_in_octaves(here: Lab) -> None:
    fill_series(here, "flux/51", lambda s: True, [("flux", {}), ("feddrift", {})])
    shown, _ = gathered(SCALING, here.store)
    known, test, time = shown.panels
    assert (known.marks.unit, test.marks.unit, time.marks.unit) == ("%", "%", "s")
    assert [(p.x, p.value.mean) for p in time.marks.lines["FLUX"]] == [(k, 4.0 * k) for k in (5, 25, 50, 100)]
    assert [p.x for p in time.marks.lines["FedDrift"]] == [5, 25, 50], "the paper has none with 100 clients"
    assert not any("FedDrift at" in m for m in shown.about["missing"])
    axes = draw.draw(SCALING, shown).axes
    assert [a.get_yscale() for a in axes] == ["linear", "linear", "log"]
    assert axes[2].yaxis.get_transform().base == 2
    assert axes[2].get_ylabel() == "seconds"
    at = axes[0].get_xticks()
    np.testing.assert_allclose(at, np.log2([5, 25, 50, 100]))
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["5", "25", "50", "100"]


@pytest.mark.parametrize(
    ("unit", "means", "scale"), [("s", (0.17, 0.18), "linear"), ("s", (1, 9), "log"), ("MB", (1, 9), "linear")]
)
def test_what_is_no_accuracy_is_drawn_from_zero_unless_far_apart(
    unit: str, means: tuple[float, float], scale: str
) -> None:
    figure = figures.load("scale/1")
    line = [points.Point(x, Value(mean), None, None, None, ()) for x, mean in zip((10, 100), means, strict=True)]
    lines = points.Lines("scale/1", unit, (11,), ("FedAvg",), {"FedAvg": line})
    about = {"tables": ["scale/1"], "budget": "small", "axis": "clients"}
    (axes,) = draw.draw(figure, Content([Panel("A round", {}, lines)], about, [])).axes
    assert axes.get_yscale() == scale
    assert axes.get_ylabel() == {"s": "seconds", "MB": "MB"}[unit]
    if scale == "linear":
        assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > max(means)


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
        cells = here.cells(name, "paper")
        return {job.setting.id for c in cells.all if c.row.label == row for job in c.specs}

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
    shown, remarks = gathered(ROUNDS, here.store, budget="paper")
    assert "fashion_mnist are not at hand" in remarks[0]
    drawn = draw.draw(ROUNDS, shown)
    (axes,) = (a for a in drawn.axes if a.get_title())
    across = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in across] == pytest.approx([base, base / 2])
    assert {t.get_text() for t in drawn.legends[0].get_texts()} == {"Known association", "Test phase", "own choice"}


def test_accuracy_by_threshold(here: Lab) -> None:
    values = (0.8, 0.005, 0.06)
    fill_series(here, "flux/figure10", _mnist, [("flux", {"threshold": v}) for v in values])
    shown, _ = gathered(THRESHOLDS, here.store)
    (panel,) = shown.panels
    assert [p.x for p in panel.marks.lines["Test phase"]] == [0.005, 0.06, 0.8]
    (axes,) = draw.draw(THRESHOLDS, shown).axes
    assert list(axes.get_xticks()) == [0, 1, 2]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.005", "0.06", "0.8"]
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


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-9, 9, width=32)))
def test_the_plane_never_moves_clients_apart(rows: np.ndarray) -> None:
    place, share = descriptors.plane(rows)
    assert place.shape == (len(rows), 2)
    assert 0 <= share[1] <= share[0] <= 1 + 1e-9
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    assert (np.linalg.norm(place[:, None] - place[None], axis=2) <= apart + 1e-6).all()
    if np.ptp(rows, axis=0).max() == 0:
        assert share == (0.0, 0.0)
        assert np.abs(place).max() < 1e-9


def test_descriptors_of_a_run_and_their_picture(store: Store, draws: Draws) -> None:
    rows = described()
    id = described_run(store, descriptors_of(rows))
    told = json.loads(draws("flux/11", "--run", id[:8], "--json").stdout)
    (panel,) = told["panels"]
    place, share = descriptors.plane(rows.astype(np.float64))
    assert (panel["run"], panel["length"], panel["clusters"], panel["true_clusters"]) == (id, 12, 2, 3)
    assert panel["variance"] == pytest.approx(share)
    assert [(c["client"], c["cluster"], c["group"]) for c in panel["clients"]] == list(
        zip(range(6), FOUND, GROUPS, strict=True)
    )
    np.testing.assert_allclose([(c["x"], c["y"]) for c in panel["clients"]], place)
    lines = of_csv(draws("flux/11", "--run", id, "--csv").stdout)
    assert [line["cluster"] for line in lines] == ["7", "7", "3", "3", "3", ""]
    said = draws("flux/11", "--run", id).stdout
    assert "6 clients of 3 true distributions in 2 clusters (of 3, 2)" in said
    panel = descriptors.of_run(store.open("run", described_run(store)))
    drawn = draw.draw(PLANE, figures.Content([panel]))
    (axes,) = drawn.axes
    dots = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    np.testing.assert_allclose([(d.get_xdata()[0], d.get_ydata()[0]) for d in dots], panel.marks.place)
    colours, markers = [d.get_color() for d in dots], [d.get_marker() for d in dots]
    assert [colours.index(c) for c in colours] == [0, 0, 2, 2, 2, 5], "a colour is a cluster"
    assert [markers.index(m) for m in markers] == [0, 0, 2, 2, 4, 4], "a marker is a true group"
    assert [t.get_text() for t in axes.texts] == ["1 (2)", "2 (3)"], "numbers say it without colour"
    middle = panel.marks.place[2:5].mean(axis=0)
    np.testing.assert_allclose(axes.texts[1].xy, middle)
    ends = [line.get_xydata() for line in axes.lines if line not in dots]
    assert sum(np.allclose(e[0], middle) for e in ends) == 3
    texts = [t.get_text() for t in drawn.legends[0].get_texts()]
    assert texts == ["true group 1", "true group 2", "true group 3", "cluster found (its clients)"]


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_not_all_clients_described_themselves(store: Store, clients: int) -> None:
    rows = described(clients=clients)
    panel = descriptors.of_run(store.open("run", described_run(store, descriptors_of(rows, range(6 - clients, 6)))))
    assert panel.marks.client.tolist() == list(range(6 - clients, 6))
    assert panel.marks.group == tuple(GROUPS[6 - clients :])
    assert len(draw.render(PLANE, figures.Content([panel]), "svg")) > 1000


def test_equal_descriptors_and_many_clusters_are_drawn(store: Store) -> None:
    id = described_run(store, descriptors_of(np.ones((6, 4), np.float32)))
    (axes,) = draw.draw(PLANE, figures.Content([descriptors.of_run(store.open("run", id))])).axes
    assert axes.get_xlim() == (-1, 1)
    n, rng = 40, np.random.default_rng(0)
    many = tuple(range(n))
    panel = figures.Panel("", {}, descriptors.Plane(np.arange(n), rng.normal(size=(n, 2)), (0.5, 0.2), 9, many, many))
    drawn = draw.draw(PLANE, figures.Content([panel]))
    assert [t.get_text() for t in drawn.axes[0].texts] == [str(i + 1) for i in range(n)]
    assert len(drawn.legends[0].get_texts()) == 13


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, r"run \w+ \(flux\) kept no descriptors of its clients; choose a run of flux that clustered"),
        (
            descriptors_of(described(), [0, 1, 2, 3, 4, 6]),
            "descriptors must name each of the run's 6 clients once",
        ),
        (
            descriptors_of(described(), [0, 1, 2, 3, 4, 4]),
            "descriptors must name each of the run's 6 clients once",
        ),
        (descriptors_of(np.full((6, 3), np.nan, np.float32)), "holds a value that is not finite"),
        (pa.table({"client": [0]}), "table descriptors has no column 'descriptor'"),
        (pa.table({"client": [0, 1], "descriptor": [[1.0], [1.0, 2.0]]}), "must be of one length"),
        (pa.table({"client": [0], "descriptor": [[]]}), "must be of one length"),
    ],
)
def test_a_run_without_sound_descriptors(store: Store, draws: Draws, table: pa.Table | None, message: str) -> None:
    id = described_run(store, table, kept=table is not None)
    with pytest.raises(FedbenchError, match=message) as caught:
        draws("flux/11", "--run", id)
    assert "\n" not in str(caught.value)


def test_the_figures_own_runs_and_series(here: Lab, draws: Draws) -> None:
    with pytest.raises(FedbenchError, match=r"the run of flux/11 is not there \(FLUX, Known association/Level 2, "
                       r"budget small: missing\); make it: fedbench train --table flux/12"):  # fmt: skip
        draws("flux/11")
    setting = here.cells("flux/12").settings["Known association/Level 3"][0]
    assert (setting.partition.shift, setting.partition.options.get("level")) == ("px", 3), "a bank of four looks"
    id = described_run(here.store, setting=setting)
    shown, remarks = gathered(PLANE, here.store)
    assert [(p.title, p.about["run"]) for p in shown.panels] == [("MNIST, 4 distributions", id)]
    assert len(remarks) == 5
    assert sum("cifar100" in r for r in remarks) == 3
    for figure in (LEVELS, SCALING, ROUNDS, THRESHOLDS, FOUR):
        assert figure.series is not None
        for name in figure.series.tables.values():
            table = tables.load(name)
            assert set(figure.series.bold) <= {r.label for r in table.rows}
            kind = figures.kind_of(figure)
            for row in table.rows:
                for column in table.printed:
                    x = kind.x(table, row, column, figure.series, "small")
                    assert x is not None or row.added
