"""Figures 4, 5, 8, 10, 11 and 12 of FLUX, from small artifacts, and the tables behind 8 and 10."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import Result

from fedbench import declared, methods
from fedbench.errors import FedbenchError
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.reports import figures
from fedbench.reports import table as tables
from fedbench.reports.figures import descriptors, draw, points, series
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.numbers.measured import Value
from fedbench.reports.status.cells import find
from fedbench.reports.status.settings import sketch
from fedbench.specs import DatasetSpec, Setting
from fedbench.store import Store

Call = Callable[..., Result]
LEVELS, SCALING, ROUNDS, THRESHOLDS, PLANE, FOUR = (figures.load(f"flux/{n}") for n in (4, 5, 8, 10, 11, 12))
OURS = ["fedavg", "ifca", "fedrc", "fedem", "fesem", "feddrift", "cfl", "mr_mtl", "apfl_flux", "atp", "flux"]
SHIFTS = ("px", "py", "pyx", "pxy")


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


@pytest.fixture
def here(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The laboratory with FLUX's methods and MNIST."""
    monkeypatch.setattr(methods, "names", lambda: OURS)
    lab.dataset("mnist")
    return lab


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _known(setting: Setting) -> float:
    """A made-up accuracy, different for every cell and seed."""
    p = setting.partition
    return 0.5 + 0.03 * SHIFTS.index(p.shift) + 0.01 * (p.options.get("level") or 0) + 0.002 * (setting.seed - 42) ** 2


def _fill(
    lab: Any, table: str, wanted: Callable[[Setting], bool], methods: Iterable[tuple[str, Mapping[str, Any]]],
    budget: str = "small",
) -> None:  # fmt: skip
    """Runs of these methods in the wanted settings of a table, which are its row's for a method that has one; half as
    good in the test phase."""
    cells = find(tables.load(table), budget, lab.store, [])
    columns = [s for group in cells.settings.values() for s in group]
    for method, params in methods:
        same = [cell for cell in cells.all if (cell.row.method, dict(cell.row.params)) == (method, dict(params))]
        rows = [spec.setting for cell in same for spec in cell.specs]
        for s in {s.id: s for s in rows or columns}.values():
            if wanted(s):
                v = _known(s) + 0.001 * float(params.get("start", 0)) + 0.01 * float(params.get("threshold", 0))
                both = {"client_accuracy_mean": lambda t, v=v: v, "test_phase_accuracy_mean": lambda t, v=v: v / 2}
                time = {"total_runtime_seconds": 4.0 * s.partition.clients}
                lab.run(s, method, params, rules="flux", metrics=both, whole=time, views=("plain",))


def _mnist(setting: Setting) -> bool:
    return setting.partition.dataset.name == "mnist"


def _gather(figure: figures.FigureSpec, store: Store, **asked: Any) -> tuple[Any, list[str]]:
    remarks: list[str] = []
    return figures.kind_of(figure).gather(figure, figures.Ask(store, notify=remarks.append, **asked)), remarks


# -- Figures 4 and 12 ----------------------------------------------------------------------------------------


def test_levels_are_means_over_the_shifts(here: Any, call: Call) -> None:
    _fill(
        here, "flux/levels_mnist", lambda s: s.partition.options.get("level") in (1, 3), [("flux", {}), ("fedavg", {})]
    )
    result = call("flux/4", "--csv")
    rows = _rows(result.stdout)
    assert len(rows) == 2 * 2 * 2
    for r in rows:
        level, test = int(r["x"]), r["panel"] == "Test phase"
        parts = [0.5 + 0.03 * SHIFTS.index(s) + 0.01 * level for s in SHIFTS if not (test and s == "pyx")]
        assert float(r["mean"]) == pytest.approx(100 * fmean(parts) / (2 if test else 1))
        assert (r["axis"], r["seeds"], r["std"], r["error"], r["reported"]) == ("level", "1", "", "", "")
        assert len(r["runs"].split()) == len(parts)
    assert {r["line"] for r in rows} == {"FLUX", "FedAvg"}
    told = json.loads(call("flux/4", "--json").stdout)
    # ATP has no known association and pFedMe no test phase: nothing of theirs is missing there.
    assert len(told["missing"]) == 2 * 11 * 8 - len(rows)
    assert not any(m.startswith(("ATP at Known", "pFedMe at Test")) for m in told["missing"])
    assert result.stderr.startswith("flux/4 lacks FedAvg at Known association/Level 2 (missing), FedAvg at ")
    rest, command = len(told["missing"]) - 8, "fedbench train --table flux/levels_mnist --budget small"
    assert result.stderr.endswith(f" and {rest} more; to fill them: {command}\n")
    # FLUX is no better than FedAvg at levels 1 and 3 here, and nothing is known of the severe ones.
    assert [c["state"] for c in told["claims"]] == ["fails", "not measured"]


def test_error_bars_of_levels_are_the_tables_own(here: Any) -> None:
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") == 2, [("flux", {})], "paper")
    shown, _ = _gather(LEVELS, here.store, budget="paper")
    (point,) = shown.panels[0].marks.lines["FLUX"]
    spread = 100 * pstdev(0.002 * k * k for k in range(5))
    assert (point.value.seeds, point.x) == (5, 2)
    assert point.error == point.value.std == pytest.approx(spread)
    drawn = draw.draw(LEVELS, shown)
    (bars,) = drawn.axes[0].collections
    np.testing.assert_allclose(np.ptp(bars.get_segments()[0], axis=0), [0, 2 * spread])
    assert "budget paper, 10 rounds, 5 seeds" in drawn.get_suptitle()
    one, _ = _gather(LEVELS, here.store, budget="paper", seed=43)
    assert one.panels[0].marks.lines["FLUX"][0].value.mean == pytest.approx(
        100 * (fmean(0.5 + 0.03 * i for i in range(4)) + 0.02 + 0.002)
    )


def test_the_picture_of_levels(here: Any) -> None:
    _fill(here, "flux/levels_mnist", lambda s: True, [("flux", {}), ("flux", {"clustering": "prior"}), ("ifca", {})])
    shown, _ = _gather(LEVELS, here.store)
    drawn = draw.draw(LEVELS, shown)
    known, test = drawn.axes
    assert (known.get_title(), test.get_title()) == ("Known association", "Test phase")
    assert known.get_ylim() == test.get_ylim()
    assert [t.get_text() for t in known.get_xticklabels()] == list("12345678")
    assert [len(axes.lines) for axes in drawn.axes] == [3, 3]
    wide = [line for line in known.lines if line.get_linewidth() > 1.5]
    assert len(wide) == 2
    for line in known.lines:
        np.testing.assert_allclose(line.get_xdata(), range(1, 9))
    assert [t.get_text() for t in drawn.legends[0].get_texts()] == ["IFCA", "FLUX", "FLUX-prior"]


def test_a_line_is_broken_where_cells_are_missing(here: Any) -> None:
    """A stroke over levels that nobody measured would look as if it said something of them."""
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") not in (3, 4), [("flux", {})])
    _fill(here, "flux/levels_mnist", lambda s: True, [("ifca", {})])
    shown, _ = _gather(LEVELS, here.store)
    assert shown.panels[0].marks.gaps["FLUX"] == [3, 4]
    by_name = {line.get_linewidth() > 1.5: line for line in draw.draw(LEVELS, shown).axes[0].lines}
    assert [*np.flatnonzero(np.isnan(by_name[True].get_ydata()))] == [2, 3]
    assert not np.isnan(by_name[False].get_ydata()).any()


def test_twelve_methods_can_be_told_apart_without_colour(here: Any) -> None:
    shown, _ = _gather(LEVELS, here.store, compare=True)
    looks = series.looks_of(shown, LEVELS.series)
    assert list(looks) == ["FLUX", "FLUX-prior", *(r.label for r in tables.load("flux/10").rows[:-2])]
    assert len({look.marker for look in looks.values()}) == 12
    assert len({(look.colour, look.hollow) for look in looks.values()}) == 12


def test_what_the_paper_reports_is_drawn_thin_and_dotted(here: Any, call: Call) -> None:
    with pytest.raises(FedbenchError, match="no cell of table flux/levels_mnist is measured at budget small, and flux/4"
                       " shows nothing else; make them: fedbench train --table flux/levels_mnist"):  # fmt: skip
        call("flux/4")
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") == 1, [("flux", {})])
    shown, _ = _gather(LEVELS, here.store, compare=True)
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
    plain, _ = _gather(LEVELS, here.store)
    assert not [line for line in draw.draw(LEVELS, plain).axes[0].lines if line.get_linestyle() == ":"]


def test_four_data_sets_stand_below_each_other(here: Any) -> None:
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") == 1, [("flux", {}), ("fedavg", {})])
    here.dataset("fashion_mnist")
    shown, remarks = _gather(FOUR, here.store, compare=True)
    assert [p.title for p in shown.panels[:3]] == [
        "MNIST, known association", "MNIST, test phase", "FMNIST, known association"
    ]  # fmt: skip
    rows = {axes.get_subplotspec().rowspan.start for axes in draw.draw(FOUR, shown).axes}
    assert rows == {0, 1, 2, 3}
    assert sum("cifar100 are not at hand" in r for r in remarks) == 1
    texts = [v.claim.text for v in shown.claims]
    assert len(texts) == 8
    assert texts[0].startswith("MNIST: FLUX outperforms")
    alone, _ = _gather(FOUR, here.store)
    assert [p.marks.table for p in alone.panels] == ["flux/levels_mnist"] * 2


# -- Figure 5 ------------------------------------------------------------------------------------------------


def test_scaling_has_a_panel_of_seconds_in_octaves(here: Any) -> None:
    _fill(here, "flux/51", lambda s: True, [("flux", {}), ("feddrift", {})])
    shown, _ = _gather(SCALING, here.store)
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


# -- Figures 8 and 10 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "datasets"), [("figure8", 3), ("figure10", 2)])
def test_the_grids_levels_are_those_of_the_paper(name: str, datasets: int) -> None:
    """Two rotations in three colours; three classes; two classes in four rotations (App. D.1)."""
    table = tables.load(f"flux/{name}")
    assert len(table.measured) == 2 * 3 * datasets
    for column in table.measured:
        p = sketch(table, column, "paper").partition
        assert p.options["level"] == {"px": 5, "py": 8, "pxy": 2}[p.shift]
    assert [len(c.of) for c in table.printed] == [3] * 2 * datasets
    assert {c.spread for c in table.printed} == {"rms"}


def test_the_grids_rows() -> None:
    eight, ten = tables.load("flux/figure8").rows, tables.load("flux/figure10").rows
    assert [r.params.get("start") for r in eight] == [*range(1, 10), None]
    assert [r.params["threshold"] for r in ten] == [0.8, 0.6, 0.4, 0.2, 0.1, 0.005, 0.06]
    assert {r.method for r in (*eight, *ten)} == {"flux"}
    assert [r.label for r in (*eight, *ten) if r.added] == ["Own choice", "T = 0.06"]


def test_flux_own_choice_costs_no_run_of_its_own(here: Any) -> None:
    def jobs(name: str, row: str) -> set[str]:
        cells = find(tables.load(name), "paper", here.store, [])
        return {job.setting.id for c in cells.all if c.row.label == row for job in c.specs}

    apart = [jobs(f"flux/{n}", "FLUX") for n in (13, 15, 18, 33, 35, 38)]  # of MNIST and CIFAR-10, which are at hand
    own = jobs("flux/figure8", "Own choice")
    assert len(own) == 2 * 3 * 5
    assert own <= set().union(*apart)


def test_a_level_alone_is_no_figure(here: Any, call: Call, tmp_path: Path) -> None:
    """FLUX's own choice holds at every round, and is no point of the axis."""
    _fill(here, "flux/figure8", _mnist, [("flux", {})])
    words = "no cell of table flux/figure8 along its axis is measured at budget small, and flux/8 shows nothing else"
    with pytest.raises(FedbenchError, match=words):
        call("flux/8")
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


def test_accuracy_by_the_round_of_the_clustering(here: Any, call: Call) -> None:
    chosen: list[tuple[str, dict[str, Any]]] = [("flux", {"start": t}) for t in (2, 9, 4)]
    _fill(here, "flux/figure8", _mnist, [*chosen, ("flux", {})], "paper")
    rows = _rows(call("flux/8", "--budget", "paper", "--csv").stdout)
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
    shown, remarks = _gather(ROUNDS, here.store, budget="paper")
    assert "fashion_mnist are not at hand" in remarks[0]
    drawn = draw.draw(ROUNDS, shown)
    (axes,) = (a for a in drawn.axes if a.get_title())
    level = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in level] == pytest.approx([base, base / 2])
    assert {t.get_text() for t in drawn.legends[0].get_texts()} == {"Known association", "Test phase", "own choice"}


def test_accuracy_by_threshold(here: Any) -> None:
    values = (0.8, 0.005, 0.06)
    _fill(here, "flux/figure10", _mnist, [("flux", {"threshold": v}) for v in values])
    shown, _ = _gather(THRESHOLDS, here.store)
    (panel,) = shown.panels
    assert [p.x for p in panel.marks.lines["Test phase"]] == [0.005, 0.06, 0.8]
    (axes,) = draw.draw(THRESHOLDS, shown).axes
    assert list(axes.get_xticks()) == [0, 1, 2]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.005", "0.06", "0.8"]
    low, high = axes.get_ylim()
    assert high - low >= 4, "differences that are none must not look like some"


# -- Figure 11 -----------------------------------------------------------------------------------------------

GROUPS, FOUND = [0, 0, 1, 1, 2, 2], [7, 7, 3, 3, 3, None]


def _described(seed: int = 0, clients: int = 6, length: int = 12) -> np.ndarray:
    """Rows whose first two principal axes carry most of the variance."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(3, length))
    return (centres[np.array(GROUPS[:clients])] + 0.1 * rng.normal(size=(clients, length))).astype(np.float32)


def _of(rows: np.ndarray, clients: Iterable[int] | None = None) -> pa.Table:
    """The table `descriptors`."""
    flat = pa.array(rows.ravel(), pa.float32())
    named = list(range(len(rows))) if clients is None else list(clients)
    return pa.table(
        {"client": pa.array(named, pa.int32()), "descriptor": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])}
    )


def _run(store: Store, table: pa.Table | None, seed: int = 0, setting: Setting | None = None, **columns: Any) -> str:
    """The id of a run of six clients that kept these descriptors."""
    if setting is None:
        part = partition_spec(DatasetSpec("made_up", "generated", "0"), "iid", 6, 0, 0.5)
        setting = Setting(part, "custom", "lenet5", 1, 8, 0.1, seed, epochs=1)
    spec = declared.of("flux").run(setting, {})
    held = {"client": pa.array(range(6), pa.int32()), "group": GROUPS, "cluster": pa.array(FOUND, pa.int32())}
    with store.writing(spec) as writer:
        writer.table("clients", pa.table({**held, **columns}))
        writer.table("rounds", pa.table({"round": [1]}))
        if table is not None:
            writer.table("descriptors", table)
        writer.provenance = {"title": "FLUX"}
    return spec.id


def test_the_plane_is_scikit_learns_pca() -> None:
    from sklearn.decomposition import PCA

    rows = _described().astype(np.float64)
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


def test_descriptors_of_a_run(store: Store, call: Call) -> None:
    rows = _described()
    id = _run(store, _of(rows))
    told = json.loads(call("flux/11", "--run", id[:8], "--json").stdout)
    (panel,) = told["panels"]
    place, share = descriptors.plane(rows.astype(np.float64))
    assert (panel["run"], panel["length"], panel["clusters"], panel["true_clusters"]) == (id, 12, 2, 3)
    assert panel["variance"] == pytest.approx(share)
    assert [(c["client"], c["cluster"], c["group"]) for c in panel["clients"]] == list(
        zip(range(6), FOUND, GROUPS, strict=True)
    )
    np.testing.assert_allclose([(c["x"], c["y"]) for c in panel["clients"]], place)
    lines = _rows(call("flux/11", "--run", id, "--csv").stdout)
    assert [line["cluster"] for line in lines] == ["7", "7", "3", "3", "3", ""]
    said = call("flux/11", "--run", id).stdout
    assert "6 clients of 3 true distributions in 2 clusters (of 3, 2)" in said


def test_the_picture_of_descriptors(store: Store) -> None:
    panel = descriptors.of_run(store.open("run", _run(store, _of(_described()))))
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
    rows = _described(clients=clients)
    panel = descriptors.of_run(store.open("run", _run(store, _of(rows, range(6 - clients, 6)))))
    assert panel.marks.client.tolist() == list(range(6 - clients, 6))
    assert panel.marks.group == tuple(GROUPS[6 - clients :])
    assert len(draw.render(PLANE, figures.Content([panel]), "svg")) > 1000


def test_equal_descriptors_and_many_clusters_are_drawn(store: Store) -> None:
    id = _run(store, _of(np.ones((6, 4), np.float32)))
    (axes,) = draw.draw(PLANE, figures.Content([descriptors.of_run(store.open("run", id))])).axes
    assert axes.get_xlim() == (-1, 1)
    n, rng = 40, np.random.default_rng(0)
    many = tuple(range(n))
    panel = figures.Panel("", {}, descriptors.Plane(np.arange(n), rng.normal(size=(n, 2)), (0.5, 0.2), 9, many, many))
    drawn = draw.draw(PLANE, figures.Content([panel]))
    assert [t.get_text() for t in drawn.axes[0].texts] == [str(i + 1) for i in range(n)]
    assert len(drawn.legends[0].get_texts()) == 13


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (None, {}, r"run \w+ \(flux\) kept no descriptors of its clients; choose a run of flux that clustered"),
        (_of(_described(), [0, 1, 2, 3, 4, 6]), {}, "table descriptors must name each of the run's 6 clients once"),
        (_of(_described(), [0, 1, 2, 3, 4, 4]), {}, "table descriptors must name each of the run's 6 clients once"),
        (_of(np.full((6, 3), np.nan, np.float32)), {}, "holds a value that is not finite"),
        (pa.table({"client": [0]}), {}, "table descriptors has no column 'descriptor'"),
        (pa.table({"client": [0, 1], "descriptor": [[1.0], [1.0, 2.0]]}), {}, "must be of one length"),
        (pa.table({"client": [0], "descriptor": [[]]}), {}, "must be of one length"),
    ],
)  # fmt: skip
def test_a_run_without_sound_descriptors(
    store: Store, call: Call, table: pa.Table | None, columns: dict[str, Any], message: str
) -> None:
    id = _run(store, table, **columns)
    with pytest.raises(FedbenchError, match=message) as caught:
        call("flux/11", "--run", id)
    assert "\n" not in str(caught.value)


def test_the_figures_own_runs(here: Any, call: Call) -> None:
    with pytest.raises(FedbenchError, match=r"the run of flux/11 is not there \(FLUX, Known association/Level 2, "
                       r"budget small: missing\); make it: fedbench train --table flux/12"):  # fmt: skip
        call("flux/11")
    setting = find(tables.load("flux/12"), "small", here.store, []).settings["Known association/Level 3"][0]
    assert (setting.partition.shift, setting.partition.options.get("level")) == ("px", 3), "a bank of four looks"
    id = _run(here.store, _of(_described()), setting=setting)
    shown, remarks = _gather(PLANE, here.store)
    assert [(p.title, p.about["run"]) for p in shown.panels] == [("MNIST, 4 distributions", id)]
    assert len(remarks) == 5
    assert sum("cifar100" in r for r in remarks) == 3


def test_figures_name_cells_that_there_are() -> None:
    for cell in PLANE.runs.values():
        table = tables.load(cell.table)
        assert cell.row in [r.label for r in table.rows]
        assert cell.column in [c.key for c in table.columns]
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


# -- All -----------------------------------------------------------------------------------------------------


def _all(here: Any) -> list[tuple[figures.FigureSpec, Any]]:
    """Every figure, of a few measured cells and all that the paper reports."""
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") in (1, 2), [("flux", {})])
    _fill(here, "flux/figure8", lambda s: True, [("flux", {"start": 3}), ("flux", {"start": 9})])
    _fill(here, "flux/figure10", lambda s: True, [("flux", {"threshold": 0.8}), ("flux", {"threshold": 0.2})])
    shown = [(f, _gather(f, here.store, compare=True)[0]) for f in (LEVELS, SCALING, ROUNDS, THRESHOLDS, FOUR)]
    panel = descriptors.of_run(here.store.open("run", _run(here.store, _of(_described()))))
    return [*shown, (PLANE, figures.Content([panel])), (PLANE, figures.Content([panel] * 6))]


def test_everything_lies_inside_the_paper(here: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for figure, shown in _all(here):
        drawn = draw.draw(figure, shown)
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        renderer = canvas.get_renderer()
        legend = drawn.legends[0].get_window_extent(renderer)
        boxes = [axes.get_tightbbox(renderer) for axes in drawn.axes if axes.get_visible()]
        assert not any(legend.overlaps(box) for box in boxes), figure.id
        for box in (legend, *boxes):
            assert box.x0 >= -1
            assert box.y0 >= -1
            assert box.x1 <= drawn.bbox.width + 1
            assert box.y1 <= drawn.bbox.height + 1
        for axes in drawn.axes:  # labels of ticks do not run into each other
            labels = [t.get_window_extent(renderer) for t in axes.get_xticklabels() if t.get_text()]
            assert not any(a.overlaps(b) for a, b in pairwise(labels)), figure.id


@pytest.mark.parametrize("format", ["png", "csv", "json"])
def test_the_same_bytes_every_time(here: Any, store: Store, call: Call, tmp_path: Path, format: str) -> None:
    _fill(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") == 1, [("flux", {})])
    id = _run(store, _of(_described()))
    for name, arguments in (("4", ["--compare"]), ("11", ["--run", id])):
        first, second = tmp_path / f"a.{format}", tmp_path / f"b.{format}"
        assert call(f"flux/{name}", *arguments, "-o", str(first)).stdout != ""
        call(f"flux/{name}", *arguments, "-o", str(second))
        assert first.read_bytes() == second.read_bytes() != b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flux/4", "--run", "x"], "--run does not go with flux/4; it takes --budget, --seed, --compare"),
        (["flux/11", "--compare"], "--compare does not go with flux/11; it takes --run, --budget, --seed"),
        (["pfedfda/4", "--compare"], "--compare does not go with pfedfda/4"),
        (["flux/11", "--run", "x", "--seed", "2"], "--seed does not go with --run, which has its own"),
        (["flux/8", "--budget", "papr"], "unknown budget 'papr'; did you mean 'paper'"),
        (["flux/7"], "unknown figure 'flux/7'; did you mean 'flux/"),
    ],
)
def test_bad_input(call: Call, tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        call(*arguments)
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


CHECK = """
import sys
from pathlib import Path
from fedbench.reports import figures
from fedbench.reports.figures import draw
from fedbench.store import Store
store = Store(Path(sys.argv[1]))
for name, asked in (("flux/11", {"run": sys.argv[2]}), ("flux/4", {"compare": True})):
    spec = figures.load(name)
    draw.render(spec, figures.kind_of(spec).gather(spec, figures.Ask(store, **asked)), "svg")
print(sorted({"torch", "torchvision", "sklearn", "matplotlib.pyplot"} & set(sys.modules)))
"""


def test_torch_is_never_imported(store: Store) -> None:
    id = _run(store, _of(_described()))
    run = subprocess.run(
        [sys.executable, "-c", CHECK, str(store.home), id],
        capture_output=True, text=True, env={**os.environ, "FEDBENCH_DATA": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
