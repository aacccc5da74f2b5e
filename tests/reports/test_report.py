"""The command line of reports, what is said below a table of the cells that are shown, and claims with their pages."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from fedbench import protocol, reader, resources
from fedbench.cli import context
from fedbench.errors import FedbenchError
from fedbench.planner import table as tables
from fedbench.planner.table.check import facts
from fedbench.planner.table.claims import (
    FAILS,
    FAILS_SO_FAR,
    HOLDS,
    KINDS,
    OPEN,
    SO_FAR,
    UNDECIDED,
    Claim,
    Verdict,
    judge,
)
from fedbench.planner.table.noise import SeedNoise, ranks
from fedbench.planner.table.spec import Table
from fedbench.reports import measured_page as measured
from fedbench.reports.claims import HEADS, Claims, claims, summary
from fedbench.reports.layout.notes import departures, holding
from fedbench.reports.layout.tables import grids_of
from fedbench.reports.measured_page import PAGE, SENTENCES, page
from fedbench.reports.numbers.agreement import Tally
from fedbench.reports.render import FORMATS, render
from fedbench.results.frame import Frame
from fedbench.results.packs import with_fedbench
from fedbench.specs import Setting
from fedbench.store import Store
from tests.reports.conftest import DIR, SPC, Lab, answer, words_of, written
from tests.support.cli_user import good
from tests.support.latex import compiled, fits

Call = Callable[[str], Result]


@pytest.fixture
def call(lab: Lab) -> Call:
    return lambda words: answer(lab.store.home, *words.split())


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


def test_no_table_means_the_headline_ones_and_only_what_is_done(lab: Lab, call: Call, tmp_path: Path) -> None:
    def empty(words: str) -> Result:
        return answer(tmp_path / "empty", *words.split())

    result = empty("report --format json")
    assert result.stdout == empty("report --json").stdout
    headline = ["feddrm/1", "feddrm/2", "flux/levels_mnist", "flux/51", "pfedfda/6"]
    assert [t["table"] for t in json.loads(result.stdout)] == headline
    (table,) = json.loads(empty("report -t 1 --dataset digits -f json").stdout)
    assert {(c["group"], c["column"]) for c in table["cells"]} == {("digits", "Dir-0.3"), ("digits", "5-SPC")}
    assert {c["reported"] for c in table["cells"]} == {None}
    (table,) = json.loads(empty("report -t 3 --dataset cifar10 -f json").stdout)
    assert (table["table"], any(c["reported"] for c in table["cells"])) == ("flux/levels_cifar10", True)
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    shown = json.loads(call("report -t 1 -t flux/1 --only-done --json").stdout)
    assert [t["table"] for t in shown] == ["feddrm/1"]  # a table without a number is left out
    assert [(c["row"], c["group"]) for c in shown[0]["cells"]] == [("FedDRM", "CIFAR-10")]


def test_one_table_and_what_is_said_below_it(lab: Lab, call: Call, tmp_path: Path) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.4321, title="pFedFDA")
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", deviations=["lambda is another"])
    brief, full = call("report --table 1").output, call("report -t 1 --notes full").output
    for words in ("feddrm/1", "43.21", "fedbench train --table feddrm/1 --budget small", "more notes: --notes full"):
        assert words in brief
    assert "Budget small, not the paper's" in brief
    for words in ("lambda is another", "FedDRM a"):
        assert (words in full, words in brief) == (True, False)
    latex = call("report --table 1 --format latex").stdout
    assert latex.startswith("% Needs \\usepackage{booktabs}\n\\begin{table}")
    _, comments = latex.split("\\end{table}\n")
    assert all(line.startswith("% ") for line in comments.splitlines())
    assert "\n% To fill them: fedbench train --table feddrm/1 --budget small\n" in comments
    whole = call("report --table 1 --format latex --standalone").stdout
    assert whole.startswith("\\documentclass")
    assert whole.endswith("\\end{document}\n")
    assert call(f"report -t pfedfda/8 -o {tmp_path}/t.tex").stdout == ""
    assert "\\label{tab:t}" in (tmp_path / "t.tex").read_text()


def test_an_appendix_says_what_checklists_ask_for(lab: Lab, call: Call, tmp_path: Path) -> None:
    setting = lab.setting("feddrm/1", DIR)
    cpu = {"device": "cpu", "platform": "Plan9-4", "cpu": "AVX9", "threads": 2, "title": "Ditto"}
    lab.run(setting, "ditto", {"mu": 0.5}, deviations=["v is another"], libraries={"torch": "2.0"}, **cpu)
    lab.run(setting, "fedavg", libraries={"torch": "2.1"}, device="NVIDIA X", train_seconds=7200.0)
    assert call(f"report -t 1 --appendix -o {tmp_path}/a.tex").stdout == ""
    text = (tmp_path / "a.tex").read_text()
    assert call("report -t 1 --appendix").stdout == text
    lines = text.replace("\\item ", "").splitlines()
    wanted = (
        r"\subsection*{Table feddrm/1: System accuracy under label and covariate shift, in \%}",
        "A run trains for 400 rounds of 10 steps.",
        "Those of the paper train for 800 rounds of 10 steps.",
        "The network is a small CNN with a projection layer.",
        "Clients train by SGD with momentum 0.9 and weight decay 0.0005, with batches of 16 and a learning rate of "
        "0.01, which falls by a cosine over the rounds.",
        "Training and test images are cropped at random.",
        "Accuracies are means over the last 5 rounds of a run.",
        r"CIFAR-10~\cite{krizhevsky2009learning} is divided among 8 clients (Dir-0.3, shift high); a client trains on "
        r"70 \% of its images.",
        "Licences: CIFAR-10 (none stated).",
        r"Ditto (mu = 0.5): $\mu$ = 0.5, personal steps 5; by default personal epochs 5.",
        r"$\pm$ is the standard deviation (ddof 0) over the last 5 rounds of a run.",
        "Each number is of one seed (2025).",
        "1 run took 60 s of training on Plan9 AVX9 (2 threads).",
        "1 run took 2.0 h of training on NVIDIA X.",
        "1 run of these was made with torch 2.0.",
        "Ditto (mu = 0.5): v is another",
        r"\texttt{fedbench train {-}{-}table feddrm/1 {-}{-}budget small}, then \texttt{fedbench report}; "
        r"\texttt{fedbench results verify} trains a sample of runs out of result packs again.",
        r"The table repeats one of a paper~\cite{feddrm2026}.",
        "% @inproceedings{mcmahan2017communication,",
    )
    assert [line for line in wanted if line not in lines] == []
    of_rows = next(line for line in lines if "mcmahan2017communication" in line)
    assert r"FedAvg~\cite{mcmahan2017communication}" in of_rows.replace(",collins2022fedavg", "")
    both = call("report -t 1 -t 2 --appendix").stdout
    assert both.count("paragraph{Software}") == 1
    assert both.index("subsection*{All tables}") < both.index("paragraph{Software}") < both.index("{Table feddrm/1:")
    assert fits(compiled(tmp_path, r"\documentclass{article}\begin{document}\appendix\input{a}\end{document}", "m"))


def test_tables_lists_states_by_budget(lab: Lab, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    listed = {t["table"]: t for t in json.loads(call("tables --json").stdout)}
    assert listed["feddrm/1"]["number"] == "1"
    assert listed["feddrm/1"]["states"]["small"]["done"] == 1
    assert "done" not in listed["feddrm/1"]["states"]["paper"]
    assert listed["pfedfda/8"]["states"] == {"": {"done": 16}}
    text = call("tables").output
    assert re.search(r"^feddrm/1 +▏░{9} +1/78  small  System accuracy", text, re.MULTILINE)
    assert re.search(r"^pfedfda/8 +█{10} +16/16 .*Communication", text, re.MULTILINE)
    assert "5 is pfedfda/6." in text
    lines = text.splitlines()
    (line,) = (line for line in lines if line.startswith("flux: "))
    assert re.match(r"flux: \d+ tables without a number: 1, 4, 5, 6, ", line)
    assert not any(line.startswith(("flux/56 ", "flux/57 ")) for line in lines)
    alone = [line.split()[0] for line in call("tables flux --budget smoke").output.splitlines()]
    at = alone.index("flux/56")
    assert alone[at : at + 3] == ["flux/56", "flux/57", "flux/58"]
    monkeypatch.setenv("COLUMNS", "80")
    lab.run(lab.setting("feddrm/1", DIR, "paper"), "fedavgft")
    *paper, last = call("tables feddrm --budget paper").output.splitlines()
    assert re.match("feddrm/1 +▏░{9} +1/78", paper[0])
    assert last == "Done of all cells, budget paper. Other runs: 1 with --budget small."
    assert max(map(len, paper)) <= 80
    assert {t["table"] for t in json.loads(call("tables feddrm --json").stdout)} == {
        *(f"feddrm/{n}" for n in (1, 2, 3, 4, "figure4", "figure5", "figure6", "figure7", "routing", "seeds"))
    }


def test_one_tables_cells(lab: Lab, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(lab.setting("feddrm/1", DIR, "paper"), "feddrm")
    assert "covariate shift, budget paper in tf32" in call("tables 1").output, "the budget that has numbers"
    run = lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    said = call("tables 1").output
    assert "Numbers at other budgets: 1 at small (--budget small)." in said, "the paper's where equal"
    monkeypatch.setattr("fedbench.planner.counts.PAPER", "small")
    told = json.loads(call("tables 1 --json").stdout)
    cell = next(c for c in told["cells"] if (c["row"], c["column"]) == ("FedDRM", DIR))
    assert (cell["state"], cell["runs"]) == ("done", [run.id])
    assert "no cifar20" in told["no_data"]["cifar20"] or "not available" in told["no_data"]["cifar20"]
    text = call("tables 1").output
    assert "fill the missing ones: fedbench train --table feddrm/1 --budget small" in text
    assert "not built" in text
    head = call("tables flux/5").output.splitlines()[1]  # its printed columns
    assert head.split() == ["Known", "association", "Test", "phase"]
    monkeypatch.setenv("COLUMNS", "60")  # too narrow for the table
    (line,) = (line for line in call("tables 1").output.splitlines() if line.startswith("FedDRM"))
    assert re.match(r"FedDRM +█░{9} +1/6  1 missing, 4 no data$", line)


def test_shipped_cells_count_and_are_marked(lab: Lab, call: Call) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm")
    lab.pack(lab.store.home / "results", gone=True)
    lab.run(lab.setting("feddrm/1", DIR), "fedavg")
    text = call("tables feddrm").output
    assert re.search(r"^feddrm/1 +▏░{9} +1 \+ 1°/78  small  System accuracy", text, re.MULTILINE)
    assert "Done of all cells (° shipped; --no-shipped leaves them out), each table at its fullest budget." in text
    assert re.search(r"^feddrm/1 +▏░{9} +1/78  small  System", call("tables feddrm --no-shipped").output, re.MULTILINE)
    told = json.loads(call("tables feddrm --json").stdout)[0]
    assert (told["states"]["small"]["done"], told["shipped"]["small"], told["shipped"]["paper"]) == (2, 1, 0)
    text = call("tables 1").output
    assert re.search(r"^FedDRM +done° ", text, re.MULTILINE)
    assert "(1° shipped; --no-shipped leaves them out)" in text
    one = json.loads(call("tables 1 --json").stdout)
    assert (one["shipped"], [c["row"] for c in one["cells"] if c["shipped"]]) == (1, ["FedDRM"])
    assert "°" not in call("tables 1 --no-shipped").output


OWN = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last"
view = "crop"
unit = "percent"
rows = [
{ label = "Short", method = "fedavgft", params = { finetune_rounds = 1 } },
{ label = "Usual", method = "fedavgft" },
]
claim = [{ text = "Usual is best", kind = "best", rows = ["Usual"] }]
[[column]]
label = "IID"
dataset = "cifar10"
partition = { scheme = "iid", shift = "none" }
"""


def only(lab: Lab, table: Table) -> Setting:
    return lab.cells(table).settings["IID"][0]


def test_parameters_statistics_crops_and_the_command_are_those_of_the_users_table(lab: Lab, tmp_path: Path) -> None:
    about = lab.grid(written(tmp_path, OWN)).notes
    assert "Short: finetune_rounds = 1." in about
    assert "Usual: finetune_rounds = 50." in about
    text = (
        OWN + '[[column]]\nlabel = "Clients"\nmetric = "client_accuracy"\nstatistic = "clients"\ndataset = "cifar10"\n'
    )
    about = words_of(lab.grid(written(tmp_path, text + 'partition = { scheme = "iid" }\n')))
    assert any("; seed 2025" in line for line in about)
    assert any(line.startswith("IID: Value after the last round") for line in about)
    assert any(line.startswith("Clients: ± is the standard deviation (ddof 1) across clients") for line in about)
    table = written(tmp_path, OWN.replace('shift = "none" }', 'shift = "none" }\ntrain = { augment = "none" }'))
    grid = lab.grid(table)
    about = " ".join([*words_of(grid), *grid.notes])
    assert "Test augmentation: test images are untouched." in about
    assert "cropped" not in about
    table = written(tmp_path, OWN.replace('"IID"', "'$(rm) \"x\"'")).only(['$(rm) "x"'])
    assert """--column '$(rm) "x"'""" in lab.grid(table).command


def test_a_table_of_ones_own_says_what_it_measures_and_nothing_of_a_paper(lab: Lab, tmp_path: Path) -> None:
    table = written(tmp_path, OWN)
    lab.run(lab.setting("feddrm/1", DIR), "fedavgft")
    lab.run(only(lab, table), "fedavgft", value=0.5)
    lab.run(only(lab, table), "mine", value=0.25)
    grid = lab.grid(table, compare=True)
    for format in sorted({*FORMATS} - {"bibtex"}):  # the title of fedbench names a paper
        text = render([grid], format)
        assert [words for words in ("the paper", "official code", "olours") if words in text] == []
    assert json.loads(render([grid], "json"))[0]["claims"][0]["reported"] is None
    part = 'scheme = "iid", clients = 20, subsample = 0.5, validation = 0.2, unseen = 2'
    about = words_of(lab.grid(written(tmp_path, OWN.replace('scheme = "iid"', part))))
    assert any(line.startswith("system_accuracy: share of all clients' test images") for line in about)
    assert (
        "20 clients, of which 2 never train, each keeps 50 % of its training images, 20 % of each client's training "
        "images are held back for validation."
    ) in about
    two = OWN + '[[column]]\nlabel = "More"\ndataset = "cifar10"\npartition = { scheme = "iid", clients = 9 }\n'
    about = words_of(lab.grid(written(tmp_path, two)))
    assert "IID: 8 clients; More: 9 clients." in about
    assert not any("clients;" in line for line in words_of(lab.grid("feddrm/1")))
    table = written(tmp_path, OWN.replace('dataset = "cifar10"', 'dataset = "mnist"'))  # without the images
    for seeds, said in (((3, 4), "mean of 2 seeds: 3, 4"), ((), "seed 2025")):
        assert any(said in line for line in words_of(lab.grid(table, seeds=seeds)))


def test_a_users_table_that_reports_a_papers_numbers_says_how_it_differs(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "reported.csv").write_text(
        "table,row,group,column,value,std\nmine,Usual,,IID,50,\nmine,Short,,IID,4,\n"
    )
    coloured = OWN.replace('shift = "none"', 'shift = "low"')
    grid = lab.grid(written(tmp_path, coloured), compare=True)
    assert any(line.startswith("Colours are shifted once") for line in grid.notes)
    plain = lab.grid(written(tmp_path, OWN), compare=True)
    assert not any("olours" in line for line in plain.notes)
    assert any("Budget paper: 800 rounds" in line for line in plain.notes)
    with pytest.raises(FedbenchError, match="numbers in percent are judged in points, so they have no tolerance"):
        written(tmp_path, OWN.replace('"percent"', '"percent"\ntolerance = 2'))


def test_every_departure_is_said_of_a_table_and_of_the_partitions_that_it_is_about() -> None:
    table = tables.load("feddrm/1")
    shards = "Shards are cut after a stable sort"
    assert any(text.startswith(shards) for text in departures(table.only([SPC]), "small"))
    assert not any(text.startswith(shards) for text in departures(table.only([DIR]), "small"))
    assert any("permutes labels" in t for t in departures(tables.load("flux/16"), "small")) == (
        {c.partition["shift"] for c in tables.load("flux/16").measured} <= {"pyx", "pxy"}
    )
    # And is about facts that there are.
    precisions = ("", "fp32")
    loaded = [tables.load(name) for name in tables.names()]
    said = {text for one in loaded for by in precisions for text in departures(one, "paper", precision=by)}
    for name in protocol.names():
        for remark in protocol.load(name).deviates:
            assert set(remark.where) <= facts()
            assert all(isinstance(values, list) for values in remark.where.values())
            assert f"{remark.text[0].upper()}{remark.text[1:]}." in said
    for budget in ("paper", "small"):  # and every remark of a whole table holds for it
        for table in loaded:
            assert holding(table.remark, table, budget) == [remark.text for remark in table.remark]


@pytest.mark.parametrize(
    ("name", "other", "gone"),
    [
        ("pfedfda/2", "--dataset cifar10", "EMNIST, TinyImageNet"),
        ("ftw_erm/13", "--dataset digits", "one client, handful"),
        ("flux/6", "--budget smoke", "Twelve rounds"),
        ("pfedfda/1", "--column */100 %", "smaller sets inside"),
    ],
)
def test_what_is_said_of_some_cells_is_not_said_of_others(lab: Lab, name: str, other: str, gone: str) -> None:
    table, (what, _, value) = tables.load(name), other.partition(" ")
    part = {"--dataset": table.for_dataset, "--column": lambda key: table.only([key])}.get(what, lambda _: table)(value)
    whole = " ".join(lab.grid(table).notes)
    left = " ".join(lab.grid(part, value if what == "--budget" else "small").notes)
    for text in gone.split(", "):
        assert (text in whole, text in left) == (True, False)


@pytest.mark.parametrize("statistic", ["last_rounds", "clients"])
def test_one_value_has_no_standard_deviation(lab: Lab, tmp_path: Path, statistic: str) -> None:
    metric = "average_accuracy" if statistic == "last_rounds" else "client_accuracy"
    text = OWN.replace('"system_accuracy"', f'"{metric}"').replace('"last"', f'"{statistic}"')
    clients = 'scheme = "iid", clients = 1'
    text = text.replace('scheme = "iid"', clients).replace('"none" }', '"none" }\ntrain = { window = 1 }')
    table = written(tmp_path, text)
    lab.run(only(lab, table), "fedavgft", clients={0: 0.5}, value=0.5)
    grid = lab.grid(table)
    (cell,) = (line.entries[0] for line in grid.lines if line.label == "Usual")
    assert (cell.text, cell.spread, cell.value and cell.value.std) == ("50.00", "", None)
    assert statistic == "clients" or any(line.startswith("Value after the last round") for line in words_of(grid))
    assert all("±" not in render([grid], format).split("Usual")[1].split("\n")[0] for format in ("console", "latex"))


def test_a_claim_about_all_columns_does_not_hold_by_some(lab: Lab) -> None:
    setting = lab.setting("feddrm/1", DIR)
    table = tables.load("feddrm/1").only([DIR])
    for row in table.rows:
        lab.run(setting, row.method, dict(row.params) or None, value=0.9 if row.label == "FedDRM" else 0.1)
    ours, theirs = lab.grid(table, compare=True).verdicts[0]
    assert ours.claim.columns == []
    assert (ours.state, theirs.state) == ("holds so far", "holds so far")


@pytest.mark.shipped
def test_what_no_number_may_stand_without_is_below_every_print(store: Store) -> None:
    (grid,) = grids_of(["ftw_erm/1"], store, [], budget="paper")
    assert any("weigh by exact ratios" in line for line in grid.about)
    (grid,) = grids_of(["feddrm/1"], store, [], budget="small")
    assert any("cifar20, cifar100 images: JPEG copy" in line for line in grid.notes)
    assert "--notes full (images from copies or subsets)" in render([grid], "console")


ROWS, COLUMNS = ["a", "b", "c"], ["x", "y"]
FULL = {("a", "x"): 3.0, ("b", "x"): 2.0, ("c", "x"): 1.0, ("a", "y"): 2.0, ("b", "y"): 2.0, ("c", "y"): 4.0}


def check(claim: Claim, numbers: dict[tuple[str, str], float], best: str = "max") -> Verdict:
    return judge(claim, numbers, ROWS, COLUMNS, dict.fromkeys(COLUMNS, best))


@pytest.mark.parametrize(
    ("claim", "state", "held", "asked"),
    [
        (Claim("", "best", ["a"]), FAILS, 1, 2),
        (Claim("", "best", ["a"], columns=["x"]), HOLDS, 1, 1),
        (Claim("", "best", ["a"], columns=["x"], low=1, high=2), HOLDS, 1, 1),  # its lead is 1
        (Claim("", "best", ["a"], columns=["x"], low=1.1, high=2), FAILS, 0, 1),
        (Claim("", "best", ["a"], columns=["x"], low=0.1, high=0.9), FAILS, 0, 1),
        (Claim("", "best", ["a"], low=-2, high=9), HOLDS, 2, 2),  # at most so much behind the best
        (Claim("", "best", ["a"], ["b"]), HOLDS, 2, 2),  # of these alone
        (Claim("", "best", ["a", "b"], ["a", "b"], low=-1, high=9), HOLDS, 4, 4),  # at most so far apart
        (Claim("", "best", ["a"], ["b"], ["x"], low=1.5, high=9), FAILS, 0, 1),
        (Claim("", "top", ["c"], ["a", "c"], k=1), FAILS, 1, 2),
        (Claim("", "top", ["a"], k=2), HOLDS, 2, 2),
        (Claim("", "top", ["b"], k=2), HOLDS, 2, 2),  # b and a share the second rank in y
        (Claim("", "top", ["c"], k=2), FAILS, 1, 2),
        (Claim("", "above", ["a"], ["b"]), FAILS, 1, 2),  # equal is not above
        (Claim("", "above", ["a"], ["b", "c"], ["x"]), HOLDS, 2, 2),
        (Claim("", "below", ["c"], ["a", "b"], ["x"]), HOLDS, 2, 2),
        (Claim("", "falls", ["a"]), HOLDS, 1, 1),
        (Claim("", "falls"), FAILS, 1, 3),
        (Claim("", "rises", ["c"]), HOLDS, 1, 1),
        (Claim("", "between", ["b"], low=2, high=2), HOLDS, 2, 2),
        (Claim("", "between", ["a"], low=0, high=2.9), FAILS, 1, 2),
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=1, high=1.5), HOLDS, 1, 1),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=0.5, high=1.5), HOLDS, 1, 1),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=1.5, high=2), FAILS, 0, 1),
        (Claim("", "ratio", ["a"], ["b", "c"], ["x"], low=1, high=1.5), FAILS, 1, 2),
        (Claim("", "ratio", ["b"], ["a"], low=0.7, high=1), FAILS, 1, 2),
        (Claim("", "level", ["a", "b"], columns=["x", "y"], high=1), HOLDS, 2, 2),
        (Claim("", "level", columns=["x", "y"], high=1), FAILS, 2, 3),
    ],
)
def test_complete_numbers(claim: Claim, state: str, held: int, asked: int) -> None:
    verdict = check(claim, FULL)
    assert (verdict.state, verdict.held, verdict.made, verdict.total) == (state, held, asked, asked)


@pytest.mark.parametrize(
    ("claim", "left_out", "best", "state"),
    [
        (Claim("", "best", ["c"], columns=["x"]), "", "min", HOLDS),
        (Claim("", "best", ["a"], columns=["x"]), "", "min", FAILS),
        (Claim("", "best", ["a"], columns=["x"]), "b", "max", SO_FAR),
        (Claim("", "best", ["a"]), "b", "max", FAILS),  # a defeat is final
        (Claim("", "best", ["a"]), "bcy", "max", OPEN),
        (Claim("", "falls"), "y", "max", OPEN),
        (Claim("", "falls", ["a", "b"]), "bc", "max", SO_FAR),
    ],
)
def test_where_less_is_better_and_where_numbers_are_missing(claim: Claim, left_out: str, best: str, state: str) -> None:
    assert check(claim, {place: v for place, v in FULL.items() if not {*place} & {*left_out}}, best).state == state


def test_details_name_the_narrowest_and_the_worst() -> None:
    assert check(Claim("", "above", ["a"], ["b", "c"], ["x"]), FULL).detail == "smallest margin 1 at a and b, x"
    assert check(Claim("", "best", ["a"]), FULL).detail == "fails by 2 at a, y"


#: Two standard errors of a difference in column x are 2 sqrt(0.25 + 0.25) = 1.41, of one of its numbers 1.
NOISY = {(row, "x"): SeedNoise(1.0, 4) for row in ROWS}


@pytest.mark.parametrize(
    ("claim", "state", "detail"),
    [
        (Claim("", "best", ["a"], columns=["x"]), UNDECIDED, "1 ahead at a, x"),
        (Claim("", "best", ["b"], columns=["x"]), UNDECIDED, "1 short at b, x"),
        (Claim("", "best", ["c"], columns=["x"]), FAILS, "fails by 2 at c, x"),
        (Claim("", "top", ["a"], columns=["x"], k=2), HOLDS, "smallest margin 2 at a, x"),
        (Claim("", "above", ["a"], ["b", "c"], ["x"]), UNDECIDED, "1 ahead at a and b, x"),
        (Claim("", "above", ["a"], ["c"], ["x"]), HOLDS, "smallest margin 2 at a and c, x"),
        (Claim("", "below", ["a"], ["b", "c"], ["x"]), FAILS, "fails by 2 at a and c, x"),
        (Claim("", "between", ["b"], columns=["x"], low=1.5, high=9), UNDECIDED, "0.5 ahead at b, x"),
        (Claim("", "between", ["b"], columns=["x"], low=3.5, high=9), FAILS, "fails by 1.5 at b, x"),
        # The error of 3 / 2 is twice the root of (0.5 / 2)² + (0.5 * 3 / 4)².
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=0.7, high=9), UNDECIDED, "0.8 ahead at a and b, x"),
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=0.5, high=9), HOLDS, "smallest margin 1 at a and b, x"),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=2, high=9), UNDECIDED, "1 short at a and b, x"),
        (Claim("", "ahead", ["a"], ["b"], ["x"], low=3, high=9), FAILS, "fails by 2 at a and b, x"),
        # Nothing is known of column y, so that a verdict on it is none for good.
        (Claim("", "falls", ["a"]), SO_FAR, "smallest margin 1 at a, x to y (one seed: noise unknown)"),
        (Claim("", "best", ["a"]), FAILS_SO_FAR, "fails by 2 at a, y (one seed: noise unknown)"),
        (Claim("", "best", ["c"]), FAILS, "fails by 2 at c, x"),
    ],
)
def test_what_lies_within_the_noise_of_the_seeds_is_undecided(claim: Claim, state: str, detail: str) -> None:
    verdict = judge(claim, FULL, ROWS, COLUMNS, {}, noises=NOISY)
    assert (verdict.state, verdict.detail[: len(detail)]) == (state, detail)


@pytest.mark.parametrize(
    ("claim", "left_out", "state"),
    [
        (Claim("", "best", ["a"], columns=["x"]), "c", SO_FAR),  # the paper puts b beside it
        (Claim("", "best", ["a"], columns=["x"]), "b", OPEN),
        (Claim("", "best", ["c"], columns=["x"]), "b", FAILS),  # a defeat is final
        (Claim("", "top", ["a"], columns=["x"], k=2), "", HOLDS),
        (Claim("", "best", ["a"], columns=["x"], low=3, high=9), "b", FAILS),  # it leads c by 2
        (Claim("", "best", ["a"], columns=["x"], low=0, high=1), "b", OPEN),  # ... and may lead b by less
        (Claim("", "best", ["a"], columns=["y"]), "b", FAILS),  # the paper has no numbers there
    ],
)
def test_who_is_best_needs_the_rival_of_the_paper(claim: Claim, left_out: str, state: str) -> None:
    numbers = {place: value for place, value in FULL.items() if place[0] not in left_out}
    reported = {("a", "x"): 5.0, ("b", "x"): 4.0, ("c", "x"): 1.0}
    assert judge(claim, numbers, ROWS, COLUMNS, {}, reported=reported).state == state


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (Claim("", "ratio", ["a"], ["b"], ["x"], low=0, high=9), HOLDS),
        (Claim("", "ratio", ["a"], ["c"], ["x"], low=0, high=9), OPEN),
        (Claim("", "best", ["a"], columns=["x"]), SO_FAR),  # of a and b alone
        (Claim("", "falls", ["a"]), OPEN),
        (Claim("", "between", ["c"], columns=["x"], low=0, high=9), OPEN),  # a mean over two machines
    ],
)
def test_times_are_compared_on_one_kind_of_machine(claim: Claim, state: str) -> None:
    machines = {("a", "x"): {"CPU"}, ("b", "x"): {"CPU"}, ("c", "x"): {"CPU", "GPU"}, ("a", "y"): {"GPU"}}

    def comparable(cells: Iterable[tuple[str, str]]) -> bool:
        return len(set().union(*map(machines.__getitem__, cells))) == 1

    assert judge(claim, FULL, ROWS, COLUMNS, {}, comparable=comparable).state == state


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"kind": "ahead", "rows": ["a"], "low": 1},
            "a claim of kind ahead needs rows, than, low, high, and lacks than",
        ),
        ({"kind": "ahead", "rows": ["a"], "than": ["b"]}, "lacks low and high"),
        ({"kind": "top", "rows": ["a"]}, "needs rows, k, and lacks k"),
        ({"kind": "best"}, "needs rows, and lacks rows"),
        ({"kind": "above", "than": ["b"]}, "lacks rows"),
        ({"kind": "above", "rows": ["a", "b"], "than": ["b"]}, "'b' is in both rows and than"),
        ({"kind": "above", "rows": ["a"], "than": ["b"], "k": 2}, "does not read k"),
        ({"kind": "best", "rows": ["a"], "low": 1}, "needs both low and high, or neither"),
        ({"kind": "between", "low": 2, "high": 1}, "low = 2 above high = 1"),
        ({"kind": "level", "columns": ["x", "y"]}, "needs high, and lacks high"),
        ({"kind": "rises", "columns": ["x"]}, "goes along columns, and names one alone"),
    ],
)
def test_a_claim_without_what_its_kind_needs_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(FedbenchError, match=re.escape(says)) as caught:
        reader.read(Claim, {"text": "", **given}, "mine.toml, claim 1")
    assert str(caught.value).startswith("mine.toml, claim 1: ")


def test_the_page_lists_the_kinds_of_claims_with_what_they_need() -> None:
    page = (resources.TABLES / "claims.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|(.*?)\|(.*?)\|", page, flags=re.M)
    keys = {kind: (re.findall(r"`(\w+)`", needs), re.findall(r"`(\w+)`", reads)) for kind, needs, reads in listed}
    assert keys == {name: (list(kind.needs), list(kind.reads)) for name, kind in KINDS.items()}


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (4, "4 seeds (two standard errors: 1.4); about 8 seeds"),
        (1, "one seed (two standard errors: 2.8); about 8 seeds"),
    ],
)
def test_what_would_decide_is_told(seeds: int, words: str) -> None:
    noises = {(row, "x"): SeedNoise(1.0, seeds) for row in ROWS}
    verdict = judge(Claim("", "above", ["a"], ["b"], ["x"]), FULL, ROWS, COLUMNS, {}, noises=noises)
    assert verdict.detail == f"1 ahead at a and b, x, within the noise of {words} would decide it"
    assert (verdict.held, verdict.unsure, verdict.made) == (0, 1, 1)


@pytest.mark.parametrize(
    ("numbers", "stds", "marks"),
    [
        ([3, 2, 1], [None, None, None], [1, 2, 0]),  # of one seed each: as printed
        ([3, 3, 1], [None, None, None], [1, 1, 2]),
        ([3, 3], [None, None], [0, 0]),
        # Two standard errors of a difference of means of four seeds: 2 sqrt(2 * std² / 4).
        ([3, 2, 1], [1, 1, 1], [1, 1, 2]),
        ([3, 2, 1], [2, 2, 2], [0, 0, 0]),
        ([9, 3, 2, 1], [1, 1, 1, 0.1], [1, 0, 0, 0]),  # the second shares nothing, and has no mark of its own
        ([9, 3, 3, 1], [0.1, 0.1, 0.1, 0.1], [1, 2, 2, 0]),
        ([3, 2, 1], [0.1, 0.1, 0.1], [1, 2, 0]),
        ([9, 8, 7.5], [0.1, 0.1, 2], [1, 2, 1]),  # the third is not known to be worse than the first
        ([3, 2, 1], [1, None, 1], [1, 1, 2]),  # one seed is twice as far off as four
    ],
)
def test_marks_of_the_best_go_by_seeds(numbers: list[float], stds: list[float | None], marks: list[int]) -> None:
    assert ranks(numbers, [None if std is None else SeedNoise(std, 4) for std in stds], 2) == marks


def claimed(store: Store, *names: str, budget: str | None = None, every: bool = False) -> list[Claims]:
    return list(claims(names, Frame(store), [], budget, every=every))


def test_the_numbers_that_decide_are_told_and_how_ours_stand_beside_the_papers(lab: Lab) -> None:
    for column, values in {DIR: (0.6385, 0.25), SPC: (0.25, 0.5)}.items():
        setting = lab.setting("feddrm/1", column)
        lab.run(setting, "feddrm", value=values[0])
        lab.run(setting, "fedavgft", value=values[1])
        lab.run(setting, "fedavg", value=0.9)  # a row that the paper does not have
    (one,) = claimed(lab.store, "feddrm/1")
    assert (one.budget, one.scope, one.shipped) == ("small", "budget small", False)
    best, easier, *rest = one.judged
    assert (best.verdict.claim.text, best.verdict.state) == ("FedDRM is best in every column", "fails so far")
    assert best.numbers == {"FedDRM": "25.00", "FedAvgFT": "50.00"}
    by_column = {f"FedAvgFT at {DIR}": "25.00", f"FedAvgFT at {SPC}": "50.00"}
    assert (easier.verdict.state, easier.numbers) == ("fails so far", by_column)
    assert {stand.verdict.state for stand in rest} == {"not measured"}
    assert best.reported.state == "holds"
    assert (one.tally.reported, one.tally.measured, one.tally.close, one.tally.compared) == (66, 4, 1, 0)
    budget = "feddrm, at budget small: 2 fail so far, 2 not measured; "
    share = (
        "4 of 66 reported numbers measured: mean difference −17.4 points; 1 of 4 (25%) within 2 points; "
        "4 without a ± over seeds."
    )
    assert list(summary([one])) == ["feddrm: 4 claims.", budget + share]
    assert share in words_of(lab.grid("feddrm/1", compare=True))  # in the same words
    (none,) = claimed(lab.store, "feddrm/2", budget="smoke")
    assert none.tally == Tally(66)


@pytest.mark.parametrize(
    ("others", "state"), [((), "fails so far"), ((0.70, 0.60), "undecided"), ((0.651, 0.649), "fails")]
)
def test_seeds_that_are_elsewhere_say_what_one_seed_is_worth(lab: Lab, others: tuple[float, ...], state: str) -> None:
    """Here of another row of its column, in runs that no cell of the table reads."""
    setting = lab.setting("feddrm/4", "System accuracy/α = 0.3")
    lab.run(setting, "feddrm", value=0.64)
    lab.run(setting, "fedavgft", value=0.65)
    for n, value in enumerate(others):
        lab.run(replace(setting, seed=setting.seed + 1 + n), "fedavgft", value=value)
    (one,) = claimed(lab.store, "feddrm/4")
    best = next(stand for stand in one.judged if stand.verdict.claim.kind == "best")
    assert best.verdict.state == state
    assert ("noise unknown" in best.verdict.detail) == (not others)
    assert best.numbers == {"FedDRM": "64.00", "FedAvgFT": "65.00"}


@pytest.mark.parametrize("place", ["another column", "another table", "another budget"])
def test_one_seed_is_worth_what_is_known_of_its_table_else_of_its_method_under_the_protocol(
    lab: Lab, place: str
) -> None:
    lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.64)
    lab.run(lab.setting("feddrm/1", SPC), "fedavgft", value=0.65)
    elsewhere = {
        "another column": lab.setting("feddrm/1", DIR),
        "another table": lab.setting("feddrm/3", "System accuracy/m = 8"),
        "another budget": lab.setting("feddrm/1", DIR, "paper"),
    }[place]
    for n, value in enumerate((0.6, 0.7)):
        lab.run(replace(elsewhere, seed=elsewhere.seed + n), "fedavgft", value=value)
    (one,) = claimed(lab.store, "feddrm/1", budget="small")
    best = next(stand for stand in one.judged if stand.verdict.claim.kind == "best")
    if place == "another budget":  # of other training, so that it says nothing
        assert (best.verdict.state, best.numbers) == ("fails so far", {"FedDRM": "64.00", "FedAvgFT": "65.00"})
        return
    assert best.verdict.state == "undecided"
    # The standard deviation of 60 and 70 is 7.07, for either of the two numbers.
    assert f"two standard errors: {2 * (2 * 50) ** 0.5:.2g}" in best.verdict.detail


PAIR = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last"
unit = "fraction"
seeds = [1, 2, 3, 4, 5]
rows = [{ label = "FedAvg", method = "fedavg" }, { label = "Local", method = "local" }]
column = [{ label = "Dir-0.3", dataset = "cifar10", partition = { scheme = "dirichlet", alpha = 0.3 } }]
claim = [{ text = "FedAvg is above Local", kind = "above", rows = ["FedAvg"], than = ["Local"] }]
"""


@pytest.mark.parametrize(
    ("spreads", "state"), [((0.01, 0.02), "undecided"), ((0.01, ""), "undecided"), (("", ""), "holds so far")]
)
def test_one_seed_is_worth_the_papers_spread_where_nothing_else_is_known(
    lab: Lab, tmp_path: Path, spreads: tuple[object, object], state: str
) -> None:
    lines = [
        f"mine,{row},,Dir-0.3,{value},{std}"
        for row, value, std in zip(("FedAvg", "Local"), (0.8, 0.7), spreads, strict=True)
    ]
    (tmp_path / "reported.csv").write_text("\n".join(["table,row,group,column,value,std", *lines]))
    table = written(tmp_path, PAIR)
    setting = lab.setting(table, "Dir-0.3")
    lab.run(setting, "fedavg", value=0.52)
    lab.run(setting, "local", value=0.5)
    ours, _ = lab.grid(table, compare=True).verdicts[0]
    assert ours.state == state
    if state == "undecided":  # an unknown one is the usual one of the column
        known = [float(str(std or spreads[0])) for std in spreads]
        assert f"two standard errors: {2 * sum(std**2 for std in known) ** 0.5:.2g}" in ours.detail


def test_each_budget_with_a_number_stands_by_itself_with_every_declared_claim(lab: Lab) -> None:
    """Totals count a claim once: the levels of MNIST are declared as a whole and in halves."""
    declared = [c.text for name in tables.names() if name.startswith("feddrm/") for c in tables.load(name).claim]
    assert [stand.verdict.claim.text for one in claimed(lab.store, "feddrm") for stand in one.judged] == declared
    lab.run(lab.setting("feddrm/1", DIR, "smoke"), "feddrm")
    assert [one.budget for one in claimed(lab.store, "feddrm/1")] == [""]
    assert [one.budget for one in claimed(lab.store, "feddrm/1", budget="smoke")] == ["smoke"]
    for budget in ("small", "paper"):
        lab.run(lab.setting("feddrm/1", DIR, budget), "feddrm")
        lab.run(lab.setting("feddrm/1", DIR, budget), "fedala", value=0.25)
    assert [one.budget for one in claimed(lab.store, "feddrm/1")] == ["paper"], "the fullest, the paper's where equal"
    assert [one.budget for one in claimed(lab.store, "feddrm/1", every=True)] == ["paper", "small"]
    assert [one.budget for one in claimed(lab.store, "feddrm/1", budget="paper")] == ["paper"]
    (none,) = claimed(lab.store, "pfedfda/1", budget="smoke")
    assert (none.budget, {stand.verdict.state for stand in none.judged}) == ("", {"not measured"})
    assert [line.partition(";")[0] for line in summary(claimed(lab.store, "feddrm/1", every=True))] == [
        "feddrm: 4 claims.",
        "feddrm, at the paper's training: 1 holds so far, 3 not measured",
        "feddrm, at budget small: 1 holds so far, 3 not measured",
    ]
    (line,) = summary(claimed(lab.store, "flux/10", "flux/11", "flux/levels_mnist"))
    assert line == "flux: 3 claims; none is measured."


def test_the_command(tmp_path: Path) -> None:
    assert "feddrm: 4 claims; none is measured." in good("claims", "pfedfda/6", "feddrm/1", "--home", tmp_path).out
    assert good("claims", "scale", "--home", tmp_path).err == "no claims are declared of these tables\n"
    (first, _) = json.loads(good("claims", "pfedfda/6", "feddrm/1", "--json", "--home", tmp_path).out)
    assert (first["table"], first["budget"], bool(first["claims"])) == ("pfedfda/6", None, True)
    good("claims", "feddrm/1", "-o", tmp_path / "claims.md", "--home", tmp_path)
    assert "| · not measured | FedDRM is best in every column | feddrm/1 |" in (tmp_path / "claims.md").read_text()


def test_claims_are_a_line_each_with_their_verdict_first_and_those_without_numbers_are_counted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for method, value in (("feddrm", 0.5), ("fedala", 0.25)):
        lab.run(lab.setting("feddrm/1", DIR), method, value=value)

    def printed(*names: str) -> str:
        return answer(lab.store.home, "claims", *names).stdout

    best = ["✓ holds so far", "FedDRM is best in every column", "feddrm/1", "+25 ± ?", "small", "1 of 1"]
    of_paper = printed("feddrm").splitlines()
    declared = [claim for name in tables.names() if name.startswith("feddrm/") for claim in tables.load(name).claim]
    rows = [re.split(r"  +", line.strip()) for line in of_paper[of_paper.index("") + 2 : -1]]
    assert rows[0] == best
    assert len(rows) == len(declared)
    (first, *_), (headings, line, *_, footer) = (part.splitlines() for part in printed().split("\n\n"))
    assert first == "feddrm: 23 claims: 2 hold so far, 21 not measured; numbers measured: 8 of 198 at budget small."
    assert headings.split() == [*HEADS]
    assert re.split(r"  +", line.strip()) == best
    assert re.match(r"1\d\d more are not measured: fedbench claims PAPER lists them\.", footer)
    assert "on the paper's numbers: holds" in printed("feddrm/1")


@pytest.mark.slow
@pytest.mark.shipped
def test_all_claims_fit_into_eighty_lines(tmp_path: Path) -> None:
    assert len(good("claims", "--home", tmp_path).out.splitlines()) <= 80


PAPERS = sorted({path.parent.parent.name for path in with_fedbench()})


@pytest.mark.slow
@pytest.mark.shipped
@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_is_that_of_the_packs(paper: str) -> None:
    file = resources.TABLES / paper / PAGE
    assert file.exists()
    assert file.read_text() == page(paper), f"fedbench results page {paper} -o tables/{paper}/{PAGE}"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_is_short(paper: str) -> None:
    assert len((resources.TABLES / paper / PAGE).read_bytes()) <= 8 * 1024


def test_a_page_counts_the_numbers_of_packs_alone(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, value in (("feddrm", 0.5), ("fedala", 0.25)):
        lab.run(lab.setting("feddrm/1", DIR), method, value=value)
    pack = lab.pack(tmp_path / "feddrm" / "results")
    notes = [measured.Note("Of all."), measured.Note("Of one.", "feddrm/1")]
    monkeypatch.setattr(measured, "with_fedbench", lambda: [pack])
    monkeypatch.setattr(measured, "_sentences", lambda *_: notes)
    text = page("feddrm")
    assert all(
        words in text
        for words in ("- 2 runs by Ada, 2026-01-02", " (0%) within 2 points; ", "report --table NAME --compare")
    )
    (line,) = (line for line in text.splitlines() if line.startswith("| feddrm/1 |"))
    assert line == "| feddrm/1 | small | 2 of 78 | 66 | 2 | 2 | −25.1 | 0% |  |"
    assert "| ✓ holds so far | FedDRM is best in every column | feddrm/1 | +25 ± ? | small | 1 of 1 |" in text
    assert text.index("\n\nOf all.\n\n| table ") < text.index(line) < text.index("\n\n**feddrm/1**: Of one.\n")
    assert page("feddrm") == text
    about = {"runs": 1029, "by": ["Ada"], "machines": ["Linux"], "first": "2026-01-02", "last": "2026-01-02"}
    assert measured._pack({**about, "seconds": 9}) == "1,029 runs by Ada, 2026-01-02, 9 s of training on Linux."


def test_sentences_belong_to_tables_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "feddrm" / SENTENCES).parent.mkdir()
    monkeypatch.setattr(measured.resources, "TABLES", tmp_path)
    unknown = '[[note]]\ntable = "feddrm/9"\ntext = "x"\n'
    for sentences, says in ((unknown, "unknown table with numbers"), ("[[note]]\n", "text")):
        file.write_text(sentences)
        with pytest.raises(FedbenchError, match=says):
            measured._sentences("feddrm", {"feddrm/1"})
