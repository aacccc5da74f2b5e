"""`fedbench report` and `fedbench tables` from the command line."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedbench import methods
from fedbench.cli import context
from fedbench.cli.report import report
from fedbench.cli.tables import tables
from fedbench.errors import FedbenchError
from fedbench.reports.table import load as tables_of
from fedbench.results.making import row_of
from fedbench.results.pack import write
from tests.reports.conftest import Lab

Call = Callable[[str], Result]
DIR = "CIFAR-10/Dir-0.3"
APP = typer.Typer()
APP.command("report")(report)
APP.command("tables")(tables)


def of_home(home: Path, words: str) -> Result:
    """What the command of these words answers in a store; an error is raised."""
    context.configure(home, "", False)
    result = CliRunner().invoke(APP, words.split())
    if isinstance(result.exception, FedbenchError):
        raise result.exception
    return result


@pytest.fixture
def call(lab: Lab) -> Call:
    return partial(of_home, lab.store.home)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Call:
    return partial(of_home, tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_rests_in_commands_that_read(on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with context.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is on
    finally:
        (gc.enable if before else gc.disable)()


def test_no_table_means_the_headline_ones(empty: Call) -> None:
    result = empty("report --format json")
    assert result.stdout == empty("report --json").stdout
    headline = ["feddrm/1", "feddrm/2", "flux/levels_mnist", "flux/51", "pfedfda/6"]
    assert [t["table"] for t in json.loads(result.stdout)] == headline


def test_one_table_and_what_is_said_below_it(lab: Lab, call: Call, tmp_path: Path) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.4321, title="pFedFDA")
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", deviations=["lambda is another"])
    brief, full = call("report --table 1 --extra").output, call("report -t 1 --notes full").output
    for words in ("feddrm/1", "43.21", "fedbench train --table feddrm/1 --budget small", "more notes: --notes full"):
        assert words in brief
    assert "Budget small, not the paper's" in brief
    for words in ("lambda is another", "FedDRM a"):
        assert (words in full, words in brief) == (True, False)
    latex = call("report --table 1 --format latex").stdout
    assert latex.startswith("% Needs \\usepackage{booktabs}\n\\begin{table}")
    assert latex.endswith("\\end{table}\n% To fill it: fedbench train --table feddrm/1 --budget small\n")
    whole = call("report --table 1 --format latex --standalone").stdout
    assert whole.startswith("\\documentclass")
    assert whole.endswith("\\end{document}\n")
    assert call(f"report -t pfedfda/8 -o {tmp_path}/t.tex").stdout == ""
    assert "\\label{tab:pfedfda-8}" in (tmp_path / "t.tex").read_text()


def test_another_data_set(empty: Call) -> None:
    (table,) = json.loads(empty("report -t 1 --dataset digits -f json").stdout)
    assert {(c["group"], c["column"]) for c in table["cells"]} == {("digits", "Dir-0.3"), ("digits", "5-SPC")}
    assert {c["reported"] for c in table["cells"]} == {None}
    (table,) = json.loads(empty("report -t 3 --dataset cifar10 -f json").stdout)
    assert (table["table"], any(c["reported"] for c in table["cells"])) == ("flux/levels_cifar10", True)


def test_only_what_is_done(lab: Lab, call: Call) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    shown = json.loads(call("report -t 1 -t flux/1 --only-done --json").stdout)
    assert [t["table"] for t in shown] == ["feddrm/1"]  # a table without a number is left out
    assert [(c["row"], c["group"]) for c in shown[0]["cells"]] == [("FedDRM", "CIFAR-10")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report -t fedrm/2", "unknown table 'fedrm/2'; did you mean 'feddrm/2'"),
        ("report -t 6", "unknown table '6'"),
        ("report --json --format csv", "--json or --format csv"),
        ("report -t flux/12 --only-done", "no cell has a number yet"),
        ("report -f latx", "unknown format 'latx'; did you mean 'latex'"),
        ("report -t 1 --budget papr", "unknown budget 'papr'; did you mean 'paper'"),
        ("report -t 1 --dataset digit", "unknown dataset 'digit'; did you mean 'digits'"),
        ("report -t 1 --test-augmentation plan", "unknown test augmentation 'plan'; did you mean 'plain'"),
        ("report -t 1 --precision bf61", "unknown precision 'bf61'; did you mean 'bf16'"),
        ("report -t pfedfda/8 --precision fp8", "unknown precision 'fp8'; known: bf16, fp32, tf32"),
        ("tables --precision bf61", "unknown precision 'bf61'; did you mean 'bf16'"),
        ("tables feddrm/9", "unknown table 'feddrm/9'"),
        ("tables --budget smal", "unknown budget 'smal'; did you mean 'small'"),
    ],
)
def test_bad_input(empty: Call, words: str, message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        empty(words)


def test_tables_lists_states_by_budget(lab: Lab, call: Call) -> None:
    """A family's tables are one line unless their paper is named."""
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    listed = {t["table"]: t for t in json.loads(call("tables --json").stdout)}
    assert listed["feddrm/1"]["number"] == "1"
    assert listed["feddrm/1"]["states"]["small"]["done"] == 1
    assert "done" not in listed["feddrm/1"]["states"]["paper"]
    assert listed["pfedfda/8"]["states"] == {"": {"done": 16}}
    text = call("tables").output
    assert re.search(r"^feddrm/1 +▏░{9} +1/78  System accuracy", text, re.MULTILINE)
    assert re.search(r"^pfedfda/8 +█{10} +16/16  ", text, re.MULTILINE)
    assert "5 is pfedfda/6." in text
    lines = text.splitlines()
    (line,) = (line for line in lines if line.startswith("flux/56 "))
    assert "0/264  3 tables, such as Mixed shifts on MNIST" in line
    assert not any(line.startswith("flux/57 ") for line in lines)
    alone = [line.split()[0] for line in call("tables flux --budget smoke").output.splitlines()]
    at = alone.index("flux/56")
    assert alone[at : at + 3] == ["flux/56", "flux/57", "flux/58"]


def test_a_tables_bar_tells_how_full_it_is_at_the_budget(lab: Lab, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = tables_of("feddrm/1").rows
    monkeypatch.setattr(methods, "names", lambda: [row.method for row in rows])
    for column in (DIR, "CIFAR-10/5-SPC"):
        for row in rows:
            lab.run(lab.setting("feddrm/1", column, "paper"), row.method, row.params)
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    paper = call("tables feddrm --budget paper").output.splitlines()
    assert [line.split()[0] for line in paper[:4]] == ["feddrm/1", "feddrm/2", "feddrm/3", "feddrm/4"]
    assert re.search("███░{7} +26/78", paper[0])
    assert paper[-1] == "Done of all cells, budget paper. Other runs: 1 with --budget small."
    assert max(map(len, paper[:-1])) <= 80
    assert {t["table"] for t in json.loads(call("tables feddrm --json").stdout)} == {
        *(f"feddrm/{n}" for n in (1, 2, 3, 4, "figure4", "figure5", "figure6", "figure7", "routing", "seeds"))
    }  # fmt: skip


def test_one_tables_cells(lab: Lab, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(lab.setting("feddrm/1", DIR, "paper"), "feddrm")
    assert "1 cells are done at another budget" in call("tables 1").output
    run = lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    told = json.loads(call("tables 1 --json").stdout)
    cell = next(c for c in told["cells"] if (c["row"], c["column"]) == ("FedDRM", DIR))
    assert (cell["state"], cell["runs"]) == ("done", [run.id])
    assert "no cifar20" in told["no_data"]["cifar20"] or "not at hand" in told["no_data"]["cifar20"]
    text = call("tables 1").output
    assert "fill the missing ones: fedbench train --table feddrm/1 --budget small" in text
    assert "not built" in text
    head = call("tables flux/5").output.splitlines()[1]  # its printed columns
    assert head.split() == ["Known", "association", "Test", "phase"]
    monkeypatch.setenv("COLUMNS", "60")  # too narrow for the table
    (line,) = (line for line in call("tables 1").output.splitlines() if line.startswith("FedDRM"))
    assert re.match(r"FedDRM +█░{9} +1/6  1 missing, 4 no data$", line)


def test_shipped_cells_count_and_are_marked(lab: Lab, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.results.checksum.predictions", lambda _: "0" * 64)
    shipped = lab.run(lab.setting("feddrm/1", DIR), "feddrm", started="2026-01-02T03:04:05Z", platform="Linux-x86_64")
    write(lab.store.home / "results" / "some.parquet", [row_of(shipped, lab.store, "Ada")])
    lab.store.remove("run", shipped.id)
    lab.run(lab.setting("feddrm/1", DIR), "fedavg")
    text = call("tables feddrm").output
    assert re.search(r"^feddrm/1 +▏░{9} +1 \+ 1°/78  System accuracy", text, re.MULTILINE)
    assert "Done of all cells (° shipped; --mine leaves them out), budget small." in text
    assert re.search(r"^feddrm/1 +▏░{9} +1/78  System", call("tables feddrm --mine").output, re.MULTILINE)
    told = json.loads(call("tables feddrm --json").stdout)[0]
    assert (told["states"]["small"]["done"], told["shipped"]["small"], told["shipped"]["paper"]) == (2, 1, 0)
    text = call("tables 1").output
    assert re.search(r"^FedDRM +done° ", text, re.MULTILINE)
    assert "(1° shipped; --mine leaves them out)" in text
    one = json.loads(call("tables 1 --json").stdout)
    assert (one["shipped"], [c["row"] for c in one["cells"] if c["shipped"]]) == (1, ["FedDRM"])
    assert "°" not in call("tables 1 --mine").output
