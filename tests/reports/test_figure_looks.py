"""Pictures as they go into a paper: widths, fonts, titles, names of lines, facts beside them; and what is none."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedbench.reports import figures
from fedbench.reports.figures import style
from fedbench.reports.widths import COLUMN, PAGE
from fedbench.specs import Setting
from fedbench.store import Store
from tests.reports.conftest import Draws, Lab, of_csv
from tests.support.figures_lab import drawn, fill_series, picture_of, rows_of
from tests.support.frames import refused
from tests.support.latex import CLASSES, compiled

NAMES = ("FedAvg", "FedDRM", "Local")


@pytest.fixture
def runs(lab: Lab) -> Store:
    """Curves of three methods, which end apart."""
    lab.dataset("digits")
    setting = replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), rounds=8, window=1, every=2, seed=0, lr=0.1)
    for by, method in zip((0.1, 0.05, 0.07), ("fedavg", "feddrm", "local"), strict=True):
        lab.run(setting, method, metrics={"average_accuracy": lambda t, by=by: by * t})
    return lab.store


def sizes(pdf: bytes) -> list[float]:
    """Width and height of a PDF's page, in inches."""
    (box,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    return [float(side) / 72 for side in box]


def test_a_pdf_is_as_wide_as_asked_has_truetype_fonts_of_eight_points_and_no_title(
    runs: Store, draws: Draws, tmp_path: Path
) -> None:
    for asked, inches in (("column", 3.15), ("page", 5.5), ("5", 5.0)):
        draws("curves", "-o", "c.pdf", "--width", asked)
        pdf = (tmp_path / "c.pdf").read_bytes()
        assert sizes(pdf)[0] == pytest.approx(inches, abs=0.01)
        assert b"/Type3" not in pdf
        assert b"/CIDFontType2" in pdf  # TrueType, embedded (type 42)
        assert b"/FontFile2" in pdf
        parts = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)[:3]
        texts = b"".join(map(zlib.decompress, parts))
        assert {float(size) for size in re.findall(rb"/F1 ([\d.]+) Tf", texts)} == {8.0}
    draws("curves", "-o", "c.pdf")
    assert sizes((tmp_path / "c.pdf").read_bytes())[0] == pytest.approx(3.15, abs=0.01)  # a single panel
    for wrong in ("wide", "0.5", "31", "nan"):
        message = f"'{wrong}' is no width; --width column, page, or 1 to 30 inches"
        refused(message, draws, "curves", "--width", wrong)
    refused("--width, --title and --style need a picture", draws, "curves", "--csv", "--width", "page")


@pytest.mark.parametrize("head", CLASSES.values(), ids=CLASSES)
def test_a_figure_sticks_out_of_no_column_and_no_page(runs: Store, draws: Draws, tmp_path: Path, head: str) -> None:
    draws("curves", "-o", "one.pdf")
    draws("curves", "-o", "page.pdf", "--width", "page")
    Lab(runs).dataset("mnist")
    (one, *_) = runs.list("run")
    partition = replace(one.spec.setting.partition, dataset=replace(one.spec.setting.partition.dataset, name="mnist"))
    Lab(runs).run(
        replace(one.spec.setting, partition=partition), "fedavg", metrics={"average_accuracy": lambda t: t / 9}
    )
    draws("curves", "-o", "two.pdf")
    floats = [
        rf"\begin{{figure{star}}}\includegraphics{{{name}.pdf}}\caption{{C.}}\end{{figure{star}}}"
        for name, star in (("one", ""), ("two", "*"), ("page", "*"))
    ]
    body = f"{head}\\usepackage{{graphicx}}\\begin{{document}}\nText.\n" + "\n".join(floats) + "\n\\end{document}\n"
    assert "Overfull" not in compiled(tmp_path, body, "paper")


def test_text_of_an_svg_is_text_and_its_title_is_in_the_caption_s_file(
    runs: Store, draws: Draws, tmp_path: Path
) -> None:
    lab_of = Lab(runs)
    (run,) = [run for run in runs.list("run") if run.spec.method == "fedavg"]
    lab_of.run(replace(run.spec.setting, seed=1), "fedavg", metrics={"average_accuracy": lambda t: 0.11 * t})
    heading = "mean over seeds, band: ± standard deviation"
    draws("curves", "-o", "c.svg")
    svg = (tmp_path / "c.svg").read_text()
    assert {"round", "average accuracy (%)", "Local (1 seed)"} <= set(re.findall(r">([^<>\n]+)</t", svg))
    assert not re.search(rf"<(text|tspan)[^>]*>{heading}", svg)
    facts = (tmp_path / "c.svg.txt").read_text()
    assert facts.startswith(f"curves: Learning curves of runs\n{heading}\ncifar10, Dir-0.3\n")
    assert "  FedAvg: 84 ± 5.7 (2 seeds, round 8)\n" in facts
    assert {run.id for run in runs.list("run")} == set(re.search(r"Runs: (.*)", facts)[1].split())
    metadata = re.search(r"<dc:description>(.*?)</dc:description>", svg, re.S)[1]
    assert metadata == facts
    assert "<dc:title>Learning curves of runs</dc:title>" in svg
    draws("curves", "-o", "c.svg", "--title")
    assert re.search(rf">{heading}</t", (tmp_path / "c.svg").read_text())
    draws("curves", "-o", "c.png")
    png = (tmp_path / "c.png").read_bytes()
    assert b"Title\x00Learning curves of runs" in png
    assert b"average accuracy" in png


def test_a_style_file_goes_before_ours(runs: Store, draws: Draws, tmp_path: Path) -> None:
    (tmp_path / "my.mplstyle").write_text("font.size: 11\naxes.prop_cycle: cycler('color', ['k', '0.5'])\n")
    draws("curves", "-o", "c.svg", "--style", "my.mplstyle")
    svg = (tmp_path / "c.svg").read_text()
    assert set(re.findall(r"font-size: (\d+)px", svg)) == {"11"}
    assert style.COLOURS[0].lower() not in svg.lower()
    refused("no style file none.mplstyle", draws, "curves", "--style", "none.mplstyle")
    (tmp_path / "bad.mplstyle").write_text("font.sise: 11\n")
    refused("bad.mplstyle is no style of matplotlib", draws, "curves", "--style", "bad.mplstyle")


def test_lines_are_named_at_their_ends_where_there_is_room_else_in_a_legend(lab: Lab, runs: Store) -> None:
    picture = picture_of("curves", runs)
    assert not picture.legends
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.texts] == list(NAMES)
    picture.draw_without_rendering()
    for text, line in zip(axes.texts, axes.lines, strict=True):
        box, end = text.get_window_extent(), axes.transData.transform(line.get_xydata()[-1])
        assert text.get_color() == line.get_color()
        assert box.y0 < end[1] < box.y1
        assert end[0] < box.x0 < box.x1 < picture.bbox.width
    rows, _ = rows_of(figures.load("curves"), runs)
    close = [row | {"mean": 40 + row["mean"] / 1000} for row in rows]  # three lines whose ends touch
    picture = drawn(figures.load("curves"), close + [row | {"line": "Above", "mean": 50.0} for row in rows[:4]])
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in picture.axes[0].texts]
    assert len(boxes) == 4
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    setting: Setting = next(runs.list("run")).spec.setting
    for i in range(3):  # lines that end where another one does
        lab.run(replace(setting, lr=0.2 + i / 10), "fedavg", metrics={"average_accuracy": lambda t: 0.1 * t})
    picture = picture_of("curves", runs)
    (legend,) = picture.legends
    assert len(legend.get_texts()) == 6
    assert not picture.axes[0].texts


def test_a_picture_of_one_line_is_drawn_for_its_file_alone(runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site has three pictures a run: matplotlib draws each twice as it saves it, and layouts are made without."""
    drawings = []
    draw = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawings.append(draw(self, renderer)))
    rows, _ = rows_of(figures.load("curves"), runs)
    figures.render(figures.kind_of(figures.load("curves")), [row for row in rows if row["line"] == "FedAvg"], "svg")
    assert len(drawings) == 2


#: Severe deuteranomaly and protanomaly: linear RGB as it is seen (Machado, Oliveira and Fernandes, IEEE TVCG 2009,
#: severity 1).
GREEN_BLIND = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
RED_BLIND = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def lab_of(colour: str, seen_as: Sequence[Sequence[float]]) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour under a matrix of linear RGB."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(np.array(seen_as) @ linear, 0, 1) / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_lines_are_told_apart_by_the_colour_blind_and_in_grey(runs: Store) -> None:
    """Lines differ in colour by four just noticeable differences (2.3 in L*a*b*) or more, in grey by their marks."""
    for seen_as in (np.eye(3), GREEN_BLIND, RED_BLIND):
        colours = [lab_of(colour, seen_as) for colour in style.COLOURS]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colours, 2)) > 4 * 2.3
    for dashed in (False, True):
        with style.applied():
            looks = style.line_looks([f"line {i}" for i in range(24)], dashed=dashed).values()
        for one, other in combinations(looks, 2):
            same = all(str(one.get(name)) == str(other.get(name)) for name in ("linestyle", "marker"))
            lightness = [lab_of(look["color"], np.eye(3))[0] for look in (one, other)]
            assert not same or abs(lightness[0] - lightness[1]) > 2.3
    lines = picture_of("curves", runs).axes[0].lines
    assert len({line.get_marker() for line in lines}) == len({line.get_color() for line in lines}) == 3


LONG = "FedDRM, method version 1, rounds 10, epochs 1, lr 0.01, momentum 0.9, hidden 512, model resnet18_gn:width=64"
PLACE = "cifar10 with colours and rotations (level 8), Dirichlet 0.3 with 100 clients, half of them unseen"


def with_long_names(kind: str) -> list[figures.Row]:
    """Rows of a kind whose names are longer than a column is wide."""
    lines = [f"{LONG} {i}" for i in range(7)]
    if kind == "curves":
        about = {"metric": "average_accuracy", "unit": "%", "test_images": "plain", "axis": "round", "mixed": {}}
        points = [(line, t) for line in lines for t in range(1, 5)]
        rows = [{"line": line, "round": t, "x": float(t), "mean": 3.0 * t, "std": None} for line, t in points]
        return [about | {"panel": PLACE, "gaps": {}, "runs": 1, "ids": []} | row for row in rows]
    if kind == "clients":
        about = {"metric": "client_accuracy", "unit": "%", "test_images": "plain", "line": LONG, "run": "0"}
        clients = [{"client": c, "unseen": c > 4, "value": 50.0 + c} for c in range(7)]
        alone = [{**about, "panel": PLACE, **row, "client_name": f"{PLACE} {row['client']}"} for row in clients]
        return alone + [{**row, "panel": f"{PLACE} 2", "against": lines[1], "base": 40.0} for row in alone]
    places = [f"{PLACE} {i}" for i in range(3 if kind == "heat" else 8)]
    about = {"metric": "", "panel": "Average accuracy", "p": 0.01, "critical_difference": 2.0, "alike": [lines[:2]]}
    ranks = [about | {"line": line, "average_rank": 1.0 + i, "rank": 1.0 + i} for i, line in enumerate(lines)]
    return [row | {"place": place, "value": 0.5} for row in ranks for place in places]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("width", [COLUMN, PAGE])
@pytest.mark.parametrize("kind", ["curves", "clients", "heat", "diagram"])
def test_long_names_leave_room_for_the_data(kind: str, width: float) -> None:
    """matplotlib warns of a layout in which nothing is left for a panel, and keeps what it had."""
    figure = figures.load(kind if kind in ("curves", "clients") else "ranks")
    picture = figures.draw(figures.kind_of(figure), with_long_names(kind), figures.Look(width))
    picture.draw_without_rendering()
    for axes in picture.axes:
        box, around = axes.get_window_extent(), axes.get_tightbbox()
        assert min(box.width, box.height) > 0.5 * picture.dpi
        assert -2 <= around.x0 < around.x1 <= picture.bbox.width + 2
        assert -2 <= around.y0 < around.y1 <= picture.bbox.height + 2
    for legend in picture.legends:
        assert legend.get_window_extent().y1 <= min(axes.get_tightbbox().y0 for axes in picture.axes) + 1
        assert legend.get_window_extent().width <= picture.bbox.width


def test_numbers_in_cells_contrast_with_their_shade() -> None:
    inks = {shade: style.ink(shade) for shade in ("#000000", "#0072B2", "#66AAD1", "#FFFFFF")}
    assert [*inks.values()] == ["white", "white", "black", "black"]


def test_fewer_than_three_points_are_no_figure(here: Lab, draws: Draws, tmp_path: Path) -> None:
    fill_series(here, "flux/levels_mnist", lambda s: s.partition.options.get("level") == 2, [("flux", {})])
    message = r"flux/4 has 2 points, and fewer than 3 are no figure \(--csv prints them\); make more: fedbench train "
    refused(message, draws, "flux/4", "-o", "f.pdf")
    assert not list(tmp_path.glob("f.pdf*"))
    assert draws("flux/4", "--csv").stdout.count("\n") == 3


def test_times_of_a_cpu_and_of_a_gpu_are_no_line(here: Lab, draws: Draws) -> None:
    """FedRC took 2,119 s with 50 clients on a CPU, and 99.8 s with 100 on an H100."""
    gpu = "NVIDIA H100 80GB HBM3"
    on = {5: "cpu", 25: "cpu", 50: gpu, 100: gpu}
    for clients, device in on.items():
        cells = here.cells("flux/51").settings.values()
        for setting in (s for group in cells for s in group if s.partition.clients == clients):
            values = {"client_accuracy_mean": lambda t: 0.5, "test_phase_accuracy_mean": lambda t: 0.4}
            time = {"total_runtime_seconds": 4.0 * clients}
            for method in ("flux", "fedavg"):
                more = {} if method == "fedavg" else {"device": device}
                whole = {"metrics": values, "whole": time, "views": ("plain",)}
                here.run(setting, method, rules="flux", **whole, **more)
    figure = figures.load("flux/5")
    rows, remarks = rows_of(figure, here.store)
    times = {(row["line"], row["x"]): row["machine"] for row in rows if row["unit"] == "s"}
    assert times == {(line, k): "CPU" if line == "FedAvg" or on[k] == "cpu" else gpu for line, k in times}
    assert not [row for row in rows if row["unit"] == "%" and "machine" in row]
    assert f"Time: a line breaks between machines: CPU; {gpu}" in remarks
    *_, axes = drawn(figure, rows).axes
    strokes = {line.get_label(): np.isnan(line.get_ydata()) for line in axes.lines}
    assert strokes["FLUX"].tolist() == [False, False, True, False, False]
    assert not strokes["FedAvg"].any()
    ringed = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert ringed == [[np.log2(k), 4.0 * k] for k in (50, 100)]
    assert f"on {gpu}" in [text.get_text() for text in drawn(figure, rows).legends[0].get_texts()]
    printed = of_csv(draws("flux/5", "--csv").stdout)
    assert {row["machine"] for row in printed if row["panel"] == "Time"} == {"CPU", gpu}


def test_more_methods_than_partitions_are_a_heat_map(lab: Lab) -> None:
    for alpha, values in {0.1: (0.5, 0.7, 0.6), 0.3: (0.6, 0.5, 0.4)}.items():
        setting = replace(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), seed=0)
        part = replace(setting.partition, options={**setting.partition.options, "alpha": alpha})
        for method, value in zip(("fedavg", "feddrm", "local"), values, strict=True):
            lab.run(replace(setting, partition=part), method, value=value)
    (axes,) = picture_of("ranks", lab.store).axes
    (heat,) = axes.get_images()
    lines = [text.get_text().split("  ")[0] for text in axes.get_yticklabels()]
    assert set(lines) == set(NAMES)
    ranks = {"FedAvg": [3, 1], "FedDRM": [1, 2], "Local": [2, 3]}
    assert np.asarray(heat.get_array()).tolist() == [ranks[line] for line in lines]
    assert lines[-1] == "Local"
    printed = {"FedAvg": ["0.500", "0.600"], "FedDRM": ["0.700", "0.500"], "Local": ["0.600", "0.400"]}
    assert [text.get_text() for text in axes.texts] == [text for line in lines for text in printed[line]]
