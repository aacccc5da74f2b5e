"""Figures 2, 3 and 4 of pFedFDA, from small artifacts: numbers, pictures, and what is said where they are missing."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import Result

from fedbench import data as datasets
from fedbench import partitions
from fedbench import protocol as protocols
from fedbench.errors import FedbenchError
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import CORRUPTIONS
from fedbench.reports import figures
from fedbench.reports import table as tables
from fedbench.reports.figures import beta, bubbles, draw
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.store import Store
from tests.support.real_images import RealImages

Call = Callable[..., Result]
BETA, BUBBLES, EPOCHS = (figures.load(f"pfedfda/{n}") for n in (2, 3, 4))


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# -- Figure 2 ------------------------------------------------------------------------------------------------


def _partition(store: Store, shift: str = "corrupted", clients: int = 24) -> PartitionSpec:
    """Of the embedded digits: the first half of the clients see corruptions."""
    spec = partition_spec(datasets.resolve("digits", store), "iid", clients, 0, 0.7, shift=shift)
    partitions.build(spec, store)
    return spec


def _run(store: Store, part: PartitionSpec, notes: Mapping[str, Sequence[float | None]], **changed: Any) -> str:
    """The id of a run with these figures of its clients."""
    setting = Setting(part, "smoke", "digits_cnn", 2, 8, 0.1, 0, epochs=1, **changed)
    with store.writing(RunSpec(setting, "pfedfda")) as writer:
        writer.table("clients", pa.table({"client": list(range(part.clients)), **notes}))
    return RunSpec(setting, "pfedfda").id


def _betas(clients: int = 24) -> list[float]:
    """Different for every client; clean ones (the second half) have less."""
    return [0.9 - 0.02 * c - 0.0001 * c * c for c in range(clients)]  # no two groups have one mean


def test_beta_by_corruption(store: Store, call: Call) -> None:
    part, betas = _partition(store), _betas()
    shifts = partitions.build(part, store).transforms
    assert [s.corruption for s in shifts[:12]] == [CORRUPTIONS[c % 10] for c in range(12)]
    id = _run(store, part, {"beta": betas})

    rows = _rows(call("pfedfda/2", "--run", id[:6], "--csv").stdout)
    assert [float(r["beta"]) for r in rows] == betas
    assert [r["client"] for r in rows] == [str(c) for c in range(24)]
    assert [r["corruption"] for r in rows] == [s.corruption or "clean" for s in shifts]
    assert [r["severity"] for r in rows] == [str(s.severity or "") for s in shifts]
    assert {(r["run"], r["partition"], r["dataset"]) for r in rows} == {(id, part.id, "digits")}

    told = json.loads(call("pfedfda/2", "--run", id, "--json").stdout)
    (panel,) = told["panels"]
    groups = {g["corruption"]: g for g in panel["groups"]}
    assert groups.keys() == {"clean", *CORRUPTIONS}
    assert groups["clean"]["mean"] == pytest.approx(mean(betas[12:]))
    assert groups["clean"]["std"] == pytest.approx(stdev(betas[12:]))
    first = groups[CORRUPTIONS[0]]
    assert (first["clients"], first["severities"]) == ([0, 10], [1, 2])
    assert first["std"] == pytest.approx(stdev([betas[0], betas[10]]))
    assert groups[CORRUPTIONS[5]]["std"] is None  # one client has none
    assert panel["mean_corrupted"] == pytest.approx(mean(betas[:12]))
    order = [g["corruption"] for g in panel["groups"]]
    assert order[0] == "clean"
    assert order[1:] == sorted(CORRUPTIONS, key=lambda name: groups[name]["mean"])
    assert [(c["text"], c["state"]) for c in told["claims"]] == [("mean β(clean) < mean β(corrupted)", "holds")]


def test_the_claim_of_beta_can_fail_and_stay_open(store: Store, call: Call) -> None:
    part, betas = _partition(store), _betas()
    said = call("pfedfda/2", "--run", _run(store, part, {"beta": betas[::-1]})).stdout
    off = mean(betas[:12]) - mean(betas[12:])
    assert f"mean β(clean) < mean β(corrupted): fails (fails by {off:.4g} at clean and corrupted, beta)" in said
    assert f"mean β {mean(betas[:12]):.3f} of 12 clean clients, {mean(betas[12:]):.3f} of 12 corrupted" in said
    clean = _run(store, _partition(store, "none"), {"beta": betas})
    said = call("pfedfda/2", "--run", clean).stdout
    assert f"mean β {mean(betas):.3f} of 24 clean clients; run" in said
    assert "mean β(clean) < mean β(corrupted): not measured" in said


def test_colour_shifts_are_neither_clean_nor_corrupted(store: Store) -> None:
    part = partition_spec(datasets.resolve("digits", store), "iid", 8, 0, 0.7, shift="high")
    id = _run(store, part, {"beta": _betas(8)})
    (panel,) = beta.of_run(store.open("run", id), figures.Ask(store))
    assert list(panel.marks.groups) == ["other shift"]


def test_two_betas_are_two_panels(store: Store) -> None:
    part, betas = _partition(store), _betas()
    id = _run(store, part, {"beta_0": betas, "beta_1": [b / 2 for b in betas]})
    kind, ask = figures.kind_of(BETA), figures.Ask(store, run=id)
    shown = kind.gather(BETA, ask)
    assert [p.marks.column for p in shown.panels] == ["beta_0", "beta_1"]
    assert shown.panels[1].marks.means["clean"] == pytest.approx(shown.panels[0].marks.means["clean"] / 2)
    assert [axes.get_ylabel().split(" (")[0] for axes in draw.draw(BETA, shown).axes] == [
        "β of the means", "β of the covariance",
    ]  # fmt: skip


def test_the_picture_of_beta(store: Store) -> None:
    part, betas = _partition(store), _betas()
    shown = figures.kind_of(BETA).gather(BETA, figures.Ask(store, run=_run(store, part, {"beta": betas})))
    (axes,) = draw.draw(BETA, shown).axes
    (panel,) = shown.panels
    assert [bar.get_height() for bar in axes.patches] == [panel.marks.means[name] for name in panel.marks.groups]
    labels = [t.get_text() for t in axes.get_xticklabels()]
    assert labels[0] == "clean (12)"
    assert {"contrast (1)", "motion blur (2)"} < set(labels)
    dots = np.concatenate([c.get_offsets()[:, 1] for c in axes.collections if len(c.get_offsets())])
    assert sorted(b for b in dots if b in betas) == sorted(betas)
    (legend,) = axes.figure.legends
    names = [t.get_text() for t in legend.get_texts()]
    assert names == ["mean over clients", "± sd over clients", "clean client", "severity 1", "severity 2"]


def test_a_run_without_beta(store: Store, call: Call, tmp_path: Path) -> None:
    part = _partition(store)
    bare = _run(store, part, {"other": _betas()})
    with pytest.raises(FedbenchError, match=rf"run {bare} \(pfedfda\) noted no beta of its clients; choose"):
        call("pfedfda/2", "--run", bare)
    for lr, wrong in enumerate(([1.5] * 24, [None] * 24, [float("nan")] * 24), 1):
        setting = Setting(part, "smoke", "digits_cnn", 2, 8, float(lr), 0, epochs=1)
        with store.writing(RunSpec(setting, "pfedfda")) as writer:
            writer.table("clients", pa.table({"beta": pa.array(wrong, pa.float64())}))
        with pytest.raises(FedbenchError, match=r"'beta' of table clients must hold numbers in 0\.\.1"):
            call("pfedfda/2", "--run", RunSpec(setting, "pfedfda").id)
    with pytest.raises(FedbenchError, match="no run 'nothing'"):
        call("pfedfda/2", "--run", "nothing")
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


def test_a_run_of_other_clients_than_its_partition(store: Store, call: Call) -> None:
    setting = Setting(_partition(store), "smoke", "digits_cnn", 2, 8, 0.1, 0, epochs=1)
    with store.writing(RunSpec(setting, "pfedfda")) as writer:
        writer.table("clients", pa.table({"beta": [0.5] * 3}))
    with pytest.raises(FedbenchError, match="table clients has 3 clients, its partition 24"):
        call("pfedfda/2", "--run", RunSpec(setting, "pfedfda").id)


def test_the_run_of_the_tables_cell(lab: Any, store: Store, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BETA.cells is not None
    with pytest.raises(FedbenchError) as missing:
        call("pfedfda/2", "--budget", "paper")
    assert str(missing.value) == (
        "the run of pfedfda/2 is not there (pFedFDA, CIFAR10-S/100 %, budget paper: missing); make it: "
        'fedbench train --table pfedfda/1 --budget paper --column "CIFAR10-S/100 %" --method pfedfda'
    )
    setting = lab.setting(BETA.cells.table, BETA.cells.column, "paper")
    asked = {}

    def of_run(run: Any, ask: figures.Ask, name: str) -> list[figures.Panel[beta.Betas]]:
        asked["run"], asked["name"] = run.id, name
        return []

    monkeypatch.setattr(beta, "of_run", of_run)
    run = lab.run(setting, "pfedfda", rules="pfedfda", measure=False)
    figures.kind_of(BETA).gather(BETA, figures.Ask(store, budget="paper"))
    assert asked == {"run": run.id, "name": "pFedFDA, CIFAR10-S, 100 %"}
    with pytest.raises(FedbenchError, match="budget paper: missing"):
        figures.kind_of(BETA).gather(BETA, figures.Ask(store, budget="paper", seed=7))


def test_without_images_the_cell_has_no_name(call: Call) -> None:
    with pytest.raises(FedbenchError, match=r"budget small: no data\); .*cifar10"):
        call("pfedfda/2")


def test_figures_name_cells_that_there_are() -> None:
    for spec in map(figures.load, figures.names()):
        assert spec.kind in figures.KINDS
        assert spec.protocol in protocols.names() or not spec.panels
        if spec.cells is not None:
            table = tables.load(spec.cells.table)
            assert spec.cells.row in [r.label for r in table.rows]
            assert spec.cells.column in [c.key for c in table.columns]
    assert tables.load("pfedfda/1").columns[0].partition["shift"] == "corrupted"


# -- Figure 3 ------------------------------------------------------------------------------------------------


def test_bubbles_count_what_clients_hold(store: Store, call: Call) -> None:
    spec = partition_spec(datasets.resolve("digits", store), "dirichlet", 7, 3, 0.7, alpha=0.2)
    part = partitions.build(spec, store)
    result = call("pfedfda/3", "--partition", part.id, "--json")
    (panel,) = json.loads(result.stdout)["panels"]
    for name, test in (("train", False), ("test", True)):
        counted = [np.bincount(part.label[part.rows(c, test)], minlength=10).tolist() for c in range(7)]
        assert panel[name] == counted
    assert panel["partition"] == part.id
    rows = _rows(call("pfedfda/3", "--partition", part.id, "--csv").stdout)
    assert len(rows) == 70
    for r in rows:
        train, test = (panel[side][int(r["client"])][int(r["class"])] for side in ("train", "test"))
        assert (int(r["train"]), int(r["test"]), int(r["samples"])) == (train, test, train + test)
        assert r["name"] == part.classes[int(r["class"])]

    shown = figures.Content([bubbles.of_partition(part)])
    (axes,) = draw.draw(BUBBLES, shown).axes
    (dots,) = axes.collections
    places, areas = np.asarray(dots.get_offsets()).astype(int), dots.get_sizes()
    counts = shown.panels[0].marks.samples
    assert len(places) == np.count_nonzero(counts) < 70
    np.testing.assert_allclose(areas / areas.max(), counts[places[:, 0], places[:, 1]] / counts.max())
    held = (counts > 0).sum(axis=1)
    said = call("pfedfda/3", "--partition", part.id).stdout
    assert f"7 clients hold {counts.sum(axis=1).min()} to {counts.sum(axis=1).max()} samples" in said
    assert f"of {held.min()} to {held.max()} of 10 classes" in said


def test_areas_mean_the_same_in_all_panels(store: Store) -> None:
    dataset = datasets.resolve("digits", store)
    made = [partitions.build(partition_spec(dataset, "iid", m, 0, 0.7), store) for m in (3, 12)]
    shown = figures.Content([bubbles.of_partition(part) for part in made])
    drawn = draw.draw(BUBBLES, shown)
    per_sample = [axes.collections[0].get_sizes().sum() / panel.marks.samples.sum() for axes, panel in
                  zip(drawn.axes, shown.panels, strict=True)]  # fmt: skip
    assert per_sample[0] == pytest.approx(per_sample[1])
    (legend,) = drawn.legends
    sizes = [int(t.get_text().replace(",", "")) for t in legend.get_texts()]
    drawn_as = [line.get_markersize() ** 2 for line in legend.get_lines()]
    assert max(sizes) <= max(int(p.marks.samples.max()) for p in shown.panels)
    np.testing.assert_allclose(drawn_as, np.array(sizes) * per_sample[0])
    largest = max(axes.collections[0].get_sizes().max() for axes in drawn.axes) ** 0.5
    drawn.draw_without_rendering()
    rows = [72 * axes.get_window_extent().height / drawn.dpi / len(axes.get_yticks()) for axes in drawn.axes]
    assert 0.7 * min(rows) < largest < 1.5 * min(rows)  # in points: seen, and hardly over the next class


def test_too_many_clients_for_bubbles(store: Store, call: Call) -> None:
    spec = partition_spec(datasets.resolve("digits", store), "iid", bubbles.MOST + 1, 0, 0.7)
    part = partitions.build(spec, store)
    with pytest.raises(FedbenchError, match="201 clients are too many for a bubble plot; it shows up to 200"):
        call("pfedfda/3", "--partition", part.id)


@pytest.mark.data
def test_the_papers_partitions(data_root: Path, store: Store, real_images: RealImages) -> None:
    """Client sizes as the official code draws them."""
    real_images.lend(store.home, "cifar10")
    shown = figures.kind_of(BUBBLES).gather(BUBBLES, figures.Ask(store, [data_root]))
    sharp, mild = (panel.marks for panel in shown.panels)
    assert sharp.samples.sum(axis=1)[:5].tolist() == [297, 263, 1380, 269, 584]
    assert mild.samples.sum(axis=1)[:5].tolist() == [638, 706, 248, 602, 814]
    assert (int(sharp.train.sum()), int(mild.train.sum())) == (47_955, 47_958)
    assert (np.median((sharp.samples > 0).sum(axis=1)), np.median((mild.samples > 0).sum(axis=1))) == (4, 9)


# -- Figure 4 ------------------------------------------------------------------------------------------------


def _accuracies(method: str, epochs: int) -> dict[int, float]:
    """Of three clients, their mean rising with the epochs."""
    base = (0.3 if method == "pfedfda" else 0.2) + 0.01 * epochs
    return {0: base - 0.1, 1: base, 2: base + 0.1}


def _fill(lab: Any, leave_out: Sequence[tuple[str, str]] = (), budget: str = "small") -> dict[tuple[str, str], str]:
    """Runs of all cells of the figure's table, but some: (method, column key) -> id."""
    for name in ("cifar10", "cifar100"):
        lab.dataset(name)
    made = {}
    for method in ("fedavgft", "pfedfda"):
        for column in tables.load("pfedfda/figure4").columns:
            if (method, column.key) not in leave_out:
                setting = lab.setting("pfedfda/figure4", column.key, budget)
                clients = _accuracies(method, setting.epochs)
                run = lab.run(setting, method, rules="pfedfda", clients=clients, views=("plain",))
                made[method, column.key] = run.id
    return made


def test_accuracy_by_epochs(lab: Any, call: Call) -> None:
    made = _fill(lab)
    result = call("pfedfda/4", "--csv")
    assert result.stderr == ""
    rows = _rows(result.stdout)
    assert len(rows) == len(made) == 20
    for r in rows:
        method = {"FedAvgFT": "fedavgft", "pFedFDA": "pfedfda"}[r["row"]]
        key = f"{r['panel']}/E = {r['epochs']}"
        clients = _accuracies(method, int(r["epochs"])).values()
        assert float(r["mean"]) == pytest.approx(mean(clients))
        assert float(r["std"]) == pytest.approx(stdev(clients))
        assert (r["clients"], r["runs"], r["seeds"]) == ("3", made[method, key], "1")
        assert int(r["rounds"]) == lab.setting("pfedfda/figure4", key).rounds
    told = json.loads(call("pfedfda/4", "--json").stdout)
    assert [p["title"] for p in told["panels"]] == ["CIFAR100", "CIFAR100-S 25 %"]
    for panel in told["panels"]:
        for row in panel["rows"]:
            assert [c["epochs"] for c in row["cells"]] == [1, 2, 5, 10, 20]
    assert (told["budget"], told["missing"]) == ("small", [])
    claims = {c["text"]: c["state"] for c in told["claims"]}
    assert claims["pFedFDA is above FedAvgFT at every E"] == "holds"
    assert claims["Both methods reach a plateau after E = 5 on CIFAR100"] == "fails"


def test_a_line_of_epochs_is_broken_where_a_cell_is_missing(lab: Any, store: Store) -> None:
    _fill(lab, [("pfedfda", "CIFAR100/E = 5")])
    shown = figures.kind_of(EPOCHS).gather(EPOCHS, figures.Ask(store))
    lines = {line.get_label(): line for line in draw.draw(EPOCHS, shown).axes[0].lines}
    assert list(lines["pFedFDA"].get_xdata()) == [1, 2, 5, 10, 20]
    assert [*np.flatnonzero(np.isnan(lines["pFedFDA"].get_ydata()))] == [2]
    assert not np.isnan(lines["FedAvgFT"].get_ydata()).any()


def test_the_picture_of_epochs(lab: Any, store: Store) -> None:
    _fill(lab, [("pfedfda", "CIFAR100/E = 20")])
    remarks: list[str] = []
    shown = figures.kind_of(EPOCHS).gather(EPOCHS, figures.Ask(store, notify=remarks.append))
    assert remarks == [
        "pfedfda/4 lacks pFedFDA at CIFAR100/E = 20 (missing); to fill them: "
        "fedbench train --table pfedfda/figure4 --budget small"
    ]
    drawn = draw.draw(EPOCHS, shown)
    left, right = drawn.axes
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines["FedAvgFT"].get_xdata()) == [1, 2, 5, 10, 20]
    assert list(lines["pFedFDA"].get_xdata()) == [1, 2, 5, 10]
    np.testing.assert_allclose(lines["pFedFDA"].get_ydata(), [0.31, 0.32, 0.35, 0.4])
    assert [t.get_text() for t in left.get_xticklabels()] == ["1", "2", "5", "10", "20"]
    assert left.get_title().startswith("CIFAR100 (budget small, ")
    assert right.get_title().startswith("CIFAR100-S 25 % (budget small, ")
    (legend,) = drawn.legends
    assert [t.get_text() for t in legend.get_texts()] == ["FedAvgFT", "pFedFDA"]
    assert len({line.get_color() for line in legend.get_lines()}) == 2


def test_what_another_version_made_is_named(lab: Any, store: Store) -> None:
    lab.dataset("cifar100")
    setting = lab.setting("pfedfda/figure4", "CIFAR100/E = 5")
    lab.run(setting, "pfedfda", rules="pfedfda", clients={0: 0.5}, views=("plain",), version=99)
    remarks: list[str] = []
    shown = figures.kind_of(EPOCHS).gather(EPOCHS, figures.Ask(store, notify=remarks.append))
    assert [(p.x, p.value.mean) for p in shown.panels[0].marks.lines["pFedFDA"]] == [(5, 0.5)]
    assert remarks[0] == "pfedfda/4 shows as they are: pFedFDA at CIFAR100/E = 5 (stale)"
    assert len(shown.about["missing"]) == 19


def test_no_cell_at_all(lab: Any, call: Call) -> None:
    lab.dataset("cifar100")
    with pytest.raises(FedbenchError, match="measured at budget paper, and pfedfda/4 shows nothing else; make them: "
                       "fedbench train --table pfedfda/figure4 --budget paper"):  # fmt: skip
        call("pfedfda/4", "--budget", "paper")
    with pytest.raises(FedbenchError, match="unknown budget 'papr'; did you mean 'paper'"):
        call("pfedfda/4", "--budget", "papr")


# -- All -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "numbers"), [("svg", "2"), ("pdf", "3"), ("png", "4"), ("csv", "234"), ("json", "234")]
)
def test_the_same_bytes_every_time(
    lab: Any, store: Store, call: Call, tmp_path: Path, format: str, numbers: str
) -> None:
    """Each figure as a picture once; test_figures.py has one of them in every format."""
    part = _partition(store)
    id = _run(store, part, {"beta": _betas()})
    _fill(lab)
    arguments = {"2": ["--run", id], "3": ["--partition", part.id], "4": []}
    for name in numbers:
        first, second = tmp_path / f"a.{format}", tmp_path / f"b.{format}"
        assert call(f"pfedfda/{name}", *arguments[name], "-o", str(first)).stdout != ""
        call(f"pfedfda/{name}", *arguments[name], "-o", str(second))
        assert first.read_bytes() == second.read_bytes() != b""


def test_everything_lies_inside_the_paper(lab: Any, store: Store) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    part = _partition(store)
    ask = figures.Ask(store, run=_run(store, part, {"beta": _betas()}))
    _fill(lab)
    pictures = [
        draw.draw(BETA, figures.kind_of(BETA).gather(BETA, ask)),
        draw.draw(BUBBLES, figures.Content([bubbles.of_partition(partitions.build(part, store))])),
        draw.draw(EPOCHS, figures.kind_of(EPOCHS).gather(EPOCHS, figures.Ask(store))),
    ]
    for drawn in pictures:
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        renderer = canvas.get_renderer()
        legend = drawn.legends[0].get_window_extent(renderer)
        boxes = [axes.get_tightbbox(renderer) for axes in drawn.axes]
        assert not any(legend.overlaps(box) for box in boxes)
        for box in (legend, *boxes):
            assert box.x0 >= -1
            assert box.y0 >= -1
            assert box.x1 <= drawn.bbox.width + 1
            assert box.y1 <= drawn.bbox.height + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pfedfda/2", "--partition", "x"], "--partition does not go with pfedfda/2; it takes --run, --budget, --seed"),
        (["pfedfda/3", "--run", "x"], "--run does not go with pfedfda/3"),
        (["pfedfda/4", "--ridge", "2"], "--ridge does not go with pfedfda/4"),
        (["ftw_erm/2", "--budget", "paper"], "--budget does not go with ftw_erm/2"),
        (["pfedfda/2", "--run", "x", "--budget", "paper"], "--budget does not go with --run, which has its own"),
        (["pfedfda/3", "--partition", "x", "--seed", "2"], "--seed does not go with --partition, which has its own"),
        (["pfedfda/3", "--partition", "nothing"], "no partition 'nothing'"),
        (["pfedfda/5"], "unknown figure 'pfedfda/5'; did you mean 'pfedfda/"),
    ],
)
def test_bad_input(call: Call, tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        call(*arguments)
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


def test_help_names_every_figure(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(call("--help").stdout.replace("│", " ").split())
    assert all(name in text for name in figures.FREE)
    listed, paper = set(), ""
    told = text.partition("The figure:")[2].partition(";")[0]
    for name, first, last, single in re.findall(r"(\w+)/|(\d+) to (\d+)|\b(?!or\b)(\w+)", told):
        paper = name or paper
        numbers = range(int(first), int(last) + 1) if first else [single] if single else []
        listed |= {f"{paper}/{number}" for number in numbers}
    assert listed == set(figures.names())


CHECK = """
import sys
from pathlib import Path
from fedbench.reports import figures
from fedbench.reports.figures import draw
from fedbench.store import Store
spec = figures.load("pfedfda/2")
draw.render(spec, figures.kind_of(spec).gather(spec, figures.Ask(Store(Path(sys.argv[1])), run=sys.argv[2])), "svg")
print(sorted({"torch", "torchvision", "scipy", "matplotlib.pyplot"} & set(sys.modules)))
"""


def test_torch_is_never_imported(store: Store) -> None:
    id = _run(store, _partition(store), {"beta": _betas()})
    run = subprocess.run(
        [sys.executable, "-c", CHECK, str(store.home), id],
        capture_output=True, text=True, env={**os.environ, "FEDBENCH_DATA": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
