"""`fedbench train DATASET`: dealt out and trained in one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedbench.cli.dealt import dataset_among
from fedbench.errors import FedbenchError
from fedbench.metrics.read import metrics_of, series
from fedbench.specs import PartitionSpec, RunSpec
from fedbench.store import Store
from tests.support.cli_user import SMOKE, fedbench, good

DIR = ("--dir", "0.3")

pytestmark = pytest.mark.usefixtures("brief")


def runs(home: Path) -> list[RunSpec]:
    return [artifact.spec for artifact in Store(home).list("run")]  # type: ignore[misc]


def current(home: Path) -> PartitionSpec:
    spec = Store(home).open("partition", Store(home).current["partition"]).spec
    assert isinstance(spec, PartitionSpec)
    return spec


def test_one_command_is_the_two(home: Path) -> None:
    assert "1 epoch of" in good("train", "digits", *DIR, "-m", "fedavg", *SMOKE, "--dry-run").err
    assert runs(home) == []
    once = good("train", "digits", *DIR, "-m", "fedavg", *SMOKE)
    spec = current(home)
    assert (spec.dataset.name, spec.clients, spec.shift) == ("digits", 10, "none")
    assert f"partition {spec.id}: digits, Dir-0.3, 10 clients, no covariate shift (protocol plain)" in once.err
    assert once.line.startswith(f"next: fedbench compare partition={spec.id}")
    good("partition", "digits", *DIR)
    assert "is already there" in good("train", "--method", "fedavg", *SMOKE).err
    assert len(runs(home)) == 1
    # Without a data set it is the current partition.
    good("train", "digits", "--iid", "--clients", "4", "-m", "local", *SMOKE)
    good("train", "-m", "fedavg", *SMOKE)
    assert {(one.setting.partition.scheme, one.method) for one in runs(home)} == {
        ("dirichlet", "fedavg"), ("iid", "local"), ("iid", "fedavg"),
    }  # fmt: skip


def test_a_dry_run_leaves_the_current_partition(home: Path) -> None:
    good("partition", "digits", "--iid", "--clients", "4")
    before = current(home)
    good("train", "digits", *DIR, "-m", "fedavg", *SMOKE, "--dry-run")
    assert current(home) == before


def test_a_dry_run_for_a_script(home: Path) -> None:
    words = ("train", "digits", *DIR, "-m", "local", "-m", "fedavg", *SMOKE, "--dry-run", "--json")
    listed = json.loads(good(*words).out)
    assert [one["method"] for one in listed] == ["local", "fedavg"]
    assert all(one["seconds"] > 0 for one in listed)
    good("train", "digits", *DIR, "-m", "local", *SMOKE)
    (rest,) = json.loads(good(*words).out)
    assert rest["run"] == listed[1]["run"], "what is there already is not to be made"


def test_the_run_of_a_papers_protocol_is_its_tables_cell(home: Path) -> None:
    said = good("train", "digits", *DIR, "-m", "pfedfda", "--protocol", "feddrm", *SMOKE)
    assert said.line == "next: fedbench report --table 1 --dataset digits --budget smoke --extra (or --table 2)"
    assert Store(home).current["protocol"] == "feddrm"


def test_several_methods_train_one_after_another(home: Path) -> None:
    said = good("train", "-m", "fedavg", "digits", "-m", "fedprox", *DIR, "--mu", "0.5", *SMOKE)
    assert [one.method for one in runs(home)] == ["fedavg", "fedprox"]
    assert [one.params.get("mu") for one in runs(home)] == [None, 0.5], "to the method that has it"
    assert said.err.index("FedAvg\n") < said.err.index("FedProx (mu 0.5)\n")
    rows = [line.split() for line in said.out.splitlines() if line.split()[1:2] in (["fedavg"], ["fedprox"])]
    assert len(rows) == 2, "one table"
    listed = json.loads(good("train", "-m", "fedavg", "-m", "fedprox", "--mu", "0.5", *SMOKE, "--json").out)
    assert [one["method"] for one in listed] == ["fedavg", "fedprox"]
    wrong = fedbench("train", "-m", "fedavg", "-m", "nonsense", *SMOKE, "--rounds", "1")
    assert wrong.code == 2
    assert len(runs(home)) == 2, "nothing is trained before all is understood"


def test_options_of_partitioner_and_method_in_one_line(home: Path) -> None:
    good("train", "digits", *DIR, "--min-size", "3", "-m", "feddyn", "--alpha", "0.2", *SMOKE)
    (run,) = runs(home)
    assert run.params["alpha"] == 0.2, "of one name it is the method's"
    assert run.setting.partition.options == {"alpha": 0.3, "min_size": 3}


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (("--seed", "3"), (3, 0)),
        (("--partition-seed", "5"), (0, 5)),
        (("--seed", "43", "--protocol", "flux", "--shift", "py", "--level", "1"), (43, 43)),
        (("--seed", "43", "--partition-seed", "5", "--protocol", "flux", "--shift", "py", "--level", "1"), (43, 5)),
    ],
)
def test_the_seed_is_the_runs(home: Path, words: tuple[str, ...], seeds: tuple[int, int]) -> None:
    """The partition stays, unless its own seed is said, or its protocol draws it anew for every run."""
    good("train", "digits", "-m", "local", *words, *SMOKE)
    (run,) = runs(home)
    assert (run.setting.seed, run.setting.partition.seed) == seeds


def test_a_round_after_round_curve_and_what_the_numbers_are(home: Path) -> None:
    said = good("train", "digits", *DIR, "-m", "fedavg", "--every", "1", "--rounds", "3", *SMOKE)
    (run,) = Store(home).list("run")
    metrics = metrics_of(run, Store(home))
    assert metrics is not None
    curve = series(metrics, "average_accuracy", "plain")
    assert list(curve) == [1, 2, 3]
    assert said.out.splitlines()[0] == "digits Dir-0.3: accuracy in %, after round 3"
    assert f"{100 * curve[3]:.2f}" in said.out
    assert "average: of each client's model on its own test images, weighted by training images" in said.out
    assert "system" not in said.out, "nobody votes, so there is none"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ((), (None, [])),
        (("digits",), ("digits", [])),
        (("digits", "--mu", "0.1"), ("digits", ["--mu", "0.1"])),
        (("--mu", "0.1", "digits"), ("digits", ["--mu", "0.1"])),
        (("--mu=0.1", "digits"), ("digits", ["--mu=0.1"])),
        (("--flag", "--mu", "0.1"), (None, ["--flag", "--mu", "0.1"])),
    ],
)
def test_the_data_set_among_the_words(words: tuple[str, ...], answer: Any) -> None:
    assert dataset_among(words) == answer


def test_there_is_one_data_set() -> None:
    with pytest.raises(FedbenchError, match="unexpected argument 'mnist'"):
        dataset_among(("digits", "--mu", "1", "mnist"))
