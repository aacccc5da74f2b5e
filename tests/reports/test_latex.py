"""Tables and numbers as they go into a paper: what a reader sees, widths of columns and pages, macros, files."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedbench import methods, resources
from fedbench.errors import FedbenchError
from fedbench.planner import table as tables
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line
from fedbench.reports.layout.references import OWN, every, of_row
from fedbench.reports.layout.tables import grids_of
from fedbench.reports.numbers.measured import Value
from fedbench.reports.render import render
from fedbench.reports.render.latex import bibtex
from fedbench.reports.render.latex.macros import words
from fedbench.reports.render.latex.tabular import Form, fitted
from fedbench.reports.render.latex.widths import broken
from fedbench.reports.render.style import Style
from fedbench.results.run import State
from fedbench.store import Store
from tests.support.cli_user import good
from tests.support.latex import CLASSES, compiled

#: Wide and narrow, with ± in each form, with methods as columns, with marks, counted.
SHIPPED = (
    "feddrm/1",
    "feddrm/routing",
    "pfedfda/2",
    "pfedfda/8",
    "flux/levels_mnist",
    "flux/7",
    "flux/61",
    "ftw_erm/1",
    "ftw_erm/9",
)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> list[Grid]:
    return grids_of(SHIPPED, Store(tmp_path_factory.mktemp("latex") / "store"), [])


def square(rows: int, columns: int, *, text: str = "93.25", spread: str = "0.25", label: str = "Method") -> Grid:
    """A table of percentages."""
    value = Value(float(text), std=float(spread) if spread else None)
    entry = Entry(State.DONE, text, spread, decimals=2, value=value, runs=("0123456789ab",))
    lines = tuple(Line(f"{label} {k}", "paper", (entry,) * columns) for k in range(rows))
    heads = tuple(Heading("Group", f"Column {k}", "average_accuracy", "%") for k in range(columns))
    return Grid("p/1", "A table", "Method", "small", "fp32", "budget small", heads, lines)


def document(head: str, body: str) -> str:
    needs = re.findall(r"% Needs \\usepackage\{(.*?)\}", body)[0]
    return f"{head}\\usepackage{{{needs}}}\\begin{{document}}\n{body}\n\\end{{document}}\n"


def overfull(said: str) -> list[str]:
    return re.findall(r"Overfull \\[hv]box.*|Float too large.*", said)


@pytest.mark.shipped
@pytest.mark.parametrize("head", CLASSES.values(), ids=CLASSES)
def test_no_table_sticks_out_of_a_page(shipped: list[Grid], tmp_path: Path, head: str) -> None:
    assert overfull(compiled(tmp_path, document(head, render(shipped, "latex")))) == []


@pytest.mark.shipped
@pytest.mark.parametrize(("width", "of"), [("column", "article"), ("3.4", "IEEE")])
def test_no_table_sticks_out_of_a_column(shipped: list[Grid], tmp_path: Path, width: str, of: str) -> None:
    text = render(shipped, "latex", style=Style(width=width))
    assert "{table*}" not in text
    said = overfull(compiled(tmp_path, document(CLASSES[of], text)))
    assert [line for line in said if "hbox" in line] == []  # a table of forty rows is higher than a page of article


@pytest.mark.shipped
def test_below_a_table_stands_what_its_reader_needs_and_the_rest_in_comments(shipped: list[Grid]) -> None:
    for grid in shipped:
        text = render([grid], "latex")
        printed = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
        for word in ("fedbench", "budget", "cells", "shipped", "--", "Linux", grid.id):
            assert word not in printed.replace("Budget", "").replace(" -- ", ""), (grid.id, word)
    (feddrm,) = (render([grid], "latex") for grid in shipped if grid.id == "feddrm/1")
    assert (
        r"\footnotesize\raggedright Bold: best; underlined: second. $\pm$ is the standard deviation over the last 5 "
        "rounds of a run; one seed. 400 rounds of 10 steps; a small CNN with a projection layer.}" in feddrm
    )
    assert r"\caption{System accuracy under label and covariate shift, in \%.}" in feddrm
    for comment in ("% Made by fedbench", "% Budget small, not the paper's", "% ° 26 runs by", "--budget paper)"):
        assert comment in feddrm
    assert "raggedright" not in render(shipped[:1], "latex", "none")
    full = render(shipped[:1], "latex", "full")
    assert "threeparttable" in full
    assert "results verify" in full


@pytest.mark.shipped
def test_papers_own_forms(shipped: list[Grid]) -> None:
    by_id = {grid.id: render([grid], "latex") for grid in shipped}
    assert r"\textbf{.749}(.08)" in by_id["pfedfda/2"]
    assert "in parentheses is the standard deviation across clients" in by_id["pfedfda/2"]
    assert re.search(r"& FTW-ERM & FITW-ERM & FedAvg &", by_id["ftw_erm/1"])
    assert re.search(r"(?m)^Average & \\textbf\{0.8348\}", by_id["ftw_erm/1"])


@pytest.mark.parametrize(
    ("spread", "printed", "said"),
    [("pm", r"93.25 $\pm$ 0.25", True), ("paren", "93.25(0.25)", True), ("none", "& 93.25 &", False)],
)
def test_forms_of_a_spread(spread: str, printed: str, said: bool) -> None:
    grid = dataclasses.replace(square(2, 3), reader=("Value; ± is the standard deviation.",))
    text = render([grid], "latex", style=Style(spread=spread))
    assert printed in text
    assert ("standard deviation" in text.split("\\end{table")[0]) is said


@pytest.mark.parametrize(
    ("unit", "texts", "printed"),
    [
        ("", (("0.749", "0.08"), ("0.700", "0.10"), ("1.000", "0.00")), [".749(.08)", ".700(.10)", "1.000(.00)"]),
        ("", (("0.749", "0.08"), ("12.500", "0.10")), ["0.749(0.08)", "12.500(0.10)"]),
        ("s", (("0.4", "0.1"), ("13.1", "0.3")), ["0.4(0.1)", "13.1(0.3)"]),
        ("kB", (("0.5", "0.2"), ("0.9", "0.0")), ["0.5(0.2)", "0.9(0.0)"]),
    ],
)
def test_numbers_of_a_column_have_one_form(unit: str, texts: tuple[tuple[str, str], ...], printed: list[str]) -> None:
    entries = [Entry(State.DONE, t, s, len(t.partition(".")[2]), value=Value(float(t), float(s))) for t, s in texts]
    lines = tuple(Line(f"M{k}", "paper", (entry,)) for k, entry in enumerate(entries))
    grid = Grid("p", "T", "Method", "", "", "", (Heading("", "C", "m", unit),), lines)
    body = render([grid], "latex", style=Style(spread="paren"))
    assert [cell.split(" ")[0] for cell in re.findall(r"(?m)^M\d & (.*?) \\\\", body)] == printed


def test_a_metric_s_name_as_a_heading_is_in_words() -> None:
    lines = (Line("M", "paper", (Entry(State.DONE, "1"), Entry(State.DONE, "2"))),)
    heads = (Heading("", "client_accuracy_gini", "client_accuracy_gini", ""), Heading("", "a_b", "gini", ""))
    text = render([Grid("p", "T", "Method", "", "", "", heads, lines)], "latex")
    assert "Method & client accuracy gini & a\\_b" in text


def test_a_wide_table_changes_in_order_and_says_so() -> None:
    wide = [fitted(square(6, columns), "page", Form()) for columns in (5, 10, 11, 24)]
    assert [table.said for table in wide] == [
        (),
        ("one decimal less",),
        ("one decimal less", "± below the numbers"),
        ("rows and columns exchanged",),
    ]
    assert "93.2{" in wide[1].latex
    assert "93.25" not in wide[1].latex
    assert wide[3].latex.count("Method") == 6
    column = fitted(square(4, 2), "", Form())
    assert (column.wide, fitted(square(4, 5), "", Form()).wide) == (False, True)
    endless = fitted(square(30, 30), "column", Form())
    assert endless.said[-1] == "continued below itself"
    assert endless.latex.count(r"\begin{tabular}{") > 2
    assert all(f"Column {k}" in endless.latex.replace(r"\\ ", " ") for k in range(30)), "none is dropped"
    comment = render([square(6, 11)], "latex")
    said = (
        r"% To fit the width: letters of \scriptsize; headings on several lines; one decimal less; ± below the numbers"
    )
    assert f"{said}.\n" in comment
    comment = render([square(30, 30)], "latex", style=Style(width="column"))
    assert f"{said}; continued below itself.\n" in comment
    assert "To fit" not in render([square(6, 3)], "latex")


def test_a_wide_table_of_runs_loses_keys_that_tell_no_rows_apart() -> None:
    wide = square(4, 9)
    lines = tuple(
        dataclasses.replace(line, keys=("fedavg", f"{k}", "a model of a long name", "0.1", "16"))
        for k, line in enumerate(wide.lines)
    )
    grid = dataclasses.replace(wide, lines=lines, keys=("method", "lr", "model", "momentum", "batch"))
    table = fitted(grid, "page", Form())
    assert table.said[0] == "without model, momentum, batch, which tell no rows apart"
    assert "Method & Learning rate & " in table.latex
    assert (
        fitted(
            dataclasses.replace(
                grid,
                heads=grid.heads[:1],
                lines=tuple(dataclasses.replace(line, entries=line.entries[:1]) for line in lines),
            ),
            "page",
            Form(),
        ).said
        == ()
    )


def test_labels_and_headings_of_any_length_fit(tmp_path: Path) -> None:
    grid = square(3, 4, label="A label in so many words that no column of a paper holds them beside its numbers")
    heads = tuple(dataclasses.replace(h, label="A heading in several words " * 3) for h in grid.heads)
    text = render([dataclasses.replace(grid, heads=heads)], "latex")
    for head in CLASSES.values():
        assert overfull(compiled(tmp_path, document(head, text))) == []


def test_widths_that_are_none_are_refused() -> None:
    for chosen in ("0", "-3", "nan", "wide", "1000"):
        with pytest.raises(FedbenchError, match=f"'{chosen}' is no width"):
            render([square(1, 1)], "latex", style=Style(width=chosen))
    with pytest.raises(FedbenchError, match="unknown spread"):
        render([square(1, 1)], "latex", style=Style(spread="big"))
    with pytest.raises(FedbenchError, match="--width does not apply to csv"):
        render([square(1, 1)], "csv", style=Style(width="page"))
    assert broken("one two three", 30.0) == ["one", "two", "three"]


def test_a_mark_at_every_number_is_said_once() -> None:
    grid = square(2, 2)
    partial = dataclasses.replace(grid.lines[0].entries[0], state=State.PARTIAL, shipped=True)
    every = dataclasses.replace(grid, lines=tuple(dataclasses.replace(x, entries=(partial,) * 2) for x in grid.lines))
    assert [every.mark(entry) for entry in every.numbers] == [""] * 4
    some = dataclasses.replace(every, lines=(every.lines[0], grid.lines[1]))
    assert [some.mark(entry) for entry in some.numbers] == ["‡°", "‡°", "", ""]
    alike = dataclasses.replace(some, one_machine=True)
    assert [alike.mark(entry) for entry in alike.numbers] == ["‡", "‡", "", ""]


def named(text: str) -> Iterator[tuple[str, str]]:
    return ((m[1], m[2]) for m in re.finditer(r"\\newcommand\{\\(\w+)\}\{(.*?)\}", text))


@pytest.mark.shipped
def test_macros_have_the_printed_numbers_and_their_runs(shipped: list[Grid], tmp_path: Path) -> None:
    text = render(shipped, "macros")
    values = dict(named(text))
    assert values["fedbenchFeddrmOneFedDRMCifarTenDirPointThree"] == "64.40"
    assert values["fedbenchFeddrmOneFedDRMCifarTenDirPointThreeSpread"] == "0.14"
    (feddrm,) = (line for line in shipped[0].lines if line.label == "FedDRM")
    assert f"{{64.40}} % run {feddrm.entries[0].runs[0]}\n" in text
    assert all(name.isalpha() for name in values)
    assert len(values) == text.count("\\newcommand"), "each name once"
    body = text + "\\begin{document}" + " ".join(f"\\{name}{{}}" for name in values) + "\\end{document}\n"
    compiled(tmp_path, "\\documentclass{article}\n" + body)


def test_names_of_macros_are_made_of_the_labels_alone() -> None:
    texts = {
        "CIFAR-10": "CifarTen",
        "Dir(0.1)": "DirPointOne",
        "lr 1.25": "LrOnePointTwoFive",
        "1200 clients": "OneThousandTwoHundredClients",
        "α = 0": "AlphaZero",
        "FedAvg": "FedAvg",
        "007": "ZeroZeroSeven",
        "Erdős": "Erdos",
        "\U000175c0": "NineFiveSixEightZero",  # a letter without a name
    }
    assert {text: words(text) for text in texts} == texts
    grid = square(1, 2)
    alike = dataclasses.replace(grid, heads=tuple(dataclasses.replace(h, label="x+") for h in grid.heads))
    assert [name for name, _ in named(render([alike], "macros")) if "Spread" not in name] == [
        "fedbenchPOneMethodZeroGroupX",
        "fedbenchPOneMethodZeroGroupXA",
    ]


@pytest.mark.shipped
def test_a_papers_tables_each_in_a_file_of_its_own(tmp_path: Path) -> None:
    said = good("report", "ftw_erm", "-o", f"{tmp_path}/paper/", "--home", tmp_path / "home").err
    made = {path.name for path in (tmp_path / "paper").iterdir()}
    assert {"ftw_erm-1.tex", "ftw_erm-13.tex"} <= made
    assert "left out (--all-cells): ftw_erm/7" in said
    assert "ftw_erm-7.tex" not in made
    assert len(made) == sum(name.startswith("ftw_erm/") for name in tables.names()) - 1
    good("report", "ftw_erm/1", "-f", "macros", "-o", tmp_path / "paper", "--home", tmp_path / "home")
    assert (tmp_path / "paper" / "ftw_erm-1-numbers.tex").read_text().startswith("% fedbench")


def test_every_method_data_set_and_paper_has_a_reference() -> None:
    known = every().values()
    recipes = {path.stem for path in resources.RECIPES.glob("*.toml")}
    papers = {name.partition("/")[0] for name in tables.names()}
    assert {*methods.names()} - {"local"} == {name for one in known for name in one.methods}
    assert recipes == {name for one in known for name in one.datasets}
    assert {name for one in known for name in one.papers} == papers - {"arena", "plain", "scale"}
    assert all(re.fullmatch(r"(\d{4}\.\d{5})?", one.arxiv) for one in known)


@pytest.mark.shipped
def test_rows_cite_what_bibtex_has(shipped: list[Grid], tmp_path: Path) -> None:
    text, entries = render(shipped, "latex", style=Style(cite=True)), render(shipped, "bibtex")
    cited = {key for keys in re.findall(r"\\cite\{(.*?)\}", text) for key in keys.split(",")}
    keys = re.findall(r"(?m)^@\w+\{(.*),$", entries)
    assert cited <= {*keys}
    assert len(keys) == len({*keys})
    assert {"feddrm2026", "krizhevsky2009learning", "fenoglio2025flux", OWN} <= {*keys}
    assert r"FedPAC~\cite{xu2023fedpac,collins2021fedrep}" in text, "as the row is named, and what it runs"
    assert r"Sattler, Felix and M\"{u}ller, Klaus-Robert" in entries
    (tmp_path / "r.bib").write_text(entries)
    lines = [r"\relax", r"\bibstyle{plain}", r"\bibdata{r}", *(rf"\citation{{{key}}}" for key in keys)]
    (tmp_path / "t.aux").write_text("\n".join(lines) + "\n")
    if shutil.which("bibtex"):
        run = subprocess.run(["bibtex", "t"], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout
        assert (tmp_path / "t.bbl").read_text().count("\\bibitem") == len(keys)


def test_an_appendix_cites_what_its_bibliography_prints(tmp_path: Path) -> None:
    keys = ("krizhevsky2009learning", "mcmahan2017communication", OWN)
    lines = (f"CIFAR-10 [@{keys[0]}], FedAvg [@{keys[1]},{OWN}].", r"[@nobody] [@a}\input{b}] stand as they are.")
    grid = Grid("t", "T", "", "", "", "", (), (), references=keys, appendix=(("Data", lines),))
    text = render([grid], "latex", style=Style(standalone=True, appendix=True))
    assert rf"CIFAR-10~\cite{{{keys[0]}}}, FedAvg~\cite{{{keys[1]},{OWN}}}." in text
    assert r"{[}@nobody{]} {[}@a\}\textbackslash{}input\{b\}{]} stand" in text
    compiled(tmp_path, text)
    if shutil.which("bibtex"):
        run = subprocess.run(["bibtex", "t"], cwd=tmp_path, capture_output=True, text=True)
        assert (run.returncode, "Warning" in run.stdout) == (0, False), run.stdout
        assert re.findall(r"\\bibitem\{(.*?)\}", (tmp_path / "t.bbl").read_text()) == [keys[0], keys[1], OWN]
    beside = render([grid], "latex", style=Style(appendix=True))
    assert "\n% @misc{fedbench," in beside
    assert "bibliography" not in beside


def test_fedbench_is_cited_as_its_citation_file_says() -> None:
    """Which does not come along with an installed fedbench."""
    said = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    text = bibtex([Grid("t", "", "", "", "", "", (), (), references=(OWN,))])
    for part in (said["title"], said["authors"][0]["name"], said["version"]):
        assert part in text


def test_a_users_papers_have_references_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "protocol.toml").write_text("")
    own = 'type = "misc"\nauthor = "Me, A."\ntitle = "A {GPU} of Mine"\nyear = 2026\nmethods = ["Mine"]\n'
    (folder / "references.toml").write_text(f"[me2026]\n{own}")
    monkeypatch.setenv("FEDBENCH_PAPERS", str(folder))
    assert every()["me2026"].words == "Me, A GPU of Mine, 2026."
    assert of_row("x", "Mine") == ("me2026",)
    for text, wrong in (
        (f"[mcmahan2017communication]\n{own}", "another file has the key mcmahan2017communication"),
        (f'["a b"]\n{own}', "'a b' is no key of BibTeX"),
        (f"[me]\n{own.replace('misc', 'blog')}", "unknown type in .* 'blog'"),
    ):
        other = tmp_path / f"mine{len(text)}"
        other.mkdir()
        (other / "protocol.toml").write_text("")
        (other / "references.toml").write_text(text)
        monkeypatch.setenv("FEDBENCH_PAPERS", str(other))
        with pytest.raises(FedbenchError, match=wrong):
            every()


@pytest.mark.shipped
def test_brief_notes_are_at_most_six_lines_on_a_screen(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    long = {}
    for grid in grids_of([name for name in tables.names() if "/" in name], store, []):
        lines = render([grid], "console").split("━\n")[-1].splitlines()
        long |= {grid.id: lines} if len(lines) > 6 else {}
        assert render([grid], "console", "none").endswith("━\n")
    assert long == {}
