"""Figures 2 and 3 of FTW-ERM, and `fedbench figure` and `fedbench theory` at the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from fedbench import data as datasets
from fedbench import partitions, protocol
from fedbench.errors import FedbenchError
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.reports import figures
from fedbench.reports.figures import draw, spectra
from fedbench.reports.figures.spec import of_file
from fedbench.specs import DatasetSpec
from fedbench.store import Store
from fedbench.theory.ftw_erm import spectrum
from tests.support.real_images import RealImages

Call = Callable[..., Result]
RATIO, SPECTRUM = figures.load("ftw_erm/2"), figures.load("ftw_erm/3")


@pytest.mark.parametrize("name", figures.names())
def test_panels_name_partitions_that_there_are(name: str) -> None:
    """A figure's own partitions are drawn only when it is: their presets and options must be those of its protocol."""
    figure = figures.load(name)
    for panel in figure.panels:
        dataset = DatasetSpec(panel.dataset, "made for a test", "0")
        spec = protocol.load(figure.protocol).partition_spec(dataset, 10, **panel.partition)
        assert spec.clients > max(panel.clients or (0,))


def _images(clients: int = 2) -> dict[tuple[int, str], np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"train": 60, "test": 25}
    return {(c, s): rng.integers(0, 256, (n, 3, 3, 1), np.uint8) for c in range(clients) for s, n in sizes.items()}


def _panels() -> list[figures.Panel[Any]]:
    drawn = figures.curves(_images())
    return [
        figures.Panel("Two", {"dataset": "noise", "partition": "p1"}, drawn),
        figures.Panel("One", {"dataset": "noise", "partition": "p2"}, drawn[:1]),
    ]


@pytest.fixture
def digits(store: Store) -> str:
    """The id of an IID partition of the embedded digits over three clients."""
    dataset = datasets.resolve("digits", store)
    return partitions.build(partition_spec(dataset, "iid", 3, 0, 0.7), store).id


def test_curves_are_the_spectra_of_each_side() -> None:
    images = _images()
    made = figures.curves(images)
    assert [c.client for c in made] == [0, 1]
    for curve in made:
        for side, found in (("train", curve.train), ("test", curve.test)):
            np.testing.assert_array_equal(found.values, spectrum(images[curve.client, side]).values)
    told = figures.findings(made[1])
    assert (told["client"], told["n_train"], told["n_test"], told["rank_train"], told["rank_test"]) == (1, 60, 25, 9, 9)
    assert told["largest"] == pytest.approx(told["largest_raw"] * np.sqrt(60 / 25))
    assert told["below_1"] == np.mean(made[1].comparison.normalised < 1)
    assert 0 < told["below_1"] <= told["below_bound"] <= told["below_1.618"]


def test_a_client_needs_both_sides() -> None:
    images = _images()
    del images[1, "test"]
    with pytest.raises(FedbenchError, match="client 1 lacks training or test images"):
        figures.curves(images)
    images[1, "test"] = np.zeros((0, 3, 3, 1), np.uint8)
    with pytest.raises(FedbenchError, match="client 1 lacks training or test images"):
        figures.curves(images)


def test_the_ratio_is_drawn_raw_and_normalised() -> None:
    panels = _panels()
    left, right = draw.draw(RATIO, figures.Content(panels)).axes
    assert (left.get_title(), right.get_title(), left.get_xlabel()) == ("Two", "One", "rank $i$")
    lines = [line for line in left.lines if len(line.get_xdata()) == 9]
    assert len(lines) == 4
    for curve, raw, normalised in zip(panels[0].marks, lines[::2], lines[1::2], strict=True):
        np.testing.assert_array_equal(raw.get_ydata(), curve.comparison.raw)
        np.testing.assert_array_equal(normalised.get_ydata(), curve.comparison.normalised)
        np.testing.assert_array_equal(raw.get_xdata(), np.arange(1, 10))
        assert (raw.get_linestyle(), normalised.get_linestyle()) == ("--", "-")
        assert raw.get_color() == normalised.get_color()
    assert lines[0].get_color() != lines[2].get_color()
    bounds = {line.get_ydata()[0] for line in left.lines if list(line.get_xdata()) == [0, 1]}
    assert bounds == {1, (1 + 5**0.5) / 2}
    low, high = left.get_ylim()
    assert low == 0
    assert high > max(c.comparison.largest for c in panels[0].marks)


def test_a_ratio_above_every_bound_is_in_the_picture() -> None:
    dark = {side: (images // 8 if side[1] == "train" else images) for side, images in _images(1).items()}
    panel = figures.Panel("Dark", {}, figures.curves(dark))
    ordinary = _panels()[1]
    (axes, _) = draw.draw(RATIO, figures.Content([panel, ordinary])).axes
    assert axes.get_ylim()[1] > panel.marks[0].comparison.largest > 5


def test_the_spectra_are_drawn_on_a_log_axis() -> None:
    panels = _panels()
    axes = draw.draw(SPECTRUM, figures.Content(panels)).axes[0]
    assert axes.get_yscale() == "log"
    train, test = axes.lines[:2]
    np.testing.assert_array_equal(train.get_ydata(), panels[0].marks[0].train.values)
    np.testing.assert_array_equal(test.get_ydata(), panels[0].marks[0].test.values)
    assert (train.get_linestyle(), test.get_linestyle()) == ("--", "-")


def test_a_client_has_one_colour_in_all_panels_and_the_legend() -> None:
    drawn = draw.draw(SPECTRUM, figures.Content(_panels()))
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["client 0", "client 1", "test", "training"]
    colours = [axes.lines[0].get_color() for axes in drawn.axes]
    assert colours == [legend.get_lines()[0].get_color()] * 2


def test_everything_lies_inside_the_paper() -> None:
    """Five clients make the widest legend of the paper's figures, eight in one panel that of a user's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for clients, count in ((5, 2), (8, 1)):
        panels = [figures.Panel("Panel", {}, figures.curves(_images(clients)))] * count
        drawn = draw.draw(RATIO, figures.Content(panels))
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        box = drawn.legends[0].get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0
        assert box.x1 <= drawn.bbox.width
        assert box.y1 <= min(axes.get_tightbbox(canvas.get_renderer()).y0 for axes in drawn.axes)


@pytest.mark.parametrize("format", draw.FORMATS)
def test_the_same_bytes_every_time_whatever_the_users_settings(format: str) -> None:
    import matplotlib

    first = draw.render(RATIO, figures.Content(_panels()), format)
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": None, "lines.linewidth": 5}):
        assert draw.render(RATIO, figures.Content(_panels()), format) == first
    assert b"dc:date" not in first
    assert b"CreationDate" not in first
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format]
    assert first.startswith(start)


def test_the_figure_of_a_partition(call: Call, digits: str, tmp_path: Path) -> None:
    result = call("figure", "ftw_erm/2", "--partition", digits)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "ftw_erm/2 written to ftw_erm-2.png\n" in result.stderr
    first = (tmp_path / "ftw_erm-2.png").read_bytes()
    again = call("figure", "ftw_erm/2", "--partition", digits)
    assert "written to ftw_erm-2.png (over an older one)" in again.stderr
    assert (tmp_path / "ftw_erm-2.png").read_bytes() == first
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["ftw_erm-2.png"]
    call("figure", "ftw_erm/3", "--partition", digits, "-o", "three.svg")
    assert (tmp_path / "three.svg").read_text().startswith("<?xml")


def test_the_numbers_of_a_partition(call: Call, digits: str, tmp_path: Path, store: Store) -> None:
    result = call("figure", "ftw_erm/2", "--partition", digits, "--client", "2", "--json", "--ridge", "5")
    told = json.loads(result.stdout)
    assert list(tmp_path.glob("*.png")) == []
    (panel,) = told["panels"]
    (client,) = panel["clients"]
    assert (panel["dataset"], panel["partition"], client["client"], client["ridge"]) == ("digits", digits, 2, 5)

    part = partitions.read(store.find(digits, ("partition",)))
    images = part.transformed_images(datasets.load(part.spec.dataset, store)).reshape(len(part.sample), -1) / 255
    sides = [np.linalg.svd(images[part.rows(2, test)], compute_uv=False) for test in (False, True)]
    rank = min(client["rank_train"], client["rank_test"])
    assert 40 < rank < 64  # some pixels of the digits are always empty
    expected = sides[1][:rank] / sides[0][:rank] * np.sqrt(client["n_train"] / client["n_test"])
    np.testing.assert_allclose(client["ratio"], expected, rtol=1e-4)
    assert client["largest"] == max(client["ratio"])

    call("figure", "ftw_erm/2", "--partition", digits, "--client", "2", "-o", "two.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "two.csv").read_text())))
    assert [float(r["ratio"]) for r in rows[:rank]] == client["ratio"]
    assert {r["ratio"] for r in rows[rank:]} == {""}
    assert [int(r["rank"]) for r in rows] == list(range(1, len(client["train_singular_values"]) + 1))
    printed = call("figure", "ftw_erm/2", "--partition", digits, "--client", "2", "--csv")
    assert printed.stdout == (tmp_path / "two.csv").read_text()


def test_a_terminal_gets_the_findings(call: Call, digits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    text = call("figure", "ftw_erm/2", "--partition", digits, "--client", "1").stdout
    (client,) = json.loads(call("figure", "ftw_erm/2", "--partition", digits, "--client", "1", "--json").stdout)[
        "panels"
    ][0]["clients"]
    assert "digits, IID" in text
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["1"])
    assert row[1:3] == [str(client["n_train"]), str(client["n_test"])]
    assert row[4:6] == [f"{client['largest_raw']:.3f}", f"{client['largest']:.3f}"]
    assert float(row[6]) == pytest.approx(100 * client["below_1"], abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftw_erm/4"], "unknown figure 'ftw_erm/4'; did you mean"),
        (["ftw_erm/2", "-o", "two.pgn"], "unknown format of a figure 'pgn'; did you mean 'png'"),
        (["ftw_erm/2", "-o", "two"], "cannot tell the format from the name two"),
        (["ftw_erm/2", "--json", "--csv"], "--json, --csv and --text exclude each other"),
        (["ftw_erm/2", "--client", "1"], "--client goes with --partition only"),
        (["ftw_erm/2", "--partition", "DIGITS", "--client", "3"], "has no client 3; it has 0..2"),
        (["ftw_erm/2", "--partition", "DIGITS", "--ridge", "0"], "ridge penalty must be above 0"),
        (["ftw_erm/2", "--partition", "DIGITS", "-o", "nowhere/two.png"], "cannot write nowhere/two.png"),
        (["ftw_erm/2"], "the images of fashion_mnist are not at hand"),
    ],
)
def test_bad_input(call: Call, digits: str, tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        call("figure", *[digits if a == "DIGITS" else a for a in arguments])
    assert [p for p in tmp_path.iterdir() if p.is_file()] == []


def test_more_clients_than_colours(store: Store) -> None:
    dataset = datasets.resolve("digits", store)
    many = partitions.build(partition_spec(dataset, "iid", spectra.MOST + 1, 0, 0.7), store)
    with pytest.raises(FedbenchError, match="9 clients cannot be told apart"):
        spectra.of_partition(many, figures.Ask(store))
    assert len(draw.COLOURS) == spectra.MOST == len(set(draw.COLOURS))


def test_what_the_conditions_are_worth(call: Call) -> None:
    text = call("theory", "--draws", "20000", "--seed", "3").stdout
    assert "20,000 random one-hot problems, seed 3" in text
    assert "then V_ERM ≤ V_FTW: never" in text
    assert "held in 0 of 20,000 problems (never)" in text
    told = json.loads(call("theory", "--draws", "20000", "--seed", "3", "--json").stdout)
    assert (told["draws"], told["seed"]) == (20000, 3)
    for finding in told["findings"]:
        assert f"held in {finding['held']:,} of {finding['drawn']:,} {finding['unit']}" in text
        assert finding["share"] is None or finding["share"] == finding["followed"] / finding["held"]
    assert any(0 < (f["share"] or 0) < 1 and f"{100 * f['share']:.1f} %" in text for f in told["findings"])
    with pytest.raises(FedbenchError, match="at least 1 draw"):
        call("theory", "--draws", "0")


def test_theory_of_feddrm(call: Call) -> None:
    """The same numbers and verdicts as text and as JSON."""
    text = call("theory", "--paper", "feddrm", "--draws", "2", "--seed", "3").stdout
    document = json.loads(call("theory", "--paper", "feddrm", "--draws", "2", "--seed", "3", "--json").stdout)
    assert (document["paper"], document["draws"], document["seed"]) == ("feddrm", 2, 3)
    assert "2 simulated problems, seed 3" in text
    verdicts = {(True, False): "holds", (False, False): "does not hold", (False, True): "fails, as it should"}
    for finding in document["findings"]:
        line = next(row.strip() for row in text.splitlines() if row.strip().startswith(finding["statement"]))
        assert line.endswith(verdicts[finding["holds"], finding["control"]])
        for point in finding["points"]:
            assert f"{point['measured']:.3g}" in text
            assert f"{point['claimed']:.3g}" in text
    with pytest.raises(FedbenchError, match="unknown paper with a theory 'fedrdm'; did you mean 'feddrm'"):
        call("theory", "--paper", "fedrdm")
    with pytest.raises(FedbenchError, match="at least 1 draw and at most 10,000"):
        call("theory", "--paper", "feddrm", "--draws", "0")


CHECK = """
import sys
import fedbench.cli.figure, fedbench.cli.theory
early = sorted({"torch", "scipy", "matplotlib", "PIL", "numpy", "pandas"} & set(sys.modules))
from fedbench.reports.figures import Content, Panel, curves, data, draw, load
import numpy as np
images = {(0, side): np.eye(9, 5) for side in ("train", "test")}
draw.render(load("ftw_erm/2"), Content([Panel("", {}, curves(images))]), "svg")
print(early, sorted({"torch", "scipy", "matplotlib.pyplot", "pandas"} & set(sys.modules)))
"""


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env={**os.environ, "FEDBENCH_DATA": ""}
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[] []"


@pytest.mark.data
def test_real_images(data_root: Path, store: Store, real_images: RealImages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own earlier figures for Colored MNIST, and what the paper's caption says of both data sets.

    Raw ratios are below 1, as the caption says; divided by n they are not, and on Fashion-MNIST the first of client 1
    (T-shirts are brighter than sandals) is above every bound that Theorem 2 can have.
    """
    real_images.lend(store.home, "fashion_mnist", "mnist")
    ask = figures.Ask(store, [data_root])
    fashion, colored = figures.kind_of(RATIO).gather(RATIO, ask).panels
    assert [c.client for c in fashion.marks] == [1, 2, 3, 4, 5]
    assert {(c.train.n, c.test.n) for c in fashion.marks} == {(6168, 1022)}
    assert {(c.train.n, c.test.n, c.train.d) for c in colored.marks} == {(20_000, 10_000, 2352)}
    for curve in [*fashion.marks, *colored.marks]:
        assert curve.comparison.raw.max() < 1
    for curve in colored.marks:
        c = curve.comparison
        assert 1250 < c.rank < 1350
        assert np.mean((c.raw[:1000] > 0.665) & (c.raw[:1000] < 0.735)) > 0.95
        assert np.mean((c.normalised[:1000] > 0.94) & (c.normalised[:1000] < 1.04)) > 0.95
        assert 1 < c.largest < 1.06
        assert c.share_below(1) < 1
    largest = [curve.comparison.largest for curve in fashion.marks]
    assert largest[0] == fashion.marks[0].comparison.normalised[0] > 1.9
    assert 1.4 < largest[2] < 1.75
    assert largest[3] < 1
    assert fashion.marks[2].comparison.share_below(1) < 0.75

    # Figure 3 shows some of the same spectra, which need not be computed once more.
    monkeypatch.setattr(spectra, "curves", lambda images, ridge: sorted({client for client, _ in images}))
    assert [panel.marks for panel in figures.kind_of(SPECTRUM).gather(SPECTRUM, ask).panels] == [[1, 2, 3, 4, 5], [1]]


def test_figures_are_declared_in_files_of_their_papers(tmp_path: Path) -> None:
    assert {"arena/mnist", "feddrm/3", "scale/1"} <= set(figures.names())
    for name in figures.names():
        figure = figures.load(name)
        assert (figure.id, figure.kind in figures.KINDS) == (name, True)
    file = tmp_path / "figures.toml"
    file.write_text('[[figure]]\ntitle = "T"\nkind = "sweep"\nserie = 1\n')
    with pytest.raises(FedbenchError, match=r"figures\.toml, figure 1 'serie'; did you mean 'series'"):
        of_file(file)
