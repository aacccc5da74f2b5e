"""`train`: the way from a partition to a table, a data set dealt out and trained in one command, what a run's setting
changes, options and places of every kind; and the papers' protocols on digits."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedbench import resources
from fedbench.cli import train_methods
from fedbench.cli.train import train
from fedbench.data import catalogue
from fedbench.metrics.read import load, metrics_of
from fedbench.planner.cells import DEFAULT_BUDGET
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, bad, cells, complete, good, runs

TRAIN = ("train", "--method", "fedavg", *SMOKE)
REPORT = ("report", "--table", "1", "--format", "json", *DIGITS)
DIR = ("--dir", "0.3")


def specs(home: Path) -> list[RunSpec]:
    return [run.spec for run in runs(home)]  # type: ignore[misc]


def current(home: Path) -> Artifact:
    return Store(home).find(str(Store(home).current["run"]))


def setting(home: Path) -> Setting:
    return current(home).spec.setting


def following(home: Path) -> str:
    """What `train` names at its end: the commands that show the runs of the current partition."""
    partition = Store(home).current["partition"]
    return (
        f"next: fedbench compare partition={partition} (side by side), "
        f"fedbench figure curves partition={partition} (by round)"
    )


def _png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels.astype(np.uint8)).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def small_cifar10(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A CIFAR-10 of 400 and 100 images of one colour a class, at hand in `folder`, with the recipe that it needs."""
    (folder / "cifar10").mkdir(parents=True)
    rng, lines = np.random.default_rng(0), []
    for split, count in (("train", 400), ("test", 100)):
        labels = [k % 10 for k in range(count)]
        rows = [{"bytes": _png(np.clip(25 * y + rng.integers(0, 20, (32, 32, 3)), 0, 255))} for y in labels]
        pq.write_table(pa.table({"image": rows, "label": labels}), file := folder / "cifar10" / f"{split}.parquet")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        lines += ["[[source.file]]", f'path = "cifar10/{split}.parquet"', f'split = "{split}"', f'sha256 = "{sha256}"']
    head = (resources.RECIPES / "cifar10.toml").read_text(encoding="utf-8").partition("[[source]]")[0]
    source = ["[[source]]", 'name = "parquet"', 'kind = "parquet"', 'title = "small"', "train = 400", "test = 100"]
    (folder / "cifar10.toml").write_text("\n".join([head, *source, *lines]), encoding="utf-8")
    every = {**catalogue.recipes(), "cifar10": catalogue.read(folder / "cifar10.toml")}
    patch.setattr(catalogue, "recipes", lambda: every)
    patch.setenv("FEDBENCH_DATA", str(folder))


@pytest.mark.usefixtures("brief_small")
def test_the_cards_three_commands(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cifar10(tmp_path / "data", monkeypatch)
    good("partition", "cifar10", "--dir", "0.3")
    good("train", "--method", "pfedfda")
    printed = good("report", "--table", "1", "--format", "latex").out
    (row,) = printed.partition("% yours")[2].partition("\\bottomrule")[0].splitlines()[1:]
    assert re.fullmatch(r"pFedFDA & +[\d.]+.*\\\\", row), row
    assert "pFedFDA" not in good("report", "--table", "1", "--format", "latex", "--no-yours").out


@pytest.mark.usefixtures("brief")
def test_three_commands_on_digits(home: Path) -> None:
    made = good("partition", "digits", "--spc", "5", "--protocol", "feddrm")
    assert artifact(home, "partition").name in made.out
    trained = good("train", "--method", "pfedfda", *SMOKE)
    assert "budget smoke: 2 rounds" in trained.err
    assert trained.line == following(home) + ", fedbench report --table NAME ('fedbench tables' lists them)"
    printed = good("report", "--table", "1", "--format", "latex", *DIGITS).out
    assert printed.startswith("% Needs \\usepackage{booktabs")
    assert "\\end{table}\n" in printed
    evaluated = json.loads(good("evaluate", "--json").out)[0]["headline"]["crop"]
    assert f"{100 * evaluated['system_accuracy']:.2f}" in printed.split("pFedFDA")[1].splitlines()[0]
    rows = cells(good(*REPORT))
    assert rows["pFedFDA"]["5-SPC"]["value"] == pytest.approx(100 * evaluated["system_accuracy"])
    assert rows["FedDRM"]["5-SPC"]["state"] == "missing"
    done = [(row, key) for row, line in rows.items() for key, cell in line.items() if cell["state"] == "done"]
    assert done == [("pFedFDA", "5-SPC")]
    assert inspect.signature(train).parameters["budget"].default == DEFAULT_BUDGET, "what `report` shows untold"


@pytest.mark.usefixtures("brief")
def test_every_hyper_parameter_is_an_option(ready: Path) -> None:
    command = ("train", "--method", "feddrm", *SMOKE)
    before = {run.id for run in runs(ready)}
    said = json.loads(good(*command, "--json").out)
    assert [one["run"] for one in said] == [current(ready).id]
    assert 0 < said[0]["headline"]["crop"]["average_accuracy"] < 1
    good(*command, "--lambda", "0.7")
    both = {run.id for run in runs(ready)} - before
    assert len(both) == 2
    assert "already there" in good(*command, "--lambda=0.7").err
    assert "already there" in good(*command, "--lambda", "0.8").err, "0.8 is the default"
    assert {run.id for run in runs(ready)} - before == both
    rows = cells(good(*REPORT))
    assert rows["FedDRM"]["Dir-0.3"]["kind"] == "paper"
    assert rows["FedDRM (lambda = 0.7)"]["Dir-0.3"]["kind"] == "yours"
    assert rows["FedDRM (lambda = 0.7)"]["Dir-0.3"]["runs"] != rows["FedDRM"]["Dir-0.3"]["runs"]
    good(*TRAIN, "--seed", "7")
    assert cells(good(*REPORT, "--seed", "7"))["FedAvg"]["Dir-0.3"]["state"] == "done"


@pytest.mark.full_smoke
def test_train_says_what_it_does_and_what_the_paper_budget_would_take(home: Path) -> None:
    good("partition", "digits", *DIR, "--protocol", "feddrm")
    said = good(*TRAIN)
    name = f"partition {Store(home).current['partition']}: digits, Dir-0.3, 8 clients, shift high"
    for words in (
        f"{name} (protocol feddrm)\nFedAvg\n",
        "4 rounds x 10 steps of 16 images, digits_cnn, about ",
        " here when idle\n",
        "the paper's budget: not for this data (images of 8x8x1",
        "round 4 of 4, loss ",
    ):
        assert words in said.err
    assert "\x1b" not in said.err + said.out, "no colours and no live display in a file"
    assert "…" not in said.out, "no number may be cut off"
    run = Store(home).current["run"]
    (crop,) = (line for line in said.out.splitlines() if line.startswith(f"{run}  fedavg  crop"))
    headline = json.loads(good("evaluate", "--json").out)[0]["headline"]["crop"]
    assert crop.split()[3:6] == ["3-4"] + [f"{100 * headline[k]:.2f}" for k in ("system_accuracy", "average_accuracy")]
    custom = good(*TRAIN, "--rounds", "2")
    assert "budget own: 2 rounds" in custom.err
    # Where the paper's model fits the images, the remark says what its budget would take here.
    good("partition", "digits", *DIR, "--protocol", "pfedfda")
    said = good("train", "--method", "local", *SMOKE, "--dry-run")
    assert "budget smoke: 2 rounds x 5 epochs of 50 images, digits_cnn, about " in said.err
    assert "the paper's budget: 200 rounds x 5 epochs of 50 images, digits_cnn, about " in said.err
    assert said.err.count(" here") == 2


@pytest.mark.parametrize(
    ("options", "values", "told", "listed", "shown"),
    [
        (
            ("--optimizer", "adamw", "--weight-decay", "0.01", "--lr", "0.001"),
            {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.01, "lr": 0.001},
            "budget own: 4 rounds x 6 steps of 16 images, digits_cnn, AdamW with weight decay 0.01, about ",
            "digits_cnn, adamw  own          4  0.001  2025",
            "optimizer adamw",
        ),
        (
            ("--precision", "bf16"),
            {"precision": "bf16"},
            "budget smoke: 4 rounds x 6 steps of 16 images, digits_cnn in bf16, about ",
            "8  digits_cnn, bf16  smoke        4  ",
            "precision bf16",
        ),
        (("--select", "best"), {"select": "best"}, "budget own: ", "best round", "best"),
    ],
    ids=["adamw", "bf16", "best"],
)
def test_another_setting_is_another_run_and_says_so(
    ready: Path, options: tuple[str, ...], values: dict[str, Any], told: str, listed: str, shown: str
) -> None:
    before = current(ready).id
    said = good(*TRAIN, *options)
    assert told in said.err
    run = current(ready)
    assert run.id != before
    assert {name: getattr(setting(ready), name) for name in values} == values
    (line,) = (line for line in good("list", "run").out.splitlines() if run.id in line)
    assert listed in line
    assert good("list", "run").out.count(listed) == 1
    assert shown in " ".join(good("show", run.id).out.split())
    assert json.loads(good("evaluate", "--json").out)
    assert "already there" in good(*TRAIN, *options).err
    if "bf16" not in options:
        return
    # The one run in fp32 and the one in bf16, each in the table that asks for it.
    assert "precision" not in run.provenance
    found = [cells(good(*REPORT, *more))["FedAvg"]["Dir-0.3"]["runs"] for more in ((), options)]
    assert found == [before, run.id], "fp32 unless told otherwise"


@pytest.mark.usefixtures("brief")
def test_one_command_is_the_two(home: Path) -> None:
    def part() -> PartitionSpec:
        return Store(home).open("partition", Store(home).current["partition"]).spec

    good("partition", "digits", "--iid", "--clients", "4")
    before = part()
    assert "1 epoch of" in good("train", "digits", *DIR, "-m", "fedavg", *SMOKE, "--dry-run").err
    assert specs(home) == []
    assert part() == before, "a dry run leaves the current partition"
    once = good("train", "digits", *DIR, "-m", "fedavg", *SMOKE)
    spec = part()
    assert (spec.dataset.name, spec.clients, spec.shift) == ("digits", 10, "none")
    assert f"partition {spec.id}: digits, Dir-0.3, 10 clients, no covariate shift (protocol plain)" in once.err
    assert once.line == following(home), "no table is of protocol plain"
    good("partition", "digits", *DIR)
    assert "is already there" in good(*TRAIN).err
    assert len(specs(home)) == 1
    # Without a data set it is the current partition.
    good("train", "digits", "--iid", "--clients", "4", "-m", "local", *SMOKE)
    good(*TRAIN)
    assert {(one.setting.partition.scheme, one.method) for one in specs(home)} == {
        ("dirichlet", "fedavg"),
        ("iid", "local"),
        ("iid", "fedavg"),
    }
    # A dry run for a script: what exists already is not to be made.
    words = ("train", "-m", "local", "-m", "ditto", *SMOKE, "--dry-run", "--json")
    (rest,) = json.loads(good(*words).out)
    assert (rest["method"], rest["seconds"] > 0) == ("ditto", True)


@pytest.mark.usefixtures("brief")
def test_several_methods_train_one_after_another_and_a_papers_run_is_its_tables_cell(home: Path) -> None:
    said = good("train", "-m", "fedavg", "--mu=0.5", "digits", "-m", "fedprox", *DIR, *SMOKE)
    assert [one.method for one in specs(home)] == ["fedavg", "fedprox"]
    assert [one.params.get("mu") for one in specs(home)] == [None, 0.5], "to the method that has it"
    assert said.err.index("FedAvg\n") < said.err.index("FedProx (mu 0.5)\n")
    rows = [line.split() for line in said.out.splitlines() if line.split()[1:2] in (["fedavg"], ["fedprox"])]
    assert len(rows) == 2, "one table"
    listed = json.loads(good("train", "-m", "fedavg", "-m", "fedprox", "--mu", "0.5", *SMOKE, "--json").out)
    assert [one["method"] for one in listed] == ["fedavg", "fedprox"]
    bad("train", "-m", "fedavg", "-m", "nonsense", *SMOKE, "--rounds", "1")
    assert len(specs(home)) == 2, "nothing is trained before all is understood"
    good("train", "digits", *DIR, "-m", "pfedfda", "--protocol", "feddrm", *SMOKE)
    assert Store(home).current["protocol"] == "feddrm"


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (("--seed", "3"), (3, 0)),
        (("--partition-seed", "5"), (0, 5)),
        (("--seed", "43", "--protocol", "flux", "--shift", "py", "--level", "1"), (43, 43)),
        (("--seed", "43", "--partition-seed", "5", "--protocol", "flux", "--shift", "py", "--level", "1"), (43, 5)),
    ],
)
def test_the_seed_is_the_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], seeds: tuple[int, int]
) -> None:
    """The partition stays, unless its own seed is said, or its protocol draws it anew for every run."""
    made: list[Any] = []
    monkeypatch.setattr(train_methods, "announce_all", lambda jobs, *rest: made.extend(jobs))
    good("train", "digits", "-m", "local", *words, *SMOKE, "--dry-run")
    (job,) = made
    assert (job.spec.setting.seed, job.spec.setting.partition.seed) == seeds


@pytest.mark.usefixtures("brief")
def test_a_curve_of_every_round_and_options_of_partitioner_and_method_in_one_line(home: Path) -> None:
    own = ("--min-size", "3", "-m", "feddyn", "--alpha", "0.2")
    said = good("train", *own, "digits", *DIR, "--every", "1", "--rounds", "3", *SMOKE)
    (run,) = runs(home)
    assert run.manifest["spec"]["params"]["alpha"] == 0.2, "of one name it is the method's"
    assert setting(home).partition.options == {"alpha": 0.3, "min_size": 3}
    metrics = metrics_of(run, Store(home))
    curve = load(metrics).series("average_accuracy", "plain")
    assert list(curve) == [1, 2, 3]
    assert said.out.splitlines()[0] == "digits Dir-0.3: accuracy in %, after round 3"
    assert f"{100 * curve[3]:.2f}" in said.out
    assert "average: of each client's model on its own test samples, weighted by training samples" in said.out
    assert "system" not in said.out, "nobody votes, so there is none"


@pytest.mark.usefixtures("brief")
def test_demo(home: Path) -> None:
    said = good("demo", *SMOKE)
    made = runs(home)
    assert {spec.method for spec in specs(home)} == {"local", "fedavg", "ditto"}
    assert {spec.setting.partition.shift for spec in specs(home)} == {"none"}
    for run in made:  # a row of the table each, and a line of the curve
        (row,) = (line for line in said.out.splitlines() if line.startswith(run.id))
        average = load(metrics_of(run, Store(home))).series("average_accuracy", "plain")
        assert row.split()[3:5] == ["2", f"{100 * average[2]:.2f}"]
        assert f"{100 * average[2]:.4g} at the end" in said.out
    assert "average accuracy (%)" in said.out
    assert good("evaluate", "--all").err == "every run has its metrics\n"
    for line in said.err.splitlines()[-3:]:
        assert line.startswith("  fedbench ")
    again = good(*said.err.splitlines()[-3].split()[1:], *SMOKE)
    assert again.err.count("is already there") == 3, "the demo's command makes the demo's runs"


def test_options_that_repeat_and_odd_stores(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("report", "-t", "ftw_erm/1", "-t", "ftw_erm/3", "--seed", "1", "--seed", "2", "--column", "*", "--column", "*")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path / "mine") in good("list", "--home=~/mine").out.replace("\n", "")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # written, then read
        good("partition", "digits", *DIR, "--protocol", "feddrm", "--home", "s3:mine")
    assert len(complete(tmp_path / "s3:mine")) == 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FEDBENCH_HOME", "x" * 5000, "File name too long"),
        ("FEDBENCH_HOME", "\udcff", "FEDBENCH_HOME holds bytes that are not UTF-8"),
        ("FEDBENCH_HOME", "~nosuchuser", "FEDBENCH_HOME ~nosuchuser: no home folder"),
        ("FEDBENCH_DATA", "a\nb", "FEDBENCH_DATA holds a control character"),
        ("FEDBENCH_PAPERS", "/nowhere", "FEDBENCH_PAPERS names /nowhere, which neither is nor contains"),
        ("FEDBENCH_PAPERS", "~nosuchuser", "FEDBENCH_PAPERS names ~nosuchuser, which neither is"),
        *(("COLUMNS", columns, "") for columns in ("0", "²", "-5", "x", "9" * 30)),
    ],
)
def test_hostile_environment(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    if name == "COLUMNS":
        said = good("data", "list")
        assert (said.err, "cifar10" in said.out) == ("", True)
    else:
        assert says in bad("tables", "flux")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_streams_without_room_signs_or_anybody(tmp_path: Path) -> None:
    def ran(words: str, **environment: str) -> tuple[int, bytes, bytes]:
        command = f"{sys.executable} -m fedbench --home {tmp_path} {words}"
        env = {name: value for name, value in {**os.environ, **environment}.items() if value}
        done = subprocess.run(command, shell=True, capture_output=True, check=False, env=env)
        return done.returncode, done.stdout, done.stderr

    full = b"fedbench: cannot use standard output or a file (No space left on device)\n"
    assert ran("data list --json > /dev/full") == (2, b"", full)
    assert ran("data list --json >&- 2>&-", HOME="", COLUMNS="²")[0] == 0
    assert ran("data list --json | true") == (0, b"", b""), "the reader may leave"
    code, out, err = ran("methods pfedfda", PYTHONIOENCODING="ascii")
    assert (code, b"\\u03b2" in out, err) == (0, True, b"")


FLUX = ("partition", "digits", "--protocol", "flux", "--shift")


def test_a_run_says_its_test_phase_and_its_clusters_but_nothing_of_labels_that_cannot_be_known(home: Path) -> None:
    assert "group" in good(*FLUX, "px", "--level", "1", "--clients", "6").out
    (run,) = json.loads(good("train", "--method", "flux", *SMOKE, "--rounds", "3", "--json").out)
    clusters = run["clusters"]
    assert clusters["true_clusters"] == 2
    assert clusters["clusters"] >= 1
    assert -1 <= clusters["adjusted_rand_index"] <= 1
    assert run["method_metrics"]["clustering_round"] == 2, "the smoke budget clusters as soon as it can"
    (view,) = run["headline"].values()
    assert 0 <= view["test_phase_accuracy_mean"] <= 1
    for heading in ("test phase", "clusters", "adj. Rand"):
        assert heading in good("evaluate").out
    # Under P(Y|X) the test phase has no meaning.
    good(*FLUX, "pyx", "--level", "5")
    (run,) = json.loads(good(*TRAIN, "--json").out)
    (view,) = run["headline"].values()
    assert view["client_accuracy_mean"] > 0
    assert "test_phase_accuracy_mean" not in view
    assert "test phase" not in good("evaluate").out


def test_an_extra_row_without_a_test_phase_is_no_problem_and_data_may_drift(home: Path) -> None:
    good(*FLUX, "px", "--level", "5")
    good("train", "--method", "mr_mtl", "--pull", "0.5", *SMOKE)
    printed = good("report", "--table", "flux/13", *DIGITS).out
    (row,) = (line for line in printed.splitlines() if line.startswith("MR-MTL (pull = 0.5"))
    assert len(row.split()) == 5, "the label and one accuracy; nothing stands under the test phase"
    assert "✗" not in printed
    assert "lack test_phase" not in printed
    good(*FLUX, "px", "--level", "1", "--clients", "4", "--phases", "3")
    (run,) = json.loads(good(*TRAIN, "--json").out)
    assert run["budget"] == "smoke", "the budget knows when data in three stages drift"


FTW = ("--table", "ftw_erm/1", *DIGITS)


@pytest.mark.full_smoke
def test_a_plain_run_under_the_protocol_is_the_tables_cell(home: Path) -> None:
    assert "target shift" in good("partition", "digits", "--protocol", "ftw_erm").out
    trained = good("train", "--method", "ftw_erm", *SMOKE)
    assert "budget smoke: 10 rounds x 1 step of 64 images, digits_cnn" in trained.err
    rows = cells(good("report", *FTW, "--seed", "0", "--format", "json"))
    assert rows["FTW-ERM"]["Average"]["state"] == "done"
    assert rows["FITW-ERM"]["Average"]["state"] == "missing"
    metrics = load(Store(home).open("metrics", artifact(home, "metrics").name))
    # Of 171 to 1 the digits leave each client with its commonest class alone, whose ratio is 1 to 171.
    assert metrics.per_client("ratio_bound").tolist() == pytest.approx([1 / 171] * 5)
    own = metrics.per_client("client_accuracy", "plain", 10)
    assert len(own) == 5
    assert rows["FTW-ERM"]["Average"]["value"] == pytest.approx(own.mean())
    for k in range(5):
        assert rows["FTW-ERM"][f"Client {k + 1}"]["value"] == pytest.approx(own[k])
    assert metrics.series("client_accuracy_min", "plain")[10] == own.min()
    assert metrics.series("client_accuracy_max", "plain")[10] == own.max()
    assert sorted(metrics.series("client_accuracy_mean", "plain")) == [5, 10]


def test_the_bound_of_table_13_stands_in_the_runs_clients_and_matched_ratios_are_an_option(home: Path) -> None:
    good("partition", "digits", "--protocol", "ftw_erm", "--preset", "one")
    good("train", "--method", "kmeans_bound", "--clusters", "5", *SMOKE)
    bound = load(metrics_of(current(home), Store(home))).whole_run("ratio_bound")
    assert 1 < bound < 40
    options = ("--ratios", "hdrm", "--n-te", "20", "--clusters", "5")
    good("train", "digits", "--protocol", "ftw_erm", "--method", "ftw_erm", *options, *SMOKE)
    rounds = current(home).table("rounds").to_pylist()
    assert rounds[0]["bytes_up"] - rounds[1]["bytes_up"] == 5 * 20 * 64
    assert rounds[0]["describe_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--lr", "-1"), "the learning rate must be above 0, not -1.0"),
        (("--rounds", "0"), "rounds must be at least 1, not 0"),
        (("--observe", "nosuch"), "unknown observer 'nosuch'"),
    ],
)
def test_a_bad_value_is_refused_before_a_data_set_is_built(home: Path, words: tuple[str, str], says: str) -> None:
    assert says in bad("train", "digits", "--method", "fedavg", *words)
    assert not (home / "dataset").exists()
