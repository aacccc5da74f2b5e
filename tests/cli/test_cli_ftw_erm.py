"""FTW-ERM's way from a layout to its tables, on the embedded digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.metrics.read import Metrics, load
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, Said, cells, fedbench, good

TABLE = ("--table", "ftw_erm/1", *DIGITS)


@pytest.mark.full_smoke
def test_a_plain_run_under_the_protocol_is_the_tables_cell(home: Path) -> None:
    made = good("partition", "digits", "--protocol", "ftw_erm")
    assert "target shift" in made.out
    trained = good("train", "--method", "ftw_erm", *SMOKE)
    assert "budget smoke: 10 rounds x 1 step of 64 images, digits_cnn" in trained.err
    rows = cells(good("report", *TABLE, "--seed", "0", "--format", "json"))
    assert rows["FTW-ERM"]["Average"]["state"] == "done"
    assert rows["FITW-ERM"]["Average"]["state"] == "missing"
    metrics = metrics_of(home)
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


def metrics_of(home: Path) -> Metrics:
    (found,) = Store(home).list("metrics")
    return load(found)


def refused(*arguments: str) -> Said:
    said = fedbench(*arguments)
    assert said.code == 2
    return said


def test_seeds_have_partitions_of_their_own_and_the_spread_is_over_them(home: Path) -> None:
    done = good("train", *TABLE, "--method", "fedsgd", "--executor", "cores")
    assert "10 runs to make, budget smoke" in done.err
    store = Store(home)
    specs = [a.spec.setting for a in store.list("run")]  # type: ignore[attr-defined]
    # Two rows: at the budget, and at three times its rounds.
    assert sorted((s.seed, s.rounds) for s in specs) == [(seed, n) for seed in range(5) for n in (10, 30)]
    assert all(s.partition.seed == s.seed for s in specs)
    cell = cells(good("report", *TABLE, "--format", "json"))["FedAvg"]["Average"]
    assert cell["seeds"] == 5
    values = list(cell["per_seed"].values())
    assert cell["value"] == pytest.approx(sum(values) / 5)
    spread = (sum((v - cell["value"]) ** 2 for v in values) / 4) ** 0.5
    assert cell["std"] == pytest.approx(spread)
    assert "± is the standard deviation (ddof 1) over seeds" in good("report", *TABLE).out.replace("\n", " ")


def test_the_bound_of_table_13_stands_in_the_runs_clients(home: Path) -> None:
    good("partition", "digits", "--protocol", "ftw_erm", "--preset", "one")
    good("train", "--method", "kmeans_bound", "--clusters", "5", *SMOKE)
    bound = metrics_of(home).whole_run("ratio_bound")
    assert bound is not None
    assert 1 < bound < 40


def test_matched_ratios_by_an_option(home: Path) -> None:
    good("partition", "digits", "--protocol", "ftw_erm")
    said = refused("train", "--method", "ftw_erm", "--ratios", "hdrm", *SMOKE)
    assert "is to give 100 to the pool" in said.line
    good("train", "--method", "ftw_erm", "--ratios", "hdrm", "--n-te", "20", "--clusters", "5", *SMOKE)
    (run,) = Store(home).list("run")
    rounds = run.table("rounds").to_pylist()
    assert rounds[0]["bytes_up"] - rounds[1]["bytes_up"] == 5 * 20 * 64
    assert rounds[0]["describe_seconds"] > 0


@pytest.mark.parametrize("method", ["ftw_erm", "fedbn"])
def test_a_setting_of_many_steps_is_refused(ready: Path, method: str) -> None:
    assert "needs one local step" in refused("train", "--method", method, *SMOKE).line
