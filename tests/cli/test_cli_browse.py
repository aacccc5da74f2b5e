"""`list`, `show`, `remove`, `methods`, `tables`, `data list`, `evaluate`: looking around."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.__main__ import main
from fedbench.store import Store
from tests.support.cli_user import SMOKE, artifact, complete, fedbench, good, own_method


@pytest.mark.parametrize(
    "command",
    [
        ("list",), ("list", "run"), ("methods",), ("methods", "feddrm"), ("tables",), ("tables", "feddrm/1"),
        ("tables", "pfedfda/8"), ("data", "list"), ("data", "show", "digits"), ("data", "check", "digits"),
        ("evaluate",), ("evaluate", "--all"), ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_one_document(ready: Path, command: tuple[str, ...]) -> None:
    said = good(*command, "--json")
    assert json.loads(said.out) is not None
    assert "\x1b" not in said.out
    plain = good(*command).out
    with pytest.raises(json.JSONDecodeError):
        json.loads(plain)


def test_list(ready: Path) -> None:
    listed = json.loads(good("list", "--json").out)
    assert [one["kind"] for one in listed] == ["dataset", "partition", "run", "metrics"]
    assert {f"{one['kind']}/{one['id']}" for one in listed} == set(complete(ready))
    said = good("list").out
    lines = [line.split() for line in said.splitlines() if line]
    current = Store(ready).current
    marked = {words[0].removesuffix("*") for words in lines if words[0].endswith("*")}
    assert marked == {current["partition"], current["run"]}
    heads, rows = lines[::2], lines[1::2]
    assert [head[0] for head in heads] == [row["kind"] for row in listed if row["kind"] != "metrics"], "a table a kind"
    assert rows[-1][1:9] == ["fedavg", "digits", "Dir-0.3", "8", "digits_cnn", "smoke", "4", "0.01"]
    headline = json.loads(good("evaluate", "--json").out)[0]["headline"]["plain"]
    assert rows[-1][9:12] == [
        "2025",
        *(f"{100 * headline[k]:.2f}" for k in ("average_accuracy", "system_accuracy")),
    ]
    assert listed[2]["average_accuracy"] == headline["average_accuracy"]
    assert "0.0 MB" not in said
    (metrics,) = (one for one in listed if one["kind"] == "metrics")
    assert f"of run {current['run']}: fedavg on digits" in good("list", "metrics").out
    assert metrics["id"] in good("list", "metrics").out
    assert json.loads(good("list", "run", "--json").out) == [one for one in listed if one["kind"] == "run"]


def test_list_tells_runs_of_one_method_apart(ready: Path) -> None:
    for mu in (0.1, 0.5):
        good("train", "--method", "ditto", *SMOKE, "--mu", str(mu))
    whats = [one["what"] for one in json.loads(good("list", "run", "--json").out)]
    assert [what.partition(" on ")[0] for what in whats] == ["fedavg", "ditto (mu 0.1)", "ditto (mu 0.5)"]


def test_show_goes_from_a_number_back_to_the_images(ready: Path) -> None:
    metrics = artifact(ready, "metrics").name
    chain = json.loads(good("show", metrics, "--json").out)
    assert [step["kind"] for step in chain] == ["metrics", "run", "partition", "dataset"]
    assert [step["id"] for step in chain] == [artifact(ready, step["kind"]).name for step in chain]
    text = good("show", metrics[:6]).out
    for step in chain:
        assert f"{step['kind']} {step['id']}" in text
    told = " ".join(text.replace("│", " ").split())
    assert "predictions.parquet, rounds.parquet" in told, "nothing is cut off"
    assert "momentum 0.9, weight_decay 0.0005" in told
    assert "digits (scikit-learn)" in told
    assert "executor stacked" in told


def test_show_what_is_gone(ready: Path) -> None:
    partition = artifact(ready, "partition").name
    good("remove", partition, "--yes")
    chain = json.loads(good("show", artifact(ready, "metrics").name, "--json").out)
    assert chain[2] == {"missing": f"partition {partition}: digits Dir-0.3, 8 clients, shift high, seed 2025"}
    assert "(not in this store, or damaged)" in good("show", artifact(ready, "run").name).out


def test_remove(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, before = artifact(ready, "run").name, complete(ready)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert fedbench("remove", run).code == 1
    assert complete(ready) == before
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = fedbench("remove", run)
    assert (said.code, said.line) == (
        2,
        "fedbench: nothing was removed: there was no answer; --yes removes without asking",
    )
    assert complete(ready) == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert f"removed run {run}" in good("remove", run).out
    assert complete(ready) == {path: files for path, files in before.items() if path != f"run/{run}"}


def test_methods(home: Path, tmp_path: Path) -> None:
    listed = json.loads(good("methods", "--json").out)
    assert [m["name"] for m in listed] == methods.names()
    assert all(m["summary"] and not m["summary"].endswith(".") for m in listed)
    text = good("methods").out
    lines, names = text.splitlines(), methods.names()
    starts = [next(i for i, line in enumerate(lines) if line.split(" ")[0] == name) for name in names]
    for method, start, end in zip(listed, starts, [*starts[1:], len(lines)], strict=True):
        words = " ".join(lines[start:end]).split()  # a long cell goes on in the next line
        assert set(method["summary"].split()) <= set(words)
        assert {f"--{option['name'].replace('_', '-')}" for option in method["options"]} <= set(words)
    own = good("methods", own_method(tmp_path)).out
    assert "FedAvg at half the learning rate." in own
    assert "--half 0.5: factor of the learning rate" in own


def test_a_docstring_is_no_markup(home: Path, tmp_path: Path) -> None:
    own_method(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace("FedAvg at", "Weights [a, b] of [bold]FedAvg[/] at"))
    assert "Weights [a, b] of [bold]FedAvg[/] at half" in good("methods", f"{path}:MyMethod").out


def test_evaluate(ready: Path) -> None:
    run, metrics = artifact(ready, "run").name, artifact(ready, "metrics")
    values = (metrics / "metrics.parquet").read_bytes()
    good("remove", metrics.name, "--yes")
    assert f"wrote metrics {metrics.name} of run {run}" in good("evaluate").err
    assert (metrics / "metrics.parquet").read_bytes() == values
    for form in ((), (run,), (run[:5],)):
        assert f"there already: metrics {metrics.name}" in good("evaluate", *form).err
    good("remove", metrics.name, "--yes")
    good("train", "--method", "local", *SMOKE)
    assert f"wrote metrics {metrics.name}" in good("evaluate", "--all").err
    assert good("evaluate", "--all").err == "every run has its metrics\n"
    assert len(json.loads(good("evaluate", "--json").out)) == 1, "the current run alone"


@pytest.mark.parametrize(
    "command", ["demo", "partition", "train", "evaluate", "report", "tables", "methods", "list", "show", "remove"]
)
def test_help(home: Path, command: str) -> None:
    text = good(command, "--help").out
    said = " ".join(text.split())
    assert f"Usage: fedbench {command}" in said
    assert "--no-" not in said, "a switch is off unless given"
    if command == "train":
        assert "Every hyper-parameter of a method is an option too, such as --lambda 0.8" in said


def test_lists_on_a_narrow_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns names stand whole, and what a method is has the place of its options."""
    from fedbench.metrics.definitions import all_metrics

    monkeypatch.setenv("COLUMNS", "80")
    methods_, metrics = good("methods").out, good("metrics").out
    assert max(map(len, (methods_ + metrics).splitlines())) <= 80
    assert "--lambda" not in methods_
    assert set(all_metrics()) <= set(metrics.split())
    assert "(flux, flux_soft)" in " ".join(metrics.split())


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("partition digits --iid --clients 3", "current dataset metrics partition partition run"),
        ("remove method=fedavg --yes", "current dataset partition"),
        ("figure curves -o curves.csv", "current curves.csv dataset metrics partition run"),
    ],
)
def test_without_a_reader_the_work_is_done(ready: Path, monkeypatch: pytest.MonkeyPatch, words: str, left: str) -> None:
    """`fedbench ... | head -1`: what a command does it has done before it prints."""
    monkeypatch.chdir(ready)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out, contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 1
    there = [path.parent.parent.name for path in ready.glob("*/*/artifact.json")]
    there += ["current"] * ("partition" in Store(ready).current) + [path.name for path in ready.glob("*.csv")]
    assert " ".join(sorted(there)) == left
