"""How soon runs reach an accuracy, and which clients lose against Local: from stored rounds, against own NumPy on the
stored predictions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedbench as fb
from fedbench.errors import FedbenchError
from fedbench.planner.runs import select
from fedbench.reports.compare.layout import side_by_side
from fedbench.reports.layout.grid import Grid, legend
from fedbench.reports.render import FORMATS, render
from fedbench.results.frame import Frame
from fedbench.results.reached import NEVER, goal
from fedbench.results.run import State
from fedbench.store import Store
from tests.reports.conftest import Lab, of_csv, words_of, written
from tests.support.frames import refused

SEEDS = (0, 1)


@dataclass(frozen=True)
class Trained:
    """Runs of FedAvg and Local on one partition of digits, with what they store."""

    store: Store
    runs: dict[tuple[str, int], fb.Run]

    def by_round(self, method: str, seed: int) -> dict[int, float]:
        """Round -> average accuracy, from the predictions: of each client's model on its own test images, weighted by
        training images."""
        p, clients = self.runs[method, seed].predictions, self.runs[method, seed].clients
        weights = clients["n_train"].to_numpy() / clients["n_train"].sum()
        p = p[p["view"] == "plain"] if "view" in p else p
        return {int(t): float(weights @ of_clients(rows, len(weights))) for t, rows in p.groupby("round")}

    def of_clients(self, method: str, seed: int) -> np.ndarray:
        """The clients' accuracies after the last round."""
        p, n = self.runs[method, seed].predictions, len(self.runs[method, seed].clients)
        return of_clients(p[p["round"] == p["round"].max()], n)

    def line(self, metrics: list[str], filters: list[str], method: str = "fedavg") -> tuple[dict[str, object], Grid]:
        (side,) = side_by_side(select(Frame(self.store), filters), metrics)
        (line,) = (line for line in side.lines if line.method == method)
        return {h.metric: e for h, e in zip(side.heads, line.entries, strict=True)}, side


def of_clients(p: object, n: int) -> np.ndarray:
    right = (p["own"] == p["label"]).to_numpy()  # type: ignore[index]
    client = p["client"].to_numpy()  # type: ignore[index]
    return np.array([right[client == c].mean() for c in range(n)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("reached") / "store"
    part = fb.partition("digits", dir=0.3, clients=4, store=home)
    runs = {
        (method, seed): fb.train(part, method, rounds=4, every=1, lr=0.05, seed=seed, store=home)
        for method in ("fedavg", "local")
        for seed in SEEDS
    }
    return Trained(Store(home), runs)


def test_how_soon_is_that_of_the_stored_rounds(trained: Trained) -> None:
    accuracies = {seed: trained.by_round("fedavg", seed) for seed in SEEDS}
    value = min(max(of.values()) for of in accuracies.values()) - 1e-9  # that each seed reaches
    first = {seed: min(t for t, a in of.items() if a >= value) for seed, of in accuracies.items()}
    names = [f"{what}_to:{value!r}" for what in ("rounds", "bytes", "seconds")]
    found, side = trained.line(names, ["method=fedavg"])
    for name, columns in zip(
        names, (None, ("bytes_up", "bytes_down"), ("total_seconds", "evaluation_seconds")), strict=True
    ):
        expected = []
        for seed in SEEDS:
            rounds = trained.runs["fedavg", seed].rounds[: first[seed]]
            of = {c: float(rounds[c].sum()) for c in columns or ()}
            sign = -1 if "seconds" in name else 1
            expected.append(first[seed] if columns is None else of[columns[0]] + sign * of[columns[1]])
        entry, (head,) = found[name], [h for h in side.heads if h.metric == name]
        factor = {"kB": 1e-3, "MB": 1e-6}.get(head.unit, 1.0)
        assert entry.value.mean == pytest.approx(factor * np.mean(expected)), name
        assert (entry.value.std or 0.0) == pytest.approx(factor * np.std(expected, ddof=1)), name
    assert any("until the first evaluated round with average_accuracy" in line for line in side.notes)


def test_what_a_run_never_reaches_is_no_mean_and_printed_so(trained: Trained) -> None:
    best = {seed: max(trained.by_round("fedavg", seed).values()) for seed in SEEDS}
    between = sum(best.values()) / 2
    assert min(best.values()) < between < max(best.values())
    for value, text in ((between, "never in 1 of 2 seeds"), (1.0, "never")):
        name = f"rounds_to:{value!r}"
        found, side = trained.line([name, "average_accuracy"], ["method=fedavg"])
        assert (found[name].text, found[name].state, found[name].value) == (text, State.NEVER, None)
        assert found["average_accuracy"].value is not None
        for format in sorted({*FORMATS} - {"bibtex"}):
            assert (text if format not in ("csv", "json") else "not reached") in render([side], format)
        (line,) = (line for line in of_csv(render([side], "csv")) if line["metric"] == name)
        assert (line["value"], line["state"]) == ("", "not reached")
        assert json.loads(render([side], "json"))[0]["cells"][0]["value"] is None
        assert not any("never" in symbol for symbol, _ in legend(side)), "it says so itself"
        with pytest.raises(FedbenchError, match="is not reached in every run, so there is nothing to test"):
            side_by_side(select(Frame(trained.store)), [name], test=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rounds_to:80", "rounds_to:80 does not end in a value above 0, at most 1; such as rounds_to:0.8"),
        ("bytes_to:x", "bytes_to:x does not end in a value"),
        ("seconds_to:sistem_accuracy:0.8", "unknown metric in seconds_to:sistem_.*did you mean 'system_accuracy'"),
        ("round_to:0.8", "unknown metric 'round_to:0.8'; did you mean 'rounds_to:0.8'"),
    ],
)
def test_a_goal_that_is_none_is_one_line(trained: Trained, name: str, says: str) -> None:
    refused(says, side_by_side, select(Frame(trained.store)), [name])


def test_another_metric_may_be_the_goal_and_lost_rounds_give_no_sum(lab: Lab) -> None:
    run = lab.run(lab.setting("feddrm/1", "CIFAR-10/Dir-0.3"), "fedavg", measure=False)
    rows = [("system_accuracy", "plain", t, -1, 0.2 * t) for t in (1, 2, 3)]
    rows += [("bytes_up", "", t, -1, 10.0) for t in (0, 1, 2, 3)] + [("bytes_down", "", t, -1, 1.0) for t in (1, 3)]
    lab.rows(run, rows)
    (found,) = select(Frame(lab.store))
    for name, expected in (
        ("rounds_to:system_accuracy:0.4", 2.0),
        ("rounds_to:system_accuracy:0.7", NEVER),
        ("rounds_to:0.4", None),  # has no average accuracy
        ("bytes_to:system_accuracy:0.2", 11.0),
        ("bytes_to:system_accuracy:0.4", None),  # what round 2 sent down is not kept
    ):
        assert (soon := goal(name)) is not None
        assert soon.of(found.metrics) == expected, name


def test_clients_that_lose_against_local_are_those_of_the_predictions(trained: Trained) -> None:
    found, side = trained.line(["worse_than_local", "worse_than_local_by"], [])
    shares, losses = [], []
    for seed in SEEDS:
        lost = trained.of_clients("local", seed) - trained.of_clients("fedavg", seed)
        shares.append((lost > 0).mean())
        losses.append(lost[lost > 0].mean() if (lost > 0).any() else 0.0)
    assert any(share > 0 for share in shares), "else nothing is shown"
    assert found["worse_than_local"].value.mean == pytest.approx(100 * np.mean(shares))
    assert found["worse_than_local"].value.std == pytest.approx(100 * np.std(shares, ddof=1))
    assert found["worse_than_local_by"].value.mean == pytest.approx(100 * np.mean(losses))
    assert [head.label for head in side.heads] == ["Worse than Local", "Worse than Local by"]
    about = " ".join(side.notes)
    assert "by Local's run on the same partition, with the same seed" in about
    assert "No Worse than Local: Local (is Local)." in about
    alone, side = trained.line(["worse_than_local"], ["method=fedavg"])
    assert alone["worse_than_local"].value is None
    assert "(has not Local's run on the same partition, with the same seed beside it" in " ".join(side.notes)
    refused("compares two runs itself", side_by_side, select(Frame(trained.store)), ["worse_than_local"], test=True)


def test_headings_of_how_soon_are_in_words() -> None:
    titles = {"rounds_to:0.8": "Rounds to 80 %", "bytes_to:system_accuracy:0.455": "Sent to 45.5 % system accuracy"}
    assert {name: goal(name).title for name in titles} == titles


HURT = """
title = "Who is hurt"
protocol = "pfedfda"
metric = "worse_than_local"
statistic = "last"
unit = "percent"
decimals = 2
best = "min"
seeds = [0, 1]
budget.small = { rounds = 4, every = 1 }
rows = [{ label = "FedAvg", method = "fedavg" }]
column = [
{ label = "Share", dataset = "cifar10", partition = { scheme = "iid" } },
{ label = "By", metric = "worse_than_local_by", dataset = "cifar10", partition = { scheme = "iid" } },
]
"""


@pytest.mark.parametrize("row", [True, False], ids=["row", "no row"])
def test_a_table_has_the_clients_that_lose_against_local(lab: Lab, tmp_path: Path, row: bool) -> None:
    local = 'rows = [{ label = "Local", method = "local" },'
    table = written(tmp_path, HURT.replace("rows = [", local) if row else HURT)
    of_clients = {"fedavg": (0.5, 0.6, 0.7, 0.8), "local": (0.6, 0.6, 0.9, 0.7)}
    settings = [lab.cells(table, seeds=[seed]).settings["Share"][0] for seed in (0, 1)]

    def trained(method: str, seed: int) -> None:
        accuracies = {c: v + 0.1 * seed * (c == 2) for c, v in enumerate(of_clients[method])}
        lab.run(settings[seed], method, rules="pfedfda", clients=accuracies)

    for seed in (0, 1):
        trained("fedavg", seed)
    grid = lab.grid(table)
    fedavg = grid.lines[-1]
    assert [(entry.text, entry.state) for entry in fedavg.entries] == [("", State.MISSING)] * 2
    said = " ".join(words_of(grid))
    assert "No worse_than_local: FedAvg has not Local's run on the same partition, with the same seed beside it" in said
    trained("local", 0)
    assert lab.grid(table).lines[-1].entries[0].mark == "‡", "of one seed only"
    trained("local", 1)
    grid = lab.grid(table)
    assert [entry.text for entry in grid.lines[-1].entries] == ["50.00", "15.00"]  # (0.1 + 0.2) / 2
    assert [entry.state for entry in grid.lines[0].entries] == [State.UNDEFINED if row else State.DONE] * 2
    assert any("share of the clients that train whose accuracy is below" in line for line in grid.notes)
    for wrong, says in (
        (HURT.replace('"last"', '"clients"'), r"worse_than_local is a number of clients; statistic = .last"),
        (HURT.replace('"min"', '"max"'), "of worse_than_local less is better; best = .min"),
    ):
        with pytest.raises(FedbenchError, match=says):
            written(tmp_path, wrong)


TABLE = """
title = "How soon"
protocol = "pfedfda"
metric = "rounds_to:0.5"
statistic = "whole_run"
unit = "count"
decimals = 0
best = "min"
seeds = [0, 1]
budget.small = { rounds = 4, every = 1 }
rows = [{ label = "FedAvg", method = "fedavg" }, { label = "Local", method = "local" }]
column = [
{ label = "Rounds", dataset = "cifar10", partition = { scheme = "iid" } },
{ label = "kB", metric = "bytes_to:0.5", unit = "kilobytes", dataset = "cifar10", partition = { scheme = "iid" } },
]
"""


def test_a_table_has_how_soon(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, TABLE)
    for method, slow in (("fedavg", 1), ("local", 2)):
        for seed in (0, 1):
            setting = lab.cells(table, seeds=[seed]).settings["Rounds"][0]
            run = lab.run(setting, method, measure=False, rules="pfedfda")
            rows = [("average_accuracy", "plain", t, -1, 0.25 * t / (slow + seed)) for t in range(1, 5)]
            rows += [(f"bytes_{way}", "", t, -1, 500.0) for way in ("up", "down") for t in range(1, 5)]
            lab.rows(run, rows)
    grid = lab.grid(table)
    fedavg, local = ([(e.text, e.state) for e in line.entries] for line in grid.lines)
    assert fedavg == [("3", State.DONE), ("3", State.DONE)]  # 2 and 4 rounds of 1,000 bytes
    assert local == [("never in 1 of 2 seeds", State.NEVER)] * 2
    assert any(line.startswith("rounds_to:0.5: rounds until the first evaluated round") for line in grid.notes)
    text = TABLE.replace('"whole_run"', '"last"')
    with pytest.raises(FedbenchError, match=r"rounds_to:0.5 is a number of a whole run; statistic = .whole_run"):
        written(tmp_path, text)
