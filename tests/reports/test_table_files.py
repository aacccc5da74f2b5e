"""Tables as data: complete, strict, true to the papers' own numbers; families; a mistake is one line with its place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedbench import methods, protocol
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.planner import table as tables
from fedbench.planner.cells import TEST_PHASE, UNLABELLED, find
from fedbench.planner.settings import sketch
from fedbench.planner.table.claims import FAILS, HOLDS, OPEN, judge
from fedbench.planner.table.family import expand, numbers, siblings
from fedbench.planner.table.reported import reported, tables_in
from fedbench.planner.table.spec import Table
from fedbench.ratios.divergence import DIVERGENCES
from fedbench.reports.layout.build import grid_of
from fedbench.reports.layout.grid import legend
from fedbench.reports.render import FORMATS, render
from fedbench.reports.render.style import Style
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs
from fedbench.results.run import State
from fedbench.store import Store
from tests.reports.conftest import Lab
from tests.reports.test_cells import MINE as COLUMNS
from tests.reports.test_paper_tables import COSTS
from tests.support.frames import refused

FAMILY = """
tables = ["7-8", "mean_ten", "mean_hundred"]
axes = ["kind", "dataset"]
title = "{dataset.name}, {kind.name}"
protocol = "feddrm"
statistic = "folds"
metric = "average_accuracy"
unit = "percent"
seeds = [3, 5]
rows = [{ label = "FedAvg", method = "fedavg" }, { label = "FedDRM", method = "feddrm" }]
[values]
dataset = [{ id = "cifar10", name = "Ten" }, { id = "cifar100", name = "Hundred" }]
kind = [{ name = "plain", none = ["plain/α = 0.1"], shares = [0.1, 0.3] }, { name = "more", none = [], shares = [0.3] }]
[[column]]
each = ["share in kind.shares"]
hidden = true
group = "{kind.name}"
label = "α = {share}"
dataset = "{dataset.id}"
partition = { scheme = "dirichlet", alpha = "{share}" }
[[column]]
label = "Mean"
of = ["*/α = *"]
spread = "sample"
[[undefined]]
rows = ["FedDRM"]
columns = "{kind.none}"
[own.8]
title = "Eight"
notes = ["Of table 8 alone."]
undefined = []
[own.mean_ten]
undefined = []
[own.mean_hundred]
undefined = []
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    path = tmp_path / "mine.family.toml"
    path.write_text(FAMILY)
    return path


def test_tables_are_the_combinations_of_the_axes_and_a_placeholder_alone_keeps_its_type(family: Path) -> None:
    told = {n: tables.load(f"{family}:{n}") for n in ("7", "8", "mean_ten", "mean_hundred")}
    assert {n: t.title for n, t in told.items()} == {
        "7": "Ten, plain",
        "8": "Eight",
        "mean_ten": "Ten, more",
        "mean_hundred": "Hundred, more",
    }
    assert {n: [c.dataset for c in t.measured] for n, t in told.items()} == {
        "7": ["cifar10"] * 2,
        "8": ["cifar100"] * 2,
        "mean_ten": ["cifar10"],
        "mean_hundred": ["cifar100"],
    }
    assert [t.notes for t in told.values()] == [[], ["Of table 8 alone."], [], []]
    table = tables.load(f"{family}:7")
    assert [c.partition["alpha"] for c in table.measured] == [0.1, 0.3]
    assert [c.key for c in table.columns] == ["plain/α = 0.1", "plain/α = 0.3", "Mean"]
    assert table.columns[-1].of == ["plain/α = 0.1", "plain/α = 0.3"]
    assert [c.key for c in table.printed] == ["Mean"]
    raw = tomllib.loads(FAMILY)
    assert siblings(raw, family, "mean_ten") == {"cifar10": "mean_ten", "cifar100": "mean_hundred"}
    assert siblings(raw, family, "8") == {"cifar10": "7", "cifar100": "8"}


def test_another_data_set_is_the_table_beside_it_and_an_own_one_keeps_what_is_reported_and_claimed() -> None:
    assert tables.on_dataset(tables.load("flux/12"), "cifar10").id == "flux/32"
    assert len(tables.load("ftw_erm/5").for_dataset("digits").no_numbers) == 12  # as many as on its own data
    assert tables.on_dataset(tables.load("flux/levels_mnist"), "fashion_mnist").id == "flux/levels_fashion_mnist"
    assert tables.on_dataset(tables.load("flux/12"), "mnist").id == "flux/12"
    kinds = [f"{kind} accuracy/α = {a}" for kind in ("System", "Average") for a in (0.3, 1.3, 2.3)]
    for name, labels in (("feddrm/1", ["digits/Dir-0.3", "digits/5-SPC"]), ("feddrm/4", kinds)):
        own = tables.load(name).for_dataset("digits")  # which takes the template's columns and reports nothing
        assert ([c.key for c in own.columns], {c.dataset for c in own.columns}) == (labels, {"digits"})
        assert (own.reported, own.claim) == ({}, [])
    whole, part = tables.load("feddrm/1"), tables.load("feddrm/1").for_dataset("cifar100")
    assert [c.key for c in part.columns] == ["CIFAR-100/Dir-0.3", "CIFAR-100/25-SPC"]
    assert part.reported == {place: v for place, v in whole.reported.items() if place[1].startswith("CIFAR-100/")}
    assert (len(part.reported), part.title) == (22, whole.title)
    assert part.claim
    assert all(set(c.columns) <= {"CIFAR-100/Dir-0.3", "CIFAR-100/25-SPC"} for c in part.claim)
    assert part.replaced, "the command that fills it needs --dataset"
    of_one = tables.load("feddrm/4")
    same = of_one.for_dataset("cifar10")
    assert (same.columns, same.claim, same.replaced) == (of_one.columns, of_one.claim, False)


def test_the_last_of_each_varies_fastest_and_every_family_names_its_tables_once(tmp_path: Path) -> None:
    raw = {
        "values": {"a": [1, 2], "b": [{"c": ["x", "y"]}]},
        "column": [{"each": ["a", "b", "d in b.c"], "label": "{a}{d}", "n": "{a}"}, {"label": "last"}],
    }
    filled = expand(raw, tmp_path)["column"]
    assert [c["label"] for c in filled] == ["1x", "1y", "2x", "2y", "last"]
    assert [c.get("n") for c in filled] == [1, 1, 2, 2, None]
    names = tables.names()
    assert len(names) == len(set(names))
    assert sorted(n for family in tables.families() for n in family) == sorted(names)
    assert numbers({"tables": ["3-5"], "axes": ["x"], "values": {"x": [1, 2, 3]}}, Path("f")) == ["3", "4", "5"]


BOTH = {("fedavg", "plain/α = 0.1"): (0.2, 0.4), ("fedavg", "plain/α = 0.3"): (0.6, 0.6)}


def _train(lab: Lab, table: Table, values: Mapping[tuple[str, str], tuple[float, float]] = BOTH) -> None:
    """One run a seed of (row's method, column key) -> what the seeds 3 and 5 come to."""
    for (method, column), both in values.items():
        for seed, value in zip((3, 5), both, strict=True):
            setting = lab.cells(table, "smoke", seeds=[seed]).settings[column][0]
            lab.run(setting, method, value=value)


def test_folds_means_over_hidden_columns_and_cells_without_a_number(lab: Lab, family: Path) -> None:
    """Hidden columns are measured with a ± of ddof 0, not printed; a mean over a cell without a number has none."""
    table = tables.load(f"{family}:7")
    _train(lab, table)
    cells = lab.cells(table, "smoke")
    assert cells.counts == {State.DONE: 2, State.MISSING: 1}
    assert {(j.method, j.setting.partition.options["alpha"]) for j in cells.runs(State.MISSING)} == {("feddrm", 0.3)}
    grid = lab.grid(table, "smoke")
    assert [h.label for h in grid.heads] == ["Mean"]
    assert [c.key for c in table.only([table.columns[0].key]).printed] == [table.columns[0].key]  # named, so printed
    fedavg, feddrm = (line.entries[0] for line in grid.lines)
    assert (fedavg.text, fedavg.spread) == ("45.00", "21.21")  # sample deviation of 30 and 60
    assert (feddrm.state, feddrm.symbol) == (State.UNDEFINED, "N/A")
    assert ("N/A", "not defined") in legend(grid)
    assert grid.counts == {"done": 2, "missing": 1}
    for form in ("latex", "markdown", "html", "csv", "json"):
        style = Style(all_cells=form == "latex")
        assert ("not defined" if form in ("csv", "json") else "N/A") in render([grid], form, style=style)


@pytest.mark.parametrize(("spread", "printed"), [("rms", "7.07"), ("mean", "5.00"), ("propagated", "5.00")])
def test_the_spread_of_a_mean_over_cells_with_one_each(lab: Lab, family: Path, spread: str, printed: str) -> None:
    """The parts have 10 (population deviation of 20 and 40) and 0."""
    family.write_text(FAMILY.replace('spread = "sample"', f'spread = "{spread}"'))
    table = tables.load(f"{family}:7")
    _train(lab, table)
    entry = lab.grid(table, "smoke").lines[0].entries[0]
    assert (entry.text, entry.spread) == ("45.00", printed)
    one = lab.grid(table, "smoke", seeds=[3]).lines[0].entries[0]
    assert (one.text, one.spread) == ("40.00", ""), "a single seed has no ±"


def test_means_over_means(lab: Lab, family: Path) -> None:
    nested = '[[column]]\nlabel = "Twice"\nof = ["Mean", "plain/α = 0.3"]\n[[undefined]]'
    family.write_text(FAMILY.replace("[[undefined]]", nested, 1))
    table = tables.load(f"{family}:7")
    _train(lab, table)
    assert [e.text for e in lab.grid(table, "smoke").lines[0].entries] == ["45.00", "52.50"]
    assert [c.key for c in table.only(["Twice"]).columns] == ["plain/α = 0.1", "plain/α = 0.3", "Mean", "Twice"]


def test_a_row_with_a_metric_of_its_own(lab: Lab, family: Path) -> None:
    own = 'method = "fedavg", metrics = { average_accuracy = "system_accuracy" } }'
    family.write_text(FAMILY.replace('method = "fedavg" }', own))
    table = tables.load(f"{family}:mean_ten")
    for setting in lab.cells(table, "smoke").settings["more/α = 0.3"]:
        for method in ("fedavg", "feddrm"):
            lab.run(setting, method, metrics={"average_accuracy": lambda t: 0.25, "system_accuracy": lambda t: 0.75})
    assert [line.entries[0].text for line in lab.grid(table, "smoke").lines] == ["75.00", "25.00"]


def test_cells_that_are_no_target(lab: Lab, family: Path) -> None:
    table = tables.load(f"{family}:mean_ten")
    _train(lab, table, {("fedavg", "more/α = 0.3"): (0.5, 0.5), ("feddrm", "more/α = 0.3"): (0.5, 0.5)})
    rows = "mean_ten,FedAvg,,Mean,53,2\nmean_ten,FedDRM,,Mean,51.5,2\n"
    family.with_name("reported.csv").write_text("table,row,group,column,value,std\n" + rows)
    grid = lab.grid(f"{family}:mean_ten", "smoke", compare=True)
    assert [line.entries[0].near for line in grid.lines if line.kind == "paper"] == [False, True]
    family.write_text(FAMILY + '[[doubtful]]\nrows = ["FedAvg"]\ncolumns = ["Mean"]\n')
    table = tables.load(f"{family}:mean_ten")
    assert set(table.trusted) == {("FedDRM", "Mean")}
    grid = lab.grid(table, "smoke", compare=True)
    assert [e.text for line in grid.lines if line.kind == "reported" for e in line.entries] == ["53.00?", "51.50"]
    assert [line.entries[0].near for line in grid.lines if line.kind == "paper"] == [None, True]


HEAD = 'title = "Mine"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\nunit = "percent"\n'
ROWS = 'rows = [{ label = "Mine", method = "fedavgft" }]\n'
COLUMN = 'column = [{ label = "IID", dataset = "cifar10", partition = { scheme = "iid" } }]\n'
MINE = HEAD + ROWS + COLUMN


@pytest.mark.parametrize("name", tables.names())
def test_a_shipped_table_is_complete_and_its_claims_stand_on_the_papers_numbers(name: str) -> None:
    """A column has all of the paper's numbers or none; claims are as declared; settings can be made at every budget."""
    table = tables.load(name)
    columns = {key for _, key in table.reported}
    asked = {
        (row.label, column.key)
        for row in table.rows
        for column in table.columns
        if not row.added and column.key in columns and row.label != column.relative_to
        if not table.undefines(row.label, column.key)
    }
    assert set(table.reported) == asked
    numbers = {place: value for place, (value, _) in table.trusted.items()}
    rows, keys = [r.label for r in table.rows if not r.added], [c.key for c in table.printed]
    assert table.claim or table.statistic in ("preset", "levels") or table.number or not table.reported
    for claim in table.claim:
        verdict = judge(claim, numbers, rows, keys, {c.key: str(c.best) for c in table.columns}, table.no_numbers)
        assert verdict.state == {True: HOLDS, False: FAILS, None: OPEN}[claim.reported], (claim.text, verdict.detail)
        assert verdict.made == (0 if claim.reported is None else verdict.total)
    for budget in () if table.counted else protocol.load(table.protocol).budgets:
        assert all(sketch(table, column, budget).rounds >= 1 for column in table.measured)


def test_the_papers_numbers_by_table() -> None:
    for name, cells, row, column, value in (
        ("feddrm/1", 66, "FedDRM", "CIFAR-10/Dir-0.3", (63.85, 0.18)),
        ("pfedfda/6", 14, "FedPAC", "One after another/Total runtime", (146.3, None)),
        ("flux/1", 131, "FLUX-prior", "Office-Home/Test phase", (38.9, 1.1)),
        ("flux/figure10", 12, "T = 0.005", "Test phase/CIFAR-10", (42.43, None)),
    ):
        found = tables.load(name).reported
        assert (len(found), found[row, column]) == (cells, value)


@pytest.mark.parametrize("name", [family[0] for family in tables.families()])
def test_a_table_prints_before_anything_is_trained(lab: Lab, name: str) -> None:
    table = tables.load(name)
    lab.dataset("mnist")
    grid = lab.grid(table, compare=True, frame=Frame(lab.store, Packs([])))
    built = [row for row in table.rows if row.method in methods.names()]
    no_test_phase = {row.label for row in built if UNLABELLED not in declarations.of(row.method).serves}
    defined = [
        c.key
        for row in table.rows
        for c in table.measured
        if not table.undefines(row.label, c.key)
        and not (row.label in no_test_phase and row.reads(c).metric in TEST_PHASE)
    ]
    assert sum(grid.counts.values()) == len(defined)
    assert (len(grid.heads), "done" in grid.counts) == (len(table.printed), table.counted)
    assert table.counted or not any(line.filled for line in grid.lines if line.kind != "reported")
    for form in FORMATS:
        assert table.id in render([grid], form).replace("\\", "") or form in ("latex", "bibtex", "macros")


def test_tables_by_number_name_and_file_and_table_4_repeats_1_and_2(tmp_path: Path) -> None:
    both = tables.load("feddrm/4").reported
    for name, group in (("feddrm/1", "System accuracy"), ("feddrm/2", "Average accuracy")):
        for (row, column), value in tables.load(name).reported.items():
            if column == "CIFAR-10/Dir-0.3":
                assert both[row, f"{group}/α = 0.3"] == value
    assert [tables.load(n).id for n in "12345"] == ["feddrm/1", "feddrm/2", "flux/levels_mnist", "flux/51", "pfedfda/6"]
    (tmp_path / "mine.toml").write_text(MINE)
    table = tables.load(str(tmp_path / "mine.toml"))
    assert (table.id, table.reported, table.columns[0].decimals) == ("mine", {}, 2)
    assert table.columns[0].metric == "system_accuracy"
    (tmp_path / "reported.csv").write_text("table,row,group,column,value,std\nmine,Mini,,IID,1,\n")
    with pytest.raises(FedbenchError, match=r"unknown row of table mine .*'Mini'; did you mean"):
        _ = tables.load(str(tmp_path / "mine.toml")).reported
    for line, says in (
        ("nine,Mini,,IID,1,", "unknown table in .*, line 2 'nine'"),
        ("mine,Mine,,IID,\u0668\u0660,", "value must be a number"),
        ("mine,Mine,,IID,800,", "value must lie in 0..1"),
    ):
        (tmp_path / "reported.csv").write_text(f"table,row,group,column,value,std\n{line}\n", encoding="utf-8")
        refused(says, lambda: tables.load(str(tmp_path / "mine.toml")).reported)


#: A family whose axes and lists may grow without end.
SMALL = """
tables = ["1-2"]
axes = ["dataset"]
title = "{dataset.id}"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
rows = [{ label = "Mine", method = "fedavgft" }]
[values]
dataset = [{ id = "digits", n = ["1"] }, { id = "mnist", n = ["2"] }]
many = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[[column]]
each = ["n in dataset.n"]
label = "{n}"
dataset = "{dataset.id}"
partition = { scheme = "iid" }
"""
TITLE, EACH = 'title = "{dataset.id}"', 'each = ["n in dataset.n"]'
TABLES, AXES = 'tables = ["1-2"]', 'axes = ["dataset"]'
TENFOLD = ", ".join(f'"{name} in many"' for name in "abcdefghijkn")
LONG = SMALL.replace('id = "digits"', f'id = "{"x" * 10**5}"', 1)
#: name -> the text of a right table, or family (with the number of one of its tables); of a shipped table, its name.
RIGHT = {
    "mine": MINE,
    "columns": COLUMNS,
    "costs": COSTS,
    "family:7": FAMILY,
    "small:2": SMALL,
    "small:1": SMALL,
    "long:1": LONG,
}
RIGHT |= {name: tables.load(name).path.read_text() for name in ("ftw_erm/11", "flux/2", "flux/4", "flux/9")}
CLIENT = 'label = "IID", metric = "client_accuracy", statistic = "last", client = '
ROW = '"Mine", method = "fedavgft"'


@pytest.mark.parametrize(
    ("of", "old", "new", "says"),
    [
        ("mine", 'title = "Mine"', 'titel = "Mine"', "unknown key in ...mine.toml 'titel'; did you mean 'title'"),
        ("mine", 'title = "Mine"', "", "lacks 'title'"),
        ("mine", 'title = "Mine"', 'title = "Mine', "mine.toml is not valid TOML"),
        ("mine", "", "replaced = true", "unknown key 'replaced'"),
        ("mine", 'method = "fedavgft"', 'metod = "fedavgft"', "unknown key in ...row 1 'metod'; did you mean 'method'"),
        ("mine", ', method = "fedavgft"', "", "row Mine needs a method"),
        ("mine", '"system_accuracy"', '"sistem_accuracy"', "unknown metric ...did you mean 'system_accuracy'"),
        ("mine", '"last_rounds"', '"last_round"', "unknown statistic ...did you mean 'last_rounds'"),
        ("mine", '"percent"', '"percents"', "unknown unit ...did you mean 'percent'"),
        ("mine", "scheme =", "schema =", "unknown key in ...column 1, partition 'schema'; did you mean 'scheme'"),
        ("mine", ', dataset = "cifar10"', "", "IID lacks a dataset"),
        ("mine", '"feddrm"', '"../nowhere"', "unknown protocol '../nowhere'"),
        ("mine", ROWS, "rows = []\n", "has no rows"),
        ("mine", ROWS, 'rows = "some"\n', "unknown rows in"),
        ("mine", f"{{ label = {ROW} }}", f"{{ label = {ROW} }}, {{ label = {ROW} }}", "two rows are called 'Mine'"),
        ("mine", "", 'claim = [{ text = "x", kind = "best", rows = ["Min"] }]', "unknown row ...'Mine'"),
        ("mine", "", 'claim = [{ text = "x", kind = "bets" }]', "unknown claim kind ...did you mean 'best'"),
        ("mine", "", "budget.small.round = 3", "unknown key ...budget.small 'round'...'rounds'"),
        ("mine", "", 'budget.small.precision = "bf16"', "'precision'"),
        (
            "mine",
            "",
            "remark = [{ text = 'x', where = { shfit = ['low'] } }]",
            "unknown fact in ...'shfit'; did you mean 'shift'",
        ),
        ("mine", "", "remark = [{ text = 'x', where = { shift = 'low' } }]", "where.shift must be a list, not 'low'"),
        ("mine", ROW, f"{ROW}, train = {{ lrr = 0.5 }}", "unknown key ...row 1, train 'lrr'; did you mean 'lr'"),
        (
            "mine",
            ROW,
            f"{ROW}, budget = {{ smal = {{ rounds = 3 }} }}",
            "unknown budget ...row Mine 'smal'; did you mean 'small'",
        ),
        ("mine", ROW, f"{ROW}, budget = {{ small = {{ seed = 3 }} }}", "unknown key ...'seed'"),
        (
            "mine",
            'label = "IID"',
            'label = "IID", metric = "client_accuracy", statistic = "last"',
            "IID: client_accuracy needs a client; client = 1 is the first",
        ),
        *(
            (
                "mine",
                'label = "IID"',
                f'label = "IID", metric = "{metric}", statistic = "{over}"',
                f"IID: statistic {over} does not go with {metric}; 'fedbench metrics'",
            )
            for over, metric in (
                ("clients", "average_accuracy"),
                ("unseen", "beta"),
                ("last_rounds", "client_accuracy"),
                ("rounds", "client_auc"),
            )
        ),
        ("mine", 'label = "IID"', f"{CLIENT}0", "IID: clients are counted from 1, not 0"),
        (
            "mine",
            'label = "IID"',
            f"{CLIENT}2".replace("last", "clients"),
            "a client goes with statistic last or best_tested",
        ),
        ("mine", 'label = "IID"', f"{CLIENT}2".replace("client_", "average_"), "average_accuracy is no client's"),
        ("mine", "", "seeds = [-1]", "mine.toml, seeds 1 must lie in 0 to 4,294,967,295, not -1"),
        ("mine", "", "decimals = 2000000000", "mine.toml, decimals must lie in 0 to 15, not 2000000000"),
        ("mine", "", "budget.small.lr = 'x'", "mine.toml, budget.small.lr must be a number, not 'x'"),
        (
            "mine",
            f'"feddrm"\n{HEAD[HEAD.index("metric") :]}{ROWS}',
            f'1\n{HEAD[HEAD.index("metric") :]}rows = "all"\n',
            "mine.toml, protocol must be text, not 1",
        ),
        ("mine", '"iid"', '"iid", alpha = "x"', "column 1, partition.alpha must be a number"),
        ("mine", '"Mine", ', '"Mine", params = { a = [1] }, ', "row 1, params.a must be text or"),
        (
            "columns",
            '"Accuracy/Little"]',
            '"Accuracy/Litle"]',
            "unknown column in ...Gain, of...did you mean 'Accuracy/Little'",
        ),
        (
            "columns",
            '"Mean", of = ["Accuracy/Much"',
            '"Mean", of = ["Mean"',
            "unknown column before it in ...Mean, of 'Mean'",
        ),
        ("columns", 'relative_to = "Local"', 'relative_to = "Locl"', "unknown row in ...did you mean 'Local'"),
        ("columns", 'relation = "percent"', 'relation = "per cent"', "unknown relation in ...did you mean 'percent'"),
        ("columns", ', relation = "percent"', "", "relative_to (a row) and relation go together"),
        (
            "columns",
            'label = "Mean"',
            'label = "Mean", dataset = "cifar10"',
            "Mean is a mean over columns, so it has no data set",
        ),
        ("columns", 'label = "Last two"', 'label = "Last two", relation = "percent"', "go with 'of'"),
        ("columns", "clients = [2, 3]", "clients = [3, 2]", "clients are [first, last], counted from 1, not [3, 2]"),
        ("columns", "clients = [2, 3]", "clients = [0, 3]", "counted from 1"),
        ("columns", "clients = [2, 3]", "clients = [2]", "[first, last]"),
        (
            "columns",
            "clients = [2, 3]",
            'clients = [2, 3], statistic = "last_rounds"',
            "clients go with statistic clients or weighted_clients",
        ),
        (
            "columns",
            "small = { rounds = 44 }",
            "smal = { rounds = 44 }",
            "unknown budget ...column Accuracy/Little 'smal'",
        ),
        ("columns", '"Last two"', '"L", stands_in = { mnist = { clint = 3 } }', "unknown key ...mnist 'clint'"),
        ("costs", '"ifca"', '"ifac"', "unknown method in ..., row A 'ifac'; did you mean 'ifca'"),
        ("costs", "clusters = 5", "clusters = 0", "column 1, costs.clusters must lie in 1 to 1,000,000,000, not 0"),
        ("costs", '"lenet5_flux"', '"lenet55"', "unknown model 'lenet55'; did you mean 'lenet5'"),
        ("costs", 'method = "ifca"', 'model = "lenet5", classes = 10, shape = [28, 28, 1]', "row A needs model"),
        (
            "costs",
            COSTS[COSTS.index("costs =") :],
            "",
            "row A needs model, shape and classes, or everywhere a method with costs",
        ),
        ("ftw_erm/11", '"two"', '"tow"', "unknown preset in ...'tow'; did you mean 'two'"),
        ("ftw_erm/11", "smallest = { train = 6000, test = 1000 }\n", "", "lacks 'smallest'"),
        (
            "ftw_erm/11",
            'side = "test"',
            'side = "tset"',
            "row Client 1, test needs a client (from 1) and side = 'train' or 'test'",
        ),
        ("ftw_erm/11", "category = 3\n", "", "Class/3: class_count needs a category: the class, from 0"),
        ("ftw_erm/11", '"class_count"', '"class_counts"', "unknown metric ...did you mean 'class_count'"),
        ("ftw_erm/11", '"class_count"', '"flip_probability"', "flip_probability is about no category"),
        ("flux/2", '"mark"', '"marks"', "unknown metric in ... 'marks'; did you mean 'mark'"),
        ("flux/2", 'unit = "marks"', 'unit = "count"', "unit marks and statistic marks go together"),
        ("flux/2", "marks = { yes", "marks = { yet", "unknown mark in ..., column Category/CFL 'yet'; did you mean"),
        (
            "flux/2",
            '["pFedMe", "APFL"]',
            '["pFedME", "APFL"]',
            "unknown row in ..., column Category/PFL, marks 'pFedME'; did you mean 'pFedMe'",
        ),
        ("flux/2", 'method = "ifca"', 'method = "ifac"', "unknown method in ..., row IFCA 'ifac'"),
        ("mine", 'label = "IID"', 'label = "IID", marks = { yes = ["Mine"] }', "marks go with statistic marks"),
        ("flux/4", 'statistic = "pairs"', 'statistic = "folds"', "unknown metric in ... 'xi_mean'"),
        (
            "flux/4",
            "[[column]]",
            '[[column]]\nstatistic = "folds"',
            "statistic pairs is all of a table's columns' or none's",
        ),
        ("flux/9", "classes = 10\n", "", "Level 1 needs a level and classes"),
        ("flux/9", 'partition = { shift = "{shift.id}" }', "", "lacks a shift"),
        ("family:7", '"7-8"', '"7-9"', "names 5 tables, but its axes make 4"),
        ("family:7", '"7-8"', '"7", "7"', "names 3 tables, but its axes make 4"),
        ("family:7", "{dataset.name}", "{dataset.nam}", "unknown value in ...family.toml 'dataset.nam'"),
        ("family:7", "[own.8]", "[own.9]", "unknown table in ...own '9'"),
        ("family:7", '"kind", "dataset"]', '"kinds", "dataset"]', "unknown values in ... 'kinds'; did you mean 'kind'"),
        (
            "family:7",
            "share in kind.shares",
            "share in kind.name",
            "each = 'share in kind.name' needs a list, not 'plain'",
        ),
        ("family:7", '"sample"', '"simple"', "unknown spread ...'simple'; did you mean 'sample'"),
        ("family:7", '"*/α = *"', '"*/β = *"', "unknown column in ... of '*/β = *'"),
        (
            "family:7",
            'rows = ["FedDRM"]',
            'rows = ["FedDRN"]',
            "unknown row in ..., undefined 'FedDRN'; did you mean 'FedDRM'",
        ),
        (
            "family:7",
            'none = ["plain/α = 0.1"]',
            'none = ["plain/α = 0.2"]',
            "unknown column in ..., undefined 'plain/α = 0.2'",
        ),
        ("family", "", "", "family.toml is a family of tables; ...family.toml:7 for example; it has 7, 8"),
        ("family:9", "", "", "family.toml has no table '9'; ...:7 for example"),
        ("small:2", TABLES, 'tables = ["1-999999999"]', "has more than 1,000 tables"),
        ("small:2", TABLES, 'tables = ["2-1"]', "names 0 tables, but its axes make 2"),
        ("small:2", TABLES, f'tables = ["1-{"9" * 5000}"]', "names 1 tables, but its axes make 2"),
        ("small:2", AXES, 'axes = ["many", "many"]', "axes holds 'many' twice"),
        ("small:2", AXES, 'axes = ["many", "dataset"]', "names 2 tables, but its axes make 20"),
        ("small:2", '{ id = "mnist"', '{ no = "mnist"', "values.dataset 2 lacks 'id'"),
        ("small:2", '{ id = "mnist"', "{ id = 1", "values.dataset 2 lacks 'id'"),
        (
            "small:2",
            EACH,
            'each = ["n of dataset.n"]',
            "each = 'n of dataset.n' is neither 'name' nor 'name in other.key'",
        ),
        ("small:2", EACH, f"each = [{TENFOLD}]", "makes too large a table"),
        ("small:2", TITLE, f'title = "{"{many}" * 3}"', "{many} is a list, which cannot stand within a text"),
        ("small:2", TITLE, f'{TITLE}\nown.2.title = ["x"]', "table 2, title must be text"),
        ("small:1", 'id = "digits"', 'id = "{dataset.id}"', "unknown dataset '{dataset.id}'"),
        ("long:1", TITLE, f'title = "{"{dataset.id} " * 10**4}"', "makes too large a table"),
    ],
)
def test_a_faulty_table_is_one_line(tmp_path: Path, of: str, old: str, new: str, says: str) -> None:
    """The text with `new` in place of `old` (at its end where that is nothing); `...` leaves something out."""
    name, colon, number = of.partition(":")
    text = RIGHT.get(of) or RIGHT["family:7"]
    assert old in text
    file = tmp_path / ("mine.family.toml" if "tables = [" in text else "mine.toml")
    file.write_text(text.replace(old, new, -1 if "/" in name else 1) if old else f"{text}{new}\n")
    number = number or ("" if not text.startswith("\ntables") or name == "family" else "1")
    at, line = 0, refused("", lambda: tables.load(f"{file}{colon}{number}"))
    for piece in says.split("..."):
        assert (at := line.find(piece, at)) >= 0, (piece, line)


def test_a_placeholder_in_a_value_is_text_and_not_filled_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.family.toml"
    path.write_text(SMALL.replace('{ id = "digits"', '{ name = "{dataset.name}", id = "digits"', 1))
    assert tables.load(f"{path}:1").title == "digits"


CSV = "table,row,group,column,value,std\n"


def test_values_of_the_tables_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "reported.csv"
    assert reported(file, ["1"], [], []) == {}, "there is no file"
    file.write_text(CSV + "1,A,,x,1,\n\n1,A,G,x,2.5,0.5\n2,A,,x,9,\n", encoding="utf-8-sig")
    assert reported(file, ["1"], ["A"], ["x", "G/x"]) == {("A", "x"): (1.0, None), ("A", "G/x"): (2.5, 0.5)}
    assert reported(file, ["3"], [], []) == {}
    file.write_text("value,std,row,column,group,table\n1,,A,x,,1\n")  # columns in any order
    assert reported(file, ["1"], ["A"], ["x"]) == {("A", "x"): (1.0, None)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have one column 'table'; its first line: table,row,group,column,value,std"),
        ("table,row,group,column,value\n1,A,,x,1\n", "must have one column 'std'"),
        (CSV.replace("row", "rows"), "unknown column in reported.csv 'rows'; did you mean 'row'?"),
        (CSV.replace("\n", ",std\n"), "must have one column 'std'"),
        (CSV + "1,A,,x,1\n", "reported.csv, line 2 has 5 values, not 6"),
        (CSV + "1,A,,x,much,\n", "line 2: value must be a number, not 'much'"),
        (CSV + "1,A,,x,nan,\n", "line 2: value must be a number, not 'nan'"),
        (CSV + "1,A,,x,1,inf\n", "line 2: std must be a number, not 'inf'"),
        *((CSV + f"1,A,,x,{no},\n", f"value must be a number, not '{no}'") for no in ("8_0", "0x8", "8%", "1e", ".")),
        (CSV + "1,A,,x,1,1_0\n", "line 2: std must be a number, not '1_0'"),
        (CSV + "1,A,,x,800,\n", "line 2: value must lie in 0..100, as x does, not '800'"),
        (CSV + "1,A,,x,-1,\n", "line 2: value must lie in 0..100, as x does, not '-1'"),
        (CSV + "1,A,,x,1,\n11,A,,x,1,\n", "unknown table in reported.csv, line 3 '11'"),
        (CSV + "1,A,,x,1,-1\n", "line 2: std cannot be negative, as '-1' is"),
        (CSV + "1,A,,x,1,\n1,A,,x,2,\n", "line 3: A, x of table 1 has a value already"),
        (CSV + "1,B,,x,1,\n", "unknown row of table 1 in reported.csv, line 2 'B'; did you mean"),
        (CSV + "1,A,G,x,1,\n", "unknown column of table 1 in reported.csv, line 2 'G/x'"),
        (CSV + '1,A,,x,"1,\n', "is not valid CSV (unexpected end of data)"),
        (CSV + "1,\xff,,x,1,\n", "is not UTF-8 text"),
        (None, "is a folder, where a CSV file should be"),
    ],
)
def test_wrong_lines_of_reported_csv(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "reported.csv"
    file.mkdir() if text is None else file.write_bytes(text.encode("latin-1"))
    assert says in refused("", lambda: reported(file, ["1"], ["A", "Bb"], ["x"], {"x": 100.0}, ["1", "2"])).replace(
        str(file), "reported.csv"
    )


def test_tables_of_reported_csv_are_those_of_the_folder_and_no_other_files(tmp_path: Path) -> None:
    for name in ("1", "protocol", "figures", "measured", "references"):
        (tmp_path / f"{name}.toml").write_text('reported_in = ["7"]' if name == "1" else "")
    assert sorted(tables_in(tmp_path)) == ["1", "7"]


@pytest.mark.shipped
def test_every_cell_that_counts_as_done_prints_and_no_other(store: Store) -> None:
    """Of the first table of each file, from the packs alone: hidden columns and means too. Table 4's snapshots are in
    no pack."""
    frame, done = Frame(store, Packs.of(store)), (State.DONE, State.STALE)
    off, printed = [], 0
    for table in (tables.load(names[0]) for names in tables.families()):
        cells = find(table, "small", frame, [])
        if table.counted or not any(cell.state in done for cell in cells.all):
            continue
        shown = replace(table, column=[replace(column, hidden=False) for column in table.columns])
        lines = grid_of(replace(cells, table=shown)).lines
        for cell, entry in zip(cells.all, (e for line in lines for e in line.entries), strict=True):
            off += [(table.id, cell.row.label, cell.column.key)] if (cell.state in done) != bool(entry.text) else []
            printed += bool(entry.text)
    assert off == []
    assert printed > 2000
    assert find(tables.load("flux/4"), "small", frame, []).counts[State.NOT_PACKED] == 9


def test_ftw_erms_scenarios_hold_what_they_assume_and_each_has_its_weights() -> None:
    """Table 5; Table 4's functions are those that HDRM has."""
    table, presets = tables.load("ftw_erm/5"), protocol.load("ftw_erm").presets
    run = {
        (r.params.get("case"), c.partition["preset"])
        for r in table.rows
        for c in table.columns
        if not table.undefines(r.label, c.key) and not r.added
    }
    assert run == {("no_cs", "no_shift"), ("cs_one", "one_shift"), ("cs_both", "two"), ("cs_multi", "five")}
    assert {c.client for c in table.columns} == {1}
    shifted = {
        name: [p != q for p, q in zip(presets[name]["train_mix"], presets[name]["test_mix"], strict=True)]
        for _, name in run
    }
    two = {"no_shift": [False, False], "one_shift": [True, False], "two": [True, True]}
    assert shifted == {**two, "five": [True] * 5}
    first, second = presets["no_shift"]["train_mix"]
    assert first != second
    assert {r.params["divergence"] for r in tables.load("ftw_erm/4").rows if not r.added} == set(DIVERGENCES)
