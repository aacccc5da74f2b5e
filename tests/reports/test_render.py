"""Every format says the same, shows texts that would act as they stand, and can be read by what it is for."""

from __future__ import annotations

import dataclasses
import html
import html.parser
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.files import write_whole
from fedbench.reports import table as tables
from fedbench.reports.figures import style
from fedbench.reports.layout.grid import Entry, Grid, Head, Line, only_done
from fedbench.reports.render import FORMATS, choose, render
from fedbench.reports.render.console import show
from fedbench.reports.render.data import cell
from fedbench.reports.render.latex import escape
from fedbench.reports.render.markdown import escape as escape_markdown
from fedbench.reports.status.index import Index, State
from fedbench.reports.table.claims import Claim, Verdict
from fedbench.results.shelf import Shelf
from fedbench.store import Store
from tests.reports.conftest import DIR, FIVE, SPC, Lab, of_csv
from tests.support.latex import compiled, fits

NASTY = r"a_b & 50% #1 {x} ~^ \end{tabular} <b>|x|</b> $"


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> list[Grid]:
    lab = Lab(Store(tmp_path_factory.mktemp("render") / "store"))
    lab.dataset("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "names", lambda: FIVE)
        lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.6385, deviations=["100 % of a_b"])
        lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.5)
        lab.run(lab.setting("feddrm/1", DIR), "fedavgft", value=0.55)
        lab.run(lab.setting("feddrm/1", DIR), "mine", value=0.4, title=NASTY)
        return [
            lab.grid(n, compare=True, extra=True, index=Index(lab.store, Shelf([])))
            for n in ("feddrm/1", "pfedfda/8", "feddrm/4")
        ]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_holds_the_numbers_and_what_is_said(grids: list[Grid], format: str) -> None:
    text = render(grids, format, full=True)
    for number in ("55.00", "40.00", "6.620") if format not in ("csv", "json") else ("55.0", "40.0", "115776"):
        assert number in text
    if format != "csv":
        for said in ("400 rounds of 10 steps", "FedDRM is best in every column", "holds so far", "FedDRM answers with"):
            assert said in " ".join(text.split())


PRINTED = ("console", "latex", "markdown", "html")


@pytest.mark.parametrize("format", PRINTED)
def test_below_a_table_stands_what_no_number_goes_without(grids: list[Grid], format: str) -> None:
    """Budget, what ± is, seed, how many cells, one command; the rest, of rows that have a number, is asked for, and in
    HTML folded."""
    brief, full = (" ".join(render(grids[:1], format, full=full).split()) for full in (False, True))
    for said in (
        "Budget small, not the paper's: 400 rounds of 10 steps", "standard deviation (ddof 0)", "seed 2025",
        "3 of 78 cells", "fedbench train --table feddrm/1 --budget small", "Claims: 2 hold so far, 2 not measured",
    ):  # fmt: skip
        assert said in html.unescape(brief)
    for said in ("Colours are shifted once", "100 %", "FedDRM is best", "FedDRM answers with", "Budget paper"):
        assert said in full.replace("\\%", "%")
        assert (said in brief) == (format == "html")
    if format == "html":
        assert "<details><summary>" in brief
        assert "<details open>" in full
    else:
        assert ("--notes full" in brief.replace("\\-", "-")) == (format != "latex")
    assert "FedProxFT: " not in full
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


# -- only what is there ------------------------------------------------------------------------------------------


def test_rows_and_columns_without_a_number_can_be_left_out(grids: list[Grid]) -> None:
    part = only_done(grids[0])
    assert [line.label for line in part.lines] == ["FedAvgFT", "reported", "FedDRM", "reported", NASTY]
    assert [f"{head.group}/{head.label}" for head in part.heads] == [DIR, SPC]
    assert all(len(line.entries) == 2 for line in part.lines)
    assert part.about[-1] == "Left out, as they have no number: 11 of 14 rows and 4 of 6 columns."
    assert part.counts == grids[0].counts  # of the whole table
    assert only_done(grids[1]) == grids[1]  # which is counted, and full
    for format in FORMATS:
        assert "FedBABU" not in render([part], format)


def test_csv_and_json_read_back_exactly(grids: list[Grid]) -> None:
    lines = of_csv(render(grids, "csv"))
    assert len(lines) == 78 + 1 + 16 + 78 + 2  # table 4 holds the extra run in two columns
    at = ("feddrm/1", "FedDRM", "CIFAR-10", "Dir-0.3")
    found = next(x for x in lines if (x["table"], x["row"], x["group"], x["column"]) == at)
    assert float(found["value"]) == pytest.approx(63.85, abs=1e-9)  # not rounded to what is printed
    assert (float(found["reported"]), found["state"]) == (63.85, "done")
    assert (found["budget"], found["unit"], found["n"], found["within"]) == ("small", "%", "5", "True")
    assert len(found["runs"]) == 12
    assert any(x["row"] == NASTY and x["kind"] == "extra" for x in lines)
    missing = next(x for x in lines if x["row"] == "Ditto")
    assert (missing["value"], missing["state"]) == ("", "not built")
    read = json.loads(render(grids, "json"))
    assert [t["table"] for t in read] == ["feddrm/1", "pfedfda/8", "feddrm/4"]
    assert read[0]["claims"][0] == {
        "text": "FedDRM is best in every column", "state": "holds so far", "held": 1, "made": 1, "asked": 6,
        "undecided": 0, "detail": "smallest margin 8.85 at FedDRM, CIFAR-10/Dir-0.3 (one seed: noise unknown)",
        "reported": "holds",
    }  # fmt: skip
    assert read[0]["footnotes"] == [{"methods": ["a"], "text": "100 % of a_b"}]
    assert read[0]["deviations"] == {"FedDRM": "a"}
    assert read[0]["command"] == "fedbench train --table feddrm/1 --budget small"
    assert any("50 counted" in note for note in read[0]["notes"])  # all of them, whatever is printed elsewhere


# -- LaTeX -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b", r"a\_b"), ("50 %", r"50 \%"), ("{#&$}", r"\{\#\&\$\}"), ("a\\b", r"a\textbackslash{}b"),
        ("α = 0.3", r"$\alpha$ = 0.3"), ("±", r"$\pm$"), ("° shipped", r"$^{\circ}$ shipped"),
        ("--x", "{-}{-}x"), ("Müller", "Müller"), ("ő", "o"),
        ("日", "?"),
        ("a\nb\x00", "a b "), ("<|>", "$<$$|$$>$"), ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("`--x a_b` and `", r"\texttt{{-}{-}x a\_b} and \textquoteleft{}"),
    ],
)  # fmt: skip
def test_latex_escapes(text: str, expected: str) -> None:
    assert escape(text) == expected


@given(st.text())
def test_latex_never_lets_a_special_character_through(text: str) -> None:
    text = text.replace("`", "")  # typed, above
    bare = re.sub(r"\\(text(backslash|asciitilde|asciicircum|endash|emdash))\{\}|\\[{}$&#%_]", "", escape(text))
    bare = re.sub(r"\$[^$]+\$|\{[-\[\]*]\}", "", bare)  # our own formulas, and what would begin an option of a command
    assert not set(bare) & set("\\{}$&#%_^\n")
    assert all(c.isprintable() for c in bare)


def test_latex_is_well_built_and_a_document_is_asked_for(grids: list[Grid]) -> None:
    text = render(grids, "latex")
    assert text.count("\\begin{") == text.count("\\end{")
    for part in ("\\toprule", "\\bottomrule", "\\begin{table}", "\\caption{", "\\label{tab:"):
        assert text.count(part) == 3
    assert "\\label{tab:feddrm-1}" in text
    assert r"\multicolumn{2}{c}{CIFAR-10} & \multicolumn{2}{c}{CIFAR-20}" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in text
    body = re.search(r"\\begin\{tabular\}\{(l(c+))\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert body is not None
    rows = [line for line in body[3].splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 6 for row in rows[1:])  # the first holds the groups
    assert next(r for r in rows if r.startswith("FedDRM")).split("&")[1].strip().startswith(r"\textbf{63.85}")
    assert body[3].count("\\midrule") == 2  # below the head, and above the method that is not in the paper
    assert render(grids, "latex").startswith("% Needs \\usepackage{booktabs,graphicx}\n\\begin{table}")
    whole = render(grids, "latex", standalone=True)
    assert whole.startswith("\\documentclass")
    assert "\n% Needs a TeX that has the packages booktabs, graphicx, caption, geometry\n" in whole
    used = ",".join(re.findall(r"usepackage(?:\[.*\])?\{(.*?)\}", whole)).split(",")
    assert sorted(used) == ["booktabs", "caption", "geometry", "graphicx", "inputenc"], "the last is any TeX's"
    with pytest.raises(FedbenchError, match="goes with --format latex"):
        render(grids, "html", standalone=True)


# -- the others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("standalone", [False, True])
def test_latex_compiles(grids: list[Grid], tmp_path: Path, standalone: bool, full: bool) -> None:
    text = render(grids, "latex", standalone=standalone, full=full)
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


class _Cells(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.stack: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_tables_are_rectangular_balanced_and_escaped(grids: list[Grid]) -> None:
    parser = _Cells()
    parser.feed(render(grids[:1], "html"))
    assert parser.stack == []
    assert set(parser.rows) == {7}
    assert "b" not in parser.tags  # of the method's name
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


@pytest.mark.parametrize(
    ("option", "path", "format"),
    [
        (None, None, "console"),
        (None, Path("x/t.tex"), "latex"),
        ("csv", Path("t.tex"), "csv"),
        ("latx", None, "unknown format 'latx'; did you mean 'latex'"),
        (None, Path("t.docx"), r"cannot tell the format from the name t\.docx"),
    ],
)
def test_formats_follow_the_option_or_the_suffix(option: str | None, path: Path | None, format: str) -> None:
    if format in FORMATS:
        assert choose(option, path) == format
    else:
        with pytest.raises(FedbenchError, match=format):
            choose(option, path)


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
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


HOSTILE = (
    "=1+1 <script>alert(1)</script> \\input{/etc/passwd} $x$ `rm` | [bold]a[/x] **b** _c_ ${d} & #e % ~f ^ \"g\" 'h' "
    "](http://x) \x1b[31m\x07 \u202ei\nj \\\\ \\end{tabular} {k"
)
#: What our pages and documents are made of.
TAGS = set(
    """html head meta title style body section h2 small details summary em code
    div table thead tbody tr th td sup span ul li""".split()  # noqa: SIM905
)
COMMANDS = {"\\", ","} | set(
    """documentclass usepackage captionsetup pagestyle begin end centering caption label small footnotesize scriptsize
    tiny setlength tabcolsep toprule midrule bottomrule multicolumn cmidrule par medskip linewidth raggedright parskip
    textbf underline textit itshape quad resizebox item tnote renewcommand
    TPTminimum textendash textemdash textbackslash textasciitilde textasciicircum textquoteleft texttt pm
    times cdot ldots dagger ddagger circ""".split()  # noqa: SIM905
)
FIELDS = ("title", "stub", "row", "group", "column", "note", "reported_note", "row_note", "claim", "method")


def printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def toml(texts: dict[str, str]) -> str:
    """A user's table with a text in each of its fields. The reader refuses control characters, so they are left out,
    and what tells of a run (its method's title, its deviations) has them."""
    t = {name: json.dumps(printable(texts.get(name, name))) for name in FIELDS}
    return f"""
title = {t["title"]}
stub = {t["stub"]}
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
view = "crop"
unit = "percent"
notes = [{t["note"]}]
reported_notes = [{t["reported_note"]}]
rows = [
  {{ label = {t["row"]}, method = "feddrm", note = {t["row_note"]} }},
  {{ label = "other", method = "fedavgft" }},
]
[[column]]
group = {t["group"]}
label = {t["column"]}
dataset = "cifar10"
partition = {{ scheme = "dirichlet", alpha = 0.3 }}
[[claim]]
text = {t["claim"]}
kind = "best"
rows = [{t["row"]}]
"""


def of_texts(lab: Lab, folder: Path, texts: dict[str, str]) -> Grid:
    path = folder / f"{'[b]' if texts else 'mine'}.toml"
    path.write_text(toml(texts), encoding="utf-8")
    table = tables.load(str(path))
    setting = next(iter(lab.cells("feddrm/1").settings.values()))[0]
    lab.run(setting, "feddrm", deviations=[texts.get("note", "n")])
    lab.run(setting, "fedavgft", value=0.25)
    lab.run(setting, "own", value=0.125, title=texts.get("method", "m"))
    return lab.grid(table, compare=True, extra=True)


@pytest.fixture(scope="module", params=["all", *FIELDS])
def hostile(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Grid:
    """A table with the hostile text in all of its fields, or in one."""
    folder = tmp_path_factory.mktemp("hostile")
    lab = Lab(Store(folder / "store"))
    lab.dataset("cifar10")
    return of_texts(lab, folder, dict.fromkeys(FIELDS if request.param == "all" else [request.param], HOSTILE))


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def acts(text: str) -> bool:
    """Whether a terminal would obey something in it."""
    return not all(c.isprintable() or c in "\n\u00a0\u200c\u200d" for c in text)


def test_hostile_texts_stand_as_they_are_in_html_markdown_a_terminal_csv_and_json(hostile: Grid) -> None:
    page = _Tags()
    page.feed(render([hostile], "html", full=True))
    assert page.tags <= TAGS
    assert "<script>alert(1)</script>" in page.text
    assert not acts(page.text)
    text = render([hostile], "markdown", full=True)
    assert not acts(text)
    bare = re.sub(r"\\[^\w\s]", "", text)
    for raw in ("<script", "`", "](", "[", "**b**", "_c_", "$"):
        assert raw not in bare
    assert set(re.findall(r"<([^>]*)>", bare)) <= {"sup", "/sup", "u", "/u"}
    cells = {len(re.findall(r"\|", line)) for line in bare.splitlines() if line.startswith("|")}
    assert cells == {3}
    for terminal in (False, True):
        out = io.StringIO()
        show([hostile], Console(file=out, force_terminal=terminal, color_system=None, width=4000), full=True)
        assert not acts(out.getvalue())
        assert ("[bold]a[/x]" in out.getvalue()) == (any("[bold]" in text for text in texts_of(hostile)))
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
    if hostile.title == hostile.stub:  # the texts are everywhere
        assert {read["title"], read["claims"][0]["text"], read["notes"][3]} == {printable(HOSTILE)}


@pytest.mark.parametrize("full", [False, True])
def test_latex_has_no_commands_but_our_own(hostile: Grid, tmp_path: Path, full: bool) -> None:
    text = render([hostile], "latex", full=full, standalone=full)
    bare = re.sub(r"\\[{}$&#%_]", "", re.sub(r"(?m)^%.*$", "", text))  # comments act on nothing
    commands = set(re.findall(r"\\([a-zA-Z]+|.)", bare))
    assert commands <= COMMANDS
    wide = "\\resizebox" in bare
    assert bare.count("\\begin{tabular}") == bare.count("\\end{tabular}") == 1 + wide
    depth = 0
    for c in bare:
        depth += (c == "{") - (c == "}")
        assert depth >= 0
    assert depth == 0
    assert not acts(text)
    for line in bare.splitlines():  # nothing that a line's \\ or a rule would take for its option
        assert not line.startswith(("[", "*"))


def test_hostile_latex_compiles(hostile: Grid, tmp_path: Path) -> None:
    for full in (True, False) if hostile.title == hostile.stub else (True,):  # the texts are everywhere
        compiled(tmp_path, render([hostile], "latex", full=full, standalone=True))


def texts_of(grid: Grid) -> list[str]:
    """The texts of a grid that every format has; the heading of the rows is not one of the console's."""
    heads = [text for head in grid.heads for text in (head.group, head.label)]
    rows, claims = [line.label for line in grid.lines], [ours.claim.text for ours, _ in grid.verdicts]
    return [grid.title, *heads, *rows, *grid.notes, *claims]


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("=1", "'=1"),
        (" =1", "' =1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@a", "'@a"),
        ("a=1", "a=1"),
        ("", ""),
        (-1.5, -1.5),
    ],
)
def test_what_a_spreadsheet_would_reckon_with(value: object, printed: object) -> None:
    assert cell(value) == printed


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("- a", r"\- a"), ("1. a", r"1\. a"), ("12) a", r"12\) a"), ("1.5", "1.5"), ("+a", r"\+a"), ("$x$", r"\$x\$")],
)
def test_markdown_begins_no_list_and_no_formula(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


@settings(max_examples=40)
@given(st.text(max_size=30))
def test_whatever_the_text_all_formats_are_whole(text: str) -> None:
    claim = Claim(text, "best", [text])
    verdict = Verdict(claim, "holds", 1, 1, 1, text)
    entries = (Entry(State.DONE, "1.5", "0.1", rank=1), Entry(State.MISSING))
    heads = (Head(text, text, "system_accuracy", "%"), Head(text, text, "x", text))
    lines = (Line(text, "paper", entries, "a"), Line("reported", "reported", entries), Line(text, "extra", entries))
    told = {"about": (text,), "command": text, "notes": (text,), "footnotes": (("a", text),), "problems": (text,)}
    one = Grid(text, text, text, "small", "fp32", text, heads, lines, **told, verdicts=((verdict, verdict),))  # type: ignore[arg-type]
    for format in FORMATS:
        made = render([one, dataclasses.replace(one, stub="")], format, full=True)
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
    svg = style.saved(style.literal(drawn), "svg")
    assert b"\x1b" not in svg
    assert axes.xaxis.label.get_parse_math()
