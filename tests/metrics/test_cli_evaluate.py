"""`fedbench evaluate`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from fedbench.cli import context
from fedbench.cli.evaluate import evaluate
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, small_run, write

app = typer.Typer()
app.command("evaluate")(evaluate)


def call(store: Store, *arguments: str) -> Result:
    context.configure(store.home, "", False)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def other_run(store: Store, n_test: int = 1) -> str:
    """A second run, broken unless n_test is 1."""
    row = {"round": 1, "view": "plain", "client": 0, "label": 0, "own": 0}
    return write(
        store, run_spec(1, method="local"), predictions=predictions([row], 2),
        clients=clients_table([1], [n_test]), rounds=rounds_table(1),
    ).id  # fmt: skip


def test_current_run(store: Store) -> None:
    with pytest.raises(FedbenchError, match="there is no current run; 'fedbench train' makes one"):
        raise call(store).exception  # type: ignore[misc]
    run = small_run(store)
    store.set_current(run=run.id)
    first = call(store)
    assert first.exit_code == 0
    assert "wrote metrics" in first.output
    assert f"of run {run.id}" in first.output
    assert "80.00" in first.output, "system accuracy of the view crop"
    assert "there already" in call(store).output
    assert "wrote metrics" in call(store, "--again").output


def test_json(store: Store) -> None:
    run = small_run(store)
    for arguments, message in ((("abc", "--all"), "either a run's id or --all"), (("abc",), "no run 'abc'")):
        error = call(store, *arguments).exception
        assert isinstance(error, FedbenchError)
        assert message in str(error)
    done = call(store, run.id[:6], "--json")
    [found] = json.loads(done.stdout)
    assert found["run"] == run.id
    assert found["metrics"] == next(iter(store.list("metrics"))).id
    crop, plain = found["headline"]["crop"], found["headline"]["plain"]
    assert crop["system_accuracy"] == pytest.approx(0.8)
    assert crop["rounds"] == "1-2"
    assert plain["client_accuracy_mean"] == pytest.approx((5 / 12 + 1) / 2), "a mean over the window's two rounds"
    assert found["total_runtime_seconds"] == 2


def test_all(store: Store) -> None:
    assert "no run in" in call(store, "--all").output
    run, other = small_run(store).id, other_run(store)
    both = call(store, "--all")
    assert both.exit_code == 0
    assert f"of run {run}" in both.output
    assert f"of run {other}" in both.output
    assert "every run has its metrics" in call(store, "--all").output
    assert json.loads(call(store, "--all", "--json").stdout) == []
    assert call(store, "--all", "--again").output.count("wrote metrics") == 2


def test_a_damaged_run_does_not_stop_the_others(store: Store) -> None:
    broken = other_run(store, n_test=2)
    run = small_run(store).id
    done = call(store, "--all")
    assert done.exit_code == 2
    assert f"of run {run}" in done.output
    assert f"not evaluated: run {broken}" in done.output
    assert len(list(store.list("metrics"))) == 1
