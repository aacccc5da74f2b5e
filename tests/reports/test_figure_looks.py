"""Pictures as they go into a paper: widths, fonts, titles, names of lines, facts beside them; and what is none."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedbench.reports import figures
from fedbench.reports.figures import style
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
    refused("--width, --title and --style are of a picture", draws, "curves", "--csv", "--width", "page")


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


def test_lines_are_told_apart_in_grey(runs: Store) -> None:
    for dashed in (False, True):
        looks = style.line_looks([f"line {i}" for i in range(8)], dashed=dashed).values()
        apart = {look.get("marker", str(look["linestyle"])) for look in looks}
        assert len(apart) == (4 if dashed else 8)
    lines = picture_of("curves", runs).axes[0].lines
    assert len({line.get_marker() for line in lines}) == len({line.get_color() for line in lines}) == 3


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
