"""Texts that would act: every format shows them as they stand, in whatever field of a table they are."""

from __future__ import annotations

import csv
import dataclasses
import html.parser
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedbench.reports import table as tables
from fedbench.reports.figures import style
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Entry, Grid, Head, Line
from fedbench.reports.render import FORMATS, render
from fedbench.reports.render.console import show
from fedbench.reports.render.data import cell
from fedbench.reports.render.markdown import escape as escape_markdown
from fedbench.reports.status.index import State
from fedbench.reports.table.claims import Claim, Verdict
from tests.support.latex import compiled

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


def grid(lab: Any, folder: Path, texts: dict[str, str]) -> Grid:
    path = folder / f"{'[b]' if texts else 'mine'}.toml"
    path.write_text(toml(texts), encoding="utf-8")
    table = tables.load(str(path))
    setting = next(iter(lab.cells("feddrm/1").settings.values()))[0]
    lab.run(setting, "feddrm", deviations=[texts.get("note", "n")])
    lab.run(setting, "fedavgft", value=0.25)
    lab.run(setting, "own", value=0.125, title=texts.get("method", "m"))
    return build(table, "small", lab.store, [], compare=True, extra=True)


@pytest.fixture(params=[*FIELDS, "all"])
def hostile(lab: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Grid:
    """A table with the hostile text in one of its fields, or in all."""
    return grid(lab, tmp_path, dict.fromkeys(FIELDS if request.param == "all" else [request.param], HOSTILE))


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


def test_html_has_no_tags_but_our_own(hostile: Grid) -> None:
    page = _Tags()
    page.feed(render([hostile], "html", full=True))
    assert page.tags <= TAGS
    assert "<script>alert(1)</script>" in page.text
    assert not acts(page.text)


@pytest.mark.parametrize("full", [False, True])
def test_latex_has_no_commands_but_our_own(hostile: Grid, full: bool) -> None:
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


@pytest.mark.parametrize("full", [False, True])
def test_latex_compiles(hostile: Grid, tmp_path: Path, full: bool) -> None:
    compiled(tmp_path, render([hostile], "latex", full=full, standalone=True))


def test_markdown_takes_all_of_it_literally(hostile: Grid) -> None:
    text = render([hostile], "markdown", full=True)
    assert not acts(text)
    bare = re.sub(r"\\[^\w\s]", "", text)
    for raw in ("<script", "`", "](", "[", "**b**", "_c_", "$"):
        assert raw not in bare
    assert set(re.findall(r"<([^>]*)>", bare)) <= {"sup", "/sup", "u", "/u"}
    cells = {len(re.findall(r"\|", line)) for line in bare.splitlines() if line.startswith("|")}
    assert cells == {3}


def printed(grid: Grid) -> list[str]:
    """The texts of a grid that every format has; the heading of the rows is not one of the console's."""
    heads = (text for head in grid.heads for text in (head.group, head.label))
    return [
        grid.title,
        *heads,
        *(line.label for line in grid.lines),
        *grid.notes,
        *(o.claim.text for o, _ in grid.verdicts),
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_obeys_nothing_and_reads_no_markup(hostile: Grid, terminal: bool) -> None:
    out = io.StringIO()
    show([hostile], Console(file=out, force_terminal=terminal, color_system=None, width=4000), full=True)
    assert not acts(out.getvalue())
    assert ("[bold]a[/x]" in out.getvalue()) == (any("[bold]" in text for text in printed(hostile)))
    assert not acts(render([hostile], "console"))


def test_csv_holds_no_formula_and_one_line_a_cell(hostile: Grid) -> None:
    text = render([hostile], "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(text.splitlines()) == len(lines) + 1
    assert not acts(text)
    assert not any(value.startswith(("=", "+", "@", "-")) for line in lines for value in line.values())


def test_json_holds_the_texts_themselves(lab: Any, tmp_path: Path) -> None:
    text = render([grid(lab, tmp_path, dict.fromkeys(FIELDS, HOSTILE))], "json")
    assert not acts(text)
    (read,) = json.loads(text)
    assert {read["title"], read["claims"][0]["text"], read["notes"][3]} == {printable(HOSTILE)}
    assert {c["column"] for c in read["cells"]} == {printable(HOSTILE)}


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
