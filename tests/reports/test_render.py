"""Every format and the lab notebook show texts that would act as they stand, and can be read by what they are for."""

from __future__ import annotations

import dataclasses
import html
import html.parser
import io
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.files import write_whole
from fedbench.partitions.artifact import Partition
from fedbench.partitions.tables import write
from fedbench.partitions.transforms import Transform
from fedbench.planner import table as tables
from fedbench.planner.runs import select
from fedbench.planner.table.claims import Claim, ComparedCells, Margin, Verdict
from fedbench.reports.figures import style
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line, only_done
from fedbench.reports.render import FORMATS, choose, render
from fedbench.reports.render.console import show
from fedbench.reports.render.data import cell
from fedbench.reports.render.latex import escape
from fedbench.reports.render.style import Style
from fedbench.reports.render.text import escape as escape_markdown
from fedbench.reports.site import pictures
from fedbench.reports.site.page import shared
from fedbench.reports.site.pages import Origin, pages
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs
from fedbench.results.run import State
from fedbench.specs import PartitionSpec, Setting
from fedbench.store import Store
from tests.reports.conftest import DIR, SIX, SPC, Lab, of_csv
from tests.support.browser import PROGRAM, Browser
from tests.support.latex import compiled, fits

NASTY = r"a_b & 50% #1 {x} ~^ \end{tabular} <b>|x|</b> $"


class Page(html.parser.HTMLParser):
    """A page's tags with their attributes, its text, the cells of each row, and what was not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self.rows: list[int] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "input", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[Mapping[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> list[Grid]:
    lab = Lab(Store(tmp_path_factory.mktemp("render") / "store"))
    lab.dataset("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "names", lambda: SIX)
        lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.6385, deviations=["100 % of a_b"])
        lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.5)
        lab.run(lab.setting("feddrm/1", DIR), "fedavgft", value=0.55)
        lab.run(lab.setting("feddrm/1", DIR), "mine", value=0.4, title=NASTY)
        return [
            lab.grid(n, compare=True, yours=True, frame=Frame(lab.store, Packs([])))
            for n in ("feddrm/1", "pfedfda/8", "feddrm/4")
        ]


PRINTED = ("console", "latex", "markdown", "html")


@pytest.mark.parametrize("format", PRINTED)
def test_below_a_table_stands_what_no_number_goes_without(grids: list[Grid], format: str) -> None:
    """Budget, what ± is, seed, how many cells, one command; the rest, of rows that have a number, is asked for, and in
    HTML folded."""
    brief, full = (" ".join(render(grids[:1], format, notes).split()) for notes in ("brief", "full"))
    for said in (
        "Budget small, not the paper's: 400 rounds of 10 steps",
        "standard deviation (ddof 0)",
        "seed 2025",
        "55.00",
        "3 of 78 cells",
        "fedbench train --table feddrm/1 --budget small",
        "Claims: 3 not measured, 1 holds so far",
    ):
        assert said in html.unescape(brief)
    assert "holds so far" in full
    for said in ("Colours are shifted once", "100 %", "FedDRM is best", "FedDRM answers with", "Budget paper"):
        assert said in full.replace("\\%", "%")
        assert (said in brief) == (format == "html")
    if format == "html":
        assert "<details><summary>" in brief
        assert "<details open>" in full
    else:
        assert ("--notes full" in brief.replace("\\-", "-")) == (format != "latex")
    assert "FedProxFT: " not in full.replace("No number: FedProxFT", "")
    assert re.search(r"FedAvgFT: finetune(_|\\_)rounds = 50", full)


def test_marks_and_problems_are_said_by_default(lab: Lab) -> None:
    empty = lab.grid("feddrm/1", compare=True)
    assert (only_done(empty).lines, only_done(empty).heads) == ((), ())
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", version=99)
    grid = lab.grid("feddrm/1")
    assert next(line for line in grid.lines if line.label == "FedDRM").entries[0].mark == "†"
    grid = dataclasses.replace(grid, problems=("run 0123 is damaged",))
    for format in PRINTED:
        text = " ".join(render([grid], format).split())
        for said in ("stale: of another version of the code", "1 stale", "run 0123 is damaged"):
            assert said in text


def test_rows_and_columns_without_a_number_can_be_left_out(grids: list[Grid]) -> None:
    part = only_done(grids[0])
    assert [line.label for line in part.lines] == ["FedAvgFT", "reported", "FedDRM", "reported", NASTY]
    assert [f"{head.group}/{head.label}" for head in part.heads] == [DIR, SPC]
    assert all(len(line.entries) == 2 for line in part.lines)
    assert part.about[-1] == "Left out, as they have no number: 11 of 14 rows and 4 of 6 columns."
    assert part.counts == grids[0].counts  # of the whole table
    assert only_done(grids[1]) == grids[1]  # which is counted, and full
    for format in FORMATS:
        text = re.sub(r"(?m)^%.*$", "", render([part], format))  # comments of LaTeX name what is missing
        assert "FedBABU" not in text


def test_csv_and_json_read_back_exactly(grids: list[Grid]) -> None:
    lines = of_csv(render(grids, "csv"))
    assert len(lines) == 78 + 1 + 16 + 78 + 2  # table 4 holds the extra run in two columns
    at = ("feddrm/1", "FedDRM", "CIFAR-10", "Dir-0.3")
    found = next(x for x in lines if (x["table"], x["row"], x["group"], x["column"]) == at)
    assert float(found["value"]) == pytest.approx(63.85, abs=1e-9)  # not rounded to what is printed
    assert (float(found["reported"]), found["state"]) == (63.85, "done")
    assert (found["budget"], found["unit"], found["n"], found["near"]) == ("small", "%", "5", "True")
    assert len(found["runs"]) == 12
    assert any(x["row"] == NASTY and x["kind"] == "yours" for x in lines)
    missing = next(x for x in lines if x["row"] == "Ditto")
    assert (missing["value"], missing["state"]) == ("", "not built")
    read = json.loads(render(grids, "json"))
    assert [t["table"] for t in read] == ["feddrm/1", "pfedfda/8", "feddrm/4"]
    assert read[0]["claims"][1] == {
        "text": "Dir-0.3 is easier than 5-SPC on CIFAR-10 for every method",
        "state": "holds so far",
        "held": 1,
        "made": 1,
        "asked": 11,
        "undecided": 0,
        "detail": "smallest margin 13.85 at FedDRM, CIFAR-10/Dir-0.3 to CIFAR-10/5-SPC (one seed: noise unknown)",
        "reported": "fails",
    }
    assert read[0]["footnotes"] == [{"methods": ["a"], "text": "100 % of a_b"}]
    assert read[0]["deviations"] == {"FedDRM": "a"}
    assert read[0]["command"] == "fedbench train --table feddrm/1 --budget small"
    assert any("50 counted" in note for note in read[0]["notes"])  # all of them, whatever is printed elsewhere


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b", r"a\_b"),
        ("50 %", r"50 \%"),
        ("{#&$}", r"\{\#\&\$\}"),
        ("a\\b", r"a\textbackslash{}b"),
        ("α = 0.3", r"$\alpha$ = 0.3"),
        ("±", r"$\pm$"),
        ("° shipped", r"$^{\circ}$ shipped"),
        ("--x", "{-}{-}x"),
        ("Müller, İstanbul", r"M\"{u}ller, \.{I}stanbul"),
        ("Erdős, Dvořák, Łódź", r"Erd\H{o}s, Dvo\v{r}\'{a}k, \L{}\'{o}d\'{z}"),
        ("naïve, e\u0301", r"na\"{\i}ve, \'{e}"),
        ("ễ and x⃗", r"$\tilde{\hat{\mathrm{e}}}$ and $\vec{\mathrm{x}}$"),
        ("ą đ", r"{\fontencoding{T1}\selectfont \k{a}} {\fontencoding{T1}\selectfont \dj{}}"),
        ("10⁴, 10⁻³, x¹⁰", "10$^{4}$, 10$^{-3}$, x$^{10}$"),
        ("H₂O, x₊₁, eᵝ", r"H$_{2}$O, x$_{+1}$, e$^{\beta}$"),
        ("½ and 1⅔", r"$\frac{1}{2}$ and 1$\frac{2}{3}$"),
        ("µ and μ", r"$\mu$ and $\mu$"),  # the sign of micro, and the letter
        ("≈ ∈ ∇ √2 ⟨x⟩", r"$\approx$ $\in$ $\nabla$ $\sqrt{2}$ $\langle$x$\rangle$"),
        ("ℝ 𝛼 𝐱 ℒ ϵ Ω", r"$\mathbb{R}$ $\alpha$ $\mathbf{x}$ $\mathcal{L}$ $\epsilon$ $\Omega$"),
        ("ﬁne ⅷ ①", r"fine viii \textcircled{1}"),
        ("日", "{[}U+65E5{]}"),
        ("a\nb\x00", "a b "),
        ("<|>", "$<$$|$$>$"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("`--x a_b` and `", r"\texttt{{-}{-}x a\_b} and \textquoteleft{}"),
    ],
)
def test_latex_escapes(text: str, expected: str) -> None:
    assert escape(text) == expected


@given(st.text())
def test_latex_never_lets_a_special_character_through(text: str) -> None:
    text = text.replace("`", "")  # typed, above
    named = escape(text)
    assert named.isascii()
    assert named.isprintable()
    bare = re.sub(r"\\[A-Za-z]+|\\[^A-Za-z]", "c", named)  # commands and named characters
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    outside = re.sub(r"\$[^$]+\$|\{[-\[\]*]\}", "", bare)  # our own formulas, and what would begin a command's option
    assert not set(outside) & set("$&#%_^[]*<>|")


HARD = "10⁻³ x¹⁰ ½ ⅔ H₂O µ α̂ ά ≈ √2 ℝ ℒ 𝐱 Erdős Łódź Dvořák naïve ĵ ị ş Ș ễ x⃗ ą đ « » ß æ £ § ① ﬁ 日 A\u20dd 猫"


def test_latex_sets_each_character_or_names_it(grids: list[Grid], tmp_path: Path) -> None:
    grid = grids[0]
    lines = tuple(dataclasses.replace(line, label=HARD) if line.label == NASTY else line for line in grid.lines)
    text = render([dataclasses.replace(grid, lines=lines)], "latex", style=Style(standalone=True))
    assert "% Not in LaTeX's standard fonts, so set as codes: U+65E5 (CJK UNIFIED IDEOGRAPH-65E5), U+20DD" in text
    assert ",amssymb}" in text
    compiled(tmp_path, text)
    assert "% Not in" not in render([grid], "latex")


def test_latex_is_well_built_and_a_document_is_asked_for(grids: list[Grid]) -> None:
    text = render(grids, "latex")
    assert text.count("\\begin{") == text.count("\\end{")
    for part in ("\\toprule", "\\bottomrule", "\\begin{table", "\\caption{", "\\label{tab:"):
        assert text.count(part) == 3
    assert "\\label{tab:feddrm-1}" in text
    whole = render(grids, "latex", style=Style(all_cells=True, width="8"))
    assert r"\multicolumn{2}{c}{CIFAR-10} & \multicolumn{2}{c}{CIFAR-20}" in whole
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in whole
    body = re.search(r"\\begin\{tabular\}\{(@\{\}l(c+)@\{\})\}(.*?)\\end\{tabular\}", whole, re.DOTALL)
    rows = [line for line in body[3].splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 6 for row in rows[1:])  # the first holds the groups
    assert next(r for r in rows if r.startswith("FedDRM")).split("&")[1].strip().startswith(r"\textbf{63.85}")
    assert body[3].count("\\midrule") == 3  # below the head, above rows that are not in the paper, and above yours
    assert body[3].partition("% yours")[2].count(r"\\") == 1
    assert text.startswith("% Needs \\usepackage{booktabs}\n\\begin{table")
    whole = render(grids, "latex", style=Style(standalone=True))
    assert whole.startswith("\\documentclass")
    assert "\n% Needs a TeX that has the packages booktabs, caption, geometry\n" in whole
    used = ",".join(re.findall(r"usepackage(?:\[.*\])?\{(.*?)\}", whole)).split(",")
    assert sorted(used) == ["booktabs", "caption", "geometry"]
    with pytest.raises(FedbenchError, match="needs --format latex"):
        render(grids, "html", style=Style(standalone=True))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("standalone", [False, True])
def test_latex_compiles(grids: list[Grid], tmp_path: Path, standalone: bool, full: bool) -> None:
    text = render(grids, "latex", "full" if full else "brief", Style(standalone))
    name = "t" if standalone else "m"
    if not standalone:
        (tmp_path / "t.tex").write_text(text)
        needs = re.findall(r"usepackage\{(booktabs.*?)\}", text)[0]
        text = f"\\documentclass{{article}}\\usepackage{{{needs}}}\\begin{{document}}\\input{{t}}\\ref{{tab:feddrm-1}}"
        text += "\\end{document}\n"
    compiled(tmp_path, text, name)
    said = compiled(tmp_path, text, name)
    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000
    assert "undefined" not in said
    assert not standalone or fits(said)


def test_tables_are_rectangular_balanced_and_escaped(grids: list[Grid]) -> None:
    page = Page(render(grids[:1], "html"))
    assert (page.open, set(page.rows)) == ([], {7})
    assert not page.all("b")  # of the method's name
    assert "prefers-color-scheme: dark" in render(grids, "html")
    lines = [line for line in render(grids[:1], "markdown").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    assert any(line.startswith(f"| {escape_markdown(NASTY)} |") for line in lines)
    assert escape_markdown("a_b|<c>") == r"a\_b\|&lt;c&gt;"
    text = render(grids[:1], "console")
    lines = text.splitlines()
    first, last = (i for i, line in enumerate(lines) if line.startswith("━"))
    assert {cell_len(line) for line in lines[first : last + 1]} == {cell_len(lines[first])}
    assert "\x1b" not in text


def test_a_narrow_terminal_drops_the_spread_and_says_so(lab: Lab) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.6385)
    for name in ("cifar20", "cifar100"):
        lab.dataset(name)
    for column in tables.load("feddrm/1").columns[1:]:
        lab.run(lab.setting("feddrm/1", column.key), "feddrm")
    grid = lab.grid("feddrm/1")

    def printed(width: int) -> str:
        out = io.StringIO()
        show([grid], Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False))
        return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())

    plain = printed(85)
    assert "63.85" in plain
    assert "63.85 ± 0.00" not in plain
    assert "too narrow" in plain
    assert max(map(cell_len, plain.splitlines()[:30])) <= 85
    assert "characters wide" not in plain
    assert "characters wide, so that" in printed(40)


def test_formats_follow_the_option_or_the_suffix_and_files_are_written_whole_or_not_at_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = [choose(*of) for of in ((None, None), (None, Path("x/t.tex")), ("csv", Path("t.tex")))]
    assert chosen == ["console", "latex", "csv"]
    with pytest.raises(FedbenchError, match="unknown format 'latx'; did you mean 'latex'"):
        choose("latx", None)
    with pytest.raises(FedbenchError, match=r"cannot tell the format from the name t\.docx"):
        choose(None, Path("t.docx"))
    path = tmp_path / "t.tex"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_text() == "two"
    with pytest.raises(FedbenchError, match="cannot write"):
        write_whole(tmp_path / "nowhere" / "t.tex", b"three")
    with pytest.raises(TypeError):
        write_whole(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["t.tex"]
    (out := tmp_path / "out").symlink_to("/dev/fd/1")
    write_whole(out, b"three")
    assert (out.is_symlink(), capfd.readouterr().out) == (True, "three")


HOSTILE = (
    "=1+1 <script>alert(1)</script> \\input{/etc/passwd} $x$ `rm` | [bold]a[/x] **b** _c_ ${d} & #e % ~f ^ \"g\" 'h' "
    "](http://x) \x1b[31m\x07 \u202ei\nj \\\\ \\end{tabular} {k"
)
#: What our pages and documents are made of.
TAGS = set(
    """html head meta title style body section h2 p small details summary em code
    div table thead tbody tr th td sup span ul li""".split()  # noqa: SIM905
)
COMMANDS = {"\\", ","} | set(
    """documentclass usepackage captionsetup pagestyle begin end centering caption label small footnotesize scriptsize
    tiny setlength tabcolsep toprule midrule bottomrule multicolumn cmidrule par smallskip linewidth raggedright
    parbox strut addlinespace
    textbf underline textit itshape quad item tnote renewcommand
    TPTminimum textendash textemdash textbackslash textasciitilde textasciicircum textquoteleft texttt pm
    times cdot ldots dagger ddagger circ""".split()  # noqa: SIM905
)
OF_APPENDIX = set("cite begingroup endgroup sloppy subsection paragraph itemsep lambda".split())  # noqa: SIM905


def printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


TEXT = json.dumps(printable(HOSTILE))
#: A user's table with that text in each of its fields. The reader refuses control characters, so they are left out,
#: and what tells of a run (its method's title, its deviations) has them.
TABLE = f"""
title = {TEXT}
stub = {TEXT}
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
view = "crop"
unit = "percent"
notes = [{TEXT}]
reported_notes = [{TEXT}]
rows = [{{ label = {TEXT}, method = "feddrm", note = {TEXT} }}, {{ label = "other", method = "fedavgft" }}]
claim = [{{ text = {TEXT}, kind = "best", rows = [{TEXT}] }}]
column = [{{ group = {TEXT}, label = {TEXT}, dataset = "cifar10", \
partition = {{ scheme = "dirichlet", alpha = 0.3 }} }}]
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    folder = tmp_path_factory.mktemp("hostile")
    lab = Lab(Store(folder / "store"))
    lab.dataset("cifar10")
    (folder / "[b].toml").write_text(TABLE, encoding="utf-8")
    setting = next(iter(lab.cells("feddrm/1").settings.values()))[0]
    lab.run(setting, "feddrm", deviations=[HOSTILE])
    lab.run(setting, "fedavgft", value=0.25)
    lab.run(setting, "own", value=0.125, title=HOSTILE)
    return lab.grid(tables.load(str(folder / "[b].toml")), compare=True, yours=True, appendix=True)


def acts(text: str) -> bool:
    return not all(c.isprintable() or c in "\n\u00a0\u200c\u200d" for c in text)


def test_hostile_texts_stand_as_they_are_in_html_markdown_a_terminal_csv_and_json(hostile: Grid) -> None:
    page = Page(render([hostile], "html", "full"))
    assert {tag for tag, _ in page.tags} <= TAGS
    assert "<script>alert(1)</script>" in page.text
    assert not acts(page.text)
    text = render([hostile], "markdown", "full")
    assert not acts(text)
    bare = re.sub(r"\\[^\w\s]", "", text)
    for raw in ("<script", "`", "](", "[", "**b**", "_c_", "$"):
        assert raw not in bare
    assert set(re.findall(r"<([^>]*)>", bare)) <= {"sup", "/sup", "u", "/u"}
    bars = {len(re.findall(r"\|", line)) for line in bare.splitlines() if line.startswith("|")}
    assert bars == {3}
    for terminal in (False, True):
        out = io.StringIO()
        show([hostile], Console(file=out, force_terminal=terminal, color_system=None, width=4000), "full")
        assert not acts(out.getvalue())
        assert "[bold]a[/x]" in out.getvalue()
    assert not acts(render([hostile], "console"))
    text = render([hostile], "csv")
    lines = of_csv(text)
    assert len(text.splitlines()) == len(lines) + 1
    assert not acts(text)
    assert not any(value.startswith(("=", "+", "@", "-")) for line in lines for value in line.values())
    text = render([hostile], "json")  # which holds the texts themselves
    assert not acts(text)
    (read,) = json.loads(text)
    assert read["title"] == hostile.title
    assert {c["column"] for c in read["cells"]} == {head.label for head in hostile.heads}
    assert {read["title"], read["claims"][0]["text"]} == {printable(HOSTILE)}
    assert printable(HOSTILE) in read["notes"]


@pytest.mark.parametrize("how", ["brief", "full", "appendix"])
def test_latex_has_no_commands_but_our_own(hostile: Grid, tmp_path: Path, how: str) -> None:
    full, appendix = how == "full", how == "appendix"
    text = render([hostile], "latex", "full" if full else "brief", Style(full, appendix))
    bare = re.sub(r"\\[{}$&#%_]", "", re.sub(r"(?m)^%.*$", "", text))  # comments act on nothing
    commands = set(re.findall(r"\\([a-zA-Z]+|.)", bare))
    assert commands <= (COMMANDS | OF_APPENDIX if appendix else COMMANDS)
    assert bare.count("\\begin{tabular}") == bare.count("\\end{tabular}")
    assert bool(bare.count("\\toprule")) is not appendix
    depth = 0
    for c in bare:
        depth += (c == "{") - (c == "}")
        assert depth >= 0
    assert depth == 0
    assert not acts(text)
    for line in bare.splitlines():  # nothing that a line's \\ or a rule would take for its option
        assert not line.startswith(("[", "*"))


def test_hostile_latex_compiles(hostile: Grid, tmp_path: Path) -> None:
    compiled(tmp_path, render([hostile], "latex", style=Style(True, True)))
    for full in (True, False):
        compiled(tmp_path, render([hostile], "latex", "full" if full else "brief", Style(standalone=True)))


def test_a_spreadsheet_reckons_with_nothing_and_markdown_begins_no_list_and_no_formula() -> None:
    for value in ("=1", " =1", "+1", "-1", "@a"):
        assert cell(value) == f"'{value}"
    assert [cell(value) for value in ("a=1", "", -1.5)] == ["a=1", "", -1.5]
    lists = {"- a": r"\- a", "1. a": r"1\. a", "12) a": r"12\) a", "1.5": "1.5", "+a": r"\+a", "$x$": r"\$x\$"}
    assert {text: escape_markdown(text) for text in lists} == lists


@settings(max_examples=40)
@given(st.text(max_size=30))
def test_whatever_the_text_all_formats_are_whole(text: str) -> None:
    decides = Margin(ComparedCells((text,), (text,)), 0.1, True)
    verdict = Verdict(Claim(text, "best", [text]), "holds", 1, 1, 1, text, decides)
    entries = (Entry(State.DONE, "1.5", "0.1", rank=1), Entry(State.MISSING))
    heads = (Heading(text, text, "system_accuracy", "%"), Heading(text, text, "x", text))
    lines = (Line(text, "paper", entries, "a"), Line("reported", "reported", entries), Line(text, "yours", entries))
    told = {"about": (text,), "command": text, "notes": (text,), "footnotes": (("a", text),), "problems": (text,)}
    one = Grid(text, text, text, "small", "fp32", text, heads, lines, **told, verdicts=((verdict, verdict),))  # type: ignore[arg-type]
    for format in FORMATS:
        made = render([one, dataclasses.replace(one, stub="")], format, "full")
        made.encode()
        assert not acts(made)


def test_figures_show_dollars_as_dollars() -> None:
    from matplotlib.figure import Figure

    drawn = Figure()
    axes = drawn.subplots()
    axes.set_title(r"$\frac{$ \x1b")
    axes.set_xlabel("rank $i$")
    axes.plot([1, 2], label=r"$\undefined$")
    axes.set_yticks([1, 2], [style.named("$"), style.named(r"$\frac{$")])
    drawn.suptitle(r"a $\sqrt$ b" + "\x1b")
    drawn.legend()
    assert b"\x1b" not in style.saved(style.literal(drawn), "svg", "", "")
    assert axes.xaxis.label.get_parse_math()


#: What pages are made of.
PAGE_TAGS = set(
    """html head meta title link style script body header nav main footer h1 h2 h3 p a b small button input output
    div section table thead tbody tr th td span details summary ul li dl dt dd code img meter""".split()  # noqa: SIM905
)


#: What matplotlib's pictures are made of.
SVG_TAGS = set(
    """svg g path text tspan rect defs use style clipPath image metadata RDF Work type format title
    description""".split()  # noqa: SIM905
)


def twelve(lab: Lab) -> Setting:
    there = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    return replace(there, partition=replace(there.partition, clients=12, unseen=2), lr=0.1, seed=0, rounds=20, every=1)


@pytest.fixture
def setting(lab: Lab) -> Setting:
    return twelve(lab)


def parted(spec: PartitionSpec, classes: Sequence[str], test: Sequence[bool]) -> Partition:
    """Each client has one sample of each class, which may be for testing."""
    n, k = spec.all_clients, len(classes)
    label = np.tile(np.arange(k, dtype=np.int32), n)
    client = np.repeat(np.arange(n, dtype=np.int32), k)
    return Partition(
        spec,
        tuple(classes),
        client,
        np.arange(n * k, dtype=np.int32),
        np.tile(test, n),
        label,
        (Transform(),) * n,
        [0] * n,
    )


def fill(lab: Lab, setting: Setting) -> None:
    """FedAvg of three seeds, Ditto of one; the partition of all, with hostile classes."""
    n = setting.partition.all_clients
    with lab.store.writing(setting.partition) as writer:
        write(writer, parted(setting.partition, ("plane", HOSTILE), [False, True]))
    curve = {"average_accuracy": lambda t: 0.3 + 0.02 * t, "train_loss": lambda t: math.exp(-t)}
    clients = {c: c / 20 for c in range(n)}
    for seed in range(3):
        lab.run(replace(setting, seed=seed), "fedavg", metrics=curve, clients=clients)
    lab.run(setting, "ditto", metrics=curve, clients=clients, deviations=[HOSTILE], title=HOSTILE)


def told(run: Any) -> Origin:
    return [(f"run {HOSTILE}", [HOSTILE]), ("dataset", [])]


class Site(NamedTuple):
    """The pages and pictures by their names, and the ids of the runs by method and seed."""

    files: dict[str, str]
    ids: dict[tuple[str, int], str]

    @property
    def pages(self) -> dict[str, str]:
        return {name: text for name, text in self.files.items() if name.endswith(".html")}

    def of(self, method: str, seed: int) -> str:
        return self.pages[f"run-{self.ids[method, seed]}.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    lab = Lab(Store(tmp_path_factory.mktemp("site") / "store"))
    lab.dataset("cifar10")
    fill(lab, twelve(lab))
    runs = select(Frame(lab.store))
    return Site(dict(pages(runs, told)), {(run.spec.method, run.spec.setting.seed): run.id for run in runs})


def test_a_row_a_group_and_a_page_a_run_that_shows_all_of_it(site: Site) -> None:
    assert set(site.pages) == {"index.html", *(f"run-{id}.html" for id in site.ids.values())}
    index = Page(site.pages["index.html"])
    words = [attributes["data-words"] or "" for attributes in index.all("tr") if "data-words" in attributes]
    assert len(words) == 2
    assert all(any(id in of_row for of_row in words) for id in site.ids.values())
    heads = [a["data-first"] for a in index.all("th") if "data-first" in a]
    assert heads[:2] == ["ascending", "descending"]  # method; average accuracy, of which more is better
    assert "70.00" in index.text
    links = {name: {a["href"] for a in Page(text).all("a")} for name, text in site.pages.items()}
    assert links.pop("index.html") == set(site.pages) - {"index.html"}
    assert all("index.html" in of_page <= set(site.pages) for of_page in links.values())
    page = Page(site.of("fedavg", 1))
    curve, loss, partition = (str(a["src"]) for a in page.all("img"))
    assert set(site.files) - set(site.pages) == {curve, loss, partition}  # which all pages show
    assert {tuple(a["src"] for a in Page(text).all("img")) for text in site.pages.values()} == {
        (),
        (curve, loss, partition),
    }
    for line in ("FedAvg", "<script>alert(1)</script>"):
        assert html.escape(line, quote=False) in site.files[curve]
    assert "train loss" in site.files[loss]
    row = r'class="key">(\d+)(?: <small>(.*?)</small>)?</th><td data-value="(.*?)"'
    clients = re.findall(row, site.of("fedavg", 1))  # the worst first
    unseen = "unseen: never trains"
    assert clients == [(str(c), unseen if c >= 10 else "", f"{5 * c}") for c in range(12)]
    assert "mean 22.50" in page.text  # of those that train
    assert "12 clients hold 2 to 2 samples" in page.text
    for words in ("70.00 %", "seed 1", "cifar10", "learning", "Where it comes from", "Make it again"):
        assert words.lower() in page.text.lower()
    assert len([a for a in page.all("a") if (a["href"] or "").startswith("run-")]) == 2


def test_nothing_is_loaded_and_every_text_is_harmless(site: Site) -> None:
    for name, text in site.files.items():
        if name not in site.pages:  # shown by <img>, in which no script runs
            assert {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(text).iter()} <= SVG_TAGS
            continue
        page = Page(text)
        assert {tag for tag, _ in page.tags} <= PAGE_TAGS
        assert not acts(text)
        loaded = {a.get("src") for _, a in page.tags if a.keys() & {"src", "srcset", "style", "onclick", "onload"}}
        assert {"site.js"} <= loaded <= {"site.js", *site.files}
        assert [a["href"] for a in page.all("link")] == ["data:,", "site.css"]
        assert "url(" not in text
        assert "@import" not in text
        (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv"))
        assert policy.startswith("default-src 'none';")
    shown = Page(site.of("ditto", 0)).text  # hostile texts stand as they are
    for where in ("<script>alert(1)</script>", "run =1+1", "[bold]a[/x]"):
        assert where in shown


def test_a_run_without_metrics_or_partition_says_so(lab: Lab, setting: Setting) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    once = replace(setting, every=0, window=1)
    others = [
        lab.run(once, method, metrics={"average_accuracy": lambda t: 0.5}) for method in ("ditto", "fedprox", "local")
    ]
    made = dict(pages(select(Frame(lab.store)), lambda run: []))
    page = made[f"run-{run.id}.html"]
    assert "No metrics" in page
    assert f"Partition {setting.partition.id} is not in this store" in page
    for other in others:
        assert "Learning: measured after one round only" in made[f"run-{other.id}.html"]
        assert "<img" not in made[f"run-{other.id}.html"]
    assert "!" in Page(made["index.html"]).text


def test_pages_stay_small(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=300, unseen=None)
    fill(lab, replace(setting, partition=part, rounds=2000))
    site = dict(pages(select(Frame(lab.store)), told))
    assert max(map(len, site.values())) < 150_000
    assert sum(map(len, site.values())) < 500_000  # of four runs
    page = Page(next(text for name, text in site.items() if name.startswith("run-")))
    assert "300 clients are too many for a bubble plot" in page.text


def test_pages_do_not_grow_with_the_square_of_the_seeds(lab: Lab, setting: Setting) -> None:
    for seed in range(30):
        lab.run(replace(setting, seed=seed, init_seed=seed, partition=replace(setting.partition, seed=seed)), "fedavg")
    made = {run.spec.setting.seed: run.id for run in select(Frame(lab.store))}
    site = dict(pages(select(Frame(lab.store)), told))
    for seed, those in ((0, range(11)), (15, range(10, 21)), (29, range(19, 30))):
        page = Page(site[f"run-{made[seed]}.html"])
        links = {a["href"] for a in page.all("a") if (a["href"] or "").startswith("run-")}
        assert links == {f"run-{made[other]}.html" for other in those if other != seed}
    assert len([name for name in site if name.startswith("curve-")]) <= 2  # of all seeds: mean and standard deviation
    html_pages = {name for name in site if name.endswith(".html")}
    assert html_pages - {"index.html"} == {a["href"] for a in Page(site["index.html"]).all("a")}


def test_methods_share_pictures_of_as_many_lines_as_there_are_colours(lab: Lab, setting: Setting) -> None:
    for k in range(pictures.LINES + 1):
        for seed in (0, 1):
            of_rate = replace(setting, lr=0.01 * (k + 1), seed=seed)
            lab.run(of_rate, "fedavg", metrics={"average_accuracy": lambda t, k=k: 0.5 + 0.01 * k + 0.001 * t})
    runs = select(Frame(lab.store))
    site = dict(pages(runs, told))
    curves = {name for name in site if name.startswith("curve-")}
    assert len(curves) == 2
    shown = {run.id: Page(site[f"run-{run.id}.html"]) for run in runs}
    by_rate = {run.spec.setting.lr: [a["src"] for a in shown[run.id].all("img")] for run in runs}
    ranked = [by_rate[rate] for rate in sorted(by_rate, reverse=True)]  # the best first
    assert ranked == [ranked[0]] * 4 + [ranked[-1]] * 5
    assert ranked[0] != ranked[-1]
    assert "places 5 to 9 of 9 by accuracy" in shown[runs[0].id].text


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_in_a_browser_it_sorts_filters_and_opens_runs(site: Site, tmp_path: Path) -> None:
    for name, text in {**shared(), **site.files}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    first = "document.querySelector('tbody tr').dataset.words"
    ids = {seed: site.ids["fedavg", seed] for seed in range(3)}
    with Browser() as browser:
        for width in (1400, 400):
            browser.look(width, "dark")
            browser.open(tmp_path / "index.html")
            assert browser.do("document.documentElement.scrollWidth <= innerWidth")
            assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
        pages_head = "document.querySelector('thead th:last-child button').click()"
        seeds = [browser.do(f"{pages_head}, {first}") for _ in range(2)]
        assert seeds[0] != seeds[1]  # either way round
        assert browser.do("document.querySelector('thead th:last-child').ariaSort") == "descending"
        box = "(box => { box.value = %s; box.dispatchEvent(new Event('input', {bubbles: true})) })"
        shown = "[...document.querySelectorAll('tbody tr')].filter(r => r.checkVisibility()).map(r => r.dataset.words)"
        (row,) = browser.do(f"{box % repr(ids[1][:8])}(document.querySelector('#filter')), {shown}")
        assert ids[1] in row
        assert browser.do("document.querySelector('output').textContent") == "1 of 2 rows"
        browser.do("document.querySelector('tbody tr:not([hidden]) td').click()", opens=True)
        assert ids[0] in browser.do("location.pathname")
        before = browser.do("document.querySelector('#theme').click(), document.documentElement.dataset.theme")
        assert before == "light"
        assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        browser.look(400, "light")
        assert browser.do("document.documentElement.scrollWidth <= innerWidth")
        browser.do("document.querySelector('nav a').click()", opens=True)
        theme = "document.documentElement.dataset.theme"
        for _ in range(20):  # a browser writes what pages store when it has time to, and may lose it before
            if browser.do(theme) == "light":
                break
            time.sleep(0.5)
            browser.open(tmp_path / "index.html")
            while browser.do(theme) != "light":
                browser.do("document.querySelector('#theme').click()")
            time.sleep(0.5)
            browser.open(tmp_path / "index.html")
        assert browser.do(theme) == "light"  # kept from page to page
        assert browser.errors == []
