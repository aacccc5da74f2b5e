"""`fedbench report` and `fedbench tables` from the command line."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from fedbench import methods
from fedbench.cli import context
from fedbench.cli.report import report
from fedbench.cli.tables import tables
from fedbench.errors import FedbenchError
from fedbench.reports.status.index import State
from fedbench.reports.table import load as tables_of
from fedbench.results.making import row_of
from fedbench.results.pack import write

DIR = "CIFAR-10/Dir-0.3"


@pytest.fixture
def call(lab: Any) -> Any:
    app = typer.Typer()
    app.command("report")(report)
    app.command("tables")(tables)

    def run(*arguments: str) -> Result:
        context.configure(lab.store.home, "", False)
        result = CliRunner().invoke(app, list(arguments))
        if isinstance(result.exception, FedbenchError):
            raise result.exception
        return result

    return run


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


def test_a_table_by_number(lab: Any, call: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.4321, title="pFedFDA")
    result = call("report", "--table", "1", "--extra")
    assert result.exit_code == 0, result.output
    assert "feddrm/1" in result.output
    assert "43.21" in result.output
    assert "fedbench train --table feddrm/1 --budget small" in result.output


def test_no_table_means_the_headline_ones(call: Any) -> None:
    result = call("report", "--format", "json")
    assert result.stdout == call("report", "--json").stdout
    with pytest.raises(FedbenchError, match="--json or --format csv"):
        call("report", "--json", "--format", "csv")
    assert [t["table"] for t in json.loads(result.stdout)] == [
        "feddrm/1",
        "feddrm/2",
        "flux/levels_mnist",
        "flux/51",
        "pfedfda/6",
    ]


def test_output_goes_to_a_file_of_its_suffix(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.tex"
    result = call("report", "-t", "pfedfda/8", "-o", str(path))
    assert result.exit_code == 0
    assert "\\label{tab:pfedfda-8}" in path.read_text()
    assert result.stdout == ""


def test_latex_on_standard_output_is_only_latex(call: Any) -> None:
    result = call("report", "--table", "1", "--format", "latex")
    assert result.stdout.startswith("% Needs \\usepackage{booktabs}\n\\begin{table}")
    assert result.stdout.endswith("\\end{table}\n% To fill it: fedbench train --table feddrm/1 --budget small\n")
    whole = call("report", "--table", "1", "--format", "latex", "--standalone").stdout
    assert whole.startswith("\\documentclass")
    assert whole.endswith("\\end{document}\n")


def test_notes_are_brief_unless_asked_for_in_full(lab: Any, call: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", deviations=["lambda is another"])
    brief, full = call("report", "-t", "1").output, call("report", "-t", "1", "--notes", "full").output
    assert "lambda is another" in full
    assert "FedDRM a" in full
    assert "lambda is another" not in brief
    assert "FedDRM a" not in brief
    assert "more notes: --notes full" in brief
    assert "Budget small, not the paper's" in brief


def test_only_what_is_done(lab: Any, call: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    (table,) = json.loads(call("report", "-t", "1", "--only-done", "--json").stdout)
    assert [(c["row"], c["group"]) for c in table["cells"]] == [("FedDRM", "CIFAR-10")]
    shown = json.loads(call("report", "-t", "1", "-t", "flux/1", "--only-done", "--json").stdout)
    assert [t["table"] for t in shown] == ["feddrm/1"]  # a table without a number is left out
    with pytest.raises(FedbenchError, match="no cell has a number yet"):
        call("report", "-t", "flux/12", "--only-done")


def test_another_data_set(lab: Any, call: Any) -> None:
    result = call("report", "-t", "1", "--dataset", "digits", "-f", "json")
    (table,) = json.loads(result.stdout)
    assert {(c["group"], c["column"]) for c in table["cells"]} == {("digits", "Dir-0.3"), ("digits", "5-SPC")}
    assert {c["reported"] for c in table["cells"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "-t", "fedrm/2"], "unknown table 'fedrm/2'; did you mean 'feddrm/2'"),
        (["report", "-t", "6"], "unknown table '6'"),
        (["report", "-f", "latx"], "unknown format 'latx'; did you mean 'latex'"),
        (["report", "-t", "1", "--budget", "papr"], "unknown budget 'papr'; did you mean 'paper'"),
        (["report", "-t", "1", "--dataset", "digit"], "unknown dataset 'digit'; did you mean 'digits'"),
        (
            ["report", "-t", "1", "--test-augmentation", "plan"],
            "unknown test augmentation 'plan'; did you mean 'plain'",
        ),
        (["report", "-t", "1", "--precision", "bf61"], "unknown precision 'bf61'; did you mean 'bf16'"),
        (["report", "-t", "pfedfda/8", "--precision", "fp8"], "unknown precision 'fp8'; known: bf16, fp32, tf32"),
        (["tables", "--precision", "bf61"], "unknown precision 'bf61'; did you mean 'bf16'"),
        (["tables", "feddrm/9"], "unknown table 'feddrm/9'"),
        (["tables", "--budget", "smal"], "unknown budget 'smal'; did you mean 'small'"),
    ],
)
def test_bad_input(call: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        call(*arguments)


def test_tables_lists_states_by_budget(lab: Any, call: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    listed = {t["table"]: t for t in json.loads(call("tables", "--json").stdout)}
    assert listed["feddrm/1"]["number"] == "1"
    assert listed["feddrm/1"]["states"]["small"]["done"] == 1
    assert "done" not in listed["feddrm/1"]["states"]["paper"]
    assert listed["pfedfda/8"]["states"] == {"": {"done": 16}}
    text = call("tables").output
    assert re.search(r"^feddrm/1 +▏░{9} +1/78  System accuracy", text, re.MULTILINE)
    assert re.search(r"^pfedfda/8 +█{10} +16/16  ", text, re.MULTILINE)
    assert "5 is pfedfda/6." in text


def test_a_tables_bar_tells_how_full_it_is_at_the_budget(lab: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    built = [row.method for row in tables_of("feddrm/1").rows]
    monkeypatch.setattr(methods, "names", lambda: built)
    for column in ("CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"):
        for row in tables_of("feddrm/1").rows:
            lab.run(lab.setting("feddrm/1", column, "paper"), row.method, row.params)
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    paper = call("tables", "feddrm", "--budget", "paper").output.splitlines()
    assert [line.split()[0] for line in paper[:4]] == ["feddrm/1", "feddrm/2", "feddrm/3", "feddrm/4"]
    assert re.search("███░{7} +26/78", paper[0])
    assert paper[-1] == "Done of all cells, budget paper. Other runs: 1 with --budget small."
    assert max(map(len, paper[:-1])) <= 80
    assert {t["table"] for t in json.loads(call("tables", "feddrm", "--json").stdout)} == {
        *(f"feddrm/{n}" for n in (1, 2, 3, 4, "figure4", "figure5", "figure6", "figure7", "routing", "seeds"))
    }  # fmt: skip


def test_one_tables_cells(lab: Any, call: Any) -> None:
    run = lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    told = json.loads(call("tables", "1", "--json").stdout)
    cell = next(c for c in told["cells"] if (c["row"], c["column"]) == ("FedDRM", DIR))
    assert (cell["state"], cell["runs"]) == ("done", [run.id])
    assert "no cifar20" in told["no_data"]["cifar20"] or "not at hand" in told["no_data"]["cifar20"]
    text = call("tables", "1").output
    assert "fill the missing ones: fedbench train --table feddrm/1 --budget small" in text
    assert "not built" in text


def test_shipped_cells_count_and_are_marked(lab: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.results.checksum.predictions", lambda _: "0" * 64)
    shipped = lab.run(lab.setting("feddrm/1", DIR), "feddrm", started="2026-01-02T03:04:05Z", platform="Linux-x86_64")
    write(lab.store.home / "results" / "some.parquet", [row_of(shipped, lab.store, "Ada")])
    lab.store.remove("run", shipped.id)
    lab.run(lab.setting("feddrm/1", DIR), "fedavg")
    for words in (["tables"], ["tables", "feddrm"]):
        text = call(*words).output
        assert re.search(r"^feddrm/1 +▏░{9} +1 \+ 1°/78  System accuracy", text, re.MULTILINE)
        assert "Done of all cells (° shipped; --mine leaves them out), budget small." in text
        assert re.search(r"^feddrm/1 +▏░{9} +1/78  System", call(*words, "--mine").output, re.MULTILINE)
    told = json.loads(call("tables", "feddrm", "--json").stdout)[0]
    assert (told["states"]["small"]["done"], told["shipped"]["small"], told["shipped"]["paper"]) == (2, 1, 0)
    assert re.search(r"^FedDRM +done° ", call("tables", "1").output, re.MULTILINE)
    assert "(1° shipped; --mine leaves them out)" in call("tables", "1").output
    one = json.loads(call("tables", "1", "--json").stdout)
    assert (one["shipped"], [c["row"] for c in one["cells"] if c["shipped"]]) == (1, ["FedDRM"])
    assert "°" not in call("tables", "1", "--mine").output


def test_a_familys_tables_are_one_line_unless_their_paper_is_named(call: Any) -> None:
    lines = call("tables", "--budget", "smoke").output.splitlines()
    (line,) = (line for line in lines if line.startswith("flux/56 "))
    assert "0/264  3 tables, such as Mixed shifts on MNIST" in line
    assert not any(line.startswith("flux/57 ") for line in lines)
    alone = [line.split()[0] for line in call("tables", "flux", "--budget", "smoke").output.splitlines()]
    at = alone.index("flux/56")
    assert alone[at : at + 3] == ["flux/56", "flux/57", "flux/58"]


def test_a_table_too_wide_for_the_terminal_is_told_row_by_row(
    lab: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    monkeypatch.setenv("COLUMNS", "60")
    lines = call("tables", "1").output.splitlines()
    assert re.match(r"FedDRM +█░{9} +1/6  1 missing, 4 no data$", next(x for x in lines if x.startswith("FedDRM")))


def test_states_of_a_table_are_those_of_its_printed_columns(call: Any) -> None:
    head = call("tables", "flux/5").output.splitlines()[1]
    assert head.split() == ["Known", "association", "Test", "phase"]


def test_a_headline_table_on_another_data_set(call: Any) -> None:
    (told,) = json.loads(call("report", "-t", "3", "--dataset", "cifar10", "-f", "json").stdout)
    assert told["table"] == "flux/levels_cifar10"
    assert any(cell["reported"] for cell in told["cells"])


def test_another_budgets_cells_are_pointed_at(lab: Any, call: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR, "paper"), "feddrm")
    assert "1 cells are done at another budget: --budget paper" in call("tables", "1").output


CHECK = """
import sys, time
start = time.process_time()
from pathlib import Path
from fedbench.reports import render, table as tables
from fedbench.reports.layout.build import build
from fedbench.store import Store
import fedbench.cli.report, fedbench.cli.tables
grid = build(tables.load("feddrm/1"), "small", Store(Path(sys.argv[1])), [], compare=True)
for name in render.FORMATS:
    render.render([grid], name)
seconds = time.process_time() - start
heavy = sorted({"torch", "torchvision", "sklearn", "scipy", "matplotlib", "PIL"} & set(sys.modules))
print(grid.counts.get("done", 0), heavy, seconds)
"""


@pytest.fixture
def checked(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Prints the full feddrm/1 in all formats in a process of its own; returns how many seconds of a CPU that took."""
    rows = [row.method for row in tables_of("feddrm/1").rows]
    monkeypatch.setattr(methods, "names", lambda: rows)
    for name in ("cifar20", "cifar100"):
        lab.dataset(name)
    for job in lab.cells("feddrm/1").runs(State.MISSING):
        lab.run(job.setting, job.method, job.params)

    def run() -> float:
        done = subprocess.run(
            [sys.executable, "-c", CHECK, str(lab.store.home)],
            capture_output=True, text=True, env={**os.environ, "FEDBENCH_DATA": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        cells, rest = done.stdout.split(" ", 1)
        heavy, seconds = rest.rsplit(" ", 1)
        assert (cells, heavy) == ("78", "[]")
        return float(seconds)

    return run


def test_a_full_table_loads_nothing_heavy(checked: Callable[[], float]) -> None:
    assert checked() > 0


@pytest.mark.bench
def test_a_full_table_takes_less_than_a_second(checked: Callable[[], float]) -> None:
    """The faster of two: the machine may be busy with other tests."""
    assert min(checked(), checked()) < 1.0
