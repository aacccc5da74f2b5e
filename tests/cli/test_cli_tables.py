"""`train --table` and `sweep`: what is missing and only that, several seeds in one stack, what another process
holds, and `--again`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedbench import methods
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.trainer import Progress, Trainer
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.feddrm import FedDRM
from fedbench.store import Artifact, Store
from tests.support.cli_user import (
    DIGITS,
    SMOKE,
    artifact,
    cells,
    edit_manifest,
    fedbench,
    good,
    listening,
    own_method,
    runs,
)

TABLE = ("train", "--table", "1", *DIGITS)
ONE = (*TABLE, "--column", "Dir-0.3")
DONE, MISSING = ({"Dir-0.3": state, "5-SPC": state} for state in ("done", "missing"))


def ids(home: Path) -> set[str]:
    return {run.id for run in runs(home)}


def report(*more: str) -> dict[str, dict[str, object]]:
    rows = cells(good("report", "--table", "1", "--format", "json", *DIGITS, *more))
    return {row: {column: cell["state"] for column, cell in line.items()} for row, line in rows.items()}


def work(home: Path) -> list[Path]:
    return list(home.glob("work/[!.]*"))


@pytest.fixture
def few_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the table's eleven rows have a method."""
    monkeypatch.setattr(methods, "names", lambda: ["fedavgft", "feddrm"])


@pytest.mark.usefixtures("brief", "few_methods")
def test_the_missing_cells_and_no_others(home: Path) -> None:
    assert "is counted by formula" in good("train", "--table", "pfedfda/8").err
    listed = good(*TABLE, "--dry-run").out
    assert "4 runs to make, budget smoke, about " in listed
    assert re.search(r"(?m)^FedDRM +digits +2 +\d", listed)
    each = json.loads(good(*TABLE, "--dry-run", "--json").out)
    assert ids(home) == set()
    said = good(*TABLE)
    assert "4 runs to make, budget smoke, about " in said.err
    assert re.search("not built yet, so left out: .*FedALA, FedAS", said.err)
    assert said.line == "4 of 4 runs made"
    made = ids(home)
    assert {one["run"] for one in each} == made
    assert all(one["seconds"] > 0 for one in each)
    assert "nothing to run: no cell" in good(*TABLE, "--dry-run").out
    assert report()["FedAvgFT"] == report()["FedDRM"] == DONE
    assert good(*TABLE).line == "nothing to run: no cell of the table is missing"
    assert ids(home) == made
    # One cell taken away is made again, alone.
    gone = next(run for run in runs(home) if run.manifest["spec"]["method"] == "feddrm")
    good("remove", gone.id, "--yes")
    assert good(*TABLE).line == "1 of 1 runs made"
    assert ids(home) == made


@pytest.mark.usefixtures("brief")
def test_rows_are_chosen_and_added(home: Path, tmp_path: Path) -> None:
    said = json.loads(good(*TABLE, "--method", "local", "--json").out)
    assert (sorted(said["made"]), said["failed"]) == (sorted(ids(home)), [])
    assert report()["Local"] == DONE
    assert good(*TABLE, "--method", "local").line.startswith("nothing to run")
    # A row of the table, by --method, is that row alone; several methods may be named, and one column.
    assert good(*ONE, "--method", "feddrm", "--method", "local").line == "1 of 1 runs made"
    assert report()["FedDRM"] == {"Dir-0.3": "done", "5-SPC": "missing"}
    assert report()["FedAvgFT"] == MISSING
    assert good(*TABLE, "--column", "digits/5-SPC", "--method", "feddrm").line == "1 of 1 runs made"
    # In another precision it is another run.
    said = good(*ONE, "--method", "feddrm", "--precision", "bf16")
    assert "1 run to make, budget smoke in bf16, about " in said.err
    assert said.line == "1 of 1 runs made"
    assert report("--precision", "bf16")["FedDRM"] == {"Dir-0.3": "done", "5-SPC": "missing"}
    # A method of one's own.
    mine = own_method(tmp_path)
    assert good(*ONE, "--method", mine).line == "1 of 1 runs made"
    assert report()["Mine"]["Dir-0.3"] == "done"
    assert good(*ONE, "--method", mine).line.startswith("nothing to run")


@pytest.mark.usefixtures("brief", "few_methods")
def test_one_failure_does_not_stop_the_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FedDRM, *_: object) -> object:
        raise ZeroDivisionError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(FedDRM, "loss", broken)
        told = json.loads(fedbench(*ONE, "--method", "feddrm", "--json").out)
        said = fedbench(*TABLE)
    assert (told["made"], [f["reason"] for f in told["failed"]]) == ([], ["ZeroDivisionError: no luck"])
    assert said.code == 1
    assert "2 of 4 runs made" in said.err
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    for line in failed:
        assert "FedDRM digits" in line
        assert "ZeroDivisionError: no luck" in line
        log = Path(line.partition("(log: ")[2].removesuffix(")"))
        assert 'raise ZeroDivisionError("no luck")' in json.loads(log.read_text())["log"]
    assert "Traceback" not in said.err
    assert work(home) == [], "nothing of a run without a checkpoint stays"
    assert report()["FedDRM"] == {"Dir-0.3": "failed", "5-SPC": "failed"}
    assert report()["FedAvgFT"] == DONE
    assert good(*TABLE).line == "2 of 2 runs made"
    assert report()["FedDRM"] == DONE
    assert list((home / "failed").iterdir()) == []


SEEDS = """
title = "Three seeds"
protocol = "feddrm"
metric = "average_accuracy"
statistic = "last_rounds"
view = "crop"
seeds = [1, 2, 3]
budget.smoke = { steps = 2, batch_size = 16 }
rows = [{ label = "FedAvg", method = "fedavg" }]
column = [
{ label = "Dir-0.3", dataset = "digits", partition = { scheme = "dirichlet", alpha = 0.3, clients = 4 } },
]
"""


@pytest.fixture
def table(tmp_path: Path, home: Path) -> str:
    path = tmp_path / "seeds.toml"
    path.write_text(SEEDS)
    return str(path)


def train(table: str, *more: str) -> tuple[str, ...]:
    return ("train", "--table", table, *SMOKE, "--executor", "stacked", *more)


def by_seed(home: Path) -> dict[int, Artifact]:
    return {run.manifest["spec"]["setting"]["seed"]: run for run in runs(home)}


def together(home: Path) -> dict[int, int | None]:
    return {seed: run.provenance.get("together") for seed, run in by_seed(home).items()}


def clear(home: Path) -> None:
    good("remove", *ids(home), "--yes")


def test_seeds_are_trained_together(table: str, home: Path) -> None:
    """With the bits that each has alone: tests/engine/test_run.py."""
    said = good(*train(table))
    assert said.line == "3 of 3 runs made"
    assert "(1/3) FedAvg digits Dir-0.3, seeds 1, 2, 3: round 4 of 4" in said.err
    assert said.err.count("round 4 of 4") == 1
    made = by_seed(home)
    assert together(home) == {1: 3, 2: 3, 3: 3}
    assert {run.provenance["executor"] for run in made.values()} == {"stacked"}
    assert work(home) == []
    cell = cells(good("report", "--table", table, "--format", "json", *SMOKE))["FedAvg"]["Dir-0.3"]
    assert (cell["state"], cell["runs"]) == ("done", " ".join(made[s].id for s in (1, 2, 3)))
    assert good(*train(table)).line.startswith("nothing to run")


@pytest.mark.usefixtures("brief")
def test_the_missing_seeds_only_and_all_of_them_again(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = good(*train(table, "--seed", "2"))
    assert said.line == "1 of 1 runs made"
    assert "1 run to make, budget " in said.err
    assert together(home) == {2: None}
    assert good(*train(table)).line == "2 of 2 runs made"
    assert together(home) == {1: 2, 2: None, 3: 2}
    before = {seed: run.provenance for seed, run in by_seed(home).items()}
    for room in ("engine.sweep", "engine.job"):
        monkeypatch.setattr(f"fedbench.{room}.other_code", lambda provenance: True)
    assert good(*train(table, "--again")).line == "3 of 3 runs made"
    assert all(run.provenance != before[seed] for seed, run in by_seed(home).items())
    assert together(home) == {1: 3, 2: 3, 3: 3}


def test_a_dry_run_says_what_the_papers_own_training_costs(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only from what is measured for the listed runs: where the paper has another network, how many runs it has."""
    from fedbench.cli import costs

    line = r"(?m)^the paper's own training: 3 runs(, about \d+ \w+ of training here when idle)? \(--budget paper\)$"
    whose = good("train", "--table", table, "--dry-run", "--seed", "1").err
    assert "the paper's own training: 1 run" in whose
    Path(table).write_text(SEEDS.replace("rows =", 'budget.paper = { model = "mlp" }\nrows ='))
    other = re.search(line, good(*train(table, "--dry-run")).err)
    assert other is not None
    assert other[1] is None
    like = SEEDS.replace("budget.smoke = { steps = 2, batch_size = 16 }\n", "").replace('"feddrm"', '"pfedfda"')
    Path(table).write_text(like)
    asked: list[int] = []
    costs_of = costs.costs_of

    def counting(runs: Any, device: str) -> dict[str, float]:
        asked.append(len(of := [*runs]))
        return costs_of(of, device)

    monkeypatch.setattr(costs, "costs_of", counting)
    told = re.search(line, good(*train(table, "--dry-run")).err)
    assert told is not None
    assert told[1] is not None
    assert asked == [3, 1], "one run stands for all seeds"
    assert "the paper's own" not in good("train", "--table", table, "--budget", "paper", "--dry-run").err


def test_a_seed_plans_its_runs_alone(table: str) -> None:
    """Of each cell that has several, whether the table asks for the seed or not."""
    iid = '{ label = "IID", dataset = "digits", partition = { scheme = "iid", clients = 4 } }'
    Path(table).write_text(SEEDS.replace("column = [\n", f"column = [\n{iid},\n"))
    for seed in (2, 42):
        each = json.loads(good(*train(table, "--seed", str(seed), "--dry-run", "--json")).out)
        assert [one["seed"] for one in each] == [seed, seed]
        assert len({one["partition"] for one in each}) == 2


@pytest.mark.usefixtures("brief")
def test_a_dry_run_of_a_tuned_table_counts_the_runs_that_follow(table: str, home: Path) -> None:
    """Which values they will have is not known, how many they are is."""
    tuned = SEEDS.replace("alpha = 0.3,", "alpha = 0.3, validation = 0.2,")
    Path(table).write_text(tuned.replace("rows =", "tune = { lr = [0.05, 1e-6] }\nrows ="))
    dry = good(*train(table, "--dry-run"))
    assert "4 runs to make, 2 of them with the values chosen by the others, budget smoke, about " in dry.out
    assert re.search(r"(?m)^FedAvg +digits +4 +\d", dry.out)
    assert "the other seeds follow with its best: 2 runs" in dry.err
    each = json.loads(good(*train(table, "--dry-run", "--json")).out)
    assert [(one["run"] is None, one["seed"]) for one in each] == [(False, 1), (False, 1), (True, 2), (True, 3)]
    assert all(one["seconds"] > 0 for one in each)
    assert "2 runs to make, budget smoke" in good(*train(table, "--dry-run", "--seed", "1")).out
    assert good(*train(table)).line == "4 of 4 runs made"
    assert "nothing to run" in good(*train(table, "--dry-run")).out


@pytest.mark.usefixtures("brief")
def test_of_a_table_what_other_code_made_is_made_again_and_nothing_else(table: str, home: Path) -> None:
    """Also the trials that chose a cell's values."""
    tuned = SEEDS.replace("alpha = 0.3,", "alpha = 0.3, validation = 0.2,").replace("[1, 2, 3]", "[1, 2]")
    Path(table).write_text(tuned.replace("rows =", "tune = { lr = [0.05, 1e-6] }\nrows ="))
    good(*train(table))
    again = train(table, "--again")
    nothing = "nothing to run: no cell of the table is missing, and today's code made the store's runs of it"
    assert good(*again).line == nothing
    for one in runs(home):
        if one.manifest["spec"]["setting"]["lr"] == 1e-6 or one.manifest["spec"]["setting"]["seed"] == 2:
            edit_manifest(one.path, lambda m: m["provenance"].update(fingerprint="0" * 12))
    assert "2 runs to make" in good(*again, "--dry-run").out
    assert good(*again).line == "2 of 2 runs made"
    assert not any(older(run.path) for run in runs(home))
    assert good(*again).line == nothing


@pytest.mark.usefixtures("brief")
def test_where_a_run_that_answered_more_is_of_other_code_the_tables_own_is_made(table: str, home: Path) -> None:
    good(*train(table))
    before, text = ids(home), SEEDS.replace('"last_rounds"', '"last"')
    Path(table).write_text(text.replace("steps = 2", "window = 1, steps = 2"))
    assert good(*train(table)).line.startswith("nothing to run")
    for one in runs(home):
        edit_manifest(one.path, lambda m: m["provenance"].update(fingerprint="0" * 12))
    assert good(*train(table, "--again")).line == "3 of 3 runs made"
    assert len(ids(home) - before) == 3
    assert "nothing to run" in good(*train(table, "--again")).line


def test_one_that_diverges_does_not_lose_the_others(table: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: Counter[tuple[int, int]] = Counter()

    def local(self: Method, client: Client) -> ClientUpdate:
        seed = client.setting.seed
        worked[seed, client.round] += client.index == 0
        yield Train(cross_entropy, lr=1e30 if (seed, client.round) == (2, 3) else None)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "local", local)
        said = fedbench(*train(table))
    assert said.code == 1
    assert "not together: training diverged: client " in said.err
    assert said.err.count("failed: ") == 1
    assert said.line.startswith("failed: (2/3) FedAvg digits Dir-0.3, seed 2: training diverged: client ")
    assert set(by_seed(home)) == {1, 3}
    assert [f.stem for f in (home / "failed").iterdir()] == [p.name for p in work(home)]
    # Two rounds together, the third in vain (for those who had begun it), and from there each by itself.
    assert {worked.pop((seed, 3)) for seed in (1, 2, 3)} <= {1, 2}
    assert worked == {(s, t): 1 for s in (1, 2, 3) for t in (1, 2, 4) if (s, t) != (2, 4)}
    assert good(*train(table)).line == "1 of 1 runs made"
    assert list((home / "failed").iterdir()) == work(home) == []


@pytest.mark.usefixtures("brief")
def test_what_another_process_holds_is_left_to_it(table: str, home: Path) -> None:
    good(*train(table))
    held = by_seed(home)[2].id
    clear(home)
    with Store(home).claim(held):
        said = good(*train(table))
        assert f"2 of 3 runs made\nleft to process {os.getpid()} on " in said.err
        assert said.line.endswith(": (2/3) FedAvg digits Dir-0.3, seed 2")
        assert together(home) == {1: 2, 3: 2}
        assert [p.name for p in work(home)] == [held]
        result = json.loads(good(*train(table, "--json")).out)
        assert (len(result["made"]), len(result["failed"]), len(result["left"])) == (0, 0, 1)
    assert good(*train(table)).line == "1 of 1 runs made"


def test_an_interrupt_saves_all_of_them(table: str, home: Path) -> None:
    heard: list[int] = []

    def listen(progress: Progress) -> None:
        heard.append(progress.round)
        if heard == [1, 2, 3]:
            raise KeyboardInterrupt

    with listening(listen):
        said = fedbench(*train(table))
        assert said.code == 130
        assert said.line == "stopped; round 3 of 4 is saved. The same command continues from there."
        assert len(work(home)) == 3
        assert ids(home) == set()
        assert json.loads(good(*train(table, "--json")).out)["failed"] == []
    assert heard == [1, 2, 3, 4]
    assert together(home) == {1: 3, 2: 3, 3: 3}


TRAIN = ("train", "--method", "fedavg", *SMOKE)
LOCAL = ("train", "--method", "local", *SMOKE, "--rounds", "2")
BOTH = pytest.mark.parametrize("command", [TRAIN, (*ONE, "-m", "fedavg")])


def row(*options: str) -> dict[str, Any]:
    return cells(good("report", "--table", "2", "--format", "json", *DIGITS, *options))["FedAvg"]["Dir-0.3"]


def age(home: Path, *kinds: str) -> None:
    """Let other code have made the artifacts of these kinds."""
    for kind in kinds:
        edit_manifest(artifact(home, kind), lambda m: m["provenance"].update(fingerprint="0" * 12))


def older(path: Path) -> bool:
    return bool(json.loads((path / "artifact.json").read_text())["provenance"]["fingerprint"] == "0" * 12)


@BOTH
def test_the_number_is_the_new_runs(ready: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """Metrics of the former run have the same id, and must not be taken for those of the new one, whose code answers
    class 0 to everything."""
    from fedbench.core import tables

    predictions = tables.predictions

    def zero(t: int, answers: Any, federation: Any) -> Any:
        for table in predictions(t, answers, federation):
            at = table.schema.get_field_index("own")
            yield table.set_column(at, "own", pa.array([0] * len(table), table.schema.field("own").type))

    before = row()
    age(ready, "run")
    assert row() == before, "its versions are today's"
    assert "is already there, made by other code: --again makes it again" in good(*TRAIN).err
    assert older(artifact(ready, "run"))
    monkeypatch.setattr(tables, "predictions", zero)
    good(*command, "--again")
    assert not older(artifact(ready, "run"))
    assert "has changed since" not in good(*TRAIN).err
    assert row()["state"] == "done"
    assert row()["value"] != before["value"]
    evaluated = good("evaluate", artifact(ready, "run").name, "--again", "--json").out
    assert json.loads(evaluated)[0]["headline"]["crop"]["average_accuracy"] < 0.3


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_the_old_run_stays_until_the_new_one_is_there(
    ready: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    age(ready, "run")
    before, answers = row(), (artifact(ready, "run") / "predictions.parquet").read_bytes()
    commit = Trainer.commit

    def fail(self: Trainer, round: Any) -> None:
        commit(self, round)
        if self.server.round == 2:
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "commit", fail)
        if stop is KeyboardInterrupt:
            assert fedbench(*TRAIN, "--again").code == 130
        else:
            with pytest.raises(stop):
                fedbench(*TRAIN, "--again")
    assert (artifact(ready, "run") / "predictions.parquet").read_bytes() == answers
    assert row() == before
    good(*TRAIN, "--again")
    assert not older(artifact(ready, "run"))


@pytest.mark.parametrize("kind", ["dataset", "partition"])
def test_what_a_run_was_made_from_counts_too(ready: Path, kind: str) -> None:
    def made_from() -> set[str]:
        (local,) = (run for run in runs(ready) if run.manifest["spec"]["method"] == "local")
        return {one["fingerprint"] for one in local.provenance["made_from"].values()}

    inputs = {kind: artifact(ready, kind).name for kind in ("dataset", "partition")}
    age(ready, kind)
    if kind == "partition":
        said = good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm").out
        assert "drawn by code that has changed since: 'train --again' draws it again" in said
    good(*LOCAL)
    assert "0" * 12 in made_from()
    good(*LOCAL, "--again")
    assert not any(older(artifact(ready, kind)) for kind in inputs)
    assert {kind: artifact(ready, kind).name for kind in inputs} == inputs, "the same ids"
    assert "0" * 12 not in made_from()
    # A run that is missing begins with its inputs, too.
    age(ready, kind)
    good("remove", "method=fedavg", "--yes")
    good(*ONE, "-m", "fedavg", "--again")
    assert not older(artifact(ready, kind))


def test_what_another_process_has_made_anew_is_not_made_again(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the table and the run's turn."""
    age(ready, "run")
    from fedbench.engine import sweep

    plan = sweep.plan

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        lacking = plan(*arguments, **options)
        edit_manifest(artifact(ready, "run"), lambda m: m["provenance"].update(fingerprint_parts=[], process="another"))
        return lacking

    monkeypatch.setattr(sweep, "plan", meanwhile)
    before = (artifact(ready, "run") / "artifact.json").read_bytes()
    assert good(*ONE, "-m", "fedavg", "--again").line == "0 of 1 runs made, 1 by other processes"
    assert (artifact(ready, "run") / "artifact.json").read_bytes() != before


SMALL = ("sweep", "digits", "--budget", "smoke", "--rounds", "2", "--protocol", "feddrm", "--clients", "4")


def test_a_grid_is_made_compared_and_saved(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, "-m", "fedavg", "-m", "local", "--lr", "0.05,0.1", "--seeds", "0-1", "--validation", "0.2")
    assert "8 of 8 runs to make" in good(*words, "--dry-run").out
    planned = {one["run"] for one in json.loads(good(*words, "--dry-run", "--json").out)}
    assert ids(home) == set()
    said = good(*words, "--save", "mine.toml", "--json")
    assert len(ids(home) & planned) == 8
    assert re.search(r"\(1/8\) fedavg lr=0.05 digits Dir-0.3, (seeds 0, 1|seed 0): ", said.err)
    assert "saved: fedbench report --table ./mine.toml --budget smoke" in said.err
    for method in ("fedavg", "local"):
        assert f"best by validation accuracy: {method}, lr 0." in said.err
    assert json.loads(said.out)
    assert "0 of 8 runs to make" in good(*words, "--dry-run").out
    edit_manifest(runs(home)[0].path, lambda m: m["provenance"].update(fingerprint="0" * 12))
    assert "1 of 8 runs to make" in good(*words, "--again", "--dry-run").out
    assert "\n1 of 1 runs made\n" in good(*words, "--again").err
    assert "\nnothing to run: all runs are there, made by today's code\n" in "\n" + good(*words, "--again").err
    table = " ".join(good("report", "--table", "./mine.toml", "--budget", "smoke", "--notes", "full").out.split())
    for text in ("4 of 4 cells", "FedAvg, lr 0.05", "mean of 2 seeds", "on one draw of the partition"):
        assert text in table
    more = good(*SMALL, "-m", "fedavg", "--lr", "0.05,0.2,0.20", "--validation", "0.2", "--seeds", "0")
    assert "1 run to make" in more.err
    assert len(ids(home)) == 9
    # Without validation images nothing chooses.
    said = good(*SMALL, "-m", "local", "--lr", "0.05,0.1")
    assert "best by" not in said.err
    assert "test images must not select" in said.err


def test_a_run_that_diverges_stops_neither_the_comparison_nor_the_choice(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    words = ("-m", "fedavg", "--lr", "0.05,1e30", "--seeds", "0-1", "--validation", "0.2", "--save", str(file))
    said = fedbench(*SMALL, *words, "--json")
    assert said.code == 1
    assert "2 of 4 runs made" in said.err
    assert said.err.count("training diverged") >= 2
    assert "best by validation accuracy: fedavg, lr 0.05 (" in said.err
    (table,) = json.loads(said.out)
    assert {cell["seeds"] for cell in table["cells"]} == {2}
    assert "1 failed" in good("report", "--table", str(file), "--budget", "smoke").out
