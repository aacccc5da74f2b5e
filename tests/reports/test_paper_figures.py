"""Figures of FedDRM and pFedFDA, from small artifacts: numbers, pictures, and what is said where they are missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
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
from fedbench.errors import FedbenchError
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import CORRUPTIONS
from fedbench.reports import figures
from fedbench.reports.figures import beta, bubbles, draw
from fedbench.reports.figures.drift import CLIENT, RATIO, SEEDS, TARGET
from fedbench.reports.status.index import State
from fedbench.store import Store
from fedbench.theory.feddrm import drift as simulation
from tests.reports.conftest import Draws, Lab, of_csv
from tests.support.figures_lab import betas, by_epochs, corrupted_digits, fill_epochs, gathered, run_of_clients
from tests.support.real_images import RealImages

QUANTITIES = ("system_accuracy", "average_accuracy", "routing_accuracy")


def same(value: float) -> dict[str, Callable[[int], float]]:
    """System accuracy as given, average accuracy 0.1 above, routing accuracy 0.1 below."""
    return {q: lambda t, v=value + d: v for q, d in zip(QUANTITIES, (0.0, 0.1, -0.1), strict=True)}


def points(result: Result) -> dict[tuple[str, str, float], float]:
    return {(r["panel"], r["line"], float(r["x"])): float(r["mean"]) for r in of_csv(result.stdout)}


def ticks(name: str, store: Store) -> list[list[str]]:
    figure = figures.load(name)
    drawn = draw.draw(figure, gathered(figure, store)[0])
    return [[label.get_text() for label in axes.get_xticklabels()] for axes in drawn.axes]


def test_accuracies_by_lambda_and_by_network(lab: Lab, draws: Draws) -> None:
    setting = lab.setting("feddrm/figure4", "system accuracy/Dir-0.3")
    for weight in (0.3, 0.8):
        lab.run(setting, "feddrm", {"lambda": weight}, metrics=same(weight / 2))
    found = points(draws("feddrm/4", "--csv"))
    assert found == {
        ("Dir-0.3", f"{q} accuracy", weight): pytest.approx(100 * (weight / 2 + d))
        for weight in (0.3, 0.8)
        for q, d in (("system", 0.0), ("average", 0.1), ("routing", -0.1))
    }
    assert ticks("feddrm/4", lab.store) == [["0.3", "0.8"]]
    # Depth `deep` is the network's default, so that its runs are those of plain lenet_gn.
    setting = lab.setting("feddrm/figure6", "system accuracy/Dir-0.3")
    for i, model in enumerate(("lenet_gn:branch=none", "lenet_gn:branch=shallow", "lenet_gn")):
        lab.run(replace(setting, model=model), "feddrm", metrics=same(0.3 + 0.1 * i))
    found = points(draws("feddrm/6", "--csv"))
    assert {x: v for (_, line, x), v in found.items() if line == "system accuracy"} == {
        0: pytest.approx(30), 1: pytest.approx(40), 3: pytest.approx(50),
    }  # fmt: skip
    assert ticks("feddrm/6", lab.store) == [["none", "shallow", "deep"]]


def test_shifts_stand_in_the_figures_order_and_one_that_is_not_on_the_axis_is_an_error(lab: Lab, draws: Draws) -> None:
    for i, shift in enumerate(("low", "mid", "high")):
        setting = lab.setting("feddrm/figure5", f"System accuracy/{shift}")
        assert setting.partition.shift == shift
        lab.run(setting, "feddrm", metrics=same(0.3 + 0.1 * i))
    found = points(draws("feddrm/5", "--csv"))
    assert len(found) == 9
    for i in range(3):
        assert found["System accuracy", "FedDRM", i] == pytest.approx(30 + 10 * i)
        assert found["Routing accuracy", "FedDRM", i] == pytest.approx(20 + 10 * i)
    assert ticks("feddrm/5", lab.store) == [["low", "mid", "high"]] * 3
    assert "30.00 (low), 40.00 (mid), 50.00 (high)" in draws("feddrm/5", "-o", "f.svg").stdout
    # Figure 5 with an axis that knows two of the three shifts.
    figure = figures.load("feddrm/5")
    assert figure.series is not None
    short = replace(figure, series=replace(figure.series, values={"low": "low", "mid": "mid"}))
    with pytest.raises(FedbenchError, match="column Routing accuracy/high has no single shift"):
        gathered(short, lab.store)


def test_methods_without_a_router_have_no_routing_accuracy(lab: Lab) -> None:
    """A run of FedAvg in the table's setting is a row more, without a number and without a complaint."""
    setting = lab.setting("feddrm/seeds", "Dir-0.3/Routing")
    lab.run(setting, "feddrm", metrics=same(0.5))
    lab.run(setting, "fedavg")
    grid = lab.grid("feddrm/seeds", extra=True)
    assert grid.problems == ()
    (line,) = (line for line in grid.lines if line.label == "FedAvg")
    states = {f"{h.group}/{h.label}": e.state for h, e in zip(grid.heads, line.entries, strict=True)}
    undefined = [states[f"Dir-0.3/{name}"] is State.UNDEFINED for name in ("Routing", "System")]
    assert undefined == [True, False]


LEAD = {"feddrm": 0.03, "fedavgft": 0.0}


def retina(lab: Lab) -> dict[str, str]:
    """Runs of two rows at the small budget: method -> id."""
    setting = lab.setting("feddrm/figure7", "RETINA/System accuracy")
    assert setting.model == "cifar_cnn_projection"
    made = {}
    for method, lead in LEAD.items():
        metrics = {
            "average_accuracy": lambda t, lead=lead: 0.5 + t / 1000 + lead,
            "system_accuracy": lambda t, lead=lead: 0.4 + t / 1000 + lead,
            "train_loss": lambda t, lead=lead: 1 / t - lead / 10,
        }
        made[method] = lab.run(setting, method, metrics=metrics, views=("plain",)).id
    return made


def test_lines_by_round(lab: Lab, draws: Draws) -> None:
    lab.dataset("retina")
    with pytest.raises(FedbenchError, match="no cell of table feddrm/figure7 is measured at budget small") as error:
        draws("feddrm/7")
    assert "fedbench train --table feddrm/figure7" in str(error.value.hint)
    runs, titles = retina(lab), ["Average accuracy", "System accuracy", "Training loss"]
    told = json.loads(draws("feddrm/7", "--json").stdout)
    assert [panel["title"] for panel in told["panels"]] == titles
    evaluated = lab.setting("feddrm/figure7", "RETINA/System accuracy").evaluated_rounds()
    for panel, unit in zip(told["panels"], ("%", "%", ""), strict=True):
        lines = [(line["line"], line["run"]) for line in panel["lines"]]
        assert (panel["unit"], lines) == (unit, [("FedAvgFT", runs["fedavgft"]), ("FedDRM", runs["feddrm"])])
        assert panel["lines"][0]["rounds"] == list(evaluated)
    system = told["panels"][1]["lines"][1]
    assert system["values"] == pytest.approx([100 * (0.43 + t / 1000) for t in system["rounds"]])
    assert [claim["state"] for claim in told["claims"]] == ["holds so far"] * 3
    rows = of_csv(draws("feddrm/7", "--csv").stdout)
    assert (len(rows), {row["run"] for row in rows}) == (3 * 2 * len(evaluated), set(runs.values()))
    said = draws("feddrm/7", "-o", "7.svg").stdout
    assert "Average accuracy, budget small, after the last round: FedAvgFT 60; FedDRM 63" in said
    figure = figures.load("feddrm/7")
    axes = draw.draw(figure, gathered(figure, lab.store)[0]).axes
    assert [one.get_title() for one in axes] == titles
    first, second = axes[2].lines
    np.testing.assert_allclose(first.get_ydata(), 1 / np.asarray(first.get_xdata(), float))
    assert second.get_linewidth() > first.get_linewidth()  # FedDRM is what the figure is about


DRIFT = figures.load("feddrm/3")


def test_both_readings_and_both_claims(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = {seed: simulation.simulate(seed, rounds=4) for seed in SEEDS}
    monkeypatch.setattr(simulation, "simulate", simulated.get)
    content, _ = gathered(DRIFT, store)
    relative, ratio = (panel.marks.lines for panel in content.panels)
    assert {name: values.shape for name, values in {**relative, **ratio}.items()} == {
        name: (len(SEEDS), 4) for name in (CLIENT, TARGET, RATIO)
    }
    for i, (client, target) in enumerate(simulated.values()):
        np.testing.assert_allclose(relative[CLIENT][i], client.drift / client.squared_gradient)
        np.testing.assert_allclose(relative[TARGET][i], target.drift / target.squared_gradient)
        np.testing.assert_allclose(ratio[RATIO][i], client.drift / target.drift)
    assert [(v.state, v.held, v.asked) for v in content.claims] == [("holds", 20, 20)] * 2
    left, right = draw.draw(DRIFT, content).axes
    assert [line.get_label() for line in left.lines] == [CLIENT, TARGET]
    np.testing.assert_allclose(right.lines[0].get_ydata(), np.median(ratio[RATIO], axis=0))
    assert len(left.collections) == 2  # the range of the seeds
    monkeypatch.setattr(simulation, "simulate", lambda seed: simulated[seed][::-1])
    assert [v.state for v in gathered(DRIFT, store)[0].claims] == ["fails", "fails"], "with the heads exchanged"


def test_one_seed_as_picture_text_csv_and_json(draws: Draws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "simulate", partial(simulation.simulate, rounds=4))
    said = draws("feddrm/3", "--seed", "7").stdout
    assert (tmp_path / "feddrm-3.png").read_bytes().startswith(b"\x89PNG")
    assert "one seed: client head" in said
    assert "every round: holds" in said
    document = json.loads(draws("feddrm/3", "--seed", "7", "--json").stdout)
    assert document["seeds"] == [7]
    (courses,) = document["panels"][0]["lines"][CLIENT]
    assert courses == simulation.simulate(7)[0].relative.tolist()
    rows = of_csv(draws("feddrm/3", "--seed", "7", "--csv").stdout)
    own = [row for row in rows if row["line"] == CLIENT]
    assert [int(row["round"]) for row in own] == [1, 2, 3, 4]
    assert [float(row["value"]) for row in own] == courses
    assert len(rows) == 3 * 4


BETA, BUBBLES, EPOCHS = (figures.load(f"pfedfda/{n}") for n in (2, 3, 4))


def test_beta_by_corruption_and_its_picture(store: Store, draws: Draws) -> None:
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
    groups = {g["corruption"]: g for g in panel["groups"]}
    assert groups.keys() == {"clean", *CORRUPTIONS}
    assert groups["clean"]["mean"] == pytest.approx(mean(values[12:]))
    assert groups["clean"]["std"] == pytest.approx(stdev(values[12:]))
    first = groups[CORRUPTIONS[0]]
    assert (first["clients"], first["severities"]) == ([0, 10], [1, 2])
    assert first["std"] == pytest.approx(stdev([values[0], values[10]]))
    assert groups[CORRUPTIONS[5]]["std"] is None  # one client has none
    assert panel["mean_corrupted"] == pytest.approx(mean(values[:12]))
    order = [g["corruption"] for g in panel["groups"]]
    assert order[0] == "clean"
    assert order[1:] == sorted(CORRUPTIONS, key=lambda name: groups[name]["mean"])
    assert [(c["text"], c["state"]) for c in told["claims"]] == [("mean β(clean) < mean β(corrupted)", "holds")]
    shown = figures.kind_of(BETA).gather(BETA, figures.Ask(store, run=run_of_clients(store, part, {"beta": values})))
    (axes,) = draw.draw(BETA, shown).axes
    (panel,) = shown.panels
    assert [bar.get_height() for bar in axes.patches] == [panel.marks.means[name] for name in panel.marks.groups]
    labels = [t.get_text() for t in axes.get_xticklabels()]
    assert labels[0] == "clean (12)"
    assert {"contrast (1)", "motion blur (2)"} < set(labels)
    dots = np.concatenate([c.get_offsets()[:, 1] for c in axes.collections if len(c.get_offsets())])
    assert sorted(b for b in dots if b in values) == sorted(values)
    (legend,) = axes.figure.legends
    names = [t.get_text() for t in legend.get_texts()]
    assert names == ["mean over clients", "± sd over clients", "clean client", "severity 1", "severity 2"]


def test_the_claim_of_beta_can_fail_and_stay_open(store: Store) -> None:
    part, values = corrupted_digits(store), betas()
    content, _ = gathered(BETA, store, run=run_of_clients(store, part, {"beta": values[::-1]}))
    off = mean(values[:12]) - mean(values[12:])
    (claim,) = content.claims
    assert (claim.state, claim.detail) == ("fails", f"fails by {off:.4g} at clean and corrupted, beta")
    (said,) = figures.kind_of(BETA).words(BETA, content)
    assert f"mean β {mean(values[:12]):.3f} of 12 clean clients, {mean(values[12:]):.3f} of 12 corrupted" in said
    clean = run_of_clients(store, corrupted_digits(store, "none"), {"beta": values})
    content, _ = gathered(BETA, store, run=clean)
    (said,) = figures.kind_of(BETA).words(BETA, content)
    assert f"mean β {mean(values):.3f} of 24 clean clients; run" in said
    assert [claim.state for claim in content.claims] == ["not measured"]


def test_two_betas_are_two_panels(store: Store) -> None:
    """And colour shifts are neither clean nor corrupted."""
    part, values = corrupted_digits(store, "high", 8), betas(8)
    id = run_of_clients(store, part, {"beta_0": values, "beta_1": [b / 2 for b in values]})
    shown, _ = gathered(BETA, store, run=id)
    assert [p.marks.column for p in shown.panels] == ["beta_0", "beta_1"]
    assert [list(p.marks.groups) for p in shown.panels] == [["other shift"]] * 2
    assert shown.panels[1].marks.means["other shift"] == pytest.approx(shown.panels[0].marks.means["other shift"] / 2)
    labels = [axes.get_ylabel().split(" (")[0] for axes in draw.draw(BETA, shown).axes]
    assert labels == ["β of the means", "β of the covariance"]


def test_a_run_without_beta(store: Store) -> None:
    part, range_of = corrupted_digits(store), r"'beta' of table clients must hold numbers in 0\.\.1"
    for lr, (notes, message) in enumerate(
        (
            ({"other": betas()}, r"run \w+ \(pfedfda\) noted no beta of its clients; choose"),
            ({"beta": [1.5] * 24}, range_of),
            ({"beta": pa.array([None] * 24, pa.float64())}, range_of),
            ({"beta": [float("nan")] * 24}, range_of),
            ({"beta": [0.5] * 3}, "table clients has 3 clients, its partition 24"),
        ),
        1,
    ):
        id = run_of_clients(store, part, notes, float(lr))
        with pytest.raises(FedbenchError, match=message):
            gathered(BETA, store, run=id)
    with pytest.raises(FedbenchError, match="no run 'nothing'"):
        gathered(BETA, store, run="nothing")


def test_the_run_of_the_tables_cell(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BETA.cells is not None
    with pytest.raises(FedbenchError) as missing:
        gathered(BETA, lab.store, budget="paper")
    assert str(missing.value) == (
        "the run of pfedfda/2 is not there (pFedFDA, CIFAR10-S/100 %, budget paper: missing); make it: "
        'fedbench train --table pfedfda/1 --budget paper --column "CIFAR10-S/100 %" --method pfedfda'
    )
    asked = {}

    def of_run(run: Any, ask: figures.Ask, name: str) -> list[figures.Panel[beta.Betas]]:
        asked["run"], asked["name"] = run.id, name
        return []

    monkeypatch.setattr(beta, "of_run", of_run)
    setting = lab.setting(BETA.cells.table, BETA.cells.column, "paper")
    run = lab.run(setting, "pfedfda", rules="pfedfda", measure=False)
    gathered(BETA, lab.store, budget="paper")
    assert asked == {"run": run.id, "name": "pFedFDA, CIFAR10-S, 100 %"}
    with pytest.raises(FedbenchError, match="budget paper: missing"):
        gathered(BETA, lab.store, budget="paper", seed=7)
    lab.store.remove("dataset", next(lab.store.list("dataset")).id)
    with pytest.raises(FedbenchError, match=r"budget small: no data\); .*cifar10"):
        gathered(BETA, lab.store)


# -- Figure 3 ------------------------------------------------------------------------------------------------


def test_bubbles_count_what_clients_hold(store: Store, draws: Draws) -> None:
    spec = partition_spec(datasets.resolve("digits", store), "dirichlet", 7, 3, 0.7, alpha=0.2)
    part = partitions.build(spec, store)
    result = draws("pfedfda/3", "--partition", part.id, "--json")
    (panel,) = json.loads(result.stdout)["panels"]
    for name, test in (("train", False), ("test", True)):
        counted = [np.bincount(part.label[part.rows(c, test)], minlength=10).tolist() for c in range(7)]
        assert panel[name] == counted
    assert panel["partition"] == part.id
    rows = of_csv(draws("pfedfda/3", "--partition", part.id, "--csv").stdout)
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
    said = draws("pfedfda/3", "--partition", part.id).stdout
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


@pytest.mark.slow
def test_the_papers_partitions(data_root: Path, store: Store, real_images: RealImages) -> None:
    """Client sizes as the official code draws them."""
    real_images.lend(store.home, "cifar10")
    shown, _ = gathered(BUBBLES, store, roots=[data_root])
    sharp, mild = (panel.marks for panel in shown.panels)
    assert sharp.samples.sum(axis=1)[:5].tolist() == [297, 263, 1380, 269, 584]
    assert mild.samples.sum(axis=1)[:5].tolist() == [638, 706, 248, 602, 814]
    assert (int(sharp.train.sum()), int(mild.train.sum())) == (47_955, 47_958)
    assert (np.median((sharp.samples > 0).sum(axis=1)), np.median((mild.samples > 0).sum(axis=1))) == (4, 9)


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
    epochs = [[c["epochs"] for c in row["cells"]] for panel in told["panels"] for row in panel["rows"]]
    assert epochs == [[1, 2, 5, 10, 20]] * 4
    assert (told["budget"], told["missing"]) == ("small", [])
    claims = {c["text"]: c["state"] for c in told["claims"]}
    assert claims["pFedFDA is above FedAvgFT at every E"] == "holds"
    assert claims["Both methods reach a plateau after E = 5 on CIFAR100"] == "fails"


def test_the_picture_of_epochs(lab: Lab) -> None:
    """A line is broken where a cell is missing."""
    fill_epochs(lab, [("pfedfda", "CIFAR100/E = 5"), ("pfedfda", "CIFAR100/E = 20")])
    shown, remarks = gathered(EPOCHS, lab.store)
    assert remarks == [
        "pfedfda/4 lacks pFedFDA at CIFAR100/E = 5 (missing), pFedFDA at CIFAR100/E = 20 (missing); to fill them: "
        "fedbench train --table pfedfda/figure4 --budget small"
    ]
    drawn = draw.draw(EPOCHS, shown)
    left, right = drawn.axes
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines["FedAvgFT"].get_xdata()) == [1, 2, 5, 10, 20]
    assert not np.isnan(lines["FedAvgFT"].get_ydata()).any()
    assert list(lines["pFedFDA"].get_xdata()) == [1, 2, 5, 10]
    np.testing.assert_allclose(lines["pFedFDA"].get_ydata(), [0.31, 0.32, np.nan, 0.4])
    assert [t.get_text() for t in left.get_xticklabels()] == ["1", "2", "5", "10", "20"]
    assert not left.collections, "of one seed there is no error; the spread over clients is none"
    assert left.get_title().startswith("CIFAR100 (budget small, ")
    assert right.get_title().startswith("CIFAR100-S 25 % (budget small, ")
    (legend,) = drawn.legends
    assert [t.get_text() for t in legend.get_texts()] == ["FedAvgFT", "pFedFDA"]
    assert len({line.get_color() for line in legend.get_lines()}) == 2


def test_what_another_version_made_is_named(lab: Lab) -> None:
    lab.dataset("cifar100")
    setting = lab.setting("pfedfda/figure4", "CIFAR100/E = 5")
    lab.run(setting, "pfedfda", rules="pfedfda", clients={0: 0.5}, views=("plain",), version=99)
    shown, remarks = gathered(EPOCHS, lab.store)
    assert [(p.x, p.value.mean) for p in shown.panels[0].marks.lines["pFedFDA"]] == [(5, 0.5)]
    assert remarks[0] == "pfedfda/4 shows as they are: pFedFDA at CIFAR100/E = 5 (stale)"
    assert len(shown.about["missing"]) == 19
    words = (
        "measured at budget paper, and pfedfda/4 shows nothing else; make them: "
        "fedbench train --table pfedfda/figure4 --budget paper"
    )
    with pytest.raises(FedbenchError, match=words):
        gathered(EPOCHS, lab.store, budget="paper")


def test_help_names_every_figure(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(draws("--help").stdout.replace("│", " ").split())
    assert all(name in text for name in figures.FREE)
    listed, paper = set(), ""
    told = text.partition("The figure:")[2].partition(";")[0]
    for name, first, last, single in re.findall(r"(\w+)/|(\d+) to (\d+)|\b(?!or\b)(\w+)", told):
        paper = name or paper
        numbers = range(int(first), int(last) + 1) if first else [single] if single else []
        listed |= {f"{paper}/{number}" for number in numbers}
    assert listed == set(figures.names())
