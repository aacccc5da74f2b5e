"""Looking around: `list`, `show`, `methods`, `tables`, `data`, `compare`, `site`, `export`, `remove`, `results`, help,
completion; and names that look like markup or would act on a terminal."""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from fedbench import methods
from fedbench.__main__ import main
from fedbench.cli import PANELS, app, completion
from fedbench.cli.options import MORE
from fedbench.cli.parser import flowed
from fedbench.core.trainer import Progress
from fedbench.engine.engines import Where
from fedbench.machine import processor
from fedbench.metrics.definitions import all_metrics
from fedbench.observers import Training
from fedbench.observers.bars import Bars
from fedbench.partition_options import PartitionerChoice
from fedbench.reports.render import FORMATS
from fedbench.results.making import machine
from fedbench.results.pack import Pack, write
from fedbench.screen import Screen
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.specs.fields import typed
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, bad, complete, fedbench, good, own_method

#: What takes its time to import.
HEAVY = {"torch", "torchvision", "pandas", "sklearn", "scipy", "matplotlib", "PIL", "pyarrow", "numpy"}


def in_one_process(*commands: tuple[str, ...], watched: Collection[str] = HEAVY, **environment: str) -> str:
    """What commands print, one after another in a process of their own; and after each which of the `watched` modules
    it has imported."""
    script = (
        "import sys\nfrom fedbench.__main__ import main\n"
        f"for command in {[list(map(str, one)) for one in commands]!r}:\n"
        "    try: main(command)\n    except SystemExit as stop: print('code', stop.code)\n"
        f"    print('heavy', sorted({set(watched)!r} & set(sys.modules)))"
    )
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env).stdout


def test_json_is_one_document(prepared: Path) -> None:
    for words in (
        "list",
        "list run",
        "methods",
        "methods feddrm",
        "tables feddrm/1",
        "tables pfedfda/8",
        "data list",
        "data show digits",
        "data check digits",
        "evaluate",
        "evaluate --all",
    ):
        assert json.loads(good(*words.split(), "--json", "--home", prepared).out) is not None


def test_list_and_show_from_a_number_back_to_the_images(ready: Path) -> None:
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
    accuracies = [f"{100 * headline[k]:.2f}" for k in ("average_accuracy", "system_accuracy")]
    assert rows[-1][9:12] == ["2025", *accuracies]
    assert listed[2]["average_accuracy"] == headline["average_accuracy"]
    assert "0.0 MB" not in said
    (metrics,) = (one for one in listed if one["kind"] == "metrics")
    assert f"of run {current['run']}: fedavg on digits" in good("list", "metrics").out
    assert metrics["id"] in good("list", "metrics").out
    assert json.loads(good("list", "run", "--json").out) == [one for one in listed if one["kind"] == "run"]
    metrics = artifact(ready, "metrics").name
    chain = json.loads(good("show", metrics, "--json").out)
    assert [step["kind"] for step in chain] == ["metrics", "run", "partition", "dataset"]
    assert [step["id"] for step in chain] == [artifact(ready, step["kind"]).name for step in chain]
    text = good("show", metrics[:6]).out
    for step in chain:
        assert f"{step['kind']} {step['id']}" in text
    told = " ".join(text.replace("│", " ").split())
    assert "predictions.parquet, rounds.parquet" in told, "nothing is cut off"
    for words in ("momentum 0.9, weight_decay 0.0005", "digits (scikit-learn)", "executor stacked"):
        assert words in told
    good("remove", partition := artifact(ready, "partition").name, "--yes")
    chain = json.loads(good("show", metrics, "--json").out)
    assert chain[2] == {"missing": f"partition {partition}: digits Dir-0.3, 8 clients, shift high, seed 2025"}
    assert "(not in this store, or damaged)" in good("show", artifact(ready, "run").name).out


def test_runs_of_one_method_are_told_apart_listed_and_removed_by_filters(ready: Path) -> None:
    for mu, lr in (("0.1", "0.1"), ("0.5", "0.2")):
        good("train", "--method", "ditto", *SMOKE, "--rounds", "1", "--mu", mu, "--lr", lr)
    whats = [one["what"] for one in json.loads(good("list", "run", "--json").out)]
    assert [what.partition(" on ")[0] for what in whats] == ["fedavg", "ditto (mu 0.1)", "ditto (mu 0.5)"]
    listed = json.loads(good("list", "method=ditto", "--json").out)
    assert [(one["kind"], one["lr"]) for one in listed] == [("run", 0.1), ("run", 0.2)]
    (second,) = json.loads(good("list", "run", "method=ditto", "lr=0.2", "--json").out)
    assert second["id"] == listed[1]["id"]
    (first,) = json.loads(good("list", listed[0]["id"][:6], "--json").out)
    assert first["id"] == listed[0]["id"]
    before = complete(ready)
    said = fedbench("remove", "method=ditto")
    assert said.code == 2, "nobody answers"
    assert complete(ready) == before
    for one in listed:
        assert f"run {one['id']} (" in said.out
    assert "removed 2 runs, 2 metrics, " in good("remove", "method=ditto", "--yes").out
    after = complete(ready)
    assert {path.split("/")[0] for path in before.keys() - after.keys()} == {"run", "metrics"}
    assert len(before) - len(after) == 4
    assert json.loads(good("list", "run", "--json").out)[0]["method"] == "fedavg"


def test_remove(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, before = artifact(ready, "run").name, complete(ready)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert fedbench("remove", run).code == 1
    assert complete(ready) == before
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = fedbench("remove", run)
    line = "fedbench: nothing was removed: there was no answer; --yes removes without asking"
    assert (said.code, said.line) == (2, line)
    assert complete(ready) == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert f"removed run {run}" in good("remove", run).out
    assert complete(ready) == {path: files for path, files in before.items() if path != f"run/{run}"}
    rest = [path.split("/")[1] for path in complete(ready)]
    good("remove", *rest[1:], "--yes")
    assert [path.split("/")[1] for path in complete(ready)] == rest[:1]


def test_methods(home: Path, tmp_path: Path) -> None:
    listed = json.loads(good("methods", "--json").out)
    assert [m["name"] for m in listed] == methods.names()
    assert all(m["summary"] and not m["summary"].endswith(".") for m in listed)
    families = {method["name"]: method["family"] for method in listed}
    assert [name for name, family in families.items() if family == "without a paper"] == ["local"]
    lines = good("methods").out.splitlines()
    assert len(lines) == len(listed) + len(set(families.values())) + 1
    for method in listed:
        (k,) = (k for k, line in enumerate(lines) if line.startswith(f"  {method['name']} "))
        assert lines[k].endswith(f"  {method['summary']}")
        assert [line for line in lines[:k] if not line.startswith(" ")][-1] == method["family"]
    assert [line.split()[:3] for line in lines if " ditto " in line] == [["ditto", "2021", "Li"]]
    shown = good("methods", "ditto").out
    assert "personal models. Li et al., Ditto:" in " ".join(shown.split())
    own = good("methods", own_method(tmp_path)).out
    assert "\nyour own.\n" in own
    assert "FedAvg at half the learning rate." in own
    assert "--half 0.5: factor of the learning rate" in own
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace("FedAvg at", "Weights [a, b] of [bold]FedAvg[/] at"))
    assert "Weights [a, b] of [bold]FedAvg[/] at half" in good("methods", f"{path}:MyMethod").out


def _commands(group: Any, name: str = "") -> dict[str, Any]:
    below: dict[str, Any] = {}
    for one, command in getattr(group, "commands", {}).items():
        below |= _commands(command, f"{name} {one}".strip())
    return {name: group, **below}


def test_options_are_the_fields_of_specs_and_every_help_text_names_its_value() -> None:
    commands = _commands(get_command(app))
    for command, cls in (
        ("train", Setting),
        ("train", Where),
        ("partition", PartitionSpec),
        ("partition", PartitionerChoice),
    ):
        helps = {
            one.opts[0][2:].replace("-", "_"): one.help for one in commands[command].params if hasattr(one, "help")
        }
        fields = {name: field.metadata["help"] for name, field in typed(cls).items()}
        assert fields.items() <= helps.items()
    assert not [one.opts for command in commands.values() for one in command.params if one.secondary_opts], "no --no-"
    helps = {one.help: one.name for command in commands.values() for one in command.params if getattr(one, "help", "")}
    assert len(helps) > 130
    assert not [one for one in helps if one.startswith(("Of ", "Whose ", "How ", "So "))]
    for option in ("--json", "--protocol", "--no-shipped", "--executor", "--column", "--dataset"):  # but for `tables`
        said_of = {c: one.help for c, command in commands.items() for one in command.params if option in one.opts}
        assert len({help for c, help in said_of.items() if c != "tables"}) == 1 < len(said_of), option
    said = " ".join(good("train", "--help").out.split())
    assert "Usage: fedbench train" in said
    assert "The hyper-parameters of a method are options, too, such as --lambda 0.8" in said


def test_what_is_rarely_needed_is_shown_by_help_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = _commands(get_command(app))
    shown, everything = good("--help").out, good("--help-all").out
    top = [name for name in commands if name and " " not in name]
    assert [name for name in top if f"│ {name} " not in everything] == []
    assert [name for name in top if f"│ {name} " not in shown] == list(PANELS[MORE])
    assert good("--help").out == shown, "--help-all is of one call"
    options = {one.opts[0] for one in commands["train"].params if one.opts[0].startswith("--")}
    missing = {option for option in options if f" {option} " not in good("train", "--help").out}
    assert {"--executor", "--drifts"} <= missing <= options
    assert [option for option in options if f" {option} " not in good("train", "--help-all").out] == []
    assert "No such option" in bad("list", "--help-all"), "which hides nothing"


def test_help_texts_break_where_the_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    line = (
        "The hyper-parameters of a method are options, too, such as --lambda 0.8 for feddrm ('fedbench methods feddrm'"
    )
    assert line in good("train", "--help").out
    assert flowed("One\n  line.\n\n    Two\n    lines.\n    ") == "One line.\n\nTwo lines."


def test_lists_on_a_narrow_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns names stand whole, and a method has one line."""
    monkeypatch.setenv("COLUMNS", "80")
    methods_, metrics = good("methods").out, good("metrics").out
    assert max(map(len, (methods_ + metrics).splitlines())) <= 80
    assert len(methods_.splitlines()) < len(methods.names()) + 12
    assert all(f"\n  {name} " in methods_ for name in methods.names())
    assert set(all_metrics()) <= set(metrics.split())
    assert "(flux, flux_soft)" in " ".join(metrics.split())


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("partition digits --iid --clients 3", "current dataset metrics partition partition run"),
        ("partition --help", "current dataset metrics partition run"),
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


def test_tables_count_cells_of_one_precision(ready: Path) -> None:
    def counts(*words: str) -> dict[str, dict[str, object]]:
        listed = json.loads(good("tables", "--json", *words).out)
        return {t["table"]: {"precision": t["precision"], **t["states"]} for t in listed}

    usual, bf16 = counts("feddrm"), counts("feddrm", "--precision", "bf16")
    assert usual["feddrm/1"]["precision"] == {"paper": "tf32", "small": "fp32", "smoke": "fp32"}
    assert set(bf16["feddrm/1"]["precision"].values()) == {"bf16"}  # type: ignore[attr-defined]
    assert counts("pfedfda", "--precision", "bf16")["pfedfda/8"]["precision"] == {"": None}
    assert "fullest budget in bf16." in good("tables", "feddrm", "--precision", "bf16").out
    one = json.loads(good("tables", "1", "--precision", "bf16", "--json").out)
    assert (one["budget"], one["precision"]) == ("small", "bf16")
    assert "budget small in bf16" in good("tables", "1", "--precision", "bf16").out.splitlines()[0]


@pytest.mark.usefixtures("home")
def test_tables_without_a_number_are_folded_to_a_line_a_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without shipped runs only those have numbers that are counted."""
    monkeypatch.setenv("COLUMNS", "80")
    said = good("tables", "--no-shipped").out.splitlines()
    folded = [line for line in said if " without a number: " in line]
    assert said.index(folded[0]) == said.index(folded[-1]) - len(folded) + 1
    full = said[: said.index(folded[0])]
    assert [line.split()[0] for line in full if line.startswith("ftw_erm/")] == [
        f"ftw_erm/{n}" for n in (6, 8, 9, 11, 12)
    ]
    assert "scale: 1 table without a number: 1 (fedbench tables scale)" in folded
    assert len(full) + sum(int(line.split()[1]) for line in folded) == len(json.loads(good("tables", "--json").out))
    assert max(map(len, folded)) <= 80
    (flux,) = (line for line in folded if line.startswith("flux"))
    assert flux.endswith(", ... (fedbench tables flux)")
    assert "ftw_erm/13 " in good("tables", "ftw_erm", "--no-shipped").out


def test_two_methods_side_by_side(both: Path, tmp_path: Path) -> None:
    said = good("compare")
    assert said.out.startswith("compare  2 runs on digits, Dir-0.3")
    for text in ("FedAvg", "Local", "One run per row, so no ±"):
        assert text in said.out
    assert "paired over the clients of common partitions" in " ".join(good("compare", "--test").out.split())
    compared, tests = json.loads(good("compare", "--test", "--json").out)
    assert [cell["row"] for cell in compared["cells"] if cell["metric"] == "average_accuracy"] == ["FedAvg", "Local"]
    assert tests["cells"][0]["keys"]["second"] == "Local"
    page = tmp_path / "runs.html"
    said = good("compare", "method=local", "-o", page)
    assert said.err.endswith(f"compare written to {page}\n")
    assert page.read_text().startswith("<!doctype html>")


def test_a_site_names_no_machine_and_no_folder(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made to be shared; what an error says of a file, too."""
    monkeypatch.setenv("HOME", str(both.parent))
    next((both / "run").glob("*/predictions.parquet")).write_bytes(b"no file")
    shutil.rmtree(both / "metrics")
    good("site", tmp_path / "out")
    run = next(Store(both).list("run"))
    pages = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert any("STORE/run/" in text for text in pages.values())
    for secret in (run.provenance["host"], run.provenance["platform"], str(both), str(both.parent), platform.release()):
        assert not [name for name, text in pages.items() if secret in text], secret
    (shown,) = (text for name, text in pages.items() if name == f"run-{run.id}.html")
    assert f"on {machine(run.provenance)}" in shown


def test_a_site_is_an_index_and_a_page_a_run(both: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "site"
    said = good("site", out)
    assert said.err.splitlines()[-1].startswith("2 runs, 0.")
    assert said.err.endswith(f"open {out / 'index.html'}\n")
    files = {path.name for path in out.iterdir()}
    assert {"index.html", "runs.html", "feddrm.html", "method-feddrm.html", "site.css", "site.js"} <= files
    assert len([name for name in files if name.startswith("run-")]) == 2
    assert 'href="runs.html">Your 2 runs</a>' in (out / "index.html").read_text()
    good("site", tmp_path / "few", "method=local")
    (page,) = (tmp_path / "few").glob("run-*.html")
    text = page.read_text()
    assert page.name in files
    shown = good("show", page.stem.removeprefix("run-")).out
    for words in ('alt="Partition"', '<table class="clients">', "Settings<"):
        assert words in text
    for line in ("dataset 7fb771814abf", "trained "):
        assert line in shown
        assert line in html.unescape(text)


def test_what_shows_runs_imports_nothing_heavy(both: Path, tmp_path: Path) -> None:
    """No command that looks around waits for torch or pandas, what reads no Parquet neither for pyarrow, and only the
    site, which draws, for matplotlib."""
    words = ["--help", "train --help", "partition --help", "list", "report --table 1 --no-shipped", "data list"]
    light = [("--home", str(tmp_path), *word.split()) for word in words]
    reports = [("report", "-t", "1", "-t", "ftw_erm/9", "--dataset", "digits", *SMOKE, "-f", form) for form in FORMATS]
    out = in_one_process(*light, *reports, ("compare",), ("site", str(tmp_path / "out"), "dataset=digits"))
    imported = [line for line in out.splitlines() if line.startswith("heavy ")]
    least, rest = ["heavy []"] * 2 + ["heavy ['numpy']"] * 4, ["heavy ['numpy', 'pyarrow']"] * (len(FORMATS) + 1)
    assert imported == [*least, *rest, "heavy ['PIL', 'matplotlib', 'numpy', 'pyarrow']"]
    assert "FedAvg " in out, "the run must be in the table"
    assert (out.count("code 0"), (tmp_path / "out" / "index.html").exists()) == (len(imported), True)
    shipped = in_one_process(("report", "--table", "1"), ("tables",), FEDBENCH_HOME=str(tmp_path / "none"))
    assert shipped.count("\nheavy ['numpy', 'pyarrow']\n") == 2
    assert "° " in shipped


def test_what_shows_numbers_does_not_import_the_engine(prepared: Path) -> None:
    """Whose options only the commands that train have."""
    words = ("report --table 1", "tables", "claims feddrm", "compare", "list", "status", "results list", "data list")
    lines = [("--home", str(prepared), *word.split()) for word in words]
    out = in_one_process(*lines, ("--home", str(prepared), "train", "--help"), watched={"fedbench.engine"})
    imported = [line for line in out.splitlines() if line.startswith("heavy ")]
    assert imported == ["heavy []"] * len(words) + ["heavy ['fedbench.engine']"]


@pytest.mark.parametrize(
    ("line", "offers"),
    [("train dig", ["digit3", "digit5", "digits"]), ("train digits -m fedpro", ["fedproto", "fedprox"])],
)
def test_the_shell_asks_and_nothing_heavy_is_imported(tmp_path: Path, line: str, offers: list[str]) -> None:
    words = {"COMP_WORDS": f"fedbench {line}", "COMP_CWORD": str(len(line.split()))}
    out = in_one_process((), **words, _FEDBENCH_COMPLETE="complete_bash", FEDBENCH_HOME=str(tmp_path))
    assert out.splitlines() == [*offers, "code 0", "heavy []"]


def test_names_and_ids_of_the_store_that_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, begin, answer in (
        ("methods", "ditt", ["ditto"]),
        ("datasets", "cifar1", ["cifar10", "cifar100"]),
        ("tables", "5", ["5"]),
        ("tables", "feddrm/1", ["feddrm/1"]),
        ("protocols", "p", ["pfedfda", "plain"]),
        ("methods", "no such", []),
        ("networks", "lenet_", ["lenet_gn", "lenet_tanh"]),
        ("partitioners", "d", ["dirichlet"]),
    ):
        assert getattr(completion, what)(begin) == answer
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    assert completion.runs("") == []
    for id in ("run/ab12", "run/cd34", "partition/ab99"):
        (tmp_path / id).mkdir(parents=True)
    assert completion.runs("ab") == ["ab12"]
    assert completion.artifacts("ab") == ["ab12", "ab99"]


def test_a_file_of_rows_there_and_back(ready: Path, tmp_path: Path) -> None:
    id = artifact(ready, "partition").name
    for name in ("rows.csv", "rows.parquet"):
        said = good("export", id, "-o", tmp_path / name)
        assert f"read it again with: fedbench partition digits --from {tmp_path / name} --shift high" in said.err
    said = good("partition", "digits", "--from", tmp_path / "rows.csv", "--shift", "high", "--json")
    again = json.loads(said.out)
    assert again["spec"]["rows"] == hashlib.sha256((tmp_path / "rows.csv").read_bytes()).hexdigest()
    before = json.loads(good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--json").out)
    for name in ("train_counts", "test_counts", "shift"):
        assert [one[name] for one in again["clients"]] == [one[name] for one in before["clients"]]
    same = json.loads(good("partition", "digits", "--from", tmp_path / "rows.parquet", "--shift", "high", "--json").out)
    assert (same["id"], same["made"]) == (again["id"], False)
    plain = json.loads(good("partition", "digits", "--from", tmp_path / "rows.csv", "--json").out)
    assert plain["spec"]["shift"] == "none"  # no default of the paper's


def titled(folder: Path, given: str) -> str:
    """A user's method with this line in the place of its title."""
    method = own_method(folder, "yield Train(cross_entropy)")
    path = folder / "mine.py"
    path.write_text(path.read_text().replace('title = "Mine"', given))
    return method


def shown(*texts: str) -> bool:
    """Whether nothing in the texts acts on a terminal."""
    return all(c.isprintable() or c == "\n" for text in texts for c in text)


@pytest.mark.usefixtures("brief")
def test_a_method_of_any_title_goes_through_all_commands(ready: Path, tmp_path: Path) -> None:
    title, odd = "[/x] [bold]:skull:", tmp_path / "[bold]x[/y]"
    method = titled(tmp_path, f"title = {title!r}")
    trained = good("train", "--method", method, *SMOKE)
    run = json.loads(good("evaluate", "--json").out)[0]["run"]
    report = ("report", "--table", "feddrm/1", "--dataset", "digits", *SMOKE)
    told, printed = good("methods", method), good(*report)
    others = [good("list"), good("show", run), good("evaluate", run), good(*report, "-f", "markdown")]
    assert shown(*(text for one in (trained, told, printed, *others) for text in (one.out, one.err)))
    assert title in trained.err
    assert title in told.out
    assert title in printed.out
    odd.mkdir(parents=True)
    assert "[bold]x[/y]" in good("list", "--home", odd / "store").out
    assert "[bold]x[/y]" in good("evaluate", "--all", "--home", odd / "store").err


@pytest.mark.usefixtures("ready")
def test_a_title_that_is_no_line_of_text_and_a_name_that_is_no_identifier_are_errors(tmp_path: Path) -> None:
    for title in ("one\ntwo", "\x1b[31m", "\u202e"):
        said = bad("train", "--method", titled(tmp_path, f"title = {title!r}"), *SMOKE)
        assert said.endswith("a title is one line of text")
        assert shown(said)
    for name in ("[/x]", "a b", "x\ny", "\x1b", "a/b"):
        line = bad("train", "--method", titled(tmp_path, f"name = {name!r}"), *SMOKE, "--dry-run")
        assert f"is {name!r}; a name is letters, digits and _" in line
    good("train", "--method", titled(tmp_path, "name = ''"), *SMOKE, "--dry-run")  # no name: the class's
    assert shown(bad("methods", "no\x1b[31m\nsuch"))


def test_older_runs_of_any_name_are_listed(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(ready)
    (made,) = store.list("run")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))  # nobody answers
    for name in ("[/x]", "\x1b[31m", "a\nb"):
        odd = RunSpec(made.spec.setting, name, {"[/]": "[/x]"})
        with store.writing(odd) as writer:
            writer.table("rounds", made.table("rounds"))
            writer.provenance = {k: made.provenance[k] for k in ("train_seconds", "device", "executor")}
        for command in (["list"], ["show", odd.id], ["remove", odd.id]):
            said = fedbench(*command)
            assert said.code == 2 * (command[0] == "remove")
            assert odd.id in said.out + said.err
            assert shown(said.out, said.err)


@pytest.mark.parametrize(
    "title",
    ["[/x]", "[link=x]y[/link]", ":skull:", "one\ntwo", "\x1b[31mred\x1b]0;own\x07", "a\x9b2Jb", "\u202eback"],
)
def test_a_progress_bar_of_any_title(title: str) -> None:
    out = io.StringIO()
    console = Screen(file=out, force_terminal=True, color_system=None, width=200, legacy_windows=False)
    with Bars(console) as bars:
        bars.on_start(Training(("a",), title, 3, {}))
        bars.on_round(Progress(1, 3, 0.5, 0.25))
        bars.on_round(Progress(2, 3, 0.5, 0.25, doing=title))
    text = out.getvalue()
    for harmful in ("\x1b[31m", "\x1b]", "\x07", "\x9b", "\u202e"):
        assert harmful not in text
    if title.isprintable():
        assert title in text


#: One run of FedAvg on the digits, in the smoke budget of the protocol plain.
DIGITS_PACK = Path(__file__).parents[1] / "fixtures/results/digits.parquet"


@pytest.fixture
def pack(both: Path, tmp_path: Path) -> Path:
    good("results", "export", "method=fedavg", "-o", tmp_path / "ada.parquet", "--by", "Ada")
    return tmp_path / "ada.parquet"


def table(home: Path, *more: str) -> str:
    return good("report", "--table", "1", *DIGITS, *more, "--home", home).out


def test_a_pack_fills_tables_elsewhere_is_shown_and_verified(pack: Path, tmp_path: Path) -> None:
    other, run = tmp_path / "other", Pack(pack).row(0).id
    assert "1 run by Ada, in" in good("results", "import", pack, "--home", other).err
    assert "Ada" in good("results", "list", "--home", other).out
    assert "; all shipped" in table(other)
    assert "°" not in table(other, "--no-shipped")
    listed = json.loads(good("results", "list", "--json", "--home", other).out)
    assert [(one["runs"], one["by"], one["datasets"]) for one in listed] == [(1, ["Ada"], ["digits"])]
    said = " ".join(good("show", run[:8], "--home", other).out.replace("│", " ").split())
    for words in (
        f"run {run}: fedavg on digits",
        "by Ada on ",
        "momentum 0.9, weight_decay 0.0005",
        "no hyper-parameters",
        f"without its predictions: 'fedbench results verify {run}' trains it again",
        "(not in this store, or damaged)",
    ):
        assert words in said
    first, *missing = json.loads(good("show", run, "--json", "--home", other).out)
    assert (first["id"], first["shipped"]["by"], len(missing)) == (run, "Ada", 2)
    cell = ("train", "--table", "1", *DIGITS, "--column", "digits/Dir-0.3", "-m", "fedavg", "--home", other)
    said = good(*cell).err
    assert "nothing to run" in said
    assert "1 shipped run left out (--include-shipped trains it)" in said
    assert "1 run to make" in good(*cell, "--include-shipped", "--dry-run").out
    (one,) = json.loads(good("results", "verify", "--sample", "3", "--json", "--home", other).out)
    assert (one["verdict"], one["trained"]) == ("same", True)
    assert one["made_on_processor"] == one["processor_here"] == processor()
    assert "no shipped run took 1e-06 minutes or less; the shortest one took" in bad(
        "results", "verify", "--minutes", "1e-6", "--home", other
    )
    assert "as it was trained to verify it before" in good("results", "verify", "--home", other).out
    (one,) = json.loads(good("results", "verify", "--again", "--json", "--home", other).out)
    assert (one["verdict"], one["trained"]) == ("same", True)
    assert "; all shipped" in table(other)  # what is trained to verify a run is in no table
    assert not [*Store(other).list("run")]
    good(*cell)
    assert "1 run to make" in good(*cell, "--include-shipped", "--dry-run").out
    good(*cell, "--include-shipped")
    assert "°" not in table(other)  # it is the store's own now
    assert "as the store has it" in good("results", "verify", "--home", other).out


def test_shipped_runs_are_verified_by_the_tables_that_they_are_in(pack: Path, tmp_path: Path) -> None:
    """Which runs these are: tests/reports/test_rows.py."""
    other = tmp_path / "other"
    good("results", "import", pack, "--home", other)
    (one,) = json.loads(good("results", "verify", "table!=flux/12", "method=fedavg", "--json", "--home", other).out)
    assert one["verdict"] == "same"
    assert "no table has such a shipped run: table=flux/12" in bad(
        "results", "verify", "table=flux/12", "--home", other
    )
    assert "did you mean 'method'" in bad("results", "verify", "mehtod=fedavg", "--home", other)


def test_runs_that_diverged_or_are_of_other_code(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "training diverged" in bad("train", "-m", "fedavg", "--budget", "smoke", "--lr", "1e30")
    said = good("results", "export", "-o", tmp_path / "ada.parquet", "--by", "Ada").err
    assert "1 run, and 1 run that diverged in" in said
    exported = json.loads(good("results", "export", "method=fedavg", "-o", tmp_path / "b.parquet", "--json").out)
    assert (exported["exported"], exported["diverged"]) == (1, 0)
    good("results", "import", tmp_path / "ada.parquet", "--home", tmp_path / "other")
    (one,) = json.loads(good("results", "list", "--json", "--home", tmp_path / "other").out)
    assert (one["runs"], one["diverged"]) == (1, 1)
    monkeypatch.setattr("fedbench.results.making.other_code", lambda provenance: True)
    pack = tmp_path / "x.parquet"
    assert "1 run of 1 was made by other code than today's" in bad("results", "export", "-o", pack)
    assert not pack.exists()
    good("results", "export", "-o", pack, "--other-code")
    assert pack.exists()


def far(pack: Path, tmp_path: Path) -> None:
    """A store with a run of another processor that has half the accuracy."""
    row = Pack(pack).row(0)
    lower = replace(row.metrics, value=row.metrics.value * 0.5)
    about = {**row.about, "cpu": "another"}
    write(tmp_path / "bad.parquet", [replace(row, predictions="0" * 64, metrics=lower, about=about)])
    good("results", "import", tmp_path / "bad.parquet", "--prefer", "new", "--home", tmp_path / "other")


def test_an_interrupt_leaves_what_was_verified(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbench.cli import verify as verifying
    from fedbench.core.trainer import Interrupted

    other, train = tmp_path / "other", verifying.train
    good("results", "export", "-o", pack, "--by", "Ada")
    good("results", "import", pack, "--home", other)
    made: list[Any] = []

    def once(jobs: Any, *arguments: Any, **options: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.extend(train(jobs, *arguments, **options))
        return made

    monkeypatch.setattr(verifying, "train", once)
    said = fedbench("results", "verify", "--home", other)
    assert (said.code, said.err.splitlines()[-1]) == (130, "fedbench: stopped")
    assert f"✓ run {made[0].id}" in said.out
    assert "1 of 1 come out again" in said.out
    monkeypatch.setattr(verifying, "train", train)

    def stopped(*_: Any) -> None:
        raise Interrupted(3)

    monkeypatch.setattr("fedbench.engine.verify.settled", stopped)  # while it looks at rounding
    far(pack, tmp_path)
    said = fedbench("results", "verify", "--home", other)
    assert (said.code, said.err.splitlines()[-1]) == (130, "fedbench: stopped")


def test_other_numbers_are_asked_about_and_found_out(pack: Path, tmp_path: Path) -> None:
    """How tables mark them: tests/reports/test_rows.py; which verdict when: tests/engine/test_verify.py."""
    other, row = tmp_path / "other", Pack(pack).row(0)
    names = ["accuracy" in name and not name.endswith("_std") for name in row.metrics.names]
    accuracies = np.array(names)[row.metrics.metric]
    better = replace(row.metrics, value=row.metrics.value + 0.02 * accuracies)
    write(tmp_path / "bob.parquet", [replace(row, by="Bob", metrics=better)])
    good("results", "import", pack, "--home", other)
    line = bad("results", "import", tmp_path / "bob.parquet", "--home", other)
    assert f"has other numbers than are there: {row.id} (other/ada)" in line
    said = good("results", "import", tmp_path / "bob.parquet", "--prefer", "old", "--home", other).err
    assert "nothing taken in of bob.parquet; 1 run left out that were there with other numbers" in said
    (other / "results/bob.parquet").write_bytes((tmp_path / "bob.parquet").read_bytes())  # not by an import
    said = fedbench("results", "verify", "--home", other)
    assert said.code == 1
    assert f"✓ run {row.id} in other/ada" in said.out
    assert f"✗ run {row.id} in other/bob" in said.out
    assert "the same predictions, but other numbers than the pack's, largest difference 2.00 points" in said.out
    assert "1 of 2 come out again" in said.out
    for path in (other / "results").iterdir():
        path.unlink()
    far(pack, tmp_path)
    said = fedbench("results", "verify", "--home", other)
    assert (said.code, "accuracies beyond the tolerance" in said.out) == (1, True)


def test_an_export_is_the_same_bytes_and_it_and_an_import_add_to_a_pack(pack: Path, tmp_path: Path) -> None:
    before = pack.read_bytes()
    good("results", "export", "method=fedavg", "-o", pack, "--by", "Ada")
    assert pack.read_bytes() == before
    said = good("results", "export", "method=local", "-o", pack, "--by", "Ada")
    assert "1 run (2 in all)" in said.err
    assert "no such run that feddrm reads" in bad(
        "results", "export", "--table", "feddrm", "-o", tmp_path / "x.parquet"
    )
    other = tmp_path / "other"
    good("results", "import", pack, "--home", other)
    pack.unlink()
    good("results", "export", "method=local", "-o", pack, "--by", "Charles")
    said = good("results", "import", pack, "--home", other).err
    assert "1 run by Charles (2 in all), in" in said
    listed = json.loads(good("results", "list", "--json", "--home", other).out)
    assert [(one["runs"], one["by"]) for one in listed] == [(2, ["Ada", "Charles"])]


def test_a_pack_that_cannot_be_read_is_told_wherever_its_runs_could_stand(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.chdir(tmp_path)  # figures go where one is
    good("results", "import", pack, "--home", other)
    (other / "results/text.parquet").write_text("no pack")
    row = Pack(pack).row(0)
    better = replace(row.metrics, value=row.metrics.value + 7)
    write(other / "results/a.parquet", [replace(row, metrics=better)])
    for command in (
        ("compare", "method=fedavg", "shipped=yes", "--notes", "full"),
        ("figure", "curves", "method=fedavg", "shipped=yes", "--csv"),
        ("claims",),
        ("results", "list"),
    ):
        said = good(*command, "--home", other)
        faults = 1 if command == ("claims",) else 2  # of packs that it has no run of only what tells of them is read
        assert " ".join(said.err.split()).count("cannot read the result pack") == faults, command
        assert "Ada" in said.out + said.err or command == ("claims",)
    assert " ".join(table(other).split()).count("cannot read the result pack") == 2


@pytest.mark.slow
def test_a_run_made_long_ago_comes_out_again(home: Path) -> None:
    """At every build: what this machine trains is what was trained when the pack was made."""
    good("results", "import", DIGITS_PACK)
    (one,) = json.loads(good("results", "verify", "dataset=digits", "--json").out)
    assert (one["good"], one["trained"]) == (True, True)


def test_methods_are_listed_by_the_clients_that_they_serve() -> None:
    listed = good("methods", "--serves", "unseen").out
    assert " fedavg " in listed
    assert " ditto " not in listed
    assert "serves: member clients, unlabelled clients." in good("methods", "ditto").out
    assert "unknown kind of client 'strangers'" in bad("methods", "--serves", "strangers")
